//! Entries that each request of a domain must bring.

use serde_json::{Value, json};

use crate::rules::load_text;
use crate::support::envoy::Envoy;
use crate::support::tollgate::Tollgate;

const RULES: &str = "
domain: shop
expect: [user]
on_missing: deny
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: path, rate_limit: {name: paths, unit: minute, requests_per_unit: 100}}
  - {key: bytes, rate_limit: {name: bytes, unit: minute, requests_per_unit: 100, count_denied: true}}
";

const TOKEN: &str = "a token of some length";

fn ask(tollgate: &Tollgate, descriptors: &[Value]) -> (u16, Value) {
    let descriptors: Vec<Value> = descriptors.iter().map(|entries| json!({"entries": entries})).collect();
    let request = json!({"domain": "shop", "descriptors": descriptors});
    let (status, text) = tollgate.post("/json", request.to_string().as_bytes());
    (status, serde_json::from_str(&text).unwrap())
}

fn entry(key: &str, value: &str) -> Value {
    json!([{"key": key, "value": value}])
}

const MISSING: &str = "tollgate_missing_entries_total{domain=\"shop\",entry=\"user\"}";

#[test]
fn a_request_without_an_expected_entry_is_denied_and_charges_only_limits_that_count_denials() {
    let tollgate = Tollgate::start(RULES, &["LIMIT_DECIDED_BY_HEADER=x-decided-by"]);
    assert_eq!(ask(&tollgate, &[entry("path", "/"), entry("user", "ann")]).0, 200);
    for without in [&[entry("path", "/")][..], &[entry("path", "/"), entry("user", "")]] {
        let (status, answer) = ask(&tollgate, without);
        assert_eq!((status, &answer["overallCode"]), (429, &json!("OVER_LIMIT")), "{answer}");
        let decided_by = json!([{"key": "x-decided-by", "value": "missing_entry"}]);
        assert_eq!(answer["responseHeadersToAdd"], decided_by, "{answer}");
        assert_eq!(answer["statuses"][0]["limitRemaining"], 99, "it was not charged: {answer}");
    }
    assert_eq!(tollgate.metric(MISSING), 2.0);
    assert_eq!(ask(&tollgate, &[entry("bytes", "x")]).1["statuses"][0]["limitRemaining"], 99);
    // A refund passes.
    let refund = json!({"domain": "shop", "descriptors": [
        {"entries": entry("bytes", "x"), "hitsAddend": 1, "isNegativeHits": true},
    ]});
    assert_eq!(tollgate.post("/json", refund.to_string().as_bytes()).0, 200);
}

#[test]
fn it_is_only_counted_unless_the_domain_denies_it() {
    let tollgate = Tollgate::start(&RULES.replace("on_missing: deny\n", ""), &[]);
    let (status, answer) = ask(&tollgate, &[entry("path", "/")]);
    assert_eq!((status, &answer["statuses"][0]["limitRemaining"]), (200, &json!(99)));
    assert_eq!(tollgate.metric(MISSING), 1.0);
    let shadow = Tollgate::start(RULES, &["SHADOW_MODE=true"]);
    assert_eq!(ask(&shadow, &[entry("path", "/")]).0, 200);
    assert_eq!(shadow.metric("tollgate_global_shadow_mode_total"), 1.0);
}

/// Envoy leaves out the descriptor of a header that a request does not have.
#[test]
fn a_request_that_hides_its_user_from_envoy_does_not_pass() {
    let tollgate = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start(tollgate.grpc_port);
    assert_eq!(envoy.get_as("ann").status, 200);
    assert_eq!(envoy.get("/").status, 429);
}

#[test]
fn explain_and_the_decision_log_tell_it() {
    let log = tempfile::tempdir().unwrap();
    let file = log.path().join("decisions.jsonl");
    let settings =
        ["ADMIN_API=true".to_owned(), format!("ADMIN_TOKEN={TOKEN}"), format!("DECISION_LOG={}", file.display())];
    let tollgate = Tollgate::start(RULES, &settings.each_ref().map(String::as_str));
    let (_, told) = tollgate.admin("GET", "/explain?domain=shop&path=x", TOKEN);
    assert_eq!(told["missing"], json!({"entry": "user", "on_missing": "deny"}));
    assert_eq!(told["answer"], "deny");
    assert_eq!(told["because"], "the domain expects the entry user, and the request has none");
    assert_eq!(tollgate.admin("GET", "/explain?domain=shop&user=ann", TOKEN).1.get("missing"), None);

    ask(&tollgate, &[entry("path", "/")]);
    let lines = || std::fs::read_to_string(&file).unwrap_or_default();
    crate::support::wait_until("a line", || lines().lines().count() == 1);
    let line: Value = serde_json::from_str(&lines()).unwrap();
    assert_eq!((&line["outcome"], &line["reason"]), (&json!("denied"), &json!("missing_entry")), "{line}");
}

#[test]
fn check_names_each_mistake() {
    let rest = "descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]";
    let told = |head: &str| match load_text(format!("domain: d\n{head}\n{rest}")) {
        Ok(loaded) => loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        Err(error) => error.to_string(),
    };
    assert_eq!(told("expect: [user]"), "");
    for (head, expected) in [
        ("expect: [usr]", "expect[0]: no descriptor of this domain has the key \"usr\", did you mean \"user\"?"),
        ("expect: [user, user]", "expect[1]: \"user\" is named above as well"),
        ("expect: user", "expect: must be a list"),
        ("expect: [user]\non_missing: refuse", "on_missing: unknown on_missing \"refuse\""),
        ("on_missing: deny", "on_missing: does nothing without expect"),
    ] {
        assert!(told(head).contains(expected), "{head}: {}", told(head));
    }
}
