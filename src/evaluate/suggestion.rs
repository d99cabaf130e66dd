//! The search for the number of a limit that denies no more than a goal. Numbers are tried on the whole log with the
//! real algorithm.
//!
//! A pass over the log tries several numbers at once, each with separate counters. The next pass tries numbers between
//! the largest that denies too much and the smallest that does not. Each limit is tried alone: other limits of the
//! request, penalties and modes do not affect it. If a number denies nothing to a key, a larger one does not either, so
//! later passes skip such keys.

use std::collections::BTreeMap;
use std::str::FromStr;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::run::{AHEAD, Run};
use super::tally::Room;
use super::{Arrival, RuleSet};
use crate::engine::algorithm::Limit;
use crate::engine::asked::{Asked, Source};
use crate::engine::check::{Check, StoreError};
use crate::engine::clock::GivenClock;
use crate::engine::rules::RuleLimit;
use crate::store::memory::{MemoryStore, Name};

/// Numbers tried in a pass. Each is a bit in [`Target::denied_by`].
const TRIED: usize = 12;

/// The most that may be denied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Percentage.
    pub percent: f64,
    /// Base of the percentage.
    pub of: GoalOf,
}

/// The base of a goal's percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalOf {
    /// The keys that a limit counts. A key is denied if one of its requests is.
    Keys,
    /// The requests.
    Requests,
}

impl GoalOf {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            GoalOf::Keys => "keys",
            GoalOf::Requests => "requests",
        }
    }
}

/// The error for text that is not a goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write: deny at most 0.1 % of users (or keys, which are the same, or requests)")]
pub struct GoalError;

impl FromStr for Goal {
    type Err = GoalError;

    fn from_str(text: &str) -> Result<Goal, GoalError> {
        let text = text.trim().strip_prefix("deny at most").unwrap_or(text);
        let (percent, of) = text.split_once('%').ok_or(GoalError)?;
        let percent = percent.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
        let of = match of.trim().strip_prefix("of").map(str::trim) {
            Some("keys" | "users") => GoalOf::Keys,
            Some("requests") => GoalOf::Requests,
            _ => return Err(GoalError),
        };
        Ok(Goal { percent: percent.ok_or(GoalError)?, of })
    }
}

/// A search for the numbers of limits.
#[derive(Debug)]
pub struct Search<'r> {
    pub(super) goal: Goal,
    pub(super) rules: RuleSet<'r>,
    pub(super) targets: Vec<Target>,
    /// The target of each limit by its ID.
    by_limit: HashMap<usize, usize>,
    clock: GivenClock,
    /// The counters of all targets for each tried number, by its index.
    stores: Vec<MemoryStore<GivenClock>>,
    /// Questions that are planned ahead, so that their counters are fetched from memory together.
    questions: Vec<Question>,
    room: Room,
}

/// A limit with a number to search for.
#[derive(Debug)]
pub(super) struct Target {
    /// ID of the limit.
    pub(super) id: usize,
    pub(super) limit: Limit,
    pub(super) decisions: u64,
    pub(super) keys: u64,
    /// A number that denies too much; at first 0, which denies everything.
    low: u64,
    /// The limits tried in this pass.
    tried: Vec<Tried>,
    /// Index of each key.
    indices: HashMap<Name, u32>,
    /// For each key, the numbers that denied it a request in this pass.
    denied_by: Vec<u16>,
    /// For each key, whether one of the remaining numbers may deny it a request.
    at_risk: Vec<bool>,
    /// The denials by each number.
    pub(super) curve: BTreeMap<u64, Denied>,
    pub(super) found: Found,
}

/// A request's question to the numbers of a target.
#[derive(Debug)]
struct Question {
    at_ms: u64,
    target: usize,
    check: Check,
    /// Name of the counter, which is the same in all stores.
    name: Name,
    /// Index of the key; `None` if there is no room for it.
    index: Option<usize>,
}

/// The result of a target's search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The search continues.
    Searching,
    /// The smallest number that meets the goal.
    Number(u64),
    /// Every number denies too much.
    None,
}

#[derive(Debug)]
struct Tried {
    limit: Limit,
    requests: u64,
}

/// The denials by a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Denied {
    pub(super) keys: u64,
    pub(super) requests: u64,
}

impl<'r> Search<'r> {
    /// Creates a search for the limits that a run used, or only for those with this name. Its counters take at most
    /// `most_bytes`.
    pub fn new(goal: Goal, run: &Run<'r>, name: Option<&str>, most_bytes: usize) -> Search<'r> {
        Search::within(most_bytes, goal, run, |limit| name.is_none_or(|name| name == &*limit.label))
    }

    /// Creates a search for the limits that a run used and that `is_wanted` selects. Its counters take at most the
    /// memory that those of the run may take.
    pub fn of(goal: Goal, run: &Run<'r>, is_wanted: impl Fn(&RuleLimit) -> bool) -> Search<'r> {
        Search::within(run.options.most_bytes, goal, run, is_wanted)
    }

    fn within(most_bytes: usize, goal: Goal, run: &Run<'r>, is_wanted: impl Fn(&RuleLimit) -> bool) -> Search<'r> {
        let rules = run.rules;
        let targets = rules.rules.limits().filter(|(_, limit)| is_wanted(limit)).filter_map(|(_, rule_limit)| {
            let (limit, _) = run.limit(rule_limit)?;
            let tally = &run.tallies[rule_limit.id];
            let is_replayed = tally.decisions > 0 && !limit.algorithm().has_holders();
            let high = tally.most_hits().min(u32::MAX.into());
            is_replayed.then(|| Target {
                id: rule_limit.id,
                limit,
                decisions: tally.decisions,
                keys: tally.keys().0,
                low: 0,
                tried: Tried::all(&limit, ladder(high.max(1))),
                indices: HashMap::new(),
                denied_by: Vec::new(),
                at_risk: Vec::new(),
                curve: BTreeMap::new(),
                found: Found::Searching,
            })
        });
        let targets: Vec<_> = targets.collect();
        let by_limit = targets.iter().enumerate().map(|(index, target)| (target.id, index)).collect();
        let (clock, room) = (GivenClock::default(), Room::default());
        let store = MemoryStore::new(clock.clone(), most_bytes / TRIED);
        let stores = (0..TRIED).map(|_| store.sibling()).collect();
        Search { goal, rules, targets, by_limit, clock, stores, questions: Vec::new(), room }
    }

    /// Returns whether the search of every target is finished.
    pub fn is_done(&self) -> bool {
        self.targets.iter().all(|target| target.found != Found::Searching)
    }

    /// Tries the numbers of this pass on the sampled descriptors of the next request.
    ///
    /// # Errors
    /// If there is no memory for its counters.
    pub fn decide<'a>(&mut self, arrival: impl Into<Arrival<'a>>) -> Result<(), StoreError>
    where
        'r: 'a,
    {
        self.decide_all(std::iter::once(arrival))
    }

    /// Tries the numbers of this pass on the next requests. This is faster than [`Search::decide`] with many keys, as
    /// with [`Run::decide_all`].
    ///
    /// # Errors
    /// If there is no memory for a request's counters.
    pub fn decide_all<'a>(
        &mut self,
        arrivals: impl IntoIterator<Item = impl Into<Arrival<'a>>>,
    ) -> Result<(), StoreError>
    where
        'r: 'a,
    {
        let mut arrivals = arrivals.into_iter().map(Into::into).peekable();
        while arrivals.peek().is_some() {
            arrivals.by_ref().take(AHEAD).for_each(|arrival| self.ask(arrival));
            let mut questions = std::mem::take(&mut self.questions);
            for Question { target, name, index, .. } in &mut questions {
                *index = self.targets[*target].index(*name, &mut self.room);
            }
            questions
                .retain(|question| question.index.is_none_or(|index| self.targets[question.target].at_risk[index]));
            let names: SmallVec<[Name; AHEAD]> = questions.iter().map(|question| question.name).collect();
            if names.len() > 1 {
                self.stores.iter_mut().for_each(|store| store.fetch(&names));
            }
            for question in questions.drain(..) {
                self.clock.set(question.at_ms);
                self.targets[question.target].decide(question, &self.stores)?;
            }
            self.questions = questions;
        }
        Ok(())
    }

    /// Adds the questions of a request.
    fn ask<'a>(&mut self, arrival: Arrival<'a>)
    where
        'r: 'a,
    {
        let Some(plan) = self.rules.plan(arrival) else { return };
        for Asked { check, source, .. } in plan.into_asked() {
            let Source::Rule(_, limit) = source else { continue };
            let Some(target) = self.by_limit.get(&limit.id).copied() else { continue };
            if self.targets[target].found == Found::Searching && arrival.is_sampled(check.descriptor) {
                let name = self.stores[0].name(&check.key);
                let check = Check { penalty: None, ..check };
                self.questions.push(Question { at_ms: arrival.at_ms, target, check, name, index: None });
            }
        }
    }

    /// Ends a pass over the log, and selects the numbers for the next one.
    pub fn narrow(&mut self) {
        let goal = self.goal;
        self.targets
            .iter_mut()
            .filter(|target| target.found == Found::Searching)
            .for_each(|target| target.narrow(goal));
        self.empty_stores();
    }

    fn empty_stores(&mut self) {
        self.stores.iter_mut().for_each(|store| *store = store.sibling());
    }
}

impl Target {
    fn decide(&mut self, question: Question, stores: &[MemoryStore<GivenClock>]) -> Result<(), StoreError> {
        let Question { mut check, name, index, .. } = question;
        let mut denied_by = 0;
        for (bit, (Tried { limit, requests }, store)) in self.tried.iter_mut().zip(stores).enumerate() {
            check.limit = *limit;
            let verdicts = store.decide_named(std::slice::from_ref(&check), &[name])?;
            if verdicts.iter().flatten().any(|verdict| !verdict.allowed()) {
                *requests += 1;
                denied_by |= 1 << bit;
            }
        }
        if let Some(index) = index {
            self.denied_by[index] |= denied_by;
        }
        Ok(())
    }

    /// Returns the index of a key; `None` if there is no room for another.
    fn index(&mut self, key: Name, room: &mut Room) -> Option<usize> {
        if let Some(index) = self.indices.get(&key) {
            return Some(*index as usize);
        }
        room.take().then(|| {
            let index = self.denied_by.len();
            self.indices.insert(key, index as u32);
            self.denied_by.push(0);
            self.at_risk.push(true);
            index
        })
    }

    fn narrow(&mut self, goal: Goal) {
        let mut high = None;
        for (bit, Tried { limit, requests }) in self.tried.iter().enumerate() {
            let keys = self.denied_by.iter().filter(|denied_by| *denied_by >> bit & 1 == 1).count() as u64;
            let denied = Denied { keys, requests: *requests };
            self.curve.insert(limit.number(), denied);
            if high.is_none() && self.is_reached(goal, denied) {
                high = Some(limit.number());
            }
            if high.is_none() {
                self.low = limit.number();
                let denied_by = self.denied_by.iter().map(|denied_by| denied_by >> bit & 1 == 1);
                self.at_risk.iter_mut().zip(denied_by).for_each(|(at_risk, is_denied)| *at_risk = is_denied);
            }
        }
        let known = self.curve.iter().find(|(_, denied)| self.is_reached(goal, **denied)).map(|(number, _)| *number);
        let Some(high) = high.or(known) else {
            self.found = Found::None;
            return;
        };
        self.tried = Tried::all(&self.limit, between(self.low, high));
        self.denied_by.fill(0);
        if self.tried.is_empty() {
            self.found = Found::Number(high);
        }
    }

    fn is_reached(&self, goal: Goal, denied: Denied) -> bool {
        let (part, whole) = match goal.of {
            GoalOf::Keys => (denied.keys, self.keys),
            GoalOf::Requests => (denied.requests, self.decisions),
        };
        part as f64 * 100.0 <= goal.percent * whole as f64
    }
}

impl Tried {
    /// Returns limits with these numbers, as far as the algorithm allows.
    fn all(limit: &Limit, numbers: Vec<u64>) -> Vec<Tried> {
        let limits = numbers.into_iter().filter_map(|number| limit.with_number_alone(number).ok());
        limits.map(|limit| Tried { limit, requests: 0 }).collect()
    }
}

/// Returns numbers from 1 to `high` with approximately equal ratios.
fn ladder(high: u64) -> Vec<u64> {
    let step = (high as f64).powf(1.0 / (TRIED - 1) as f64);
    let mut numbers: Vec<u64> = (0..TRIED - 1).map(|power| step.powi(power as i32).round() as u64).collect();
    numbers.push(high);
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Returns evenly spaced numbers between these two.
fn between(low: u64, high: u64) -> Vec<u64> {
    let gap = high - low;
    let steps = (TRIED as u64 + 1).min(gap);
    (1..steps).map(|step| low + gap * step / steps).collect()
}
