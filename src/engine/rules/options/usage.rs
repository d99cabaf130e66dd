//! `usage: {by: hour, keep: 400d}`: records the usage of each counter for billing.

use super::Said;
use crate::descriptor::length;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Section, Takes, key};
use crate::rules::report::unknown;
use crate::usage::{Period, Usage};

pub(in crate::rules) const KEY: Key = key(
    "usage",
    Takes::One(&SECTION),
    "What each counter was used is kept, by minute, hour or day, so that it can be billed.",
)
.example("{by: hour, keep: 400d}")
.conflicts(&[
    ("lease", "what is taken in advance is in no record when it is used: remove usage or lease"),
    (
        "unlimited",
        "an unlimited rule counts nothing, so there is no use to be kept: limit it to what never comes, or remove it",
    ),
    (
        "concurrency",
        "concurrency limits what is in progress, and counts nothing up: remove it, or choose another algorithm",
    ),
]);

/// The keys of `usage`.
pub static SECTION: Section = Section::new(
    "usage",
    "What is kept of a limit's use.",
    &[&[
        key("by", Takes::Choice(periods), "How long a time one record is about."),
        key("keep", Takes::Length, "How long it is kept after that, up to 3660d."),
    ]],
    &["by", "keep"],
);

/// The records kept of a limit's usage.
pub type Value = Option<Usage>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(said: &mut Said<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let by = said.raw.mapping(KEY.name).get().map(|raw| raw.text("by"))?;
    let by = said.complaints.required_text(&by, path.key("by")).and_then(|name| {
        let period = Period::named(name);
        if period.is_none() {
            said.complaints.error(path.key("by"), unknown("period", name, &periods()));
        }
        period
    });
    let keep = said.length_in(&KEY, "keep", path, "how long a record is kept, such as 400d");
    if said.is_in_conflict(&KEY) {
        return None;
    }
    match Usage::new(by?, keep?) {
        Ok(usage) => Some(Some(usage)),
        Err(error) => {
            said.complaints.error(path.key("keep"), error.to_string());
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
