//! `number: {from: request, max: 1000}`: a limit that a request brings along sets the number and the period, and all
//! else stays as in the rule.

use std::fmt;

use super::Validation;
use crate::algorithm::Limit;
use crate::descriptor::Override;
use crate::rules::config::FieldPath;
use crate::rules::report::unknown;
use crate::rules::section::{Key, Section, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "number",
    Takes::One(&SECTION),
    "A limit that a request brings along sets the number and the period of this one, and all else stays as in the \
     rule.",
)
.example("{from: request, max: 1000}")
.conflicts(&[
    ("concurrency", "a limit that a request brings along is per second, minute or the like, and concurrency has no \
                     period: remove it"),
    ("budget", "a limit that a request brings along has a counter for each of its periods, and what a stream holds \
                could not be settled: remove it"),
    (
        "time_zone",
        "the period of a limit that a request brings along may be one that no calendar has: remove one of the two",
    ),
    (
        "starts_on",
        "a limit with starts_on follows the calendar, so it cannot take its period from a request: remove one of the \
         two",
    ),
    (
        "rate_limits",
        "a request brings one limit along, and several could not be told apart: remove it, or keep one limit",
    ),
]);

/// The keys of `number`.
pub static SECTION: Section = Section::new(
    "number",
    "Where the number of a limit comes from.",
    &[&[
        key("from", Takes::Choice(sources), "request: the limit that a request's descriptor brings along, if any."),
        key("max", Takes::Number, "Largest number that counts; a larger one counts as this."),
    ]],
    &["from", "max"],
);

/// The only source of numbers outside of rules.
const REQUEST: &str = "request";

/// The number is that of the request, up to a largest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FromRequest {
    max: u32,
}

impl FromRequest {
    /// Returns the rule's limit with the number and the period of one that a request brings along. A burst changes in
    /// proportion to the number. If the rule's algorithm or its options do not fit the period, the rule's limit
    /// applies.
    pub fn limit(self, rule: &Limit, brought: Override) -> Limit {
        let number = brought.number.min(self.max);
        let options = rule.with_number(number.into()).options();
        Limit::new(rule.algorithm(), number.into(), brought.period, options).unwrap_or(*rule)
    }
}

impl fmt::Display for FromRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from the request, at most {}", self.max)
    }
}

/// Where the number comes from if not from the rule.
pub type Value = Option<FromRequest>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let from = validation.raw.mapping(KEY.name).get().map(|raw| raw.text("from"))?;
    let from = validation.complaints.required_text(&from, path.key("from")).filter(|from| {
        if *from != REQUEST {
            validation.complaints.error(path.key("from"), unknown("source", from, &sources()));
        }
        *from == REQUEST
    });
    let max = validation.number_in(&KEY, "max", path, "largest number that counts, such as 1000");
    from?;
    let max = max?;
    if max == 0 {
        validation.complaints.error(path.key("max"), "must be at least 1: with 0, a limit of a request would deny it");
        return None;
    }
    if let Some(limit) = validation.limit_for(&KEY)
        && let Err(errors) = limit.with_number_alone(max.into())
    {
        errors.0.iter().for_each(|error| validation.complaints.error(path.key("max"), error.to_string()));
        return None;
    }
    Some(Some(FromRequest { max }))
}

pub(super) fn written(number: &Value) -> String {
    super::given(number)
}

pub(super) fn explained(number: &Value) -> String {
    written(number)
}

fn sources() -> Vec<&'static str> {
    vec![REQUEST]
}
