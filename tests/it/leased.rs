//! A limit with leases keeps its number exactly, whatever instances do with them: they use them late, return them, lose
//! answers, and die.

use std::slice::from_ref;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tollgate::engine::algorithm::{Algorithm, Ask, Granted, LeaseAsk, Limit, Options, Returned};
use tollgate::engine::check::{Check, CheckVerdict, Key, Origin};

use crate::twins::{START, Twin};

/// An instance with a lease.
#[derive(Clone, Copy, Debug)]
struct Holding {
    granted: Granted,
    held: u32,
    /// When it may no longer use it.
    ends: u64,
}

#[derive(Clone, Debug)]
enum Step {
    /// Time passes.
    Wait(u64),
    /// Hits are taken from the store, without a lease.
    Take(u64),
    /// An instance asks for a lease: its question is under way for this long, and its answer is lost or not.
    Lease { instance: usize, hits: u64, want: u32, way_ms: u64, is_lost: bool },
    /// An instance uses hits of its lease.
    Use { instance: usize, hits: u32 },
    /// An instance returns its lease.
    Return { instance: usize },
    /// An instance dies.
    Die { instance: usize },
}

const INSTANCES: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = || 0..INSTANCES;
    let wait = prop_oneof![3 => 1..30_u64, 2 => 30..300_u64, 1 => 300..2_000_u64];
    let step = prop_oneof![
        6 => wait.prop_map(Step::Wait),
        4 => (1..4_u64).prop_map(Step::Take),
        4 => (one(), 0..3_u64, 1..40_u32, 0..60_u64, prop::bool::weighted(0.1))
            .prop_map(|(instance, hits, want, way_ms, is_lost)| Step::Lease { instance, hits, want, way_ms, is_lost }),
        8 => (one(), 1..20_u32).prop_map(|(instance, hits)| Step::Use { instance, hits }),
        1 => one().prop_map(|instance| Step::Return { instance }),
        1 => one().prop_map(|instance| Step::Die { instance }),
    ];
    prop::collection::vec(step, 1..120)
}

/// A limit that can have leases, of a second.
fn limit() -> impl Strategy<Value = Limit> {
    let algorithms: Vec<Algorithm> = Algorithm::ALL.iter().copied().filter(|one| !one.has_holders()).collect();
    (prop::sample::select(algorithms), 10..120_u32, 1..40_u32).prop_map(|(algorithm, number, burst)| {
        let burst = algorithm.options().contains(&"burst").then_some(burst + 8);
        let options = Options { burst, count_denied: Some(false), ..Options::default() };
        Limit::new(algorithm, number.into(), Duration::from_secs(1), options).unwrap()
    })
}

/// A mistake of an instance, which the properties must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// It goes on using a lease for a period after its end.
    UsesLate,
    /// It returns a lease as if it had used one hit less.
    TellsLess,
    /// It goes on using a lease that it has returned.
    KeepsReturned,
    /// It uses a lease twice.
    UsesTwice,
}

/// A limit, its instances, and what they have admitted.
struct Scene {
    mistake: Option<Mistake>,
    limit: Limit,
    key: Key,
    ttl_ms: u64,
    most: u32,
    store: Twin,
    now: u64,
    holdings: [Option<Holding>; INSTANCES],
    /// Times and hits.
    admitted: Vec<(u64, u64)>,
    /// Ends and hits of what nobody returned, which counts as used.
    lost: Vec<(u64, u64)>,
}

impl Scene {
    fn new(limit: Limit, ttl_ms: u64, most: u32) -> Scene {
        let key = Key::new("", "shop", &[], |_| None, &limit, Origin::Rule);
        let (holdings, admitted, lost) = ([None; INSTANCES], Vec::new(), Vec::new());
        Scene { mistake: None, limit, key, ttl_ms, most, store: Twin::default(), now: START, holdings, admitted, lost }
    }

    fn ask(&mut self, ask: Ask, leases: LeaseAsk) -> CheckVerdict {
        let check = Check::new(self.key.clone(), self.limit, ask).of_leases(leases);
        self.store.decide(from_ref(&check), self.now)[0].unwrap()
    }

    fn admit(&mut self, hits: u64) {
        if hits > 0 {
            self.admitted.push((self.now, hits));
        }
    }

    /// The lease of an instance that it returns.
    fn returned(&mut self, instance: usize) -> Option<Returned> {
        let Holding { granted, held, .. } = match self.mistake {
            Some(Mistake::KeepsReturned) => self.holdings[instance]?,
            _ => self.holdings[instance].take()?,
        };
        let told = u32::from(self.mistake == Some(Mistake::TellsLess));
        let used = granted.hits.saturating_sub(held).saturating_sub(told);
        Some(Returned { until_ms: granted.until_ms, hits: granted.hits, used })
    }

    fn lose(&mut self, granted: Granted) {
        if granted.hits > 0 {
            self.lost.push((granted.until_ms, granted.hits.into()));
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Wait(ms) => self.now += ms,
            Step::Take(hits) => {
                let told = self.ask(Ask::Take(hits), LeaseAsk::default());
                if told.allowed() {
                    self.admit(hits);
                } else {
                    self.was_needed(hits);
                }
            }
            Step::Lease { instance, hits, want, way_ms, is_lost } => {
                let (sent, returned) = (self.now, self.returned(instance));
                self.now += way_ms;
                let leases = LeaseAsk { returned, want, ttl_ms: self.ttl_ms, most: self.most };
                let told = self.ask(Ask::take(hits).unwrap(), leases);
                let granted = told.lease.unwrap();
                assert!(granted.out <= self.most, "{} are out, of {}", granted.out, self.most);
                self.note(returned);
                if is_lost {
                    // The hits that it took may have been for nobody.
                    self.lose(granted);
                    self.lost.extend(told.allowed().then_some((self.now, hits)));
                    return;
                }
                if told.allowed() {
                    self.admit(hits);
                }
                let lasts = self.ttl_ms.min(granted.until_ms.saturating_sub(self.now));
                let held = granted.hits * if self.mistake == Some(Mistake::UsesTwice) { 2 } else { 1 };
                let ends = sent + lasts + if self.mistake == Some(Mistake::UsesLate) { 1_000 } else { 0 };
                let holding = Holding { granted, held, ends };
                if granted.hits > 0 || self.mistake != Some(Mistake::KeepsReturned) {
                    self.holdings[instance] = (granted.hits > 0).then_some(holding);
                }
            }
            Step::Use { instance, hits } => {
                if let Some(holding) = self.holdings[instance].as_mut().filter(|holding| self.now < holding.ends) {
                    let hits = hits.min(holding.held);
                    holding.held -= hits;
                    self.admit(hits.into());
                }
            }
            Step::Return { instance } => {
                let returned = self.returned(instance);
                self.ask(Ask::Peek, LeaseAsk { returned, ..LeaseAsk::default() });
                self.note(returned);
            }
            Step::Die { instance } => {
                if let Some(holding) = self.holdings[instance].take() {
                    self.lose(holding.granted);
                }
            }
        }
    }

    /// A lease that is returned too late counts as used.
    fn note(&mut self, returned: Option<Returned>) {
        if let Some(Returned { until_ms, hits, .. }) = returned.filter(|lease| lease.until_ms <= self.now) {
            self.lost.push((until_ms, hits.into()));
        }
    }

    /// A request was denied: all of the number was used, or out.
    fn was_needed(&self, hits: u64) {
        let (number, capacity) = (self.limit.number(), self.limit.capacity());
        // A tenth of a period more, for segments. A bucket is full again after its own time.
        let remembered =
            if self.limit.algorithm().options().contains(&"burst") { capacity * 1_000 / number + 1 } else { 1_100 };
        // A used hit is charged when its lease is returned, or ends.
        let remembered = remembered + 2 * self.ttl_ms + 2;
        let recent = |(at, hits): &(u64, u64)| if at + remembered >= self.now { *hits } else { 0 };
        let used: u64 = self.admitted.iter().chain(&self.lost).map(recent).sum();
        let out: u64 = self.holdings.iter().flatten().map(|holding| u64::from(holding.held)).sum();
        // Of a bucket that leases clamp there is one less.
        assert!(used + out + hits + 1 > capacity, "{hits} denied at {}: {used} used, {out} out", self.now);
    }

    /// Whether no interval admits more than the limit promises.
    fn is_kept(&self) -> Result<(), String> {
        let (number, period) = (self.limit.number(), 1_000);
        let in_period = |from: u64| -> u64 {
            self.admitted.iter().filter(|(at, _)| (from..from + period).contains(at)).map(|(_, hits)| hits).sum()
        };
        match self.limit.algorithm() {
            Algorithm::SlidingWindow | Algorithm::SlidingLog => {
                for (from, _) in &self.admitted {
                    if in_period(*from) > number {
                        return Err(format!("{} from {from}, of {number}", in_period(*from)));
                    }
                }
            }
            Algorithm::FixedWindow => {
                for (from, _) in &self.admitted {
                    let from = from - from % period;
                    if in_period(from) > number {
                        return Err(format!("{} from {from}, of {number}", in_period(from)));
                    }
                }
            }
            _ => {
                let burst = self.limit.capacity();
                for (place, (from, _)) in self.admitted.iter().enumerate() {
                    let mut sum = 0;
                    for (at, hits) in &self.admitted[place..] {
                        sum += hits;
                        let most = burst * period + number * (at - from);
                        if sum * period > most {
                            return Err(format!("{sum} from {from} to {at}, of {number} and {burst} at once"));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn leases_admit_no_hit_more_and_deny_none_but_for_what_is_out(
        limit in limit(),
        ttl_ms in prop_oneof![1..50_u64, 50..1_000_u64],
        most in 1..40_u32,
        steps in steps(),
    ) {
        let mut scene = Scene::new(limit, ttl_ms, most);
        for step in steps {
            scene.take(step);
        }
        prop_assert_eq!(scene.is_kept(), Ok(()));
    }
}

#[test]
fn each_mistake_of_an_instance_is_found() {
    let drawn = || (limit(), prop_oneof![1..50_u64, 50..1_000_u64], 1..40_u32, steps());
    for mistake in [Mistake::UsesLate, Mistake::TellsLess, Mistake::KeepsReturned, Mistake::UsesTwice] {
        let mut runner =
            TestRunner::new(ProptestConfig { cases: 20_000, failure_persistence: None, ..Default::default() });
        let kept = runner.run(&drawn(), |(limit, ttl_ms, most, steps)| {
            let mut scene = Scene { mistake: Some(mistake), ..Scene::new(limit, ttl_ms, most) };
            steps.into_iter().for_each(|step| scene.take(step));
            prop_assert_eq!(scene.is_kept(), Ok(()));
            Ok(())
        });
        assert!(kept.is_err(), "{mistake:?} is not found");
    }
}
