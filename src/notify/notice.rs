//! The notice that a counter has reached a share of its limit, as people and programs read it.

use std::time::SystemTime;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::reached::Reached;
use crate::engine::asked::Source;
use crate::engine::decision::Limited;
use crate::engine::descriptor::{Entry, Request, Role};
use crate::engine::printable::printable;
use crate::engine::rules::options::enforce::Share;
use crate::observe::redaction::Values;

/// Longest value that a notice shows. Clients choose values, and the notices that wait are kept in memory.
const LONGEST: usize = 256;

/// A notice.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Notice {
    /// The same for each attempt to tell it.
    #[serde(skip)]
    pub(super) id: String,
    /// When the store decided, in RFC 3339.
    #[serde(skip)]
    time: String,
    /// The domain of the request.
    domain: String,
    /// The limit, as metrics name it.
    rule: String,
    /// The entries of the request's descriptor.
    descriptor: Vec<ShownEntry>,
    /// The share that is reached.
    pub(super) mark: String,
    /// The hits that are used, and those that are left.
    used: u64,
    remaining: u64,
    /// The most hits at a time: the number of the limit, or its burst.
    limit: u64,
    /// The number of the limit.
    number: u64,
    algorithm: &'static str,
    /// Absent for requests in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    period_ms: Option<u64>,
    /// Time until the counter is as new.
    reset_after_ms: u64,
    /// Whether the limit denies the request.
    over_limit: bool,
    /// Whether the limit is in shadow mode, and so denies nothing.
    shadow_mode: bool,
}

#[derive(Clone, Debug, Serialize)]
struct ShownEntry {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

impl Notice {
    /// Creates the notice that the counter of a request's limit has reached this mark.
    pub(super) fn new(
        (request, limited): (&Request, &Limited<'_>),
        (reached, mark): (Reached, Share),
        values: &Values,
    ) -> Notice {
        let check = &limited.asked.check;
        let entries = request.descriptors.get(check.descriptor).map_or(&[][..], |descriptor| &descriptor.entries);
        let entries = match limited.asked.source {
            Source::Rule(rule, _) => rule.split(entries).0,
            Source::Override(_) => entries,
        };
        Notice {
            id: format!("notice_{:032x}", fastrand::u128(..)),
            time: Timestamp::try_from(SystemTime::now()).unwrap_or_default().to_string(),
            domain: request.domain.to_string(),
            rule: values.label(limited.asked.source).into_owned(),
            descriptor: entries.iter().map(|entry| shown(entry, values)).collect(),
            mark: mark.to_string(),
            used: reached.used,
            remaining: reached.capacity - reached.used,
            limit: reached.capacity,
            number: check.limit.number(),
            algorithm: check.limit.algorithm().name(),
            period_ms: check.limit.window().and_then(|window| u64::try_from(window.as_millis()).ok()),
            reset_after_ms: reached.reset_after_ms,
            over_limit: limited.over(),
            shadow_mode: limited.role() == Role::Shadow,
        }
    }

    /// Returns the body for a webhook.
    pub(super) fn body(&self) -> Vec<u8> {
        let body = json!({"type": "limit.reached", "timestamp": self.time, "data": self});
        body.to_string().into_bytes()
    }

    /// Writes it to the log.
    pub(super) fn log(&self) {
        let (Notice { domain, rule, mark, used, limit, .. }, descriptor) = (self, self.descriptor());
        tracing::info!(domain, rule, descriptor, mark, used, limit, "a counter has reached a share of its limit");
    }

    /// Returns the descriptor in one line.
    fn descriptor(&self) -> String {
        let entry = |ShownEntry { key, value }: &ShownEntry| match value {
            Some(value) => format!("{}={}", printable(key), printable(value)),
            None => printable(key),
        };
        self.descriptor.iter().map(entry).collect::<Vec<_>>().join(" ")
    }
}

fn shown(entry: &Entry, values: &Values) -> ShownEntry {
    let cut = |text: &str| match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    };
    ShownEntry { key: cut(&entry.key), value: values.shown(&entry.value).map(|value| cut(&value)) }
}
