//! Usage of limits with leases: what a lease was used for is recorded when it is returned, once, or never if the return
//! is lost.

use std::borrow::Borrow;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support;
use futures_util::future::join_all;
use parking_lot::Mutex;
use proptest::prelude::*;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::wait_until_async;
use tokio::time::Instant;
use tollgate::engine::algorithm::lease_terms::Lease;
use tollgate::engine::algorithm::{Algorithm, Ask, Limit, Options};
use tollgate::engine::check::{Check, Key, Occasion, Origin, Recorded, StoreError, Verdicts};
use tollgate::engine::clock::Clock;
use tollgate::engine::usage::page::Scope;
use tollgate::engine::usage::{Period, Time, Totals, Usage};
use tollgate::store::Store;
use tollgate::store::lease::{LeaseEvent, Leases};
use tollgate::store::memory::{MemoryPages, MemoryStore};
use tollgate::wire::rate_limit_response::Code;

use super::writing::{recorded, totals};

/// The clock of the store: that of the test.
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> u64 {
        1_784_000_000_000 + u64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

/// The way of one instance to the store, which loses questions and answers. Of an instance that was killed, nothing
/// arrives.
struct Way {
    store: Arc<MemoryStore<Paused>>,
    rng: Arc<Mutex<fastrand::Rng>>,
    /// In 256ths of all calls.
    lost: u8,
    is_dead: Arc<AtomicBool>,
}

impl Way {
    fn loses(&self) -> bool {
        self.rng.lock().u8(..) < self.lost || self.is_dead.load(Ordering::Relaxed)
    }
}

impl Store for Way {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let way_ms = self.rng.lock().u64(0..20);
        tokio::time::sleep(Duration::from_millis(way_ms)).await;
        if self.loses() {
            return Err(StoreError::Timeout);
        }
        let verdicts = self.store.check(checks, deadline).await;
        if self.loses() { Err(StoreError::Timeout) } else { verdicts }
    }
}

/// An instance, and the used hits of leases whose return the store did not confirm to it.
struct Instance {
    leases: Leases<Way>,
    is_dead: Arc<AtomicBool>,
    unconfirmed: Arc<AtomicU64>,
    largest_unconfirmed: Arc<AtomicU64>,
}

impl Instance {
    fn new(store: &Arc<MemoryStore<Paused>>, rng: &Arc<Mutex<fastrand::Rng>>, lost: u8) -> Instance {
        let is_dead = Arc::<AtomicBool>::default();
        let way = Way { store: Arc::clone(store), rng: Arc::clone(rng), lost, is_dead: Arc::clone(&is_dead) };
        let [unconfirmed, largest_unconfirmed] = [(); 2].map(|()| Arc::<AtomicU64>::default());
        let counters = [&unconfirmed, &largest_unconfirmed].map(Arc::clone);
        let on_event = Box::new(move |event| {
            if let LeaseEvent::Unconfirmed(hits) = event {
                counters[0].fetch_add(hits.into(), Ordering::Relaxed);
                counters[1].fetch_max(hits.into(), Ordering::Relaxed);
            }
        });
        let leases = Leases::around(vec![way], 1_000, on_event).pop().unwrap();
        Instance { leases, is_dead, unconfirmed, largest_unconfirmed }
    }
}

fn usage(period: Period) -> Option<Recorded> {
    let usage = Usage::new(period, Duration::from_secs(40 * 86_400)).unwrap();
    Some(Recorded { usage, tag: None, occasion: Occasion::Decided })
}

fn check_of(limit: Limit, unused: u16, ttl_ms: u64, recorded: Option<Recorded>) -> Check {
    let lease = Lease::new(unused, Some(Duration::from_millis(ttl_ms)), &limit).unwrap();
    let key = Key::new("", "shop", &[], |_| None, &limit, Origin::Rule);
    Check { lease: Some(lease), recorded, ..Check::new(key, limit, Ask::Take(1)) }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

/// Returns the sum of all records of pages whose name contains this.
fn sum(store: &MemoryStore<Paused>, name: &str) -> Totals {
    let everything = Scope { domain: None, from: Time(0), to: Time::END };
    let (pages, next) = store.pages(&everything, 0, usize::MAX);
    assert_eq!(next, None);
    let pages = pages.iter().filter(|page| page.name.contains(name));
    pages.flat_map(|page| &page.records).fold(Totals::default(), |sum, (_, record)| sum.plus(*record))
}

fn store() -> Arc<MemoryStore<Paused>> {
    Arc::new(MemoryStore::new(Paused(Instant::now()), usize::MAX).keeping_usage())
}

/// What callers were told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    admitted: i64,
    hits: i64,
    denied: u64,
    /// Requests and hits of calls that failed: they may have passed.
    failed: i64,
    failed_hits: i64,
}

impl Told {
    /// Sends these requests at once, and adds what they are told.
    async fn ask(&mut self, leases: &Leases<Way>, check: &Check, requests: &[u64]) {
        let checks: Vec<Check> = requests.iter().map(|hits| Check { ask: Ask::Take(*hits), ..check.clone() }).collect();
        let told = join_all(checks.iter().map(|check| leases.check(from_ref(check), soon()))).await;
        for (hits, told) in requests.iter().map(|hits| i64::try_from(*hits).unwrap()).zip(told) {
            match told.map(|verdicts| verdicts[0].unwrap().allowed()) {
                Ok(true) => (self.admitted, self.hits) = (self.admitted + 1, self.hits + hits),
                Ok(false) => self.denied += 1,
                Err(_) => (self.failed, self.failed_hits) = (self.failed + 1, self.failed_hits + hits),
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    /// Requests of these hits come together.
    Ask(usize, Vec<u64>),
    /// An instance dies, and another one takes its place.
    Kill(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let asks =
        (0..2_usize, prop::collection::vec(1..4_u64, 1..8)).prop_map(|(instance, hits)| Step::Ask(instance, hits));
    let step = prop_oneof![
        4 => (0..400_u64).prop_map(Step::Wait),
        8 => asks,
        1 => (0..2_usize).prop_map(Step::Kill),
    ];
    prop::collection::vec(step, 1..60)
}

fn limit() -> impl Strategy<Value = Limit> {
    let algorithms: Vec<Algorithm> = Algorithm::ALL.iter().copied().filter(|one| !one.has_holders()).collect();
    (prop::sample::select(algorithms), 20..200_u32).prop_map(|(algorithm, number)| {
        let burst = algorithm.options().contains(&"burst").then_some(number);
        let options = Options { burst, count_denied: Some(false), ..Options::default() };
        Limit::new(algorithm, number.into(), Duration::from_secs(1), options).unwrap()
    })
}

/// Runs a test on a clock of its own.
fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Without faults, records are what callers were told. Whatever breaks, no hit is recorded twice, and no more is
    /// missing than the hits of leases whose return was not confirmed.
    #[test]
    fn what_leases_were_used_for_is_recorded_once(
        limit in limit(), ttl_ms in 1..1_000_u64, lost in prop_oneof![Just(0), Just(0), 1..80_u8], seed in any::<u64>(),
        steps in steps(),
    ) {
        run(async {
            let (store, rng) = (store(), Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))));
            let check = check_of(limit, 3_000, ttl_ms, usage(Period::Hour));
            let new = || Instance::new(&store, &rng, lost);
            let (mut living, mut dead) = ([new(), new()], Vec::new());
            let mut told = Told::default();
            for step in &steps {
                match step {
                    Step::Wait(ms) => tokio::time::sleep(Duration::from_millis(*ms)).await,
                    Step::Ask(instance, hits) => told.ask(&living[*instance].leases, &check, hits).await,
                    Step::Kill(instance) => {
                        living[*instance].is_dead.store(true, Ordering::Relaxed);
                        dead.push(std::mem::replace(&mut living[*instance], new()));
                    }
                }
            }
            for instance in &living {
                instance.leases.close(soon()).await;
            }
            // By then the dead ones, too, have tried to return what they had.
            tokio::time::sleep(Duration::from_secs(10)).await;
            let recorded = sum(&store, "");
            if lost == 0 && dead.is_empty() {
                prop_assert_eq!(told.failed, 0);
                prop_assert_eq!(recorded, totals(told.admitted, told.denied, told.hits));
                return Ok(());
            }
            let all = || living.iter().chain(&dead);
            let most = check.lease.unwrap().most().into();
            for instance in all() {
                prop_assert!(instance.largest_unconfirmed.load(Ordering::Relaxed) <= most);
            }
            let unconfirmed: u64 = all().map(|instance| instance.unconfirmed.load(Ordering::Relaxed)).sum();
            let unconfirmed = i64::try_from(unconfirmed).unwrap();
            let least = told.hits - unconfirmed;
            let range = least..=told.hits + told.failed_hits;
            prop_assert!(range.contains(&recorded.cost), "{:?} recorded, {:?} told, {:?}", recorded, told, range);
            let most_admitted = told.admitted + told.failed;
            prop_assert!(recorded.admitted <= most_admitted, "{:?} recorded, {:?} told", recorded, told);
            Ok(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_used_up_is_recorded_at_its_end_although_no_request_follows() {
    let limit = Limit::new(Algorithm::SlidingWindow, 1_000, Duration::from_secs(60), Options::default()).unwrap();
    for requests in 1..40 {
        let store = store();
        let instance = Instance::new(&store, &Arc::default(), 0);
        let check = check_of(limit, 1_000, 2_000, usage(Period::Hour));
        let mut told = Told::default();
        for _ in 0..requests {
            told.ask(&instance.leases, &check, &[1]).await;
        }
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        assert_eq!(sum(&store, ""), totals(requests, 0, requests), "after {requests} requests");
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_rule_records_what_was_used_before_as_it_was_said_before() {
    let limit = Limit::new(Algorithm::SlidingWindow, 1_000, Duration::from_secs(60), Options::default()).unwrap();
    let store = store();
    let instance = Instance::new(&store, &Arc::default(), 0);
    let mut told = Told::default();
    for (place, recorded) in
        [usage(Period::Hour), usage(Period::Day), None, usage(Period::Minute)].into_iter().enumerate()
    {
        let check = check_of(limit, 1_000, 2_000, recorded);
        for _ in 0..50 + place {
            told.ask(&instance.leases, &check, &[1]).await;
        }
    }
    instance.leases.close(soon()).await;
    assert_eq!((told.admitted, told.denied), (50 + 51 + 52 + 53, 0));
    for (period, requests) in [(Period::Hour, 50), (Period::Day, 51), (Period::Minute, 53)] {
        let page = format!("|u1:{}:", period.ms());
        assert_eq!(sum(&store, &page), totals(requests, 0, requests), "by the {period}");
    }
}

/// A limit that is far from reached.
const RULES: &str = "
domain: shop
descriptors:
  - key: api
    rate_limit:
      {unit: year, requests_per_unit: 100000, lease: {unused: 0.1%, ttl: 2s}, usage: {by: day, keep: 400d}}
";

async fn passed(tollgate: &Tollgate, requests: usize) -> usize {
    let client = tollgate.client().await;
    let clients = (0..20).map(|_| {
        let (mut client, request) = (client.clone(), request("shop", &[&[("api", "x")]]));
        async move {
            let mut passed = 0;
            for _ in 0..requests / 20 {
                let answer = client.should_rate_limit(request.clone()).await.unwrap().into_inner();
                passed += usize::from(answer.overall_code() == Code::Ok);
            }
            passed
        }
    });
    join_all(clients).await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_instances_lease_is_billed_to_the_hit_and_a_killed_one_takes_no_more_than_its_lease() {
    let redis = Redis::start();
    let start = || Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url()), "REDIS_TIMEOUT=20s"]);
    let mut services = [start(), start()];
    let before = redis.script_calls();
    let [one, other] = &services;
    let (one, other) = tokio::join!(passed(one, 2_000), passed(other, 2_000));
    assert_eq!(one + other, 4_000);
    let asked = redis.script_calls() - before;
    assert!(asked <= 4_000 / 20, "{asked} calls for 4,000 decisions");
    for service in &services {
        assert!(service.metric("tollgate_lease_decisions_total") > 1_000.0);
    }
    // What an idle instance has used is recorded when its lease ends.
    wait_until_async("all is recorded", async || recorded(&redis, "{shop|api=x}").await == totals(4_000, 0, 4_000))
        .await;
    services[0].signal("TERM");
    assert!(services[0].wait().success());
    assert_eq!(recorded(&redis, "{shop|api=x}").await, totals(4_000, 0, 4_000));

    assert_eq!(passed(&services[1], 1_000).await, 1_000);
    services[1].signal("KILL");
    services[1].wait();
    let billed = recorded(&redis, "{shop|api=x}").await;
    assert!((5_000 - 50..=5_000).contains(&billed.cost), "{billed:?}: a lease has at most half of 100 hits");
    assert_eq!(billed.admitted, billed.cost);
}
