//! The checks of a request are one group: unless the whole of it passes, only give-backs and limits that count denials are
//! charged. The twin of `lua/decide.lua`.

use super::Check;
use crate::algorithm::{Outcome, State, Verdict};
use crate::descriptor::Role;

/// What the counters of a group are to become: for each, the index of a check that names it.
pub type Changes = Vec<(usize, State, u64)>;

/// Decides `checks` at `now`, where the counter of check `i` is `state(i)`. A counter's last change is the one that counts.
pub fn decide<'a>(checks: &[Check], now: u64, state: impl Fn(usize) -> Option<&'a State>) -> (Vec<Verdict>, Changes) {
    // Decides check `i` of `hits` on what the counter will be after the checks before it.
    let decide = |i: usize, hits: i64, pending: &mut Changes| {
        let found = pending.iter().rev().find(|(other, ..)| checks[*other].key == checks[i].key);
        let found = found.map(|(_, state, _)| state).or_else(|| state(i));
        let Outcome { state, verdict } = checks[i].limit.decide(hits, found, now);
        if let Some(state) = state {
            pending.push((i, state, verdict.reset_after_ms));
        }
        verdict
    };

    let mut pending = Vec::with_capacity(checks.len());
    let mut verdicts = Vec::with_capacity(checks.len());
    let (mut refused, mut quotas, mut quotas_over, mut taken) = (false, 0, 0, false);
    for (i, check) in checks.iter().enumerate() {
        let verdict = decide(i, check.hits.get(), &mut pending);
        match check.role {
            Role::Enforced => refused |= !verdict.allowed,
            // Giving back needs no quota.
            Role::Quota if check.hits.get() >= 0 => {
                quotas += 1;
                quotas_over += u32::from(!verdict.allowed);
            }
            Role::Quota | Role::Shadow => {}
        }
        taken |= verdict.allowed && check.hits.get() > 0 && !check.limit.count_denied();
        verdicts.push(verdict);
    }

    if taken && (refused || (quotas > 0 && quotas_over == quotas)) {
        pending.clear();
        for (i, check) in checks.iter().enumerate() {
            let hits = check.hits.get();
            let charged = if check.limit.count_denied() || hits < 0 { hits } else { 0 };
            let Verdict { remaining, reset_after_ms, .. } = decide(i, charged, &mut pending);
            verdicts[i] = Verdict { remaining, reset_after_ms, ..verdicts[i] };
        }
    }
    (verdicts, pending)
}
