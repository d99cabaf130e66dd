//! `give_back: false`: no client can refund hits by negative ones.

use super::Validation;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};

pub(in crate::rules) const KEY: Key =
    key("give_back", Takes::Flag, "Whether clients can refund hits by sending negative hits. Default: true.")
        .example("false")
        .conflicts(&[
            ("concurrency", "concurrency needs negative hits, which release the slot of a finished request: remove it"),
            ("budget", "a budget takes no negative hits: streams settle what they have used; remove it"),
        ]);

/// Whether negative hits are valid: a client can refund its own hits or those of others.
pub type Value = bool;

pub(super) const UNSAID: Value = true;

pub(super) fn check(validation: &mut Validation<'_, '_>, _: FieldPath<'_>) -> Option<Value> {
    validation.flag(&KEY)
}

pub(super) fn written(give_back: &Value) -> String {
    give_back.to_string()
}

pub(super) fn explained(give_back: &Value) -> String {
    written(give_back)
}
