//! Runs: decide the requests of a log as the service would, with the same plans, the memory store, and the log's clock.

use smallvec::SmallVec;

use super::Event;
use super::tally::{Decided, Room, Tally};
use crate::engine::algorithm::Limit;
use crate::engine::asked::Source;
use crate::engine::check::StoreError;
use crate::engine::clock::GivenClock;
use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::{Entry, Request, Role};
use crate::engine::plan::{MAX_WORK, Plan, PlanOptions};
use crate::engine::rules::{Allowance, RuleLimit, Rules};
use crate::observe::redaction::Values;
use crate::store::memory::{self, MemoryStore};

/// Differences of a run from the rules, and options of its results.
#[derive(Clone, Debug)]
pub struct Trying {
    /// Another limit that replaces the one with this ID and uses its counters.
    pub limit: Option<(usize, Limit)>,
    /// Number of instances that share each limit; the log is from one of them.
    pub replicas: u32,
    /// How keys show the values of descriptors.
    pub values: Values,
    /// The most memory of counters, in bytes.
    pub most_bytes: usize,
}

impl Default for Trying {
    /// Returns a run of the unchanged rules that may use all available memory.
    fn default() -> Self {
        Trying { limit: None, replicas: 1, values: Values::Plain, most_bytes: memory::default_bytes() }
    }
}

impl Trying {
    /// Returns the limit to use, for all instances together.
    pub(super) fn whole(&self, id: usize, limit: &Limit) -> Limit {
        self.limit.filter(|(other, _)| *other == id).map_or(*limit, |(_, other)| other)
    }

    /// Returns the limit to use, as one instance's share.
    pub(super) fn part(&self, id: usize, limit: &Limit) -> Limit {
        let whole = self.whole(id, limit);
        if self.replicas > 1 { whole.divided_by(self.replicas) } else { whole }
    }

    fn is_as_the_rules(&self) -> bool {
        self.limit.is_none() && self.replicas <= 1
    }
}

/// A run of rules over a log.
#[derive(Debug)]
pub struct Run<'r> {
    pub(super) rules: &'r Rules,
    pub(super) options: &'r PlanOptions,
    pub(super) trying: Trying,
    /// Time of the event being decided.
    clock: GivenClock,
    store: MemoryStore<GivenClock>,
    /// Results by the limits' IDs.
    pub(super) tallies: Vec<Tally>,
    pub(super) room: Room,
    pub(super) totals: Totals,
}

/// Totals over all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Requests that would be denied without global shadow mode.
    pub(super) would_be_denied: u64,
    pub(super) delayed: u64,
    /// Requests with no descriptor that matches a limit.
    pub(super) unlimited: u64,
    /// Requests with more work than the service accepts; it rejects them as invalid.
    pub(super) invalid: u64,
    /// Times of the first and last request.
    pub(super) between_ms: Option<(u64, u64)>,
}

/// The result of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Whether the request is denied.
    pub is_denied: bool,
    /// IDs of the exceeded limits that are not in shadow mode, in order.
    pub over: SmallVec<[usize; 2]>,
}

impl<'r> Run<'r> {
    /// Creates a run with empty counters.
    pub fn new(rules: &'r Rules, options: &'r PlanOptions) -> Run<'r> {
        Run::trying(rules, options, Trying::default())
    }

    /// Creates a run with differences from the rules.
    pub fn trying(rules: &'r Rules, options: &'r PlanOptions, trying: Trying) -> Run<'r> {
        let clock = GivenClock::default();
        let store = MemoryStore::new(clock.clone(), trying.most_bytes);
        let tallies = rules.limits().map(|_| Tally::default()).collect();
        Run { rules, options, trying, clock, store, tallies, room: Room::default(), totals: Totals::default() }
    }

    /// Decides the next request. Events come in the order of time.
    ///
    /// # Errors
    /// Where there is no memory for its counters.
    pub fn decide(&mut self, event: &Event) -> Result<Judged, StoreError> {
        self.decide_at(event.at_ms, &event.request, |descriptor| event.is_sampled(descriptor))
    }

    /// Decides a request that came at this time, in milliseconds since the Unix epoch. All of its descriptors take part
    /// in that; of the limits only those of sampled descriptors are counted.
    ///
    /// # Errors
    /// See [`Run::decide`].
    pub fn decide_at(
        &mut self,
        at_ms: u64,
        request: &Request,
        is_sampled: impl Fn(usize) -> bool,
    ) -> Result<Judged, StoreError> {
        self.clock.set(at_ms);
        let first = self.totals.between_ms.map_or(at_ms, |(first, _)| first);
        self.totals.between_ms = Some((first, at_ms));
        self.totals.requests += 1;
        let mut plan = plan(self.options, self.rules, at_ms, request);
        if !self.trying.is_as_the_rules() {
            plan = plan.with_limits(|of_rule, limit| self.trying.part(of_rule.id, limit));
        }
        if plan.work() > MAX_WORK {
            self.totals.invalid += 1;
            return Ok(Judged::default());
        }
        let verdicts = if plan.asked().is_empty() { Default::default() } else { self.store.decide(plan.asked())? };
        let decision = plan.conclude(&verdicts);
        let over = self.count(&decision, (at_ms, request), is_sampled);
        Ok(Judged { is_denied: decision.over_limit, over })
    }

    /// Returns a limit as it is tried: this instance's share, and the whole limit; `None` if it counts nothing.
    pub(super) fn limit(&self, of_rule: &RuleLimit) -> Option<(Limit, Limit)> {
        let Allowance::Limited(limit) = of_rule.config.allowance else { return None };
        Some((self.trying.part(of_rule.id, &limit), self.trying.whole(of_rule.id, &limit)))
    }

    /// Counts a decision, and tells which limits are over and not in shadow mode.
    fn count(
        &mut self,
        decision: &Decision<'_>,
        (at_ms, request): (u64, &Request),
        is_sampled: impl Fn(usize) -> bool,
    ) -> SmallVec<[usize; 2]> {
        let Decision { over_limit, only_shadow, limits, delay, .. } = decision;
        self.totals.denied += u64::from(*over_limit);
        self.totals.would_be_denied += u64::from(*only_shadow);
        self.totals.delayed += u64::from(!delay.is_zero());
        self.totals.unlimited += u64::from(limits.is_empty());
        let mut over = SmallVec::new();
        for limited in limits.iter().filter(|limited| is_sampled(limited.asked.check.descriptor)) {
            let Source::Rule(_, limit) = limited.asked.source else { continue };
            let (check, is_denied) = (&limited.asked.check, limited.over());
            let decided = Decided { at_ms, key: &check.key, hits: check.ask.taken(), is_denied };
            let values = &self.trying.values;
            self.tallies[limit.id].add(decided, &mut self.room, || name(limited, request, values).into());
            if is_denied && limited.role() != Role::Shadow {
                over.push(limit.id);
            }
        }
        over
    }
}

/// Plans a request. No log shows when a stream ends, so concurrency limits are only peeked at.
pub(super) fn plan<'a>(options: &'a PlanOptions, rules: &'a Rules, at_ms: u64, request: &'a Request) -> Plan<'a> {
    let names = options.counter_keys.names(|| at_ms);
    Plan::new(options, rules, request, names).without_holders()
}

/// Returns the display name of the key that a limit counts: its descriptor's entries, with a pattern for values that
/// share a counter, and with values as far as they are shown.
pub(super) fn name(limited: &Limited<'_>, request: &Request, values: &Values) -> String {
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
