//! `soft: 90%`: beyond this share of the limit, the upstream is told that the client is near its limit.

use super::Validation;
use super::enforce::Share;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "soft",
    Takes::Text,
    "Share of the limit, from 0.01% to 100%, beyond which the upstream is told that the client is near it. The \
     upstream is then told what is left, too. Default: none, or SOFT_LIMIT with UPSTREAM_HEADERS_ENABLED.",
)
.example("90%");

/// The share of the limit beyond which a request is soft; `None` leaves that to the settings.
pub type Value = Option<Share>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let text = validation.raw.text(KEY.name).get().copied()?;
    let share = Share::parse(text);
    if share.is_none() {
        validation.complaints.error(path, "write a percentage with its sign, from 0.01% to 100%, such as 90%");
    }
    share.map(Some)
}

pub(super) fn written(share: &Value) -> String {
    super::given(share)
}

pub(super) fn explained(share: &Value) -> String {
    match share {
        Some(share) => format!("beyond {share} of the limit, told to the upstream"),
        None => super::given(share),
    }
}
