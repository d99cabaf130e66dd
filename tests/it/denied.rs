//! The denied cache: a denial by Redis is repeated without asking it, until something changes; requests that must be
//! counted always ask.

use crate::support;

use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::wait_until_async;
use tollgate::wire::RateLimitResponse;
use tollgate::wire::rate_limit_response::Code;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: counted, rate_limit: {unit: year, requests_per_unit: 5, count_denied: true}}
  - {key: brief, rate_limit: {period: 300ms, requests_per_unit: 5}}
  - {key: hot, rate_limit: {unit: year, requests_per_unit: 200, lease: {unused: 20%, ttl: 10s}}}
  - {key: other, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: banned, rate_limit: {unit: year, requests_per_unit: 5, penalty: {after: 10, within: 1h, ban: 1d}}}
";

fn start(redis: &Redis, settings: &[&str]) -> Tollgate {
    let tollgate = Tollgate::start(RULES, &[&[&*format!("REDIS_URL={}", redis.url())], settings].concat());
    redis.forget_calls();
    tollgate
}

/// Asks so often, and counts what passes.
async fn flood(tollgate: &Tollgate, key: &str, times: u32) -> u32 {
    let mut passed = 0;
    for _ in 0..times {
        passed += u32::from(tollgate.passes("shop", &[(key, "ann")]).await);
    }
    passed
}

const HITS: &str = "tollgate_denied_cache_hits_total";

#[tokio::test]
async fn a_flood_over_the_limit_leaves_redis_alone() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    assert_eq!(flood(&tollgate, "user", 500).await, 5);
    // A cached denial is checked again once per second.
    let asked = redis.script_calls();
    assert!(asked < 50, "{asked} calls for 500 requests");
    assert_eq!(tollgate.metric(HITS), f64::from(500 - asked));
    let timed = tollgate.metric("tollgate_store_seconds_count");
    assert_eq!(timed, f64::from(asked), "the store's time is that of its own answers");
    assert_eq!(
        tollgate.metric("tollgate_over_limit_hits_total{domain=\"shop\",rule=\"user\"}"),
        495.0,
        "counted all the same"
    );
    let known = "tollgate_known_denied_hits_total{domain=\"shop\",rule=\"user\"}";
    assert_eq!(tollgate.metric(known), f64::from(500 - asked), "and apart");
    let response = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
    let status = &response.statuses[0];
    assert_eq!((status.code(), status.limit_remaining), (Code::OverLimit, 0));
    assert!(status.duration_until_reset.unwrap().seconds > 360 * 24 * 60 * 60);
}

#[tokio::test]
async fn without_room_redis_is_always_asked() {
    let redis = Redis::start();
    let tollgate = start(&redis, &["LOCAL_CACHE_SIZE_IN_BYTES=0"]);
    assert_eq!(flood(&tollgate, "user", 50).await, 5);
    assert_eq!((redis.script_calls(), tollgate.metric(HITS)), (50, 0.0));
}

#[tokio::test]
async fn it_passes_again_when_redis_would_let_it_pass() {
    let redis = Redis::start();
    let cached = start(&redis, &[]);
    assert_eq!(flood(&cached, "brief", 6).await, 5);
    wait_until_async("it passes", async || cached.passes("shop", &[("brief", "ann")]).await).await;
    assert!(cached.metric(HITS) > 0.0);
}

#[tokio::test]
async fn denials_that_count_are_counted_in_redis() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    assert_eq!(flood(&tollgate, "counted", 50).await, 5);
    assert_eq!(redis.script_calls(), 50);
    // Ten denials bring a ban: each must be counted, and then nothing is left to count.
    assert_eq!(flood(&tollgate, "banned", 500).await, 5);
    assert!((65..150).contains(&redis.script_calls()));
    let response = tollgate.ask(request("shop", &[&[("banned", "ann")]])).await.unwrap();
    assert!(response.statuses[0].duration_until_reset.unwrap().seconds > 0);
}

#[tokio::test]
async fn a_refund_and_a_higher_number_are_seen_at_once() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    assert_eq!(flood(&tollgate, "user", 10).await, 5);
    let mut refund = request("shop", &[&[("user", "ann")]]);
    refund.descriptors[0].is_negative_hits = true;
    refund.descriptors[0].hits_addend = Some(2);
    tollgate.ask(refund).await.unwrap();
    assert_eq!(flood(&tollgate, "user", 10).await, 2);
    tollgate.change_rules(&RULES.replace(
        "user, rate_limit: {unit: year, requests_per_unit: 5",
        "user, rate_limit: {unit: year, requests_per_unit: 8",
    ));
    tollgate.must_log("new rules are in force");
    assert_eq!(flood(&tollgate, "user", 10).await, 3);
}

/// Asks for so many hits of the hot key, which has a lease.
async fn hot(tollgate: &Tollgate, hits: u64) -> RateLimitResponse {
    let mut request = request("shop", &[&[("hot", "x")]]);
    request.descriptors[0].hits_addend = Some(hits);
    tollgate.ask(request).await.unwrap()
}

#[tokio::test]
async fn what_is_leased_passes_though_redis_is_known_to_deny_and_is_given_back_to_all() {
    let redis = Redis::start();
    let [holder, rival] = [start(&redis, &[]), start(&redis, &[])];
    for _ in 0..10 {
        assert_eq!(hot(&holder, 1).await.overall_code(), Code::Ok);
    }
    assert!(holder.metric("tollgate_lease_decisions_total") > 0.0);
    let left = hot(&rival, 0).await.statuses[0].limit_remaining;
    assert!(left < 190, "{left} are left: nothing is held");
    assert_eq!(hot(&rival, left.into()).await.overall_code(), Code::Ok);

    // A request with several limits does not use the lease.
    let both = async || holder.ask(request("shop", &[&[("hot", "x")], &[("other", "y")]])).await.unwrap();
    assert_eq!(both().await.overall_code(), Code::OverLimit);
    assert_eq!(hot(&holder, 1).await.overall_code(), Code::Ok, "by what is held");
    assert_eq!(both().await.overall_code(), Code::OverLimit);
    // The lease is too small for the request: it is refunded and available to others.
    assert_eq!(hot(&holder, 30).await.overall_code(), Code::OverLimit);
    assert_eq!(hot(&holder, 1).await.overall_code(), Code::Ok, "of what was refunded");
}
