//! Outages of Redis: failure modes answer every request in time, and limits work again when Redis returns.

use crate::support;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::{wait_until, wait_until_async};
use tollgate::engine::algorithm::Algorithm;
use tollgate::wire::RateLimitResponse;
use tollgate::wire::details::Details;
use tollgate::wire::rate_limit_descriptor::RateLimitOverride;
use tollgate::wire::rate_limit_response::{Code, DescriptorStatus};
use tonic::Status;

/// One rule for each failure mode, all with a limit of 4: token buckets that refill within a year, so no window ends
/// during a test.
const RULES: &str = "
domain: shop
defaults: {algorithm: token_bucket}
descriptors:
  - {key: open, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: closed, name: strict}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: local}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: error}}
";

/// One script for all requests, one for those with leases, and for each algorithm one for single checks.
const SCRIPTS: usize = 2 + Algorithm::ALL.len();

const DOWN: &str = "tollgate_store_errors_total{kind=\"down\"}";
const TIMEOUT: &str = "tollgate_store_errors_total{kind=\"timeout\"}";

async fn ask(tollgate: &Tollgate, key: &str, value: &str) -> Result<RateLimitResponse, Status> {
    tollgate.ask(request("shop", &[&[(key, value)]])).await
}

async fn code(tollgate: &Tollgate, key: &str, value: &str) -> Code {
    ask(tollgate, key, value).await.unwrap().overall_code()
}

/// Asserts that every failure mode answers as documented, for a new user.
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

/// Asserts that Redis decides again and allows exactly the limit.
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
    tollgate.must_log("redis cannot be used");
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
    // A stand-in with Redis's reply; a real Redis takes long to load only with a large data set.
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
    for expected in [Code::Ok, Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(code(&tollgate, "closed", "ann").await, expected);
    }
    assert_eq!(tollgate.metric(DAMAGED), 1.0);
    let hash = blake3::hash(b"{shop|closed=ann}|tb1:31536000000").to_hex().to_string();
    let line = tollgate.must_log("damaged counters were treated as new ones");
    assert!(line.to_string().contains(&hash), "{line}");
    assert!(!format!("{:?}", tollgate.logs()).contains("closed=ann"), "values are for LOG_LEVEL=debug");
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
    assert!(tollgate.metric("tollgate_failure_mode_answers_total{decided_by=\"failure_mode_open\"}") >= 100.0);
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
    // The request that `closed` denied was not charged to any other limit.
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
            "domain: shop\n{defaults}descriptors:\n\
             - {{key: own, rate_limit: {{unit: day, requests_per_unit: 4, failure_mode: open}}}}\n\
             - {{key: other, rate_limit: {{unit: day, requests_per_unit: 4}}}}\n"
        )
    };
    let url = format!("REDIS_URL={}", redis.url());
    let by_setting = Tollgate::start(&rules(""), &[&url, "FAILURE_MODE=closed"]);
    assert_eq!(code(&by_setting, "own", "ann").await, Code::Ok);
    assert_eq!(code(&by_setting, "other", "ann").await, Code::OverLimit);
    let by_file = Tollgate::start(&rules("defaults: {failure_mode: error}\n"), &[&url, "FAILURE_MODE=closed"]);
    assert_eq!(code(&by_file, "own", "ann").await, Code::Ok);
    assert_eq!(ask(&by_file, "other", "ann").await.unwrap_err().code(), tonic::Code::Unavailable);
    // Limits that requests supply use the file's failure mode as well.
    let mut overriding = request("shop", &[&[("any", "ann")]]);
    overriding.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 1, unit_multiplier: None });
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
    for (key, rule) in [("open", "open"), ("closed", "strict")] {
        code(&tollgate, key, "ann").await;
        let hits = |what: &str| tollgate.metric(&format!("tollgate_{what}{{domain=\"shop\",rule=\"{rule}\"}}"));
        let told = [hits("hits_total"), hits("within_limit_hits_total"), hits("over_limit_hits_total")];
        assert_eq!(told, [1.0, 0.0, 0.0], "{key}");
    }
    assert_eq!(tollgate.metric("tollgate_store_seconds_count"), 0.0, "it was not asked");
    assert_eq!(tollgate.metric("tollgate_failure_mode_answers_total{decided_by=\"failure_mode_closed\"}"), 1.0);
}

/// Passes bytes on to Redis and back, as a network does.
struct Network {
    address: String,
    connections: Arc<Mutex<Vec<Arc<Wire>>>>,
}

/// A connection.
#[derive(Default)]
struct Wire {
    /// Accepts bytes and forwards none.
    is_cut: AtomicBool,
    /// Cut when this text is sent over it.
    cut_by: Mutex<Option<&'static str>>,
    /// The bytes sent by the service.
    sent: Mutex<Vec<u8>>,
}

impl Wire {
    fn carries(&self, text: &str) -> bool {
        self.times(text) > 0
    }

    /// Returns the number of times this text was sent.
    fn times(&self, text: &str) -> usize {
        self.sent.lock().unwrap().windows(text.len()).filter(|part| *part == text.as_bytes()).count()
    }
}

impl Network {
    /// With a delay, each way, by the number of the connection.
    fn to(redis: &Redis, delay: impl Fn(usize) -> Duration + Send + 'static) -> Network {
        let (listener, redis) = (TcpListener::bind("127.0.0.1:0").unwrap(), redis.tcp_address());
        let address = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let made = Arc::clone(&connections);
        std::thread::spawn(move || {
            for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
                let Ok(far) = TcpStream::connect(&redis) else { continue };
                let (wire, delay) = (Arc::<Wire>::default(), delay(number));
                made.lock().unwrap().push(Arc::clone(&wire));
                pass_on(near.try_clone().unwrap(), far.try_clone().unwrap(), Arc::clone(&wire), delay, true);
                pass_on(far, near, wire, delay, false);
            }
        });
        Network { address, connections }
    }

    fn wires(&self) -> Vec<Arc<Wire>> {
        self.connections.lock().unwrap().clone()
    }

    /// The connection that has carried this.
    async fn carrier(&self, text: &str) -> Arc<Wire> {
        let find = || self.wires().into_iter().find(|wire| wire.carries(text));
        wait_until_async("the service has asked", async || find().is_some()).await;
        find().unwrap()
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, wire: Arc<Wire>, delay: Duration, is_sent: bool) {
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if is_sent {
                wire.sent.lock().unwrap().extend_from_slice(&buffer[..read]);
                if wire.cut_by.lock().unwrap().is_some_and(|text| wire.carries(text)) {
                    wire.is_cut.store(true, Ordering::Relaxed);
                }
            }
            std::thread::sleep(delay);
            if !wire.is_cut.load(Ordering::Relaxed) && to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        // A connection closed by one side is closed for the other.
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}

#[tokio::test]
async fn many_connections_to_a_redis_far_away() {
    let redis = Redis::start();
    let network = Network::to(&redis, |_| Duration::from_millis(3));
    let url = format!("REDIS_URL={}", network.address);
    // One after the other would take longer than the time allowed for each.
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_POOL_SIZE=100", "REDIS_TIMEOUT=500ms"]);
    assert_limits_are_back(&tollgate, "ann").await;
    assert!(tollgate.logged("redis cannot be used").is_none());
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
async fn where_redis_ends_no_line_says_that_others_are_left() {
    let mut redis = Redis::start();
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url()), "REDIS_POOL_SIZE=8"]);
    assert_limits_are_back(&tollgate, "ann").await;
    redis.kill();
    wait_until_down(&tollgate).await;
    tollgate.must_log("redis is down");
    let says_so = |line: &Value| line["message"].as_str().is_some_and(|text| text.ends_with("connections still work"));
    assert!(!tollgate.logs().iter().any(says_so), "{:?}", tollgate.logs());
}

#[tokio::test]
async fn the_last_line_of_redis_says_what_is_so_when_the_process_ends() {
    for is_up in [true, false] {
        let mut redis = Redis::start();
        let mut tollgate = start(&redis.url());
        assert_limits_are_back(&tollgate, "ann").await;
        for round in 0..2 {
            redis.kill();
            wait_until_down(&tollgate).await;
            if is_up || round == 0 {
                redis.restart();
                assert_limits_are_back(&tollgate, &format!("round{round}-")).await;
            }
        }
        tollgate.signal("TERM");
        assert!(tollgate.wait().success());
        let logs = tollgate.logs();
        // A connection that failed while another was being opened also logs that Redis is up.
        let says_up = |text: &str| match text {
            _ if text.starts_with("redis is up") || text.ends_with("other connections still work") => Some(true),
            _ if text.starts_with("redis is ") => Some(false),
            _ => None,
        };
        let last = logs.iter().filter_map(|line| says_up(line["message"].as_str()?)).next_back();
        assert_eq!(last, Some(is_up), "{logs:?}");
        let bye = logs.last().unwrap()["message"].as_str().unwrap();
        assert!(bye.contains("exiting"), "the last line of the process comes after it: {logs:?}");
    }
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

const CONNECTION: &str = "tollgate_store_errors_total{kind=\"connection\"}";
const REFUSED: &str = "tollgate_store_errors_total{kind=\"refused\"}";
const DAMAGED: &str = "tollgate_damaged_counters_total";

/// Returns the number of script calls for the service's own checks and connections, without these calls for requests.
fn calls_for_nothing(redis: &Redis, requests: u32) -> u32 {
    let calls = redis.calls();
    // The test's own; by `CLIENT` a connection names itself, which not every version counts.
    let is_tests = |command: &str| command == "info" || command.starts_with("config") || command.starts_with("client");
    let commands_of_script =
        ["time", "get", "set", "setrange", "del", "hget", "hmget", "hgetall", "hset", "hdel", "pexpire", "pttl"];
    let others = calls.iter().filter(|(command, _)| !is_tests(command) && !commands_of_script.contains(&&**command));
    let calls: u32 = others.map(|(_, calls)| *calls).sum();
    // Subtracts the heartbeats of instances.
    calls - redis.calls_of("hmget") - requests
}

#[tokio::test]
async fn while_nobody_asks_redis_is_left_alone() {
    let redis = Redis::start();
    let _tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url()), "REDIS_POOL_SIZE=8"]);
    wait_until("each script is loaded once for all connections, and those of rights, replicas and seats", || {
        redis.calls_of("script|load") as usize == 3 + SCRIPTS
    });
    redis.forget_calls();
    tokio::time::sleep(Duration::from_secs(4)).await;
    // A call is 10 to 20 us; 50 us a second for each of them would be some 100.
    let calls = calls_for_nothing(&redis, 0);
    assert!(calls <= 16, "{calls} calls in 4 s for 8 connections: {:?}", redis.calls());
    assert_eq!(redis.calls_of("script|load"), 0);
    // A second service finds the script there.
    let _other = start(&redis.url());
    assert_eq!(redis.calls_of("script|load"), 0);
}

#[tokio::test]
async fn a_hot_counter_that_is_damaged_costs_redis_its_own_calls_only() {
    let redis = Redis::start();
    let tollgate = start(&redis.url());
    redis.forget_calls();
    const ASKED: u32 = 200;
    for _ in 0..ASKED {
        redis.command::<()>("DEL {shop|closed=ann}|tb1:31536000000").await;
        redis.command::<()>("LPUSH {shop|closed=ann}|tb1:31536000000 x").await;
        assert_eq!(code(&tollgate, "closed", "ann").await, Code::Ok);
    }
    assert_eq!(tollgate.metric(DAMAGED), f64::from(ASKED));
    let calls = calls_for_nothing(&redis, ASKED + redis.calls_of("lpush"));
    assert!(calls <= 8, "{calls} calls besides those of {ASKED} requests");
    assert_eq!(tollgate.metric("tollgate_store_up"), 1.0);
}

#[tokio::test]
async fn a_caller_in_a_hurry_is_no_reason_to_suspect_redis() {
    let redis = Redis::start();
    let network = Network::to(&redis, |_| Duration::from_millis(300));
    let url = format!("REDIS_URL={}", network.address);
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_TIMEOUT=30s"]);
    let is_told = async || redis.command::<bool>("EXISTS {|replicas}|heard").await;
    wait_until_async("it has told the other replicas of itself", is_told).await;
    redis.forget_calls();
    for _ in 0..10 {
        let mut call = tonic::Request::new(request("shop", &[&[("closed", "ann")]]));
        call.set_timeout(Duration::from_millis(100));
        let _ = tollgate.client().await.should_rate_limit(call).await;
    }
    assert!(tollgate.metric(TIMEOUT) >= 5.0);
    assert_eq!(code(&tollgate, "closed", "bob").await, Code::Ok, "a caller that has time is answered");
    let calls = calls_for_nothing(&redis, 0);
    assert!(calls <= 11, "{calls} calls for 11 requests: {:?}", redis.calls());
    assert_eq!(redis.calls_of("script|load"), 0);
    assert_eq!(tollgate.metric("tollgate_store_up"), 1.0);
}

#[tokio::test]
async fn a_service_that_was_stopped_does_not_take_redis_for_silent() {
    let redis = Redis::start();
    let network = Network::to(&redis, |_| Duration::from_millis(20));
    let url = format!("REDIS_URL={}", network.address);
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_TIMEOUT=2s", "REDIS_POOL_SIZE=1", "WORKER_THREADS=1"]);
    let is_told = async || redis.command::<bool>("EXISTS {|replicas}|heard").await;
    wait_until_async("its connections are made", is_told).await;
    redis.forget_calls();
    let mut client = tollgate.client().await;
    let call = tokio::spawn(async move { client.should_rate_limit(request("shop", &[&[("closed", "ann")]])).await });
    network.carrier("closed=ann").await;
    tollgate.signal("STOP");
    tokio::time::sleep(Duration::from_secs(3)).await;
    tollgate.signal("CONT");
    // The call's deadline has passed, and its request was answered long ago.
    let _ = call.await.unwrap();
    assert_eq!(code(&tollgate, "closed", "bob").await, Code::Ok);
    // To replace a connection takes some four.
    assert!(calls_for_nothing(&redis, 2) <= 1, "there was nothing to check");
    assert!(tollgate.logged("redis is down").is_none());
}

#[tokio::test]
async fn a_user_without_the_right_to_decide_is_a_redis_that_is_down_and_the_log_says_why() {
    for right in ["evalsha", "set"] {
        let words = format!("its user may not run {}; this grants", right.to_uppercase());
        let says_why = |told: &Value| told["error"].as_str().unwrap().contains(&words);
        let redis = Redis::start();
        redis.command::<()>(&format!("ACL SETUSER toll on >gate ~* +@all -{right}")).await;
        let tollgate = Tollgate::start(
            RULES,
            &[&format!("REDIS_URL={}", redis.url()), "REDIS_AUTH=toll:gate", "EXPECTED_REPLICAS=4"],
        );
        assert_eq!(tollgate.metric("tollgate_store_up"), 0.0);
        assert_failure_modes(&tollgate, "during").await;
        let told = tollgate.must_log("redis cannot be used");
        assert!(says_why(&told), "{told}");

        redis.command::<()>(&format!("ACL SETUSER toll +{right}")).await;
        assert_limits_are_back(&tollgate, "after").await;

        // The same while it runs.
        redis.command::<()>(&format!("ACL SETUSER toll -{right}")).await;
        wait_until_down(&tollgate).await;
        assert_failure_modes(&tollgate, "again").await;
        let told = tollgate.must_log("redis is down");
        assert!(says_why(&told), "{told}");
        assert!(tollgate.metric(REFUSED) >= 1.0);
    }
}

/// Asks over several connections, and counts what the store has not decided, until this ends.
async fn ask_all_the_time(tollgate: &Tollgate, what: impl Future<Output = ()>) -> (u32, u32) {
    let (asked, undecided) = (AtomicU32::new(0), AtomicU32::new(0));
    let channels = futures_util::future::join_all((0..4).map(|_| tollgate.client())).await;
    let load = futures_util::future::join_all((0..32).map(|i| {
        let (mut client, asked, undecided) = (channels[i % 4].clone(), &asked, &undecided);
        async move {
            for n in 0.. {
                let request = request("shop", &[&[("error", &format!("{i}-{n}"))]]);
                let answer = client.should_rate_limit(request).await;
                asked.fetch_add(1, Ordering::Relaxed);
                undecided.fetch_add(answer.is_err().into(), Ordering::Relaxed);
            }
        }
    }));
    tokio::select! { _ = load => {} () = what => {} }
    (asked.into_inner(), undecided.into_inner())
}

#[tokio::test]
async fn of_several_connections_a_lost_one_concerns_only_the_calls_on_it() {
    // Several of a thread's own, and one alone.
    for threads in [2, 8] {
        assert_a_lost_connection_concerns_only_the_calls_on_it(&format!("WORKER_THREADS={threads}")).await;
    }
}

async fn assert_a_lost_connection_concerns_only_the_calls_on_it(threads: &str) {
    let redis = Redis::start();
    let tollgate = Tollgate::start(
        RULES,
        &[&format!("REDIS_URL={}", redis.url()), "REDIS_POOL_SIZE=8", threads, "REDIS_TIMEOUT=10s"],
    );
    let mut test = redis.connection().await;
    let own: i64 = deadpool_redis::redis::cmd("CLIENT").arg("ID").query_async(&mut test).await.unwrap();
    let mut clients = async || -> Vec<i64> {
        let list: String = deadpool_redis::redis::cmd("CLIENT").arg("LIST").query_async(&mut test).await.unwrap();
        // The one by which adjustments are read carries no decision.
        let lines = list.lines().filter(|line| !line.contains(" cmd=get "));
        let ids = lines.filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok());
        ids.filter(|id| *id != own).collect()
    };
    // One each is for heartbeats and for seats, and a new one is opened for the next of them.
    wait_until_async("all are made", async || clients().await.len() == 8 + 2).await;
    let before = clients().await;
    let (asked, undecided) = ask_all_the_time(&tollgate, async {
        for id in &before {
            redis.command::<i64>(&format!("CLIENT KILL ID {id}")).await;
            wait_until_async("it is made anew", async || {
                let clients = clients().await;
                !clients.contains(id) && clients.len() > 9
            })
            .await;
        }
    })
    .await;
    // Each worker uses one connection at a time, with at most four calls in flight.
    assert!(undecided <= 8 * 4 * 32 / 8, "{undecided} of {asked} requests");
    assert_eq!(f64::from(undecided), tollgate.metric(CONNECTION));
    assert_eq!(tollgate.metric(DOWN), 0.0);
    assert!(tollgate.logged("redis is down").is_none());
    assert_eq!(tollgate.metric("tollgate_store_up"), 1.0);
}

#[tokio::test]
async fn a_silent_connection_is_replaced_while_another_serves() {
    let redis = Redis::start();
    let network = Network::to(&redis, |_| Duration::ZERO);
    let url = format!("REDIS_URL={}", network.address);
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_POOL_SIZE=2", "WORKER_THREADS=1", "REDIS_TIMEOUT=500ms"]);
    for round in 0..3 {
        let name = format!("round{round}");
        assert_eq!(code(&tollgate, "error", &name).await, Code::Ok);
        let (wire, before) = (network.carrier(&name).await, network.wires().len());
        wire.is_cut.store(true, Ordering::Relaxed);
        assert_eq!(ask(&tollgate, "error", &name).await.unwrap_err().code(), tonic::Code::Unavailable);
        wait_until_async("the others serve", async || ask(&tollgate, "error", &name).await.is_ok()).await;
        wait_until_async("another is made", async || network.wires().len() > before).await;
    }
    assert!(tollgate.logged("redis is down").is_none());
    assert_eq!(tollgate.metric(DOWN), 0.0);
}

#[tokio::test]
async fn one_connection_that_is_silent_is_made_anew() {
    let redis = Redis::start();
    let network = Network::to(&redis, |_| Duration::ZERO);
    let url = format!("REDIS_URL={}", network.address);
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_POOL_SIZE=1", "WORKER_THREADS=1", "REDIS_TIMEOUT=1s"]);
    assert_eq!(code(&tollgate, "error", "ann").await, Code::Ok);
    network.carrier("error=ann").await.is_cut.store(true, Ordering::Relaxed);
    wait_until_async("another serves", async || ask(&tollgate, "error", "ann").await.is_ok()).await;
    // The new connection was open before the old one was closed.
    assert!(tollgate.logged("redis is down").is_none());
}

#[tokio::test]
async fn calls_that_wait_for_the_same_script_to_be_loaded_in_vain_wait_once() {
    let redis = Redis::start();
    let network = Network::to(&redis, |_| Duration::from_millis(200));
    let url = format!("REDIS_URL={}", network.address);
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_POOL_SIZE=1", "WORKER_THREADS=1", "REDIS_TIMEOUT=2s"]);
    assert_eq!(code(&tollgate, "error", "first").await, Code::Ok);
    let wire = network.carrier("error=first").await;
    wire.sent.lock().unwrap().clear();
    *wire.cut_by.lock().unwrap() = Some("SCRIPT");
    redis.command::<()>("SCRIPT FLUSH").await;
    // As many concurrent calls as possible, all in flight before the first returns.
    let mut calls = Vec::new();
    for name in ["a1", "a2", "a3", "a4"] {
        let mut client = tollgate.client().await;
        calls.push(tokio::spawn(async move { client.should_rate_limit(request("shop", &[&[("error", name)]])).await }));
        wait_until_async("it is on its way", async || wire.carries(&format!("error={name}"))).await;
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
    }
    wait_until_async("another serves", async || ask(&tollgate, "error", "last").await.is_ok()).await;
    assert_eq!(wire.times("SCRIPT"), SCRIPTS, "each would have waited for a load of its own");
}

#[tokio::test]
async fn what_is_taken_and_what_is_given_back_keep_their_order() {
    let redis = Redis::start();
    let network = Network::to(&redis, |number| Duration::from_millis(if number % 2 == 0 { 200 } else { 0 }));
    let url = format!("REDIS_URL={}", network.address);
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_POOL_SIZE=4", "WORKER_THREADS=1", "REDIS_TIMEOUT=30s"]);
    let client = tollgate.client().await;
    let pairs = (0..8).map(|n| {
        let (client, network, name) = (client.clone(), &network, format!("user{n}"));
        let ask = move |is_negative: bool, hits: u64| {
            let mut request = request("shop", &[&[("error", &name)]]);
            request.descriptors[0].hits_addend = Some(hits);
            request.descriptors[0].is_negative_hits = is_negative;
            let mut client = client.clone();
            async move { client.should_rate_limit(request).await.unwrap().into_inner().statuses[0].limit_remaining }
        };
        async move {
            let take = tokio::spawn(ask(false, 1));
            // On its way, and not answered yet.
            network.carrier(&format!("user{n}}}|")).await;
            ask(true, 1).await;
            assert_eq!(take.await.unwrap(), 3);
            assert_eq!(ask(false, 0).await, 4, "user{n}");
        }
    });
    for pair in pairs {
        pair.await;
    }
}

#[tokio::test]
async fn an_answer_of_a_failure_mode_says_so_everywhere_and_tells_no_figures_that_nobody_knows() {
    let mut redis = Redis::start();
    let settings = [
        &*format!("REDIS_URL={}", redis.url()),
        "LIMIT_RESPONSE_HEADERS_ENABLED=true",
        "LIMIT_DECIDED_BY_HEADER=x-decided-by",
    ];
    let tollgate = Tollgate::start(RULES, &settings);
    let headers = |response: &RateLimitResponse| -> Vec<(String, String)> {
        let headers = response.response_headers_to_add.iter();
        headers.map(|header| (header.key.clone(), header.value.clone())).collect()
    };
    let header = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let decided_by = |response: &RateLimitResponse| {
        response.dynamic_metadata.as_ref().map(|metadata| Details::of_metadata(metadata).unwrap().decided_by)
    };
    let by_store = ask(&tollgate, "open", "ann").await.unwrap();
    assert_eq!(decided_by(&by_store), None, "nothing unusual");
    assert_eq!(headers(&by_store).last(), Some(&header("x-decided-by", "store")));

    redis.kill();
    wait_until_down(&tollgate).await;
    let open = ask(&tollgate, "open", "ann").await.unwrap();
    let told = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    assert_eq!((decided_by(&open).as_deref(), &open.statuses[0]), (Some("failure_mode_open"), &told));
    assert_eq!(headers(&open), [header("RateLimit-Limit", "4"), header("x-decided-by", "failure_mode_open")]);

    let mut waits = BTreeSet::new();
    for _ in 0..3 {
        let closed = ask(&tollgate, "closed", "ann").await.unwrap();
        assert_eq!(decided_by(&closed).as_deref(), Some("failure_mode_closed"));
        let wait = closed.statuses[0].duration_until_reset.unwrap().seconds;
        assert_eq!(headers(&closed)[0], header("RateLimit-Limit", "4"));
        let retry_after = [header("Retry-After", &wait.to_string()), header("x-decided-by", "failure_mode_closed")];
        assert_eq!(headers(&closed)[1..], retry_after);
        waits.insert(wait);
    }
    assert_eq!(waits, BTreeSet::from([1, 2, 3]), "not all come back at once");

    let local = ask(&tollgate, "local", "ann").await.unwrap();
    assert_eq!(decided_by(&local).as_deref(), Some("failure_mode_local"));
    assert!(local.statuses[0].current_limit.is_some(), "this process knows what it has counted");
    let error = ask(&tollgate, "error", "ann").await.unwrap_err();
    assert!(error.message().ends_with("the rule \"error\" says failure_mode: error"), "{error:?}");

    let told = tollgate.must_log("the store could not decide all limits: their failure modes answered");
    assert!(told["rules"].as_str().unwrap().starts_with("shop/open: 1 by failure_mode_open"), "{told}");
    for (rule, decided_by) in [("open", "open"), ("strict", "closed"), ("local", "local"), ("error", "error")] {
        let labels = format!("domain=\"shop\",rule=\"{rule}\",decided_by=\"failure_mode_{decided_by}\"");
        let series = format!("tollgate_rule_failure_mode_answers_total{{{labels}}}");
        assert!(tollgate.metric(&series) >= 1.0, "{series}");
    }
}

#[test]
fn ask_says_what_a_failure_mode_answered() {
    let redis = Redis::stopped();
    let tollgate = start(&redis.url());
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |words: &[&str]| {
        let mut command = support::tollgate::command();
        command.args(["ask", "--address", &address, "--domain", "shop"]).args(words);
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    for key in ["open", "closed"] {
        let (exit, out) = ask(&["--refund", &format!("{key}=ann")]);
        let ends = "): the store is unavailable and has not confirmed the refund\n";
        let begins = format!("NOT REFUNDED\n  {key}=ann: not refunded to the limit of 4 per year (");
        assert!(exit == 1 && out.starts_with(&begins) && out.ends_with(ends), "{out}");
        let (_, out) = ask(&["--refund", &format!("{key}=ann"), "--json"]);
        let json: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&json["outcome"], &json["decided_by"]), (&"not_refunded".into(), &"not_refunded".into()));
    }
    let answers = |by: &str| tollgate.metric(&format!("tollgate_failure_mode_answers_total{{decided_by=\"{by}\"}}"));
    assert_eq!((answers("not_refunded"), answers("failure_mode_open")), (4.0, 0.0));
    let (exit, out) = ask(&["--refund", "local=ann"]);
    assert!(exit == 0 && out.contains("refunded to this instance's share only"), "{out}");
    for (key, code, begins) in [
        (
            "open",
            0,
            "passed\n  open=ann: not checked against the limit of 4 per year (open): the store is \
             unavailable or has not confirmed the hits: failure_mode open allows the request\n",
        ),
        (
            "closed",
            2,
            "LIMITED\n  closed=ann: not checked against the limit of 4 per year (strict): the store is \
             unavailable or has not confirmed the hits: failure_mode closed denies the request, try again in ",
        ),
        (
            "local",
            0,
            "passed\n  local=ann: within the limit of 4 per year (local), 0 left, the store is \
             unavailable or has not confirmed the hits: failure_mode local decides with a share of the \
             limit, resets in ",
        ),
    ] {
        let entry = format!("{key}=ann");
        let (exit, out) = ask(&[&entry]);
        assert!(exit == code && out.starts_with(begins), "{out}");
        let (exit, out) = ask(&[&entry, "--json"]);
        let json: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(json["decided_by"], format!("failure_mode_{key}"), "{exit}");
        if key != "local" {
            assert_eq!((&json["statuses"][0]["limit_remaining"], exit), (&Value::Null, code), "{out}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_known_is_not_examined_again_for_each_new_connection() {
    let mut redis = Redis::start();
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url()), "REDIS_TIMEOUT=20s"]);
    // Only an examination uses this command.
    let examinations = |redis: &Redis| redis.calls_of("ltrim");
    wait_until("it is examined", || examinations(&redis) > 0);
    let first = examinations(&redis);
    for turn in 0..4 {
        // Longer than one examination counts for all connections.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        redis.command::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
        assert_limits_are_back(&tollgate, &format!("turn{turn}-")).await;
    }
    assert_eq!(examinations(&redis), first);
    redis.kill();
    redis.restart();
    wait_until("another process is examined", || examinations(&redis) > 0);
}
