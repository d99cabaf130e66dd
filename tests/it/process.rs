//! The process: its settings, its help, its start, its rules, and its health.

use std::process::Output;

use crate::support::redis::Redis;
use crate::support::tollgate::{self, Tollgate};
use crate::support::{wait_until, wait_until_async};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

pub const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: year, requests_per_unit: 2}
";

/// Runs the command to its end.
pub fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    tollgate::command().args(arguments).envs(settings.iter().copied()).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the standard error of a service that fails to start, regardless of what listens on the default ports.
pub fn refusal(arguments: &[&str], settings: &[(&str, &str)]) -> String {
    let output = run(arguments, &[&[("GRPC_PORT", "0"), ("PORT", "0")], settings].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

pub async fn health(tollgate: &Tollgate) -> ServingStatus {
    HealthClient::new(tollgate.channel().await)
        .check(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner()
        .status()
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
        &run(&["serve", "--help-settings"], &[("REDIS_AUTH", "tell-nobody"), ("REDIS_URL", "redis://:tell-nobody@x")])
            .stdout,
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
    wait_until("all loads are counted", || tollgate.metric("tollgate_rules_loads_total{result=\"success\"}") == 3.0);
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
