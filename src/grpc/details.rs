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

/// The dynamic metadata of a decision; `None` where there is nothing to say. Of descriptors that reach no rule,
/// `missed` tells why.
pub(super) fn of(
    decision: &Decision<'_>,
    detail: Detail,
    missed: impl FnOnce() -> Vec<Option<String>>,
) -> Option<prost_types::Struct> {
    match detail {
        Detail::Unusual if !decision.is_without_store() && !decision.denies_unknown() => None,
        Detail::Unusual => Some(Details { decided_by: decided_by(decision), ..Details::default() }.to_metadata()),
        Detail::Full => Some(full(decision, missed()).to_metadata()),
    }
}

/// The names of where a decision comes from.
pub(super) fn decided_by(decision: &Decision<'_>) -> String {
    let mut names = String::new();
    for decided_by in decision.decided_by() {
        let _ = write!(names, "{}{}", if names.is_empty() { "" } else { ", " }, decided_by.name());
    }
    names
}

fn full(decision: &Decision<'_>, missed: Vec<Option<String>>) -> Details {
    let descriptors = decision.statuses.iter().zip(missed).map(|(status, missed)| match status {
        Status::NoLimit | Status::Unknown => DescriptorDetails { missed, ..DescriptorDetails::default() },
        Status::Unlimited(rule) => {
            DescriptorDetails { rule: Some(rule.path.as_ref().into()), unlimited: true, ..DescriptorDetails::default() }
        }
        Status::Limited(range) => {
            let limits = &decision.limits[range.clone()];
            DescriptorDetails {
                rule: limits.first().map(|limited| limited.asked.source.path().to_owned()),
                unlimited: false,
                missed: None,
                limits: limits.iter().map(limit).collect(),
            }
        }
    });
    Details {
        decided_by: decided_by(decision),
        next_passes: Some(decision.next_passes()),
        descriptors: descriptors.collect(),
        ..Details::default()
    }
}

fn limit(limited: &Limited<'_>) -> LimitDetails {
    let limit = &limited.asked.check.limit;
    let verdict = limited.verdict();
    LimitDetails {
        name: limited.asked.source.label().to_owned(),
        algorithm: limit.algorithm().name().to_owned(),
        number: limit.number(),
        period_ms: limit.window().map(|_| limit.period_ms()),
        capacity: limit.capacity(),
        remaining: limited.remaining(),
        reset_after_ms: verdict.map(|verdict| verdict.reset_after_ms),
        retry_after_ms: limited.retry_after_ms().filter(|_| limited.over()),
        banned_ms: limited.banned_ms(),
        delay_ms: verdict.map(|verdict| verdict.delay_ms).filter(|delay_ms| *delay_ms > 0),
        over: limited.over(),
        shadow: limited.asked.check.role == Role::Shadow,
        decided_by: limited.answer.decided_by().name().to_owned(),
    }
}
