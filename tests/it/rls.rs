//! Envoy's protocol over the wire: requests and responses.

use crate::support;

use envoy_types::pb::envoy::service::ratelimit::v3 as envoy;
use prost::Message;
use support::tollgate::{Tollgate, descriptor, request};
use tollgate::wire::details::{DescriptorDetails, Details, LimitDetails};
use tollgate::wire::rate_limit_descriptor::{Entry, RateLimitOverride};
use tollgate::wire::rate_limit_response::rate_limit::Unit;
use tollgate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use tollgate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use tonic::Code::{InvalidArgument, ResourceExhausted};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: hour, requests_per_unit: 5}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: plan
    descriptors:
      - key: path
        rate_limit: {period: 90m, requests_per_unit: 3, algorithm: token_bucket}
  - key: team
    value: blue*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: dark
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: quota-a
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: quota-b
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: vip
    rate_limit: {name: per-vip, unit: hour, requests_per_unit: 100, replaces: [{name: per-user}]}
  - key: bytes
    rate_limit: {unit: hour, requests_per_unit: 100, count_denied: true}
  - key: paid
    rate_limits:
      - {unit: hour, requests_per_unit: 100}
      - {unit: day, requests_per_unit: 100, give_back: false}
";

fn one(status: &RateLimitResponse) -> (Code, u32) {
    assert_eq!(status.statuses.len(), 1);
    (status.statuses[0].code(), status.statuses[0].limit_remaining)
}

fn with_hits(hits: u64, give_back: bool, entries: &[(&str, &str)]) -> RateLimitRequest {
    let descriptor =
        RateLimitDescriptor { hits_addend: Some(hits), is_negative_hits: give_back, ..descriptor(entries) };
    RateLimitRequest { domain: "shop".into(), descriptors: vec![descriptor], hits_addend: 0 }
}

fn with_override(number: u32, unit: i32, entries: &[(&str, &str)]) -> RateLimitRequest {
    let limit = Some(RateLimitOverride { requests_per_unit: number, unit, unit_multiplier: None });
    let descriptor = RateLimitDescriptor { limit, ..descriptor(entries) };
    RateLimitRequest { domain: "shop".into(), descriptors: vec![descriptor], hits_addend: 0 }
}

#[tokio::test]
async fn a_request_passes_up_to_the_limit_and_its_status_tells_all() {
    let tollgate = Tollgate::start(RULES, &[]);
    for left in (0..5).rev() {
        let response = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(one(&response), (Code::Ok, left));
    }
    let response = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(one(&response), (Code::OverLimit, 0));
    let status = &response.statuses[0];
    let limit =
        RateLimit { requests_per_unit: 5, unit: Unit::Hour.into(), name: "per-user".into(), unit_multiplier: None };
    assert_eq!(status.current_limit, Some(limit));
    let reset = status.duration_until_reset.unwrap();
    assert!((1..=3_600 + 360).contains(&reset.seconds) && reset.nanos == 0, "{reset:?}");
    assert!(response.response_headers_to_add.is_empty(), "headers are off by default");
    assert!(tollgate.passes("shop", &[("user", "bob")]).await);
}

#[tokio::test]
async fn statuses_have_the_length_and_order_of_the_descriptors() {
    let tollgate = Tollgate::start(RULES, &[]);
    let response = tollgate
        .ask(request(
            "shop",
            &[&[("x", "y")], &[("user", "ann")], &[], &[("user", "root")], &[("plan", "gold"), ("path", "/")]],
        ))
        .await
        .unwrap();
    let shown: Vec<_> = response
        .statuses
        .iter()
        .map(|status| (status.code(), status.limit_remaining, status.current_limit.as_ref().map(|limit| limit.unit())))
        .collect();
    assert_eq!(
        shown,
        [
            (Code::Ok, 0, None),
            (Code::Ok, 4, Some(Unit::Hour)),
            (Code::Ok, 0, None),
            (Code::Ok, u32::MAX, None),
            (Code::Ok, 2, Some(Unit::Minute)),
        ]
    );
    assert_eq!(response.statuses[4].current_limit.as_ref().unwrap().unit_multiplier, Some(90));
}

#[tokio::test]
async fn an_unknown_domain_passes_and_is_counted() {
    let tollgate = Tollgate::start(RULES, &[]);
    let response = tollgate.ask(request("shopp", &[&[("user", "ann")], &[("user", "bob")]])).await.unwrap();
    assert_eq!(response.overall_code(), Code::Ok);
    assert_eq!(response.statuses, [(); 2].map(|()| DescriptorStatus { code: Code::Ok.into(), ..Default::default() }));
    assert_eq!(tollgate.metric("tollgate_descriptors_total{match=\"domain_not_found\"}"), 2.0);
    assert_eq!(tollgate.metric("tollgate_store_seconds_count"), 0.0);
}

#[tokio::test]
async fn what_is_not_valid_is_refused_with_what_would_be() {
    let tollgate = Tollgate::start(
        RULES,
        &["MAX_DESCRIPTORS=3", "MAX_ENTRIES=2", "MAX_KEY_BYTES=10", "MAX_VALUE_BYTES=20", "MAX_MESSAGE_BYTES=1000"],
    );
    let entry: &[(&str, &str)] = &[("user", "ann")];
    let long = "x".repeat(2_000);
    for (request, code, message) in [
        (request("", &[entry]), InvalidArgument, "rate limit domain must not be empty"),
        (request("shop", &[]), InvalidArgument, "rate limit descriptor list must not be empty"),
        (
            request("shop", &[entry; 4]),
            InvalidArgument,
            "the request has 4 descriptors, more than the 3 that MAX_DESCRIPTORS allows",
        ),
        (
            request("shop", &[entry, &[("a", ""), ("b", ""), ("c", "")]]),
            InvalidArgument,
            "descriptors[1] has 3 entries, more than the 2 that MAX_ENTRIES allows",
        ),
        (
            request("shop", &[&[("12345678901", "")]]),
            InvalidArgument,
            "descriptors[0].entries[0].key has 11 bytes, more than the 10 that MAX_KEY_BYTES allows",
        ),
        (
            request("shop of ann", &[entry]),
            InvalidArgument,
            "domain has 11 bytes, more than the 10 that MAX_KEY_BYTES allows",
        ),
        (
            request("shop", &[&[("user", "ann"), ("path", "/23456789012345678901")]]),
            InvalidArgument,
            "descriptors[0].entries[1].value has 21 bytes, more than the 20 that MAX_VALUE_BYTES allows",
        ),
        (request("shop", &[&[("user", &long)]]), ResourceExhausted, "more than the"),
        (
            with_hits((1 << 53) + 1, false, entry),
            InvalidArgument,
            "descriptors[0].hits_addend: must be at most 2^53, not 9007199254740993",
        ),
        (with_hits(u64::MAX, true, entry), InvalidArgument, "descriptors[0].hits_addend: must be at most 2^53"),
        (with_override(5, 0, entry), InvalidArgument, "descriptors[0].limit.unit: must be 1 (second)"),
        (with_override(5, 8, entry), InvalidArgument, "not 8"),
        (with_override(5, -1, entry), InvalidArgument, "not -1"),
    ] {
        let status = tollgate.ask(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(message), "{:?} does not say {message:?}", status.message());
    }
    assert_eq!(tollgate.metric("tollgate_requests_total{outcome=\"invalid\"}"), 12.0);
    // Nothing was counted.
    assert_eq!(one(&tollgate.ask(with_hits(0, false, entry)).await.unwrap()), (Code::Ok, 5));
}

#[tokio::test]
async fn odd_values_are_counted_right_and_never_with_another_counter() {
    let tollgate =
        Tollgate::start("domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]", &[]);
    let long = "x".repeat(60_000);
    let longer = format!("{}y", &long[1..]);
    let values = [
        "", "\0", "\0\0", "a", "A", "é", "e\u{301}", "日本", "a|k=b", "a%7Ck=b", "a=b", "{a}", " ", "*", &long, &longer,
    ];
    for value in values {
        assert!(tollgate.passes("d", &[("k", value)]).await, "{value:.20?} is a counter of its own");
        assert!(!tollgate.passes("d", &[("k", value)]).await, "{value:.20?} is counted");
    }
}

#[tokio::test]
async fn hits_add_up_as_the_request_says() {
    let tollgate = Tollgate::start(RULES, &[]);
    let entry: &[(&str, &str)] = &[("bytes", "ann")];
    let remaining = async |request| one(&tollgate.ask(request).await.unwrap()).1;
    assert_eq!(remaining(request("shop", &[entry])).await, 99, "0 on the request means 1");
    assert_eq!(remaining(RateLimitRequest { hits_addend: 9, ..request("shop", &[entry]) }).await, 90);
    assert_eq!(
        remaining(RateLimitRequest { hits_addend: 9, ..with_hits(20, false, entry) }).await,
        70,
        "the descriptor's own win"
    );
    assert_eq!(remaining(with_hits(0, false, entry)).await, 70, "0 on a descriptor looks");
    assert_eq!(remaining(with_hits(30, true, entry)).await, 100, "a refund");
    assert_eq!(remaining(with_hits(u64::from(u32::MAX), true, entry)).await, 100, "never below empty");
    assert_eq!(one(&tollgate.ask(with_hits(1 << 53, false, entry)).await.unwrap()), (Code::OverLimit, 0));
    let refund = tollgate.ask(with_hits(1, true, entry)).await.unwrap();
    assert_eq!(refund.overall_code(), Code::Ok, "a refund is never denied");
}

#[tokio::test]
async fn a_denied_request_costs_nothing_to_any_descriptor() {
    let tollgate = Tollgate::start(RULES, &[]);
    let (ann, gold) = ([("user", "ann")], [("plan", "gold"), ("path", "/pay")]);
    let both = request("shop", &[&ann, &gold]);
    for _ in 0..3 {
        assert_eq!(tollgate.ask(both.clone()).await.unwrap().overall_code(), Code::Ok);
    }
    for _ in 0..10 {
        let response = tollgate.ask(both.clone()).await.unwrap();
        assert_eq!(response.overall_code(), Code::OverLimit);
        assert_eq!((response.statuses[0].code(), response.statuses[0].limit_remaining), (Code::Ok, 2));
    }
}

#[tokio::test]
async fn a_limit_that_takes_no_refunds_gives_none_and_nothing_of_the_request_is_charged() {
    let tollgate = Tollgate::start(RULES, &[]);
    let paid: &[(&str, &str)] = &[("paid", "ann")];
    let left = async || one(&tollgate.ask(with_hits(0, false, paid)).await.unwrap());
    tollgate.ask(with_hits(60, false, paid)).await.unwrap();
    for hits in [1, 60, 1 << 53] {
        let mut request = with_hits(hits, true, paid);
        request.descriptors.insert(0, descriptor(&[("user", "ann")]));
        let status = tollgate.ask(request).await.unwrap_err();
        assert_eq!(status.code(), InvalidArgument, "{status:?}");
        let message = "descriptors[1]: negative hits, but the rule \"paid#1\" allows no refunds: it has give_back: \
                       false";
        assert_eq!(status.message(), message);
        assert_eq!(left().await, (Code::Ok, 40), "{hits}");
    }
    assert_eq!(one(&tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap()), (Code::Ok, 4));
    assert_eq!(tollgate.metric("tollgate_requests_total{outcome=\"invalid\"}"), 3.0);
}

#[tokio::test]
async fn an_override_may_be_for_several_units_and_is_counted_and_shown_so() {
    let tollgate = Tollgate::start(RULES, &[]);
    let ask = async |number, unit: Unit, multiplier| {
        let mut request = with_override(number, unit.into(), &[("anything", "at all")]);
        request.descriptors[0].limit.as_mut().unwrap().unit_multiplier = multiplier;
        tollgate.ask(request).await
    };
    for (unit, multiplier, told, times) in [
        (Unit::Minute, Some(5), Unit::Minute, Some(5)),
        (Unit::Minute, Some(60), Unit::Hour, None),
        (Unit::Second, Some(90), Unit::Second, Some(90)),
        (Unit::Day, Some(14), Unit::Week, Some(2)),
        (Unit::Day, Some(366), Unit::Day, Some(366)),
        (Unit::Year, Some(1), Unit::Year, None),
        (Unit::Week, None, Unit::Week, None),
    ] {
        let response = ask(1, unit, multiplier).await.unwrap();
        let limit =
            RateLimit { requests_per_unit: 1, unit: told.into(), unit_multiplier: times, ..RateLimit::default() };
        assert_eq!(response.statuses[0].current_limit, Some(limit), "{unit:?} {multiplier:?}");
        // It has its own period: limits with longer or shorter periods do not share its counter, those with the same
        // length do.
        assert_eq!(one(&response), (Code::Ok, 0), "{unit:?} {multiplier:?}");
        assert_eq!(one(&ask(1, unit, multiplier).await.unwrap()), (Code::OverLimit, 0), "{unit:?} {multiplier:?}");
    }
    for (unit, multiplier, words) in [
        (Unit::Minute, 0, "at least one minute and at most 366 days, not for 0 minutes"),
        (Unit::Day, 367, "not for 367 days"),
        (Unit::Year, 2, "not for 2 years"),
        (Unit::Second, u32::MAX, "not for 4294967295 seconds"),
        (Unit::Year, u32::MAX, "not for 4294967295 years"),
    ] {
        let status = ask(1, unit, Some(multiplier)).await.unwrap_err();
        assert_eq!(status.code(), InvalidArgument, "{unit:?} {multiplier}");
        assert!(status.message().starts_with("descriptors[0].limit.unit_multiplier: "), "{status:?}");
        assert!(status.message().ends_with(words), "{status:?}");
    }
}

#[tokio::test]
async fn an_override_takes_the_place_of_the_rules() {
    let tollgate = Tollgate::start(RULES, &[]);
    let root: &[(&str, &str)] = &[("user", "root")];
    let response = tollgate.ask(with_override(2, 7, root)).await.unwrap();
    assert_eq!(one(&response), (Code::Ok, 1));
    let limit = RateLimit { requests_per_unit: 2, unit: Unit::Week.into(), ..RateLimit::default() };
    assert_eq!(response.statuses[0].current_limit, Some(limit));
    tollgate.ask(with_override(2, 7, root)).await.unwrap();
    assert_eq!(one(&tollgate.ask(with_override(2, 7, root)).await.unwrap()).0, Code::OverLimit);
    assert_eq!(one(&tollgate.ask(with_override(3, 7, root)).await.unwrap()), (Code::Ok, 0), "the count goes on");
    assert_eq!(one(&tollgate.ask(with_override(1, 1, &[])).await.unwrap()), (Code::Ok, 0), "even without entries");
    let mut elsewhere = with_override(0, 1, root);
    elsewhere.domain = "nowhere".into();
    assert_eq!(tollgate.ask(elsewhere).await.unwrap().overall_code(), Code::Ok, "the domain must exist");
}

#[tokio::test]
async fn an_override_of_more_than_a_log_keeps_is_limited_all_the_same() {
    let tollgate = Tollgate::start("domain: d\ndefaults: {algorithm: sliding_log}", &[]);
    for (number, remaining) in [(100_000, 99_999), (100_001, 100_000)] {
        let mut request = with_override(number, 7, &[("user", "ann")]);
        request.domain = "d".into();
        assert_eq!(one(&tollgate.ask(request.clone()).await.unwrap()), (Code::Ok, remaining));
        request.hits_addend = number;
        assert_eq!(tollgate.ask(request).await.unwrap().overall_code(), Code::OverLimit);
    }
}

#[tokio::test]
async fn values_of_a_shared_wildcard_share_one_counter() {
    let tollgate = Tollgate::start(RULES, &[]);
    for (team, passes) in [("blue-1", true), ("blue-2", true), ("blue", true), ("blue-1", false), ("red", true)] {
        assert_eq!(tollgate.passes("shop", &[("team", team)]).await, passes, "{team}");
    }
}

#[tokio::test]
async fn a_rule_that_replaces_another_lifts_it_for_the_request() {
    let tollgate = Tollgate::start(RULES, &[]);
    for _ in 0..20 {
        let response = tollgate.ask(request("shop", &[&[("user", "ann")], &[("vip", "ann")]])).await.unwrap();
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(response.statuses[0].current_limit, None);
    }
    let alone = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
    assert_eq!(one(&alone), (Code::Ok, 4), "nothing was charged while it was replaced");
}

#[tokio::test]
async fn a_rule_in_shadow_mode_counts_and_denies_nobody() {
    let tollgate = Tollgate::start(RULES, &[]);
    for expected in [(Code::Ok, 0), (Code::Ok, 0), (Code::Ok, 0)] {
        assert_eq!(one(&tollgate.ask(request("shop", &[&[("dark", "ann")]])).await.unwrap()), expected);
    }
    assert_eq!(tollgate.metric("tollgate_shadow_hits_total{domain=\"shop\",rule=\"dark\"}"), 2.0);
    assert_eq!(tollgate.metric("tollgate_over_limit_hits_total{domain=\"shop\",rule=\"dark\"}"), 2.0);
    assert_eq!(tollgate.metric("tollgate_hits_total{domain=\"shop\",rule=\"dark\"}"), 3.0);
}

#[tokio::test]
async fn rules_in_quota_mode_deny_only_together() {
    let tollgate = Tollgate::start(RULES, &[]);
    let both = request("shop", &[&[("quota-a", "ann")], &[("quota-b", "ann")]]);
    let mut codes = Vec::new();
    for _ in 0..3 {
        let response = tollgate.ask(both.clone()).await.unwrap();
        codes.push((response.overall_code(), response.statuses[0].code(), response.statuses[1].code()));
    }
    assert_eq!(
        codes,
        [
            (Code::Ok, Code::Ok, Code::Ok),
            (Code::Ok, Code::OverLimit, Code::Ok),
            (Code::OverLimit, Code::OverLimit, Code::OverLimit)
        ]
    );
    let plain = request("shop", &[&[("quota-a", "bob")]]);
    tollgate.ask(plain.clone()).await.unwrap();
    assert_eq!(tollgate.ask(plain).await.unwrap().overall_code(), Code::OverLimit, "a single one denies alone");
}

#[tokio::test]
async fn in_global_quota_mode_a_descriptor_that_no_limit_applies_to_does_not_let_the_rest_pass() {
    let tollgate = Tollgate::start(RULES, &["QUOTA_MODE=true"]);
    let codes = async |request: &RateLimitRequest| {
        let response = tollgate.ask(request.clone()).await.unwrap();
        let statuses: Vec<_> = response.statuses.iter().map(DescriptorStatus::code).collect();
        (response.overall_code(), statuses)
    };
    let alone = request("shop", &[&[("user", "ann")], &[("x", "y")], &[("user", "root")], &[("dark", "z")]]);
    for _ in 0..5 {
        assert_eq!(codes(&alone).await.0, Code::Ok);
    }
    assert_eq!(codes(&alone).await, (Code::OverLimit, vec![Code::OverLimit, Code::Ok, Code::Ok, Code::Ok]));
    // Another limit that allows the request lets it pass.
    let both = request("shop", &[&[("user", "ann")], &[("plan", "gold"), ("path", "/")]]);
    assert_eq!(codes(&both).await, (Code::Ok, vec![Code::OverLimit, Code::Ok]));
    // So does a limit that the request supplies.
    let mut brought = both;
    brought.descriptors[1] = with_override(1, 3, &[("plan", "mine")]).descriptors.remove(0);
    assert_eq!(codes(&brought).await, (Code::Ok, vec![Code::OverLimit, Code::Ok]));
    assert_eq!(codes(&brought).await, (Code::OverLimit, vec![Code::OverLimit, Code::OverLimit]));
}

#[tokio::test]
async fn in_global_shadow_mode_statuses_tell_what_would_be_denied() {
    let tollgate = Tollgate::start(RULES, &["SHADOW_MODE=true"]);
    let request = request("shop", &[&[("user", "ann")]]);
    for _ in 0..5 {
        tollgate.ask(request.clone()).await.unwrap();
    }
    let response = tollgate.ask(request).await.unwrap();
    assert_eq!((response.overall_code(), response.statuses[0].code()), (Code::Ok, Code::OverLimit));
    assert_eq!(tollgate.metric("tollgate_global_shadow_mode_total"), 1.0);
}

#[tokio::test]
async fn headers_tell_of_the_most_pressing_limit() {
    let tollgate = Tollgate::start(RULES, &["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESET_HEADER=X-Reset"]);
    let headers = |response: RateLimitResponse| -> Vec<(String, String)> {
        response.response_headers_to_add.into_iter().map(|header| (header.key, header.value)).collect()
    };
    let both = request("shop", &[&[("user", "ann")], &[("plan", "gold"), ("path", "/")]]);
    let passed = headers(tollgate.ask(both.clone()).await.unwrap());
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    // One of three tokens refills every half hour.
    assert_eq!(passed, [pair("RateLimit-Limit", "3"), pair("RateLimit-Remaining", "2"), pair("X-Reset", "1800")]);
    tollgate.ask(both.clone()).await.unwrap();
    tollgate.ask(both.clone()).await.unwrap();
    let denied = headers(tollgate.ask(both).await.unwrap());
    assert_eq!(denied[..2], [pair("RateLimit-Limit", "3"), pair("RateLimit-Remaining", "0")]);
    let seconds: u64 = denied[3].1.parse().unwrap();
    assert_eq!(denied[3].0, "Retry-After");
    assert!((1_700..=1_800).contains(&seconds), "{seconds}");
    assert!(headers(tollgate.ask(request("shop", &[&[("x", "y")]])).await.unwrap()).is_empty());
    let never = headers(tollgate.ask(with_hits(6, false, &[("user", "bob")])).await.unwrap());
    assert!(never.iter().all(|(key, _)| key != "Retry-After"), "six of five never pass");
}

#[tokio::test]
async fn retry_after_waits_for_every_limit_and_for_the_first_of_the_quotas() {
    let rules = "
domain: d
descriptors:
  - {key: hourly, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: slow, quota_mode: true, rate_limit: {period: 20h, requests_per_unit: 1, algorithm: token_bucket}}
  - {key: quick, quota_mode: true, rate_limit: {period: 60s, requests_per_unit: 1, algorithm: token_bucket}}
  - {key: free, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: plain, rate_limit: {period: 2h, requests_per_unit: 1, algorithm: token_bucket}}
";
    let tollgate = Tollgate::start(rules, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let retry_after = async |keys: &[&str]| {
        let entries: Vec<_> = keys.iter().map(|key| [(*key, "v")]).collect();
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(<[_; 1]>::as_slice).collect();
        let response = tollgate.ask(request("d", &descriptors)).await.unwrap();
        let header = response.response_headers_to_add.iter().find(|header| header.key == "Retry-After");
        header.map(|header| header.value.parse::<u64>().unwrap())
    };
    for key in ["slow", "quick", "plain"] {
        assert_eq!(retry_after(&[key]).await, None, "it passes");
    }
    let (minute, hours) = (50..=60, 7_100..=7_200);
    assert!(minute.contains(&retry_after(&["slow", "quick"]).await.unwrap()), "one of the quotas is enough");
    assert!(hours.contains(&retry_after(&["plain", "slow", "free"]).await.unwrap()), "the quotas deny nothing");
    assert!(hours.contains(&retry_after(&["plain", "slow", "quick"]).await.unwrap()));
    assert_eq!(retry_after(&["plain", "hourly"]).await, None, "it never can");
}

#[tokio::test]
async fn a_denied_descriptor_tells_when_the_whole_request_passes_and_one_that_is_not_when_it_is_fresh() {
    let rules = "domain: shop\ndescriptors:
  - {key: soon, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: token_bucket}}
  - {key: late, rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket}}
  - {key: half, rate_limit: {unit: hour, requests_per_unit: 4, algorithm: token_bucket}}
  - {key: never, rate_limit: {unit: hour, requests_per_unit: 0, algorithm: fixed_window}}";
    let tollgate = Tollgate::start(rules, &[]);
    let entries = |keys: &[&'static str]| keys.iter().map(|key| [(*key, "x")]).collect::<Vec<_>>();
    let seconds = async |keys: &[&'static str]| {
        let entries = entries(keys);
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
        let response = tollgate.ask(request("shop", &descriptors)).await.unwrap();
        response.statuses.iter().map(|status| status.duration_until_reset.unwrap().seconds).collect::<Vec<_>>()
    };
    const DAY: i64 = 24 * 60 * 60;
    // A test takes less than half a minute.
    let is_about = |told: i64, right: i64| (right - 30..=right).contains(&told);
    assert_eq!(
        seconds(&["soon", "late", "half"]).await,
        [60, DAY, 900],
        "all of them pass, and tell when they are fresh"
    );
    assert!(is_about(seconds(&["soon"]).await[0], 60));
    for order in [["soon", "late", "half"], ["late", "half", "soon"]] {
        for (key, told) in order.iter().zip(seconds(&order).await) {
            assert!(is_about(told, if *key == "half" { 900 } else { DAY }), "{order:?}: {key} tells {told}");
        }
    }
    // A limit that never passes reports only its window, and the other one's wait does not matter then.
    let told = seconds(&["never", "soon"]).await;
    assert!((1..=60 * 60).contains(&told[0]) && is_about(told[1], 60), "{told:?}");
}

#[tokio::test]
async fn a_request_that_never_passes_is_not_told_to_come_back_in_no_time() {
    let rules = "domain: shop\ndescriptors:
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}}
  - {key: none, rate_limit: {unit: minute, requests_per_unit: 0, algorithm: token_bucket}}
  - {key: fixed, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: fixed_window}}";
    let tollgate = Tollgate::start(rules, &[]);
    let told = async |hits, key| {
        let response = tollgate.ask(with_hits(hits, false, &[(key, "x")])).await.unwrap();
        let until_reset = response.statuses[0].duration_until_reset.map(|reset| reset.seconds);
        (response.overall_code(), until_reset)
    };
    assert_eq!(told(6, "log").await, (Code::OverLimit, None));
    assert_eq!(told(1, "none").await, (Code::OverLimit, None));
    assert_eq!(told(0, "log").await, (Code::Ok, Some(0)), "what passes may be told 0: its counter is as good as new");
    told(1, "log").await;
    // A hit leaves a log a millisecond after its period, and that is told in whole seconds.
    let (code, until_reset) = told(6, "log").await;
    assert!(code == Code::OverLimit && (1..=61).contains(&until_reset.unwrap()), "{until_reset:?}");
    let (code, until_reset) = told(6, "fixed").await;
    assert!(code == Code::OverLimit && (1..=3_600).contains(&until_reset.unwrap()), "{until_reset:?}");
}

#[tokio::test]
async fn several_limits_of_a_descriptor_must_all_pass_and_the_most_pressing_is_reported() {
    let rules = "
domain: sms
descriptors:
  - key: phone
    rate_limits:
      - {name: per-minute, unit: minute, requests_per_unit: 1, algorithm: token_bucket}
      - {name: per-day, unit: day, requests_per_unit: 3}
";
    let tollgate = Tollgate::start(rules, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let phone: &[(&str, &str)] = &[("phone", "1")];
    let told = |response: &RateLimitResponse| {
        let status = &response.statuses[0];
        (status.code(), status.current_limit.as_ref().unwrap().name.clone(), status.limit_remaining)
    };
    let first = tollgate.ask(request("sms", &[phone])).await.unwrap();
    assert_eq!(told(&first), (Code::Ok, "per-minute".into(), 0), "the least remaining");
    for _ in 0..5 {
        let second = tollgate.ask(request("sms", &[phone])).await.unwrap();
        assert_eq!((second.overall_code(), second.statuses.len()), (Code::OverLimit, 1));
        assert_eq!(told(&second), (Code::OverLimit, "per-minute".into(), 0));
    }
    // The denial by per-minute was not charged to per-day.
    let back = RateLimitRequest { domain: "sms".into(), ..with_hits(1, true, phone) };
    assert_eq!(told(&tollgate.ask(back).await.unwrap()), (Code::Ok, "per-minute".into(), 1));
    let many = tollgate.ask(RateLimitRequest { domain: "sms".into(), ..with_hits(4, false, phone) }).await.unwrap();
    assert_eq!(told(&many), (Code::OverLimit, "per-day".into(), 3), "of those that deny, the one that takes longest");
    assert!(many.response_headers_to_add.iter().all(|header| header.key != "Retry-After"), "four never pass");
    let hits = |limit: &str| tollgate.metric(&format!("tollgate_hits_total{{domain=\"sms\",rule=\"{limit}\"}}"));
    assert_eq!([hits("per-minute"), hits("per-day")], [10.0, 10.0]);
}

#[tokio::test]
async fn a_costly_request_counts_more() {
    let rules = "domain: d
descriptors:
  - {key: read, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: write, rate_limit: {unit: hour, requests_per_unit: 100, cost: 5}}";
    let tollgate = Tollgate::start(rules, &[]);
    for (key, hits, give_back, remaining) in [
        ("read", 1, false, 99),
        ("write", 1, false, 95),
        ("write", 3, false, 80),
        ("write", 2, true, 90),
        ("write", 0, false, 90),
    ] {
        let request = RateLimitRequest { domain: "d".into(), ..with_hits(hits, give_back, &[(key, "v")]) };
        assert_eq!(one(&tollgate.ask(request).await.unwrap()), (Code::Ok, remaining), "{key} {hits}");
    }
    let most = RateLimitRequest { domain: "d".into(), ..with_hits(1 << 53, false, &[("write", "v")]) };
    assert_eq!(one(&tollgate.ask(most).await.unwrap()), (Code::OverLimit, 90), "and never wraps");
}

#[tokio::test]
async fn a_refund_is_no_quota_that_would_let_pass() {
    let tollgate = Tollgate::start(RULES, &[]);
    let quota =
        |key: &str, give_back| RateLimitDescriptor { is_negative_hits: give_back, ..descriptor(&[(key, "ann")]) };
    let ask = async |descriptors: Vec<RateLimitDescriptor>| {
        let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 };
        tollgate.ask(request).await.unwrap().overall_code()
    };
    assert_eq!(ask(vec![quota("quota-a", false)]).await, Code::Ok);
    assert_eq!(ask(vec![quota("quota-a", false), quota("quota-b", true)]).await, Code::OverLimit);
}

#[tokio::test]
async fn a_bucket_remembers_usage_that_has_happened_beyond_what_it_holds() {
    let rules = "domain: d
descriptors:
- key: tokens
  rate_limit: {period: 90m, requests_per_unit: 100, algorithm: token_bucket, count_denied: true}";
    let tollgate = Tollgate::start(rules, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let take = async |hits| {
        let request = RateLimitRequest { domain: "d".into(), ..with_hits(hits, false, &[("tokens", "ann")]) };
        tollgate.ask(request).await.unwrap()
    };
    assert_eq!(take(150).await.overall_code(), Code::OverLimit, "it is more than there is");
    let next = take(1).await;
    assert_eq!(next.overall_code(), Code::OverLimit);
    let retry_after: u64 = next.response_headers_to_add.last().unwrap().value.parse().unwrap();
    // Half of the number is owed, and the two requests for one: 52 tokens of 54 seconds each.
    assert!((2_700..=2_808).contains(&retry_after), "{retry_after}");
}

#[tokio::test]
async fn headers_can_be_those_of_the_ietf_draft() {
    let tollgate =
        Tollgate::start(RULES, &["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESPONSE_HEADERS_FORMAT=ietf"]);
    let response = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
    let headers: Vec<_> =
        response.response_headers_to_add.iter().map(|header| (header.key.as_str(), header.value.as_str())).collect();
    assert_eq!(headers[0], ("RateLimit-Policy", "\"per-user\";q=5;w=3600"));
    assert_eq!(headers[1].0, "RateLimit");
    assert!(headers[1].1.starts_with("\"per-user\";r=4;t="), "{headers:?}");
}

#[tokio::test]
async fn a_month_of_the_calendar_is_a_month_in_answers_and_has_no_length_in_headers() {
    const MONTH: &str = "unit: month, requests_per_unit: 5, algorithm: fixed_window, time_zone: asia/shanghai";
    let rules = format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{name: monthly, {MONTH}}}}}]");
    let headers = ["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESPONSE_HEADERS_FORMAT=ietf"];
    // For windows that envoyproxy/ratelimit does not have, the name is Tollgate's.
    for settings in [&headers[..], &[&headers[..], &["COUNTER_KEYS=reference"]].concat()] {
        let tollgate = Tollgate::start(&rules, settings);
        let asked = request("d", &[&[("k", "v")]]);
        let response = tollgate.ask(asked.clone()).await.unwrap();
        let status = &response.statuses[0];
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.unit(), limit.unit_multiplier), (Unit::Month, None));
        assert!((0..=31 * 86_400).contains(&status.duration_until_reset.unwrap().seconds), "{status:?}");
        assert_eq!(response.response_headers_to_add[0].value, "\"monthly\";q=5");
        let details = tollgate.details(asked).await;
        let limit = &details.descriptors[0].limits[0];
        assert_eq!((limit.time_zone.as_deref(), limit.remaining), (Some("Asia/Shanghai"), Some(3)));
    }
}

#[tokio::test]
async fn with_fixed_windows_by_default_a_file_behaves_as_in_the_reference() {
    let rules = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 5}}]";
    let tollgate = Tollgate::start(rules, &["DEFAULT_ALGORITHM=fixed_window"]);
    let ask = async |hits| {
        let request = RateLimitRequest { domain: "d".into(), ..with_hits(hits, false, &[("k", "v")]) };
        one(&tollgate.ask(request).await.unwrap())
    };
    assert_eq!(ask(3).await, (Code::Ok, 2));
    // Denied hits count, so the rest of the window is denied as well.
    assert_eq!(ask(10).await, (Code::OverLimit, 0));
    assert_eq!(ask(1).await, (Code::OverLimit, 0));
    assert_eq!(ask(0).await, (Code::OverLimit, 0));
}

#[tokio::test]
async fn a_fixed_window_that_denies_tells_its_own_end_whatever_others_say() {
    let rules = "domain: d\ndescriptors:\n- {key: hour, rate_limit: {unit: hour, requests_per_unit: 1}}\n\
                 - {key: year, rate_limit: {unit: year, requests_per_unit: 1}}";
    let tollgate = Tollgate::start(rules, &["DEFAULT_ALGORITHM=fixed_window"]);
    let both = request("d", &[&[("hour", "x")], &[("year", "x")]]);
    // The hour may end between the two requests.
    let mut response = tollgate.ask(both.clone()).await.unwrap();
    while response.statuses.iter().any(|status| status.code() == Code::Ok) {
        response = tollgate.ask(both.clone()).await.unwrap();
    }
    let told: Vec<_> = response.statuses.iter().map(|status| status.duration_until_reset.unwrap().seconds).collect();
    // A year, as the protocol has it, ends with an hour.
    assert!((1..=3_600).contains(&told[0]), "{told:?}");
    assert_eq!((told[1] - told[0]) % 3_600, 0, "{told:?}");
}

#[test]
fn our_messages_are_envoys_on_the_wire() {
    let ours = RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry { key: "user".into(), value: "ann".into() }],
            limit: Some(RateLimitOverride { requests_per_unit: 7, unit: 3, unit_multiplier: None }),
            hits_addend: Some(9),
            is_negative_hits: true,
        }],
        hits_addend: 2,
    };
    let theirs = envoy::RateLimitRequest::decode(&*ours.encode_to_vec()).unwrap();
    let descriptor = &theirs.descriptors[0];
    assert_eq!((theirs.domain.as_str(), theirs.hits_addend), ("shop", 2));
    assert_eq!((descriptor.entries[0].key.as_str(), descriptor.entries[0].value.as_str()), ("user", "ann"));
    assert_eq!(descriptor.limit.map(|limit| (limit.requests_per_unit, limit.unit)), Some((7, 3)));
    assert_eq!(descriptor.hits_addend.map(|hits| hits.value), Some(9));
    assert_eq!(RateLimitRequest::decode(&*theirs.encode_to_vec()).unwrap(), ours, "nothing is lost on the way back");

    // The published messages lack fields 3 and 4: a message whose field 1 is the number.
    let of_several = RateLimitOverride { unit_multiplier: Some(5), ..RateLimitOverride::default() };
    assert_eq!(of_several.encode_to_vec(), [3 << 3 | 2, 2, 1 << 3, 5]);
    let of_several = RateLimit { unit_multiplier: Some(5), ..RateLimit::default() };
    assert_eq!(of_several.encode_to_vec(), [4 << 3 | 2, 2, 1 << 3, 5]);

    let theirs = envoy::RateLimitResponse {
        overall_code: 2,
        statuses: vec![envoy::rate_limit_response::DescriptorStatus {
            code: 2,
            current_limit: Some(envoy::rate_limit_response::RateLimit {
                name: "n".into(),
                requests_per_unit: 5,
                unit: envoy::rate_limit_response::rate_limit::Unit::Week as i32,
            }),
            limit_remaining: 3,
            duration_until_reset: Some(envoy_types::pb::google::protobuf::Duration { seconds: 4, nanos: 0 }),
            ..Default::default()
        }],
        response_headers_to_add: vec![envoy_types::pb::envoy::config::core::v3::HeaderValue {
            key: "k".into(),
            value: "v".into(),
            raw_value: vec![1],
        }],
        request_headers_to_add: vec![envoy_types::pb::envoy::config::core::v3::HeaderValue {
            key: "q".into(),
            ..Default::default()
        }],
        raw_body: vec![5],
        dynamic_metadata: Some(envoy_types::pb::google::protobuf::Struct::default()),
        quota: Some(envoy::rate_limit_response::Quota { requests: 6, id: "i".into(), ..Default::default() }),
    };
    let ours = RateLimitResponse::decode(&*theirs.encode_to_vec()).unwrap();
    assert_eq!(ours.statuses[0].current_limit.as_ref().unwrap().unit(), Unit::Week);
    assert_eq!(envoy::RateLimitResponse::decode(&*ours.encode_to_vec()).unwrap(), theirs);
}

#[tokio::test]
async fn envoys_own_client_is_understood() {
    let tollgate = Tollgate::start(RULES, &[]);
    let address = format!("http://127.0.0.1:{}", tollgate.grpc_port);
    let mut client = envoy::rate_limit_service_client::RateLimitServiceClient::connect(address).await.unwrap();
    let ours = request("shop", &[&[("user", "ann")]]);
    let theirs = envoy::RateLimitRequest::decode(&*ours.encode_to_vec()).unwrap();
    let response = client.should_rate_limit(theirs).await.unwrap().into_inner();
    assert_eq!((response.overall_code, response.statuses[0].limit_remaining), (1, 4));
}

#[tokio::test]
async fn health_and_reflection_stand_beside_the_service() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let tollgate = Tollgate::start(RULES, &[]);
    let address = format!("http://127.0.0.1:{}", tollgate.grpc_port);
    let channel = tonic::transport::Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
        let request = HealthCheckRequest { service: service.into() };
        assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "{service:?}");
    }
    let mut reflection = ServerReflectionClient::new(channel);
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = reflection.server_reflection_info(tokio_stream::once(list)).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(services)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("not a list of services");
    };
    let names: Vec<_> = services.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"envoy.service.ratelimit.v3.RateLimitService"), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
}

#[tokio::test]
async fn details_tell_all_limits_of_every_descriptor_to_who_asks_for_them() {
    let rules = "
domain: sms
descriptors:
  - key: phone
    rate_limits:
      - {name: per-minute, unit: minute, requests_per_unit: 2, algorithm: token_bucket, burst: 4}
      - {period: 1500ms, requests_per_unit: 3, algorithm: fixed_window, count_denied: false}
  - {key: root, rate_limit: {unlimited: true}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let asked = request("sms", &[&[("phone", "1")], &[("root", "x")], &[("color", "red")]]);
    assert_eq!(tollgate.ask(asked.clone()).await.unwrap().dynamic_metadata, None, "nobody else pays for it");

    let mut details = tollgate.details(asked.clone()).await;
    for limit in details.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.limits) {
        assert!(limit.reset_after_ms.take().is_some_and(|ms| ms > 0 && ms <= 60_000), "{limit:?}");
    }
    let of = |name: &str, algorithm: &str| LimitDetails {
        name: name.into(),
        algorithm: algorithm.into(),
        decided_by: "store".into(),
        ..LimitDetails::default()
    };
    let window = details.descriptors[0].limits[1].remaining;
    assert!(window == Some(1) || window == Some(2), "its window may have ended");
    let limits = vec![
        LimitDetails {
            number: 2,
            period_ms: Some(60_000),
            capacity: 4,
            remaining: Some(2),
            ..of("per-minute", "token_bucket")
        },
        LimitDetails {
            number: 3,
            period_ms: Some(1_500),
            capacity: 3,
            remaining: window,
            ..of("phone#1", "fixed_window")
        },
    ];
    let expected = Details {
        decided_by: "store".into(),
        next_passes: Some(true),
        passed: Vec::new(),
        descriptors: vec![
            DescriptorDetails { rule: Some("phone".into()), limits, ..DescriptorDetails::default() },
            DescriptorDetails { rule: Some("root".into()), unlimited: true, ..DescriptorDetails::default() },
            DescriptorDetails {
                missed: Some("key \"color\": this level has \"phone\", \"root\"".into()),
                ..DescriptorDetails::default()
            },
        ],
        left_out: None,
    };
    assert_eq!(details, expected);

    let mut many = asked;
    many.hits_addend = 3;
    let details = tollgate.details(many).await;
    let bucket = &details.descriptors[0].limits[0];
    assert!(bucket.over && bucket.remaining == Some(2), "{bucket:?}");
    assert!(bucket.retry_after_ms.is_some_and(|ms| ms > 20_000 && ms <= 30_000), "{bucket:?}");
    assert_eq!(details.next_passes, Some(true), "three do not pass, and one does");
}

#[tokio::test]
async fn a_limit_has_one_name_everywhere() {
    let rules = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, unit: year, requests_per_unit: 2, give_back: false}}
  - {key: plan, value: gold, rate_limit: {name: twice, unit: year, requests_per_unit: 2, give_back: false}}
  - {key: plan, value: blue, rate_limit: {name: twice, unit: year, requests_per_unit: 2, give_back: false}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 2, give_back: false}}
  - {key: x, rate_limit: {name: path, unit: year, requests_per_unit: 2, give_back: false}}
";
    let settings = ["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESPONSE_HEADERS_FORMAT=ietf"];
    let tollgate = Tollgate::start(rules, &settings);
    for (key, value, name) in [
        ("user", "ann", "per-user"),
        ("plan", "gold", "plan=gold#twice"),
        ("plan", "blue", "plan=blue#twice"),
        ("path", "/", "path"),
        ("x", "y", "x#path"),
    ] {
        let entry: &[(&str, &str)] = &[(key, value)];
        let response = tollgate.ask(request("shop", &[entry])).await.unwrap();
        let policy = &response.response_headers_to_add[0];
        assert_eq!((&*policy.key, &*policy.value), ("RateLimit-Policy", &*format!("\"{name}\";q=2;w=31536000")));
        assert_eq!(tollgate.metric(&format!("tollgate_hits_total{{domain=\"shop\",rule=\"{name}\"}}")), 1.0);
        assert_eq!(tollgate.details(request("shop", &[entry])).await.descriptors[0].limits[0].name, name);
        let refused = tollgate.ask(with_hits(1, true, entry)).await.unwrap_err();
        assert!(refused.message().contains(&format!("the rule {name:?}")), "{refused:?}");
    }
}
