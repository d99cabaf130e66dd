//! `durable: true`: a request passes only once a replica of Redis has its hits, and a failover admits nothing twice.

use super::Validation;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "durable",
    Takes::Flag,
    "A request passes only after a Redis replica has confirmed it, so a failover admits nothing twice. Default: false.",
)
.example("true");

/// Whether a request passes only once a replica of Redis has its hits.
pub type Value = bool;

pub(super) const UNSAID: Value = false;

pub(super) fn check(validation: &mut Validation<'_, '_>, _: FieldPath<'_>) -> Option<Value> {
    validation.flag(&KEY)
}

pub(super) fn written(durable: &Value) -> String {
    durable.to_string()
}

pub(super) fn explained(durable: &Value) -> String {
    written(durable)
}
