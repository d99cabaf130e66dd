//! `cost: 5`: every hit counts as five.

use super::Said;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};

pub(in crate::rules) const KEY: Key =
    key("cost", Takes::Number, "The number of hits that each hit counts as. Without it, 1.").example("5");

/// The number of hits that each hit counts as.
pub type Value = u32;

pub(super) const UNSAID: Value = 1;

pub(super) fn check(said: &mut Said<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let cost = said.raw.number(KEY.name).get().copied()?;
    if cost == 0 {
        said.complaints.error(path, "must be at least 1: what costs nothing is unlimited: true");
        return None;
    }
    if let Some(limit) = said.limit_for(&KEY) {
        let most = limit.capacity();
        // With a number of 0, it is obvious that nothing passes.
        if limit.number() > 0 && cost > most {
            let message =
                format!("no request ever passes: each costs {cost}, and no more than {most} can be taken at once");
            said.complaints.warn(path, message);
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
