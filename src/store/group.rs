//! The checks of a request are one group: unless the whole of it passes, only give-backs and limits that count denials are
//! charged. A penalty is told what became of the check before it. The twin of `lua/decide.lua`.

use smallvec::SmallVec;

use super::{Check, Verdicts};
use crate::algorithm::{Change, Limit, MAX_HITS, Outcome, State, Verdict, penalty};
use crate::descriptor::{Hits, Role};

/// What the checks of a request make of it together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Votes {
    refused: bool,
    /// Rules in quota mode, and how many of them are over.
    quotas: u32,
    quotas_over: u32,
    /// The descriptor of the last of them, and whether it is over.
    last: Option<(usize, bool)>,
}

impl Votes {
    /// Adds a check of this role, for this descriptor. Those of one descriptor come one after the other.
    pub fn add(&mut self, role: Role, descriptor: usize, hits: Hits, over: bool) {
        match role {
            Role::Enforced => self.refused |= over,
            // Giving back needs no quota.
            Role::Quota if hits.get() >= 0 => {
                let known_over = match self.last {
                    Some((last, known_over)) if last == descriptor => known_over,
                    _ => {
                        self.quotas += 1;
                        false
                    }
                };
                self.quotas_over += u32::from(over && !known_over);
                self.last = Some((descriptor, over || known_over));
            }
            Role::Quota | Role::Shadow => {}
        }
    }

    /// An enforced check is over its limit, or every rule in quota mode is.
    pub fn deny(self) -> bool {
        self.refused || (self.quotas > 0 && self.quotas_over == self.quotas)
    }
}

/// What the counters of a group are to become, in this order: for each change, the index of a check that names the counter, and how
/// long it is then to be remembered.
pub type Changes = Vec<(usize, Change, u64)>;

/// Decides a check that is all of its group: nothing can take back what it does.
pub fn decide_alone(check: &Check, now: u64, state: Option<&State>) -> Outcome {
    check.limit.decide(asked(check, None), state, now)
}

/// Decides `checks` at `now`, where the counter of check `i` is `state(i)`.
pub fn decide<'a>(checks: &[Check], now: u64, state: impl Fn(usize) -> Option<&'a State>) -> (Verdicts, Changes) {
    // Decides check `i` of `hits` on what the counter will be after the checks before it.
    let decide = |i: usize, hits: i64, pending: &mut Changes| {
        let altered = altered(state(i), pending.iter().filter(|(other, ..)| checks[*other].key == checks[i].key));
        let Outcome { change, verdict } = checks[i].limit.decide(hits, altered.as_ref().or_else(|| state(i)), now);
        if let Some(change) = change {
            pending.push((i, change, verdict.reset_after_ms));
        }
        verdict
    };

    let mut pending = Vec::with_capacity(checks.len());
    let mut verdicts = Verdicts::with_capacity(checks.len());
    let mut votes = Votes::default();
    let mut taken = false;
    for (i, check) in checks.iter().enumerate() {
        let verdict = decide(i, asked(check, verdicts.last()), &mut pending);
        votes.add(check.role, check.descriptor, check.hits, !verdict.allowed);
        taken |= verdict.allowed && check.hits.get() > 0 && !check.limit.count_denied();
        verdicts.push(verdict);
    }

    if taken && votes.deny() {
        pending.clear();
        for (i, check) in checks.iter().enumerate() {
            let hits = asked(check, i.checked_sub(1).map(|before| &verdicts[before]));
            let charged = match hits {
                _ if check.limit.count_denied() || hits < 0 => hits,
                // More than ever passes: that costs nothing, but a bucket that begins empty begins with a denied request, too.
                1.. if !verdicts[i].allowed => MAX_HITS as i64,
                _ => 0,
            };
            let Verdict { remaining, reset_after_ms, .. } = decide(i, charged, &mut pending);
            verdicts[i] = Verdict { remaining, reset_after_ms, ..verdicts[i] };
        }
    }
    if votes.deny() {
        for i in 0..checks.len() {
            let of_counter = |other: usize| checks[other].key == checks[i].key;
            let is_first =
                !verdicts[i].allowed && !(0..i).any(|before| !verdicts[before].allowed && of_counter(before));
            if is_first && let Some(retry_after_ms) = retry_together(checks, i, &state, now) {
                for denied in (i..checks.len()).filter(|other| of_counter(*other)) {
                    if !verdicts[denied].allowed {
                        verdicts[denied].retry_after_ms = retry_after_ms;
                    }
                }
            }
        }
    }
    (verdicts, pending)
}

/// When all checks of the counter of check `i` pass, which is asked several times: each of them on what those before it have taken.
/// `None` where it is asked once, or something is given back to it, which nobody will do again.
fn retry_together<'a>(
    checks: &[Check],
    i: usize,
    state: &impl Fn(usize) -> Option<&'a State>,
    now: u64,
) -> Option<Option<u64>> {
    let together = || checks.iter().filter(|check| check.key == checks[i].key);
    if together().count() < 2 || checks[i].limit.is_penalty() || together().any(|check| check.hits.get() < 0) {
        return None;
    }
    let mut hits = 0;
    // Of equal limits the last waits for as long as any.
    let mut lasts: SmallVec<[(&Limit, i64); 2]> = SmallVec::new();
    for check in together() {
        hits = (hits + check.hits.get()).min(MAX_HITS as i64);
        match lasts.iter_mut().find(|(limit, _)| **limit == check.limit) {
            Some((_, last)) => *last = hits,
            None => lasts.push((&check.limit, hits)),
        }
    }
    // What can never pass never passes.
    Some(lasts.iter().try_fold(0, |longest: u64, (limit, hits)| {
        let wait = limit.decide(*hits, state(i), now).verdict.retry_after_ms?;
        Some(longest.max(wait))
    }))
}

/// The hits of a check, where the one before it came to this verdict.
fn asked(check: &Check, before: Option<&Verdict>) -> i64 {
    match check.hits.get() {
        1.. if check.limit.is_penalty() => match before {
            Some(Verdict { allowed: false, .. }) => penalty::DENIED,
            _ => penalty::PASSED,
        },
        hits => hits,
    }
}

/// A counter after some of the changes of its group; `None` where there are none.
fn altered<'c>(state: Option<&State>, changes: impl Iterator<Item = &'c (usize, Change, u64)>) -> Option<State> {
    changes.fold(None, |altered, (_, change, _)| Some(State::after(altered.or_else(|| state.cloned()), change.clone())))
}
