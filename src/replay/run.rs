//! Decides the requests of a log as the service would: with the same plan, the memory store, and the log's own clock.

use smallvec::SmallVec;

use super::Event;
use super::tally::{Decided, Room, Tally};
use crate::algorithm::Limit;
use crate::decision::{Decision, Limited};
use crate::descriptor::{Entry, Request, Role};
use crate::plan::{MAX_WORK, Plan, PlanOptions, Source};
use crate::rules::{Allowance, RuleLimit, Rules};
use crate::store::StoreError;
use crate::store::memory::{self, GivenClock, MemoryStore};
use crate::values::Values;

/// What a run has otherwise than the rules, and how it tells of it.
#[derive(Clone, Debug)]
pub struct Trying {
    /// Another limit in place of the one of this id, on its counters.
    pub limit: Option<(usize, Limit)>,
    /// Each limit is divided among so many processes, of which the log is of one.
    pub replicas: u32,
    /// How keys show the values of descriptors.
    pub values: Values,
    /// What counters may take, in bytes.
    pub most_bytes: usize,
}

impl Default for Trying {
    /// Nothing, and all that there is room for.
    fn default() -> Self {
        Trying { limit: None, replicas: 1, values: Values::Plain, most_bytes: memory::default_bytes() }
    }
}

impl Trying {
    /// The limit that is tried, of all processes together.
    pub(super) fn whole(&self, id: usize, limit: &Limit) -> Limit {
        self.limit.filter(|(other, _)| *other == id).map_or(*limit, |(_, other)| other)
    }

    /// The same, this process's part of it.
    pub(super) fn part(&self, id: usize, limit: &Limit) -> Limit {
        let whole = self.whole(id, limit);
        if self.replicas > 1 { whole.divided_by(self.replicas) } else { whole }
    }

    fn is_as_the_rules(&self) -> bool {
        self.limit.is_none() && self.replicas <= 1
    }
}

/// Rules on a log.
#[derive(Debug)]
pub struct Run<'r> {
    pub(super) rules: &'r Rules,
    pub(super) options: &'r PlanOptions,
    pub(super) trying: Trying,
    /// The time of the event that is being decided.
    clock: GivenClock,
    store: MemoryStore<GivenClock>,
    /// By the ids of the limits.
    pub(super) tallies: Vec<Tally>,
    pub(super) room: Room,
    pub(super) totals: Totals,
}

/// What came of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Would be denied, but for the global shadow mode.
    pub(super) would_be_denied: u64,
    pub(super) delayed: u64,
    /// Asked by none of whose descriptors a limit is reached.
    pub(super) unlimited: u64,
    /// More work than the service does at once: it calls them invalid.
    pub(super) invalid: u64,
    /// When the first and the last came.
    pub(super) between_ms: Option<(u64, u64)>,
}

/// What came of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// It is denied.
    pub is_denied: bool,
    /// The ids of the limits that are over and not in shadow mode, the first first.
    pub over: SmallVec<[usize; 2]>,
}

impl<'r> Run<'r> {
    /// Begins with empty counters.
    pub fn new(rules: &'r Rules, options: &'r PlanOptions) -> Run<'r> {
        Run::trying(rules, options, Trying::default())
    }

    /// The same where something is otherwise than the rules say.
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
        self.decide_at(event.at_ms, &event.request)
    }

    /// The same of a request that came at this time, in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// See [`Run::decide`].
    pub fn decide_at(&mut self, at_ms: u64, request: &Request) -> Result<Judged, StoreError> {
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
        let over = self.count(&decision, at_ms, request);
        Ok(Judged { is_denied: decision.over_limit, over })
    }

    /// A limit as it is tried, and how it would be without other processes; `None` where it counts nothing.
    pub(super) fn limit(&self, of_rule: &RuleLimit) -> Option<(Limit, Limit)> {
        let Allowance::Limited(limit) = of_rule.config.allowance else { return None };
        Some((self.trying.part(of_rule.id, &limit), self.trying.whole(of_rule.id, &limit)))
    }

    /// Counts a decision, and tells which limits are over and not in shadow mode.
    fn count(&mut self, decision: &Decision<'_>, at_ms: u64, request: &Request) -> SmallVec<[usize; 2]> {
        let Decision { over_limit, only_shadow, limits, delay, .. } = decision;
        self.totals.denied += u64::from(*over_limit);
        self.totals.would_be_denied += u64::from(*only_shadow);
        self.totals.delayed += u64::from(!delay.is_zero());
        self.totals.unlimited += u64::from(limits.is_empty());
        let mut over = SmallVec::new();
        for limited in limits {
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

/// What a request asks. No log says when a stream ends, so that a limit of what is in progress is peeked at alone.
pub(super) fn plan<'a>(options: &'a PlanOptions, rules: &'a Rules, at_ms: u64, request: &'a Request) -> Plan<'a> {
    let names = options.counter_keys.names(|| at_ms);
    Plan::new(options, rules, request, names).without_holders()
}

/// What people call the key that a limit counts: its descriptor's entries, a pattern where values share a counter, and
/// of each value what is shown.
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
