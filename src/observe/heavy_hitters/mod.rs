//! The heaviest users of each limit: for each rule, the keys with the most hits, the most denials, and the most hits
//! near the limit.
//!
//! All workers count in the same sketches and never wait for each other: if another thread is writing to the same
//! place, a hit is not counted. Counts are halved once a minute, so they reflect the last minutes. Each rule takes at
//! most [`RULE_BYTES`], and [`SEATS`] rules have a seat. If more rules are used, a busier rule can take the seat of a
//! less busy one.

mod report;
mod sketch;

use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;

use self::report::Names;
use self::sketch::{Added, Owner, Sketch};
use crate::engine::asked::Source;
use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::Request;
use crate::engine::rules::Rules;
use crate::metrics::Around;
use crate::observe::redaction::Values;
use crate::observe::watch::{Observed, Observer, Watch};

pub use report::{By, HeavyKey, Pair, Query, RuleTotal, Top};

/// Number of rules counted at once.
pub const SEATS: usize = 512;

/// The most memory of one rule; 32 MiB for all.
pub const RULE_BYTES: usize = 64 * 1024;

/// Interval at which rules are ranked by their hits.
const RANKED: Duration = Duration::from_secs(10);

/// Number of rankings after which counts are halved.
const HALVED: u32 = 6;

/// The most rules that lose their seats to busier ones between two rankings.
const EVICTIONS: u32 = 128;

/// Sketches of the busiest rules.
pub struct HeavyHitters {
    values: Values,
    near_limit_ratio: f32,
    /// Has random keys, so clients cannot know which names share a bucket.
    hasher: DefaultHashBuilder,
    seats: Box<[Seat]>,
    tenants: Mutex<Tenants>,
    /// Hits of the least busy seated rule, once all seats are taken.
    least: AtomicU64,
}

/// A seat for the sketches of one rule.
#[derive(Default)]
struct Seat {
    /// Created for the first rule in this seat.
    sketches: OnceLock<Sketches>,
}

/// The sketches of one rule.
struct Sketches {
    hits: Sketch,
    denied: Sketch,
    near: Sketch,
}

/// The rules that have seats.
#[derive(Debug, Default)]
struct Tenants {
    /// Rules in the order of the seats.
    seated: Vec<Option<Tenant>>,
    owners: u32,
    evictions: u32,
}

/// A rule's limit that has a seat.
#[derive(Debug)]
struct Tenant {
    owner: Owner,
    domain: Box<str>,
    label: Box<str>,
    /// Path of the rule. A rule with another path has other keys, even if its label is the same.
    path: Box<str>,
    names: Names,
    /// Hits at the last ranking.
    hits: u64,
    age: Age,
}

/// The time that counts cover. Past time is halved together with the hits counted in it.
#[derive(Clone, Copy, Debug)]
struct Age {
    before: Duration,
    since: Instant,
}

/// Seats of the limits of one snapshot of rules: first the limits, in the order of their IDs, then the overrides by
/// clients, in the order of the domains' IDs.
#[derive(Debug, Default)]
pub struct Places {
    places: Box<[AtomicU64]>,
    limits: usize,
}

/// The rule has not been checked for a seat yet.
const UNKNOWN: u64 = 0;

/// The rule had no seat.
const UNSEATED: u64 = u32::MAX as u64;

/// The owner of a free sketch.
const NOBODY: Owner = Owner(0);

/// Formats without the counts.
impl fmt::Debug for HeavyHitters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeavyHitters").field("values", &self.values).finish_non_exhaustive()
    }
}

impl Places {
    /// Creates places with no known seats.
    pub fn new(rules: &Rules) -> Places {
        let limits = rules.limits().count();
        Places { places: (0..limits + rules.domains()).map(|_| AtomicU64::new(UNKNOWN)).collect(), limits }
    }

    fn of(&self, source: Source<'_>) -> Option<&AtomicU64> {
        self.places.get(match source {
            Source::Rule(_, limit) => limit.id,
            Source::Override(domain) => self.limits + domain.id,
        })
    }
}

/// Packs a seat, counted from 1, with its owner.
fn packed(seat: usize, Owner(owner): Owner) -> u64 {
    u64::from(owner) << 32 | (seat as u64 + 1)
}

impl Sketches {
    fn new(owner: Owner) -> Sketches {
        Sketches { hits: Sketch::new(32, owner), denied: Sketch::new(16, owner), near: Sketch::new(16, owner) }
    }

    fn all(&self) -> [&Sketch; 3] {
        [&self.hits, &self.denied, &self.near]
    }

    fn of(&self, by: By) -> &Sketch {
        match by {
            By::Hits => &self.hits,
            By::Denied => &self.denied,
            By::Near => &self.near,
        }
    }
}

impl Observer for HeavyHitters {
    fn watch(self: Arc<Self>, rules: &Arc<Rules>) -> Arc<dyn Watch> {
        Arc::new(HeavyHittersOfRules { places: Places::new(rules), heavy_hitters: self })
    }
}

/// Counts decisions by the rules with these places.
struct HeavyHittersOfRules {
    places: Places,
    heavy_hitters: Arc<HeavyHitters>,
}

impl Watch for HeavyHittersOfRules {
    fn decided(&self, observed: &Observed<'_, '_>) {
        let ratio = self.heavy_hitters.near_limit_ratio;
        let around = |limited: &Limited<'_>, hits| Some(Around::of_limit(limited, limited.verdict()?, hits, ratio));
        self.heavy_hitters.record(&self.places, observed.request, observed.decision, around);
    }
}

impl HeavyHitters {
    /// Creates empty counts. `values` selects how values are shown. Hits beyond `near_limit_ratio` of a limit are near
    /// it, as in the metrics.
    pub fn new(values: Values, near_limit_ratio: f64) -> HeavyHitters {
        HeavyHitters {
            values,
            near_limit_ratio: near_limit_ratio as f32,
            hasher: DefaultHashBuilder::default(),
            seats: (0..SEATS).map(|_| Seat::default()).collect(),
            tenants: Mutex::default(),
            least: AtomicU64::new(0),
        }
    }

    /// Counts a decision under the rules with these places. For a limit and a number of hits, `around` returns how many
    /// of them are near the limit, and how many beyond it.
    pub fn record(
        &self,
        places: &Places,
        request: &Request,
        decision: &Decision<'_>,
        around: impl Fn(&Limited<'_>, u64) -> Option<Around>,
    ) {
        for limited in &decision.limits {
            let hits = limited.taken();
            let Some(place) = places.of(limited.asked.source).filter(|_| hits > 0) else { continue };
            let Around { near, over } = around(limited, hits).unwrap_or_default();
            let added = self.add(place, request, limited, [hits, over, near]);
            if added == Some(Added::NotOwner) {
                place.store(UNKNOWN, Ordering::Relaxed);
            }
        }
    }

    fn add(&self, place: &AtomicU64, request: &Request, limited: &Limited<'_>, hits: [u64; 3]) -> Option<Added> {
        let [hits, over, near] = hits;
        let asked = &limited.asked;
        let (owner, sketches) = self.seat(place, asked.source, hits)?;
        let print = self.hasher.hash_one(asked.check.key.without_window());
        let name = || report::name(request, asked);
        let added = sketches.hits.add(owner, print, hits, name);
        if over > 0 {
            sketches.denied.add(owner, print, over, name);
        }
        if near > 0 {
            sketches.near.add(owner, print, near, name);
        }
        Some(added)
    }

    /// Returns the sketches of a rule that has a seat, or that gets one for these hits.
    fn seat(&self, place: &AtomicU64, source: Source<'_>, hits: u64) -> Option<(Owner, &Sketches)> {
        let known = match place.load(Ordering::Relaxed) {
            UNKNOWN => self.look(place, source, hits)?,
            UNSEATED if !self.is_drawn(hits) => return None,
            UNSEATED => self.look(place, source, hits)?,
            known => known,
        };
        let seat = self.seats.get((known & u64::from(u32::MAX)) as usize - 1)?;
        Some((Owner((known >> 32) as u32), seat.sketches.get()?))
    }

    /// Decides at random whether a rule may take a seat, like a key that takes over a count: the probability is the
    /// share of these hits in their sum with the hits of the least busy rule.
    fn is_drawn(&self, hits: u64) -> bool {
        let least = self.least.load(Ordering::Relaxed);
        fastrand::u64(..least.saturating_add(hits)) < hits
    }

    /// Finds the seat of a rule, or assigns one.
    fn look(&self, place: &AtomicU64, source: Source<'_>, hits: u64) -> Option<u64> {
        // If another thread holds the lock, a later request finds the seat.
        let mut tenants = self.tenants.try_lock()?;
        let is_drawn = place.load(Ordering::Relaxed) == UNSEATED;
        let seated = tenants.find(source).or_else(|| {
            let seat = tenants.vacancy(is_drawn)?;
            let owner = tenants.seat(seat, source, hits, &self.values);
            match self.seats[seat].sketches.get() {
                Some(sketches) => sketches.all().iter().for_each(|sketch| sketch.give_to(owner)),
                None => drop(self.seats[seat].sketches.set(Sketches::new(owner))),
            }
            self.least.store(tenants.least(), Ordering::Relaxed);
            Some((seat, owner))
        });
        let known = seated.map(|(seat, owner)| packed(seat, owner));
        place.store(known.unwrap_or(UNSEATED), Ordering::Relaxed);
        known
    }

    /// Ages counts and ranks rules until the process ends.
    pub async fn tend(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(RANKED);
        for tick in 1_u32.. {
            ticks.tick().await;
            if tick % HALVED == 0 {
                self.halve(Instant::now());
            }
            self.rank();
        }
    }

    /// Halves all counts.
    fn halve(&self, now: Instant) {
        for (tenant, seat) in self.tenants.lock().seated.iter_mut().zip(&self.seats) {
            if let (Some(tenant), Some(sketches)) = (tenant, seat.sketches.get()) {
                sketches.all().iter().for_each(|sketch| sketch.halve());
                tenant.age = tenant.age.halved(now);
            }
        }
    }

    /// Ranks rules by their hits. Rules without hits lose their seats.
    fn rank(&self) {
        let mut tenants = self.tenants.lock();
        for (tenant, seat) in tenants.seated.iter_mut().zip(&self.seats) {
            if let (Some(seated), Some(sketches)) = (&mut *tenant, seat.sketches.get()) {
                seated.hits = sketches.hits.total();
                if seated.hits == 0 {
                    // Threads that remember the seat will find that they no longer own it.
                    sketches.all().iter().for_each(|sketch| sketch.give_to(NOBODY));
                    *tenant = None;
                }
            }
        }
        tenants.evictions = 0;
        self.least.store(tenants.least(), Ordering::Relaxed);
    }
}

impl Tenants {
    fn find(&self, source: Source<'_>) -> Option<(usize, Owner)> {
        let is_it = |tenant: &Tenant| {
            *tenant.label == *source.label() && *tenant.path == *source.path() && *tenant.domain == *source.domain()
        };
        let seated = self.seated.iter().enumerate();
        seated
            .filter_map(|(seat, tenant)| Some((seat, tenant.as_ref()?)))
            .find_map(|(seat, tenant)| is_it(tenant).then_some((seat, tenant.owner)))
    }

    /// Returns a free seat or, if the new rule was drawn, the seat of the least busy rule.
    fn vacancy(&mut self, is_drawn: bool) -> Option<usize> {
        if let Some(free) = self.seated.iter().position(Option::is_none) {
            return Some(free);
        }
        if self.seated.len() < SEATS {
            self.seated.push(None);
            return Some(self.seated.len() - 1);
        }
        if !is_drawn || self.evictions >= EVICTIONS {
            return None;
        }
        self.evictions += 1;
        (0..SEATS).min_by_key(|seat| self.seated[*seat].as_ref().map(|tenant| tenant.hits))
    }

    /// Assigns a seat to a rule. The rule starts with the hits of the seat's previous rule plus these.
    fn seat(&mut self, seat: usize, source: Source<'_>, hits: u64, values: &Values) -> Owner {
        // After the number wraps, no thread remembers the first owners.
        self.owners = self.owners.wrapping_add(1).max(1);
        let before = self.seated[seat].take().map_or(0, |tenant| tenant.hits);
        let owner = Owner(self.owners);
        self.seated[seat] = Some(Tenant {
            owner,
            domain: source.domain().into(),
            label: source.label().into(),
            path: source.path().into(),
            names: Names::new(source, values),
            hits: before.saturating_add(hits),
            age: Age { before: Duration::ZERO, since: Instant::now() },
        });
        owner
    }

    /// Returns the hits of the least busy rule; 0 if there are free seats.
    fn least(&self) -> u64 {
        let all = || self.seated.iter().map(|tenant| tenant.as_ref().map_or(0, |tenant| tenant.hits));
        if self.seated.len() < SEATS { 0 } else { all().min().unwrap_or(0) }
    }
}

impl Age {
    /// Returns the length of time that counts cover at `now`.
    fn window(&self, now: Instant) -> Duration {
        self.before + now.saturating_duration_since(self.since)
    }

    fn halved(&self, now: Instant) -> Age {
        Age { before: self.window(now) / 2, since: now }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::engine::algorithm::Ask;
    use crate::engine::descriptor::{Descriptor, Entry};
    use crate::engine::plan::{Names as CounterNames, Plan, PlanOptions};
    use crate::metrics::Metrics;
    use crate::sources::files::load::{self, LoadOptions, Sources};
    use crate::store::memory::MemoryStore;

    /// Rules, their places, and the observer under test.
    pub(crate) struct World {
        rules: Rules,
        places: Places,
        store: MemoryStore,
        metrics: Metrics,
        pub(crate) heavy: HeavyHitters,
    }

    impl World {
        pub(crate) fn new(rules: &str, values: Values) -> World {
            let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
            std::fs::write(&file, rules).unwrap();
            let sources = Sources { paths: vec![file.path().to_owned()] };
            let rules = load::load(&sources, &LoadOptions::default()).unwrap().rules;
            World {
                places: Places::new(&rules),
                rules,
                store: MemoryStore::default(),
                metrics: Metrics::new(0.8).unwrap(),
                heavy: HeavyHitters::new(values, 0.8),
            }
        }

        pub(crate) fn ask(&self, entries: &[(&str, &str)], hits: u64) {
            let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
            let entries = entries.iter().map(entry).collect();
            let descriptor = Descriptor { entries, ask: Ask::Take(hits), limit: None };
            let request = Request { domain: "shop".into(), descriptors: vec![descriptor] };
            let options = PlanOptions::default();
            let plan = Plan::new(&options, &self.rules, &request, CounterNames::default());
            let verdicts = self.store.decide(plan.asked()).unwrap();
            let decision = plan.conclude(&verdicts);
            self.heavy.record(&self.places, &request, &decision, |limited, hits| self.metrics.around(limited, hits));
        }

        fn top(&self, by: By) -> Vec<HeavyKey> {
            self.heavy.top(&Query { by, most: 1_000, ..Query::default() }).keys
        }
    }

    const RULES: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 10, name: per-user}
- key: path
  value: /api/*
  share_threshold: true
  descriptors:
  - {key: user, value: secret-value, rate_limit: {unit: year, requests_per_unit: 10}}
- key: report
  descriptors:
  - {key: stream, rate_limit: {requests_per_unit: 2, algorithm: concurrency}}
";

    #[test]
    fn a_key_has_its_hits_its_denials_and_those_near_the_limit() {
        let world = World::new(RULES, Values::Plain);
        (0..25).for_each(|_| world.ask(&[("user", "ann")], 1));
        (0..9).for_each(|_| world.ask(&[("user", "bob")], 1));
        world.ask(&[("user", "cy")], 100);
        let told = |by| -> Vec<(String, [u64; 3])> {
            let of = |key: HeavyKey| {
                let pair = &key.descriptor.as_ref().unwrap()[0];
                assert_eq!((&*key.domain, &*key.rule, &*pair.key), ("shop", "per-user", "user"));
                (pair.value.clone().unwrap(), [key.hits, key.denied, key.near].map(Option::unwrap))
            };
            world.top(by).into_iter().map(of).collect()
        };
        let [ann, bob, cy] = [("ann", [25, 15, 2]), ("bob", [9, 0, 1]), ("cy", [100, 100, 0])]
            .map(|(user, counts)| (user.to_owned(), counts));
        assert_eq!(told(By::Hits), [cy.clone(), ann.clone(), bob.clone()]);
        assert_eq!(told(By::Denied), [cy, ann.clone()]);
        assert_eq!(told(By::Near), [ann, bob]);
        let share = world.top(By::Hits)[0].share;
        assert!((share - 100.0 / 134.0).abs() < 1e-9, "{share}");
    }

    #[test]
    fn a_key_is_a_counter_and_its_entries_ask_for_that() {
        let world = World::new(RULES, Values::Plain);
        for path in ["/api/a", "/api/b"] {
            world.ask(&[("path", path), ("user", "secret-value")], 1);
        }
        for stream in ["1", "2"] {
            world.ask(&[("report", "all"), ("stream", stream)], 1);
        }
        let entries = |key: HeavyKey| {
            let entries =
                key.entries.unwrap().into_iter().map(|entry| (entry.key.to_string(), entry.value.to_string()));
            (entries.collect::<Vec<_>>(), key.hits)
        };
        let mut found: Vec<_> = world.top(By::Hits).into_iter().map(entries).collect();
        found.sort();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let expected = [
            (vec![pair("path", "/api/*"), pair("user", "secret-value")], Some(2)),
            (vec![pair("report", "all"), pair("stream", "*")], Some(2)),
        ];
        assert_eq!(found, expected);
        let counters = |entries: &[(String, String)]| {
            let entry = |(key, value): &(String, String)| Entry { key: key.into(), value: value.into() };
            let descriptor = Descriptor { entries: entries.iter().map(entry).collect(), ask: Ask::Peek, limit: None };
            let request = Request { domain: "shop".into(), descriptors: vec![descriptor] };
            let options = PlanOptions::default();
            let plan = Plan::new(&options, &world.rules, &request, CounterNames::default());
            world.store.decide(plan.asked()).unwrap()[0].unwrap().own.remaining
        };
        assert_eq!(found.iter().map(|(entries, _)| counters(entries)).collect::<Vec<_>>(), [8, 0]);
    }

    #[test]
    fn streams_of_a_budget_are_one_key_that_weighs_what_they_hold() {
        let rules = "
domain: shop
descriptors:
- key: tenant
  descriptors:
  - {key: hold, rate_limit: {algorithm: budget, unit: year, requests_per_unit: 1000, min_estimate: 50}}
";
        let world = World::new(rules, Values::Plain);
        for (key, stream, hits) in [("hold", "1", 30), ("hold", "2", 70), ("settle", "1", 20), ("settle", "3", 10)] {
            world.ask(&[("tenant", "acme"), (key, stream)], hits);
        }
        let pair = |key: &str, value: &str| Pair { key: key.into(), value: Some(value.into()) };
        let told: Vec<_> = world.top(By::Hits).into_iter().map(|key| (key.descriptor.unwrap(), key.hits)).collect();
        assert_eq!(told, [(vec![pair("tenant", "acme"), pair("hold", "*")], Some(120))]);
    }

    #[test]
    fn hidden_and_hashed_values_are_nowhere_also_not_in_the_name_of_a_rule() {
        for values in [Values::Hidden, Values::hashed("a key of sixteen")] {
            let world = World::new(RULES, values);
            world.ask(&[("path", "/api/secret-path"), ("user", "secret-value")], 1);
            world.ask(&[("user", "secret-user")], 1);
            let told = serde_json::to_string(&world.heavy.top(&Query { most: 10, ..Query::default() })).unwrap();
            assert!(!told.contains("secret") && told.contains("per-user") && told.contains("path"), "{told}");
        }
    }

    #[test]
    fn a_busy_rule_gets_a_seat_where_all_are_taken_and_one_that_is_not_asked_any_more_loses_its_own() {
        fastrand::seed(1);
        let rule = |rule| format!("- {{key: k{rule}, rate_limit: {{unit: year, requests_per_unit: 1000000}}}}\n");
        let rules: String = (0..2 * SEATS).map(rule).collect();
        let world = World::new(&format!("domain: shop\ndescriptors:\n{rules}"), Values::Plain);
        for rule in 0..2 * SEATS {
            world.ask(&[(&format!("k{rule}"), "ann")], 1);
        }
        let seated = |world: &World| world.heavy.top(&Query { most: 1, ..Query::default() }).rules;
        assert_eq!(seated(&world), SEATS);
        let late = format!("k{}", 2 * SEATS - 1);
        (0..100).for_each(|_| world.ask(&[(&late, "ann")], 1));
        let heaviest = &world.top(By::Hits)[0];
        assert!(heaviest.rule == late && heaviest.hits > Some(50), "{heaviest:?}");

        world.heavy.halve(Instant::now());
        world.heavy.rank();
        assert_eq!(seated(&world), 1, "of one hit nothing is left");
        // A rule that lost its seat gets one again.
        (0..3).for_each(|_| world.ask(&[("k0", "ann")], 1));
        assert_eq!(seated(&world), 2);
    }

    #[test]
    fn new_rules_go_on_with_the_counts_of_a_rule_unless_it_stands_elsewhere() {
        let world = World::new(RULES, Values::Plain);
        world.ask(&[("user", "ann")], 3);
        let same = World { heavy: world.heavy, ..World::new(&RULES.replace("10, name", "20, name"), Values::Plain) };
        same.ask(&[("user", "ann")], 4);
        assert_eq!(same.top(By::Hits)[0].hits, Some(7));
        let moved = "domain: shop\ndescriptors:\n- key: tenant\n  descriptors:\n  - key: user\n    \
                     rate_limit: {unit: year, requests_per_unit: 10, name: per-user}\n";
        let moved = World { heavy: same.heavy, ..World::new(moved, Values::Plain) };
        moved.ask(&[("tenant", "acme"), ("user", "ann")], 50);
        let pair = |key: &str, value: &str| Pair { key: key.into(), value: Some(value.into()) };
        let told: Vec<_> = moved.top(By::Hits).into_iter().map(|key| (key.descriptor.unwrap(), key.hits)).collect();
        let expected =
            [(vec![pair("tenant", "acme"), pair("user", "ann")], Some(50)), (vec![pair("user", "ann")], Some(7))];
        assert_eq!(told, expected);
    }

    #[test]
    fn counts_tell_of_a_time_that_is_halved_with_them() {
        let start = Instant::now();
        let mut age = Age { before: Duration::ZERO, since: start };
        let minute = |number: u64| start + Duration::from_secs(60 * number);
        assert_eq!(age.window(minute(1)).as_secs(), 60);
        for number in 1..40 {
            age = age.halved(minute(number));
        }
        // A count of sixty per minute adds up to sixty, thirty, fifteen and so on, like the seconds.
        assert_eq!(age.window(minute(39)).as_millis().div_ceil(1_000), 60);
        assert_eq!(age.window(minute(40)).as_millis().div_ceil(1_000), 120);
    }
}
