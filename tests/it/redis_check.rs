//! `tollgate check --redis`: its findings, and that they match those of the service.

use crate::support;

use std::process::Output;

use serde_json::Value;
use support::redis::Redis;
use support::tollgate;

const PASSWORD: &str = "open-sesame";

fn check(settings: &[(&str, &str)], words: &[&str]) -> Output {
    let mut command = tollgate::command();
    command.args(["check", "--redis"]).args(words).env("REDIS_TIMEOUT", "20s").envs(settings.iter().copied());
    let output = command.output().unwrap();
    let said = format!("{output:?}");
    assert!(!said.contains(PASSWORD), "{said}");
    output
}

/// The same as JSON, and whether all is well.
fn found(settings: &[(&str, &str)]) -> (bool, Value) {
    let output = check(settings, &["--format", "json"]);
    let found = serde_json::from_slice(&output.stdout);
    (output.status.success(), found.unwrap_or_else(|error| panic!("{error}: {output:?}")))
}

#[tokio::test]
async fn a_redis_that_is_well_is_described() {
    let redis = Redis::start_with(&["--requirepass", PASSWORD]);
    let url = format!("redis://:{PASSWORD}@{}", redis.tcp_address());
    let (is_good, found) = found(&[("REDIS_URL", &url)]);
    assert!(is_good, "{found:#}");
    assert_eq!(found["kind"], "single");
    let server = &found["servers"][0];
    assert_eq!(server["server"], *redis.tcp_address());
    let engine = server["engine"].as_str().unwrap();
    assert!(["Redis ", "Valkey "].iter().any(|name| engine.starts_with(name)), "{found:#}");
    assert_eq!((&server["role"], &server["replicas"]), (&"master".into(), &0.into()));
    assert_eq!((&server["runs_scripts"], &server["maxmemory_policy"]), (&true.into(), &"noeviction".into()));
    assert!(server["decision_us"]["median"].as_u64() <= server["decision_us"]["most"].as_u64(), "{found:#}");
    let is_near = server["clock_ahead_ms"].as_i64().map(|ahead| ahead.abs() < 60_000);
    let tells_clock = !engine.starts_with("Redis 6.0");
    assert_eq!(is_near, tells_clock.then_some(true), "{found:#}");
    for list in ["missing_permissions", "warnings", "errors"] {
        assert_eq!(server[list], Value::Array(Vec::new()), "{found:#}");
    }
    let said = check(&[("REDIS_URL", &url)], &[]);
    let said = String::from_utf8(said.stdout).unwrap();
    for line in ["kind              single", "role              master", "errors: 0, warnings: 0"] {
        assert!(said.lines().any(|told| told == line), "{said}");
    }
}

#[tokio::test]
async fn what_endangers_limits_is_a_warning_and_what_prevents_them_an_error() {
    let redis = Redis::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"]);
    redis.command::<()>(&format!("ACL SETUSER toll on >{PASSWORD} ~* +@all -rpush")).await;
    redis.command::<()>(&format!("ACL SETUSER none on >{PASSWORD} ~* +@all -set")).await;
    let url = |user: &str| format!("redis://{user}:{PASSWORD}@{}", redis.tcp_address());
    let (is_good, told) = found(&[("REDIS_URL", &url("toll"))]);
    let warnings = told["servers"][0]["warnings"].to_string();
    assert!(is_good && warnings.contains("noeviction") && warnings.contains("ACL SETUSER toll"), "{told:#}");
    assert_eq!(told["servers"][0]["missing_permissions"], serde_json::json!(["rpush"]));
    assert!(!check(&[("REDIS_URL", &url("toll"))], &["--strict"]).status.success(), "warnings are errors then");
    let (is_good, told) = found(&[("REDIS_URL", &url("none"))]);
    assert!(!is_good && told["servers"][0]["errors"][0].as_str().unwrap().contains("may not run SET"), "{told:#}");

    let (host, port) = redis.tcp_address().split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let replica = Redis::start_with(&["--replicaof", &host, &port]);
    let (is_good, told) = found(&[("REDIS_URL", &replica.url())]);
    assert!(!is_good && told["servers"][0]["errors"].to_string().contains("it is a replica"), "{told:#}");
    assert_eq!(told["servers"][0]["role"], "slave");
}

#[test]
fn what_is_not_there_is_told_as_the_service_would() {
    let nobody = Redis::stopped();
    for (settings, words) in [
        (&[("REDIS_URL", nobody.tcp_address())][..], "connection refused"),
        (&[("REDIS_URL", format!("redis+sentinel://{}/main", nobody.tcp_address()))], "no Sentinel names"),
        (&[("REDIS_URL", "localhost".into())], "the port is missing"),
        (&[("REDIS_URL", nobody.tcp_address()), ("REDIS_TYPE", "cluster".into())], "connection refused"),
        (&[], "no REDIS_URL: counters are in the service's memory"),
    ] {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let output = check(&settings, &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains("error: ") && said.contains(words), "{said}");
    }
}

#[tokio::test]
async fn durable_limits_without_a_replica_are_warned_of() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let (path, url) = (folder.path().join("shop.yaml"), redis.tcp_address().to_string());
    let rules = |durable: bool| {
        let limit = format!("{{unit: day, requests_per_unit: 9, durable: {durable}}}");
        std::fs::write(&path, format!("domain: shop\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n")).unwrap();
        [("REDIS_URL", url.as_str()), ("RULES", path.to_str().unwrap())]
    };
    let strict = |settings: &[(&str, &str)]| check(settings, &["--strict"]);
    let output = strict(&rules(true));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains("warning: it has no replica"), "{said}");
    assert!(said.contains("add a replica, or remove durable: true"), "{said}");
    let output = strict(&rules(false));
    assert!(output.status.success(), "{output:?}");
}
