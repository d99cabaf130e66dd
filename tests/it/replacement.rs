//! Tollgate as a replacement of `envoyproxy/ratelimit`: its programs' names, arguments, and settings, and the warnings
//! about them.

use crate::support;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use ::tollgate::wire::rate_limit_response::Code;
use serde_json::Value;
use support::redis::Redis;
use support::tollgate::{self, Tollgate, request};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1}
";

/// The command as a program of another image is called.
fn called(program: &str, arguments: &[&str]) -> Command {
    let mut command = tollgate::command();
    command.arg0(program).args(arguments);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A folder in the layout there, ROOT/ratelimit/config, and its root.
fn layout() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("ratelimit/config");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("shop.yaml"), RULES).unwrap();
    root
}

fn warnings(tollgate: &Tollgate) -> Vec<String> {
    let lines = tollgate.logs().into_iter().filter(|line| line["level"] == "WARN");
    lines.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn it_starts_where_the_reference_starts_with_arguments_that_mean_nothing() {
    let root = layout();
    let root = format!("RUNTIME_ROOT={}", root.path().display());
    let arguments = ["--quotaRateLimitServiceAddr=:18002", "-config", "/etc/r.yaml", "--shadow-mode"];
    // The environment of Istio's sample.
    let settings = [
        root.as_str(),
        "RUNTIME_SUBDIRECTORY=ratelimit",
        "RUNTIME_WATCH_ROOT=false",
        "RUNTIME_IGNOREDOTFILES=true",
        "HOST=::",
        "GRPC_HOST=[::]",
        "USE_STATSD=false",
    ];
    let tollgate = Tollgate::start_by(called("/bin/ratelimit", &arguments), &settings);
    let ignored: Vec<_> = warnings(&tollgate).into_iter().filter(|line| line.contains("no such argument")).collect();
    let does_nothing = |word: &str| format!("{word} (command line) does nothing: no such argument");
    assert_eq!(ignored, ["--quotaRateLimitServiceAddr=:18002", "-config", "/etc/r.yaml"].map(does_nothing));
    // Over IPv4, to the wildcard of IPv6; an argument that it knows has its effect.
    for over in [false, true] {
        let answer = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(answer.statuses[0].code() == Code::OverLimit, over, "{answer:?}");
    }
    assert_eq!(tollgate.get("/healthcheck").0, 200);
}

#[test]
fn under_its_own_name_an_unknown_argument_is_a_mistake() {
    let refused = called("tollgate", &["--quotaRateLimitServiceAddr=:18002"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains("--quotaRateLimitServiceAddr"), "{refused:?}");
}

#[test]
fn every_program_tells_its_version() {
    let version = |program| {
        let said = called(program, &["--version"]).output().unwrap();
        assert!(said.status.success(), "{program}: {said:?}");
        text(&said.stdout).to_owned()
    };
    let own = version("tollgate");
    assert!(own.contains(env!("CARGO_PKG_VERSION")), "{own}");
    for program in ["/bin/ratelimit", "/bin/ratelimit_client", "/bin/ratelimit_config_check"] {
        assert_eq!(version(program), own);
    }
}

#[test]
fn the_client_there_asks() {
    let tollgate = Tollgate::start(RULES, &[]);
    let address = format!("127.0.0.1:{}", tollgate.grpc_port);
    let ask = || -> Output {
        let arguments =
            ["-dial_string", &address, "-domain=shop", "-descriptors", "user=ann", "-descriptors", "a=b,c=d"];
        called("/bin/ratelimit_client", &arguments).output().unwrap()
    };
    let (first, second) = (ask(), ask());
    assert_eq!((first.status.code(), second.status.code()), (Some(0), Some(2)), "{first:?} {second:?}");
    assert!(text(&first.stdout).contains("a=b c=d"), "both descriptors: {first:?}");
}

#[test]
fn the_checker_there_checks() {
    let root = layout();
    let folder = root.path().join("ratelimit/config");
    let config_dir = format!("-config_dir={}", folder.display());
    let check = |arguments: &[&str]| called("/bin/ratelimit_config_check", arguments).output().unwrap();
    let good = check(&[&config_dir]);
    assert!(good.status.success(), "{good:?}");
    std::fs::write(folder.join("more.yaml"), RULES.replace("user", "plan")).unwrap();
    let twice = check(&[&config_dir]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(text(&twice.stderr).contains("MERGE_DOMAIN_CONFIG"), "{twice:?}");
    let merged = check(&["-merge_domain_configs", &config_dir]);
    assert!(merged.status.success(), "{merged:?}");
}

#[test]
fn check_env_tells_every_setting_and_where_it_comes_from() {
    let environment = [
        ("RUNTIME_ROOT", "/data"),
        ("SHADOW_MODE", "T"),
        ("REDIS_URL", "redis://:hidden@cache:6379"),
        ("GRPC_MAX_CONNECTION_AGE", "1.5h"),
        ("HOST", ""),
    ];
    let said = tollgate::command().args(["check", "--env"]).envs(environment).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let said = text(&said.stdout);
    assert!(!said.contains("hidden"), "{said}");
    let words = |name: &str| -> Vec<&str> {
        let line = said.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} in {said}")).split_whitespace().skip(1).collect()
    };
    assert_eq!(words("RUNTIME_ROOT"), ["/data", "environment"]);
    assert_eq!(words("SHADOW_MODE"), ["T", "environment"]);
    assert_eq!(words("REDIS_URL"), ["***", "environment"]);
    assert_eq!(words("HOST"), ["0.0.0.0", "default"]);
    assert_eq!(words("RULES"), ["unset", "default"]);
    for setting in ::tollgate::settings::names() {
        words(&setting);
    }
}

/// A gateway that fails closed must stay so when the image is changed.
#[tokio::test]
async fn while_redis_is_away_a_call_fails_if_the_service_is_started_as_ratelimit() {
    let redis = format!("REDIS_URL={}", Redis::stopped().tcp_address());
    for (program, mode, expected) in [
        ("/bin/ratelimit", None, Err(tonic::Code::Unavailable)),
        ("/bin/ratelimit", Some("FAILURE_MODE=open"), Ok(Code::Ok)),
        ("/bin/tollgate", None, Ok(Code::Ok)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let rules = format!("RULES={}", folder.path().display());
        let settings: Vec<&str> = [redis.as_str(), &rules].into_iter().chain(mode).collect();
        let mut command = tollgate::command();
        command.arg0(program);
        let tollgate = Tollgate::start_by(command, &settings);
        let answer = tollgate.ask(request("shop", &[&[("user", "ann")]])).await;
        let answer = answer.map(|response| response.overall_code()).map_err(|status| status.code());
        assert_eq!(answer, expected, "{program} {mode:?}");
    }
}

#[test]
fn check_env_tells_what_depends_on_the_name_of_the_program() {
    let check = |program: &str, variables: &[(&str, &str)]| {
        let mut command = tollgate::command();
        command.arg0(program).args(["check", "--env"]).envs(variables.iter().copied());
        text(&command.output().unwrap().stdout).to_owned()
    };
    let mode = |said: &str| -> String {
        let line = said.lines().find(|line| line.trim_start().starts_with("FAILURE_MODE"));
        line.unwrap_or_else(|| panic!("{said}")).split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    let redis = ("REDIS_URL", "cache:6379");
    let note = "note: FAILURE_MODE is not set. While Redis is unavailable, requests pass if the service is started as \
                `tollgate`; calls fail";
    for (program, expected) in [("tollgate", "open default"), ("/bin/ratelimit", "error default")] {
        let said = check(program, &[redis]);
        assert_eq!(mode(&said), expected);
        assert!(said.contains(note), "{said}");
    }
    let said = check("/bin/ratelimit", &[redis, ("FAILURE_MODE", "closed")]);
    assert_eq!(mode(&said), "closed environment");
    assert!(!said.contains("note:"), "{said}");
    assert!(!check("tollgate", &[]).contains("note:"), "nothing that could be away");
}

/// Go's `settings.go` accepts them, so users may have set them.
#[test]
fn no_value_that_envoyproxy_ratelimit_takes_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    for (variables, told) in [
        (
            &["REDIS_POOL_SIZE=500", "REDIS_PERSECOND_POOL_SIZE=0"][..],
            &["REDIS_POOL_SIZE=500 (environment) counts as 100"][..],
        ),
        (
            &["GRPC_MAX_CONNECTION_AGE=0s", "GRPC_MAX_CONNECTION_AGE_GRACE=876000h", "REDIS_TIMEOUT=0"],
            &["REDIS_TIMEOUT=0 (environment) counts as 100ms: every wait for Redis needs a deadline"],
        ),
        (
            &["NEAR_LIMIT_RATIO=1.5", "LOCAL_CACHE_SIZE_IN_BYTES=-1", "TRACING_SAMPLING_RATE=2"],
            &[
                "NEAR_LIMIT_RATIO=1.5 (environment) counts as 1",
                "LOCAL_CACHE_SIZE_IN_BYTES=-1 (environment) counts as 0",
            ],
        ),
        (
            &[
                "GRPC_MAX_CONCURRENT_STREAMS=0",
                "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=2147483647",
                "STATS_FLUSH_INTERVAL=0s",
            ],
            &["GRPC_MAX_CONCURRENT_STREAMS=0 (environment) counts as 100000"],
        ),
        (
            &[
                "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=0s",
                "XDS_CLIENT_BACKOFF_MAX_INTERVAL=-1s",
                "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=0",
                "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=-1",
                "EXPIRATION_JITTER_MAX_SECONDS=-1",
            ],
            &["XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=0s (environment) counts as 10s"],
        ),
    ] {
        let rules = format!("RULES={}", folder.path().display());
        let tollgate = Tollgate::start_from(&[&[rules.as_str()], variables].concat());
        for told in told {
            tollgate.must_log(told);
        }
    }
}

#[test]
fn check_env_says_all_that_the_start_would() {
    let environment = [("RULES", "rules"), ("PORT", "http"), ("REDIS_ULR", "cache:1"), ("EXPECTED_REPLICAS", "3")];
    let check = |format: &str| {
        let mut command = tollgate::command();
        command.args(["check", "--env", "--format", format]).envs(environment).output().unwrap()
    };
    let told = check("text");
    assert_eq!(told.status.code(), Some(1));
    let lines: Vec<&str> = text(&told.stdout).lines().collect();
    let error = "error: PORT=http (environment): must be a whole number from 0 to 65535";
    assert!(lines.contains(&error), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("warning: REDIS_ULR")), "{lines:?}");
    assert!(lines.last().unwrap().ends_with("errors: 1, warnings: 1"), "{lines:?}");
    let json: Value = serde_json::from_slice(&check("json").stdout).unwrap();
    assert_eq!(json["errors"].as_array().unwrap().len(), 1, "{json}");
    let settings = json["settings"].as_array().unwrap();
    let replicas = settings.iter().find(|setting| setting["setting"] == "EXPECTED_REPLICAS").unwrap();
    assert_eq!((&replicas["value"], &replicas["origin"]), (&"3".into(), &"environment".into()));
    let refused = check("sarif");
    assert!(text(&refused.stderr).contains("--format text or json"), "{refused:?}");
    // Without the mistake, the place of the counters is checked.
    let replicas = [("RULES", "rules"), ("EXPECTED_REPLICAS", "3")];
    let said = tollgate::command().args(["check", "--env"]).envs(replicas).output().unwrap();
    assert!(text(&said.stdout).contains("counters are in the memory of this process"), "{said:?}");
}
