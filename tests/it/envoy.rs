//! End-to-end tests with Envoy: `deploy/envoy/envoy.yaml` in a real Envoy, real instances of Tollgate, a real Redis,
//! and HTTP requests.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use support::envoy::{Answer, Envoy};
use support::redis::Redis;
use support::tollgate::Tollgate;
use support::{SOON, wait_until};

/// Rules for the descriptors of `deploy/envoy/envoy.yaml`: user, path, and for `/login` the client's address instead.
const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: minute, requests_per_unit: 5}
  - key: path
    value: /search
    rate_limit: {name: search, unit: hour, requests_per_unit: 3}
  - key: route
    value: login
    descriptors:
      - key: remote_address
        rate_limit: {name: login, unit: hour, requests_per_unit: 100, failure_mode: closed}
";

/// A timeout so long that only a Redis that is really away is away.
const LONG_REDIS_TIMEOUT: &str = "REDIS_TIMEOUT=2s";

/// The setting that reports in a header what decided a request.
const DECIDED_BY: &str = "LIMIT_DECIDED_BY_HEADER=x-decided-by";

/// The change that makes Envoy write a line of this format for each request into the file `access`.
pub(crate) fn access_log(format: &str) -> String {
    access_log_as(&format!("{{ text_format_source: {{ inline_string: \"{format}\" }} }}"))
}

/// The same with a `log_format`.
pub(crate) fn access_log_as(log_format: &str) -> String {
    format!(
        r#"stat_prefix: front
                access_log:
                  - name: envoy.access_loggers.file
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: access
                      log_format: {log_format}
"#
    )
}

fn statuses(answers: impl IntoIterator<Item = Answer>) -> Vec<u16> {
    answers.into_iter().map(|answer| answer.status).collect()
}

/// Uses up what a user has; the store knows how much that is.
fn exhaust(envoy: &Envoy, user: &str) {
    assert_eq!(statuses((0..6).map(|_| envoy.get_as(user))), [200, 200, 200, 200, 200, 429]);
}

#[test]
fn requests_pass_up_to_the_limit_and_other_users_are_not_affected() {
    let tollgate = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start(tollgate.grpc_port);
    exhaust(&envoy, "ann");
    exhaust(&envoy, "bob");
    assert_eq!(envoy.get_as("ann").header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(statuses((0..20).map(|_| envoy.get("/"))), [200; 20], "who does not say who they are has no limit here");
}

#[test]
fn a_paths_limit_counts_it_whatever_its_query_is() {
    let tollgate = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start(tollgate.grpc_port);
    let answers = (0..4).map(|page| envoy.get(&format!("/search?page={page}")));
    assert_eq!(statuses(answers), [200, 200, 200, 429]);
    assert_eq!(envoy.get("/searches").status, 200);
}

#[test]
fn the_headers_tell_the_limit_what_remains_and_when_it_is_whole_again() {
    let tollgate = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start(tollgate.grpc_port);
    for remaining in [4, 3, 2, 1, 0, 0] {
        let answer = envoy.get_as("ann");
        assert_eq!(answer.header("x-ratelimit-limit"), Some("5, 5;w=60;name=\"per-user\""));
        assert_eq!(answer.number("x-ratelimit-remaining"), Some(remaining), "{answer:?}");
        // A strict window of ten segments forgets a request after a minute and at most a tenth more.
        let reset = answer.number("x-ratelimit-reset").unwrap();
        assert!((55..=66).contains(&reset), "{answer:?}");
    }
    assert_eq!(envoy.get("/").header("x-ratelimit-limit"), None, "no limit, no header");
}

#[test]
fn a_limit_of_several_units_is_shown_in_seconds() {
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {period: 5m, requests_per_unit: 10}}]";
    let tollgate = Tollgate::start(rules, &[]);
    let envoy = Envoy::start(tollgate.grpc_port);
    assert_eq!(envoy.get_as("ann").header("x-ratelimit-limit"), Some("10, 10;w=300"));
}

/// One user for each kind of denial; each passes again after at most six seconds, two windows.
const DENIALS: [(&str, &str); 9] = [
    ("fixed", "algorithm: fixed_window"),
    ("sliding", "algorithm: sliding_window"),
    ("linear", "algorithm: sliding_window, weighting: linear"),
    ("log", "algorithm: sliding_log"),
    ("tokens", "algorithm: token_bucket"),
    ("leaky", "algorithm: leaky_bucket"),
    ("one", "algorithm: token_bucket, burst: 1"),
    ("costly", "algorithm: sliding_window, segments: 1, cost: 2"),
    ("banned", "algorithm: token_bucket, penalty: {after: 1, within: 1m, ban: 3s}"),
];

#[test]
fn retry_after_passes_at_that_second_and_not_one_before() {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for (user, options) in DENIALS {
        let limit = format!("{{period: 3s, requests_per_unit: 2, {options}}}");
        rules += &format!("- {{key: user, value: {user}, rate_limit: {limit}}}\n");
    }
    for (key, value, period) in [("user", "slow", 4), ("path", "/slow", 4), ("user", "quick", 2), ("path", "/quick", 2)]
    {
        let limit = format!("{{period: {period}s, requests_per_unit: 1, algorithm: token_bucket}}");
        rules += &format!("- {{key: {key}, value: {value}, rate_limit: {limit}}}\n");
    }
    rules += "- {key: user, value: never, rate_limit: {unit: hour, requests_per_unit: 0, algorithm: token_bucket}}\n";
    let tollgate = Tollgate::start(&rules, &[]);
    let headers = "enable_x_ratelimit_headers: DRAFT_VERSION_03";
    let both = format!("{headers}\n                      enable_retry_after_header: true");
    let envoy = Envoy::start_with(tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, (headers, &both)]);
    // Without a time, Envoy says the least that it says.
    let never = envoy.ask("/", &[("x-user", "never")]);
    let times = ["retry-after", "x-ratelimit-reset"].map(|name| never.number(name));
    assert_eq!((never.status, times), (429, [Some(1), Some(0)]), "{never:?}");
    // A denial that waits for a slot, which no stream releases: one stream holds it.
    let rules = "domain: shop\ndescriptors: \
                 [{key: stream, rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 3s}}]";
    let slots = Tollgate::start(rules, &[]);
    let key = ("descriptor_key: user }", "descriptor_key: stream }");
    let slots_envoy = Envoy::start_with(slots.grpc_port, &[Envoy::LONG_TIMEOUT, (headers, &both), key]);
    assert_eq!(slots_envoy.get_as("the-holder").status, 200);
    std::thread::scope(|scope| {
        scope.spawn(|| retry(&slots_envoy, "/", "waits-for-a-slot"));
        // With two limits, either of which Envoy may report as the tightest, both must allow the request.
        scope.spawn(|| retry(&envoy, "/slow", "quick"));
        scope.spawn(|| retry(&envoy, "/quick", "slow"));
        for (user, _) in DENIALS {
            let envoy = &envoy;
            scope.spawn(move || retry(envoy, "/", user));
        }
    });
}

/// Uses up a user's limit and retries, with any delays of the machine.
fn retry(envoy: &Envoy, path: &str, user: &str) {
    let ask = || envoy.ask(path, &[("x-user", user)]);
    let (mut asked, mut told) = (Instant::now(), None);
    wait_until("a denial", || {
        asked = Instant::now();
        told = ask().number("retry-after");
        told.is_some()
    });
    // The denial happened between these two times, so `told` is correct if it fits both.
    let (told, answered) = (Duration::from_secs(told.unwrap()), Instant::now());
    assert!((Duration::from_secs(1)..=Duration::from_secs(6)).contains(&told), "{user}: {told:?}");
    loop {
        let sent = Instant::now();
        let passes = ask().status == 200;
        // The store counts whole milliseconds.
        if sent >= answered + told + Duration::from_millis(2) {
            assert!(passes, "{user}: {told:?} are over, and it is denied");
        }
        if Instant::now() + Duration::from_millis(2) < asked + told - Duration::from_secs(1) {
            assert!(!passes, "{user}: told {told:?}, and a second before it passes");
        }
        if passes {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The settings of a mesh for trusted clients: the request's own ID is kept.
const TRUSTING: (&str, &str) = ("use_remote_address: true", "preserve_external_request_id: true");

#[test]
fn requests_that_share_an_x_request_id_take_a_slot_each() {
    let rules = "domain: shop\ndescriptors: [{key: route, value: reports, descriptors: [{key: stream, \
                 rate_limit: {algorithm: concurrency, requests_per_unit: 3, hold: 1h}}]}]";
    let tollgate = Tollgate::start(rules, &[]);
    let slow = ("fixed_delay: 5s", "fixed_delay: 15s");
    let envoy =
        Envoy::start_from("deploy/envoy/concurrency.yaml", tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, TRUSTING, slow]);
    let same = [("x-request-id", "chosen-by-the-client"), ("x-stream", "chosen, too")];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(envoy.ask("/reports", &same).status, 200));
        }
        wait_until("three have slots", || tollgate.metric("tollgate_requests_total{outcome=\"ok\"}") == 3.0);
        // A denied request releases no slot of another request.
        let denied: Vec<u16> = statuses((0..5).map(|_| envoy.ask("/reports", &same)));
        assert_eq!(denied, [429; 5]);
    });
}

#[test]
fn a_grpc_client_that_is_limited_gets_resource_exhausted() {
    let tollgate = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start(tollgate.grpc_port);
    exhaust(&envoy, "ann");
    let answer = envoy.ask("/", &[("x-user", "ann"), ("content-type", "application/grpc")]);
    assert_eq!((answer.status, answer.number("grpc-status")), (200, Some(8)));
}

#[test]
fn while_redis_is_gone_each_rule_fails_its_own_way_and_limits_again_when_it_is_back() {
    let mut redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let tollgate = Tollgate::start(RULES, &[LONG_REDIS_TIMEOUT, &url, DECIDED_BY]);
    let format = "%RESPONSE_CODE% %DYNAMIC_METADATA(envoy.filters.http.ratelimit:tollgate:decided_by)%\\n";
    let log = access_log(format);
    let headers = "enable_x_ratelimit_headers: DRAFT_VERSION_03";
    let retry_after = format!("{headers}\n                      enable_retry_after_header: true");
    let changes = [Envoy::LONG_TIMEOUT, ("stat_prefix: front\n", &log), (headers, &retry_after)];
    let envoy = Envoy::start_with(tollgate.grpc_port, &changes);
    exhaust(&envoy, "ann");
    assert_eq!(envoy.get("/login").header("x-decided-by"), Some("store"));

    redis.kill();
    for _ in 0..10 {
        let (open, closed, known) = (envoy.get_as("carl"), envoy.get("/login"), envoy.get_as("ann"));
        assert_eq!((open.status, closed.status, known.status), (200, 429, 429));
        let decided_by = [&open, &closed].map(|answer| answer.header("x-decided-by"));
        assert_eq!(decided_by, ["failure_mode_open", "failure_mode_closed"].map(Some));
        // The remaining hits and the reset time of carl's limit are unknown.
        assert_eq!(open.header("x-ratelimit-limit"), None, "{open:?}");
        assert_eq!(open.header("x-ratelimit-remaining"), None, "{open:?}");
        // Logins also report a time, because Redis may be back by then.
        for header in ["retry-after", "x-ratelimit-reset"] {
            assert!((1..=3).contains(&closed.number(header).unwrap()), "{closed:?}");
        }
    }
    // A denial within the last second needs no Redis.
    wait_until("a denial that was known", || envoy.get_as("ann").header("x-decided-by") == Some("known_denial"));
    for line in ["200 -", "429 -", "200 failure_mode_open", "429 failure_mode_closed", "429 known_denial"] {
        let is_written = || envoy.written("access").lines().any(|written| written == line);
        wait_until(&format!("the access log says {line:?}"), is_written);
    }

    redis.restart(); // with nothing in it
    wait_until("logins pass again", || envoy.get("/login").status == 200);
    wait_until("users are limited again", || envoy.get_as("ann").status == 429);
}

#[test]
fn while_redis_hangs_tollgate_answers_within_envoys_timeout() {
    let redis = Redis::start();
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url()), DECIDED_BY]);
    // With the default timeout. Whether it suffices every time depends on the machine, so one success is enough.
    let envoy = Envoy::start_with(tollgate.grpc_port, &[]);
    wait_until("users are limited", || envoy.get_as("ann").status == 429);
    wait_until("logins pass", || envoy.get("/login").is_decided());

    redis.freeze();
    wait_until("logins are refused", || envoy.get("/login").status == 429);
    wait_until("users are let pass, by Tollgate", || {
        let answer = envoy.get_as("bob");
        answer.status == 200 && answer.header("x-decided-by") == Some("failure_mode_open")
    });
    assert_eq!(envoy.get_as("ann").status, 429, "but for those who are known to be over");

    redis.thaw(); // with all that was in it
    wait_until("logins pass again", || envoy.get("/login").status == 200);
    wait_until("what was used up still is", || envoy.get_as("ann").status == 429);
}

#[test]
fn new_rules_come_into_force_under_load_and_no_request_fails_meanwhile() {
    let tollgate = Tollgate::start(&RULES.replace("_unit: 5", "_unit: 1000000"), &[]);
    let envoy = Envoy::start(tollgate.grpc_port);
    let (requests, done) = (AtomicU32::new(0), AtomicBool::new(false));
    let load = || {
        let start = Instant::now();
        while !done.load(Ordering::Relaxed) && start.elapsed() < SOON {
            let answer = envoy.get_as("ann");
            let limit = answer.header("x-ratelimit-limit").expect("Tollgate answers every request");
            assert_eq!(answer.status, if limit.starts_with("1000000,") { 200 } else { 429 }, "{answer:?}");
            requests.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(load);
        scope.spawn(load);
        wait_until("some load", || requests.load(Ordering::Relaxed) > 100);

        tollgate.change_rules(&RULES.replace("_unit: 5", "_unit: 4"));
        wait_until("the new limit", || envoy.get_as("bob").header("x-ratelimit-limit").unwrap().starts_with("4,"));
        let before = requests.load(Ordering::Relaxed);
        wait_until("more load", || requests.load(Ordering::Relaxed) > before + 100);
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_restart_of_tollgate_loses_no_count_that_is_in_redis() {
    let redis = Redis::start();
    let store = format!("REDIS_URL={}", redis.url());
    let mut tollgate = Tollgate::start(RULES, &[LONG_REDIS_TIMEOUT, &store]);
    let envoy = Envoy::start(tollgate.grpc_port);
    exhaust(&envoy, "ann");

    tollgate.signal("TERM");
    assert!(tollgate.wait().success());
    assert_eq!(statuses((0..10).map(|_| envoy.get_as("ann"))), [200; 10], "failure_mode_deny is false");

    let port = format!("GRPC_PORT={}", tollgate.grpc_port);
    let _tollgate = Tollgate::start(RULES, &[LONG_REDIS_TIMEOUT, &store, &port]);
    let mut answer = envoy.get_as("ann");
    wait_until("Envoy finds Tollgate again", || {
        answer = envoy.get_as("ann");
        answer.is_decided()
    });
    assert_eq!(answer.status, 429);
}

#[test]
fn with_failure_mode_deny_nothing_passes_while_tollgate_is_away() {
    let mut tollgate = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start_with(tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, ("mode_deny: false", "mode_deny: true")]);
    assert_eq!(envoy.get_as("ann").status, 200);

    tollgate.signal("TERM");
    assert!(tollgate.wait().success());
    assert_eq!(statuses((0..10).map(|_| envoy.get_as("ann"))), [503; 10]);

    let _tollgate = Tollgate::start(RULES, &[&format!("GRPC_PORT={}", tollgate.grpc_port)]);
    wait_until("Envoy finds Tollgate again", || envoy.get_as("ann").status == 200);
}

#[test]
fn what_the_circuit_breaker_keeps_out_fails_in_envoy_and_tollgate_never_sees_it() {
    let tollgate = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start_with(tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, ("max_requests: 500", "max_requests: 0")]);
    assert_eq!(statuses((0..10).map(|_| envoy.get_as("ann"))), [200; 10], "failure_mode_deny is false");
    assert_eq!(tollgate.metric("tollgate_requests_total{outcome=\"ok\"}"), 0.0);
}

#[test]
fn while_one_of_two_tollgates_drains_and_goes_no_request_is_left_undecided() {
    let redis = Redis::start();
    let store = format!("REDIS_URL={}", redis.url());
    // The delay that it has by default: long enough for Envoy's health checks to see it.
    let settings = [LONG_REDIS_TIMEOUT, &store, "DRAIN_DELAY=2s"];
    let (mut leaving, staying) = (Tollgate::start(RULES, &settings), Tollgate::start(RULES, &settings));
    let endpoint = "- endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8081 } } }";
    let two = format!("{endpoint}\n              {}", endpoint.replace("8081", &staying.grpc_port.to_string()));
    let envoy = Envoy::start_with(leaving.grpc_port, &[Envoy::LONG_TIMEOUT, (endpoint, &two)]);

    let gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while !gone.load(Ordering::Relaxed) && start.elapsed() < SOON {
                let answer = envoy.get_as("ann");
                assert!(answer.is_decided(), "{answer:?} after {:?}", start.elapsed());
            }
        });
        let calls = "tollgate_requests_total{outcome=\"over_limit\"}";
        wait_until("both are asked", || leaving.metric(calls) > 0.0 && staying.metric(calls) > 0.0);
        leaving.signal("TERM");
        assert!(leaving.wait().success());
        exhaust(&envoy, "bob");
        gone.store(true, Ordering::Relaxed);
    });
}
