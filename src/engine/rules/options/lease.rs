//! `lease: {unused: 5%}`: instances take hits in advance, to decide most requests of a busy key from memory.

use super::Validation;
use super::enforce::Share;
use crate::descriptor::length;
use crate::algorithm::lease_terms::{Lease, LeaseError};
use crate::rules::config::{FieldPath, Raw};
use crate::rules::section::{Key, Section, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "lease",
    Takes::One(&SECTION),
    "Instances take hits in advance, and decide with them without asking the store. The limit stays exact; a part of \
     it may be unused. For busy counters.",
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
            "The part of the limit, from 0.01% to 50%, that may be with instances, unused, when a request is denied.",
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
    let given = raw.get()?;
    let (unused, ttl) = (given.text("unused"), given.text("ttl"));
    let hint = "the part of the limit that may be unused, such as 5%";
    validation.complaints.required(&unused, path.key("unused"), hint);
    let share = unused.get().and_then(|text| {
        let share = Share::parse(text);
        if share.is_none() {
            let message = "write a percentage with its sign, from 0.01% to 50%, such as 5%";
            validation.complaints.error(path.key("unused"), message);
        }
        share
    });
    let is_without_ttl = matches!(ttl, Raw::Missing);
    let ttl = validation.complaints.length(&ttl, path.key("ttl"));
    if !is_without_ttl && ttl.is_none() {
        return None;
    }
    match Lease::new(share?.hundredths(), ttl, validation.limit_for(&KEY)?) {
        Ok(lease) => Some(Some(lease)),
        Err(error) => {
            let path = error.key().map_or(path, |key| path.key(key));
            validation.complaints.error(path, error.to_string());
            None
        }
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
