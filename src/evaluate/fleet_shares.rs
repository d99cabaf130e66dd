//! What own shares would save: the requests of a stream, spread over the instances of a fleet, each of which
//! admits a part of every limit by itself. Instances and store decide as those of the service do.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use serde::Serialize;
use tokio::time::Instant;

use super::comparison::{Comparison, Difference};
use super::report::Differences;
use super::{Arrival, RuleSet};
use crate::engine::asked::Source;
use crate::engine::check::{Check, StoreError, Verdicts};
use crate::engine::clock::{Clock as _, GivenClock};
use crate::engine::decision::Decision;
use crate::engine::descriptor::counted;
use crate::engine::rules::LimitConfig;
use crate::engine::rules::options::enforce::Share;
use crate::engine::rules::options::own_share;
use crate::engine::share::{DomainTerms, Member, Shared, Split, Table};
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::store::share::{Desk, Shares};

/// For how long the instances of a stream have their seats: longer than any stream.
const TIMEOUT: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// Half of it, after which each instance sends the next beat, and the number of beats until all have agreed for as long
/// as any period.
const HALF_MS: u64 = TIMEOUT.as_millis() as u64 / 2;
const ROUNDS: u64 = 6;

/// The digest on which the instances agree.
const DIGEST: u64 = 1;

/// The fleet that shares are tried for.
#[derive(Clone, Copy, Debug)]
pub struct FleetTerms {
    /// The part of each limit that instances admit by themselves, unless its rule says another one.
    pub part: Share,
    /// The number of instances, among which requests are spread at random.
    pub instances: u32,
}

/// A fleet with shares, and what it has decided.
pub struct FleetShares<'r> {
    rules: RuleSet<'r>,
    terms: FleetTerms,
    instances: Vec<Shares<Central>>,
    clock: GivenClock,
    calls: Arc<AtomicU64>,
    decisions: u64,
    denied: u64,
    comparison: Comparison,
    dice: fastrand::Rng,
}

/// The store of the fleet.
struct Central {
    counters: Arc<MemoryStore<GivenClock>>,
    calls: Arc<AtomicU64>,
}

impl Store for Central {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], _: Instant) -> Result<Verdicts, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.counters.decide(checks)
    }
}

/// What a fleet with shares would have done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetReport {
    /// The part of each limit that instances admit by themselves.
    pub share: String,
    /// The number of instances.
    pub instances: u32,
    /// Number of requests that a limit applies to. Without shares, each asks the store.
    pub decisions: u64,
    /// Number of calls to the store, without those that known denials save.
    pub calls: u64,
    /// Number of denied requests.
    pub denied: u64,
    /// The requests that are decided differently without shares, which are the old rules here.
    #[serde(flatten)]
    pub differences: Differences,
}

/// Formats what the fleet has done, and whom it denies too early.
impl Display for FleetReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let FleetReport { share: part, instances, decisions, calls, denied, differences } = self;
        writeln!(f, "with own_share: {part} and {}:", counted(u64::from(*instances), "instance"))?;
        let each = *calls as f64 / (*decisions).max(1) as f64;
        let calls = counted(*calls, "call");
        writeln!(f, "  {calls} to Redis for {}: {each:.3} each", counted(*decisions, "decision"))?;
        writeln!(f, "  {denied} denied, of which {} too early", differences.newly_denied)?;
        differences.write(f, Difference::NewlyDenied)
    }
}

impl<'r> FleetShares<'r> {
    /// Creates a fleet in which every instance has a seat, and all have agreed for long. `most_bytes` is the most
    /// memory of its counters.
    pub fn new(rules: RuleSet<'r>, terms: FleetTerms, most_bytes: usize) -> FleetShares<'r> {
        let clock = GivenClock::default();
        let each = most_bytes / (1 + terms.instances as usize);
        let counters = Arc::new(MemoryStore::new(clock.clone(), each));
        let calls = Arc::<AtomicU64>::default();
        // The time that has passed before the stream.
        let passed = Arc::<AtomicU64>::default();
        let desk = || {
            let (clock, passed) = (clock.clone(), Arc::clone(&passed));
            let now = move || Duration::from_millis(passed.load(Ordering::Relaxed) + clock.now());
            Arc::new(Desk::by(now, each, Box::new(|| {})))
        };
        let desks: Vec<Arc<Desk>> = (0..terms.instances).map(|_| desk()).collect();
        seat(&desks, &domain_terms(&rules, terms), &passed);
        let around = |desk: &Arc<Desk>| {
            let store = Central { counters: Arc::clone(&counters), calls: Arc::clone(&calls) };
            Shares::around(vec![store], desk)
        };
        FleetShares {
            rules,
            terms,
            instances: desks.iter().flat_map(around).collect(),
            clock,
            calls,
            decisions: 0,
            denied: 0,
            comparison: Comparison::default(),
            // The same stream has the same report.
            dice: fastrand::Rng::with_seed(1),
        }
    }

    /// Decides the next request, which would be decided like this without shares.
    ///
    /// # Errors
    /// If there is no memory for its counters.
    pub fn decide<'a>(&mut self, arrival: Arrival<'a>, without: &Decision<'a>) -> Result<(), StoreError>
    where
        'r: 'a,
    {
        let Some(plan) = self.rules.plan(arrival) else { return Ok(()) };
        let plan = plan.with_shared(|source, shared| self.terms.shared(source, shared));
        self.clock.set(arrival.at_ms);
        let mut verdicts = Verdicts::default();
        if !plan.asked().is_empty() {
            self.decisions += 1;
            let instance = &self.instances[self.dice.usize(..self.instances.len())];
            // The store answers at once, and no instance waits for the table of seats.
            let decided = instance.check(plan.asked(), Instant::now()).now_or_never();
            verdicts = decided.unwrap_or(Err(StoreError::Answer))?;
        }
        let with = plan.conclude(&verdicts);
        self.denied += u64::from(with.over_limit);
        self.comparison.add(arrival, (without, &with), |_, _| {});
        Ok(())
    }

    /// Returns what the fleet has done.
    pub fn report(&self) -> FleetReport {
        FleetReport {
            share: self.terms.part.to_string(),
            instances: self.terms.instances,
            decisions: self.decisions,
            calls: self.calls.load(Ordering::Relaxed),
            denied: self.denied,
            differences: self.comparison.report(),
        }
    }
}

impl FleetTerms {
    /// Returns what a check of this limit knows of the shares.
    fn shared(&self, source: Source<'_>, shared: Shared) -> Shared {
        let split = match source {
            Source::Rule(_, limit) => self.split(&limit.config),
            Source::Override(_) => None,
        };
        Shared { digest: DIGEST, split: split.filter(|_| !shared.is_changed), ..shared }
    }

    /// Returns the split of a limit; `None` if it cannot have shares.
    fn split(&self, limit: &LimitConfig) -> Option<Split> {
        let part = limit.options.own_share.or_else(|| own_share::fits(limit).then_some(self.part))?;
        Some(Split::new(part.hundredths(), self.instances))
    }
}

/// Returns what the instances agree on.
fn domain_terms(rules: &RuleSet<'_>, terms: FleetTerms) -> BTreeMap<u64, DomainTerms> {
    let parts = rules.rules.limits().filter_map(|(_, limit)| terms.split(&limit.config)).map(|split| split.part());
    let largest = Split::new(parts.max().unwrap_or_default(), terms.instances);
    let of = |name: &str| (Shared::domain_id(name), DomainTerms { digest: DIGEST, largest });
    rules.rules.domain_names().map(of).collect()
}

/// Gives each desk a seat, and lets time pass until all have agreed for long.
fn seat(desks: &[Arc<Desk>], terms: &BTreeMap<u64, DomainTerms>, passed: &AtomicU64) {
    let seats = u32::try_from(desks.len()).unwrap_or(u32::MAX);
    let member = |place: usize| {
        let mut member = Member::new(&place.to_string(), seats, TIMEOUT);
        member.set_domains(terms.clone());
        member
    };
    let mut members: Vec<Member> = (0..desks.len()).map(member).collect();
    let mut table = Table::default();
    for round in 0..ROUNDS {
        passed.store(round * HALF_MS, Ordering::Relaxed);
        for (member, desk) in members.iter_mut().zip(desks) {
            let query = member.query(desk.now());
            let answer = table.beat("replay", &query.beat(member.id(), "replay"));
            member.answered(&query, &answer, desk.now());
            desk.put(member.view().clone());
        }
    }
}
