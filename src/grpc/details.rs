//! What of a decision goes into an answer's dynamic metadata.

use std::fmt::Write as _;

use crate::decision::{Decision, Limited, Status};
use crate::descriptor::Role;
use crate::wire::details::{DescriptorDetails, Details, LimitDetails};

/// How much of it a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// By what it was decided, where that is not the store.
    Unusual,
    /// Every limit of every descriptor.
    Full,
}

/// What a decision does not say itself.
pub(super) struct Beside {
    /// For each descriptor that reaches no rule, why.
    pub(super) missed: Vec<Option<String>>,
    /// For each limit that is used up, when one more hit passes; empty where nobody has asked.
    pub(super) next_after_ms: Vec<Option<u64>>,
}

/// The dynamic metadata of a decision that the store has not made, or that the rules have denied; `None` of any other.
pub(super) fn of_unusual(decision: &Decision<'_>) -> Option<prost_types::Struct> {
    let is_unusual = decision.is_without_store() || decision.denies_unknown() || decision.is_settled_by_adjustment();
    is_unusual.then(|| Details { decided_by: decided_by(decision), ..Details::default() }.to_metadata())
}

/// The names of where a decision comes from.
pub(super) fn decided_by(decision: &Decision<'_>) -> String {
    let mut names = String::new();
    for decided_by in decision.decided_by() {
        let _ = write!(names, "{}{}", if names.is_empty() { "" } else { ", " }, decided_by.name());
    }
    names
}

/// The dynamic metadata that tell all of a decision.
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
        capacity: limit.capacity(),
        remaining: limited.remaining(),
        reset_after_ms: limited.reset_after_ms(),
        retry_after_ms: limited.retry_after_ms().filter(|_| limited.over()),
        never: limited.never().map(|never| never.name().to_owned()),
        used_up: verdict.is_some() && !has_room,
        next_after_ms: None,
        banned_ms: limited.banned_ms(),
        delay_ms: verdict.map(|verdict| verdict.delay_ms).filter(|delay_ms| *delay_ms > 0),
        over: limited.over(),
        shadow: limited.asked.check.role == Role::Shadow,
        decided_by: limited.answer.decided_by().name().to_owned(),
    }
}
