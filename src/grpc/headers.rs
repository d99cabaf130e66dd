//! Headers with the limit of a client; Envoy adds them to its response.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::convert::whole_seconds;
use super::details;
use crate::engine::asked::Source;
use crate::engine::decision::{Decision, Limited};
use crate::engine::rules::options::quota_unit::QuotaUnit;
use crate::wire::HeaderValue;

/// The headers of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// No headers.
    #[default]
    Off,
    /// One header per value, under these names, and `Retry-After`.
    Separate(HeaderNames),
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11, and `Retry-After`.
    Ietf(PartitionKeys),
}

/// Whether the IETF fields name the counter, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionKeys {
    /// They do not.
    Hidden,
    /// They do, in the parameter `pk`.
    Shown,
}

/// The choice of [`Headers`] in the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderFormat {
    /// Three headers, one per value.
    #[default]
    Separate,
    /// The two structured fields of the IETF draft.
    Ietf,
}

impl HeaderFormat {
    /// Both formats.
    pub const ALL: [HeaderFormat; 2] = [HeaderFormat::Separate, HeaderFormat::Ietf];

    /// Returns the name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            HeaderFormat::Separate => "separate",
            HeaderFormat::Ietf => "ietf",
        }
    }
}

/// Names of the separate headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Header with the limit's number.
    pub limit: String,
    /// Header with the remaining hits.
    pub remaining: String,
    /// Header with the seconds until the counter is as good as new.
    pub reset: String,
}

/// Returns the headers for a decision; empty if no limit applies.
pub(super) fn of(decision: &Decision<'_>, headers: &Headers) -> Vec<HeaderValue> {
    let values = match headers {
        Headers::Off => None,
        Headers::Separate(names) => decision.reported().map(|limited| separate(limited, names)),
        Headers::Ietf(keys) => decision.reported().map(|limited| ietf(limited, *keys, retry_after(decision))),
    };
    let Some(mut values) = values else { return Vec::new() };
    values.extend(retry_after(decision).map(|seconds| header("Retry-After", seconds.to_string())));
    values
}

/// Returns one header per value. A bucket may hold more hits than the limit's number, so its capacity is shown.
fn separate(limited: &Limited<'_>, names: &HeaderNames) -> Vec<HeaderValue> {
    let limit = header(&names.limit, limited.capacity().to_string());
    let remaining = limited.remaining().map(|remaining| header(&names.remaining, remaining.to_string()));
    let reset = limited.reset_after_ms().map(|ms| header(&names.reset, whole_seconds(ms).to_string()));
    [Some(limit), remaining, reset].into_iter().flatten().collect()
}

/// Returns the headers of the IETF draft, with the capacity likewise. `retry_after` is the value of `Retry-After`: it
/// must not be earlier than the parameter `t`.
fn ietf(limited: &Limited<'_>, keys: PartitionKeys, retry_after: Option<u64>) -> Vec<HeaderValue> {
    let limit = &limited.asked.check.limit;
    let name = quoted(limited.asked.source.label());
    let unit = match limited.asked.source {
        _ if limit.algorithm().counts_in_progress() => Some("concurrent-requests"),
        Source::Rule(_, limit) => {
            let unit = limit.config.options.quota_unit;
            (unit != QuotaUnit::Requests).then(|| unit.name())
        }
        Source::Override(_) => None,
    };
    let unit = unit.map(|unit| format!(";qu=\"{unit}\"")).unwrap_or_default();
    // Days, months and years of a calendar vary in length.
    let window = limit.window().filter(|_| limit.options().time_zone.is_none());
    let window = window.map(|_| format!(";w={}", whole_seconds(limit.period_ms()))).unwrap_or_default();
    let key = match keys {
        PartitionKeys::Hidden => String::new(),
        PartitionKeys::Shown => partition_key(limited.asked.check.key.as_str()),
    };
    let more = limited.more_after_ms().map(whole_seconds);
    let more = more.filter(|more| retry_after.is_none_or(|retry_after| *more <= retry_after));
    let more = more.map(|seconds| format!(";t={seconds}")).unwrap_or_default();
    let mut values = vec![header("RateLimit-Policy", format!("{name};q={}{unit}{window}{key}", limited.capacity()))];
    let remaining = limited.remaining();
    values.extend(remaining.map(|remaining| header("RateLimit", format!("{name};r={remaining}{more}{key}"))));
    values
}

/// Writes a counter's name as the parameter `pk`: a hash of it, so that no value of a request is told.
fn partition_key(counter: &str) -> String {
    const BYTES: usize = 12;
    let mut hasher = blake3::Hasher::new_derive_key("tollgate 2026-11 pk of RateLimit");
    hasher.update(counter.as_bytes());
    format!(";pk=:{}:", BASE64.encode(&hasher.finalize().as_bytes()[..BYTES]))
}

/// Returns a header of this name with the cause of the decision, or `None` if no limit applies and the request passes.
pub(super) fn decided_by(decision: &Decision<'_>, name: &str) -> Option<HeaderValue> {
    (!decision.limits.is_empty() || decision.denies_unknown()).then(|| header(name, details::decided_by(decision)))
}

/// Returns the seconds until a denied request may pass, or `None` if it passes now or the time is not known.
pub(super) fn retry_after(decision: &Decision<'_>) -> Option<u64> {
    decision.retry_after_ms().map(whole_seconds)
}

pub(super) fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() }
}

/// Writes a string of a structured field (RFC 9651): printable ASCII in quotes.
fn quoted(name: &str) -> String {
    let mut text = String::from('"');
    for char in name.chars() {
        if matches!(char, '"' | '\\') {
            text.push('\\');
        }
        text.push(if char.is_ascii_graphic() || char == ' ' { char } else { '?' });
    }
    text.push('"');
    text
}
