//! Health over HTTP and over gRPC for every service name, and the settings that change what it depends on.

use crate::support;

use support::redis::Redis;
use support::tollgate::Tollgate;
use support::{wait_until, wait_until_async};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const RULES: &str = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5}}]";

/// Returns the gRPC health status for each service name.
pub async fn statuses(tollgate: &Tollgate) -> Vec<ServingStatus> {
    let mut client = HealthClient::new(tollgate.channel().await);
    let mut statuses = Vec::new();
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
        let request = HealthCheckRequest { service: name.to_owned() };
        statuses.push(client.check(request).await.unwrap().into_inner().status());
    }
    statuses
}

#[tokio::test]
async fn where_health_wants_redis_it_follows_redis_and_else_it_does_not() {
    let mut redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let wants = Tollgate::start(RULES, &[&url, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true"]);
    let does_not = Tollgate::start(RULES, &[&url]);
    wait_until("redis is there", || wants.get("/healthcheck") == (200, "OK".to_owned()));
    assert_eq!(statuses(&wants).await, [ServingStatus::Serving; 3]);

    redis.kill();
    // The failure mode answers, and health reports it.
    wait_until_async("redis is known to be away", async || {
        assert!(wants.passes("shop", &[("user", "ann")]).await && does_not.passes("shop", &[("user", "ann")]).await);
        wants.get("/healthcheck").0 == 500 && does_not.metric("tollgate_store_up") == 0.0
    })
    .await;
    let (_, told) = wants.get("/healthcheck");
    assert!(told.contains("Redis is unavailable, but REDIS_HEALTH_CHECK_ACTIVE_CONNECTION requires it"), "{told}");
    assert_eq!(statuses(&wants).await, [ServingStatus::NotServing; 3]);
    assert_eq!(does_not.get("/healthcheck").0, 200);
    assert_eq!(statuses(&does_not).await, [ServingStatus::Serving; 3]);

    redis.restart();
    wait_until("redis is back", || wants.get("/healthcheck").0 == 200);
    assert_eq!(statuses(&wants).await, [ServingStatus::Serving; 3]);
}

#[test]
fn a_redis_that_has_never_been_there_is_no_healthy_one() {
    let redis = Redis::stopped();
    let url = format!("REDIS_URL={}", redis.tcp_address());
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true"]);
    assert_eq!(tollgate.get("/healthcheck").0, 500);
}

#[test]
fn in_memory_there_is_nothing_to_wait_for() {
    let tollgate = Tollgate::start(RULES, &["REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true"]);
    wait_until("the store is there", || tollgate.get("/healthcheck").0 == 200);
}
