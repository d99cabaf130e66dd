//! The answer to `tollgate ask`, for people and for scripts. A service that tells no details (an older one, or
//! `envoyproxy/ratelimit`) tells one limit of each descriptor, in whole seconds.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::decision::DecidedBy;
use crate::descriptor::{self, Unit};
use crate::wire::details::{DescriptorDetails, Details, LimitDetails};
use crate::wire::rate_limit_response::rate_limit::Unit as WireUnit;
use crate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::wire::{RateLimitDescriptor, RateLimitResponse};

/// The columns of several limits.
const COLUMNS: [&str; 5] = ["rule", "limit", "algorithm", "left", ""];

/// An answer, and what was asked.
pub(super) struct Answer {
    response: RateLimitResponse,
    /// The descriptors' entries, as people write them.
    asked: Vec<String>,
    what: What,
    details: Details,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Hits,
    Peek,
    Refund,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Limited,
    /// A peek: one more hit would.
    WouldPass,
    /// A peek: one more hit would be.
    WouldBeLimited,
}

impl Answer {
    /// The answer to a question about these.
    pub(super) fn new(descriptors: &[RateLimitDescriptor], response: RateLimitResponse) -> Answer {
        let entries = |descriptor: &RateLimitDescriptor| {
            let entries = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
            entries.collect::<Vec<_>>().join(" ")
        };
        let mut details = response.dynamic_metadata.as_ref().and_then(Details::of_metadata).unwrap_or_default();
        if details.descriptors.len() != response.statuses.len() {
            details.descriptors = response.statuses.iter().map(descriptor).collect();
        }
        let what = match descriptors {
            all if all.iter().all(|descriptor| descriptor.hits_addend == Some(0)) => What::Peek,
            all if all.iter().all(|descriptor| descriptor.is_negative_hits) => What::Refund,
            _ => What::Hits,
        };
        Answer { asked: descriptors.iter().map(entries).collect(), what, details, response }
    }

    pub(super) fn outcome(&self) -> Outcome {
        match (self.response.overall_code(), self.what) {
            (Code::OverLimit, What::Peek) => return Outcome::WouldBeLimited,
            (Code::OverLimit, _) => return Outcome::Limited,
            (_, What::Peek) => {}
            (_, What::Hits | What::Refund) => return Outcome::Passed,
        }
        let limits = || self.details.descriptors.iter().flat_map(|descriptor| &descriptor.limits);
        let next_passes = self.details.next_passes;
        if next_passes.unwrap_or_else(|| limits().all(|limit| limit.remaining != Some(0))) {
            Outcome::WouldPass
        } else {
            Outcome::WouldBeLimited
        }
    }

    /// Something is said of one of the descriptors at least: a limit, or that there is none.
    pub(super) fn applies(&self) -> bool {
        self.details.descriptors.iter().any(|descriptor| descriptor.unlimited || !descriptor.limits.is_empty())
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = match self.outcome() {
            Outcome::Passed => "passed\n",
            Outcome::Limited => "LIMITED\n",
            Outcome::WouldPass => "one more would pass\n",
            Outcome::WouldBeLimited => "one more would be LIMITED\n",
        }
        .to_owned();
        for (asked, descriptor) in self.asked.iter().zip(&self.details.descriptors) {
            match &*descriptor.limits {
                [] if descriptor.unlimited => _ = writeln!(text, "  {asked}: unlimited"),
                [] => {
                    let missed = descriptor.missed.iter().map(|missed| format!(": {missed}"));
                    let _ = writeln!(text, "  {asked}: no limit applies{}", missed.collect::<String>());
                }
                [limit] => _ = writeln!(text, "  {asked}: {}", line(limit, self.what)),
                limits => _ = write!(text, "  {asked}: {} limits\n{}", limits.len(), table(limits, self.what)),
            }
        }
        for (decided_by, setting) in
            [(DecidedBy::UnknownDomain, "UNKNOWN_DOMAIN"), (DecidedBy::UnknownDescriptor, "UNKNOWN_DESCRIPTOR")]
        {
            if self.details.decided_by.split(", ").any(|name| name == decided_by.name()) {
                let _ = writeln!(text, "  denied, because {setting} is deny");
            }
        }
        for header in &self.response.response_headers_to_add {
            let _ = writeln!(text, "  {}: {}", header.key, header.value);
        }
        text
    }

    /// For scripts: one JSON object.
    pub(super) fn json(&self) -> String {
        let Answer { response, details, .. } = self;
        let statuses: Vec<_> = response.statuses.iter().zip(&details.descriptors).map(status_as_json).collect();
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| (header.key.clone(), Value::from(header.value.clone())));
        let next_passes = match self.outcome() {
            Outcome::WouldPass => Some(true),
            Outcome::WouldBeLimited => Some(false),
            Outcome::Passed | Outcome::Limited => details.next_passes,
        };
        let answer = json!({
            "code": response.overall_code().as_str_name(),
            "decided_by": Some(&details.decided_by).filter(|names| !names.is_empty()),
            "next_passes": next_passes,
            "statuses": statuses,
            "headers": headers.collect::<serde_json::Map<_, _>>(),
        });
        format!("{answer}\n")
    }
}

fn status_as_json((status, descriptor): (&DescriptorStatus, &DescriptorDetails)) -> Value {
    let limit = status.current_limit.as_ref();
    // The protocol has a 0 where nobody knows.
    let is_known = limit.is_some() && descriptor.limits.iter().any(|limit| limit.remaining.is_some());
    json!({
        "code": status.code().as_str_name(),
        "limit": limit.map(|limit| json!({
            "requests_per_unit": limit.requests_per_unit,
            "unit": limit.unit().as_str_name(),
            "unit_multiplier": limit.unit_multiplier.unwrap_or(1),
            "name": limit.name,
        })),
        "limit_remaining": is_known.then_some(status.limit_remaining),
        "reset_after_seconds": status.duration_until_reset.as_ref().map(|reset| reset.seconds),
        "rule": descriptor.rule,
        "unlimited": descriptor.unlimited,
        "missed": descriptor.missed,
        "limits": descriptor.limits,
    })
}

/// What a status of the protocol tells.
fn descriptor(status: &DescriptorStatus) -> DescriptorDetails {
    let over = status.code() == Code::OverLimit;
    let reset = status.duration_until_reset.as_ref();
    let reset_ms = reset.and_then(|reset| u64::try_from(reset.seconds).ok()).map(|seconds| seconds * 1_000);
    let limit = status.current_limit.as_ref().map(|limit| LimitDetails {
        name: limit.name.clone(),
        number: limit.requests_per_unit,
        period_ms: period_ms(limit),
        remaining: Some(status.limit_remaining),
        reset_after_ms: reset_ms.filter(|_| !over),
        retry_after_ms: reset_ms.filter(|_| over),
        over,
        ..LimitDetails::default()
    });
    let unlimited = limit.is_none() && status.limit_remaining == u32::MAX;
    DescriptorDetails { unlimited, limits: limit.into_iter().collect(), ..DescriptorDetails::default() }
}

fn period_ms(limit: &RateLimit) -> Option<u64> {
    let unit = match limit.unit() {
        WireUnit::Unknown => return None,
        WireUnit::Second => Unit::Second,
        WireUnit::Minute => Unit::Minute,
        WireUnit::Hour => Unit::Hour,
        WireUnit::Day => Unit::Day,
        WireUnit::Week => Unit::Week,
        WireUnit::Month => Unit::Month,
        WireUnit::Year => Unit::Year,
    };
    let units = u64::from(limit.unit_multiplier.unwrap_or(1).max(1));
    Some(unit.duration().as_secs() * units * 1_000)
}

/// One limit in a line.
fn line(limit: &LimitDetails, what: What) -> String {
    let mut which = format!("limit of {}", allowance(limit));
    if !limit.name.is_empty() {
        let _ = write!(which, " ({})", limit.name);
    }
    let state = state(limit, what);
    match DecidedBy::named(&limit.decided_by) {
        Some(DecidedBy::FailureModeOpen | DecidedBy::FailureModeClosed | DecidedBy::Skipped) => {
            format!("not checked against the {which}: {state}")
        }
        _ => {
            let over = if limit.over { "over" } else { "within" };
            let left = limit.remaining.map(|remaining| format!(", {remaining} left")).unwrap_or_default();
            format!("{over} the {which}{left}{}{state}", if state.is_empty() { "" } else { ", " })
        }
    }
}

/// Several limits, a row for each.
fn table(limits: &[LimitDetails], what: What) -> String {
    let row = |limit: &LimitDetails| {
        let over = match (limit.remaining, limit.over) {
            (None, _) => "",
            (Some(_), true) => "over",
            (Some(_), false) => "within",
        };
        let state =
            [over, &*state(limit, what)].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(", ");
        let left = limit.remaining.map_or_else(|| "?".to_owned(), |remaining| remaining.to_string());
        [limit.name.clone(), allowance(limit), limit.algorithm.clone(), left, state]
    };
    let rows: Vec<[String; 5]> = [COLUMNS.map(str::to_owned)].into_iter().chain(limits.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [rule, allowance, algorithm, left] = std::array::from_fn(width);
    let mut text = String::new();
    for [a, b, c, d, e] in &rows {
        let row = format!("    {a:rule$}  {b:allowance$}  {c:algorithm$}  {d:>left$}  {e}");
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// How much may pass: `5 per 90s`.
fn allowance(limit: &LimitDetails) -> String {
    let mut text = match limit.period_ms.map(Duration::from_millis) {
        // The protocol has no word for every period, and names no algorithm.
        None if limit.algorithm.is_empty() => limit.number.to_string(),
        period => format!("{} {}", limit.number, descriptor::per(period)),
    };
    if limit.capacity > 0 && limit.capacity != limit.number {
        let _ = write!(text, ", {} at once", limit.capacity);
    }
    text
}

/// What else there is to say, joined by commas.
fn state(limit: &LimitDetails, what: What) -> String {
    let without_store = match DecidedBy::named(&limit.decided_by) {
        Some(DecidedBy::FailureModeOpen) if what == What::Refund => "the store is unavailable, and nothing is refunded",
        Some(DecidedBy::FailureModeOpen) => "the store is unavailable, and failure_mode open lets pass",
        Some(DecidedBy::FailureModeClosed) => "the store is unavailable, and failure_mode closed denies",
        Some(DecidedBy::FailureModeLocal) => "the store is unavailable, and failure_mode local decides by a share",
        Some(DecidedBy::KnownDenial) => "the store is unavailable, and has denied this before",
        Some(DecidedBy::Skipped) => "another limit is known to deny the request",
        Some(
            DecidedBy::Store | DecidedBy::FailureModeError | DecidedBy::UnknownDomain | DecidedBy::UnknownDescriptor,
        )
        | None => "",
    };
    let retry = limit.retry_after_ms.map(|ms| format!("try again in {}", wait(ms)));
    let waits = match limit.reset_after_ms {
        _ if limit.over => retry.or_else(|| Some("so many never pass".to_owned())),
        Some(ms) if ms > 0 => Some(format!("resets in {}", wait(ms))),
        _ => None,
    };
    let delayed = limit.delay_ms.map(|ms| format!("delayed by {}", wait(ms)));
    let banned = limit.banned_ms.map(|ms| format!("banned for {}", wait(ms)));
    let shadow = limit.shadow.then(|| "shadow mode: denies no request".to_owned());
    let said = [Some(without_store.to_owned()), delayed, banned, waits, shadow];
    said.into_iter().flatten().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(", ")
}

/// A time to wait: to the millisecond where that matters, and rounded up where it does not.
fn wait(ms: u64) -> String {
    const EXACT_MS: u64 = 10_000;
    const PLAIN_SECONDS: u64 = 600;
    let seconds = ms.div_ceil(1_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..EXACT_MS => format!("{}s", ms as f64 / 1_000.0),
        _ if seconds < PLAIN_SECONDS => format!("{seconds}s"),
        _ => humantime::format_duration(Duration::from_secs(seconds)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_exact_where_it_is_short_and_never_rounded_down() {
        let said = [0, 350, 1_000, 1_250, 9_999, 10_000, 10_001, 65_000, 599_000, 600_001, 86_399_001].map(wait);
        let expected = ["0ms", "350ms", "1s", "1.25s", "9.999s", "10s", "11s", "65s", "599s", "10m 1s", "1day"];
        assert_eq!(said, expected);
    }

    /// What `envoyproxy/ratelimit` says, or an older service.
    fn without_details(code: Code, remaining: u32) -> Answer {
        let limit = RateLimit {
            requests_per_unit: 5,
            unit: WireUnit::Minute.into(),
            name: "per-user".into(),
            unit_multiplier: Some(3),
        };
        let status = DescriptorStatus {
            code: code.into(),
            current_limit: Some(limit),
            limit_remaining: remaining,
            duration_until_reset: Some(prost_types::Duration { seconds: 42, nanos: 0 }),
            ..DescriptorStatus::default()
        };
        let response = RateLimitResponse {
            overall_code: code.into(),
            statuses: vec![status, DescriptorStatus::default()],
            ..RateLimitResponse::default()
        };
        let asked = RateLimitDescriptor { hits_addend: Some(0), ..RateLimitDescriptor::default() };
        Answer::new(&[asked.clone(), asked], response)
    }

    #[test]
    fn a_service_that_tells_no_details_is_understood() {
        let some = without_details(Code::Ok, 1);
        let line = "one more would pass\n  : within the limit of 5 per 3m (per-user), 1 left, resets in 42s\n";
        assert_eq!(some.text(), format!("{line}  : no limit applies\n"));
        let none = without_details(Code::Ok, 0);
        assert_eq!(none.outcome(), Outcome::WouldBeLimited);
        let over = without_details(Code::OverLimit, 0);
        assert!(over.text().contains("LIMITED\n  : over the limit of 5 per 3m (per-user), 0 left, try again in 42s\n"));
        let json: Value = serde_json::from_str(&none.json()).unwrap();
        assert_eq!((&json["next_passes"], &json["decided_by"]), (&false.into(), &Value::Null));
        assert_eq!(
            (&json["statuses"][0]["limit_remaining"], &json["statuses"][1]["limit_remaining"]),
            (&0.into(), &Value::Null)
        );
    }
}
