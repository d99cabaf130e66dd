//! What the body of a denial says of a decision.

use crate::decision::{Answer, Decision, Limited};
use crate::denied_body::{Denial, MAX_POLICIES, Reason};
use crate::descriptor::per_of;

/// Describes the denial of a request in this domain.
pub fn of<'d>(domain: &'d str, decision: &'d Decision<'_>) -> Denial<'d> {
    let limited = decision.reported().filter(|limited| limited.shown_over());
    let limit = limited.map(|limited| &limited.asked.check.limit);
    let over = decision.limits.iter().filter(|limited| limited.shown_over() && limited.verdict().is_some());
    let mut policies = Vec::new();
    for name in over.map(|limited| limited.asked.source.label()) {
        if policies.len() < MAX_POLICIES && !policies.contains(&name) {
            policies.push(name);
        }
    }
    Denial {
        domain,
        rule: limited.map_or("", |limited| limited.asked.source.label()),
        limit: limit.map(|limit| limit.number()),
        period: limit.map(per_of).unwrap_or_default().into(),
        remaining: limited.and_then(Limited::remaining),
        wait_seconds: decision.retry_after_ms().map(|ms| ms.div_ceil(1_000)),
        reason: limited.map_or(Reason::NoRule, reason),
        policies,
    }
}

fn reason(limited: &Limited<'_>) -> Reason {
    match limited.answer {
        Answer::FailedClosed { .. } => Reason::Unavailable,
        Answer::Blocked => Reason::Blocked,
        _ if limited.banned_ms().is_some() => Reason::Banned,
        _ => Reason::Exceeded,
    }
}
