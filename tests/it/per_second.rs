//! A separate Redis for limits with a period below a minute.

use crate::support;

use support::redis::Redis;
use support::tollgate::{Tollgate, command, request};
use support::{wait_until, wait_until_async};
use tollgate::wire::rate_limit_response::Code;

const RULES: &str = "
domain: shop
descriptors:
  - key: second
    rate_limit: {period: 59s, requests_per_unit: 3, failure_mode: open}
  - key: year
    rate_limit: {unit: year, requests_per_unit: 3, failure_mode: open}
  - key: quota
    rate_limit: {period: 59s, requests_per_unit: 1, algorithm: fixed_window}
    quota_mode: true
  - key: annual_quota
    rate_limit: {unit: year, requests_per_unit: 1}
    quota_mode: true
";

fn start(main: &Redis, per_second: &Redis, settings: &[&str]) -> Tollgate {
    let (main, per_second) = (main.url(), per_second.url());
    let (main, per_second) = (format!("REDIS_URL={main}"), format!("REDIS_PERSECOND_URL={per_second}"));
    let both = [&*main, &per_second, "REDIS_PERSECOND=true", "REDIS_TIMEOUT=20s", "LOCAL_CACHE_SIZE_IN_BYTES=0"];
    Tollgate::start(RULES, &[&both, settings].concat())
}

async fn names(redis: &Redis) -> Vec<String> {
    let mut names: Vec<String> = redis.command("KEYS *").await;
    names.retain(|name| name.contains("shop"));
    names
}

async fn left(tollgate: &Tollgate, key: &str, user: &str) -> u32 {
    let mut peek = request("shop", &[&[(key, user)]]);
    peek.descriptors[0].hits_addend = Some(0);
    tollgate.ask(peek).await.unwrap().statuses[0].limit_remaining
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_seconds_live_apart_and_a_request_is_still_one() {
    let (main, per_second) = (Redis::start(), Redis::start());
    let tollgate = start(&main, &per_second, &[]);
    let both = |user| request("shop", &[&[("second", user)][..], &[("year", user)]]);
    for _ in 0..3 {
        assert_eq!(tollgate.ask(both("ann")).await.unwrap().overall_code(), Code::Ok);
    }
    assert_eq!(tollgate.ask(both("ann")).await.unwrap().overall_code(), Code::OverLimit);
    let (of_main, of_second) = (names(&main).await, names(&per_second).await);
    assert!(of_main.len() == 1 && of_main[0].starts_with("{shop|year=ann}"), "{of_main:?}");
    assert!(of_second.len() == 1 && of_second[0].starts_with("{shop|second=ann}"), "{of_second:?}");
    // A denial by one limit is not charged to the other.
    let used_up = request("shop", &[&[("year", "ann")][..], &[("second", "bob")]]);
    assert_eq!(tollgate.ask(used_up).await.unwrap().overall_code(), Code::OverLimit);
    assert_eq!(left(&tollgate, "second", "bob").await, 3);
    // Quotas deny together, wherever they are.
    let quotas = request("shop", &[&[("quota", "ann")][..], &[("annual_quota", "ann")]]);
    for (asked, expected) in [
        (quotas.clone(), Code::Ok),
        (quotas.clone(), Code::OverLimit),
        (request("shop", &[&[("quota", "ann")][..], &[("annual_quota", "bob")]]), Code::Ok),
    ] {
        assert_eq!(tollgate.ask(asked).await.unwrap().overall_code(), expected);
    }
    assert_eq!(tollgate.metric("tollgate_store_up"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_the_two_fails_for_itself() {
    let (main, mut per_second) = (Redis::start(), Redis::start());
    let tollgate = start(&main, &per_second, &["REDIS_TIMEOUT=500ms"]);
    per_second.kill();
    wait_until("half of the store is down", || tollgate.metric("tollgate_store_up") == 0.5);
    let both = request("shop", &[&[("second", "ann")][..], &[("year", "ann")]]);
    for expected in [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(tollgate.ask(both.clone()).await.unwrap().overall_code(), expected, "the other one decides");
    }
    per_second.restart();
    wait_until_async("both decide", async || left(&tollgate, "second", "bob").await == 3).await;
    wait_until("the store is up", || tollgate.metric("tollgate_store_up") == 1.0);
}

#[test]
fn both_are_examined_and_what_is_wrong_with_the_second_is_named_by_its_settings() {
    let (main, per_second) = (Redis::start(), Redis::start());
    let check = |settings: &[(&str, &str)]| {
        let output = command()
            .args(["check", "--redis", "--format=json"])
            .env("REDIS_URL", main.url())
            .envs([("REDIS_TIMEOUT", "20s"), ("REDIS_PERSECOND", "true")])
            .envs(settings.iter().copied())
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (is_good, said) = check(&[("REDIS_PERSECOND_URL", &per_second.url())]);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(is_good && found["per_second"]["servers"][0]["role"] == "master", "{said}");
    for (settings, words) in [
        (&[][..], "REDIS_PERSECOND=true (environment): needs a REDIS_PERSECOND_URL"),
        (&[("REDIS_PERSECOND_URL", "localhost")], "REDIS_PERSECOND_URL"),
        (&[("REDIS_PERSECOND_URL", "/run/x"), ("REDIS_PERSECOND_TLS", "true")], "REDIS_PERSECOND_TLS=true"),
    ] {
        let (is_good, said) = check(settings);
        assert!(!is_good && said.contains(words), "{said}");
    }
}
