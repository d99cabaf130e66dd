//! Runs: evaluate rules, and count the decisions of each limit.

use std::ops::Range;

use smallvec::SmallVec;

use super::streams::Streams;
use super::tally::{Room, Tally};
use super::{Arrival, Evaluator, OldLimit, RuleSet};
use crate::engine::algorithm::Limit;
use crate::engine::asked::Source;
use crate::engine::check::StoreError;
use crate::engine::decision::{Answer, Decision, Limited};
use crate::engine::descriptor::{Entry, Request};
use crate::engine::plan::Plan;
use crate::engine::rules::{Allowance, Rule, RuleLimit};
use crate::observe::redaction::Values;
use crate::store::memory::{self, Name};

/// Number of requests that are planned ahead, so that their counters and tallies are fetched from memory together.
pub(super) const AHEAD: usize = 32;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// How keys show the values of descriptors.
    pub values: Values,
    /// The most memory of counters, in bytes.
    pub most_bytes: usize,
}

impl Default for RunOptions {
    /// Shows values in plain text, and uses up to half of the available memory.
    fn default() -> Self {
        RunOptions { values: Values::Plain, most_bytes: memory::default_bytes() }
    }
}

/// An evaluation of one set of rules, with its counts.
#[derive(Debug)]
pub struct Run<'r> {
    pub(super) rules: RuleSet<'r>,
    pub(super) options: RunOptions,
    evaluator: Evaluator,
    streams: Streams,
    /// Counts by the limits' IDs.
    pub(super) tallies: Vec<Tally>,
    /// Allowed decisions that are not in the tallies yet: ID of the limit, key and hits.
    allowed: Vec<(usize, Name, u64)>,
    room: Room,
    totals: Totals,
}

/// Counts of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) denied: u64,
    /// Requests that would be denied without global shadow mode.
    pub(crate) would_be_denied: u64,
    pub(crate) delayed: u64,
    /// Requests with no descriptor that matches a limit.
    pub(crate) unlimited: u64,
    /// Requests with more work than the service accepts; it rejects them as invalid.
    pub(crate) invalid: u64,
    /// Times of the first and last request.
    pub(crate) between_ms: Option<(u64, u64)>,
}

impl<'r> Run<'r> {
    /// Creates a run with empty counters.
    pub fn new(rules: RuleSet<'r>, options: RunOptions) -> Run<'r> {
        let evaluator = Evaluator::new(options.most_bytes);
        let tallies = rules.rules.limits().map(|_| Tally::default()).collect();
        let (allowed, room, totals) = (Vec::new(), Room::default(), Totals::default());
        Run { rules, options, evaluator, streams: Streams::default(), tallies, allowed, room, totals }
    }

    /// Decides the next request, and counts the decision. See [`Evaluator::decide`]. All of its descriptors take part;
    /// of their limits, only those of sampled descriptors are counted.
    ///
    /// # Errors
    /// If there is no memory for its counters.
    pub fn decide<'a>(&mut self, arrival: impl Into<Arrival<'a>>) -> Result<Option<Decision<'a>>, StoreError>
    where
        'r: 'a,
    {
        let arrival = arrival.into();
        let plan = self.rules.plan(arrival);
        let names: SmallVec<[Name; 8]> = plan.iter().flat_map(|plan| self.evaluator.names(plan)).collect();
        let decision = self.decide_planned(arrival, plan, &names)?;
        self.add_allowed();
        Ok(decision)
    }

    /// Decides the next requests, and calls `visit` for each of them. This is faster than [`Run::decide`] with many
    /// keys: the requests are planned a few at a time, so that the processor waits once for the memory of all their
    /// counters.
    ///
    /// # Errors
    /// If there is no memory for a request's counters, or if `visit` fails.
    pub fn decide_all<'a, E: From<StoreError>>(
        &mut self,
        arrivals: impl IntoIterator<Item = impl Into<Arrival<'a>>>,
        mut visit: impl FnMut(Arrival<'a>, Option<Decision<'a>>) -> Result<(), E>,
    ) -> Result<(), E>
    where
        'r: 'a,
    {
        let mut arrivals = arrivals.into_iter().map(Into::into);
        let mut planned: Vec<(Arrival<'a>, Option<Plan<'a>>, Range<usize>)> = Vec::with_capacity(AHEAD);
        // Names of the planned requests' counters.
        let mut names: Vec<Name> = Vec::new();
        loop {
            names.clear();
            for arrival in arrivals.by_ref().take(AHEAD) {
                let plan = self.rules.plan(arrival);
                let begin = names.len();
                names.extend(plan.iter().flat_map(|plan| self.evaluator.names(plan)));
                planned.push((arrival, plan, begin..names.len()));
            }
            if planned.is_empty() {
                return Ok(());
            }
            self.evaluator.fetch(&names);
            for (arrival, plan, own) in planned.drain(..) {
                visit(arrival, self.decide_planned(arrival, plan, &names[own])?)?;
            }
            self.add_allowed();
        }
    }

    fn decide_planned<'a>(
        &mut self,
        arrival: Arrival<'a>,
        plan: Option<Plan<'a>>,
        names: &[Name],
    ) -> Result<Option<Decision<'a>>, StoreError> {
        let at_ms = arrival.at_ms;
        let first = self.totals.between_ms.map_or(at_ms, |(first, _)| first);
        self.totals.between_ms = Some((first, at_ms));
        self.totals.requests += 1;
        let Some(plan) = plan else {
            self.totals.invalid += 1;
            return Ok(None);
        };
        while let Some((ends_ms, checks)) = self.streams.ended_by(at_ms) {
            self.evaluator.release(&checks, ends_ms)?;
        }
        let decision = self.evaluator.conclude(plan, names, at_ms)?;
        if let Some(lasts_ms) = arrival.lasts_ms {
            self.streams.begin(&decision, at_ms.saturating_add(lasts_ms));
        }
        self.count(&decision, names, arrival);
        Ok(Some(decision))
    }

    /// Returns the counts of all requests.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the number of limits.
    pub(crate) fn limits(&self) -> usize {
        self.tallies.len()
    }

    /// Returns the denials of each limit, by its domain and label.
    pub(crate) fn denied(&self) -> impl Iterator<Item = ((&str, &str), OldLimit)> {
        self.rules.rules.limits().map(|(rule, limit)| {
            let tally = &self.tallies[limit.id];
            ((&*rule.domain, &*limit.label), OldLimit { denied: tally.denied, keys_denied: tally.keys().1 })
        })
    }

    /// Returns whether there may be more keys than can be told apart.
    pub(crate) fn has_more_keys(&self) -> bool {
        self.room.is_used_up()
    }

    /// Returns whether a request has told how long it lasts, so limits of requests in progress are evaluated.
    pub(super) fn has_streams(&self) -> bool {
        self.streams.has_begun
    }

    /// Returns a limit as it is evaluated: this instance's share, and the whole limit; `None` if it counts nothing.
    pub(super) fn limit(&self, of_rule: &RuleLimit) -> Option<(Limit, Limit)> {
        let Allowance::Limited(limit) = of_rule.config.allowance else { return None };
        let whole = self.rules.whole(of_rule.id, &limit);
        Some((self.rules.share(whole), whole))
    }

    /// Counts a decision. `names` are those of the counters that the store was asked about.
    fn count(&mut self, decision: &Decision<'_>, names: &[Name], arrival: Arrival<'_>) {
        let Decision { over_limit, only_shadow, limits, delay, .. } = decision;
        self.totals.denied += u64::from(*over_limit);
        self.totals.would_be_denied += u64::from(*only_shadow);
        self.totals.delayed += u64::from(!delay.is_zero());
        self.totals.unlimited += u64::from(limits.is_empty());
        let mut names = names.iter();
        for limited in limits {
            let check = &limited.asked.check;
            let is_asked = !matches!(limited.answer, Answer::Exempt | Answer::Blocked);
            let own = if is_asked { names.next().copied() } else { None };
            if is_asked && check.penalized().is_some() {
                names.next();
            }
            if !arrival.is_sampled(check.descriptor) {
                continue;
            }
            let Source::Rule(_, limit) = limited.asked.source else { continue };
            let key = own.unwrap_or_else(|| self.evaluator.name(&check.key));
            let hits = limited.taken();
            if limited.over() {
                let name = || name(limited, arrival.request, &self.options.values).into();
                self.tallies[limit.id].deny(arrival.at_ms, (key, hits), &mut self.room, name);
            } else {
                self.allowed.push((limit.id, key, hits));
            }
        }
    }

    /// Adds allowed decisions to the tallies. Done for several at once, the processor waits for their memory together.
    fn add_allowed(&mut self) {
        for (limit, key, hits) in self.allowed.drain(..) {
            self.tallies[limit].allow(key, hits, &mut self.room);
        }
    }
}

/// Returns the display name of the key that a limit counts: its descriptor's entries, with a pattern for values that
/// share a counter, as all streams do, and with values as far as they are shown.
fn name(limited: &Limited<'_>, request: &Request, values: &Values) -> String {
    let rule = match limited.asked.source {
        Source::Rule(rule, _) => Some(rule),
        Source::Override(_) => None,
    };
    let has_holders = limited.asked.check.limit.algorithm().has_holders();
    let holder = |rule: &Rule, level| (has_holders && level + 1 == rule.levels()).then_some("*");
    let shared = |level| rule.and_then(|rule| rule.shared_pattern(level).or(holder(rule, level)));
    let entries = &request.descriptors[limited.asked.check.descriptor].entries;
    let entries = rule.map_or(&**entries, |rule| rule.split(entries).0).iter().enumerate();
    let entry = |(level, entry): (usize, &Entry)| match values.shown(shared(level).unwrap_or(&entry.value)) {
        Some(value) => format!("{}={value}", entry.key),
        None => entry.key.to_string(),
    };
    entries.map(entry).collect::<Vec<_>>().join(" ")
}
