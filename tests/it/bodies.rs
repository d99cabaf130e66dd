//! The body of a denial, and its content type: through a real Envoy, at every other way in, and in the commands.

use serde_json::{Value, json};

use crate::support::envoy::{Answer, Envoy};
use crate::support::tollgate::Tollgate;

const RULES: &str = r#"
domain: shop
defaults:
  denied_body: {format: problem}
descriptors:
  - {key: user, rate_limit: {name: per-user, unit: minute, requests_per_unit: 1}}
  - {key: user, value: open, rate_limit: {unit: minute, requests_per_unit: 1, denied_body: {format: openai}}}
  - {key: user, value: ant, rate_limit: {unit: minute, requests_per_unit: 1, denied_body: {format: anthropic}}}
  - {key: user, value: bare, rate_limit: {unit: minute, requests_per_unit: 1, denied_body: {format: none}}}
  - {key: user, value: never, rate_limit: {unit: minute, requests_per_unit: 0}}
  - key: user
    value: own
    rate_limit:
      name: 'a "name"'
      unit: minute
      requests_per_unit: 1
      denied_body:
        content_type: application/vnd.shop+json; charset=utf-8
        text: |
          {"limit": "{rule}", "allows": {limit}, "per": "{period}", "left": {remaining}, "all": {policies},
           "wait": {wait_seconds}, "domain": "{domain}"}
"#;

fn denied(envoy: &Envoy, user: &str) -> Answer {
    envoy.get_as(user);
    let answer = envoy.get_as(user);
    assert_eq!(answer.status, 429, "{answer:?}");
    answer
}

fn body(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

#[test]
fn envoy_sends_the_body_of_the_limit_that_denies_with_its_content_type() {
    let tollgate = Tollgate::start(RULES, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let envoy = Envoy::start(tollgate.grpc_port);
    let passed = envoy.get_as("ann");
    assert_eq!((passed.status, passed.body.as_str()), (200, "hello from the service\n"));
    assert_eq!(passed.header("content-type"), Some("text/plain"), "the service's own");

    let problem = denied(&envoy, "ann");
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));
    let wait = problem.number("retry-after").unwrap();
    let told = body(&problem);
    assert_eq!(told["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&told["violated-policies"], &told["retry-after"]), (&json!(["per-user"]), &json!(wait)));
    let detail = told["detail"].as_str().unwrap();
    assert!(detail.starts_with("Rate limit per-user of 1 per minute exceeded. Try again in "), "{detail}");

    let openai = denied(&envoy, "open");
    assert_eq!(openai.header("content-type"), Some("application/json"));
    assert_eq!(body(&openai)["error"]["code"], "rate_limit_exceeded");
    let anthropic = body(&denied(&envoy, "ant"));
    assert_eq!((&anthropic["type"], &anthropic["error"]["type"]), (&json!("error"), &json!("rate_limit_error")));

    let bare = denied(&envoy, "bare");
    assert_eq!((bare.body.as_str(), bare.header("content-type")), ("", None));
    let never = body(&denied(&envoy, "never"));
    assert_eq!(never.get("retry-after"), None, "no wait helps: {never}");

    let own = denied(&envoy, "own");
    assert_eq!(own.header("content-type"), Some("application/vnd.shop+json; charset=utf-8"));
    let mut told = body(&own);
    assert!((1..=66).contains(&told["wait"].take().as_u64().unwrap()));
    let name = "a \"name\"";
    let expected = json!({
        "limit": name, "allows": 1, "per": "per minute", "left": 0, "all": [name], "wait": null, "domain": "shop",
    });
    assert_eq!(told, expected);
}

#[test]
fn a_grpc_client_gets_the_body_as_its_message() {
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 0, \
                 denied_body: {text: 'wait {wait}'}}}]";
    let tollgate = Tollgate::start(rules, &[]);
    let envoy = Envoy::start(tollgate.grpc_port);
    let answer = envoy.ask("/", &[("x-user", "ann"), ("content-type", "application/grpc")]);
    assert_eq!((answer.status, answer.header("grpc-message")), (200, Some("wait unknown")), "{answer:?}");
}

fn json_of(tollgate: &Tollgate, user: &str) -> Value {
    let request = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": user}]}]});
    serde_json::from_str(&tollgate.post("/json", request.to_string().as_bytes()).1).unwrap()
}

#[test]
fn without_the_option_a_denial_has_no_body_and_a_setting_gives_one_to_all() {
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 0}}]";
    let answer = json_of(&Tollgate::start(rules, &[]), "ann");
    assert_eq!((answer.get("rawBody"), answer.get("responseHeadersToAdd")), (None, None), "{answer}");
    let set = Tollgate::start(rules, &["DENIED_BODY=anthropic", "UNKNOWN_DESCRIPTOR=deny"]);
    let answer = json_of(&set, "ann");
    assert_eq!(answer["responseHeadersToAdd"], json!([{"key": "content-type", "value": "application/json"}]));
    assert!(answer["rawBody"].is_string(), "{answer}");
    // No limit denies it, so the body is that of the domain.
    let request = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "who", "value": "ann"}]}]});
    let (status, answer) = set.post("/json", request.to_string().as_bytes());
    assert!(status == 429 && answer.contains("rawBody"), "{answer}");
}

#[test]
fn explain_says_where_the_body_comes_from() {
    let tollgate = Tollgate::start(RULES, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    let (_, explained) = tollgate.admin("GET", "/explain?domain=shop&user=ann", "a token of some length");
    let parts = explained["descriptors"][0]["limits"][0]["parts"].as_array().unwrap();
    let part = parts.iter().find(|part| part["key"] == "denied_body").unwrap();
    assert_eq!(
        (&part["value"], &part["from"], &part["at"]["line"]),
        (&json!("problem"), &json!("defaults"), &json!(4))
    );
}

#[test]
fn check_names_each_mistake_in_a_body() {
    for (body, told) in [
        ("{format: problen}", "denied_body.format: unknown format \"problen\", did you mean \"problem\"?"),
        ("{format: problem, text: x}", "denied_body: takes format or text, not both"),
        ("{}", "denied_body: is empty: write a format (problem, openai, anthropic, none), or a text"),
        ("{format: problem, content_type: text/html}", "denied_body.content_type: is for a text"),
        ("{text: '{rul}'}", "denied_body.text: unknown placeholder \"rul\", did you mean \"rule\"?"),
        ("{text: '{\"a\": {rule}}', content_type: application/json}", "denied_body.text: is not JSON once"),
        ("{text: x, content_type: json}", "denied_body.content_type: is not a content type"),
    ] {
        let limit = "unit: day, requests_per_unit: 9";
        for rules in [
            format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}, denied_body: {body}}}}}]"),
            format!("domain: d\ndefaults: {{denied_body: {body}}}\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}]"),
        ] {
            let error = crate::rules::load_text(rules).unwrap_err().to_string();
            assert!(error.contains(told) && error.lines().count() == 1, "{body}: {error}");
        }
    }
}
