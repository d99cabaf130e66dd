//! Groups: the checks of a request are decided together. If any check denies the request, no limit takes hits; refunds
//! still happen, and limits that count denials are charged. A penalty is decided on the verdict of its limit. The twin
//! of `lua/decide.lua`.
//!
//! The counters of a group have indices in this order: the counter of the first check's limit, then that of its penalty
//! if the check asks one, then the counter of the next check's limit, and so on.

use std::borrow::Borrow;

use smallvec::SmallVec;

use super::{Check, CheckVerdict, Key, Occasion, Recorded, Verdicts};
use crate::algorithm::{Ask, Charge, Effect, Event, Outcome, State, Verdict};
use crate::descriptor::Role;
use crate::usage::Added;

/// The combined result of a request's checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Votes {
    denied: bool,
    /// Number of rules in quota mode, and how many of them are over the limit.
    quotas: u32,
    quotas_over: u32,
    /// The descriptor of the last of these rules, and whether it is over the limit.
    last: Option<(usize, bool)>,
}

impl Votes {
    /// Adds a check. `role` is the effect of its denial. The checks of a descriptor must be added in sequence.
    pub fn add(&mut self, role: Role, check: &Check, over: bool) {
        match role {
            Role::Enforced => self.denied |= over,
            // A refund does not depend on a quota.
            Role::Quota if !check.ask.returns_hits() => {
                let known_over = match self.last {
                    Some((last, known_over)) if last == check.descriptor => known_over,
                    _ => {
                        self.quotas += 1;
                        false
                    }
                };
                self.quotas_over += u32::from(over && !known_over);
                self.last = Some((check.descriptor, over || known_over));
            }
            Role::Quota | Role::Shadow => {}
        }
    }

    /// Returns whether the request is denied: an enforced check is over its limit, or all rules in quota mode are.
    pub fn deny(self) -> bool {
        self.denied || (self.quotas > 0 && self.quotas_over == self.quotas)
    }
}

/// Effects on the counters of a group, as pairs of index and effect, in order. A counter may occur several times.
pub type Effects = Vec<(usize, Effect)>;

/// Returns the names of a group's counters, by index.
pub fn keys<C: Borrow<Check>>(checks: &[C]) -> impl Iterator<Item = &Key> {
    checks
        .iter()
        .map(Borrow::borrow)
        .flat_map(|check| std::iter::once(&check.key).chain(check.penalized().map(|penalized| &penalized.key)))
}

/// Decides a check without a penalty that is alone in its group. No other check can undo its effect.
pub fn decide_alone(check: &Check, now: u64, state: Option<&State>) -> Outcome {
    check.limit.decide(check.ask, check.caller, state, now)
}

/// Decides `checks` at `now`. `state` returns the stored state of the counter at an index.
pub fn decide<'s, C: Borrow<Check>>(
    checks: &[C],
    now: u64,
    state: impl Fn(usize) -> Option<&'s State>,
) -> (Verdicts, Effects) {
    let mut group = Group { keys: keys(checks).collect(), state, effects: Vec::with_capacity(checks.len()) };
    let mut verdicts = Verdicts::with_capacity(checks.len());
    let mut votes = Votes::default();
    let mut taken = false;
    let mut index = 0;
    for check in checks.iter().map(Borrow::borrow) {
        let own = group.decide(index, |state| check.limit.decide(check.ask, check.caller, state, now));
        let ban = group.decide_penalty(index + 1, check, own, now);
        index += check.counters();
        let verdict = CheckVerdict { own, ban, is_known: false, at_ms: now };
        votes.add(check.role, check, !verdict.allowed());
        taken |= own.allowed && check.ask.taken() > 0 && !check.limit.count_denied();
        verdicts.push(Some(verdict));
    }
    if !taken || !votes.deny() {
        return (verdicts, group.effects);
    }

    // The request is denied, so all checks are decided again from the first one.
    group.effects.clear();
    index = 0;
    for (check, verdict) in checks.iter().map(Borrow::borrow).zip(verdicts.iter_mut().flatten()) {
        let Verdict { remaining, excess, reset_after_ms, .. } =
            group.decide(index, |state| check.limit.decide_denied(check.ask, check.caller, state, now));
        group.decide_penalty(index + 1, check, verdict.own, now);
        index += check.counters();
        verdict.own = Verdict { remaining, excess, reset_after_ms, ..verdict.own };
    }
    (verdicts, group.effects)
}

/// Returns the amounts that these verdicts of `now` add to usage records, with the positions of their checks.
pub fn added<C: Borrow<Check>>(checks: &[C], verdicts: &Verdicts, now: u64) -> SmallVec<[(usize, Added); 1]> {
    let checks = || checks.iter().map(Borrow::borrow);
    if checks().all(|check| check.recorded.is_none()) {
        return SmallVec::new();
    }
    let mut votes = Votes::default();
    for (check, verdict) in checks().zip(verdicts) {
        votes.add(check.role, check, verdict.is_some_and(|verdict| !verdict.allowed()));
    }
    let denied = votes.deny();
    let of_check = |(place, check): (usize, &Check)| {
        let recorded = check.recorded.as_ref()?;
        let period = recorded.usage.period();
        let index = period.index(now);
        let signed = |hits: u64| i64::try_from(hits).unwrap_or(i64::MAX);
        let (hits, is_denied) = match (recorded.occasion, check.ask) {
            (Occasion::Undone { at_ms, cost }, _) => {
                let added = Added { index: period.index(at_ms), admitted: -1, denied: 1, cost: -signed(cost) };
                return Some((place, added));
            }
            (Occasion::Denied { hits }, _) => (signed(hits), true),
            (Occasion::Exempt { hits }, _) => (hits, denied && hits > 0),
            (Occasion::Decided, Ask::TakeBack(_)) => return None,
            (Occasion::Decided, ask) => (ask.hits(), denied && ask.taken() > 0),
        };
        let added =
            Added { index, admitted: i64::from(!is_denied && hits > 0), denied: i64::from(is_denied), cost: hits };
        let added = Added { cost: if is_denied && !check.costs_denied() { 0 } else { hits }, ..added };
        (is_denied || hits != 0).then_some((place, added))
    };
    checks().enumerate().filter_map(of_check).collect()
}

/// Returns the check that takes back a charge, and its usage record, from a group that allowed its part of a request,
/// because another store denies the rest. Returns `None` if there is nothing to take back.
pub fn take_back(check: &Check, verdict: &CheckVerdict) -> Option<Check> {
    let at_ms = verdict.at_ms;
    // A limit that counts denials keeps its charge. In shadow mode, a limit may have charged a request that a ban
    // denies.
    let charge = if check.limit.count_denied() { None } else { Charge::of(check.ask, at_ms, &verdict.own) };
    let recorded = undone(check, at_ms);
    if charge.is_none() && recorded.is_none() {
        return None;
    }
    let ask = charge.map_or(Ask::Peek, Ask::TakeBack);
    Some(Check { ask, penalty: None, role: Role::Shadow, lease: None, recorded, ..check.clone() })
}

/// Returns the usage record that corrects this check's record after its request, which passed at `at_ms` on the store's
/// clock, is denied. Returns `None` if nothing was recorded, or if the record already shows a denial.
pub fn undone(check: &Check, at_ms: u64) -> Option<Recorded> {
    let recorded = check.recorded.as_ref()?;
    let hits = match recorded.occasion {
        Occasion::Decided => check.ask.taken(),
        Occasion::Exempt { hits } => u64::try_from(hits).unwrap_or(0),
        Occasion::Denied { .. } | Occasion::Undone { .. } => 0,
    };
    let cost = if check.costs_denied() { 0 } else { hits };
    (hits > 0).then(|| Recorded { occasion: Occasion::Undone { at_ms, cost }, ..recorded.clone() })
}

/// A group during its decision.
struct Group<'g, F> {
    keys: SmallVec<[&'g Key; 8]>,
    state: F,
    effects: Effects,
}

impl<'s, F: Fn(usize) -> Option<&'s State>> Group<'_, F> {
    /// Decides on the state of the counter at this index after the preceding checks.
    fn decide(&mut self, index: usize, decide: impl FnOnce(Option<&State>) -> Outcome) -> Verdict {
        let altered = self.altered(index);
        let before = match &altered {
            Some(state) => state.as_ref(),
            None => (self.state)(index),
        };
        let Outcome { effect, verdict } = decide(before);
        if !matches!(effect, Effect::None) {
            self.effects.push((index, effect));
        }
        verdict
    }

    /// Decides the penalty of a check, given the verdict of its limit.
    fn decide_penalty(&mut self, index: usize, check: &Check, own: Verdict, now: u64) -> Option<Verdict> {
        let penalty = check.penalized()?.penalty;
        if check.ask == Ask::Reset {
            let is_known = self.altered(index).map_or_else(|| (self.state)(index).is_some(), |state| state.is_some());
            if is_known {
                self.effects.push((index, Effect::Forgotten));
            }
        }
        let event = match (check.ask, own.allowed) {
            (Ask::Take(_), true) => Event::Passed,
            (Ask::Take(_), false) => Event::Denied,
            _ => Event::Peeked,
        };
        Some(self.decide(index, |state| penalty.decide(event, state, now)))
    }

    /// Returns a counter's state after the effects so far: `None` if there were none, `Some(None)` if it was forgotten.
    fn altered(&self, index: usize) -> Option<Option<State>> {
        let of_counter = self.effects.iter().filter(|(other, _)| self.keys[*other] == self.keys[index]);
        of_counter.fold(None, |altered, (_, effect)| {
            let before = altered.unwrap_or_else(|| (self.state)(index).cloned());
            Some(effect.clone().apply(before))
        })
    }
}
