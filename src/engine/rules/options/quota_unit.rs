//! `quota_unit: content-bytes`: what the hits of the limit are, in the IETF fields that clients get.

use super::Validation;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "quota_unit",
    Takes::Choice(names),
    "What one hit is, in the field RateLimit-Policy of LIMIT_RESPONSE_HEADERS_FORMAT=ietf. Default: requests.",
)
.example("content-bytes")
.conflicts(&[(
    "concurrency",
    "concurrency counts requests in progress, and clients are told concurrent-requests: remove it",
)]);

/// What one hit is, by the registry of draft-ietf-httpapi-ratelimit-headers-11.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QuotaUnit {
    /// A request.
    #[default]
    Requests,
    /// A byte of contents.
    ContentBytes,
}

impl QuotaUnit {
    /// Both units.
    pub const ALL: [QuotaUnit; 2] = [QuotaUnit::Requests, QuotaUnit::ContentBytes];

    /// Returns the name in rules and in the field.
    pub const fn name(self) -> &'static str {
        match self {
            QuotaUnit::Requests => "requests",
            QuotaUnit::ContentBytes => "content-bytes",
        }
    }
}

/// What one hit is.
pub type Value = QuotaUnit;

pub(super) const UNSAID: Value = QuotaUnit::Requests;

pub(super) fn check(validation: &mut Validation<'_, '_>, _: FieldPath<'_>) -> Option<Value> {
    let (raw, path) = (validation.raw.text(KEY.name), validation.path);
    validation.complaints.choice(&raw, path, KEY.name, &QuotaUnit::ALL, QuotaUnit::name)
}

pub(super) fn written(unit: &Value) -> String {
    unit.name().to_owned()
}

pub(super) fn explained(unit: &Value) -> String {
    written(unit)
}

fn names() -> Vec<&'static str> {
    QuotaUnit::ALL.map(QuotaUnit::name).to_vec()
}
