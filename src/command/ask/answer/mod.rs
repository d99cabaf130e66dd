//! The answer to `tollgate ask`, for people and for scripts. A service that sends no details (an older one, or
//! `envoyproxy/ratelimit`) reports one limit for each descriptor, in whole seconds.

mod text;

use serde_json::{Value, json};

use crate::engine::algorithm::Algorithm;
use crate::engine::decision::DecidedBy;
use crate::wire::details::{DescriptorDetails, Details, LimitDetails};
use crate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::wire::{RateLimitDescriptor, RateLimitResponse};

/// An answer with its question.
pub(crate) struct Answer {
    response: RateLimitResponse,
    /// Entries of the descriptors, as people write them.
    asked: Vec<String>,
    what: What,
    details: Details,
}

/// Kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Hits,
    Peek,
    Refund,
}

/// Outcome of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Limited,
    Refunded,
    /// The store was unavailable, and has not confirmed the refund of at least one descriptor.
    NotRefunded,
    /// Refund: no limit applies, so nothing was refunded.
    NothingToRefund,
    /// Peek: one more hit would pass.
    WouldPass,
    /// Peek: one more hit would be limited.
    WouldBeLimited,
}

/// Returns whether a limit that applies is a budget.
fn has_budget(details: &Details) -> bool {
    let mut limits = details.descriptors.iter().flat_map(|descriptor| &descriptor.limits);
    limits.any(|limit| limit.algorithm == Algorithm::Budget.name())
}

impl Outcome {
    /// Returns the name in JSON.
    const fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Limited => "limited",
            Outcome::Refunded => "refunded",
            Outcome::NotRefunded => "not_refunded",
            Outcome::NothingToRefund => "nothing_to_refund",
            Outcome::WouldPass => "would_pass",
            Outcome::WouldBeLimited => "would_be_limited",
        }
    }
}

impl Answer {
    /// Creates the answer to a question about these descriptors.
    pub(crate) fn new(descriptors: &[RateLimitDescriptor], response: RateLimitResponse) -> Answer {
        let entries = |descriptor: &RateLimitDescriptor| {
            let entries = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
            entries.collect::<Vec<_>>().join(" ")
        };
        let mut details = response.dynamic_metadata.as_ref().and_then(Details::of_metadata).unwrap_or_default();
        if details.descriptors.len() != response.statuses.len() {
            details.descriptors = response.statuses.iter().map(descriptor).collect();
        }
        let what = match descriptors {
            // To a budget it is a stream that brings no estimate, or has used nothing.
            all if all.iter().all(|descriptor| descriptor.hits_addend == Some(0)) && !has_budget(&details) => {
                What::Peek
            }
            all if all.iter().all(|descriptor| descriptor.is_negative_hits) => What::Refund,
            _ => What::Hits,
        };
        Answer { asked: descriptors.iter().map(entries).collect(), what, details, response }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let mut limits = self.details.descriptors.iter().flat_map(|descriptor| &descriptor.limits);
        let is_not_refunded = |limit: &LimitDetails| limit.decided_by == DecidedBy::NotRefunded.name();
        match (self.response.overall_code(), self.what) {
            (Code::OverLimit, What::Peek) => Outcome::WouldBeLimited,
            (Code::OverLimit, _) => Outcome::Limited,
            (_, What::Peek) => {
                let next_passes = self.details.next_passes;
                match next_passes.unwrap_or_else(|| limits.all(|limit| !limit.used_up)) {
                    true => Outcome::WouldPass,
                    false => Outcome::WouldBeLimited,
                }
            }
            (_, What::Hits) => Outcome::Passed,
            (_, What::Refund) if limits.clone().any(is_not_refunded) => Outcome::NotRefunded,
            (_, What::Refund) if limits.next().is_some() => Outcome::Refunded,
            (_, What::Refund) => Outcome::NothingToRefund,
        }
    }

    /// Returns whether the answer describes at least one descriptor: its limit, or that it is unlimited.
    pub(crate) fn applies(&self) -> bool {
        self.details.descriptors.iter().any(|descriptor| descriptor.unlimited || !descriptor.limits.is_empty())
    }

    /// Returns the answer as one JSON object, for scripts.
    pub(crate) fn json(&self) -> String {
        let Answer { response, details, .. } = self;
        let statuses: Vec<_> = response.statuses.iter().zip(&details.descriptors).map(status_as_json).collect();
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| (header.key.clone(), Value::from(header.value.clone())));
        let next_passes = match self.outcome() {
            Outcome::WouldPass => Some(true),
            Outcome::WouldBeLimited => Some(false),
            _ => details.next_passes,
        };
        let answer = json!({
            "code": response.overall_code().as_str_name(),
            "outcome": self.outcome().name(),
            "decided_by": Some(&details.decided_by).filter(|names| !names.is_empty()),
            "next_passes": next_passes,
            "statuses": statuses,
            "details_left_out": details.left_out,
            "headers": headers.collect::<serde_json::Map<_, _>>(),
        });
        format!("{answer}\n")
    }
}

fn status_as_json((status, descriptor): (&DescriptorStatus, &DescriptorDetails)) -> Value {
    let limit = status.current_limit.as_ref();
    // The protocol sends 0 for an unknown value.
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

/// Returns the details that a status of the protocol contains.
fn descriptor(status: &DescriptorStatus) -> DescriptorDetails {
    let over = status.code() == Code::OverLimit;
    let reset = status.duration_until_reset.as_ref();
    let reset_ms = reset.and_then(|reset| u64::try_from(reset.seconds).ok()).map(|seconds| seconds * 1_000);
    let limit = status.current_limit.as_ref().map(|limit| LimitDetails {
        name: limit.name.clone(),
        number: limit.requests_per_unit.into(),
        period_ms: period_ms(limit),
        remaining: Some(status.limit_remaining.into()),
        reset_after_ms: reset_ms.filter(|_| !over),
        retry_after_ms: reset_ms.filter(|_| over),
        over,
        used_up: status.limit_remaining == 0,
        ..LimitDetails::default()
    });
    let unlimited = limit.is_none() && status.limit_remaining == u32::MAX;
    DescriptorDetails { unlimited, limits: limit.into_iter().collect(), ..DescriptorDetails::default() }
}

/// Returns the period; `None` if the protocol has no name for it.
fn period_ms(limit: &RateLimit) -> Option<u64> {
    let units = u64::from(limit.unit_multiplier.unwrap_or(1).max(1));
    Some(limit.unit().known()?.duration().as_secs() * units * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rate_limit_response::rate_limit::Unit as WireUnit;

    /// Returns an answer as `envoyproxy/ratelimit` or an older service sends it.
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
        let line =
            "one more would be LIMITED\n  : the limit of 5 per 3m (per-user) is used up, 0 left, resets in 42s\n";
        assert!(none.text().starts_with(line), "{}", none.text());
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
