//! `lease: {size: 50, ttl: 100ms}`: a process takes hits in advance, to serve a hot key from memory.

use super::Said;
use crate::descriptor::length;
use crate::algorithm::lease_terms::{Lease, LeaseError};
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Section, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "lease",
    Takes::One(&SECTION),
    "A replica takes hits in advance and decides by them without asking the store: for counters that are asked very \
     often.",
)
.example("{size: 50, ttl: 100ms}")
.conflicts(&[
    ("penalty", "a limit that has a penalty has no lease: a ban must be seen at once; remove one of the two"),
    (
        "durable",
        "a durable limit has no lease: no replica of Redis has heard of what a process takes in advance and lets \
         pass; remove one of the two",
    ),
    ("count_denied", LeaseError::WITH_COUNT_DENIED),
    ("max_delay", LeaseError::WITH_DELAY),
    ("concurrency", LeaseError::WITH_HOLDERS),
    (
        "rate_limits",
        "among several limits none has a lease: the store decides all of them together; remove it, or leave one limit",
    ),
]);

/// The keys of a lease.
pub static SECTION: Section = Section::new(
    "lease",
    "What a replica takes in advance.",
    &[&[
        key("size", Takes::Number, "How many hits it takes at once."),
        key("ttl", Takes::Length, "How long it may use them."),
    ]],
    &["size", "ttl"],
);

/// The hits that a process may take in advance, to serve a hot key from memory.
pub type Value = Option<Lease>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(said: &mut Said<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let size = said.number_in(&KEY, "size", path, "how many hits a process takes in advance, such as 50");
    let ttl = said.length_in(&KEY, "ttl", path, "how long they may be used, such as 100ms");
    match Lease::new(size?, ttl?, said.limit_for(&KEY)?) {
        Ok(lease) => Some(Some(lease)),
        Err(error) => {
            let path = error.key().map_or(path, |key| path.key(key));
            said.complaints.error(path, error.to_string());
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
