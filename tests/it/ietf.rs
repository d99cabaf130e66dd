//! The fields of draft-ietf-httpapi-ratelimit-headers-11, the gauges of limits, and the attributes of spans.

use ::tollgate::engine::algorithm::Ask;
use ::tollgate::engine::descriptor::{Descriptor, Entry, Request};
use ::tollgate::engine::plan::{Names, Plan, PlanOptions};

use crate::rules::load_text;
use crate::support::envoy::Envoy;
use crate::support::tollgate::{Tollgate, request};
use crate::twins::{START, Twin};

const HEADERS: [&str; 2] = ["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESPONSE_HEADERS_FORMAT=ietf"];

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, unit: hour, requests_per_unit: 2, algorithm: token_bucket}}
  - {key: bytes, rate_limit: {name: bytes, unit: day, requests_per_unit: 1000, quota_unit: content-bytes}}
  - key: run
    descriptors: [{key: stream, rate_limit: {name: slots, algorithm: concurrency, requests_per_unit: 1}}]
";

async fn fields(tollgate: &Tollgate, entries: &[(&str, &str)]) -> (String, String, Option<u64>) {
    let answer = tollgate.ask(request("shop", &[entries])).await.unwrap();
    let header = |key: &str| answer.response_headers_to_add.iter().find(|header| header.key == key);
    let text = |key: &str| header(key).unwrap().value.clone();
    (text("RateLimit-Policy"), text("RateLimit"), header("Retry-After").map(|header| header.value.parse().unwrap()))
}

fn parameter(field: &str, name: &str) -> Option<u64> {
    field.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

#[tokio::test]
async fn t_is_the_time_until_more_quota_is_available_and_retry_after_is_not_earlier() {
    let tollgate = Tollgate::start(RULES, &HEADERS);
    let ann = [("user", "ann")];
    for left in [1, 0] {
        let (policy, field, retry_after) = fields(&tollgate, &ann).await;
        assert_eq!((&*policy, parameter(&field, "r"), retry_after), ("\"per-user\";q=2;w=3600", Some(left), None));
        // A bucket gains a token each half an hour, and not all of them when it is full.
        assert!((1_790..=1_800).contains(&parameter(&field, "t").unwrap()), "{field}");
    }
    let (_, field, retry_after) = fields(&tollgate, &ann).await;
    assert!(retry_after.unwrap() >= parameter(&field, "t").unwrap(), "{field}, {retry_after:?}");
    assert!((1_790..=1_800).contains(&retry_after.unwrap()));
}

#[tokio::test]
async fn units_other_than_requests_are_named_and_partition_keys_if_wanted() {
    let tollgate = Tollgate::start(RULES, &HEADERS);
    let (policy, field, _) = fields(&tollgate, &[("bytes", "ann")]).await;
    assert_eq!(policy, "\"bytes\";q=1000;qu=\"content-bytes\";w=86400");
    assert!(!field.contains("pk="), "{field}");
    for left in [0, 0] {
        let (policy, field, retry_after) = fields(&tollgate, &[("run", "x"), ("stream", "1")]).await;
        assert_eq!((&*policy, retry_after), ("\"slots\";q=1;qu=\"concurrent-requests\"", None));
        assert_eq!(field, format!("\"slots\";r={left}"), "it is not known when a slot is released");
    }

    let settings = [HEADERS[0], HEADERS[1], "LIMIT_RESPONSE_HEADERS_PARTITION_KEY=true"];
    let tollgate = Tollgate::start(RULES, &settings);
    let key = |field: &str| field.split_once(";pk=").unwrap().1.to_owned();
    let (policy, field, _) = fields(&tollgate, &[("user", "ann")]).await;
    assert_eq!((key(&policy), key(&policy).len()), (key(&field), 18), "{policy}: {field}");
    assert!(key(&policy).starts_with(':') && key(&policy).ends_with(':') && !policy.contains("ann"));
    assert_eq!(key(&fields(&tollgate, &[("user", "ann")]).await.0), key(&policy));
    assert_ne!(key(&fields(&tollgate, &[("user", "bob")]).await.0), key(&policy));
}

#[test]
fn envoy_gives_the_fields_to_clients() {
    let tollgate = Tollgate::start(RULES, &[HEADERS[0], HEADERS[1], "LIMIT_RESPONSE_HEADERS_PARTITION_KEY=true"]);
    let envoy = Envoy::start(tollgate.grpc_port);
    let [_, _, answer] = [(); 3].map(|()| envoy.get_as("ann"));
    let policy = answer.header("ratelimit-policy").unwrap();
    assert!(answer.status == 429 && policy.starts_with("\"per-user\";q=2;w=3600;pk=:"), "{answer:?}");
    let more = parameter(answer.header("ratelimit").unwrap(), "t").unwrap();
    assert!(answer.number("retry-after").unwrap() >= more, "{answer:?}");
}

/// At that time there is more, and up to two milliseconds of rounding before there is not.
#[test]
fn there_is_more_after_that_time_and_no_more_before() {
    let mut rng = fastrand::Rng::with_seed(7);
    let options = PlanOptions::default();
    let mut checked = 0;
    for _ in 0..300 {
        let algorithm = ["fixed_window", "token_bucket", "leaky_bucket"][rng.usize(..3)];
        let (number, burst) = (rng.u32(1..50), rng.u32(1..80));
        let period = ["100ms", "7s", "1h"][rng.usize(..3)];
        let burst = if algorithm == "fixed_window" { String::new() } else { format!(", burst: {burst}") };
        let rules = format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{algorithm: {algorithm}, period: {period}, \
             requests_per_unit: {number}{burst}}}}}]"
        );
        let rules = load_text(rules).unwrap().rules;
        let entries = vec![Entry { key: "k".into(), value: "v".into() }];
        let of = |ask| Request {
            domain: "d".into(),
            descriptors: vec![Descriptor { entries: entries.clone(), ask, limit: None }],
        };
        let (mut twin, mut now) = (Twin::default(), START);
        for _ in 0..20 {
            now += [0, 1, 13, 300, 5_000][rng.usize(..5)];
            let request = of(Ask::take(rng.u64(1..4)).unwrap());
            let plan = Plan::new(&options, &rules, &request, Names::Tollgate);
            let checks: Vec<_> = plan.asked().iter().map(|asked| asked.check.clone()).collect();
            let verdicts = twin.decide(&checks, now);
            let decision = plan.conclude(&verdicts);
            let limited = &decision.limits[0];
            let (Some(left), false) = (limited.remaining(), limited.over()) else { continue };
            let left_at = |now: u64| {
                let request = of(Ask::Peek);
                let plan = Plan::new(&options, &rules, &request, Names::Tollgate);
                let checks: Vec<_> = plan.asked().iter().map(|asked| asked.check.clone()).collect();
                let verdicts = twin.clone().decide(&checks, now);
                plan.conclude(&verdicts).limits[0].remaining().unwrap()
            };
            let more = limited.more_after_ms().unwrap();
            let told = format!("{algorithm} of {number} per {period}{burst}: {left} left, more in {more} ms");
            assert!(left_at(now + more) > left, "{told}");
            assert!(more < 3 || left_at(now + more - 3) == left, "{told}");
            checked += 1;
        }
    }
    assert!(checked > 1_000, "{checked}");
}

#[tokio::test]
async fn each_limit_that_is_used_has_a_gauge_of_its_number_and_its_period() {
    let tollgate = Tollgate::start(RULES, &[]);
    let _ = tollgate.ask(request("shop", &[&[("user", "ann")], &[("run", "x"), ("stream", "1")]])).await.unwrap();
    let (_, text) = tollgate.get("/metrics");
    for line in [
        "# TYPE tollgate_rule_limit gauge",
        "tollgate_rule_limit{domain=\"shop\",rule=\"per-user\"} 2",
        "tollgate_rule_limit{domain=\"shop\",rule=\"slots\"} 1",
        "tollgate_rule_period_seconds{domain=\"shop\",rule=\"per-user\"} 3600",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}");
    }
    assert!(!text.contains("tollgate_rule_period_seconds{domain=\"shop\",rule=\"slots\"}"));
    tollgate.change_rules(&RULES.replace("requests_per_unit: 2,", "requests_per_unit: 5,"));
    crate::support::wait_until("the new number", || {
        tollgate.get("/metrics").1.contains("tollgate_rule_limit{domain=\"shop\",rule=\"per-user\"} 5")
    });
}
