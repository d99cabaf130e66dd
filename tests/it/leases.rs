//! Leases: they reduce calls to Redis within the documented bounds on admitted requests, and metrics report them.

use crate::support;

use std::borrow::Borrow;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all};
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::wait_until_async;
use tokio::time::Instant;
use tollgate::engine::algorithm::lease_terms::{Account, Lease, LeaseError};
use tollgate::engine::algorithm::{Algorithm, Ask, Granted, LeaseAsk, Limit, MAX_PERIOD, Options, Verdict};
use tollgate::engine::check::{Check, Key, Origin, StoreError, Verdicts};
use tollgate::engine::clock::Clock;
use tollgate::store::Store;
use tollgate::store::denied::{Denials, DeniedCache};
use tollgate::store::lease::{LeaseEvent, Leases};
use tollgate::store::memory::MemoryStore;
use tollgate::store::redis::RedisStore;
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};
use tollgate::wire::rate_limit_response::Code;

fn sliding_log(number: u32, period_ms: u64) -> Limit {
    Limit::new(Algorithm::SlidingLog, number.into(), Duration::from_millis(period_ms), Options::default()).unwrap()
}

/// Returns leases of which so many hits may be out.
fn lease(most: u32, ttl_ms: u64, limit: &Limit) -> Lease {
    let unused = u64::from(most) * 10_000 / limit.capacity();
    Lease::new(u16::try_from(unused).unwrap(), Some(Duration::from_millis(ttl_ms)), limit).unwrap()
}

#[test]
fn a_lease_is_as_large_as_the_demand_and_near_the_limit_there_is_none() {
    let limit = sliding_log(1_000, 60_000);
    let asks = |remaining, demand| {
        let mut account = Account::new(limit, lease(100, 100, &limit), Duration::ZERO);
        let told = Verdict { allowed: true, remaining, reset_after_ms: 1, retry_after_ms: Some(0), ..Verdict::NOTHING };
        account.question(demand, Duration::ZERO);
        account.note(&limit, told, Duration::ZERO);
        let question = account.question(1, Duration::ZERO);
        (question.take, question.ask.want)
    };
    assert_eq!([1_000, 8, 7, 1, 0].map(|remaining| asks(remaining, 9)), [(1, 20), (1, 20), (0, 0), (0, 0), (0, 0)]);
    assert_eq!([0, 1, 5, 24].map(|demand| asks(1_000, demand).1), [2, 4, 12, 50], "as much as is asked for, twice");
}

#[test]
fn a_clock_that_reads_a_little_less_than_before_breaks_nothing() {
    let limit = sliding_log(1_000, 60_000);
    let at = Duration::from_millis(500);
    let mut account = Account::new(limit, lease(100, 10_000, &limit), at);
    let told =
        Verdict { allowed: true, remaining: 900, reset_after_ms: 60_000, retry_after_ms: Some(0), ..Verdict::NOTHING };
    account.note(&limit, told, at);
    let question = account.question(1, at);
    let granted = Granted { hits: 5, until_ms: 20_000, out: 5 };
    assert!(account.answered(&question, (told, granted, 0), at).is_some());
    let verdict = account.spend(1, at - Duration::from_millis(1)).unwrap();
    assert_eq!((verdict.remaining, verdict.reset_after_ms), (899, 60_000));
}

#[test]
fn what_cannot_be_leased_is_refused() {
    let limit = |algorithm, count_denied| {
        Limit::new(algorithm, 5, Duration::from_secs(1), Options { count_denied, ..Options::default() }).unwrap()
    };
    let new = |percent: u16, ttl_ms: u64, limit: Limit| {
        Lease::new(percent * 100, Some(Duration::from_millis(ttl_ms)), &limit)
    };
    let error = |percent, ttl_ms, limit| new(percent, ttl_ms, limit).err();
    let window = limit(Algorithm::SlidingWindow, None);
    assert_eq!([error(20, 1, window), error(50, 1_000, window)], [None, None]);
    assert_eq!([new(20, 1, window), new(50, 1, window)].map(|lease| lease.unwrap().most()), [1, 2]);
    assert_eq!(error(19, 100, window), Some(LeaseError::None(5)));
    assert_eq!(error(51, 100, window), Some(LeaseError::Part));
    assert_eq!([error(50, 0, window), error(50, 30_001, window)], [Some(LeaseError::Ttl); 2]);
    assert_eq!(error(50, 1_001, window), Some(LeaseError::Period(Duration::from_secs(1))));
    assert_eq!(error(50, 100, limit(Algorithm::FixedWindow, None)), Some(LeaseError::CountDenied));
    assert_eq!(error(50, 100, limit(Algorithm::FixedWindow, Some(false))), None);
    assert_eq!(error(50, 100, limit(Algorithm::Concurrency, None)), Some(LeaseError::Holders));
    let ttl = |limit: &Limit| Lease::new(5_000, None, limit).unwrap().ttl();
    assert_eq!(
        [ttl(&window), ttl(&sliding_log(5, 3)), ttl(&sliding_log(5, 86_400_000))].map(|ttl| ttl.as_millis()),
        [500, 1, 30_000],
        "half of the period"
    );
}

/// A store that counts calls and can fail.
struct Watched<S> {
    store: Arc<S>,
    asked: Arc<AtomicU64>,
    fails: Arc<AtomicU64>,
}

impl<S: Store> Store for Watched<S> {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        // Lets other tasks run during the call.
        tokio::task::yield_now().await;
        match self.fails.load(Ordering::Relaxed) {
            0 => self.store.check(checks, deadline).await,
            _ => Err(StoreError::Down("a test".into())),
        }
    }
}

/// One instance and its store.
struct Desk {
    leases: Leases<Watched<MemoryStore>>,
    memory: Arc<MemoryStore>,
    asked: Arc<AtomicU64>,
    fails: Arc<AtomicU64>,
    decided: Arc<AtomicU64>,
    leased: Arc<AtomicU64>,
    unused: Arc<AtomicU64>,
}

impl Desk {
    fn new() -> Desk {
        let [asked, fails, decided] = [(); 3].map(|()| Arc::<AtomicU64>::default());
        let memory = Arc::<MemoryStore>::default();
        let store = Watched { store: Arc::clone(&memory), asked: Arc::clone(&asked), fails: Arc::clone(&fails) };
        let [leased, unused] = [(); 2].map(|()| Arc::<AtomicU64>::default());
        let counters = [&decided, &leased, &unused].map(Arc::clone);
        let on_event = Box::new(move |event| {
            let (counter, more) = match event {
                LeaseEvent::Decided => (0, 1),
                LeaseEvent::Leased(hits) => (1, hits.into()),
                LeaseEvent::Unused(hits) => (2, hits.into()),
                LeaseEvent::Unconfirmed(_) => return,
            };
            counters[counter].fetch_add(more, Ordering::Relaxed);
        });
        let leases = Leases::around(vec![store], 1_000, on_event).pop().unwrap();
        Desk { leases, memory, asked, fails, decided, leased, unused }
    }

    async fn ask(&self, check: &Check) -> Verdict {
        ask(&self.leases, check).await
    }

    /// Asks so often that a lease is held.
    async fn warm_up(&self, check: &Check) {
        let decided = || self.decided.load(Ordering::Relaxed);
        let before = decided();
        while decided() == before {
            assert!(self.ask(check).await.allowed);
        }
    }

    /// Returns the remaining hits in the store.
    fn remaining(&self, check: &Check) -> u64 {
        own(self.memory.decide(&[stored(0, check)])).remaining
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn leased(name: &str, number: u32) -> Check {
    let limit = Limit::new(Algorithm::SlidingWindow, number.into(), MAX_PERIOD, Options::default()).unwrap();
    let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
    Check { lease: Some(lease(100.min(number / 2), 10_000, &limit)), ..Check::new(key, limit, Ask::Take(1)) }
}

fn taking(hits: u64, check: &Check) -> Check {
    Check { ask: Ask::take(hits).unwrap(), ..check.clone() }
}

/// Returns the check as the store gets it from an instance that takes no lease.
fn stored(hits: u64, check: &Check) -> Check {
    taking(hits, check).of_leases(LeaseAsk::default())
}

async fn ask<S: Store>(store: &S, check: &Check) -> Verdict {
    own(store.check(from_ref(check), soon()).await)
}

/// Returns the verdict of the first check.
fn own(verdicts: Result<Verdicts, StoreError>) -> Verdict {
    verdicts.unwrap()[0].unwrap().own
}

fn soon() -> Instant {
    Instant::now() + support::SOON
}

#[tokio::test(start_paused = true)]
async fn a_lease_answers_what_the_store_would_have_answered() {
    let desk = Desk::new();
    let check = leased("ann", 1_000);
    let mut resets = Vec::new();
    for left in (0..1_000).rev() {
        let verdict = desk.ask(&check).await;
        assert_eq!((verdict.allowed, verdict.remaining, verdict.retry_after_ms), (true, left, Some(0)));
        resets.push(verdict.reset_after_ms);
    }
    assert!(!desk.ask(&check).await.allowed);
    assert!(resets.iter().all(|reset| resets[0] - reset < 60_000), "the window is a year");
    assert!(desk.asked() < 150, "{} of a thousand", desk.asked());
}

#[tokio::test(start_paused = true)]
async fn what_is_left_at_the_end_is_given_back_and_nothing_is_kept() {
    let desk = Desk::new();
    let check = leased("ann", 1_000);
    desk.warm_up(&check).await;
    let passed = 1_000 - desk.ask(&check).await.remaining;
    assert!(desk.remaining(&check) < 1_000 - passed, "more is charged than has passed");
    tokio::time::sleep(Duration::from_secs(21)).await;
    assert_eq!(desk.remaining(&check), 1_000 - passed);
    tokio::time::sleep(Duration::from_secs(11)).await;
    let asked = desk.asked();
    desk.ask(&check).await;
    assert_eq!((desk.asked(), desk.remaining(&check)), (asked + 1, 1_000 - passed - 1), "a counter as good as new");
}

#[tokio::test(start_paused = true)]
async fn every_leased_hit_is_used_or_told_as_unused() {
    let desk = Desk::new();
    let check = leased("ann", 1_000);
    for _ in 0..100 {
        assert!(desk.ask(&check).await.allowed);
    }
    tokio::time::sleep(Duration::from_secs(21)).await;
    assert_eq!(desk.remaining(&check), 900, "nothing is held any more");
    let told = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (leased, unused, decided) = (told(&desk.leased), told(&desk.unused), told(&desk.decided));
    assert!(unused > 0 && leased > unused, "{unused} of {leased}");
    assert_eq!(leased - unused, decided, "each request has one hit");
}

/// `tollgate check` advises by these numbers.
#[tokio::test(start_paused = true)]
async fn no_lease_is_larger_than_is_computed_and_some_are_as_large() {
    for (number, most, cost) in [(1_000, 100, 1), (1_000, 3, 1), (1_000, 25, 5), (100, 50, 1), (20, 10, 2), (8, 4, 1)] {
        let limit = sliding_log(number, 60_000);
        let check = Check {
            lease: Some(lease(most, 1_000, &limit)),
            ..Check::new(Key::new("", "ann", &[], |_| None, &limit, Origin::Rule), limit, Ask::Take(cost.into()))
        };
        let computed = check.lease.unwrap().largest(&limit, cost);
        let mut largest = 0;
        // Of some demands, the store decides how much there is.
        for requests in 1..70 {
            let desk = Desk::new();
            desk.ask(&check).await;
            desk.ask(&taking(requests * u64::from(cost), &check)).await;
            largest = largest.max(desk.leased.load(Ordering::Relaxed));
        }
        // The request that takes a lease comes after one that asked alone, so an eighth may be one less.
        let reached = u64::from(computed).saturating_sub(1)..=computed.into();
        assert!(reached.contains(&largest), "{number}, {most} out, {cost} each: {largest}, computed {computed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_rule_ends_a_lease_at_once() {
    let desk = Desk::new();
    let check = leased("ann", 1_000);
    desk.warm_up(&check).await;
    let passed = 1_000 - desk.ask(&check).await.remaining;
    let number = Check { lease: leased("", 100).lease, limit: leased("", 100).limit, ..check.clone() };
    assert_eq!(desk.ask(&number).await.remaining, 100 - passed - 1);
    let ttl = Check { lease: Some(lease(100, 100, &check.limit)), ..check.clone() };
    desk.ask(&ttl).await;
    assert_eq!(desk.remaining(&check), 1_000 - passed - 2, "nothing is held by the terms that were");
    // The same check without a lease asks the store; leased hits are refunded when the lease ends.
    let without = Check { lease: None, ..check.clone() };
    desk.warm_up(&check).await;
    let asked = desk.asked();
    desk.ask(&without).await;
    assert_eq!(desk.asked(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn a_reset_finds_nothing_held_and_leaves_nothing_behind() {
    let desk = Desk::new();
    let check = leased("ann", 1_000);
    desk.warm_up(&check).await;
    let reset = Check { ask: Ask::Reset, ..check.clone() };
    assert_eq!(desk.ask(&reset).await.remaining, 1_000);
    assert_eq!(desk.ask(&check).await.remaining, 999);
    tokio::time::sleep(Duration::from_secs(21)).await;
    assert_eq!(desk.remaining(&check), 999, "nothing is refunded twice");

    desk.warm_up(&check).await;
    let passed = 1_000 - desk.ask(&check).await.remaining;
    let refund = Check { ask: Ask::Refund(3), ..check.clone() };
    // Beside another, in one request.
    let both = [refund, leased("bob", 5)];
    assert_eq!(own(desk.leases.check(&both, soon()).await).remaining, 1_000 - passed + 3);
}

#[tokio::test(start_paused = true)]
async fn a_known_denial_ends_with_the_lease_that_it_is_for() {
    let memory = Arc::<MemoryStore>::default();
    let store = Watched { store: Arc::clone(&memory), asked: Arc::default(), fails: Arc::default() };
    let denials = Arc::new(Denials::new(1 << 20, Box::new(|| {})));
    let store = DeniedCache::new(store, denials);
    let leases = Leases::around(vec![store], 1_000, Box::new(|_| {})).pop().unwrap();
    let (ann, bob) = (leased("ann", 1_000), leased("bob", 1_000));
    for _ in 0..10 {
        ask(&leases, &ann).await;
    }
    let left = own(memory.decide(&[stored(0, &ann)])).remaining;
    assert!(left < 990 && own(memory.decide(&[stored(left, &ann)])).allowed, "the rest is taken by others");
    // A request with several limits does not use the lease.
    let both = [ann.clone(), bob];
    assert!(!own(leases.check(&both, soon()).await).allowed);
    tokio::time::sleep(Duration::from_secs(21)).await;
    assert!(ask(&leases, &ann).await.allowed, "what was held has been refunded");
}

#[tokio::test(start_paused = true)]
async fn requests_of_several_limits_and_peeks_ask_the_store() {
    let desk = Desk::new();
    let (ann, bob) = (leased("ann", 1_000), leased("bob", 2));
    desk.warm_up(&ann).await;
    let (asked, left) = (desk.asked(), desk.remaining(&ann));
    for passes in [true, true, false] {
        let verdicts = desk.leases.check(&[ann.clone(), bob.clone()], soon()).await.unwrap();
        assert_eq!(verdicts.iter().flatten().all(|verdict| verdict.allowed()), passes);
    }
    assert_eq!(desk.ask(&taking(0, &ann)).await.remaining, left - 2);
    assert_eq!(desk.asked(), asked + 4);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_fails_the_requests_that_need_it() {
    let desk = Desk::new();
    let check = leased("ann", 1_000);
    desk.warm_up(&check).await;
    desk.fails.store(1, Ordering::Relaxed);
    let all = vec![check.clone(); 200];
    let told = join_all(all.iter().map(|check| desk.leases.check(from_ref(check), soon()))).await;
    let (passed, failed): (Vec<_>, Vec<_>) = told.into_iter().partition(Result::is_ok);
    assert!((1..=50).contains(&passed.len()), "{} by the lease", passed.len());
    assert!(failed.iter().all(|told| matches!(told, Err(StoreError::Down(_)))));
    desk.fails.store(0, Ordering::Relaxed);
    assert!(desk.ask(&check).await.allowed);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_keeps_no_other_waiting() {
    let desk = Arc::new(Desk::new());
    let check = leased("ann", 1_000);
    desk.ask(&check).await;
    // This request asks for a lease and is cancelled before it arrives.
    assert!(desk.leases.check(from_ref(&check), soon()).now_or_never().is_none());
    assert_eq!(desk.ask(&check).await.remaining, 997, "the one that has gone is charged, as any would be");
}

#[tokio::test(start_paused = true)]
async fn after_the_end_nothing_is_held_and_nothing_is_taken() {
    let desk = Desk::new();
    let (ann, bob) = (leased("ann", 1_000), leased("bob", 1_000));
    for check in [&ann, &bob] {
        for _ in 0..20 {
            desk.ask(check).await;
        }
    }
    // Some are still on their way.
    let late = vec![ann.clone(); 100];
    let late = join_all(late.iter().map(|check| desk.leases.check(from_ref(check), soon())));
    let (late, ()) = tokio::join!(late, desk.leases.close(soon()));
    assert!(late.iter().all(Result::is_ok));
    assert_eq!([desk.remaining(&ann), desk.remaining(&bob)], [1_000 - 120, 1_000 - 20]);
    for left in (0..100).rev() {
        desk.ask(&ann).await;
        assert_eq!(desk.remaining(&ann), 1_000 - 120 - 100 + left);
    }
}

async fn redis_leases(redis: &Redis, workers: usize) -> Vec<Leases<RedisStore>> {
    let config = RedisConfig {
        address: redis.url().parse().unwrap(),
        connections: 2,
        timeout: support::SOON,
        queue: 100_000,
        key_prefix: String::new(),
        per_second: None,
        on_call: OnCall::default(),
    };
    let mut stores = Vec::new();
    for _ in 0..workers {
        stores.push(RedisStore::start(config.clone(), Box::new(|_| {})).await.unwrap());
    }
    Leases::around(stores, 100_000, Box::new(|_| {}))
}

/// Sends requests from many tasks at once, and returns the number that passed.
async fn crowd<S: Store>(workers: &Arc<Vec<S>>, check: &Check, tasks: usize, each: usize) -> usize {
    let tasks = (0..tasks).map(|i| {
        let (workers, check) = (Arc::clone(workers), check.clone());
        tokio::spawn(async move {
            let mut passed = 0;
            for _ in 0..each {
                passed += usize::from(ask(&workers[i % workers.len()], &check).await.allowed);
            }
            passed
        })
    });
    join_all(tasks).await.into_iter().map(Result::unwrap).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_workers_of_a_process_use_one_lease_and_redis_is_asked_seldom() {
    let redis = Redis::start();
    let workers = Arc::new(redis_leases(&redis, 3).await);
    let check = leased("ann", 100_000);
    let before = redis.script_calls();
    assert_eq!(crowd(&workers, &check, 32, 625).await, 20_000);
    let asked = redis.script_calls() - before;
    assert!(asked <= 1_000, "{asked} calls for 20,000 decisions");
    workers[0].close(soon()).await;
    assert_eq!(ask(&workers[1], &taking(0, &check)).await.remaining, 80_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_the_limit_passes_through_processes_that_lease_from_one_counter() {
    let redis = Redis::start();
    for algorithm in Algorithm::ALL.iter().filter(|algorithm| !algorithm.has_holders()) {
        // For algorithms with a burst, one of 1,000.
        let burst = algorithm.options().contains(&"burst").then_some(1_000);
        let options = Options { count_denied: Some(false), burst, ..Options::default() };
        let limit = Limit::new(*algorithm, 1_000, MAX_PERIOD, options).unwrap();
        let check = Check {
            key: Key::new("", algorithm.name(), &[], |_| None, &limit, Origin::Rule),
            limit,
            ..leased("", 1_000)
        };
        let processes = [Arc::new(redis_leases(&redis, 2).await), Arc::new(redis_leases(&redis, 2).await)];
        let [first, second] = &processes;
        let (first, second) = tokio::join!(crowd(first, &check, 16, 100), crowd(second, &check, 16, 100));
        let passed = first + second;
        for process in &processes {
            process[0].close(soon()).await;
        }
        let left = ask(&processes[0][0], &taking(0, &check)).await.remaining;
        assert_eq!(passed + left as usize, 1_000, "{algorithm}: what has passed and what is left make the limit");
        assert_eq!(crowd(&processes[1], &check, 4, 25).await, left.min(100) as usize);
    }
}

/// A limit that is far from reached, one that is reached, and one that fails closed.
const RULES: &str = "
domain: shop
descriptors:
  - {key: hot, rate_limit: {unit: year, requests_per_unit: 100000, lease: {unused: 0.1%, ttl: 10s}}}
  - {key: near, rate_limit: {unit: year, requests_per_unit: 1000, lease: {unused: 10%, ttl: 10s}}}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 100000, failure_mode: closed, lease: {unused: 0.1%, ttl: 10s}}
  - {key: brief, rate_limit: {unit: year, requests_per_unit: 1000, lease: {unused: 10%, ttl: 2s}}}
";

fn start(redis: &Redis, settings: &[&str]) -> Tollgate {
    Tollgate::start(RULES, &[&[&*format!("REDIS_URL={}", redis.url()), "REDIS_TIMEOUT=20s"], settings].concat())
}

/// Sends requests from 20 clients at once, and returns the number that passed.
async fn passed(tollgate: &Tollgate, key: &str, requests: usize) -> usize {
    passed_of(tollgate, (key, "x"), requests).await
}

async fn passed_of(tollgate: &Tollgate, entry: (&str, &str), requests: usize) -> usize {
    let client = tollgate.client().await;
    let clients = (0..20).map(|_| {
        let (mut client, request) = (client.clone(), request("shop", &[&[entry]]));
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

/// Returns the remaining hits in Redis.
async fn remaining(tollgate: &Tollgate, key: &str) -> usize {
    remaining_of(tollgate, (key, "x")).await
}

async fn remaining_of(tollgate: &Tollgate, entry: (&str, &str)) -> usize {
    let mut peek = request("shop", &[&[entry]]);
    peek.descriptors[0].hits_addend = Some(0);
    tollgate.ask(peek).await.unwrap().statuses[0].limit_remaining as usize
}

#[tokio::test]
async fn two_processes_ask_redis_a_twentieth_as_often_and_refund_what_they_have_not_used() {
    let redis = Redis::start();
    let mut services = [start(&redis, &[]), start(&redis, &[])];
    let observer = start(&redis, &[]);
    let before = redis.script_calls();
    let [first, second] = &services;
    let (first, second) = tokio::join!(passed(first, "hot", 4_000), passed(second, "hot", 4_000));
    let asked = redis.script_calls() - before;
    assert_eq!(first + second, 8_000);
    assert!(asked <= 8_000 / 20, "{asked} calls for 8,000 decisions");
    let decided = services.each_ref().map(|service| service.metric("tollgate_lease_decisions_total"));
    assert!(decided.iter().sum::<f64>() > 5_000.0, "{decided:?} by leases");
    // What an operator computes: the store decides what leases do not, and is asked seldom.
    let all = services.each_ref().map(|service| service.metric("tollgate_decisions_total"));
    assert_eq!(all, [4_000.0; 2]);
    let questions = services.each_ref().map(|service| service.metric("tollgate_store_seconds_count"));
    let per_decision = questions.iter().sum::<f64>() / all.iter().sum::<f64>();
    assert!((0.0001..0.05).contains(&per_decision), "{per_decision} questions per decision");

    let [first, second] = &services;
    let (first, second) = tokio::join!(passed(first, "near", 1_500), passed(second, "near", 1_500));
    assert!((900..=1_000).contains(&(first + second)), "{first} and {second} of 1,000");

    for service in &mut services {
        service.signal("TERM");
        assert!(service.wait().success());
    }
    assert_eq!(remaining(&observer, "hot").await, 100_000 - 8_000);
    assert_eq!(remaining(&observer, "near").await, 1_000 - first - second);
}

#[tokio::test]
async fn a_killed_process_leaves_no_more_than_a_lease_behind() {
    let redis = Redis::start();
    let mut service = start(&redis, &[]);
    let observer = start(&redis, &[]);
    let passed = passed(&service, "hot", 2_000).await;
    service.signal("KILL");
    service.wait();
    let charged = 100_000 - remaining(&observer, "hot").await;
    assert!((passed..=passed + 50).contains(&charged), "{charged} are charged of {passed} that have passed");
}

#[tokio::test]
async fn a_lease_that_nobody_uses_is_given_back_by_itself() {
    let redis = Redis::start();
    let service = start(&redis, &[]);
    // A lease that a busy machine returns too late counts as used, as it says.
    let mut attempts = 0;
    wait_until_async("what is left is refunded", async || {
        attempts += 1;
        let value = attempts.to_string();
        let passed = passed_of(&service, ("brief", &value), 500).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        remaining_of(&service, ("brief", &value)).await == 1_000 - passed
    })
    .await;
}

#[tokio::test]
async fn while_redis_is_away_a_lease_goes_on_and_then_failure_modes_answer() {
    let redis = Redis::start();
    let service = start(&redis, &["REDIS_TIMEOUT=300ms"]);
    assert_eq!(passed(&service, "closed", 500).await, 500);
    redis.freeze();
    let answered = passed(&service, "closed", 500).await;
    assert!(answered <= 50, "{answered} by a lease of half of 100");
    redis.thaw();
    wait_until_async("the limit is decided again", async || passed(&service, "closed", 20).await == 20).await;
}

#[tokio::test]
async fn a_changed_rule_is_in_force_at_once_also_for_what_is_leased() {
    let redis = Redis::start();
    let service = start(&redis, &[]);
    assert_eq!(passed(&service, "hot", 1_000).await, 1_000);
    service.change_rules(&RULES.replace("100000", "1000"));
    wait_until_async("the new number is in force", async || remaining(&service, "hot").await < 1_000).await;
    assert_eq!(passed(&service, "hot", 100).await, 0);
    service.change_rules(&RULES.replace("100000", "2000"));
    wait_until_async("the next is", async || remaining(&service, "hot").await == 1_000).await;
    assert_eq!(passed(&service, "hot", 2_000).await, 1_000);
}

/// The clock of the store: that of the test.
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> u64 {
        1_784_000_000_000 + u64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

/// What instances ask the store, and what passes, of a key that is asked for so often.
#[derive(Debug)]
struct Asked {
    calls_per_decision: f64,
    passed_per_minute: f64,
}

/// Lets instances share a limit of 1,000 a minute for ten minutes, in which requests come at random.
async fn share(instances: usize, unused: Option<u16>, per_minute: f64) -> Asked {
    let limit = Limit::new(Algorithm::SlidingWindow, 1_000, Duration::from_secs(60), Options::default()).unwrap();
    let lease = unused.map(|percent| Lease::new(percent * 100, None, &limit).unwrap());
    let check =
        Check { lease, ..Check::new(Key::new("", "d", &[], |_| None, &limit, Origin::Rule), limit, Ask::Take(1)) };
    let memory = Arc::new(MemoryStore::new(Paused(Instant::now()), usize::MAX));
    let asked = Arc::<AtomicU64>::default();
    let instance = || {
        let store = Watched { store: Arc::clone(&memory), asked: Arc::clone(&asked), fails: Arc::default() };
        Leases::around(vec![store], 1_000, Box::new(|_| {})).pop().unwrap()
    };
    let instances: Vec<_> = (0..instances).map(|_| instance()).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    let (begin, mut decisions, mut passed, mut passed_late) = (Instant::now(), 0_u32, 0_u32, 0_u32);
    while begin.elapsed() < Duration::from_secs(600) {
        tokio::time::sleep(Duration::from_secs_f64(-rng.f64().ln() * 60.0 / per_minute)).await;
        let verdict = ask(&instances[rng.usize(..instances.len())], &check).await;
        decisions += 1;
        passed += u32::from(verdict.allowed);
        // After the first windows.
        passed_late += u32::from(verdict.allowed && begin.elapsed() > Duration::from_secs(120));
    }
    assert!(passed > 0);
    let calls = u32::try_from(asked.load(Ordering::Relaxed)).unwrap();
    Asked {
        calls_per_decision: f64::from(calls) / f64::from(decisions),
        passed_per_minute: f64::from(passed_late) / 8.0,
    }
}

#[tokio::test(start_paused = true)]
async fn leases_save_most_calls_for_keys_below_their_limit_and_cost_little_of_it_above() {
    let without = share(4, None, 1_500.0).await;
    for (instances, unused, most_calls) in [(1, 5, 0.045), (4, 5, 0.1), (4, 10, 0.06), (16, 10, 0.25)] {
        let below = share(instances, Some(unused), 500.0).await;
        let above = share(instances, Some(unused), 1_500.0).await;
        println!("{instances} instances, {unused} %: {below:?}; above the limit {above:?}");
        assert!(below.calls_per_decision < most_calls, "{instances} instances, {unused} %: {below:?}");
        let lost = 1.0 - above.passed_per_minute / without.passed_per_minute;
        assert!(lost < f64::from(unused) / 100.0, "{instances} instances, {unused} %: {lost} of it lost");
    }
}
