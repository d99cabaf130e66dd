//! `durable: true`: a request passes only once a replica of Redis has its hits, and a failover admits nothing twice.

use super::Said;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "durable",
    Takes::Flag,
    "A request passes only when a replica of Redis has heard of it, so that a failover admits nothing twice. Without \
     it, false.",
)
.example("true");

/// Whether a request passes only once a replica of Redis has its hits.
pub type Value = bool;

pub(super) const UNSAID: Value = false;

pub(super) fn check(said: &mut Said<'_, '_>, _: FieldPath<'_>) -> Option<Value> {
    said.flag(&KEY)
}

pub(super) fn written(durable: &Value) -> String {
    durable.to_string()
}

pub(super) fn explained(durable: &Value) -> String {
    written(durable)
}
