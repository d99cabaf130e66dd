//! The headers that describe its limit to a client; Envoy adds them to its response.

use super::convert::whole_seconds;
use super::details;
use crate::decision::{self, Decision, Limited};
use crate::descriptor::Role;
use crate::wire::HeaderValue;

/// Which headers an answer carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// None.
    #[default]
    Off,
    /// One for each figure, under these names, and `Retry-After`.
    Separate(HeaderNames),
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers, and `Retry-After`.
    Ietf,
}

/// How the settings choose among [`Headers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderFormat {
    /// Three headers, one for each figure.
    #[default]
    Separate,
    /// The two structured fields of the IETF draft.
    Ietf,
}

impl HeaderFormat {
    /// Both.
    pub const ALL: [HeaderFormat; 2] = [HeaderFormat::Separate, HeaderFormat::Ietf];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            HeaderFormat::Separate => "separate",
            HeaderFormat::Ietf => "ietf",
        }
    }
}

/// The names of separate headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Of the limit's number.
    pub limit: String,
    /// Of what remains.
    pub remaining: String,
    /// Of the seconds until nothing is used any more.
    pub reset: String,
}

/// The headers for a decision; none where no limit applies.
pub(super) fn of(decision: &Decision<'_>, headers: &Headers) -> Vec<HeaderValue> {
    let Some(limited) = reported(decision) else { return Vec::new() };
    // A bucket may hold more than the number: what remains is then shown against that.
    let (limit, remaining) = (&limited.asked.check.limit, limited.remaining());
    let reset = limited.reset_after_ms().map(whole_seconds);
    let mut values = match headers {
        Headers::Off => return Vec::new(),
        Headers::Separate(names) => {
            let remaining = remaining.map(|remaining| header(&names.remaining, remaining.to_string()));
            let reset = reset.map(|reset| header(&names.reset, reset.to_string()));
            let limit = header(&names.limit, limit.capacity().to_string());
            [Some(limit), remaining, reset].into_iter().flatten().collect()
        }
        Headers::Ietf => {
            let name = quoted(limited.asked.source.label());
            // A day, a month and a year are not always as long.
            let window = limit.window().filter(|_| limit.options().time_zone.is_none());
            let window = window.map(|_| format!(";w={}", whole_seconds(limit.period_ms()))).unwrap_or_default();
            let reset = reset.map(|reset| format!(";t={reset}")).unwrap_or_default();
            let mut values = vec![header("RateLimit-Policy", format!("{name};q={}{window}", limit.capacity()))];
            values.extend(remaining.map(|remaining| header("RateLimit", format!("{name};r={remaining}{reset}"))));
            values
        }
    };
    values.extend(retry_after(decision).map(|seconds| header("Retry-After", seconds.to_string())));
    values
}

/// Under this name, by what a request was decided; `None` where no limit applies and it passes.
pub(super) fn decided_by(decision: &Decision<'_>, name: &str) -> Option<HeaderValue> {
    (!decision.limits.is_empty() || decision.denies_unknown()).then(|| header(name, details::decided_by(decision)))
}

/// The limit to report: of the last descriptor that is over, or else the first with the least remaining.
fn reported<'d, 'a>(decision: &'d Decision<'a>) -> Option<&'d Limited<'a>> {
    let pressing = || decision.limited().filter_map(decision::most_pressing);
    let over = pressing().filter(|limited| limited.shown_over() && limited.role() != Role::Quota).last();
    over.or_else(|| pressing().min_by_key(|limited| decision::least_first(limited)))
}

/// The seconds after which a denied request may pass; `None` where it passes now, or where that is unknown.
pub(super) fn retry_after(decision: &Decision<'_>) -> Option<u64> {
    decision.retry_after_ms().map(whole_seconds)
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() }
}

/// A string of a structured field (RFC 9651): printable ASCII in quotes.
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
