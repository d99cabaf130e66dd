//! Groups: the checks of a request are decided together. If any check denies the request, no limit takes hits; refunds
//! still happen, and limits that count denials are charged. A penalty is decided on the verdict of its limit. The twin
//! of `lua/decide.lua`.
//!
//! The counters of a group have indices in this order: the counter of the first check's limit, then that of its penalty
//! if the check asks one, then the counter of the next check's limit, and so on.

use std::borrow::Borrow;

use smallvec::SmallVec;

use super::{Ban, Check, CheckVerdict, Key, Leased, Occasion, Recorded, Verdicts};
use crate::algorithm::{Algorithm, Ask, Charge, Effect, Event, Granted, Occupies, Outcome, State, Verdict};
use crate::descriptor::Role;
use crate::usage::{Added, Period};

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
            Role::Quota if check.ask.is_vote() => {
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
    checks.iter().map(Borrow::borrow).flat_map(|check| {
        let penalty = check.penalized().map(|penalized| &penalized.key);
        std::iter::once(&check.key).chain(check.leased.as_ref().map(|leased| &leased.key)).chain(penalty)
    })
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
    let effects = Vec::with_capacity(checks.len());
    let mut group = Group { keys: keys(checks).collect(), state, effects, now };
    let mut verdicts = Verdicts::with_capacity(checks.len());
    let mut votes = Votes::default();
    let mut taken = false;
    let mut index = 0;
    for check in checks.iter().map(Borrow::borrow) {
        let (own, lease) = group.decide_own(index, check, false);
        let ban = group.decide_penalty(index + check.counters() - 1, check, own);
        index += check.counters();
        let verdict = CheckVerdict { ban, lease, ..CheckVerdict::new(own, now) };
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
        let (again, lease) = group.decide_own(index, check, true);
        group.decide_penalty(index + check.counters() - 1, check, verdict.own);
        index += check.counters();
        verdict.own = verdict.own.as_left(again);
        verdict.lease = lease;
    }
    (verdicts, group.effects)
}

/// Returns the amounts that a decision at `now` adds to usage records, with the positions of their checks.
pub fn added<C: Borrow<Check>>(
    checks: &[C],
    (verdicts, effects): (&Verdicts, &Effects),
    now: u64,
) -> SmallVec<[(usize, Added); 1]> {
    let checks = || checks.iter().map(Borrow::borrow);
    if checks().all(|check| check.recorded.is_none()) {
        return SmallVec::new();
    }
    let mut votes = Votes::default();
    for (check, verdict) in checks().zip(verdicts) {
        votes.add(check.role, check, verdict.is_some_and(|verdict| !verdict.allowed()));
    }
    let denied = votes.deny();
    let mut counter = 0;
    let of_check = |(place, check): (usize, &Check)| {
        let own = counter;
        counter += check.counters();
        let recorded = check.recorded.as_ref()?;
        let period = recorded.usage.period();
        let index = period.index(now);
        let signed = |hits: u64| i64::try_from(hits).unwrap_or(i64::MAX);
        if check.limit.algorithm() == Algorithm::Budget {
            let effects = || effects.iter().filter(|(index, _)| *index == own).map(|(_, effect)| effect);
            let cost = effects().map(Effect::charged).sum();
            let topped_up = effects().map(Effect::topped_up).sum();
            let added = of_budget(period, (recorded.occasion, check.ask), denied, now);
            let added = Added { cost, topped_up, ..added };
            let is_any = added.admitted != 0 || added.denied != 0 || cost != 0 || topped_up != 0;
            return is_any.then_some((place, added));
        }
        let (hits, is_denied) = match (recorded.occasion, check.ask) {
            (Occasion::Undone { at_ms, cost }, _) => {
                let index = period.index(at_ms);
                let cost = -signed(cost);
                let added = Added { index, admitted: -1, denied: 1, cost, ..Added::default() };
                return Some((place, added));
            }
            (Occasion::Leased { waiting, decided }, ask) => {
                let returned = check.leased.as_ref().and_then(|leased| leased.ask.returned);
                let used = returned.map_or(0, |returned| u64::from(returned.used));
                let (requests, taken) = if denied { (0, 0) } else { (waiting, ask.taken()) };
                let admitted = signed(requests.saturating_add(decided));
                let cost = signed(taken.saturating_add(used));
                let added = Added { index, admitted, cost, ..Added::default() };
                return (added.admitted > 0 || added.cost > 0).then_some((place, added));
            }
            (Occasion::Denied { hits }, _) => (signed(hits), true),
            (Occasion::Exempt { hits }, _) => (hits, denied && hits > 0),
            (Occasion::Decided, Ask::TakeBack(_)) => return None,
            (Occasion::Decided, ask) => (ask.hits(), denied && ask.taken() > 0),
        };
        let added = Added {
            index,
            admitted: i64::from(!is_denied && hits > 0),
            denied: i64::from(is_denied),
            cost: hits,
            ..Added::default()
        };
        let added = Added { cost: if is_denied && !check.costs_denied() { 0 } else { hits }, ..added };
        (is_denied || hits != 0).then_some((place, added))
    };
    checks().enumerate().filter_map(of_check).collect()
}

/// Returns the streams that a check of a budget adds to usage records. The decision tells the cost.
fn of_budget(period: Period, (occasion, ask): (Occasion, Ask), denied: bool, now: u64) -> Added {
    let (index, admitted, over) = match occasion {
        Occasion::Undone { at_ms, .. } => (period.index(at_ms), -1, 1),
        Occasion::Denied { .. } => (period.index(now), 0, 1),
        Occasion::Exempt { hits } => (period.index(now), i64::from(hits > 0 && !denied), i64::from(hits > 0 && denied)),
        // A budget has no leases.
        Occasion::Leased { .. } => (period.index(now), 0, 0),
        Occasion::Decided => {
            let begins = ask.taken() > 0;
            (period.index(now), i64::from(begins && !denied), i64::from(begins && denied))
        }
    };
    Added { index, admitted, denied: over, corrects: true, ..Added::default() }
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
    Some(Check { ask, penalty: None, role: Role::Shadow, lease: None, leased: None, recorded, ..check.clone() })
}

/// Returns the usage record that corrects this check's record after its request, which passed at `at_ms` on the store's
/// clock, is denied. Returns `None` if nothing was recorded, or if the record already shows a denial.
pub fn undone(check: &Check, at_ms: u64) -> Option<Recorded> {
    let recorded = check.recorded.as_ref()?;
    let hits = match recorded.occasion {
        Occasion::Decided => check.ask.taken(),
        Occasion::Exempt { hits } => u64::try_from(hits).unwrap_or(0),
        // A request that a lease decides has no other limit that could deny it.
        Occasion::Denied { .. } | Occasion::Leased { .. } | Occasion::Undone { .. } => 0,
    };
    let is_free = check.costs_denied() || check.limit.algorithm() == Algorithm::Budget;
    let cost = if is_free { 0 } else { hits };
    (hits > 0).then(|| Recorded { occasion: Occasion::Undone { at_ms, cost }, ..recorded.clone() })
}

/// A group during its decision.
struct Group<'g, F> {
    keys: SmallVec<[&'g Key; 8]>,
    state: F,
    effects: Effects,
    now: u64,
}

impl<'s, F: Fn(usize) -> Option<&'s State>> Group<'_, F> {
    /// Decides on the state of the counter at this index after the preceding checks.
    fn decide(&mut self, index: usize, decide: impl FnOnce(Option<&State>) -> Outcome) -> Verdict {
        self.decide_at(self.now, index, decide)
    }

    /// The same with the outcome of an earlier time.
    fn decide_at(&mut self, at: u64, index: usize, decide: impl FnOnce(Option<&State>) -> Outcome) -> Verdict {
        let altered = self.altered(index);
        let before = match &altered {
            Some(state) => state.as_ref(),
            None => (self.state)(index),
        };
        let Outcome { effect, verdict } = decide(before);
        if !matches!(effect, Effect::None) {
            self.effects.push((index, effect.since(self.now - at)));
        }
        verdict
    }

    /// Decides the limit of a check, and its leases, for a request that is `denied` by another limit, or not.
    fn decide_own(&mut self, index: usize, check: &Check, denied: bool) -> (Verdict, Option<Granted>) {
        let Some(leased) = &check.leased else { return (self.decide_limit(index, check, denied), None) };
        let (own, granted) = self.decide_leased(index, check, leased, denied);
        (own, Some(granted))
    }

    fn decide_limit(&mut self, index: usize, check: &Check, denied: bool) -> Verdict {
        let Check { limit, ask, caller, .. } = check;
        let now = self.now;
        if let Some(state) = Some(ask).filter(|ask| **ask == Ask::Peek).and_then(|_| self.seen_by_peeks(index)) {
            return limit.decide(*ask, *caller, Some(&state), now).verdict;
        }
        self.decide(index, |state| match denied {
            true => limit.decide_denied(*ask, *caller, state, now),
            false => limit.decide(*ask, *caller, state, now),
        })
    }

    /// Decides a check of a limit with leases. [`leased`](crate::algorithm::leased) says how they occupy its counter.
    fn decide_leased(&mut self, index: usize, check: &Check, leased: &Leased, denied: bool) -> (Verdict, Granted) {
        let (place, period_ms, now) = (index + 1, check.limit.period_ms(), self.now);
        let occupies = check.limit.occupies().unwrap_or(Occupies::Room);
        let effects = self.effects.len();
        let before = self.altered(place);
        let before = before.as_ref().map_or_else(|| (self.state)(place), Option::as_ref);
        let mut settled = leased.ask.settle(before, now);
        if occupies == Occupies::Tokens {
            let mut out = settled.occupied;
            for (at, hits) in &settled.ended {
                self.spill(index, check, out, *at);
                out -= u64::from(*hits);
            }
            if out > 0 {
                self.spill(index, check, out, now);
            }
        }
        let mut own_check = Check { leased: None, ..check.clone() };
        if occupies == Occupies::Room {
            let charging = Check { limit: check.limit.charging(), ..own_check.clone() };
            for (at, hits) in settled.ended.iter().filter(|(at, _)| at + period_ms > now) {
                self.take(index, &charging, u64::from(*hits), *at);
            }
            self.take(index, &charging, settled.used, now);
            own_check.limit = check.limit.less(settled.out);
        } else if settled.unused > 0 {
            self.ask(index, check, Ask::Refund(settled.unused), now);
        }

        let mut own = self.decide_limit(index, &own_check, denied);
        if check.ask == Ask::Reset && occupies == Occupies::Window && settled.out > 0 {
            self.take(index, check, settled.out, now);
            own = self.ask(index, check, Ask::Peek, now);
        }
        if let Some(last) = settled.last_end()
            && occupies == Occupies::Room
        {
            // At the latest, all that is out is charged then, and a period later it is gone.
            let gone_ms = last + period_ms - now;
            own.reset_after_ms = own.reset_after_ms.max(gone_ms);
            let is_possible = check.ask.taken() <= check.limit.number();
            if !own.allowed && own.retry_after_ms.is_none() && is_possible {
                own.retry_after_ms = Some(gone_ms);
            }
        }
        let may_lend = own.allowed && !denied && matches!(check.ask, Ask::Take(_) | Ask::Peek);
        let mut hits = if may_lend { settled.lends(&leased.ask, own.remaining, now) } else { 0 };
        let mut latest = None;
        if hits > 0 && occupies != Occupies::Room {
            let taken = self.ask(index, check, Ask::Take(hits.into()), now);
            hits = if taken.allowed { hits } else { 0 };
            latest = (occupies == Occupies::Window).then_some(now + taken.reset_after_ms);
        }
        let granted = settled.lend(&leased.ask, hits, latest, now);
        let effect = settled.effect(period_ms, now);
        if effect != Effect::None {
            self.effects.push((place, effect));
        }
        if check.ask == Ask::Peek && leased.ask.is_look() {
            // Nothing is written, so a replica of the store can answer, too.
            self.effects.truncate(effects);
        }
        (own, granted)
    }

    /// Takes the tokens for which there is no room, as so many hits were out until then.
    fn spill(&mut self, index: usize, check: &Check, out: u64, at: u64) {
        let tokens = self.ask(index, check, Ask::Peek, at).remaining;
        // One more, because there may be a fraction of a token.
        let room = check.limit.capacity().saturating_sub(out + 1);
        self.take(index, check, tokens.saturating_sub(room), at);
    }

    /// Takes hits, if there are any.
    fn take(&mut self, index: usize, check: &Check, hits: u64, at: u64) {
        if hits > 0 {
            self.ask(index, check, Ask::Take(hits), at);
        }
    }

    /// Asks the limit of a check something else, now or at an earlier time.
    fn ask(&mut self, index: usize, check: &Check, ask: Ask, at: u64) -> Verdict {
        self.decide_at(at, index, |state| check.limit.decide(ask, check.caller, state, at))
    }

    /// Decides the penalty of a check, given the verdict of its limit.
    fn decide_penalty(&mut self, index: usize, check: &Check, own: Verdict) -> Option<Ban> {
        let (penalty, now) = (check.penalized()?.penalty, self.now);
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
        Some(self.decide(index, |state| penalty.decide(event, state, now)).into())
    }

    /// Returns what a peek sees of a counter after the effects so far, where that is cheaper than the whole state.
    fn seen_by_peeks(&self, index: usize) -> Option<State> {
        let last = self.effects.iter().rev().find(|(other, _)| self.keys[*other] == self.keys[index]);
        match last {
            Some((_, Effect::Changed { change, .. })) => change.seen_by_peeks(),
            _ => None,
        }
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
