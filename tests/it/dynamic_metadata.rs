//! Dynamic metadata of answers with `RESPONSE_DYNAMIC_METADATA`.

use crate::support;

use serde_json::{Value, json};
use support::envoy::Envoy;
use support::tollgate::Tollgate;
use support::wait_until;

const ON: &str = "RESPONSE_DYNAMIC_METADATA=true";

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    metadata: {plan: free, svc: {a: 1, weights: [1, 2.5]}}
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: user
    value: root
    metadata: {plan: unlimited}
    rate_limit: {unlimited: true}
  - key: model
    value_to_metric: true
    detailed_metric: true
    metadata: {plan: second, svc: {a: 9, b: yes}, 5: 2020-01-01}
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: dark
    shadow_mode: true
    metadata: {dark: ~}
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: plain
    rate_limit: {unit: hour, requests_per_unit: 100}
";

/// Returns the details of a request's answer.
fn said(tollgate: &Tollgate, request: &Value) -> Value {
    let (_, body) = tollgate.post("/json", request.to_string().as_bytes());
    let answer: Value = serde_json::from_str(&body).unwrap();
    answer["dynamicMetadata"].clone()
}

fn descriptor(key: &str, value: &str) -> Value {
    json!({"entries": [{"key": key, "value": value}]})
}

fn request(descriptors: &[Value]) -> Value {
    json!({"domain": "shop", "descriptors": descriptors})
}

#[test]
fn it_is_what_was_asked_and_the_metadata_of_the_rules_that_pass() {
    let tollgate = Tollgate::start(RULES, &[ON]);
    let mut asked = request(&[descriptor("user", "ann"), descriptor("model", "gpt=4"), descriptor("x", "y")]);
    asked["hitsAddend"] = json!(1);
    asked["descriptors"][1]["hitsAddend"] = json!(0);
    let descriptors = json!([
        {"entries": ["user=ann"]},
        {"entries": ["model=gpt=4"], "hitsAddend": 0.0},
        {"entries": ["x=y"]},
    ]);
    let of_both = json!({"plan": "free", "svc": {"a": 1.0, "weights": [1.0, 2.5], "b": true}, "5": "2020-01-01"});
    let expected = json!({
        "domain": "shop",
        "descriptors": descriptors,
        "hitsAddend": 1.0,
        "metadata": of_both,
        "tollgate": {"passed": [true, true, true]},
    });
    assert_eq!(said(&tollgate, &asked), expected);

    // The first limit is exceeded now: the second answer has its own metadata, and nothing of the first.
    let of_second = json!({"plan": "second", "svc": {"a": 9.0, "b": true}, "5": "2020-01-01"});
    for _ in 0..2 {
        let told = said(&tollgate, &asked);
        assert_eq!((&told["metadata"], &told["tollgate"]["passed"]), (&of_second, &json!([false, true, true])));
    }
}

#[test]
fn a_limit_that_a_request_brings_along_is_told_in_one_text() {
    let tollgate = Tollgate::start(RULES, &[ON]);
    let mut asked = request(&[descriptor("user", "ann")]);
    asked["descriptors"][0]["limit"] = json!({"requestsPerUnit": 5, "unit": "HOUR"});
    asked["descriptors"][0]["hitsAddend"] = json!(2);
    let told = said(&tollgate, &asked);
    let descriptors = json!([{"entries": ["user=ann"], "limit": "requests_per_unit:5 unit:HOUR", "hitsAddend": 2.0}]);
    assert_eq!(told["descriptors"], descriptors);
    assert!(told.get("metadata").is_none(), "the rule does not apply: {told}");
    asked["descriptors"][0]["isNegativeHits"] = json!(true);
    assert_eq!(said(&tollgate, &asked)["descriptors"][0]["isNegativeHits"], json!(true));
}

#[test]
fn an_unlimited_rule_and_one_in_shadow_mode_pass_and_one_without_metadata_says_nothing() {
    let tollgate = Tollgate::start(RULES, &[ON]);
    let told = said(&tollgate, &request(&[descriptor("user", "root"), descriptor("dark", "x")]));
    assert_eq!(told["metadata"], json!({"plan": "unlimited", "dark": null}));
    assert_eq!(told["tollgate"]["passed"], json!([true, true]));
    assert!(said(&tollgate, &request(&[descriptor("plain", "x")])).get("metadata").is_none());
    let elsewhere = json!({"domain": "nowhere", "descriptors": [descriptor("user", "root")]});
    assert!(said(&tollgate, &elsewhere).get("metadata").is_none());
}

#[test]
fn what_tollgate_says_itself_stands_beside_it() {
    let tollgate = Tollgate::start(RULES, &[ON]);
    let body = request(&[descriptor("user", "ann")]).to_string();
    let (_, answer) = tollgate.send("POST", "/json", &[("x-tollgate-details", "1")], body.as_bytes());
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let told = &answer["dynamicMetadata"];
    assert_eq!(told["metadata"]["plan"], "free");
    assert_eq!(told["tollgate"]["passed"], json!([true]));
    assert_eq!(told["tollgate"]["descriptors"][0]["rule"], "user");
    assert_eq!(told["tollgate"]["decided_by"], "store");
}

#[test]
fn it_is_off_by_default() {
    let tollgate = Tollgate::start(RULES, &[]);
    assert_eq!(said(&tollgate, &request(&[descriptor("user", "ann")])), Value::Null);
}

#[test]
fn envoy_hands_it_to_its_access_log() {
    let tollgate = Tollgate::start(RULES, &[ON]);
    let format = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata)% \
                  %DYNAMIC_METADATA(envoy.filters.http.ratelimit:tollgate:passed)%\\n";
    let log = super::envoy::access_log(format);
    let envoy = Envoy::start_with(tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, ("stat_prefix: front\n", &log)]);
    assert_eq!(envoy.get_as("ann").status, 200);
    assert_eq!(envoy.get_as("ann").status, 429);
    wait_until("both requests are logged", || envoy.written("access").lines().count() == 2);
    let written = envoy.written("access");
    let lines: Vec<&str> = written.lines().collect();
    let (metadata, passed) = lines[0].split_once(" [").unwrap();
    let metadata: Value = serde_json::from_str(metadata).unwrap();
    assert_eq!(metadata, json!({"plan": "free", "svc": {"a": 1, "weights": [1, 2.5]}}));
    // The header is used twice: (user=ann), and (path=/), which has no rule.
    assert_eq!(passed, "true,true]");
    assert_eq!(lines[1], "- [false,true]");
}
