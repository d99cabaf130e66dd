//! Runs: evaluate rules, and count the decisions of each limit.

use super::tally::{Decided, Room, Tally};
use super::{Arrival, Evaluator, OldLimit, RuleSet};
use crate::engine::algorithm::Limit;
use crate::engine::asked::Source;
use crate::engine::check::StoreError;
use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::{Entry, Request};
use crate::engine::rules::{Allowance, RuleLimit};
use crate::observe::redaction::Values;
use crate::store::memory;

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
    /// Counts by the limits' IDs.
    pub(super) tallies: Vec<Tally>,
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
        Run { rules, options, evaluator, tallies, room: Room::default(), totals: Totals::default() }
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
        let at_ms = arrival.at_ms;
        let first = self.totals.between_ms.map_or(at_ms, |(first, _)| first);
        self.totals.between_ms = Some((first, at_ms));
        self.totals.requests += 1;
        let decision = self.evaluator.decide(&self.rules, arrival)?;
        match &decision {
            Some(decision) => self.count(decision, arrival),
            None => self.totals.invalid += 1,
        }
        Ok(decision)
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

    /// Returns a limit as it is evaluated: this instance's share, and the whole limit; `None` if it counts nothing.
    pub(super) fn limit(&self, of_rule: &RuleLimit) -> Option<(Limit, Limit)> {
        let Allowance::Limited(limit) = of_rule.config.allowance else { return None };
        let whole = self.rules.whole(of_rule.id, &limit);
        Some((self.rules.share(whole), whole))
    }

    fn count(&mut self, decision: &Decision<'_>, arrival: Arrival<'_>) {
        let Decision { over_limit, only_shadow, limits, delay, .. } = decision;
        self.totals.denied += u64::from(*over_limit);
        self.totals.would_be_denied += u64::from(*only_shadow);
        self.totals.delayed += u64::from(!delay.is_zero());
        self.totals.unlimited += u64::from(limits.is_empty());
        for limited in limits.iter().filter(|limited| arrival.is_sampled(limited.asked.check.descriptor)) {
            let Source::Rule(_, limit) = limited.asked.source else { continue };
            let check = &limited.asked.check;
            let decided =
                Decided { at_ms: arrival.at_ms, key: &check.key, hits: check.ask.taken(), is_denied: limited.over() };
            let values = &self.options.values;
            self.tallies[limit.id].add(decided, &mut self.room, || name(limited, arrival.request, values).into());
        }
    }
}

/// Returns the display name of the key that a limit counts: its descriptor's entries, with a pattern for values that
/// share a counter, and with values as far as they are shown.
fn name(limited: &Limited<'_>, request: &Request, values: &Values) -> String {
    let shared = |level| match limited.asked.source {
        Source::Rule(rule, _) => rule.shared_pattern(level),
        Source::Override(_) => None,
    };
    let entries = request.descriptors[limited.asked.check.descriptor].entries.iter().enumerate();
    let entry = |(level, entry): (usize, &Entry)| match values.shown(shared(level).unwrap_or(&entry.value)) {
        Some(value) => format!("{}={value}", entry.key),
        None => entry.key.clone(),
    };
    entries.map(entry).collect::<Vec<_>>().join(" ")
}
