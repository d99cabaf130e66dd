//! Limits that take their numbers from requests.

use serde_json::{Value, json};

use ::tollgate::engine::algorithm::Algorithm;
use ::tollgate::engine::asked::Source;
use ::tollgate::engine::descriptor::{Descriptor, Entry, Override, Request};
use ::tollgate::engine::plan::{Names, Plan, PlanOptions};
use ::tollgate::engine::rules::FailureMode;
use ::tollgate::engine::{algorithm::Ask, rules::Rules};

use crate::rules::load_text;
use crate::support::envoy::Envoy;
use crate::support::tollgate::Tollgate;

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit:
      name: tenants
      unit: minute
      requests_per_unit: 10
      number: {from: request, max: 1000}
      algorithm: token_bucket
      burst: 20
      failure_mode: closed
      penalty: {after: 5, within: 1m, ban: 15m}
      usage: {by: hour, keep: 400d}
      cost: 2
  - key: hot
    rate_limit:
      {unit: minute, requests_per_unit: 100, number: {from: request, max: 1000}, lease: {unused: 50%, ttl: 100ms}}
  - {key: plain, rate_limit: {unit: minute, requests_per_unit: 10, failure_mode: closed}}
";

fn request(key: &str, limit: Option<&str>) -> Request {
    let entries = vec![Entry { key: key.into(), value: "ann".into() }];
    let limit = limit.map(|text| Override::parse(text).unwrap());
    Request { domain: "shop".into(), descriptors: vec![Descriptor { entries, ask: Ask::Take(1), limit }] }
}

fn rules() -> Rules {
    load_text(RULES).unwrap().rules
}

#[test]
fn a_limit_that_a_request_brings_along_keeps_all_else_of_the_rule() {
    let (rules, options) = (rules(), PlanOptions::default());
    let mut keys = Vec::new();
    for (brought, number, burst, seconds) in [
        (None, 10, 20, 60),
        (Some("50/minute"), 50, 100, 60),
        (Some("5000/minute"), 1_000, 2_000, 60),
        (Some("7/hour"), 7, 14, 3_600),
    ] {
        let request = request("tenant", brought);
        let plan = Plan::new(&options, &rules, &request, Names::Tollgate);
        let [asked] = plan.asked() else { panic!("{brought:?}: {:?}", plan.asked()) };
        assert!(matches!(asked.source, Source::Rule(_, limit) if &*limit.label == "tenants"), "{brought:?}");
        let limit = &asked.check.limit;
        assert_eq!((limit.number(), limit.capacity(), limit.period().as_secs()), (number, burst, seconds));
        assert_eq!((limit.algorithm(), asked.failure_mode), (Algorithm::TokenBucket, FailureMode::Closed));
        assert!(asked.check.penalty.is_some() && asked.check.recorded.is_some(), "{brought:?}");
        assert_eq!(asked.check.ask, Ask::Take(2));
        keys.push(asked.check.key.as_str().to_owned());
    }
    assert_eq!(keys[0], keys[1], "a number of the same period keeps the count");
    let denied = request("tenant", Some("0/minute"));
    let plan = Plan::new(&options, &rules, &denied, Names::Tollgate);
    assert_eq!(plan.asked()[0].check.limit.capacity(), 0);
}

#[test]
fn a_lease_stays_if_it_fits_the_number() {
    let (rules, options) = (rules(), PlanOptions::default());
    for (brought, has_lease) in [(None, true), (Some("200/minute"), true), (Some("0/minute"), false)] {
        let request = request("hot", brought);
        let plan = Plan::new(&options, &rules, &request, Names::Tollgate);
        assert_eq!(plan.asked()[0].check.lease.is_some(), has_lease, "{brought:?}");
    }
}

#[test]
fn without_the_option_it_is_a_limit_of_its_own_as_before() {
    let (rules, options) = (rules(), PlanOptions::default());
    for key in ["plain", "unknown"] {
        let request = request(key, Some("7/hour"));
        let plan = Plan::new(&options, &rules, &request, Names::Tollgate);
        let [asked] = plan.asked() else { panic!("{:?}", plan.asked()) };
        assert!(matches!(asked.source, Source::Override(_)));
        assert_eq!((asked.check.limit.number(), asked.failure_mode), (7, FailureMode::Open));
    }
}

/// The change that makes Envoy send each tenant's limit, from dynamic metadata that a filter before it sets.
const TENANTS: [(&str, &str); 2] = [
    (
        "                  - name: envoy.filters.http.ratelimit
",
        "                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata:
                        - metadata_namespace: limits
                          value: { tenant: { requests_per_unit: 3, unit: HOUR } }
                  - name: envoy.filters.http.ratelimit
",
    ),
    (
        "                            - request_headers: { header_name: x-user, descriptor_key: user }
",
        "                            - request_headers: { header_name: x-user, descriptor_key: tenant }
                          limit:
                            dynamic_metadata:
                              metadata_key: { key: limits, path: [{ key: tenant }] }
",
    ),
];

#[test]
fn envoy_sends_the_number_and_the_rule_decides() {
    let tollgate = Tollgate::start(&RULES.replace("cost: 2", "cost: 1").replace("burst: 20", "burst: 10"), &[]);
    let envoy = Envoy::start_with(tollgate.grpc_port, &[&[Envoy::LONG_TIMEOUT], &TENANTS[..]].concat());
    let statuses: Vec<u16> = (0..5).map(|_| envoy.get_as("ann").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(envoy.get_as("ann").header("x-ratelimit-limit"), Some("3, 3;w=3600;name=\"tenants\""));
    assert_eq!(tollgate.metric("tollgate_over_limit_hits_total{domain=\"shop\",rule=\"tenants\"}"), 3.0);
}

#[test]
fn explain_says_what_the_request_supplies_and_what_the_rule_does() {
    let token = "a token of some length";
    let tollgate = Tollgate::start(RULES, &["ADMIN_API=true", &format!("ADMIN_TOKEN={token}")]);
    let explained = tollgate.admin("GET", "/explain?domain=shop&%40limit=50/minute&tenant=ann", token).1;
    let limit = &explained["descriptors"][0]["limits"][0];
    assert_eq!(limit["name"], "tenants", "{explained}");
    let part = |key: &str| -> Value {
        let parts = limit["parts"].as_array().unwrap();
        parts.iter().find(|part| part["key"] == key).cloned().unwrap_or_default()
    };
    let number = part("requests_per_unit");
    assert_eq!((&number["value"], &number["from"]), (&json!("50 per minute"), &json!("request")));
    assert_eq!(part("number")["value"], "from the request, at most 1000");
    assert_eq!(part("failure_mode")["value"], "closed");
}

#[test]
fn check_names_each_mistake() {
    for (options, told) in [
        ("number: {from: requests, max: 5}", "number.from: unknown source \"requests\", did you mean \"request\"?"),
        ("number: {from: request}", "number.max: is missing"),
        ("number: {from: request, max: 0}", "number.max: must be at least 1"),
        ("algorithm: sliding_log, number: {from: request, max: 1000000}", "number.max: "),
    ] {
        let rules =
            format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: 9, {options}}}}}]");
        let error = load_text(rules).unwrap_err().to_string();
        assert!(error.contains(told) && error.lines().count() == 1, "{options}: {error}");
    }
}
