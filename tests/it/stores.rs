//! The promises of every store: a request is one group, decided atomically, and exactly the limit passes for any number
//! of requests.

use crate::support;

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use support::limits::{length_of, stream_key};
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use tokio::time::Instant;
use tollgate::engine::algorithm::{Algorithm, Ask, Caller, Limit, MAX_PERIOD, Options, Verdict};
use tollgate::engine::check::{Check, Key, Origin, Verdicts};
use tollgate::engine::descriptor::{Entry, Role};
use tollgate::store::Store;
use tollgate::store::memory::MemoryStore;
use tollgate::store::redis::RedisStore;
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};
use tollgate::wire::rate_limit_response::Code;

/// Returns a limit that allows this many hits at once.
fn limit(algorithm: Algorithm, number: u32) -> Limit {
    limit_with(algorithm, number, Options { count_denied: Some(false), ..Options::default() })
}

fn limit_with(algorithm: Algorithm, number: u32, options: Options) -> Limit {
    let burst = algorithm.options().contains(&"burst").then_some(number.max(1));
    Limit::new(algorithm, number.into(), MAX_PERIOD, Options { burst, ..options }).unwrap()
}

fn check(name: &str, limit: Limit) -> Check {
    let entries =
        [("user", name), ("stream", "any")].map(|(key, value)| Entry { key: key.into(), value: value.into() });
    Check::new(Key::new("", "test", &entries, |_| None, &limit, Origin::Rule), limit, Ask::Take(1))
}

fn taking(hits: u64, check: &Check) -> Check {
    Check { ask: Ask::take(hits).unwrap(), ..check.clone() }
}

async fn redis_store(redis: &Redis) -> RedisStore {
    redis_store_at(&redis.url()).await
}

async fn redis_store_at(address: &str) -> RedisStore {
    let config = RedisConfig {
        address: address.parse().unwrap(),
        connections: 2,
        timeout: Duration::from_secs(30),
        queue: 100_000,
        key_prefix: String::new(),
        per_second: None,
        on_call: OnCall::default(),
    };
    RedisStore::start(config, Box::new(|_| {})).await.unwrap()
}

async fn ask<S: Store>(store: &S, checks: &[Check]) -> Vec<Verdict> {
    own(store.check(checks, Instant::now() + Duration::from_secs(30)).await.unwrap())
}

/// Returns the verdicts of the limits.
fn own(verdicts: Verdicts) -> Vec<Verdict> {
    verdicts.into_iter().map(|verdict| verdict.unwrap().own).collect()
}

/// The same promise on both stores.
macro_rules! on_every_store {
    ($($name:ident)*) => {
        mod memory {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $name() {
                    super::$name(Arc::new(MemoryStore::default())).await;
                }
            )*
        }
        mod redis_over_tcp_in_another_database {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $name() {
                    let redis = Redis::start();
                    let address = format!("redis://{}/3", redis.tcp_address());
                    super::$name(Arc::new(redis_store_at(&address).await)).await;
                    let keys: usize = redis.command("DBSIZE").await;
                    assert_eq!(keys, 0, "nothing is in the database that is not ours");
                }
            )*
        }
        mod redis {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $name() {
                    let redis = Redis::start();
                    super::$name(Arc::new(redis_store(&redis).await)).await;
                }
            )*
        }
    };
}

on_every_store! {
    exactly_the_limit_passes_however_many_ask_at_once
    exactly_the_limit_passes_over_requests_of_several_counters
    a_request_that_one_limit_denies_is_charged_to_none
    a_limit_that_counts_denials_is_charged_all_the_same
    refunds_happen_even_when_the_request_is_denied
    a_shadow_denial_denies_nobody_else
    quota_limits_deny_only_together
    the_same_counter_twice_in_a_request_counts_twice
    a_slot_is_released_by_its_holder_alone
}

async fn exactly_the_limit_passes_however_many_ask_at_once<S: Store>(store: Arc<S>) {
    for algorithm in Algorithm::ALL {
        for round in 0..5 {
            let check = check(&format!("{algorithm}{round}"), limit(*algorithm, 5));
            let tasks: Vec<_> = (0..200)
                .map(|_| {
                    let (store, check) = (Arc::clone(&store), check.clone());
                    tokio::spawn(async move { ask(&*store, &[check]).await[0].allowed })
                })
                .collect();
            let mut passed = 0;
            for task in tasks {
                passed += u32::from(task.await.unwrap());
            }
            assert_eq!(passed, 5, "{algorithm}");
        }
    }
}

async fn exactly_the_limit_passes_over_requests_of_several_counters<S: Store>(store: Arc<S>) {
    for algorithm in Algorithm::ALL {
        let checks: Vec<Check> = (0..6).map(|i| check(&format!("{algorithm}/{i}"), limit(*algorithm, 20))).collect();
        // Each request takes two counters, in any order; locks must neither lose a hit nor wait for each other for
        // ever.
        let tasks: Vec<_> = (0..300)
            .map(|i| {
                let (a, b) = (i % 6, (i / 6 + 1 + i) % 6);
                let pair = if a == b { vec![checks[a].clone()] } else { vec![checks[a].clone(), checks[b].clone()] };
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let passed = ask(&*store, &pair).await.iter().all(|verdict| verdict.allowed);
                    if passed { pair } else { Vec::new() }
                })
            })
            .collect();
        let mut charged = Vec::new();
        for task in tasks {
            charged.extend(task.await.unwrap());
        }
        for check in &checks {
            let hits = charged.iter().filter(|other| other.key == check.key).count();
            let left = ask(&*store, &[taking(0, check)]).await[0].remaining;
            assert_eq!(hits + left as usize, 20, "{algorithm}: what passed and what is left make the limit");
        }
    }
}

async fn a_request_that_one_limit_denies_is_charged_to_none<S: Store>(store: Arc<S>) {
    for algorithm in Algorithm::ALL {
        let wide = check(&format!("{algorithm}wide"), limit(*algorithm, 10));
        let narrow = check(&format!("{algorithm}narrow"), limit(*algorithm, 2));
        for _ in 0..5 {
            ask(&*store, &[wide.clone(), narrow.clone()]).await;
        }
        let verdicts = ask(&*store, &[wide.clone(), narrow.clone()]).await;
        assert_eq!([verdicts[0].allowed, verdicts[1].allowed], [true, false]);
        assert_eq!(verdicts[0].remaining, 8, "only the two that passed are charged");
        assert_eq!(ask(&*store, &[taking(0, &wide)]).await[0].remaining, 8);
    }
}

async fn a_limit_that_counts_denials_is_charged_all_the_same<S: Store>(store: Arc<S>) {
    // Concurrency charges no denial: nothing would be in progress for it.
    for algorithm in Algorithm::ALL.iter().filter(|algorithm| !algorithm.has_holders()) {
        let options = Options { count_denied: Some(true), ..Options::default() };
        let counting = limit_with(*algorithm, 10, options);
        let usage = check(&format!("{algorithm}usage"), counting);
        let closed = check(&format!("{algorithm}closed"), limit(*algorithm, 0));
        let verdicts = ask(&*store, &[taking(4, &usage), closed]).await;
        assert_eq!([verdicts[0].allowed, verdicts[1].allowed], [true, false]);
        assert_eq!(ask(&*store, &[taking(0, &usage)]).await[0].remaining, 6);
        // Completed usage is charged even beyond the limit.
        assert!(!ask(&*store, &[taking(7, &usage)]).await[0].allowed);
        assert_eq!(ask(&*store, &[taking(0, &usage)]).await[0].remaining, 0);
    }
}

async fn refunds_happen_even_when_the_request_is_denied<S: Store>(store: Arc<S>) {
    for algorithm in Algorithm::ALL {
        let used = check(&format!("{algorithm}used"), limit(*algorithm, 10));
        let closed = check(&format!("{algorithm}closed"), limit(*algorithm, 0));
        ask(&*store, &[taking(4, &used)]).await;
        let refund = Check { ask: Ask::Refund(3), ..used.clone() };
        let verdicts = ask(&*store, &[refund.clone(), closed]).await;
        assert_eq!((verdicts[0].allowed, verdicts[0].remaining), (true, 9));
        // More than there is leaves the counter empty, not in credit.
        assert_eq!(ask(&*store, &[refund]).await[0].remaining, 10);
    }
}

async fn a_shadow_denial_denies_nobody_else<S: Store>(store: Arc<S>) {
    for algorithm in Algorithm::ALL {
        let enforced = check(&format!("{algorithm}enforced"), limit(*algorithm, 10));
        let shadow = Check { role: Role::Shadow, ..check(&format!("{algorithm}shadow"), limit(*algorithm, 1)) };
        for _ in 0..5 {
            ask(&*store, &[shadow.clone(), enforced.clone()]).await;
        }
        assert_eq!(ask(&*store, &[taking(0, &enforced)]).await[0].remaining, 5);
    }
}

async fn quota_limits_deny_only_together<S: Store>(store: Arc<S>) {
    for algorithm in Algorithm::ALL {
        let quota = |name: &str, number, descriptor| Check {
            role: Role::Quota,
            descriptor,
            ..check(&format!("{algorithm}{name}"), limit(*algorithm, number))
        };
        let (small, large) = (quota("small", 1, 0), quota("large", 3, 1));
        let request = [small.clone(), large.clone()];
        for _ in 0..3 {
            ask(&*store, &request).await;
        }
        let verdicts = ask(&*store, &request).await;
        assert!(verdicts.iter().all(|verdict| !verdict.allowed), "large was charged while small denied");
        // Two limits of one descriptor are one quota: it denies if either does.
        let (narrow, wide) = (quota("narrow", 1, 0), quota("wide", 9, 0));
        for _ in 0..3 {
            ask(&*store, &[narrow.clone(), wide.clone()]).await;
        }
        assert_eq!(ask(&*store, &[taking(0, &wide)]).await[0].remaining, 8, "{algorithm}");
    }
}

async fn the_same_counter_twice_in_a_request_counts_twice<S: Store>(store: Arc<S>) {
    for algorithm in Algorithm::ALL {
        let check = check(algorithm.name(), limit(*algorithm, 5));
        let verdicts = ask(&*store, &[check.clone(), check.clone()]).await;
        assert_eq!([verdicts[0].remaining, verdicts[1].remaining], [4, 3]);
        // Together they ask for more than there is: neither is charged.
        let verdicts = ask(&*store, &[taking(2, &check), taking(2, &check)]).await;
        assert_eq!([verdicts[0].allowed, verdicts[1].allowed], [true, false]);
        assert_eq!(ask(&*store, &[taking(0, &check)]).await[0].remaining, 3);
    }
}

async fn a_slot_is_released_by_its_holder_alone<S: Store>(store: Arc<S>) {
    let reports = check("reports", limit(Algorithm::Concurrency, 2));
    let stream = |holder| Check { caller: Caller { holder, ..Caller::default() }, ..reports.clone() };
    let ended = |holder| Check { ask: Ask::Refund(1), ..stream(holder) };
    let passed: Vec<bool> =
        [ask(&*store, &[stream(1)]).await, ask(&*store, &[stream(2)]).await].map(|v| v[0].allowed).into();
    assert_eq!(passed, [true, true]);
    assert!(!ask(&*store, &[stream(3)]).await[0].allowed);
    // The denied stream ends as well; and one that asked while the store was down.
    ask(&*store, &[ended(3)]).await;
    assert_eq!(ask(&*store, &[ended(4)]).await[0].remaining, 0);
    // And a repeated refund.
    ask(&*store, &[ended(1)]).await;
    assert_eq!(ask(&*store, &[ended(1)]).await[0].remaining, 1);
    // A request that another limit denies holds nothing.
    let closed = check("closed", limit(Algorithm::SlidingWindow, 0));
    ask(&*store, &[stream(5), closed]).await;
    assert_eq!(ask(&*store, &[taking(0, &reports)]).await[0].remaining, 1);
    assert_eq!(ask(&*store, &[ended(2)]).await[0].remaining, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_the_limit_passes_through_two_processes_on_one_redis() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let rules: String = Algorithm::ALL
        .iter()
        .map(|algorithm| {
            let unit = length_of(*algorithm, "unit: year", "366d");
            let key = stream_key(*algorithm).unwrap_or("stream");
            let burst = if algorithm.options().contains(&"burst") { "burst: 5, " } else { "" };
            format!(
                "  - key: {algorithm}\n    descriptors:\n    - key: {key}\n      rate_limit: {{{unit}, {burst}\
                 requests_per_unit: 5, algorithm: {algorithm}}}\n"
            )
        })
        .collect();
    let rules = format!("domain: shop\ndescriptors:\n{rules}");
    let services = [(); 2].map(|()| Tollgate::start(&rules, &[&url, "REDIS_TIMEOUT=30s"]));
    let clients = [services[0].client().await, services[1].client().await];
    for algorithm in Algorithm::ALL {
        // Algorithms without holders use one counter for all streams.
        let stream = |i: usize| if algorithm.has_holders() { i.to_string() } else { "any".to_owned() };
        let calls: Vec<_> = (0..400)
            .map(|i| {
                let key = stream_key(*algorithm).unwrap_or("stream");
                let request = request("shop", &[&[(algorithm.name(), "ann"), (key, &stream(i))]]);
                let mut client = clients[i % 2].clone();
                tokio::spawn(
                    async move { client.should_rate_limit(request).await.unwrap().into_inner().overall_code() },
                )
            })
            .collect();
        let mut passed = 0;
        for call in calls {
            passed += u32::from(call.await.unwrap() == Code::Ok);
        }
        assert_eq!(passed, 5, "{algorithm}");
    }
}

#[tokio::test]
async fn a_forgotten_script_is_loaded_again_and_nothing_is_charged_twice() {
    let redis = Redis::start();
    let store = redis_store(&redis).await;
    let check = check("ann", limit(Algorithm::SlidingWindow, 10));
    for left in (0..10).rev() {
        redis.command::<()>("SCRIPT FLUSH").await;
        assert_eq!(ask(&store, from_ref(&check)).await[0].remaining, left);
    }
}

#[tokio::test]
async fn a_counter_of_another_type_is_decided_as_a_fresh_one_and_disturbs_no_other() {
    let redis = Redis::start();
    let store = redis_store(&redis).await;
    for algorithm in Algorithm::ALL {
        let limit = limit(*algorithm, 10);
        let [ann, bob, cid] = ["ann", "bob", "cid"].map(|name| check(&format!("{name}-{algorithm}"), limit));
        // Neither a list nor a state of a counter.
        redis.command::<()>(&format!("HSET {} x y", bob.key)).await;
        let calls_before = redis.calls_of("evalsha");
        let deadline = Instant::now() + Duration::from_secs(30);
        // Together, and the damaged one in the middle, with a counter before it and one behind it.
        let of_three = [cid.clone(), bob.clone(), cid.clone()];
        let [before, mixed, after] =
            [from_ref(&ann), &of_three, from_ref(&ann)].map(|checks| store.check(checks, deadline));
        let (before, mixed, after) = tokio::join!(before, mixed, after);
        assert_eq!(redis.calls_of("evalsha") - calls_before, 1, "{algorithm}: in one call");
        assert_eq!([own(before.unwrap())[0].remaining, own(after.unwrap())[0].remaining], [9, 8], "{algorithm}");
        let mixed: Vec<u64> = own(mixed.unwrap()).iter().map(|verdict| verdict.remaining).collect();
        assert_eq!(mixed, [9, 9, 8], "{algorithm}");
        assert_eq!(ask(&store, from_ref(&bob)).await[0].remaining, 8, "{algorithm}: it counts on");
    }
}

#[tokio::test]
async fn a_call_reads_the_clock_once_and_each_counter_once_and_writes_it_once() {
    const MANY: u32 = 10;
    let redis = Redis::start();
    let store = redis_store(&redis).await;
    for algorithm in Algorithm::ALL.iter().filter(|algorithm| **algorithm != Algorithm::SlidingLog) {
        let checks: Vec<Check> = (0..MANY).map(|i| check(&format!("{algorithm}-{i}"), limit(*algorithm, 5))).collect();
        let [read, write] = if *algorithm == Algorithm::Budget { ["hmget", "hset"] } else { ["get", "set"] };
        let count = || ["evalsha", "time", read, write].map(|command| redis.calls_of(command));
        let before = count();
        let deadline = Instant::now() + Duration::from_secs(30);
        let alone = checks.iter().map(|check| store.check(from_ref(check), deadline));
        let together = store.check(&checks, deadline);
        let (alone, together) = tokio::join!(futures_util::future::join_all(alone), together);
        assert!(alone.into_iter().chain([together]).all(|verdicts| own(verdicts.unwrap())[0].allowed));
        let mut commands = count();
        commands.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
        assert_eq!(commands, [1, 1, 2 * MANY, 2 * MANY], "{algorithm}");
    }
}

#[tokio::test]
async fn to_ask_one_full_counter_many_times_is_no_more_work_than_to_ask_many() {
    const MANY: usize = 100;
    let redis = Redis::start();
    let store = redis_store(&redis).await;
    for algorithm in Algorithm::ALL {
        let many: Vec<Check> = (0..MANY).map(|i| check(&format!("{algorithm}-{i}"), limit(*algorithm, 1))).collect();
        ask(&store, &many).await;
        let one = vec![many[0].clone(); MANY];
        let mut commands = Vec::new();
        for checks in [&many, &one] {
            let count = || redis.calls().iter().map(|(_, calls)| calls).sum::<u32>();
            let before = count();
            assert!(ask(&store, checks).await.iter().all(|verdict| !verdict.allowed));
            commands.push(count() - before);
        }
        assert!(commands[1] < 2 * commands[0], "{algorithm}: {commands:?} commands");
    }
}

#[tokio::test]
async fn names_in_redis_begin_with_the_prefix() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let rules = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 5}}]";
    let tollgate = Tollgate::start(rules, &[&url, "CACHE_KEY_PREFIX=staging:", "REDIS_TIMEOUT=30s"]);
    let long = "x".repeat(60_000);
    for value in ["v", "\0", "{a}", &long] {
        assert!(tollgate.passes("d", &[("k", value)]).await);
    }
    let keys: Vec<String> = redis.command("KEYS *").await;
    assert!(
        matches!(keys.len(), 5..=7),
        "four counters, the replicas, the seats, and the probe for a second: {keys:?}"
    );
    assert!(keys.iter().all(|key| key.starts_with("staging:") && key.len() < 100), "{keys:?}");
}

#[tokio::test]
async fn every_counter_in_redis_has_a_ttl() {
    let redis = Redis::start();
    let store = redis_store(&redis).await;
    for algorithm in Algorithm::ALL {
        let check = check(algorithm.name(), limit(*algorithm, 10));
        ask(&store, from_ref(&check)).await;
        let left_ms: i64 = redis.command(&format!("PTTL {}", check.key)).await;
        assert!(left_ms > 0, "{algorithm}: {left_ms}");
    }
}

#[tokio::test]
async fn a_denial_writes_nothing_to_redis() {
    let redis = Redis::start();
    let store = redis_store(&redis).await;
    // Concurrency is excluded, because it remembers denied streams, whose releases must free nothing.
    for algorithm in Algorithm::ALL.iter().filter(|algorithm| !algorithm.has_holders()) {
        let check = check(algorithm.name(), limit(*algorithm, 1));
        ask(&store, from_ref(&check)).await;
        redis.command::<()>(&format!("PERSIST {}", check.key)).await;
        assert!(!ask(&store, from_ref(&check)).await[0].allowed);
        let left_ms: i64 = redis.command(&format!("PTTL {}", check.key)).await;
        assert_eq!(left_ms, -1, "{algorithm}: a write would have set the TTL again");
    }
}
