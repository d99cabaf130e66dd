//! `usage: {by: hour, keep: 400d}`: records the usage of each counter for billing.

use super::Validation;
use crate::descriptor::length;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Section, Takes, key};
use crate::rules::report::unknown;
use crate::usage::{Period, Usage};

pub(in crate::rules) const KEY: Key = key(
    "usage",
    Takes::One(&SECTION),
    "Records the usage of each counter by minute, hour or day, for billing.",
)
.example("{by: hour, keep: 400d}")
.conflicts(&[
    (
        "unlimited",
        "an unlimited rule counts nothing, so it has no usage to record: set a limit that is never reached, or remove \
         it",
    ),
    (
        "concurrency",
        "concurrency counts requests in progress, not usage over time: remove it, or choose another algorithm",
    ),
]);

/// The keys of `usage`.
pub static SECTION: Section = Section::new(
    "usage",
    "The usage records of a limit.",
    &[&[
        key("by", Takes::Choice(periods), "Length of the period that one record covers."),
        key("keep", Takes::Length, "Time for which a record is kept after its period, up to 3660d."),
    ]],
    &["by", "keep"],
);

/// The records kept of a limit's usage.
pub type Value = Option<Usage>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let by = validation.raw.mapping(KEY.name).get().map(|raw| raw.text("by"))?;
    let by = validation.complaints.required_text(&by, path.key("by")).and_then(|name| {
        let period = Period::named(name);
        if period.is_none() {
            validation.complaints.error(path.key("by"), unknown("period", name, &periods()));
        }
        period
    });
    let keep = validation.length_in(&KEY, "keep", path, "time for which records are kept, such as 400d");
    if validation.is_in_conflict(&KEY) {
        return None;
    }
    match Usage::new(by?, keep?) {
        Ok(usage) => Some(Some(usage)),
        Err(error) => {
            validation.complaints.error(path.key("keep"), error.to_string());
            None
        }
    }
}

pub(super) fn written(usage: &Value) -> String {
    super::given(usage)
}

pub(super) fn explained(usage: &Value) -> String {
    let Some(usage) = usage else { return super::given(usage) };
    format!("by the {}, kept for {}", usage.period(), length(usage.keep()))
}

fn periods() -> Vec<&'static str> {
    Period::ALL.map(Period::name).to_vec()
}
