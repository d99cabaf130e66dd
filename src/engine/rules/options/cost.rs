//! `cost: 5`: every hit counts as five.

use super::Validation;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};

pub(in crate::rules) const KEY: Key =
    key("cost", Takes::Number, "Number of hits that each hit counts as. Default: 1.").example("5");

/// The number of hits that each hit counts as.
pub type Value = u32;

pub(super) const UNSAID: Value = 1;

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let cost = validation.raw.number(KEY.name).get().copied()?;
    if cost == 0 {
        validation.complaints.error(path, "must be at least 1: for requests that cost nothing, write unlimited: true");
        return None;
    }
    if let Some(limit) = validation.limit_for(&KEY) {
        let most = limit.capacity();
        // With a number of 0, it is obvious that nothing passes.
        if limit.number() > 0 && u64::from(cost) > most {
            let message =
                format!("no request ever passes: each costs {cost}, but the limit allows at most {most} at once");
            validation.complaints.warn(path, message);
        }
    }
    Some(cost)
}

pub(super) fn written(cost: &Value) -> String {
    cost.to_string()
}

pub(super) fn explained(cost: &Value) -> String {
    written(cost)
}
