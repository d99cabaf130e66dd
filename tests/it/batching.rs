//! Batching of requests to Redis: each request keeps its own deadline, a failed call fails its requests once, and the
//! queue is bounded.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::wait_until_async;
use tokio::time::Instant;
use tollgate::engine::algorithm::{Algorithm, Ask, Limit, Options};
use tollgate::engine::check::{Check, Key, Origin, StoreError};
use tollgate::store::Store as _;
use tollgate::store::health::{Health, OnChange};
use tollgate::store::redis::RedisStore;
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitRequest, RateLimitResponse};
use tonic::Status;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 100000}}
  - {key: strict, rate_limit: {unit: year, requests_per_unit: 100000, failure_mode: closed}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 1, failure_mode: local}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 100000, failure_mode: error}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 100000, failure_mode: closed}}
";

fn start(redis: &Redis, settings: &[&str]) -> Tollgate {
    let url = format!("REDIS_URL={}", redis.url());
    Tollgate::start(RULES, &[&[&*url, "WORKER_THREADS=1"], settings].concat())
}

fn user(name: &str) -> RateLimitRequest {
    request("shop", &[&[("user", name)]])
}

/// Asks all of them at once, over one connection.
async fn ask_together(tollgate: &Tollgate, requests: Vec<RateLimitRequest>) -> Vec<Result<RateLimitResponse, Status>> {
    let client = tollgate.client().await;
    let ask = |request| {
        let mut client = client.clone();
        async move { client.should_rate_limit(request).await.map(tonic::Response::into_inner) }
    };
    join_all(requests.into_iter().map(ask)).await
}

/// Returns the remaining hits of a user, from a peek.
async fn remaining(tollgate: &Tollgate, name: &str) -> u32 {
    let mut peek = user(name);
    peek.descriptors[0].hits_addend = Some(0);
    tollgate.ask(peek).await.unwrap().statuses[0].limit_remaining
}

#[tokio::test]
async fn requests_that_come_together_go_together_and_each_is_decided() {
    let redis = Redis::start();
    let tollgate = start(&redis, &["REDIS_TIMEOUT=30s"]);
    for answer in ask_together(&tollgate, (0..2_000).map(|i| user(&format!("u{}", i % 20))).collect()).await {
        let answer = answer.unwrap();
        assert_eq!((answer.overall_code(), answer.statuses[0].current_limit.is_some()), (Code::Ok, true));
    }
    let together = redis.script_calls();
    assert!(together < 1_000, "{together} calls for 2,000 requests");
    let [told, requests] =
        ["count", "sum"].map(|part| tollgate.metric(&format!("tollgate_store_call_requests_{part}")));
    // Redis counts what the start tries, too.
    assert!(requests == 2_000.0 && (2_000.0 / 32.0..=together.into()).contains(&told), "{told} of {together}");
    for i in 0..20 {
        assert_eq!(remaining(&tollgate, &format!("u{i}")).await, 100_000 - 100);
    }
    let before = redis.script_calls();
    remaining(&tollgate, "u0").await;
    assert_eq!(redis.script_calls(), before + 1, "one alone waits for no other");
}

#[tokio::test]
async fn a_request_of_a_batch_keeps_its_own_deadline() {
    let redis = Redis::start();
    let tollgate = start(&redis, &["REDIS_TIMEOUT=20s"]);
    redis.freeze();
    let mut waiting = tollgate.client().await;
    let waiting = tokio::spawn(async move { waiting.should_rate_limit(user("ann")).await });
    let mut hasty = tonic::Request::new(user("ann"));
    // The client, too, waits no longer: the quarter that is kept back is a second.
    hasty.set_timeout(Duration::from_secs(4));
    let answer = tollgate.client().await.should_rate_limit(hasty).await.unwrap().into_inner();
    assert_eq!(answer.overall_code(), Code::Ok, "by its failure mode");
    assert!(!waiting.is_finished(), "while the other still waits");
    redis.thaw();
    assert_eq!(waiting.await.unwrap().unwrap().into_inner().overall_code(), Code::Ok);
}

#[tokio::test]
async fn what_fails_is_sent_once_and_what_is_not_sent_is_not_charged() {
    let redis = Redis::start();
    let tollgate = start(&redis, &["REDIS_TIMEOUT=400ms"]);
    assert_eq!(remaining(&tollgate, "ann").await, 100_000);
    redis.freeze();
    // More than go with the calls on their way: the others wait here, until they do not wait any more.
    for answer in ask_together(&tollgate, (0..1_000).map(|_| user("ann")).collect()).await {
        assert_eq!(answer.unwrap().overall_code(), Code::Ok, "by its failure mode");
    }
    redis.thaw();
    let decided = async || tollgate.ask(user("bob")).await.unwrap().statuses[0].duration_until_reset.is_some();
    wait_until_async("redis decides again", decided).await;
    let charged = 100_000 - remaining(&tollgate, "ann").await;
    assert!(charged < 500, "{charged} of a thousand were charged; 4 calls of 32 each are on their way at most");
}

#[tokio::test]
async fn what_waits_is_bounded_and_the_rest_is_answered_at_once() {
    let redis = Redis::start();
    let tollgates = ["OVERLOAD=failure-mode", "OVERLOAD=refuse"]
        .map(|overload| start(&redis, &["REDIS_QUEUE_SIZE=10", "REDIS_TIMEOUT=10s", overload]));
    redis.freeze();
    for (tollgate, refused) in tollgates.iter().zip([false, true]) {
        let client = tollgate.client().await;
        let mut flood: Vec<_> = (0..400)
            .map(|_| {
                let mut client = client.clone();
                let strict = request("shop", &[&[("strict", "ann")]]);
                tokio::spawn(async move { client.should_rate_limit(strict).await })
            })
            .collect();
        // Redis still does not answer.
        let answered = async || flood.iter().filter(|call| call.is_finished()).count() >= 200;
        wait_until_async("what does not fit is answered", answered).await;
        let (answered, waiting): (Vec<_>, Vec<_>) = flood.drain(..).partition(|call| call.is_finished());
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        for answer in answered {
            match answer.await.unwrap() {
                Ok(answer) => assert_eq!((answer.into_inner().overall_code(), refused), (Code::OverLimit, false)),
                Err(status) => assert_eq!((status.code(), refused), (tonic::Code::ResourceExhausted, true)),
            }
        }
        assert!(tollgate.metric("tollgate_store_errors_total{kind=\"overloaded\"}") >= 200.0);
        assert_eq!(tollgate.metric("tollgate_requests_total{outcome=\"overloaded\"}") >= 200.0, refused);
    }
    redis.thaw();
}

/// Fills the queue of 10 while Redis does not answer. The queue stays full while these calls wait.
async fn fill_the_queue(tollgate: &Tollgate) -> tokio::task::JoinSet<()> {
    let client = tollgate.client().await;
    let mut flood = tokio::task::JoinSet::new();
    // Each iteration lets one more of the 4 calls to Redis start with the queued requests; after that none starts.
    for _ in 0..6 {
        for _ in 0..200 {
            let mut client = client.clone();
            flood.spawn(async move { drop(client.should_rate_limit(user("ann")).await) });
        }
        wait_until_async("what does not fit is answered", async || {
            while flood.try_join_next().is_some() {}
            flood.len() <= 4 * 32 + 10
        })
        .await;
    }
    flood
}

#[tokio::test]
async fn at_a_full_queue_each_limit_answers_by_its_failure_mode_or_the_call_is_refused() {
    let redis = Redis::start();
    let settings = ["REDIS_QUEUE_SIZE=10", "REDIS_TIMEOUT=30s"];
    let [by_mode, refusing, shadow] = [&[][..], &["OVERLOAD=refuse"], &["OVERLOAD=refuse", "SHADOW_MODE=true"]]
        .map(|more| start(&redis, &[&settings, more].concat()));
    redis.freeze();
    let ask = async |tollgate: &Tollgate, keys: &[&str]| {
        let entries: Vec<_> = keys.iter().map(|key| [(*key, "bob")]).collect();
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(<[_; 1]>::as_slice).collect();
        let answer = tollgate.ask(request("shop", &descriptors)).await;
        answer.map(|answer| answer.overall_code()).map_err(|status| status.code())
    };
    let (passes, denied) = (Ok(Code::Ok), Ok(Code::OverLimit));
    let _flood = fill_the_queue(&by_mode).await;
    for (keys, answer) in [
        (&["user"][..], passes),
        (&["strict"], denied),
        (&["user", "strict"], denied),
        (&["local"], passes),
        (&["local"], denied),
        (&["error"], Err(tonic::Code::Unavailable)),
        (&["shadow"], passes),
    ] {
        assert_eq!(ask(&by_mode, keys).await, answer, "{keys:?} by its failure mode");
    }
    let _flood = fill_the_queue(&refusing).await;
    for keys in [&["user"][..], &["strict"], &["local"], &["error"], &["user", "shadow"]] {
        assert_eq!(ask(&refusing, keys).await, Err(tonic::Code::ResourceExhausted), "{keys:?}");
    }
    assert_eq!(ask(&refusing, &["shadow"]).await, passes, "what denies nobody fails nobody's call");
    let _flood = fill_the_queue(&shadow).await;
    for key in ["user", "strict", "error"] {
        assert_eq!(ask(&shadow, &[key]).await, passes, "{key} in shadow mode");
    }
    redis.thaw();
}

#[tokio::test]
async fn a_caller_that_goes_away_takes_nothing_with_it() {
    let redis = Redis::start();
    let tollgate = Arc::new(start(&redis, &["REDIS_TIMEOUT=30s"]));
    redis.freeze();
    let callers: Vec<_> = (0..500)
        .map(|i| {
            let tollgate = Arc::clone(&tollgate);
            tokio::spawn(async move { tollgate.ask(user(&format!("gone{}", i % 7))).await })
        })
        .collect();
    tokio::task::yield_now().await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    let staying = tokio::spawn({
        let tollgate = Arc::clone(&tollgate);
        async move { tollgate.ask(user("ann")).await }
    });
    redis.thaw();
    assert_eq!(staying.await.unwrap().unwrap().statuses[0].limit_remaining, 99_999);
}

fn take_one(name: &str) -> Check {
    let limit = Limit::new(Algorithm::SlidingWindow, 1_000, Duration::from_secs(60), Options::default()).unwrap();
    let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
    Check::new(key, limit, Ask::Take(1))
}

async fn store(redis: &Redis, on_change: OnChange) -> RedisStore {
    let config = RedisConfig {
        address: redis.url().parse().unwrap(),
        connections: 1,
        timeout: Duration::from_secs(30),
        queue: 100,
        key_prefix: String::new(),
        per_second: None,
        on_call: OnCall::default(),
    };
    RedisStore::start(config, on_change).await.unwrap()
}

/// Panics in the task that answers.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker's panic, for the test");
    }
}

#[tokio::test]
async fn a_call_that_panics_fails_its_own_requests_and_no_later_ones() {
    let redis = Redis::start();
    let store = store(&redis, Box::new(|_| {})).await;
    let waker = Waker::from(Arc::new(Panics));
    let (check, deadline) = ([take_one("ann")], Instant::now() + Duration::from_secs(60));
    // More than there are calls at one time.
    for _ in 0..10 {
        let mut panics = Box::pin(store.check(&check, deadline));
        assert!(panics.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // It follows the other in the same call or in a later one.
        let told = store.check(&check, deadline).await;
        assert!(matches!(told, Ok(_) | Err(StoreError::Connection(_))), "{told:?}");
    }
    assert!(store.check(&check, deadline).await.unwrap()[0].unwrap().allowed());
}

#[tokio::test]
async fn a_keeper_of_a_connection_that_panics_makes_it_anew() {
    let redis = Redis::start();
    let ups = AtomicU32::new(0);
    let panics_once = move |health| {
        assert!(health != Health::Up || ups.fetch_add(1, Ordering::Relaxed) > 0, "a panic, for the test");
    };
    let store = store(&redis, Box::new(panics_once)).await;
    let decides = async || store.check(&[take_one("ann")], Instant::now() + Duration::from_secs(30)).await.is_ok();
    wait_until_async("redis is asked", decides).await;
}
