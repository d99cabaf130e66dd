//! The counters' verdicts on a request, and the conclusion from them.

use super::by_rules::let_nothing_pass;
use super::{ExplainedBudget, ExplainedShare, State, Verdict};
use crate::check::group::Votes;
use crate::decision::{Answer, Decision, Limited};
use crate::descriptor::Role;

impl State {
    /// Returns the state of a limit's counter; `None` if no counter answered.
    pub(super) fn of(limited: &Limited<'_>) -> Option<State> {
        let verdict = limited.verdict()?;
        let (banned_since, banned_until) = limited.ban().unzip();
        Some(State {
            capacity: limited.capacity(),
            remaining: verdict.remaining,
            leased: limited.leased(),
            share: limited.own_share().map(ExplainedShare::from),
            other_shares: limited.other_shares(),
            budget: ExplainedBudget::of(&limited.asked.check.limit, &verdict),
            reset_after_ms: verdict.reset_after_ms,
            banned_ms: limited.banned_ms(),
            banned_since,
            banned_until,
            used_up: false,
            next_after_ms: None,
            decided_by: limited.answer.decided_by().name().to_owned(),
        })
    }
}

/// Returns why no counter was asked.
pub(super) fn without_counter(limited: &Limited<'_>) -> String {
    match limited.answer {
        Answer::FailedOpen => "the store is unavailable: failure_mode open allows the request",
        Answer::FailedClosed { .. } => "the store is unavailable: failure_mode closed denies the request",
        Answer::Skipped => "another limit is known to deny the request",
        // Does not occur: refunds are not explained, and all other limits have a verdict or are not asked.
        Answer::NotRefunded
        | Answer::Store(_)
        | Answer::Known(_)
        | Answer::Local(_)
        | Answer::Exempt
        | Answer::Blocked => "the counter does not matter",
    }
    .to_owned()
}

/// Concludes the answer to a request of one hit from a peek.
pub(super) fn conclude(decision: &Decision<'_>) -> (Verdict, String) {
    let mut votes = Votes::default();
    let mut full: Vec<&Limited<'_>> = Vec::new();
    for (limited, has_room) in decision.limits.iter().zip(decision.rooms()) {
        votes.add(limited.role(), &limited.asked.check, !has_room);
        full.extend(Some(limited).filter(|_| !has_room));
    }
    let names = |role: Option<Role>| {
        let of_role = full.iter().filter(|limited| role.is_none_or(|role| limited.role() == role));
        of_role.map(|limited| limited.asked.source.label()).collect::<Vec<_>>().join(", ")
    };
    let enforced = names(Some(Role::Enforced));
    let never_fits = |limited: &&&Limited<'_>| {
        u64::from(limited.asked.cost()) > limited.capacity() && !limited.asked.check.limit.is_topped_up()
    };
    let never = full.iter().filter(|limited| limited.role() == Role::Enforced).filter(never_fits);
    let never: Vec<&str> = never.map(|limited| limited.asked.source.label()).collect();
    let unavailable = decision.is_without_store();
    match (votes.deny(), decision.next_passes()) {
        (true, false) if unavailable => {
            (Verdict::Deny, format!("the store is unavailable, and these limits deny the request: {}", names(None)))
        }
        (true, false) if !never.is_empty() => (Verdict::Deny, let_nothing_pass(&never)),
        (true, false) if enforced.is_empty() => (Verdict::Deny, format!("all quotas are used up: {}", names(None))),
        (true, false) => (Verdict::Deny, banned(&full).unwrap_or_else(|| used_up(&enforced, &full))),
        (true, true) => (Verdict::Pass, format!("allowed only because of SHADOW_MODE, used up: {}", names(None))),
        (false, _) if unavailable => {
            (Verdict::Pass, "the store is unavailable, and the failure modes allow the request".to_owned())
        }
        (false, _) if full.is_empty() => (Verdict::Pass, "every limit has room".to_owned()),
        (false, _) => {
            (Verdict::Pass, format!("the limits that are used up do not deny it on their own: {}", names(None)))
        }
    }
}

/// Tells that limits are used up. The share of another instance may have room.
fn used_up(names: &str, full: &[&Limited<'_>]) -> String {
    match full.iter().all(|limited| limited.other_shares().is_some_and(|most| most > 0)) {
        true => format!("used up: {names}; an instance whose share has room would let it pass"),
        false => format!("used up: {names}"),
    }
}

/// Returns the enforced limits that ban the request, each with the end of the ban; `None` if none does. A ban outlasts
/// what is used up, so it is the reason to tell.
fn banned(full: &[&Limited<'_>]) -> Option<String> {
    let banned = full.iter().filter(|limited| limited.role() == Role::Enforced && limited.banned_ms().is_some());
    let until = |limited: &&&Limited<'_>| {
        let until = limited.ban().map(|(_, until)| format!(" until {until}")).unwrap_or_default();
        format!("{}{until}", limited.asked.source.label())
    };
    let names: Vec<String> = banned.map(|limited| until(&limited)).collect();
    (!names.is_empty()).then(|| format!("banned by {}", names.join(", ")))
}
