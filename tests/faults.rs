//! When Redis fails: every request is answered by its limits' failure modes, in time, and limits are back when Redis is.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::wait_until_async;
use tollgate::wire::RateLimitResponse;
use tollgate::wire::rate_limit_descriptor::RateLimitOverride;
use tollgate::wire::rate_limit_response::Code;
use tonic::Status;

/// One rule for each failure mode, all with a limit of 4 (a token bucket that refills in a year, so that no window ends).
const RULES: &str = "
domain: shop
defaults: {algorithm: token_bucket}
descriptors:
  - {key: open, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: closed, name: strict}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: local}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: error}}
";

const DOWN: &str = "tollgate_store_errors_total{kind=\"down\"}";
const TIMEOUT: &str = "tollgate_store_errors_total{kind=\"timeout\"}";

async fn ask(tollgate: &Tollgate, key: &str, value: &str) -> Result<RateLimitResponse, Status> {
    tollgate.ask(request("shop", &[&[(key, value)]])).await
}

async fn code(tollgate: &Tollgate, key: &str, value: &str) -> Code {
    ask(tollgate, key, value).await.unwrap().overall_code()
}

/// Every mode answers as it says, for a user nobody has seen.
async fn assert_failure_modes(tollgate: &Tollgate, user: &str) {
    for _ in 0..6 {
        assert_eq!(code(tollgate, "open", user).await, Code::Ok);
        let closed = ask(tollgate, "closed", user).await.unwrap();
        assert_eq!(closed.overall_code(), Code::OverLimit);
        assert_eq!(
            closed.statuses[0].current_limit.as_ref().unwrap().name,
            "strict",
            "the status still names its limit"
        );
        let error = ask(tollgate, "error", user).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unavailable);
    }
    // A quarter of 4, because four replicas share the traffic.
    assert_eq!(code(tollgate, "local", user).await, Code::Ok);
    assert_eq!(code(tollgate, "local", user).await, Code::OverLimit);
}

/// Redis decides again: what it lets pass is exactly the limit.
async fn assert_limits_are_back(tollgate: &Tollgate, user: &str) {
    let mut probers = 0;
    wait_until_async("the store decides again", async || {
        probers += 1;
        // Only a store lets this pass.
        code(tollgate, "closed", &format!("{user}{probers}")).await == Code::Ok
    })
    .await;
    assert_eq!(tollgate.metric("tollgate_store_up"), 1.0);
    for key in ["open", "closed", "local", "error"] {
        let mut passed = 0;
        for _ in 0..6 {
            passed += u32::from(code(tollgate, key, user).await == Code::Ok);
        }
        assert_eq!(passed, 4, "{key}");
    }
}

fn start(redis_url: &str) -> Tollgate {
    Tollgate::start(RULES, &[&format!("REDIS_URL={redis_url}"), "EXPECTED_REPLICAS=4"])
}

async fn wait_until_down(tollgate: &Tollgate) {
    wait_until_async("the store is known to be down", async || {
        let _ = code(tollgate, "open", "prober").await;
        tollgate.metric("tollgate_store_up") == 0.0
    })
    .await;
}

#[tokio::test]
async fn a_frozen_redis() {
    let redis = Redis::start();
    let tollgate = start(&redis.url());
    assert_limits_are_back(&tollgate, "before").await;
    redis.freeze();
    assert_failure_modes(&tollgate, "during").await;
    redis.thaw();
    assert_limits_are_back(&tollgate, "after").await;
}

#[tokio::test]
async fn a_killed_and_restarted_redis() {
    let mut redis = Redis::start();
    let tollgate = start(&redis.url());
    assert_limits_are_back(&tollgate, "before").await;
    redis.kill();
    assert_failure_modes(&tollgate, "during").await;
    redis.restart();
    assert_limits_are_back(&tollgate, "after").await;
}

#[tokio::test]
async fn a_redis_that_is_not_there_when_the_service_starts() {
    let mut redis = Redis::stopped();
    let tollgate = start(&redis.url());
    assert_failure_modes(&tollgate, "before").await;
    tollgate.must_log("redis cannot be reached");
    redis.restart();
    assert_limits_are_back(&tollgate, "after").await;
    tollgate.must_log("redis is up");
}

#[tokio::test]
async fn a_redis_without_memory() {
    let redis = Redis::start();
    let tollgate = start(&redis.url());
    redis.command::<()>("CONFIG SET maxmemory 1").await;
    assert_failure_modes(&tollgate, "during").await;
    redis.command::<()>("CONFIG SET maxmemory 0").await;
    assert_limits_are_back(&tollgate, "after").await;
}

#[tokio::test]
async fn a_redis_that_became_a_replica() {
    let redis = Redis::start();
    let tollgate = start(&redis.url());
    redis.command::<()>("REPLICAOF 127.0.0.1 1").await;
    assert_failure_modes(&tollgate, "during").await;
    redis.command::<()>("REPLICAOF NO ONE").await;
    assert_limits_are_back(&tollgate, "after").await;
}

#[tokio::test]
async fn a_redis_that_wants_a_password_and_a_service_that_has_another() {
    let redis = Redis::start_with(&["--requirepass", "sesame"]);
    let tollgate = Tollgate::start(
        RULES,
        &[&format!("REDIS_URL={}", redis.url()), "REDIS_AUTH=open-barley", "EXPECTED_REPLICAS=4", "LOG_LEVEL=debug"],
    );
    assert_failure_modes(&tollgate, "during").await;
    assert!(!format!("{:?}", tollgate.logs()).contains("open-barley"), "a password is in the logs");

    let right = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url()), "REDIS_AUTH=sesame"]);
    assert_limits_are_back(&right, "right").await;
    assert!(!format!("{:?}", right.logs()).contains("sesame"), "a password is in the logs");
}

#[tokio::test]
async fn a_redis_that_is_loading() {
    // Only a large data set makes a real Redis load for long; this stands in with its words.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(b"-LOADING Redis is loading the dataset in memory\r\n");
                }
            });
        }
    });
    let tollgate = start(&address.to_string());
    assert_failure_modes(&tollgate, "during").await;
}

#[tokio::test]
async fn a_black_hole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let tollgate = start(&address.to_string());
    assert_failure_modes(&tollgate, "during").await;
    // A Redis takes the place of the hole.
    drop(listener);
    let mut redis = Redis::stopped_at(address.port());
    redis.restart();
    assert_limits_are_back(&tollgate, "after").await;
}

#[tokio::test]
async fn a_port_that_refuses() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let tollgate = start(&address.to_string());
    assert_failure_modes(&tollgate, "during").await;
}

#[tokio::test]
async fn a_counter_that_somebody_else_has_written() {
    let redis = Redis::start();
    let tollgate = start(&redis.url());
    redis.command::<()>("LPUSH {shop|closed=ann}|tb1:31536000000 x").await;
    assert_eq!(code(&tollgate, "closed", "ann").await, Code::OverLimit);
    assert_limits_are_back(&tollgate, "bob").await;
    assert!(tollgate.metric("tollgate_store_errors_total{kind=\"counter\"}") >= 1.0);
}

#[tokio::test]
async fn the_callers_deadline_is_kept_even_where_the_store_may_take_longer() {
    let redis = Redis::start();
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url()), "REDIS_TIMEOUT=60s"]);
    redis.freeze();
    for (key, expected) in [("open", Code::Ok), ("closed", Code::OverLimit)] {
        let mut call = tonic::Request::new(request("shop", &[&[(key, "ann")]]));
        call.set_timeout(Duration::from_secs(2));
        let response = tollgate.client().await.should_rate_limit(call).await;
        assert_eq!(
            response.expect("the failure mode answers before the deadline").into_inner().overall_code(),
            expected
        );
    }
    assert_eq!(tollgate.metric(TIMEOUT), 2.0);
    redis.thaw();
}

#[tokio::test]
async fn while_the_store_is_known_to_be_down_nobody_waits_for_it() {
    let redis = Redis::start();
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url()), "REDIS_TIMEOUT=500ms"]);
    redis.freeze();
    wait_until_down(&tollgate).await;
    let (down, timeout) = (tollgate.metric(DOWN), tollgate.metric(TIMEOUT));
    for _ in 0..100 {
        assert_eq!(code(&tollgate, "open", "ann").await, Code::Ok);
    }
    assert_eq!(tollgate.metric(DOWN), down + 100.0);
    assert_eq!(tollgate.metric(TIMEOUT), timeout);
    let told = tollgate
        .logs()
        .iter()
        .filter(|line| line["message"].as_str().is_some_and(|text| text.contains("could not decide")))
        .count();
    assert!(told <= 5, "a hundred failures made {told} lines");
    assert!(tollgate.metric("tollgate_failure_mode_answers_total{mode=\"open\"}") >= 100.0);
    redis.thaw();
    assert_limits_are_back(&tollgate, "after").await;
}

#[tokio::test]
async fn each_limit_of_a_request_answers_by_its_own_mode() {
    let mut redis = Redis::start();
    let tollgate = start(&redis.url());
    redis.kill();
    wait_until_down(&tollgate).await;
    let of = |keys: &[&str]| {
        let descriptors: Vec<_> = keys.iter().map(|key| [(*key, "ann")]).collect();
        let descriptors: Vec<&[(&str, &str)]> = descriptors.iter().map(<[_; 1]>::as_slice).collect();
        request("shop", &descriptors)
    };
    let response = tollgate.ask(of(&["open", "closed", "local"])).await.unwrap();
    let codes: Vec<_> = response.statuses.iter().map(|status| status.code()).collect();
    assert_eq!((response.overall_code(), codes), (Code::OverLimit, vec![Code::Ok, Code::OverLimit, Code::Ok]));
    // The request that `closed` denied was charged to nobody.
    for expected in [Code::Ok, Code::OverLimit] {
        assert_eq!(tollgate.ask(of(&["open", "local"])).await.unwrap().overall_code(), expected);
    }
    assert_eq!(tollgate.ask(of(&["open", "error"])).await.unwrap_err().code(), tonic::Code::Unavailable);
    assert_eq!(tollgate.ask(of(&["unknown"])).await.unwrap().overall_code(), Code::Ok, "no rule, no store");
}

#[tokio::test]
async fn a_failure_mode_is_the_limits_or_else_the_files_or_else_the_settings() {
    let redis = Redis::stopped();
    let rules = |defaults: &str| {
        format!(
            "domain: shop\n{defaults}descriptors:\n  - {{key: own, rate_limit: {{unit: day, requests_per_unit: 4, failure_mode: open}}}}\n  - {{key: other, rate_limit: {{unit: day, requests_per_unit: 4}}}}\n"
        )
    };
    let url = format!("REDIS_URL={}", redis.url());
    let by_setting = Tollgate::start(&rules(""), &[&url, "FAILURE_MODE=closed"]);
    assert_eq!(code(&by_setting, "own", "ann").await, Code::Ok);
    assert_eq!(code(&by_setting, "other", "ann").await, Code::OverLimit);
    let by_file = Tollgate::start(&rules("defaults: {failure_mode: error}\n"), &[&url, "FAILURE_MODE=closed"]);
    assert_eq!(code(&by_file, "own", "ann").await, Code::Ok);
    assert_eq!(ask(&by_file, "other", "ann").await.unwrap_err().code(), tonic::Code::Unavailable);
    // What a client brings along has the file's, too.
    let mut overriding = request("shop", &[&[("any", "ann")]]);
    overriding.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 1 });
    assert_eq!(by_file.ask(overriding.clone()).await.unwrap_err().code(), tonic::Code::Unavailable);
    assert_eq!(by_setting.ask(overriding).await.unwrap().overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn in_shadow_mode_not_even_an_error_denies() {
    let redis = Redis::stopped();
    let url = format!("REDIS_URL={}", redis.url());
    let shadow = RULES.replace("{key: error,", "{key: error, shadow_mode: true,");
    for tollgate in [Tollgate::start(RULES, &[&url, "SHADOW_MODE=true"]), Tollgate::start(&shadow, &[&url])] {
        assert_eq!(code(&tollgate, "error", "ann").await, Code::Ok);
    }
}

#[tokio::test]
async fn what_a_failure_mode_answers_is_not_counted_as_the_limits_own_word() {
    let redis = Redis::stopped();
    let tollgate = start(&redis.url());
    for key in ["open", "closed"] {
        code(&tollgate, key, "ann").await;
        let hits = |what: &str| tollgate.metric(&format!("tollgate_{what}{{domain=\"shop\",rule=\"{key}\"}}"));
        let told = [hits("hits_total"), hits("within_limit_hits_total"), hits("over_limit_hits_total")];
        assert_eq!(told, [1.0, 0.0, 0.0], "{key}");
    }
    assert_eq!(tollgate.metric("tollgate_store_seconds_count"), 0.0, "it was not asked");
    assert_eq!(tollgate.metric("tollgate_failure_mode_answers_total{mode=\"closed\"}"), 1.0);
}

/// Passes bytes on to Redis and back, each way with a delay, as a network does.
fn far_away(redis: &Redis) -> String {
    let (listener, address) = (TcpListener::bind("127.0.0.1:0").unwrap(), redis.tcp_address());
    let far = listener.local_addr().unwrap().to_string();
    let pass_on = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                std::thread::sleep(Duration::from_millis(3));
                if to.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
        });
    };
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(&address) else { continue };
            pass_on(near.try_clone().unwrap(), far.try_clone().unwrap());
            pass_on(far, near);
        }
    });
    far
}

#[tokio::test]
async fn many_connections_to_a_redis_far_away() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", far_away(&redis));
    // One after the other they would take longer than any one of them may.
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_POOL_SIZE=100", "REDIS_TIMEOUT=500ms"]);
    assert_limits_are_back(&tollgate, "ann").await;
    assert!(tollgate.logged("redis cannot be reached").is_none());
}

#[tokio::test]
async fn a_link_that_comes_and_goes_does_not_fill_the_logs() {
    let redis = Redis::start();
    let tollgate = start(&redis.url());
    for round in 0..10 {
        redis.command::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
        assert_limits_are_back(&tollgate, &format!("round{round}-")).await;
    }
    let told = |start: &str| {
        tollgate
            .logs()
            .iter()
            .filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with(start)))
            .count()
    };
    assert!(told("redis is down") <= 2 && told("redis is up") <= 2, "{:?}", tollgate.logs());
}

#[tokio::test]
async fn a_lost_connection_is_made_anew_by_itself() {
    let redis = Redis::start();
    let tollgate = start(&redis.url());
    for round in 0..3 {
        redis.command::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
        assert_limits_are_back(&tollgate, &format!("round{round}")).await;
    }
}
