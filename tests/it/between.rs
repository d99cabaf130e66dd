//! Between the parts: what a name, a charge, a change of rules and a store that is away mean to a client.

use crate::support;

use std::time::Duration;

use prost::Message as _;
use support::SOON;
use support::http2::RATE_LIMIT;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::wait_until_async;
use tollgate::wire::rate_limit_descriptor::RateLimitOverride;
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitRequest, RateLimitResponse};

const RULES: &str = "
domain: shop
descriptors:
  - {key: open, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: open}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: closed}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: local}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: error}}
  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 4, algorithm: fixed_window}}
  - key: strict
    rate_limit: {unit: year, requests_per_unit: 4, failure_mode: local, penalty: {after: 1, within: 1h, ban: 1d}}
  - {key: large, rate_limit: {unit: year, requests_per_unit: 100000, algorithm: sliding_log}}
  - {key: kept, rate_limit: {unit: year, requests_per_unit: 4, give_back: false}}
  - key: report
    descriptors:
      - {key: stream, rate_limit: {requests_per_unit: 3, algorithm: concurrency, hold: 1h}}
";

fn start(redis: &Redis, settings: &[&str]) -> Tollgate {
    let url = format!("REDIS_URL={}", redis.url());
    Tollgate::start(RULES, &[&[&*url], settings].concat())
}

/// Starts one instance in memory and one on Redis. Redis is returned so that it outlives them.
fn on_both(rules: &str) -> ([Tollgate; 2], Redis) {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    ([Tollgate::start(rules, &[]), Tollgate::start(rules, &[&url])], redis)
}

/// Asks for so many hits; negative ones are refunded.
fn of(entries: &[(&str, &str)], hits: i64) -> RateLimitRequest {
    let mut request = request("shop", &[entries]);
    request.descriptors[0].hits_addend = Some(hits.unsigned_abs());
    request.descriptors[0].is_negative_hits = hits < 0;
    request
}

async fn code(tollgate: &Tollgate, entries: &[(&str, &str)], hits: i64) -> Code {
    tollgate.ask(of(entries, hits)).await.unwrap().overall_code()
}

/// Asks until it is denied.
async fn use_up(tollgate: &Tollgate, key: &str) {
    for _ in 0..4 {
        assert_eq!(code(tollgate, &[(key, "ann")], 1).await, Code::Ok, "{key}");
    }
    assert_eq!(code(tollgate, &[(key, "ann")], 1).await, Code::OverLimit, "{key}");
}

#[tokio::test]
async fn a_limit_that_is_known_to_be_used_up_stays_so_while_redis_is_away_and_a_refund_ends_it() {
    let mut redis = Redis::start();
    let tollgate = start(&redis, &[]);
    for key in ["open", "closed", "local", "error", "fixed"] {
        use_up(&tollgate, key).await;
    }
    // A refund through this instance clears its cached denial.
    for hits in [4, 1] {
        let _ = code(&tollgate, &[("open", "dan")], hits).await;
    }
    assert_eq!(code(&tollgate, &[("open", "dan")], -1).await, Code::Ok);
    redis.kill();
    wait_until_async("the service knows", async || tollgate.metric("tollgate_store_up") == 0.0).await;
    for _ in 0..20 {
        for key in ["open", "closed", "local", "fixed"] {
            assert_eq!(code(&tollgate, &[(key, "ann")], 1).await, Code::OverLimit, "{key}");
        }
    }
    // A cached denial answers for up to a second without asking Redis, in every failure mode.
    let fails = async || {
        tollgate.ask(of(&[("error", "ann")], 1)).await.is_err_and(|error| error.code() == tonic::Code::Unavailable)
    };
    wait_until_async("failure mode error has the call fail", fails).await;
    // The time at which the request passes again is known as well.
    let response = tollgate.ask(of(&[("open", "ann")], 1)).await.unwrap();
    assert!(response.statuses[0].duration_until_reset.unwrap().seconds > 300 * 24 * 60 * 60);
    for (entries, expected) in [([("open", "bob")], Code::Ok), ([("closed", "bob")], Code::OverLimit)] {
        assert_eq!(code(&tollgate, &entries, 1).await, expected, "nothing is known of bob");
    }
    // One cached denial denies a request with two limits, and the other is not charged, here either.
    let both = request("shop", &[&[("local", "cid")], &[("open", "ann")]]);
    for _ in 0..10 {
        assert_eq!(tollgate.ask(both.clone()).await.unwrap().overall_code(), Code::OverLimit);
    }
    assert_eq!(code(&tollgate, &[("local", "cid")], 4).await, Code::Ok);

    assert_eq!(code(&tollgate, &[("open", "dan")], 1).await, Code::Ok, "nothing is known of dan any more");
    // A refund that never reaches Redis refunds nothing.
    assert_eq!(code(&tollgate, &[("open", "ann")], -1).await, Code::Ok);
    assert_eq!(code(&tollgate, &[("open", "ann")], 1).await, Code::OverLimit);
}

#[tokio::test]
async fn load_does_not_open_a_limit_that_is_known_to_be_used_up() {
    let redis = Redis::start();
    let tollgate = start(&redis, &["REDIS_QUEUE_SIZE=1", "REDIS_TIMEOUT=30s", "WORKER_THREADS=1"]);
    use_up(&tollgate, "fixed").await;
    redis.freeze();
    let client = tollgate.client().await;
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let (mut client, request) = (client.clone(), of(&[("fixed", "ann")], 1));
            tokio::spawn(async move {
                let mut call = tonic::Request::new(request);
                call.set_timeout(Duration::from_secs(10));
                client.should_rate_limit(call).await
            })
        })
        .collect();
    let overloaded = "tollgate_store_errors_total{kind=\"overloaded\"}";
    wait_until_async("the queue is full", async || tollgate.metric(overloaded) > 100.0).await;
    redis.thaw();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().into_inner().overall_code(), Code::OverLimit);
    }
}

#[tokio::test]
async fn a_deadline_that_is_over_passes_nothing() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    // Without tonic's client, which cancels calls itself.
    let connection = tokio::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).await.unwrap();
    let (mut client, connection) = h2::client::handshake(connection).await.unwrap();
    tokio::spawn(connection);
    let call = http::Request::post(format!("http://localhost{RATE_LIMIT}")).header("content-type", "application/grpc");
    let call = call.header("grpc-timeout", "1n").body(()).unwrap();
    let (answer, mut stream) = client.send_request(call, false).unwrap();
    let message = of(&[("open", "ann")], 1).encode_to_vec();
    let message = [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat();
    stream.send_data(message.into(), true).unwrap();
    let answer = tokio::time::timeout(SOON, answer).await.expect("it ends").unwrap();
    assert_eq!(answer.headers()["grpc-status"], (tonic::Code::DeadlineExceeded as i32).to_string().as_str());
    assert_eq!(tollgate.ask(of(&[("open", "ann")], 0)).await.unwrap().statuses[0].limit_remaining, 4);
}

#[tokio::test]
async fn a_request_that_is_too_much_work_is_refused_with_what_would_be_less() {
    let tollgate = Tollgate::start(RULES, &[]);
    let many = |number: usize| {
        let values: Vec<String> = (0..number).map(|i| i.to_string()).collect();
        let entries: Vec<[(&str, &str); 1]> = values.iter().map(|value| [("large", value.as_str())]).collect();
        request("shop", &entries.iter().map(<[_; 1]>::as_slice).collect::<Vec<_>>())
    };
    assert_eq!(tollgate.ask(many(50)).await.unwrap().overall_code(), Code::Ok);
    let error = tollgate.ask(many(100)).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    assert!(error.message().contains("send fewer descriptors at once"), "{error:?}");
}

#[tokio::test]
async fn no_number_on_the_wire_lifts_a_ban_or_frees_what_others_hold() {
    let (services, _redis) = on_both(RULES);
    for tollgate in &services {
        // The last of them brings a ban.
        for expected in [Code::Ok, Code::OverLimit] {
            assert_eq!(code(tollgate, &[("strict", "ann")], 4).await, expected);
        }
        for stream in ["a", "b", "c"] {
            assert_eq!(code(tollgate, &[("report", "all"), ("stream", stream)], 1).await, Code::Ok);
        }
        for hits in [1 << 53, (1 << 53) - 1, u32::MAX.into()] {
            assert_eq!(code(tollgate, &[("strict", "ann")], -hits).await, Code::Ok);
            assert_eq!(code(tollgate, &[("report", "all"), ("stream", "x")], -hits).await, Code::Ok);
        }
        assert_eq!(code(tollgate, &[("strict", "ann")], 1).await, Code::OverLimit, "the ban holds");
        assert_eq!(code(tollgate, &[("report", "all"), ("stream", "x")], 1).await, Code::OverLimit);
        let refused = tollgate.ask(of(&[("kept", "ann")], -1)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    }
}

#[tokio::test]
async fn concurrency_is_a_bound_also_for_streams_of_one_name() {
    let (services, _redis) = on_both(RULES);
    for tollgate in &services {
        let stream = [("report", "all"), ("stream", "same")];
        for expected in [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
            assert_eq!(code(tollgate, &stream, 1).await, expected);
        }
        // Envoy ends the fourth, too.
        assert_eq!(code(tollgate, &stream, -1).await, Code::Ok);
        assert_eq!(code(tollgate, &stream, 1).await, Code::OverLimit, "three are in progress");
        // That hit, and one of the three.
        for _ in 0..2 {
            code(tollgate, &stream, -1).await;
        }
        assert_eq!(code(tollgate, &stream, 1).await, Code::Ok);
    }
}

#[tokio::test]
async fn a_limit_that_a_request_brings_along_is_another_counter_than_the_rules() {
    let rules = "
domain: shop
descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 4, algorithm: token_bucket}}]
defaults: {algorithm: token_bucket}
";
    let (services, _redis) = on_both(rules);
    for tollgate in &services {
        let remaining = |response: RateLimitResponse| response.statuses[0].limit_remaining;
        let mut brought = of(&[("user", "ann")], 1);
        brought.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit: 1_000, unit: 6, unit_multiplier: None });
        assert_eq!(remaining(tollgate.ask(brought.clone()).await.unwrap()), 999);
        use_up(tollgate, "user").await;
        assert_eq!(remaining(tollgate.ask(brought).await.unwrap()), 998, "and neither is used up by the other");
    }
}

#[tokio::test]
async fn no_prefix_and_domain_make_the_names_of_others() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let rules = |domain: &str| {
        format!("domain: {domain}\ndescriptors: [{{key: user, rate_limit: {{unit: year, requests_per_unit: 1}}}}]")
    };
    let one = Tollgate::start(&rules("bd"), &[&url, "CACHE_KEY_PREFIX=a"]);
    let other = Tollgate::start(&rules("d"), &[&url, "CACHE_KEY_PREFIX=ab"]);
    assert!(one.passes("bd", &[("user", "ann")]).await);
    assert!(other.passes("d", &[("user", "ann")]).await, "they are two counters");
}

/// The rules with another text in place of one, once they are in force.
async fn change(tollgate: &Tollgate, rules: &str) {
    let loads = async || tollgate.metric("tollgate_rules_loads_total{result=\"success\"}");
    let before = loads().await;
    tollgate.change_rules(rules);
    wait_until_async("the new rules are in force", async || loads().await > before).await;
}

#[tokio::test]
async fn a_bucket_that_was_emptied_under_a_faster_rule_does_not_come_back_full() {
    let rules = |number: u32| {
        format!(
            "domain: shop\ndescriptors: [{{key: user, rate_limit: {{period: 1s, \
             requests_per_unit: {number}, burst: 1000, algorithm: token_bucket}}}}]"
        )
    };
    let (services, _redis) = on_both(&rules(1_000));
    for tollgate in &services {
        assert_eq!(code(tollgate, &[("user", "ann")], 1_000).await, Code::Ok);
        change(tollgate, &rules(1)).await;
        // Long enough for the faster rule to refill it.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let remaining = tollgate.ask(of(&[("user", "ann")], 0)).await.unwrap().statuses[0].limit_remaining;
        assert!(remaining < 500, "{remaining} remain");
    }
}

#[tokio::test]
async fn a_ban_that_is_made_longer_lasts_so_long() {
    let rules = |ban: &str| {
        format!(
            "domain: shop\ndescriptors: [{{key: user, rate_limit: {{period: 1ms, \
             requests_per_unit: 1, penalty: {{after: 1, within: 1h, ban: {ban}}}}}}}]"
        )
    };
    let (services, _redis) = on_both(&rules("300ms"));
    for tollgate in &services {
        assert_eq!(code(tollgate, &[("user", "ann")], 2).await, Code::OverLimit);
        change(tollgate, &rules("60s")).await;
        // Long enough for the shorter ban to end.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(code(tollgate, &[("user", "ann")], 1).await, Code::OverLimit);
    }
}

#[tokio::test]
async fn in_failure_mode_local_nobody_is_banned() {
    let redis = Redis::stopped();
    let rules = RULES.replace(
        "unit: year, requests_per_unit: 4, failure_mode: local, penalty",
        "period: 1ms, requests_per_unit: 1, failure_mode: local, penalty",
    );
    let tollgate = Tollgate::start(&rules, &[&format!("REDIS_URL={}", redis.url())]);
    assert_eq!(code(&tollgate, &[("strict", "ann")], 2).await, Code::OverLimit);
    let passes = async || code(&tollgate, &[("strict", "ann")], 1).await == Code::Ok;
    wait_until_async("the limit lets pass again", passes).await;
}

#[tokio::test]
async fn memory_is_bounded_and_at_the_bound_failure_modes_answer_for_new_counters() {
    let tollgate = Tollgate::start(RULES, &["MEMORY_STORE_SIZE_IN_BYTES=20000"]);
    use_up(&tollgate, "open").await;
    let mut denied = 0;
    for user in 0..500 {
        denied += usize::from(code(&tollgate, &[("closed", &user.to_string())], 1).await == Code::OverLimit);
        assert_eq!(code(&tollgate, &[("open", &user.to_string())], 1).await, Code::Ok);
    }
    assert!((300..500).contains(&denied), "{denied} of 500");
    assert!(tollgate.metric("tollgate_memory_bytes") <= 20_000.0);
    assert!(tollgate.metric("tollgate_store_errors_total{kind=\"full\"}") > 0.0);
    assert_eq!(code(&tollgate, &[("open", "ann")], 1).await, Code::OverLimit, "what is used up stays so");
}
