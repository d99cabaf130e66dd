//! Converts requests from the wire, rejecting invalid ones, and decisions to answers.

use std::time::Duration;

use super::ServiceOptions;
use super::headers;
use crate::engine::algorithm::{Algorithm, Ask, clipped};
use crate::engine::decision::{Decision, Limited, Status, most_pressing};
use crate::engine::descriptor::{Descriptor, Entry, Override, Request, Unit};
use crate::wire::rate_limit_descriptor::RateLimitOverride;
use crate::wire::rate_limit_response::rate_limit::Unit as WireUnit;
use crate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, rate_limit_descriptor};

/// Limits on the size of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Largest number of descriptors in a request.
    pub descriptors: usize,
    /// Largest number of entries in a descriptor.
    pub entries: usize,
    /// Largest number of bytes in the domain or a key.
    pub key_bytes: usize,
    /// Largest number of bytes in a value.
    pub value_bytes: usize,
}

/// An error in a request, with its location.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidRequest {
    #[error("rate limit domain must not be empty")]
    NoDomain,
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    #[error("{what} has {size} {unit}, more than the {most} that {setting} allows")]
    TooLarge { what: String, size: usize, unit: &'static str, most: usize, setting: &'static str },
    #[error(
        "descriptors[{0}].limit.unit: must be 1 (second), 2 (minute), 3 (hour), 4 (day), 5 (month), 6 (year) or \
         7 (week), not {1}"
    )]
    Unit(usize, i32),
    #[error(
        "descriptors[{0}].limit.unit_multiplier: a limit is for at least one {1} and at most 366 days, not for {2} {1}s"
    )]
    Multiplier(usize, &'static str, u32),
    #[error("{0}: must be at most 2^53, not {1}")]
    Hits(String, u64),
}

pub(super) fn request(request: RateLimitRequest, limits: &RequestLimits) -> Result<Request, InvalidRequest> {
    let RateLimitRequest { domain, descriptors, hits_addend } = request;
    if domain.is_empty() {
        return Err(InvalidRequest::NoDomain);
    }
    if descriptors.is_empty() {
        return Err(InvalidRequest::NoDescriptors);
    }
    at_most(limits.key_bytes, domain.len(), "bytes", "MAX_KEY_BYTES", || "domain".into())?;
    at_most(limits.descriptors, descriptors.len(), "descriptors", "MAX_DESCRIPTORS", || "the request".into())?;
    // For a request, unlike for a descriptor, 0 and unset mean the same.
    let hits = u64::from(hits_addend.max(1));
    let descriptors = descriptors
        .into_iter()
        .enumerate()
        .map(|(i, descriptor)| self::descriptor(i, descriptor, hits, limits))
        .collect::<Result<_, _>>()?;
    Ok(Request { domain, descriptors })
}

fn descriptor(
    i: usize,
    descriptor: RateLimitDescriptor,
    request_hits: u64,
    limits: &RequestLimits,
) -> Result<Descriptor, InvalidRequest> {
    let RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits } = descriptor;
    at_most(limits.entries, entries.len(), "entries", "MAX_ENTRIES", || format!("descriptors[{i}]"))?;
    let entries = entries
        .into_iter()
        .enumerate()
        .map(|(j, rate_limit_descriptor::Entry { key, value })| {
            let place = |what| format!("descriptors[{i}].entries[{j}].{what}");
            at_most(limits.key_bytes, key.len(), "bytes", "MAX_KEY_BYTES", || place("key"))?;
            at_most(limits.value_bytes, value.len(), "bytes", "MAX_VALUE_BYTES", || place("value"))?;
            Ok(Entry { key, value })
        })
        .collect::<Result<_, _>>()?;
    let limit = match limit {
        None => None,
        Some(RateLimitOverride { requests_per_unit, unit, unit_multiplier }) => {
            let unit = self::unit(unit).ok_or(InvalidRequest::Unit(i, unit))?;
            let multiplier = unit_multiplier.unwrap_or(1);
            let limit = Override::new(requests_per_unit, unit, multiplier);
            Some(limit.ok_or(InvalidRequest::Multiplier(i, unit.name(), multiplier))?)
        }
    };
    let number = hits_addend.unwrap_or(request_hits);
    let ask = if is_negative_hits { Ask::refund(number) } else { Ask::take(number) };
    let ask = ask.ok_or_else(|| InvalidRequest::Hits(format!("descriptors[{i}].hits_addend"), number))?;
    Ok(Descriptor { entries, ask, limit })
}

fn at_most(
    most: usize,
    size: usize,
    unit: &'static str,
    setting: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), InvalidRequest> {
    if size <= most {
        return Ok(());
    }
    Err(InvalidRequest::TooLarge { what: what(), size, unit, most, setting })
}

/// Converts an override's unit. The request's enum has no week; the response's has, and `envoyproxy/ratelimit` accepts
/// its number here.
fn unit(number: i32) -> Option<Unit> {
    WireUnit::try_from(number).ok()?.known()
}

pub(super) fn response(
    decision: &Decision<'_>,
    options: &ServiceOptions,
    dynamic_metadata: Option<prost_types::Struct>,
) -> RateLimitResponse {
    let retry_after = headers::retry_after(decision);
    let mut headers = headers::of(decision, &options.headers);
    headers.extend(options.decided_by_header.as_ref().and_then(|name| headers::decided_by(decision, name)));
    RateLimitResponse {
        overall_code: code(decision.over_limit).into(),
        statuses: decision.statuses.iter().map(|one| status(one, decision, retry_after)).collect(),
        response_headers_to_add: headers,
        dynamic_metadata,
        ..RateLimitResponse::default()
    }
}

/// Returns the status of a descriptor. `retry_after` is the number of seconds until the whole request passes, if it is
/// denied and the time is known.
///
/// The protocol cannot express an unknown number. If none of a descriptor's limits has been counted and none denies,
/// its status has no limit at all: Envoy would turn zeros into headers with 0 remaining hits.
fn status(status: &Status<'_>, decision: &Decision<'_>, retry_after: Option<u64>) -> DescriptorStatus {
    let mut answer = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    match status {
        Status::NoLimit => {}
        // Without a limit or a time: waiting would not help.
        Status::Unknown => answer.code = Code::OverLimit.into(),
        Status::Unlimited(_) => answer.limit_remaining = u32::MAX,
        Status::Limited(range) => {
            let limits = &decision.limits[range.clone()];
            let over = limits.iter().any(Limited::shown_over);
            answer.code = code(over).into();
            let pressing = most_pressing(limits);
            if let Some(limited) = pressing.filter(|limited| limited.verdict().is_some() || over) {
                answer.current_limit = Some(current_limit(limited));
                answer.limit_remaining = clipped(limited.remaining().unwrap_or(0));
                // Whole seconds, as in `envoyproxy/ratelimit`: Envoy's own headers cut off fractions. For a fixed
                // window it is the end of the window, regardless of other limits, also as there.
                let is_fixed = limited.asked.check.limit.algorithm() == Algorithm::FixedWindow;
                let until_reset = || until_reset(limited);
                let seconds = match over {
                    true if is_fixed => until_reset().or_else(|| until_passed(limited)),
                    true => retry_after.or_else(|| until_passed(limited)),
                    false => until_reset(),
                };
                answer.duration_until_reset = seconds.map(|seconds| prost_types::Duration {
                    seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
                    nanos: 0,
                });
            }
        }
    }
    answer
}

/// Returns the seconds until this limit alone allows the request, or, if it never does, until its counter is as good as
/// new. Returns `None` if it never does and the counter is as good as new already: 0 would mean that it passes now.
fn until_passed(limited: &Limited<'_>) -> Option<u64> {
    let until_new = || until_reset(limited).filter(|seconds| *seconds > 0);
    limited.retry_after_ms().map(whole_seconds).or_else(until_new)
}

fn until_reset(limited: &Limited<'_>) -> Option<u64> {
    limited.reset_after_ms().map(whole_seconds)
}

fn current_limit(limited: &Limited<'_>) -> RateLimit {
    let period = limited.asked.check.limit.window().and_then(Unit::multiple_of);
    let unit = period.map_or(WireUnit::Unknown, |(unit, _)| unit.into());
    RateLimit {
        requests_per_unit: clipped(limited.asked.check.limit.number()),
        unit: unit.into(),
        name: limited.asked.source.name().to_owned(),
        unit_multiplier: period.map(|(_, multiplier)| multiplier).filter(|multiplier| *multiplier > 1),
    }
}

fn code(over_limit: bool) -> Code {
    if over_limit { Code::OverLimit } else { Code::Ok }
}

/// Converts milliseconds to seconds, rounded up.
pub(super) fn whole_seconds(ms: u64) -> u64 {
    Duration::from_millis(ms).as_secs() + u64::from(!ms.is_multiple_of(1000))
}
