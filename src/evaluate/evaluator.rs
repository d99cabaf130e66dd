//! The evaluator: decides each request of a stream as the service would.

use smallvec::SmallVec;

use crate::engine::adjustment::InForce;
use crate::engine::algorithm::Limit;
use crate::engine::asked::Source;
use crate::engine::check::{Check, Key, StoreError, Verdicts, group};
use crate::engine::clock::GivenClock;
use crate::engine::decision::Decision;
use crate::engine::plan::{MAX_WORK, Plan, PlanOptions};
use crate::engine::rules::Rules;
use crate::store::memory::{MemoryStore, Name};

use super::Arrival;

/// Rules to evaluate, with the circumstances of the stream.
#[derive(Clone, Copy, Debug)]
pub struct RuleSet<'r> {
    /// The rules.
    pub rules: &'r Rules,
    /// Adjustments in force, if any.
    pub adjustments: Option<&'r InForce>,
    /// Options for planning requests.
    pub options: &'r PlanOptions,
    /// Number of instances that share each limit; the stream is from one of them.
    pub replicas: u32,
    /// Whether the stream contains the ends of streams. If not, concurrency limits are only peeked at by requests that
    /// do not tell how long they last.
    pub has_releases: bool,
    /// Another limit that replaces the one with this ID and uses its counters.
    pub tried: Option<(usize, Limit)>,
}

impl<'r> RuleSet<'r> {
    /// Returns these rules without differences, for all requests of the service, without the ends of streams.
    pub fn new(rules: &'r Rules, options: &'r PlanOptions) -> RuleSet<'r> {
        RuleSet { rules, adjustments: None, options, replicas: 1, has_releases: false, tried: None }
    }

    /// Returns the limit to use, for all instances together.
    pub(super) fn whole(&self, id: usize, limit: &Limit) -> Limit {
        self.tried.filter(|(other, _)| *other == id).map_or(*limit, |(_, other)| other)
    }

    /// Returns one instance's share of a limit.
    pub(super) fn share(&self, limit: Limit) -> Limit {
        if self.replicas > 1 { limit.divided_by(self.replicas) } else { limit }
    }

    /// Plans a request; `None` if the service would reject it as invalid, because it asks for too much work.
    pub(super) fn plan<'a>(&self, Arrival { at_ms, request, lasts_ms, .. }: Arrival<'a>) -> Option<Plan<'a>>
    where
        'r: 'a,
    {
        let names = self.options.counter_keys.names(|| at_ms);
        let mut plan = Plan::adjusted(self.options, (self.rules, self.adjustments), request, names);
        if !self.has_releases && lasts_ms.is_none() {
            plan = plan.without_holders();
        }
        if self.tried.is_some() || self.replicas > 1 {
            plan = plan.with_limits(|source, limit| {
                self.share(match source {
                    Source::Rule(_, of_rule) => self.whole(of_rule.id, limit),
                    Source::Override(_) => *limit,
                })
            });
        }
        (plan.work() <= MAX_WORK).then_some(plan)
    }
}

/// The counters of one set of rules, on the clock of a stream.
#[derive(Debug)]
pub struct Evaluator {
    clock: GivenClock,
    store: MemoryStore<GivenClock>,
}

impl Evaluator {
    /// Creates an evaluator without counters. `most_bytes` is the most memory that they may take.
    pub fn new(most_bytes: usize) -> Evaluator {
        let clock = GivenClock::default();
        Evaluator { store: MemoryStore::new(clock.clone(), most_bytes), clock }
    }

    /// Returns the approximate memory of all counters, in bytes.
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// Decides the next request of the stream. Requests come in order of time. Returns `None` if the service would
    /// reject it as invalid.
    ///
    /// # Errors
    /// If there is no memory for its counters.
    pub fn decide<'a>(&self, rules: &RuleSet<'a>, arrival: Arrival<'a>) -> Result<Option<Decision<'a>>, StoreError> {
        let Some(plan) = rules.plan(arrival) else { return Ok(None) };
        let names: SmallVec<[Name; 8]> = self.names(&plan).collect();
        self.conclude(plan, &names, arrival.at_ms).map(Some)
    }

    /// Returns the names of a plan's counters in the store.
    pub(super) fn names(&self, plan: &Plan<'_>) -> impl Iterator<Item = Name> {
        group::keys(plan.asked()).map(|key| self.store.name(key))
    }

    /// Returns the name of a counter in the store.
    pub(super) fn name(&self, key: &Key) -> Name {
        self.store.name(key)
    }

    /// Decides a planned request that came at this time. `names` are those of its counters.
    pub(super) fn conclude<'a>(&self, plan: Plan<'a>, names: &[Name], at_ms: u64) -> Result<Decision<'a>, StoreError> {
        self.clock.set(at_ms);
        let is_asked = !plan.asked().is_empty();
        let verdicts = if is_asked { self.store.decide_named(plan.asked(), names)? } else { Verdicts::default() };
        Ok(plan.conclude(&verdicts))
    }

    /// Performs these checks, which end streams, at this time.
    pub(super) fn release(&self, checks: &[Check], at_ms: u64) -> Result<(), StoreError> {
        self.clock.set(at_ms);
        self.store.decide(checks).map(drop)
    }

    /// Fetches these counters into the processor's caches, without effect on decisions.
    pub(super) fn fetch(&mut self, names: &[Name]) {
        self.store.fetch(names);
    }
}
