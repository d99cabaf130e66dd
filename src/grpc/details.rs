//! The details of a decision in an answer's dynamic metadata.

use std::fmt::Write as _;

use crate::engine::algorithm::StartsOn;
use crate::engine::decision::{Decision, Limited, Status};
use crate::engine::descriptor::Role;
use crate::wire::details::{DescriptorDetails, Details, LimitDetails};

/// Amount of detail that a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The cause of the decision, unless it is the store.
    Unusual,
    /// Every limit of every descriptor.
    Full,
}

/// Maximum number of descriptors, and of limits, in an answer with details. The details of a limit take some 300 bytes,
/// ten times a small descriptor: without a bound an answer can be hundreds of times as large as its request.
const MOST: usize = 100;

/// Returns why the details of this decision are left out, or `None` if it gets them.
pub(super) fn left_out(decision: &Decision<'_>) -> Option<String> {
    let (descriptors, limits) = (decision.statuses.len(), decision.limits.len());
    (descriptors > MOST || limits > MOST).then(|| {
        format!(
            "details cover at most {MOST} descriptors and {MOST} limits; this request has {descriptors} and {limits}"
        )
    })
}

/// Details that the decision itself does not contain.
pub(super) struct Beside {
    /// For each descriptor without a rule, the reason.
    pub(super) missed: Vec<Option<String>>,
    /// For each limit that is used up, the time until one more hit passes; empty if not requested.
    pub(super) next_after_ms: Vec<Option<u64>>,
}

/// Returns the dynamic metadata of a decision that was not made by the store, or that the rules or an adjustment have
/// settled; `None` for any other.
pub(super) fn of_unusual(decision: &Decision<'_>) -> Option<prost_types::Struct> {
    let is_unusual = decision.is_without_store() || decision.denies_unknown() || decision.is_settled_by_adjustment();
    is_unusual.then(|| Details { decided_by: decided_by(decision), ..Details::default() }.to_metadata())
}

/// Joins the names of the causes of a decision.
pub(super) fn decided_by(decision: &Decision<'_>) -> String {
    let mut names = String::new();
    for decided_by in decision.decided_by() {
        let _ = write!(names, "{}{}", if names.is_empty() { "" } else { ", " }, decided_by.name());
    }
    names
}

/// Returns the dynamic metadata of a decision with too many descriptors or limits for details.
pub(super) fn without_descriptors(decision: &Decision<'_>, left_out: String) -> prost_types::Struct {
    let details = Details {
        decided_by: decided_by(decision),
        next_passes: Some(decision.next_passes()),
        left_out: Some(left_out),
        ..Details::default()
    };
    details.to_metadata()
}

/// Returns the dynamic metadata with all details of a decision.
pub(super) fn full(decision: &Decision<'_>, beside: Beside) -> prost_types::Struct {
    let Beside { missed, next_after_ms } = beside;
    let waits = next_after_ms.into_iter().chain(std::iter::repeat(None));
    let limits = decision.limits.iter().zip(decision.rooms()).zip(waits);
    let limits: Vec<LimitDetails> = limits
        .map(|((limited, has_room), next)| LimitDetails { next_after_ms: next, ..limit(limited, has_room) })
        .collect();
    let descriptors = decision.statuses.iter().zip(missed).map(|(status, missed)| match status {
        Status::NoLimit | Status::Unknown => DescriptorDetails { missed, ..DescriptorDetails::default() },
        Status::Unlimited(rule) => {
            DescriptorDetails { rule: Some(rule.path.as_ref().into()), unlimited: true, ..DescriptorDetails::default() }
        }
        Status::Limited(range) => DescriptorDetails {
            rule: decision.limits[range.clone()].first().map(|limited| limited.asked.source.path().to_owned()),
            unlimited: false,
            missed: None,
            limits: limits[range.clone()].to_vec(),
        },
    });
    let details = Details {
        decided_by: decided_by(decision),
        next_passes: Some(decision.next_passes()),
        descriptors: descriptors.collect(),
        ..Details::default()
    };
    details.to_metadata()
}

fn limit(limited: &Limited<'_>, has_room: bool) -> LimitDetails {
    let limit = &limited.asked.check.limit;
    let verdict = limited.verdict();
    LimitDetails {
        name: limited.asked.source.label().to_owned(),
        algorithm: limit.algorithm().name().to_owned(),
        number: limit.number(),
        period_ms: limit.window().map(|_| limit.period_ms()),
        time_zone: limit.options().time_zone.map(|time_zone| time_zone.to_string()),
        starts_on: limit.options().starts_on.map(|date| date.to_string()),
        counts_days: matches!(limit.options().starts_on, Some(StartsOn::Days(_))),
        capacity: limited.capacity(),
        remaining: limited.remaining(),
        reset_after_ms: limited.reset_after_ms(),
        retry_after_ms: limited.retry_after_ms().filter(|_| limited.over()),
        never: limited.never().map(|never| never.name().to_owned()),
        used_up: verdict.is_some() && !has_room,
        next_after_ms: None,
        banned_ms: limited.banned_ms(),
        delay_ms: verdict.map(|verdict| verdict.delay_ms).filter(|delay_ms| *delay_ms > 0),
        over: limited.over(),
        shadow: limited.asked.check.role == Role::Shadow && !limited.asked.is_part,
        decided_by: limited.answer.decided_by().name().to_owned(),
        durable: limited.asked.check.durable,
        passed_by: limited.passed_by().map(|adjustment| adjustment.id.to_string()),
        blocked_by: limited.blocked_by().map(|adjustment| adjustment.id.to_string()),
    }
}
