//! `lease: {unused: 5%}`: instances take hits in advance, to decide most requests of a busy key from memory.

use std::time::Duration;

use super::enforce::Share;
use super::{NO_PART, RuleOptions, Validation};
use crate::algorithm::Limit;
use crate::descriptor::length;
use crate::algorithm::lease_terms::{Lease, LeaseError};
use crate::rules::complaints::Complaints;
use crate::rules::config::{FieldPath, Raw, RawMapping};
use crate::rules::section::{Key, Section, Takes, key};

/// The key in rules.
pub const KEY_NAME: &str = "lease";

pub(in crate::rules) const KEY: Key = key(
    KEY_NAME,
    Takes::One(&SECTION),
    "Instances take hits in advance, and decide with them without asking the store. The limit stays exact; a part of \
     it may be unused. For busy counters. Default: the file's defaults, then none.",
)
.example("{unused: 5%}")
.conflicts(&[
    ("penalty", "a limit with a penalty cannot have a lease, because every instance must see a ban at once: remove one \
                 of the two"),
    (
        "durable",
        "a durable limit cannot have a lease, because no Redis replica has confirmed the hits that an instance decides \
         from its lease: remove one of the two",
    ),
    ("count_denied", LeaseError::WITH_COUNT_DENIED),
    ("max_delay", LeaseError::WITH_DELAY),
    ("concurrency", LeaseError::WITH_HOLDERS),
    ("budget", "a budget cannot have a lease: each stream holds hits of its own until it settles"),
    (
        "rate_limits",
        "a limit of several cannot have a lease, because the store decides all of them together: remove it, or keep \
         one limit",
    ),
]);

/// The keys of a lease.
pub static SECTION: Section = Section::new(
    "lease",
    "The hits that an instance takes in advance.",
    &[&[
        key(
            "unused",
            Takes::Text,
            "The part of the limit, from 0.01% to 50%, that may be with instances, unused, when a request is denied. \
             0% is no lease.",
        ),
        key("ttl", Takes::Length, "Time for which an instance keeps them, up to 30s. Default: half of a period."),
    ]],
    &["unused"],
);

/// The hits that a process may take in advance, to serve a hot key from memory.
pub type Value = Option<Lease>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let raw = validation.raw.mapping(KEY.name);
    let Some(terms) = read(raw.get()?, validation.complaints, path)? else { return Some(None) };
    match terms.of(validation.limit_for(&KEY)?) {
        Ok(lease) => Some(Some(lease)),
        Err(error) => {
            let path = error.key().map_or(path, |key| path.key(key));
            validation.complaints.error(path, error.to_string());
            None
        }
    }
}

/// A lease as it is written, of whichever limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    unused: Share,
    ttl: Option<Duration>,
}

impl LeaseTerms {
    fn of(self, limit: &Limit) -> Result<Lease, LeaseError> {
        Lease::new(self.unused.hundredths(), self.ttl, limit)
    }

    /// Reports what no limit allows; the terms of a limit are checked with it.
    pub(in crate::rules) fn checked(self, complaints: &mut Complaints<'_>, path: FieldPath<'_>) -> Option<LeaseTerms> {
        let error = Lease::check_terms(self.unused.hundredths(), self.ttl).err();
        if let Some(error) = &error {
            complaints.error(error.key().map_or(path, |key| path.key(key)), error.to_string());
        }
        error.is_none().then_some(self)
    }

    /// Returns the lease of a limit with these options that sets none; `None` if it cannot have it.
    pub(in crate::rules) fn by_default(self, limit: &Limit, options: &RuleOptions) -> Value {
        let RuleOptions { penalty, durable, .. } = options;
        if penalty.is_some() || *durable { None } else { self.of(limit).ok() }
    }
}

/// Reads a lease; `Some(None)` is none. Returns `None` if it has reported a mistake.
pub(in crate::rules) fn read(
    given: &RawMapping<'_>,
    complaints: &mut Complaints<'_>,
    path: FieldPath<'_>,
) -> Option<Option<LeaseTerms>> {
    let (unused, ttl) = (given.text("unused"), given.text("ttl"));
    let hint = "the part of the limit that may be unused, such as 5%";
    complaints.required(&unused, path.key("unused"), hint);
    let text = unused.get().copied();
    let share = text.and_then(Share::parse);
    if text.is_some_and(|text| text != NO_PART) && share.is_none() {
        let message = "write a percentage with its sign, from 0.01% to 50%, such as 5%; with 0% there is no lease";
        complaints.error(path.key("unused"), message);
    }
    let is_without_ttl = matches!(ttl, Raw::Missing);
    let ttl = complaints.length(&ttl, path.key("ttl"));
    match text? {
        _ if !is_without_ttl && ttl.is_none() => None,
        NO_PART => Some(None),
        _ => share.map(|unused| Some(LeaseTerms { unused, ttl })),
    }
}

pub(super) fn written(lease: &Value) -> String {
    super::given(lease)
}

pub(super) fn explained(lease: &Value) -> String {
    let Some(lease) = lease else { return super::given(lease) };
    let (percent, most, ttl) = (lease.percent(), lease.most(), length(lease.ttl()));
    format!("up to {percent}% with all instances together, {most} hits, for {ttl} each")
}
