//! The process: its commands, its settings, its health, its metrics, and how it ends.

use crate::support;

use std::io::{BufRead as _, Read as _, Write as _};
use std::process::Output;
use std::time::Duration;

use support::redis::Redis;
use support::tollgate::{self, Tollgate, request};
use support::{wait_until, wait_until_async};
use tollgate_wire::RateLimitServiceClient;
use tollgate_wire::rate_limit_response::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use ::tollgate::wire as tollgate_wire;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: year, requests_per_unit: 2}
";

/// The start of an HTTP/2 connection, with empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Runs the command to its end.
fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    tollgate::command().args(arguments).envs(settings.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the standard error of a service that fails to start, regardless of what listens on the default ports.
fn refusal(arguments: &[&str], settings: &[(&str, &str)]) -> String {
    let output = run(arguments, &[&[("GRPC_PORT", "0"), ("PORT", "0")], settings].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

async fn health(tollgate: &Tollgate) -> ServingStatus {
    HealthClient::new(tollgate.channel().await)
        .check(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner()
        .status()
}

#[test]
fn ask_prints_the_decision_and_exits_by_it() {
    let tollgate = Tollgate::start(RULES, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |more: &[&str]| {
        let mut arguments = vec!["ask", "--address", &address, "--domain", "shop"];
        arguments.extend(more);
        let output = run(&arguments, &[]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, _) = ask(&["user=ann"]);
    assert_eq!(code, Some(0));
    assert!(
        out.starts_with("passed\n  user=ann: within the limit of 2 per year (per-user), 1 left, resets in "),
        "{out}"
    );
    let (code, out, _) = ask(&["--hits", "2", "user=ann", "+", "color=red"]);
    assert_eq!(code, Some(2));
    let denied = "LIMITED\n  user=ann: over the limit of 2 per year (per-user), 1 left, try again in ";
    assert!(out.contains(denied), "{out}");
    assert!(out.contains("\n  color=red: no limit applies: key \"color\": this level has \"user\"\n"), "{out}");
    assert!(out.contains("\n  Retry-After: "), "{out}");
    let (_, out, _) = ask(&["--refund", "color=red"]);
    assert!(out.starts_with("nothing to refund\n"), "{out}");
    let (code, out, _) = ask(&["--json", "--refund", "user=ann"]);
    assert_eq!(code, Some(0));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["code"], &json["outcome"]), (&"OK".into(), &"refunded".into()));
    assert_eq!(json["statuses"][0]["limit_remaining"], 2);
    assert_eq!(json["statuses"][0]["limit"]["name"], "per-user");
    assert_eq!(json["headers"]["RateLimit-Limit"], "2");
    assert_eq!((&json["decided_by"], &json["statuses"][0]["rule"]), (&"store".into(), &"user".into()));
    assert_eq!(json["statuses"][0]["limits"][0]["algorithm"], "sliding_window");
}

#[test]
fn a_peek_tells_whether_one_more_would_pass() {
    let rules = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: costly, rate_limit: {unit: year, requests_per_unit: 6, cost: 5}}
  - {key: dark, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: banned, rate_limit: {unit: year, requests_per_unit: 1, penalty: {after: 1, within: 1h, ban: 1h}}}
  - {key: gold, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: silver, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |hits: &str, words: &[&str]| {
        let mut arguments = vec!["ask", "--address", &address, "--domain", "shop", "--hits", hits];
        arguments.extend(words);
        let output = run(&arguments, &[]);
        (output.status.code(), text(&output.stdout))
    };
    for (words, takes, passes) in [
        (&["user=ann"][..], 1, true),
        (&["costly=ann"], 1, true),
        (&["dark=ann"], 1, false),
        (&["banned=ann"], 2, true),
        (&["gold=ann", "+", "silver=ann"], 2, true),
    ] {
        let (code, out) = ask("0", words);
        assert!(code == Some(0) && out.starts_with("one more would pass\n"), "{words:?}: {out}");
        for _ in 0..takes {
            ask("1", words);
        }
        let (code, out) = ask("0", words);
        let (expected, begins) = if passes { (2, "one more would be LIMITED\n") } else { (0, "one more would pass\n") };
        assert!(code == Some(expected) && out.starts_with(begins), "{words:?}: {out}");
        let (code, out) = ask("0", &[words, &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &json["next_passes"]), (Some(expected), &(!passes).into()), "{words:?}: {out}");
    }
}

#[test]
fn a_limit_that_denies_says_whether_it_ever_lets_the_same_pass_and_a_peek_when_one_more() {
    let rules = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: zero, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: costly, rate_limit: {unit: year, requests_per_unit: 6, cost: 5}}
  - {key: slow, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: leaky_bucket, max_delay: 60s}}
  - {key: upload, descriptors: [{key: stream, rate_limit: {requests_per_unit: 1, algorithm: concurrency}}]}
  - {key: banned, rate_limit: {unit: year, requests_per_unit: 1, penalty: {after: 1, within: 1h, ban: 1h}}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |words: &[&str]| {
        let output = run(&[&["ask", "--address", &address, "--domain", "shop"], words].concat(), &[]);
        text(&output.stdout)
    };
    for (words, said) in [
        (&["--hits", "8", "slow=ann"][..], "more hits than the limit ever allows at once"),
        (&["--hits", "3", "slow=ann"], "its delay would be longer than the timeout"),
        (&["zero=ann"], "over the limit of 0 per year (zero), 0 left, it allows no requests"),
        (&["--hits", "0", "zero=ann"], "the limit of 0 per year (zero) allows no requests"),
        (&["--hits", "2", "user=ann"], "more hits than the limit ever allows at once"),
        (
            &["--limit", "0/minute", "user=ann"],
            "over the limit of 0 per minute (override), 0 left, it allows no requests",
        ),
    ] {
        assert!(ask(words).contains(said), "{words:?}: {}", ask(words));
    }
    for words in [&["user=ann"][..], &["costly=ann"], &["upload=a", "stream=1"], &["banned=ann"], &["banned=ann"]] {
        ask(words);
    }
    for (words, said) in [
        (&["user=ann"][..], "the limit of 1 per year (user) is used up, 0 left, one more passes in "),
        (&["costly=ann"], "the limit of 6 per year (costly) has no room for one more, 1 left, one more passes in "),
        (&["upload=a", "stream=1"], "is used up, 0 left, one more passes when a slot is released, resets in "),
        // Longer than the ban.
        (&["banned=ann"], ", one more passes in 1year "),
    ] {
        let peek = ask(&[words, &["--hits", "0"]].concat());
        assert!(peek.starts_with("one more would be LIMITED\n") && peek.contains(said), "{peek}");
    }
    assert!(ask(&["upload=a", "stream=2"]).contains("try again when a slot is released; one expires in "));
    let json: serde_json::Value = serde_json::from_str(&ask(&["--json", "--hits", "0", "user=ann"])).unwrap();
    let limit = &json["statuses"][0]["limits"][0];
    assert_eq!((&json["outcome"], &limit["used_up"]), (&"would_be_limited".into(), &true.into()), "{json}");
    assert!(limit["next_after_ms"].as_u64().unwrap() > 365 * 86_400_000, "{json}");
}

#[test]
fn descriptors_that_share_a_counter_need_room_for_each_of_them() {
    let rules = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |words: &[&str]| {
        let output = run(&[&["ask", "--address", &address, "--domain", "shop"], words].concat(), &[]);
        (output.status.code(), text(&output.stdout))
    };
    let twice = ["--hits", "0", "user=ann", "+", "user=ann"];
    assert_eq!(ask(&twice).0, Some(0));
    assert_eq!(ask(&["user=ann"]).0, Some(0));
    let (code, out) = ask(&twice);
    let second = "\n  user=ann: the limit of 2 per year (user) has no room for one more, 1 left, one more passes in ";
    assert!(code == Some(2) && out.contains(second), "{out}");
    assert_eq!(ask(&["user=ann", "+", "user=ann"]).0, Some(2), "so it is");
}

#[test]
fn ask_shows_every_limit_of_a_descriptor_with_its_own_period() {
    let rules = "
domain: sms
descriptors:
  - key: phone
    rate_limits:
      - {period: 1500ms, requests_per_unit: 1000, algorithm: token_bucket, burst: 2000}
      - {name: daily, unit: day, requests_per_unit: 3}
  - {key: odd, rate_limit: {period: 90s, requests_per_unit: 3}}
  - {key: stream, rate_limit: {requests_per_unit: 3, algorithm: concurrency}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |words: &[&str]| {
        let mut arguments = vec!["ask", "--address", &address, "--domain", "sms"];
        arguments.extend(words);
        text(&run(&arguments, &[]).stdout)
    };
    let out = ask(&["phone=1"]);
    let expected = "passed
  phone=1: 2 limits
    rule     limit                          algorithm       left
    phone#0  1000 per 1500ms, 2000 at once  token_bucket    1999  within, resets in 2ms
    daily    3 per day                      sliding_window     2  within, resets in 1day ";
    assert!(out.starts_with(expected), "{out}");
    assert!(ask(&["odd=1"]).contains("within the limit of 3 per 90s (odd), 2 left, resets in "));
    assert!(ask(&["stream=1"]).contains("within the limit of 3 at once (stream), 2 left, resets in "));
    assert!(
        ask(&["--hits", "4", "odd=1"])
            .contains("over the limit of 3 per 90s (odd), 2 left, more hits than the limit ever allows at once")
    );
}

#[test]
fn a_question_without_an_answer_exits_with_1_and_says_why() {
    for (arguments, reason) in [
        (&["ask", "--domain", "shop", "ann"][..], "\"ann\" is not an entry: write KEY=VALUE, for example user=ann"),
        (
            &["ask", "--domain", "shop", "--address", "localhost:1", "user=ann"],
            "connection to localhost:1 refused: is the service running?",
        ),
        (&["ask", "user=ann"], "--domain"),
        (&["ask", "--domain", "shop", "--hits", "many", "user=ann"], "--hits"),
        (&["ask", "--domain", "shop", "--hits", "-1", "user=ann"], "to refund them, write --refund --hits 1"),
    ] {
        let said = refusal(arguments, &[]);
        assert!(said.contains(reason), "{said}");
    }
    let tollgate = Tollgate::start(RULES, &["MAX_ENTRIES=1"]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let said = refusal(&["ask", "--address", &address, "--domain", "shop", "user=ann", "path=/"], &[]);
    assert!(said.contains("descriptors[0] has 2 entries, more than the 1 that MAX_ENTRIES allows"), "{said}");
}

#[test]
fn wrong_settings_are_refused_with_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), RULES).unwrap();
    let rules = folder.path().to_str().unwrap();
    for (settings, reason) in [
        (&[][..], "no rules: name a file or folder with --rules PATH"),
        (&[("RULES", rules), ("BACKEND_TYPE", "memcache")], "Memcached is not supported: use redis, with REDIS_URL"),
        (
            &[("RULES", rules), ("BACKEND_TYPE", "redis")],
            "BACKEND_TYPE=redis (environment): needs REDIS_URL, for example REDIS_URL=localhost:6379",
        ),
        (
            &[("RULES", rules), ("REDIS_URL", "unix:///run/r.sock"), ("REDIS_TLS", "true")],
            "REDIS_TLS=true (environment): REDIS_URL is a Unix socket, which does not use TLS: unset it",
        ),
        (
            &[("RULES", rules), ("REDIS_URL", "rediss://cache"), ("REDIS_TLS_CLIENT_CERT", "a.crt")],
            "REDIS_TLS_CLIENT_CERT=a.crt (environment): needs both REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY",
        ),
        (
            &[("RULES", rules), ("REDIS_URL", "rediss://cache"), ("REDIS_TLS_CACERT", "nowhere.crt")],
            "REDIS_TLS_CACERT=nowhere.crt cannot be read",
        ),
        (
            &[("RULES", rules), ("REDIS_URL", "redis://cache"), ("REDIS_AUTH_FILE", "nowhere")],
            "REDIS_AUTH_FILE=nowhere cannot be read",
        ),
        (
            &[("RULES", rules), ("REDIS_URL", "redis://a:1"), ("REDIS_TYPE", "SENTINEL")],
            "REDIS_TYPE says another kind of Redis than this address",
        ),
        (
            &[("RULES", rules), ("REDIS_URL", "redis://:hidden@cache/x")],
            "REDIS_URL=*** (environment): the database after the last slash must be a number",
        ),
        (
            &[("RULES", rules), ("REDIS_URL", "/run/r.sock"), ("REDIS_SOCKET_TYPE", "tcp")],
            "REDIS_SOCKET_TYPE=tcp (environment): REDIS_URL is the path of a Unix socket",
        ),
        (&[("RULES", rules), ("SHUTDOWN_TIMEOUT", "0s")], "must be longer than zero"),
        (&[("RULES", rules), ("SHUTDOWN_TIMEOUT", "1000000000000000000s")], "must be at most 366d"),
        (
            &[("RULES", rules), ("REDIS_URL", "a:1,b:2")],
            "(environment): a single Redis has one host:port: set REDIS_TYPE=SENTINEL",
        ),
        (&[("RULES", rules), ("REDIS_TIMEOUT", "100")], "a duration has units, such as 150us, 20ms, 1h30m"),
        (&[("RULES", rules), ("GRPC_PORT", "99999")], "must be a whole number from 0 to 65535"),
        (&[("RULES", rules), ("WORKER_THREADS", "0")], "must be a whole number from 1 to 1024"),
        (&[("RULES", rules), ("NEAR_LIMIT_RATIO", "80%")], "must be a number from 0 to 1"),
        (&[("RULES", rules), ("LOG_LEVEL", "loud")], "must be one of trace, debug, info, warn"),
        (
            &[("RULES", rules), ("DEFAULT_ALGORITHM", "gcra")],
            "must be one of fixed_window, sliding_window, sliding_log, token_bucket",
        ),
        (
            &[("RULES", rules), ("DEFAULT_ALGORITHM", "concurrency")],
            "concurrency cannot be the default: it counts slots",
        ),
        (&[("RULES", rules), ("FAILURE_MODE", "shut")], "must be one of open, closed, local, error"),
        (&[("RULES", rules), ("LIMIT_LIMIT_HEADER", "a b")], "LIMIT_LIMIT_HEADER=a b (environment): not a header name"),
        (&[("RULES", rules), ("REDIS_URL", "redis-cluster://a:1/3")], "a Redis Cluster has database 0 alone"),
        (
            &[("RULES", rules), ("HOST", "192.0.2.1"), ("GRPC_PORT", "0"), ("PORT", "0")],
            "cannot listen on 192.0.2.1:0 (HOST, PORT)",
        ),
        (&[("RULES", "nowhere")], "nowhere"),
    ] {
        let said = refusal(&[], settings);
        assert!(said.contains(reason), "{settings:?}: {said}");
        assert!(!said.contains("hidden"), "{said}");
    }
    let said = refusal(&["--gprc-port", "1"], &[]);
    assert!(said.contains("unknown flag; did you mean --grpc-port?"), "{said}");
}

#[test]
fn help_is_worth_reading() {
    let help = text(&run(&["--help"], &[]).stdout);
    for command in ["serve", "check", "ask", "health", "counter", "schema", "settings", "completions", "man"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    let help = text(
        &run(&["serve", "--help"], &[("REDIS_AUTH", "tell-nobody"), ("REDIS_URL", "redis://:tell-nobody@x")]).stdout,
    );
    for words in
        ["Rules:", "Store:", "Listeners:", "[env: REDIS_TIMEOUT=]", "[default: 100ms]", "- memory:", "- redis:"]
    {
        assert!(help.contains(words), "{words} is not in {help}");
    }
    assert!(!help.contains("tell-nobody"));
}

#[test]
fn the_embedded_store_serves_unless_redis_is_named() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let store = |settings: &[&str]| {
        Tollgate::start(RULES, settings).must_log("tollgate is up")["store"].as_str().unwrap().to_owned()
    };
    assert_eq!(store(&[]), "memory");
    assert_eq!(store(&[&url]), redis.url());
    assert_eq!(store(&[&url, "BACKEND_TYPE=memory"]), "memory");
    assert_eq!(store(&[&url, "BACKEND_TYPE=redis"]), redis.url());
}

#[cfg(target_os = "linux")]
#[test]
fn the_service_forgoes_huge_pages() {
    let tollgate = Tollgate::start(RULES, &[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", tollgate.pid())).unwrap();
    // Linux before 5.0 does not report it.
    let told = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    assert!(told.is_none_or(|enabled| enabled.trim() == "0"), "{status}");
}

#[test]
fn the_start_says_how_to_ask() {
    let tollgate = Tollgate::start(RULES, &[]);
    let line = tollgate.must_log("try: ");
    let (program, arguments) = line["message"].as_str().unwrap().split_once(" ask ").unwrap();
    assert_eq!(program, format!("try: {}", env!("CARGO_BIN_EXE_tollgate")), "it can be copied as it stands");
    let command = format!("ask {arguments}");
    let output = run(&command.split(' ').collect::<Vec<_>>(), &[]);
    assert_eq!(output.status.code(), Some(0), "{command}: {output:?}");
    assert!(text(&output.stdout).contains("user=ann: within the limit"), "{output:?}");
}

#[tokio::test]
async fn the_references_layout_and_names_are_understood() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("ratelimit/config");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("shop.yaml"), RULES).unwrap();
    let tollgate = Tollgate::start_from(&[
        &format!("RUNTIME_ROOT={}", root.path().display()),
        "RUNTIME_SUBDIRECTORY=ratelimit",
        "REDIS_TYPE=SINGLE",
        "RUNTIME_IGNOREDOTFILES=false",
        "RUNTIME_WATCH_ROOT=true",
    ]);
    assert!(tollgate.passes("shop", &[("user", "ann")]).await);
    tollgate.must_log(
        "RUNTIME_IGNOREDOTFILES=false (environment) does nothing: files and folders whose names begin with a dot",
    );
    assert!(tollgate.logged("RUNTIME_WATCH_ROOT").is_none(), "Tollgate does so anyway");
}

#[test]
fn check_reports_like_the_start_and_strict_minds_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, RULES).unwrap();
    let output = run(&["check", path], &[]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "ok: 1 rule in 1 domain\n"));

    std::fs::write(&file, RULES.replace("unit: year", "shadow_mode: true, unit: year")).unwrap();
    let output = run(&["check", path], &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).starts_with("warning: "), "{output:?}");
    assert_eq!(run(&["check", "--strict", path], &[]).status.code(), Some(1));

    std::fs::write(&file, RULES.replace("year", "minuets")).unwrap();
    let report = "rate_limit.unit: unknown unit \"minuets\", did you mean \"minute\"?";
    assert!(refusal(&["check", path], &[]).contains(report));
    assert!(refusal(&["--rules", path], &[]).contains(report));
}

#[test]
fn of_many_mistakes_the_first_hundred_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mistakes = "  - {key: user, rate_limit: {unit: minuets, requests_per_unit: 5}}\n".repeat(10_000);
    std::fs::write(folder.path().join("a.yaml"), format!("domain: shop\ndescriptors:\n{mistakes}")).unwrap();
    let path = folder.path().to_str().unwrap();
    for said in [refusal(&["check", path], &[]), refusal(&["--rules", path], &[])] {
        assert!(said.contains("a.yaml:3:") && said.contains("unknown unit \"minuets\""), "{said}");
        assert!(said.contains(" more") && said.len() < 32 * 1024, "{} bytes: {said}", said.len());
    }
}

#[test]
fn check_reads_rules_as_the_service_would() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), RULES.replace("unit: year", "burst: 5, unit: year")).unwrap();
    std::fs::write(folder.path().join("b.yaml"), RULES.replace("key: user", "key: other")).unwrap();
    let path = folder.path().to_str().unwrap();
    assert_eq!(run(&["check", path], &[]).status.code(), Some(1));
    let settings = [("DEFAULT_ALGORITHM", "token_bucket"), ("MERGE_DOMAIN_CONFIG", "true")];
    assert_eq!(run(&["check", path], &settings).status.code(), Some(0));
}

#[test]
fn an_empty_variable_is_as_good_as_none_and_a_host_may_be_a_name() {
    let tollgate = Tollgate::start(
        RULES,
        &[
            "REDIS_URL=",
            "REDIS_POOL_SIZE=",
            "BACKEND_TYPE=",
            "SHADOW_MODE=",
            "LOG_LEVEL=",
            "HOST=localhost",
            "GRPC_HOST=localhost",
        ],
    );
    assert_eq!(tollgate.get("/healthcheck").0, 200);
}

#[tokio::test]
async fn changed_rules_come_into_force_and_wrong_ones_do_not() {
    let tollgate = Tollgate::start(RULES, &[]);
    assert!(tollgate.passes("shop", &[("user", "ann")]).await);
    tollgate.change_rules(&RULES.replace("requests_per_unit: 2", "requests_per_unit: 0"));
    let mut probers = 0;
    wait_until_async("the new limit denies", async || {
        probers += 1;
        !tollgate.passes("shop", &[("user", &probers.to_string())]).await
    })
    .await;
    tollgate
        .change_rules("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minuets, requests_per_unit: 5}}]");
    wait_until("the wrong rules are reported", || tollgate.logged("changed rules are rejected").is_some());
    assert!(!tollgate.passes("shop", &[("user", "bob")]).await, "the old rules are still in force");
    assert_eq!(tollgate.metric("tollgate_rules_loads_total{result=\"error\"}"), 1.0);
    assert_eq!(health(&tollgate).await, ServingStatus::Serving);

    std::fs::remove_file(tollgate.rules.path().join("rules.yaml")).unwrap();
    wait_until("the missing file is reported", || {
        tollgate.metric("tollgate_rules_loads_total{result=\"error\"}") == 2.0
    });
    assert!(!tollgate.passes("shop", &[("user", "bob")]).await, "the old rules are still in force");

    tollgate.change_rules(RULES);
    wait_until_async("the limit is 2 again", async || tollgate.passes("shop", &[("user", "cid")]).await).await;
    assert_eq!(tollgate.metric("tollgate_rules_loads_total{result=\"success\"}"), 3.0);
    assert_eq!(tollgate.metric("tollgate_rules_loaded"), 1.0);
}

#[tokio::test]
async fn without_rules_it_serves_only_if_set_to_and_says_so_in_its_health() {
    let folder = tempfile::tempdir().unwrap();
    let said = refusal(&["--rules", folder.path().to_str().unwrap()], &[]);
    assert!(said.contains("this folder has no rules"), "{said}");

    let tollgate = Tollgate::start_in(folder, &["FORCE_START_WITHOUT_INITIAL_CONFIG=true"]);
    assert_eq!(health(&tollgate).await, ServingStatus::NotServing);
    assert_eq!(tollgate.get("/healthcheck").0, 500);
    tollgate.change_rules(RULES);
    wait_until("the first good rules are in force", || tollgate.get("/healthcheck") == (200, "OK".into()));
    assert_eq!(health(&tollgate).await, ServingStatus::Serving);
}

/// The requests of the rule `per-user` with this outcome.
fn requests(tollgate: &Tollgate, outcome: &str) -> f64 {
    let series = format!("{{domain=\"shop\",rule=\"per-user\",outcome=\"{outcome}\"}}");
    tollgate.metric(&format!("tollgate_rule_requests_total{series}"))
}

#[tokio::test]
async fn metrics_tell_what_was_decided_with_labels_from_rules_only() {
    let tollgate = Tollgate::start(RULES, &["NEAR_LIMIT_RATIO=0.5"]);
    for _ in 0..3 {
        tollgate.passes("shop", &[("user", "ann")]).await;
    }
    tollgate.passes("shop", &[("color", "crimson")]).await;
    tollgate.passes("mall", &[("user", "ann")]).await;
    let rule = |name: &str| tollgate.metric(&format!("tollgate_{name}{{domain=\"shop\",rule=\"per-user\"}}"));
    let hits = [
        "hits_total",
        "within_limit_hits_total",
        "near_limit_hits_total",
        "over_limit_hits_total",
        "shadow_hits_total",
    ];
    assert_eq!(hits.map(rule), [3.0, 2.0, 1.0, 1.0, 0.0]);
    assert_eq!(
        ["within_limit", "over_limit", "shadow", "undecided"].map(|of| requests(&tollgate, of)),
        [2.0, 1.0, 0.0, 0.0]
    );
    for (series, value) in [
        ("requests_total{outcome=\"ok\"}", 4.0),
        ("requests_total{outcome=\"over_limit\"}", 1.0),
        ("descriptors_total{match=\"limited\"}", 3.0),
        ("descriptors_total{match=\"no_rule\"}", 1.0),
        ("descriptors_total{match=\"domain_not_found\"}", 1.0),
        ("store_seconds_count", 3.0),
        ("request_seconds_count", 5.0),
        ("store_up", 1.0),
        ("retry_after_seconds_bucket{le=\"86400\"}", 0.0),
        ("retry_after_seconds_count", 1.0),
        ("rules_loaded", 1.0),
        ("domains_loaded", 1.0),
    ] {
        assert_eq!(tollgate.metric(&format!("tollgate_{series}")), value, "{series}");
    }
    let (status, body) = tollgate.get("/metrics");
    assert_eq!(status, 200);
    for secret in ["\"ann", "crimson", "mall"] {
        assert!(!body.contains(secret), "{secret} is in the metrics");
    }
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let name = name.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count");
        assert!(body.contains(&format!("# HELP {name} ")), "{name} has no meaning");
    }
    wait_until("the counter in memory is told", || tollgate.metric("tollgate_memory_counters") == 1.0);
}

#[test]
fn replicas_are_compared_by_the_version_of_their_rules() {
    let replicas = [(); 2].map(|()| Tollgate::start(RULES, &[]));
    let versions = |tollgate: &Tollgate| -> Vec<String> {
        let (_, text) = tollgate.get("/metrics");
        let series = text.lines().filter_map(|line| line.strip_prefix("tollgate_rules_info{version=\""));
        series.map(|rest| rest.strip_suffix("\"} 1").unwrap().to_owned()).collect()
    };
    let [before, other] = [0, 1].map(|replica| versions(&replicas[replica]));
    assert_eq!((before.len(), &before), (1, &other));
    replicas[0].change_rules(&RULES.replace("year", "day"));
    wait_until("another version is in force", || versions(&replicas[0]) != before);
    assert_eq!(versions(&replicas[0]).len(), 1);
    replicas[0].change_rules(&format!("# The same in other words.\n{RULES}"));
    wait_until("the version of before is in force", || versions(&replicas[0]) == before);
}

#[tokio::test]
async fn no_single_request_spoils_the_metrics_of_a_rule() {
    let tollgate = Tollgate::start(RULES, &[]);
    let rule = |name: &str| tollgate.metric(&format!("tollgate_{name}{{domain=\"shop\",rule=\"per-user\"}}"));
    for hits in [1 << 53, u64::MAX, 1 << 40] {
        let mut asked = request("shop", &[&[("user", "ann")]]);
        asked.descriptors[0].hits_addend = Some(hits);
        // Some are refused as invalid, and none of those is counted.
        let _ = tollgate.ask(asked).await;
    }
    let (hits, denied) = (rule("hits_total"), requests(&tollgate, "over_limit"));
    assert!((1.0..=3.0).contains(&denied), "{denied}");
    assert!(hits <= denied * f64::from(u32::MAX), "{hits}");
    assert!(tollgate.passes("shop", &[("user", "bob")]).await);
    assert_eq!(rule("hits_total"), hits + 1.0, "one more is seen");
    assert_eq!(requests(&tollgate, "within_limit"), 1.0);
    assert_eq!(rule("within_limit_hits_total"), 1.0);
    // A peek at a counter is a request, too.
    let mut peek = request("shop", &[&[("user", "bob")]]);
    peek.descriptors[0].hits_addend = Some(0);
    tollgate.ask(peek).await.unwrap();
    assert_eq!((rule("hits_total"), requests(&tollgate, "within_limit")), (hits + 1.0, 2.0));
}

#[tokio::test]
async fn a_large_scrape_is_shared_and_then_made_anew() {
    let rules = (0..1_000)
        .map(|rule| format!("  - {{key: user, value: u{rule}, rate_limit: {{unit: day, requests_per_unit: 5}}}}\n"));
    let tollgate = Tollgate::start(&format!("domain: shop\ndescriptors:\n{}", rules.collect::<String>()), &[]);
    for hundred in 0..10 {
        let users: Vec<String> = (0..100).map(|user| format!("u{}", hundred * 100 + user)).collect();
        let entries: Vec<[(&str, &str); 1]> = users.iter().map(|user| [("user", user.as_str())]).collect();
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|entries| &entries[..]).collect();
        tollgate.ask(request("shop", &descriptors)).await.unwrap();
    }
    let first = || tollgate.metric("tollgate_hits_total{domain=\"shop\",rule=\"user=u0\"}");
    let mut before = 0.0;
    wait_until_async("a request between two scrapes is not seen at once", async || {
        before = first();
        tollgate.passes("shop", &[("user", "u0")]).await;
        first() == before
    })
    .await;
    wait_until("it is seen later", || first() > before);
    let body = tollgate.get("/metrics").1;
    assert_eq!(body.lines().filter(|line| line.starts_with("tollgate_hits_total{")).count(), 1_000);
    assert_eq!(body.matches("# HELP tollgate_hits_total ").count(), 1);
    let zipped = ureq::get(format!("http://127.0.0.1:{}/metrics", tollgate.http_port));
    let mut zipped = zipped.header("Accept-Encoding", "gzip").call().unwrap();
    assert_eq!(zipped.headers()["content-encoding"], "gzip");
    assert!(zipped.body_mut().read_to_vec().unwrap().len() < body.len() / 5);
}

#[tokio::test]
async fn series_of_rules_that_are_gone_go_with_them() {
    let tollgate = Tollgate::start(RULES, &[]);
    tollgate.passes("shop", &[("user", "ann")]).await;
    assert!(tollgate.get("/metrics").1.contains("rule=\"per-user\""));
    tollgate.change_rules(&RULES.replace("per-user", "per-customer"));
    wait_until("the series are gone", || !tollgate.get("/metrics").1.contains("rule=\"per-user\""));
}

#[tokio::test]
async fn logs_tell_no_values_above_debug() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    for (level, told) in [("info", false), ("debug", true)] {
        let settings = [&url, "ADMIN_API=true", "ADMIN_TOKEN=a token of some length", &format!("LOG_LEVEL={level}")];
        let tollgate = Tollgate::start(RULES, &settings);
        tollgate.passes("shop", &[("user", "crimson")]).await;
        tollgate.ask(request("", &[&[("user", "crimson")]])).await.unwrap_err();
        let counter = format!("http://127.0.0.1:{}/counters?domain=shop&user=crimson", tollgate.http_port);
        let reset = ureq::delete(counter).header("Authorization", "Bearer a token of some length").call();
        assert_eq!(reset.unwrap().status(), 200);
        tollgate.must_log("an operator has reset counters");

        // A counter that somebody has written to.
        tollgate.passes("shop", &[("user", "crimson")]).await;
        for name in redis.command::<Vec<String>>("KEYS *crimson*").await {
            redis.command::<()>(&format!("DEL {name}")).await;
            redis.command::<()>(&format!("HSET {name} x y")).await;
        }
        tollgate.passes("shop", &[("user", "crimson")]).await;
        tollgate.must_log("damaged counters were treated as new ones");
        redis.command::<()>("FLUSHALL").await;

        let tells = |name: &str| format!("{:?}", tollgate.logs()).contains(name);
        if told {
            wait_until("the name of the damaged counter is logged", || tells("{shop|user=crimson"));
        } else {
            assert!(!tells("crimson"), "{:?}", tollgate.logs());
        }
    }
}

#[tokio::test]
async fn a_signal_drains_and_answers_what_is_on_its_way() {
    for signal in ["TERM", "INT"] {
        let redis = Redis::start();
        let url = format!("REDIS_URL={}", redis.url());
        let mut tollgate = Tollgate::start(RULES, &[&url, "REDIS_TIMEOUT=2s", "DRAIN_DELAY=1s"]);
        let mut client = tollgate.client().await;
        client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.unwrap();
        tollgate.signal(signal);
        wait_until_async("health turns", async || health(&tollgate).await == ServingStatus::NotServing).await;
        assert_eq!(tollgate.get("/healthcheck").0, 500);
        assert!(tollgate.passes("shop", &[("user", "bob")]).await, "while it drains it still answers");

        // On its way when the ports close: a request that a frozen Redis holds up.
        redis.freeze();
        let on_its_way = tokio::spawn(async move {
            client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.unwrap().into_inner().overall_code()
        });
        assert_eq!(on_its_way.await.unwrap(), Code::Ok);
        redis.thaw();
        assert_eq!(tollgate.wait().code(), Some(0));
        tollgate.must_log("all requests are answered");
    }
}

#[tokio::test]
async fn draining_answers_what_is_on_its_way_on_every_worker() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let settings = [&url, "REDIS_TIMEOUT=2s", "DRAIN_DELAY=0s", "SHUTDOWN_TIMEOUT=60s", "WORKER_THREADS=3"];
    let mut tollgate = Tollgate::start(RULES, &settings);
    redis.freeze();
    let mut calls = Vec::new();
    for _ in 0..6 {
        let channel = tollgate.channel().await;
        let mut client = RateLimitServiceClient::new(channel.clone());
        calls.push(tokio::spawn(async move {
            client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.map(|answer| answer.into_inner())
        }));
        tokio::task::yield_now().await;
        // A later call on the same connection is answered, so this one has arrived.
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    }
    tollgate.signal("TERM");
    let tollgate = tokio::task::spawn_blocking(move || {
        assert_eq!(tollgate.wait().code(), Some(0));
        tollgate
    });
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().overall_code(), Code::Ok, "by the failure mode");
    }
    tollgate.await.unwrap().must_log("all requests are answered");
    redis.thaw();
}

#[tokio::test]
async fn every_worker_has_connections_to_redis_of_its_own() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    for (pool_size, connections) in [("2", 3), ("4", 6)] {
        let pool_size = format!("REDIS_POOL_SIZE={pool_size}");
        let _tollgate = Tollgate::start(RULES, &[&url, &pool_size, "WORKER_THREADS=3"]);
        wait_until_async("the connections of the one before are gone", async || {
            let clients: String = redis.command("CLIENT LIST TYPE normal").await;
            // The one that reads adjustments is one more, the one for what replicas say, and the one that asks.
            clients.lines().count() == connections + 3
        })
        .await;
    }
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_end() {
    let mut tollgate = Tollgate::start(RULES, &["SHUTDOWN_TIMEOUT=60s"]);
    let mut client = tollgate.client().await;
    client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.unwrap();
    tollgate.signal("TERM");
    // The client stays connected and active meanwhile.
    let tollgate = tokio::task::spawn_blocking(move || {
        assert_eq!(tollgate.wait().code(), Some(0));
        tollgate
    });
    tollgate.await.unwrap().must_log("all requests are answered");
    drop(client);
}

#[test]
fn a_silent_client_delays_nothing_whatever_it_said_before() {
    let mut tollgate = Tollgate::start(RULES, &["SHUTDOWN_TIMEOUT=60s", "DRAIN_DELAY=0s"]);
    // Nothing; the first byte of the preface; the preface without SETTINGS; the preface with SETTINGS and half a frame.
    let silent: Vec<_> = [&b""[..], b"P", &PREFACE[..24], PREFACE, &[PREFACE, b"\0\0\x08\x06"].concat()]
        .into_iter()
        .map(|words| {
            let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
            connection.set_read_timeout(Some(support::SOON)).unwrap();
            connection.write_all(words).unwrap();
            if words.len() >= 24 {
                connection.read_exact(&mut [0]).expect("it is served");
            }
            connection
        })
        .collect();
    tollgate.signal("TERM");
    assert_eq!(tollgate.wait().code(), Some(0));
    tollgate.must_log("all requests are answered");
    drop(silent);
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut tollgate = Tollgate::start(RULES, &["DRAIN_DELAY=1h"]);
    tollgate.signal("INT");
    wait_until("it drains", || tollgate.logged("draining").is_some());
    // A signal within a second of the first is ignored, so this sends several.
    wait_until("a second signal", || {
        tollgate.signal("INT");
        tollgate.logged("second signal: exiting").is_some()
    });
    assert_eq!(tollgate.wait().code(), Some(0));
}

#[tokio::test]
async fn a_hangup_reads_the_rules_again_and_ends_nothing() {
    let mut tollgate = Tollgate::start(RULES, &["DRAIN_DELAY=1h"]);
    let loads = |tollgate: &Tollgate| tollgate.metric("tollgate_rules_loads_total{result=\"success\"}");
    tollgate.signal("HUP");
    assert_eq!(tollgate.must_log("the rules are reloaded")["signal"], "SIGHUP");
    tollgate.must_log("the rules were reloaded, their limits are unchanged");
    assert_eq!(loads(&tollgate), 2.0, "though nothing has changed");
    assert!(tollgate.passes("shop", &[("user", "ann")]).await);

    tollgate.change_rules(&RULES.replace("requests_per_unit: 2", "requests_per_unit: x"));
    tollgate.signal("HUP");
    tollgate.must_log("changed rules are rejected");
    assert!(tollgate.passes("shop", &[("user", "ann")]).await, "the old ones stay");

    tollgate.signal("TERM");
    wait_until("it drains", || tollgate.logged("draining").is_some());
    tollgate.signal("HUP");
    assert!(!tollgate.passes("shop", &[("user", "ann")]).await, "and it still answers");
    wait_until("a second signal", || {
        tollgate.signal("TERM");
        tollgate.logged("second signal: exiting").is_some()
    });
    assert_eq!(tollgate.wait().code(), Some(0));
}

#[tokio::test]
async fn a_client_that_does_not_let_go_is_let_go_after_the_shutdown_timeout() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let settings = [&url, "REDIS_TIMEOUT=1h", "DRAIN_DELAY=0s", "SHUTDOWN_TIMEOUT=100ms"];
    let mut tollgate = Tollgate::start(RULES, &settings);
    let channel = tollgate.channel().await;
    redis.freeze();
    let mut client = RateLimitServiceClient::new(channel.clone());
    let call = tokio::spawn(async move { client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await });
    tokio::task::yield_now().await;
    // A later call on the same connection is answered, so this one has arrived.
    HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    tollgate.signal("TERM");
    let ended = tokio::task::spawn_blocking(move || (tollgate.wait().code(), tollgate));
    assert_eq!(ended.await.unwrap().0, Some(0));
    assert!(call.await.unwrap().is_err());
    redis.thaw();
}

#[test]
fn an_old_connection_is_closed() {
    let settings = ["GRPC_MAX_CONNECTION_AGE=50ms", "GRPC_MAX_CONNECTION_AGE_GRACE=50ms"];
    let tollgate = Tollgate::start(RULES, &settings);
    let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
    connection.set_read_timeout(Some(support::SOON)).unwrap();
    connection.write_all(PREFACE).unwrap();
    let mut said = Vec::new();
    connection.read_to_end(&mut said).expect("the service closes the connection");
    assert!(!said.is_empty(), "it was a connection of HTTP/2");
}

#[test]
fn the_client_of_an_old_connection_is_asked_to_connect_anew() {
    /// RFC 9113, section 6.8.
    const GOAWAY: u8 = 7;

    // Long before the connection is closed.
    let tollgate = Tollgate::start(RULES, &["GRPC_MAX_CONNECTION_AGE=50ms", "GRPC_MAX_CONNECTION_AGE_GRACE=1h"]);
    let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
    connection.set_read_timeout(Some(support::SOON)).unwrap();
    connection.write_all(PREFACE).unwrap();
    loop {
        let mut frame = [0; 9];
        connection.read_exact(&mut frame).expect("a frame comes");
        let [_, high, low, kind, ..] = frame;
        if kind == GOAWAY {
            break;
        }
        connection.read_exact(&mut vec![0; usize::from(u16::from_be_bytes([high, low]))]).unwrap();
    }
}

#[tokio::test]
async fn an_old_connection_is_closed_without_failing_a_request() {
    let tollgate = Tollgate::start(RULES, &["GRPC_MAX_CONNECTION_AGE=50ms"]);
    let mut client = tollgate.client().await;
    let start = std::time::Instant::now();
    let mut answered = 0;
    while start.elapsed() < Duration::from_millis(300) {
        match client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await {
            Ok(_) => answered += 1,
            // The client noticed the closed connection before it sent the call, so the server failed no call.
            Err(status) => {
                assert_eq!((status.code(), status.message()), (tonic::Code::Cancelled, "operation was canceled"))
            }
        }
    }
    assert!(answered > 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn with_few_descriptors_clients_leave_enough_for_redis_and_for_the_other_port() {
    let mut redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = RULES.replace("unit: year", "failure_mode: error, unit: year").replace(": 2}", ": 1000000}");
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let mut shell = std::process::Command::new("/bin/sh");
    shell.env_clear().args(["-c", &format!("ulimit -Sn 64 && ulimit -Hn 128 && exec {}", tollgate::BINARY)]);
    let settings =
        [format!("RULES={}", folder.path().display()), format!("REDIS_URL={}", redis.url()), "WORKER_THREADS=1".into()];
    let tollgate = Tollgate::start_by(shell, &settings.each_ref().map(String::as_str));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", tollgate.pid())).unwrap();
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(open_files.split_whitespace().filter(|word| *word == "128").count(), 2, "soft and hard: {open_files}");

    let mut client = tollgate.client().await;
    let ask = async |client: &mut RateLimitServiceClient<_>| {
        client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.is_ok()
    };
    assert!(ask(&mut client).await);
    let flood = |port: u16, words: &[u8]| -> Vec<_> {
        let connection = |_| {
            let mut connection = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            // Connections beyond the bound are already closed.
            let _ = connection.write_all(words);
            connection
        };
        (0..300).map(connection).collect()
    };
    let half_requests = flood(tollgate.http_port, b"GET /metrics HTTP/1.1\r\n");
    assert_eq!(tollgate.get("/healthcheck").0, 200, "the oldest goes for a new one");
    let late = tollgate.client().await;
    let idle = flood(tollgate.grpc_port, PREFACE);
    wait_until("gRPC is full", || {
        let says = |line: &serde_json::Value| {
            line["message"].as_str().is_some_and(|text| text.contains("GRPC_MAX_CONNECTIONS"))
        };
        tollgate.logs().iter().any(says)
    });
    assert!(ask(&mut { late }).await, "while HTTP is full gRPC is served");

    redis.kill();
    wait_until_async("Redis is missed", async || !ask(&mut client).await).await;
    redis.restart();
    wait_until_async("Redis is reached again", async || ask(&mut client).await).await;
    drop((half_requests, idle));
}

/// Starts a service with standard error and output in one pipe, and reads the pipe only up to the line that reports the
/// start.
fn start_unread(settings: &[(&str, &str)]) -> (std::process::Child, std::io::BufReader<std::io::PipeReader>, [u16; 2]) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = tollgate::command();
    command.env("LOG_FORMAT", "json").env("GRPC_PORT", "0").env("PORT", "0").envs(settings.iter().copied());
    let process = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    drop(command);
    let mut reader = std::io::BufReader::new(reader);
    let up = loop {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "it ended");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        if line["message"] == "tollgate is up" {
            break line;
        }
    };
    let port = |field: &str| up[field].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap();
    (process, reader, [port("grpc"), port("http")])
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_up_no_request_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), RULES).unwrap();
    let rules = folder.path().to_str().unwrap();
    let settings = [("RULES", rules), ("LOG_LEVEL", "debug"), ("DRAIN_DELAY", "0s")];
    let (mut process, unread, [grpc, http]) = start_unread(&settings);
    let mut client = RateLimitServiceClient::connect(format!("http://127.0.0.1:{grpc}")).await.unwrap();
    // Each call logs a line of 16 KiB: after some 2,000 of them the queue and the pipe are full.
    let long = "x".repeat(50_000);
    for _ in 0..3_000 {
        client.should_rate_limit(request("shop", &[&[("user", &long)]])).await.unwrap();
    }
    let metrics = format!("http://127.0.0.1:{http}/metrics");
    let metrics = ureq::get(metrics).call().unwrap().body_mut().read_to_string().unwrap();
    let lost = metrics.lines().find_map(|line| line.strip_prefix("tollgate_log_lines_lost_total ")).unwrap();
    assert!(lost.parse::<u64>().unwrap() > 100, "{lost}");
    drop(client);
    support::signal(&process, "TERM");
    wait_until("it ends", || process.try_wait().unwrap().is_some());
    assert_eq!(process.wait().unwrap().code(), Some(0));
    drop(unread);
}

#[test]
fn a_start_that_fails_ends_though_nobody_reads_why() {
    let folder = tempfile::tempdir().unwrap();
    let mistakes = "  - {key: user, rate_limit: {unit: minuets, requests_per_unit: 5}}\n".repeat(5_000);
    std::fs::write(folder.path().join("a.yaml"), format!("domain: shop\ndescriptors:\n{mistakes}")).unwrap();
    // A pipe that is full from the start, because its reader does not read.
    let (reader, mut full) = std::os::unix::net::UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.write(&[b'x'; 1_024]).is_ok() {}
    full.set_nonblocking(false).unwrap();
    let mut command = tollgate::command();
    let command = command.env("RULES", folder.path()).stderr(std::os::fd::OwnedFd::from(full));
    let mut process = command.spawn().unwrap();
    wait_until("it ends", || process.try_wait().unwrap().is_some());
    assert_eq!(process.wait().unwrap().code(), Some(1));
    drop(reader);
}

#[test]
fn what_a_client_makes_a_library_say_is_not_logged() {
    /// A PING response without a request: h2 logs a warning for each.
    const PING_ACK: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0ofnobody";

    let flood = |tollgate: &Tollgate| {
        let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
        connection.set_read_timeout(Some(support::SOON)).unwrap();
        // When it answers a final PING it has read all of them, unless it has closed the connection.
        let _ = connection.write_all(&[PREFACE, &PING_ACK.repeat(1_000), b"\0\0\x08\x06\0\0\0\0\0lastping"].concat());
        let (mut said, mut buffer) = (Vec::<u8>::new(), [0; 1_024]);
        while !said.windows(8).any(|bytes| bytes == b"lastping") {
            match connection.read(&mut buffer) {
                Ok(length @ 1..) => said.extend(&buffer[..length]),
                _ => break,
            }
        }
    };
    let tollgate = Tollgate::start(RULES, &["LOG_LEVEL=debug"]);
    let before = tollgate.logs().len();
    flood(&tollgate);
    assert_eq!(tollgate.logs().len(), before, "{:?}", tollgate.logs().last());

    let tollgate = Tollgate::start(RULES, &["LOG_LEVEL=error,tollgate=info,h2=warn"]);
    let before = tollgate.logs().len();
    flood(&tollgate);
    wait_until("h2 was asked for, and warns", || tollgate.logs().len() > before);
}

#[test]
fn half_requests_do_not_stay_on_the_http_port() {
    let tollgate = Tollgate::start(RULES, &[]);
    let connect = || {
        let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.http_port)).unwrap();
        connection.set_read_timeout(Some(support::SOON)).unwrap();
        connection.write_all(b"GET /healthcheck HTTP/1.1\r\nHost: ").unwrap();
        connection
    };
    let halves: Vec<_> = std::iter::repeat_with(connect).take(64).collect();
    assert_eq!(tollgate.get("/healthcheck").0, 200);
    for mut half in halves {
        half.read_to_end(&mut Vec::new()).expect("the service closes the connection");
    }
}
