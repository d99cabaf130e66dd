//! `penalty: {after: 5, within: 1m, ban: 15m}`: a client that is denied repeatedly is banned for a while.

use std::time::Duration;

use super::Validation;
use crate::algorithm::Penalty;
use crate::descriptor::length;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Section, Takes, key};

pub(in crate::rules) const KEY: Key =
    key("penalty", Takes::One(&SECTION), "Bans a client that is denied repeatedly.")
        .example("{after: 5, within: 1m, ban: 15m}");

/// The keys of a penalty.
pub static SECTION: Section = Section::new(
    "penalty",
    "A number of denials within a time causes a ban.",
    &[&[
        key("after", Takes::Number, "Number of denials that cause a ban."),
        key("within", Takes::Length, "Time in which denials are counted."),
        key("ban", Takes::Length, "Duration of a ban."),
        key("extend", Takes::Flag, "Every request during a ban extends it."),
    ]],
    &["after", "within", "ban"],
);

/// The penalty for clients that are denied repeatedly.
pub type Value = Option<Penalty>;

pub(super) const UNSAID: Value = None;

/// Replaces an invalid length, to validate the others.
const ANY_LENGTH: Duration = Duration::from_secs(1);

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let after = validation.number_in(&KEY, "after", path, "number of denials that cause a ban, such as 5");
    let within = validation.length_in(&KEY, "within", path, "time in which denials are counted, such as 1m");
    let ban = validation.length_in(&KEY, "ban", path, "duration of a ban, such as 15m");
    let extend = validation.raw.mapping(KEY.name).get().is_some_and(|raw| raw.flag("extend").is_set());
    let is_whole = after.is_some() && within.is_some() && ban.is_some();
    let [within, ban] = [within, ban].map(|length| length.unwrap_or(ANY_LENGTH));
    match Penalty::new(after.unwrap_or(1), within, ban, extend) {
        Ok(penalty) => is_whole.then_some(Some(penalty)),
        Err(errors) => {
            errors.iter().for_each(|error| validation.complaints.error(path.key(error.key()), error.to_string()));
            None
        }
    }
}

pub(super) fn written(penalty: &Value) -> String {
    super::given(penalty)
}

pub(super) fn explained(penalty: &Value) -> String {
    let Some(penalty) = penalty else { return super::given(penalty) };
    let [after, within_ms, ban_ms, extend] = penalty.figures();
    let length = |ms| length(Duration::from_millis(ms));
    let extend = if extend == 1 { ", extended by each request" } else { "" };
    let denials = if after == 1 { "denial" } else { "denials" };
    format!("{after} {denials} within {} ban for {}{extend}", length(within_ms), length(ban_ms))
}
