//! `lease: {size: 50, ttl: 100ms}`: a process takes hits in advance, to serve a hot key from memory.

use super::Validation;
use crate::descriptor::length;
use crate::algorithm::lease_terms::{Lease, LeaseError};
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Section, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "lease",
    Takes::One(&SECTION),
    "An instance takes hits in advance and decides with them without asking the store. For very busy counters.",
)
.example("{size: 50, ttl: 100ms}")
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
        key("size", Takes::Number, "Number of hits to take at once."),
        key("ttl", Takes::Length, "Time for which they can be used."),
    ]],
    &["size", "ttl"],
);

/// The hits that a process may take in advance, to serve a hot key from memory.
pub type Value = Option<Lease>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let size = validation.number_in(&KEY, "size", path, "number of hits to take in advance, such as 50");
    let ttl = validation.length_in(&KEY, "ttl", path, "time for which they can be used, such as 100ms");
    match Lease::new(size?, ttl?, validation.limit_for(&KEY)?) {
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
    format!("{} hits for {}", lease.size(), length(lease.ttl()))
}
