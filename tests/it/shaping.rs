//! A `leaky_bucket` with `max_delay` delays answers until their release time: over the wire, over two processes, and
//! behind a real Envoy.
//!
//! Assertions only check that nothing happens too early. A busy machine can delay everything, so none checks that
//! something happens early enough.

use crate::support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::envoy::Envoy;
use support::redis::Redis;
use support::tollgate::{Tollgate, command, request};
use support::{wait_until, wait_until_async};
use tokio::task::JoinHandle;
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitRequest, RateLimitResponse};

/// `fast` lets one go every 20 ms, and `slow` one at once, one in half a minute and one in a whole.
const RULES: &str = "
domain: shop
descriptors:
  - {key: fast, rate_limit: {unit: second, requests_per_unit: 50, algorithm: leaky_bucket, max_delay: 10s}}
  - {key: slow, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: leaky_bucket, max_delay: 1m}}
  - key: both
    rate_limits:
      - {unit: year, requests_per_unit: 1000}
      - {unit: minute, requests_per_unit: 2, algorithm: leaky_bucket, max_delay: 1m}
  - {key: once, rate_limit: {unit: year, requests_per_unit: 1}}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: leaky_bucket, max_delay: 1m}
";

const GAP: Duration = Duration::from_millis(20);

/// The error of clocks with whole milliseconds.
const MILLISECOND: Duration = Duration::from_millis(1);

fn asking(key: &str) -> RateLimitRequest {
    request("shop", &[&[(key, "ann")]])
}

/// A call in progress.
struct Call(JoinHandle<Result<RateLimitResponse, tonic::Status>>);

impl Call {
    /// Starts a call on a separate connection.
    async fn start(tollgate: &Tollgate, key: &str) -> Call {
        let (mut client, request) = (tollgate.client().await, asking(key));
        Call(tokio::spawn(async move { client.should_rate_limit(request).await.map(tonic::Response::into_inner) }))
    }

    async fn code(self) -> Code {
        self.0.await.unwrap().unwrap().overall_code()
    }
}

/// Returns the number of hits that would be admitted, from a peek.
async fn remaining(tollgate: &Tollgate, key: &str) -> u32 {
    let mut peek = asking(key);
    peek.descriptors[0].hits_addend = Some(0);
    tollgate.ask(peek).await.unwrap().statuses[0].limit_remaining
}

async fn until_remaining(tollgate: &Tollgate, key: &str, hits: u32) {
    wait_until_async(&format!("{hits} remain"), async || remaining(tollgate, key).await == hits).await;
}

fn until_delayed(tollgate: &Tollgate, requests: f64) {
    wait_until("requests are delayed", || tollgate.metric("tollgate_delayed_requests") == requests);
}

fn delayed(tollgate: &Tollgate, outcome: &str) -> f64 {
    tollgate.metric(&format!("tollgate_delayed_requests_total{{outcome=\"{outcome}\"}}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_leave_first_come_first_served_over_all_processes_and_none_early() {
    let redis = Redis::start();
    let settings = [&format!("REDIS_URL={}", redis.url()), "REDIS_TIMEOUT=30s"];
    let services = [(); 2].map(|()| Tollgate::start(RULES, &settings));
    let clients = [services[0].client().await, services[1].client().await];
    let start = Instant::now();
    let calls: Vec<_> = (0..40)
        .map(|i| {
            let mut client = clients[i % 2].clone();
            tokio::spawn(async move {
                let answer = client.should_rate_limit(asking("fast")).await.unwrap().into_inner();
                assert_eq!(answer.overall_code(), Code::Ok);
                start.elapsed()
            })
        })
        .collect();
    let mut answered = Vec::new();
    for call in calls {
        answered.push(call.await.unwrap());
    }
    answered.sort_unstable();
    for (i, at) in (0..).zip(answered) {
        assert!(at + MILLISECOND >= GAP * i, "{i} was answered after {at:?}");
    }
    assert!(services.iter().any(|service| delayed(service, "passed") > 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_request_does_not_keep_others_waiting() {
    let tollgate = Tollgate::start(RULES, &["WORKER_THREADS=1"]);
    assert!(tollgate.passes("shop", &[("slow", "ann")]).await);
    let _delayed = [Call::start(&tollgate, "slow").await, Call::start(&tollgate, "slow").await];
    until_delayed(&tollgate, 2.0);
    assert!(tollgate.passes("shop", &[("once", "ann")]).await);
    // More than max_delay can be is denied at once, and so is what another limit denies.
    assert!(!tollgate.passes("shop", &[("slow", "ann")]).await);
    let both = request("shop", &[&[("slow", "bob")], &[("once", "ann")]]);
    assert_eq!(tollgate.ask(both.clone()).await.unwrap().overall_code(), Code::OverLimit);
    assert_eq!(tollgate.ask(both).await.unwrap().overall_code(), Code::OverLimit);
    assert_eq!(tollgate.metric("tollgate_delayed_requests"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_limits_the_longest_delay_counts() {
    let tollgate = Tollgate::start(RULES, &[]);
    assert!(tollgate.passes("shop", &[("both", "ann")]).await);
    let _second = Call::start(&tollgate, "both").await;
    until_delayed(&tollgate, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_is_refunded() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    for settings in [&[][..], &[&url, "REDIS_TIMEOUT=30s"]] {
        let tollgate = Tollgate::start(RULES, settings);
        assert!(tollgate.passes("shop", &[("slow", "ann")]).await);
        for call_number in 1..=3_u8 {
            let call = Call::start(&tollgate, "slow").await;
            until_delayed(&tollgate, 1.0);
            assert_eq!(remaining(&tollgate, "slow").await, 1);
            call.0.abort();
            until_remaining(&tollgate, "slow", 2).await;
            until_delayed(&tollgate, 0.0);
            assert_eq!(delayed(&tollgate, "cancelled"), f64::from(call_number));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_cannot_wait_so_long_is_denied_at_once_and_not_charged() {
    let tollgate = Tollgate::start(RULES, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    assert!(tollgate.passes("shop", &[("slow", "ann")]).await);
    let mut hurried = tonic::Request::new(asking("slow"));
    hurried.set_timeout(Duration::from_secs(20));
    let answer = tollgate.client().await.should_rate_limit(hurried).await.unwrap().into_inner();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let retry_after = answer.response_headers_to_add.iter().find(|header| header.key == "Retry-After").unwrap();
    // A caller that waits for 20 seconds then passes, less the time of the answer.
    assert!((1..=11).contains(&retry_after.value.parse().unwrap()), "{}", retry_after.value);
    assert_eq!(remaining(&tollgate, "slow").await, 2);
    assert_eq!(tollgate.metric("tollgate_delayed_requests"), 0.0);

    let address = format!("127.0.0.1:{}", tollgate.grpc_port);
    let output = command().args(["ask", "--address", &address, "--domain", "shop", "slow=ann"]).output();
    assert_eq!(output.unwrap().status.code(), Some(2), "so the command says how long it waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_are_delayed_and_one_more_is_denied_and_not_charged() {
    let settings = ["MAX_DELAYED_REQUESTS=1", "LIMIT_RESPONSE_HEADERS_ENABLED=true"];
    let tollgate = Tollgate::start(RULES, &settings);
    assert!(tollgate.passes("shop", &[("slow", "ann")]).await);
    let call = Call::start(&tollgate, "slow").await;
    until_delayed(&tollgate, 1.0);
    let answer = tollgate.ask(asking("slow")).await.unwrap();
    assert_eq!((answer.overall_code(), answer.statuses[0].code()), (Code::OverLimit, Code::OverLimit));
    assert!(answer.response_headers_to_add.iter().any(|header| header.key == "Retry-After"));
    until_remaining(&tollgate, "slow", 1).await;
    assert_eq!(delayed(&tollgate, "no_permit"), 1.0);
    tollgate.must_log("MAX_DELAYED_REQUESTS is reached");
    call.0.abort();
    until_delayed(&tollgate, 0.0);
    let _call = Call::start(&tollgate, "slow").await;
    until_delayed(&tollgate, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_denies_nobody_delays_nobody() {
    let tollgate = Tollgate::start(RULES, &[]);
    let everything = Tollgate::start(RULES, &["SHADOW_MODE=true"]);
    for _ in 0..5 {
        assert!(tollgate.passes("shop", &[("shadow", "ann")]).await);
        assert!(everything.passes("shop", &[("slow", "ann")]).await);
    }
    assert_eq!(delayed(&tollgate, "passed") + delayed(&everything, "passed"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_decision_delays_too_and_refunds_what_it_has_charged() {
    let rules = RULES.replace("max_delay: 1m", "max_delay: 1m, failure_mode: local");
    let redis = Redis::stopped();
    let url = format!("REDIS_URL={}", redis.url());
    let tollgate = Tollgate::start(&rules, &[&url, "EXPECTED_REPLICAS=2"]);
    // Half of the number: one in a minute.
    assert!(tollgate.passes("shop", &[("slow", "ann")]).await);
    let call = Call::start(&tollgate, "slow").await;
    until_delayed(&tollgate, 1.0);
    assert_eq!(remaining(&tollgate, "slow").await, 0);
    call.0.abort();
    until_remaining(&tollgate, "slow", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_delayed_requests_pass_each_at_its_release_time() {
    let mut tollgate = Tollgate::start(RULES, &["DRAIN_DELAY=0s", "SHUTDOWN_TIMEOUT=60s"]);
    let mut client = tollgate.client().await;
    let start = Instant::now();
    let all = RateLimitRequest { hits_addend: 100, ..asking("fast") };
    // A hundred hits are released together, when the last of them may pass.
    let call = tokio::spawn(async move { client.should_rate_limit(all).await });
    until_delayed(&tollgate, 1.0);
    tollgate.signal("TERM");
    assert_eq!(call.await.unwrap().unwrap().into_inner().overall_code(), Code::Ok);
    assert!(start.elapsed() + MILLISECOND >= GAP * 99);
    assert_eq!(tollgate.wait().code(), Some(0));
    tollgate.must_log("all requests are answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_release_time_after_the_end_passes_before_it() {
    let mut tollgate = Tollgate::start(RULES, &["DRAIN_DELAY=0s", "SHUTDOWN_TIMEOUT=2s"]);
    assert!(tollgate.passes("shop", &[("slow", "ann")]).await);
    let calls = [Call::start(&tollgate, "slow").await, Call::start(&tollgate, "slow").await];
    until_delayed(&tollgate, 2.0);
    tollgate.signal("TERM");
    for call in calls {
        assert_eq!(call.code().await, Code::Ok);
    }
    assert_eq!(tollgate.wait().code(), Some(0));
    tollgate.must_log("all requests are answered");
}

/// A service that remembers when requests came.
struct Service {
    port: u16,
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl Service {
    fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let arrivals = Arc::default();
        let log = Arc::clone(&arrivals);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let log: Arc<Mutex<Vec<Instant>>> = Arc::clone(&log);
                std::thread::spawn(move || {
                    let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                    while lines.by_ref().take_while(|line| !line.is_empty()).count() > 0 {
                        log.lock().unwrap().push(Instant::now());
                        let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                    }
                });
            }
        });
        Service { port, arrivals }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_envoy_a_burst_of_twenty_leaves_evenly_spaced() {
    let rules = "
domain: shop
descriptors:
  - key: upstream
    value: legacy
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_bucket, max_delay: 20s}
";
    let (tollgate, service) = (Tollgate::start(rules, &[]), Service::start());
    let stand_in = "endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 10001 } } }";
    let changed = stand_in.replace("10001", &service.port.to_string());
    let timeout = ("timeout: 1s", "timeout: 60s");
    let envoy =
        Arc::new(Envoy::start_from("deploy/envoy/shaping.yaml", tollgate.grpc_port, &[timeout, (stand_in, &changed)]));
    let start = Instant::now();
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let envoy = Arc::clone(&envoy);
            std::thread::spawn(move || envoy.get("/legacy").status)
        })
        .collect();
    for call in calls {
        assert_eq!(call.join().unwrap(), 200);
    }
    let arrivals = service.arrivals.lock().unwrap();
    assert_eq!(arrivals.len(), 20);
    let gap = Duration::from_millis(100);
    // They arrived at once, and would have been released at once.
    for (i, at) in (0..).zip(arrivals.iter().map(|at| *at - start)) {
        assert!(at + MILLISECOND >= gap * i, "{i} arrived after {at:?}");
    }
    assert!(delayed(&tollgate, "passed") > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoys_own_timeout_is_the_longest_that_it_waits() {
    let tollgate = Tollgate::start(&RULES.replace("{key: slow,", "{key: upstream, value: legacy,"), &[]);
    let envoy = Envoy::start_from("deploy/envoy/shaping.yaml", tollgate.grpc_port, &[("timeout: 1s", "timeout: 20s")]);
    assert_eq!(envoy.get("/legacy").status, 200);
    // Its release time would be in half a minute.
    assert_eq!(envoy.get("/legacy").status, 429);
    let mut peek = request("shop", &[&[("upstream", "legacy")]]);
    peek.descriptors[0].hits_addend = Some(0);
    assert_eq!(tollgate.ask(peek).await.unwrap().statuses[0].limit_remaining, 2, "it is not charged");
}
