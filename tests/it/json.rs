//! `/json`: the service for clients that speak no gRPC.

use crate::support;

use serde_json::{Value, json};
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use tollgate::wire::rate_limit_response::Code;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, unit: hour, requests_per_unit: 5, algorithm: fixed_window}}
  - {key: slow, rate_limit: {period: 40s, requests_per_unit: 1, algorithm: leaky_bucket, max_delay: 60s}}
  - {key: strict, rate_limit: {unit: hour, requests_per_unit: 5, failure_mode: error}}
";

/// Returns a request with one entry.
fn about(key: &str, value: &str) -> Value {
    json!({"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": value}]}]})
}

fn post(tollgate: &Tollgate, request: &Value) -> (u16, Value) {
    let (status, body) = tollgate.post("/json", request.to_string().as_bytes());
    (status, serde_json::from_str(&body).unwrap())
}

/// Why a request is refused.
fn refused(tollgate: &Tollgate, status: u16, body: &[u8]) -> String {
    let (got, told) = tollgate.post("/json", body);
    assert_eq!(got, status, "{told}");
    let told: Value = serde_json::from_str(&told).unwrap();
    told["error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_request_is_decided_as_on_the_grpc_port_and_charged_to_the_same_counter() {
    let tollgate = Tollgate::start(RULES, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let (status, answer) = post(&tollgate, &about("user", "ann"));
    assert_eq!((status, &answer["overallCode"]), (200, &json!("OK")));
    let told = &answer["statuses"][0];
    assert_eq!(told["currentLimit"], json!({"requestsPerUnit": 5, "unit": "HOUR", "name": "per-user"}));
    assert_eq!(told["limitRemaining"], 4);
    assert!(told["durationUntilReset"].as_str().unwrap().ends_with('s'), "{told}");
    assert_eq!(answer["responseHeadersToAdd"][1], json!({"key": "RateLimit-Remaining", "value": "4"}));

    let mut many = about("user", "ann");
    many["hits_addend"] = json!(3);
    assert_eq!(post(&tollgate, &many).1["statuses"][0]["limitRemaining"], 1);
    let over_grpc = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
    assert_eq!((over_grpc.overall_code(), over_grpc.statuses[0].limit_remaining), (Code::Ok, 0));
    let (status, answer) = post(&tollgate, &about("user", "ann"));
    assert_eq!((status, &answer["overallCode"]), (429, &json!("OVER_LIMIT")));
    assert!(answer["statuses"][0].get("limitRemaining").is_none(), "zeros are left out: {answer}");
    assert_eq!(tollgate.metric("tollgate_hits_total{domain=\"shop\",rule=\"per-user\"}"), 6.0);
}

#[test]
fn what_is_not_valid_is_refused_with_what_is_wrong_and_charged_to_nobody() {
    let tollgate = Tollgate::start(RULES, &["MAX_MESSAGE_BYTES=2000", "MAX_ENTRIES=1"]);
    for (body, word) in [
        (&b""[..], "send a request, such as"),
        (b"{", "EOF"),
        (b"hello", "expected"),
        (b"{\"domain\": \"shop\", \"descriptors\": [{\"entry\": []}]}", "entry"),
        (b"{\"domain\": \"\", \"descriptors\": [{}]}", "rate limit domain must not be empty"),
        (b"{\"domain\": \"shop\"}", "rate limit descriptor list must not be empty"),
        (b"{\"domain\": \"shop\", \"descriptors\": [{\"limit\": {\"unit\": \"UNKNOWN\"}}]}", "limit.unit"),
        (b"{\"domain\": \"shop\", \"descriptors\": [{\"entries\": [{}, {}]}]}", "MAX_ENTRIES"),
        (b"{\"domain\": \"shop\", \"descriptors\": [{\"hitsAddend\": \"18446744073709551613\"}]}", "2^53"),
    ] {
        let told = refused(&tollgate, 400, body);
        assert!(told.contains(word), "{told}");
    }
    let long = about("user", &"x".repeat(2_000)).to_string();
    assert!(refused(&tollgate, 413, long.as_bytes()).contains("MAX_MESSAGE_BYTES"));
    assert_eq!(tollgate.metric("tollgate_requests_total{outcome=\"invalid\"}"), 5.0, "as far as they are requests");
    assert_eq!(tollgate.metric("tollgate_hits_total{domain=\"shop\",rule=\"per-user\"}"), 0.0);
}

#[test]
fn a_request_that_would_be_delayed_for_longer_than_it_is_answered_is_denied() {
    let tollgate = Tollgate::start(RULES, &[]);
    assert_eq!(post(&tollgate, &about("slow", "ann")).0, 200);
    assert_eq!(post(&tollgate, &about("slow", "ann")).0, 429);
}

#[test]
fn a_store_that_fails_is_503_where_the_limit_says_error_and_else_the_failure_mode() {
    let mut redis = Redis::start();
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url())]);
    assert_eq!(post(&tollgate, &about("strict", "ann")).0, 200);
    redis.kill();
    let told = refused(&tollgate, 503, about("strict", "ann").to_string().as_bytes());
    assert!(told.contains("failure_mode: error"), "{told}");
    let (status, answer) = post(&tollgate, &about("user", "ann"));
    assert_eq!((status, &answer["dynamicMetadata"]["tollgate"]["decided_by"]), (200, &json!("failure_mode_open")));
}

#[test]
fn it_can_be_turned_off() {
    let tollgate = Tollgate::start(RULES, &["JSON_API=false"]);
    assert_eq!(tollgate.post("/json", about("user", "ann").to_string().as_bytes()).0, 404);
}

#[test]
fn details_are_told_to_whoever_asks_for_them() {
    let tollgate = Tollgate::start(RULES, &[]);
    let body = about("user", "ann").to_string();
    let (_, answer) = tollgate.send("POST", "/json", &[("x-tollgate-details", "1")], body.as_bytes());
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["dynamicMetadata"]["tollgate"]["descriptors"][0]["limits"][0]["name"], "per-user");
}
