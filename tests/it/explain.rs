//! `tollgate explain` and `/explain`: they report why a request is limited or not, agree with real decisions, and count
//! nothing. Also the handling of unknown domains and descriptors.

use crate::support;

use std::process::Output;
use std::sync::LazyLock;

use ::tollgate::engine::descriptor::Entry;
use ::tollgate::engine::explain::{self, Explanation};
use ::tollgate::engine::plan::{Names, PlanOptions};
use ::tollgate::engine::rules::{Budget, Rules};
use ::tollgate::sources::files::load::{self, LoadOptions, Sources};
use ::tollgate::wire::RateLimitRequest;
use ::tollgate::wire::rate_limit_response::Code;
use proptest::prelude::*;
use serde_json::Value;
use support::redis::Redis;
use support::tollgate::{self, Tollgate, request};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: count
    rate_limit: {unit: year, requests_per_unit: 9, count_denied: true}
";

const TOKEN: &str = "a token of some length";

const ADMIN: [&str; 2] = ["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"];

fn rules_of(file: &str) -> Rules {
    load::load(&Sources { paths: vec![file.into()] }, &LoadOptions::default()).unwrap().rules
}

fn entries(words: &[&str]) -> Vec<Entry> {
    let entry = |word: &&str| word.split_once('=').map(|(key, value)| Entry { key: key.into(), value: value.into() });
    words.iter().filter_map(entry).collect()
}

/// Runs `tollgate explain`.
fn command(settings: &[(&str, &str)], words: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        tollgate::command().arg("explain").args(words).envs(settings.iter().copied()).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn every_question_has_the_answer_of_the_snapshot() {
    let rules = rules_of("tests/explain/rules.yaml");
    let questions = std::fs::read_to_string("tests/explain/questions.txt").unwrap();
    let mut text = String::new();
    for question in questions.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = question.split(' ').collect();
        let (domain, words) = words.split_first().unwrap();
        let descriptors = words.split(|word| *word == "+").map(entries).collect();
        let request = explain::request(domain, descriptors, None);
        let explanation =
            Explanation::new(&rules, &PlanOptions::default(), &request, Names::default()).without_state("not read");
        text += &format!("> {question}\n{explanation}\n");
        for (explained, missed) in explanation.descriptors.iter().zip(explain::missed(&rules, &request)) {
            assert_eq!(missed, explained.missed.first().map(ToString::to_string), "{question}");
        }
        let json = serde_json::to_string(&explanation).unwrap();
        assert_eq!(serde_json::from_str::<Explanation>(&json).unwrap(), explanation);
    }
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path("../explain");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("answers", text));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Few distinct keys and values make near misses frequent. Also with a budget too small to search for near misses.
    #[test]
    fn the_way_that_is_told_is_the_way_that_requests_go(
        words in prop::collection::vec((
            prop::sample::select(vec!["user", "route", "remote_address", "path", "method", "plan", "User", "pat", ""]),
            prop::sample::select(vec!["ann", "root", "/pay", "/pay/", "/static/x", "GET", "gold", " gold", "é", ""]),
        ), 0..5),
        work in prop_oneof![Just(0_usize), 0_usize..200, Just(Budget::PERSON)],
    ) {
        static RULES: LazyLock<Rules> = LazyLock::new(|| rules_of("tests/explain/rules.yaml"));
        let rules = &*RULES;
        let domain = rules.domain("shop").unwrap();
        let entries: Vec<Entry> =
            words.into_iter().map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect();
        let trace = rules.trace(domain, &entries, &mut Budget::new(work));
        let found = rules.find(domain, &entries);
        prop_assert_eq!(trace.rule.map(|rule| &rule.path), found.map(|rule| &rule.path));
        prop_assert_eq!(trace.misses.is_empty(), found.is_some());
        prop_assert!(trace.steps.len() <= entries.len());
        if let Some(rule) = found {
            let steps: Vec<&str> = trace.steps.iter().map(|step| &*step.node).collect();
            prop_assert_eq!(steps.join("|"), &*rule.path);
            prop_assert_eq!(trace.steps.last().unwrap().place, rule.place);
        }
    }
}

#[test]
fn a_rule_knows_its_file_and_line_also_where_a_domain_has_several_files() {
    let folder = tempfile::tempdir().unwrap();
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    std::fs::write(folder.path().join("a.yaml"), format!("domain: d\ndescriptors:\n- key: a\n  {limit}\n")).unwrap();
    let defaults = "defaults:\n  algorithm: token_bucket\n";
    let b = format!("{defaults}domain: d\ndescriptors:\n# b\n- key: b\n  # its limit\n  {limit}\n");
    std::fs::write(folder.path().join("b.yaml"), b).unwrap();
    let options = LoadOptions { merge_domains: true, ..LoadOptions::default() };
    let rules = load::load(&Sources { paths: vec![folder.path().to_owned()] }, &options).unwrap().rules;
    let explained = |entry| {
        let request = explain::request("d", vec![entries(&[entry])], None);
        serde_json::to_value(Explanation::new(&rules, &PlanOptions::default(), &request, Names::default())).unwrap()
    };
    let is_at = |at: &Value, file: &str, line: u64| {
        assert!(at["file"].as_str().unwrap().ends_with(file) && at["line"] == line, "{at} is not {file}:{line}");
    };
    let (a, b) = (explained("a=1"), explained("b=1"));
    is_at(&a["at"], "a.yaml", 1);
    is_at(&a["descriptors"][0]["matched"][0]["at"], "a.yaml", 3);
    is_at(&a["descriptors"][0]["limits"][0]["at"], "a.yaml", 4);
    let algorithm = &a["descriptors"][0]["limits"][0]["parts"][1];
    assert_eq!((&algorithm["from"], &algorithm["setting"]), (&"setting".into(), &"DEFAULT_ALGORITHM".into()));
    is_at(&b["descriptors"][0]["matched"][0]["at"], "b.yaml", 6);
    is_at(&b["descriptors"][0]["limits"][0]["at"], "b.yaml", 8);
    let algorithm = &b["descriptors"][0]["limits"][0]["parts"][1];
    assert_eq!((&algorithm["from"], &algorithm["value"]), (&"defaults".into(), &"token_bucket".into()));
    is_at(&algorithm["at"], "b.yaml", 2);
}

/// With a million rules the search is bounded, so the answer covers only some of them.
#[test]
fn among_more_rules_than_are_compared_something_is_told_all_the_same() {
    let rule = |i| format!("- {{key: user, value: u{i}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    let rules: String = (0..100_000).map(rule).collect();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(&file, format!("domain: d\ndescriptors:\n{rules}")).unwrap();
    let rules = rules_of(file.path().to_str().unwrap());
    let missed =
        |entry| explain::missed(&rules, &explain::request("d", vec![entries(&[entry])], None)).remove(0).unwrap();
    assert!(missed("user=U77777").contains("differs in case: the rules have \"user=u77777\""), "{}", missed("user=U7"));
    assert!(missed("user=nobody at all").contains("this level has \"u"), "{}", missed("user=nobody at all"));
    assert!(missed("user=nobody at all").contains("and 99992 more"), "{}", missed("user=nobody at all"));
    assert!(missed("usr=u1").contains("this level has \"user\""), "{}", missed("usr=u1"));
    assert_eq!(missed("user=nobody at all"), missed("user=nobody at all"), "who asks twice reads the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_the_rules_in_force_are_explained_with_their_counters_and_nothing_is_counted() {
    let service = Tollgate::start(RULES, &ADMIN);
    assert!(service.passes("shop", &[("user", "ann")]).await);
    let ask = |query: &str| service.admin("GET", &format!("/explain?{query}"), TOKEN);
    let http = format!("http://127.0.0.1:{}", service.http_port);
    for (remaining, answer, code) in [(1, "pass", 0), (0, "deny", 2)] {
        for _ in 0..3 {
            let (status, explained) = ask("domain=shop&user=ann");
            assert_eq!(status, 200);
            let limit = &explained["descriptors"][0]["limits"][0];
            let state = &limit["state"];
            assert_eq!((&state["remaining"], &explained["answer"]), (&remaining.into(), &answer.into()), "{explained}");
            assert_eq!(limit["counter"], "{shop|user=ann}|sw1:31536000000/10");

            let words = ["--address", &http, "--domain", "shop", "user=ann"];
            let (exit, said, _) = command(&[("ADMIN_TOKEN", TOKEN)], &words);
            assert_eq!(exit, Some(code));
            assert!(said.contains(&format!("state: {remaining} of 2 left")), "{said}");
        }
        service.passes("shop", &[("user", "ann")]).await;
    }
    let (_, both) = ask("domain=shop&user=bob&%2B=&usr=ann");
    assert_eq!((&both["descriptors"][0]["found"], &both["answer"]), (&"limited".into(), &"pass".into()));
    assert_eq!(both["descriptors"][1]["missed"][0]["what"], "key");

    service.change_rules(&RULES.replace("user", "client"));
    support::wait_until("the new rules are explained", || {
        ask("domain=shop&client=ann").1["descriptors"][0]["found"] == "limited"
    });
    assert_eq!(ask("domain=shop&user=ann").1["descriptors"][0]["found"], "unknown_descriptor");
}

#[test]
fn only_who_has_the_token_gets_an_explanation_and_what_is_no_question_is_refused() {
    let service = Tollgate::start(RULES, &ADMIN);
    let good = "/explain?domain=shop&user=ann";
    for token in ["", "another token", "a token of some lengt"] {
        assert_eq!(service.admin("GET", good, token), (401, service.admin("GET", "/counters", token).1));
    }
    for (method, path, status) in [
        ("GET", "/explain", 400),
        ("GET", "/explain?user=ann", 400),
        ("GET", "/explain?domain=shop", 400),
        ("GET", "/explain?domain=shop&user=ann&%2B=", 400),
        ("GET", "/counters?domain=shop&user=ann&%2B=&user=bob", 400),
        ("DELETE", good, 405),
        ("GET", good, 200),
    ] {
        assert_eq!(service.admin(method, path, TOKEN).0, status, "{method} {path}");
    }
    let closed = Tollgate::start(RULES, &[]);
    assert_eq!(closed.admin("GET", good, TOKEN).0, 404);

    let ask = |port: u16, token: &str| {
        let words = ["--address", &format!("localhost:{port}"), "--domain", "shop", "user=ann"];
        command(&[("ADMIN_TOKEN", token)], &words)
    };
    for (port, token, reason) in [
        (service.http_port, "", "requires its ADMIN_TOKEN"),
        (closed.http_port, TOKEN, "start the service with ADMIN_API=true"),
        (service.grpc_port, TOKEN, "not the one of gRPC; for example http://localhost:8080"),
        (1, TOKEN, "connection to localhost:1 refused: is the service running? --address names the HTTP port"),
    ] {
        let (code, _, said) = ask(port, token);
        assert_eq!(code, Some(1));
        assert!(said.contains(reason) && said.matches(": ").count() <= 2, "{said}");
    }
}

#[tokio::test]
async fn the_command_reads_files_and_redis_with_the_settings_of_the_service() {
    let redis = Redis::start();
    let url = redis.url();
    let service = Tollgate::start(RULES, &[&format!("REDIS_URL={url}"), "CACHE_KEY_PREFIX=p:"]);
    assert!(service.passes("shop", &[("user", "ann")]).await);
    let rules = service.rules.path().to_str().unwrap();
    let settings = [("REDIS_URL", &*url), ("RULES", rules), ("CACHE_KEY_PREFIX", "p:")];
    let ann = ["--domain", "shop", "user=ann"];
    for _ in 0..3 {
        let (code, said, _) = command(&settings, &ann);
        assert_eq!(code, Some(0));
        assert!(said.contains("counter: p:{shop|user=ann}|sw1:31536000000/10\n    state: 1 of 2 left"), "{said}");
        assert!(said.ends_with("a request would pass: every limit has room\n"), "{said}");
    }
    let (code, said, _) = command(&settings[1..], &ann);
    assert_eq!(code, Some(1));
    assert!(
        said.contains(
            "    state: unknown\nwhether a request would pass is unknown: counters are in the service's memory"
        ),
        "{said}"
    );
    assert_eq!(said.matches("counters are in the service's memory").count(), 1, "{said}");
    let (code, said, _) = command(&settings, &["--domain", "shop", "--json", "color=red"]);
    assert_eq!(code, Some(3));
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&json["answer"], &json["because"]),
        (&"pass".into(), &"no limit applies, and UNKNOWN_DESCRIPTOR is pass".into())
    );
    let (code, said, _) = command(&[settings[1], ("UNKNOWN_DOMAIN", "deny")], &["--domain", "shpo", "user=ann"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("domain \"shpo\": did you mean \"shop\"?"), "{said}");

    redis.freeze();
    let (code, said, _) = command(&settings, &ann);
    redis.thaw();
    assert_eq!(code, Some(1));
    assert!(said.contains("\nwhether a request would pass is unknown: Redis "), "{said}");
    assert_eq!(said.matches("REDIS_TIMEOUT").count(), 1, "a cause is said once: {said}");
    let (code, _, said) = command(&[], &ann);
    assert_eq!(code, Some(1));
    assert!(said.contains("or ask a running service: --address http://localhost:8080"), "{said}");
}

#[test]
fn a_limit_of_0_denies_whatever_its_counter_says() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let rules = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 0}}\n";
    std::fs::write(file.path(), rules).unwrap();
    let (code, said, _) = command(&[("RULES", file.path().to_str().unwrap())], &["--domain", "d", "a=1"]);
    assert!(code == Some(2) && said.ends_with("a request would be LIMITED: a allows no requests\n"), "{said}");
    std::fs::write(file.path(), rules.replace("{key: a", "{key: a, shadow_mode: true")).unwrap();
    let (code, said, _) = command(&[("RULES", file.path().to_str().unwrap())], &["--domain", "d", "a=1"]);
    assert!(code == Some(1) && said.contains("is unknown"), "{said}");
}

#[test]
fn a_limit_that_the_request_brings_along_is_explained_with_where_its_parts_come_from() {
    let rules = RULES.replace("domain: shop", "domain: shop\ndefaults: {failure_mode: closed}");
    let service = Tollgate::start(&rules, &ADMIN);
    let http = format!("http://127.0.0.1:{}", service.http_port);
    let words = ["--address", &http, "--domain", "shop", "--limit", "7/30second", "user=ann"];
    let (code, said, _) = command(&[("ADMIN_TOKEN", TOKEN)], &words);
    let expected = "user=ann
  the request supplies its own limit, so no rule is applied
  limit (override)
    requests_per_unit: 7 per 30s, supplied by the request
    algorithm: sliding_window, by the setting DEFAULT_ALGORITHM
    failure_mode: closed, by the file's defaults (";
    assert!(code == Some(0) && said.contains(expected) && said.contains("\n    state: 7 of 7 left\n"), "{said}");
    let (status, said) = service.admin("GET", "/explain?domain=shop&@limit=7/minuets&user=ann", TOKEN);
    assert!(status == 400 && said["error"].as_str().unwrap().contains("@limit=5/minute"), "{said}");
    let (_, said) = service.admin("GET", "/explain?domain=shop&@limit=0/day&user=ann", TOKEN);
    assert_eq!((&said["answer"], &said["because"]), (&"deny".into(), &"(override) allows no requests".into()));
}

#[test]
fn a_lease_and_a_share_of_the_defaults_are_explained_with_their_line() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let rules = "domain: d\ndefaults:\n  lease: {unused: 10%}\n  own_share: 5%\ndescriptors:\n\
                 - {key: a, value: b, rate_limit: {unit: minute, requests_per_unit: 1000}}\n";
    std::fs::write(file.path(), rules).unwrap();
    let (_, said, _) = command(&[("RULES", file.path().to_str().unwrap())], &["--domain", "d", "a=b"]);
    let (lease, share) = said.split_once("\n    own_share: 5%").unwrap();
    let by = |line| format!(", by the file's defaults ({}:{line})", file.path().display());
    assert!(lease.lines().last().unwrap().ends_with(&by(3)), "{said}");
    assert!(share.lines().next().unwrap().ends_with(&by(4)), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_down_it_says_what_the_failure_modes_answer() {
    let redis = Redis::start();
    let rules = "
domain: shop
descriptors:
  - {key: open, rate_limit: {unit: year, requests_per_unit: 2, failure_mode: open}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 2, failure_mode: closed}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 2, failure_mode: local}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 2, failure_mode: error}}
  - {key: known, rate_limit: {unit: year, requests_per_unit: 1, failure_mode: open}}
";
    let service = Tollgate::start(rules, &[&[&*format!("REDIS_URL={}", redis.url())], &ADMIN[..]].concat());
    assert!(service.passes("shop", &[("known", "ann")]).await && !service.passes("shop", &[("known", "ann")]).await);
    redis.freeze();
    for (key, answer, because) in [
        ("open", "pass", "the store is unavailable, and the failure modes allow the request"),
        ("closed", "deny", "the store is unavailable, and these limits deny the request: closed"),
        ("local", "pass", "the store is unavailable, and the failure modes allow the request"),
        ("error", "fail", "the store is unavailable, and failure_mode error of error fails the call"),
        ("known", "deny", "the store is unavailable, and these limits deny the request: known"),
    ] {
        let (status, explained) = service.admin("GET", &format!("/explain?domain=shop&{key}=ann"), TOKEN);
        assert_eq!(status, 200);
        assert_eq!((&explained["answer"], &explained["because"]), (&answer.into(), &because.into()), "{explained}");
    }
    redis.thaw();
}

#[test]
fn ask_says_by_what_a_rule_is_missed_and_exits_with_3_where_no_limit_applies() {
    let service = Tollgate::start(RULES, &[]);
    let denying = Tollgate::start(RULES, &["UNKNOWN_DESCRIPTOR=deny"]);
    let ask = |service: &Tollgate, words: &[&str]| {
        let address = format!("localhost:{}", service.grpc_port);
        let output = tollgate::command().args(["ask", "--address", &address]).args(words).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = ask(&service, &["--domain", "shop", "usr=ann"]);
    assert_eq!(code, Some(3));
    let begins = "passed\n  usr=ann: no limit applies: key \"usr\": did you mean \"user\"? this level has ";
    assert!(said.starts_with(begins) && said.ends_with("rules.yaml:4)\n"), "{said}");
    let (code, said) = ask(&service, &["--domain", "shpo", "--hits", "0", "user=ann"]);
    assert_eq!(code, Some(3));
    assert!(said.contains("no limit applies: domain \"shpo\": did you mean \"shop\"?"), "{said}");
    let (code, said) = ask(&service, &["--domain", "shop", "--json", "usr=ann", "+", "user=ann"]);
    assert_eq!(code, Some(0), "a limit applies to one of them");
    let json: Value = serde_json::from_str(&said).unwrap();
    assert!(json["statuses"][0]["missed"].as_str().unwrap().starts_with("key \"usr\""), "{json}");
    assert_eq!(json["statuses"][1]["missed"], Value::Null);

    let (code, said) = ask(&denying, &["--domain", "shop", "usr=ann", "+", "user=ann"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("  denied, because UNKNOWN_DESCRIPTOR is deny\n"), "{said}");
    let (_, said) = ask(&denying, &["--domain", "shop", "--json", "usr=ann"]);
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&json["decided_by"], &json["next_passes"]), (&"unknown_descriptor".into(), &false.into()), "{json}");
}

fn hits(request: RateLimitRequest, hits: u64, is_negative: bool) -> RateLimitRequest {
    let mut request = request;
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(hits);
        descriptor.is_negative_hits = is_negative;
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_domain_or_descriptor_is_denied_where_a_setting_says_so() {
    let denying = ["UNKNOWN_DOMAIN=deny", "UNKNOWN_DESCRIPTOR=deny"];
    let service = Tollgate::start(RULES, &[&denying[..], &ADMIN[..]].concat());
    let left = |key: &str| {
        let (_, counters) = service.admin("GET", &format!("/counters?domain=shop&{key}=ann"), TOKEN);
        counters[0]["remaining"].as_u64().unwrap()
    };
    let (ann, red, counted): (&[_], &[_], &[_]) = (&[("user", "ann")], &[("color", "red")], &[("count", "ann")]);
    let three = request("shop", &[ann, red, counted]);
    let answer = service.ask(three.clone()).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let codes: Vec<Code> = answer.statuses.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok]);
    assert_eq!((&answer.statuses[1].current_limit, &answer.statuses[1].duration_until_reset), (&None, &None));
    // One request is one group: only limits that count denials are charged.
    assert_eq!((left("user"), left("count")), (2, 8));
    assert!(service.ask(request("shop", &[ann])).await.unwrap().overall_code() == Code::Ok);
    // A refund always passes, and happens.
    let refund = service.ask(hits(request("shop", &[ann, red]), 1, true)).await.unwrap();
    assert_eq!((refund.overall_code(), left("user")), (Code::Ok, 2));
    let elsewhere = service.ask(request("mall", &[ann, red])).await.unwrap();
    assert_eq!(elsewhere.overall_code(), Code::OverLimit);

    let denied = |what: &str| service.metric(&format!("tollgate_unknown_denied_total{{unknown=\"{what}\"}}"));
    assert_eq!((denied("domain"), denied("descriptor")), (2.0, 1.0));
    assert_eq!(service.metric("tollgate_descriptors_total{match=\"domain_not_found\"}"), 2.0);
    assert_eq!(service.metric("tollgate_descriptors_total{match=\"no_rule\"}"), 2.0);
    let (_, explained) = service.admin("GET", "/explain?domain=shop&color=red", TOKEN);
    assert_eq!(explained["because"], "no rule matches, and UNKNOWN_DESCRIPTOR is deny");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_of_the_unknown_tells_no_time_to_wait_and_shadow_mode_undoes_it() {
    let settings = ["UNKNOWN_DESCRIPTOR=deny", "LIMIT_RESPONSE_HEADERS_ENABLED=true", "SHADOW_MODE=true"];
    let both: [&[_]; 2] = [&[("user", "ann")], &[("color", "red")]];
    let headers = async |service: &Tollgate| -> (Code, Vec<String>) {
        let answer = service.ask(request("shop", &both)).await.unwrap();
        (answer.overall_code(), answer.response_headers_to_add.into_iter().map(|header| header.key).collect())
    };
    let service = Tollgate::start(RULES, &settings[..2]);
    let (code, names) = headers(&service).await;
    assert_eq!(code, Code::OverLimit);
    assert!(!names.iter().any(|name| name == "Retry-After"), "{names:?}");

    let shadow = Tollgate::start(RULES, &[&settings[..], &ADMIN[..]].concat());
    assert_eq!(headers(&shadow).await.0, Code::Ok);
    assert_eq!(shadow.metric("tollgate_global_shadow_mode_total"), 1.0);
    let (_, counters) = shadow.admin("GET", "/counters?domain=shop&user=ann", TOKEN);
    assert_eq!(counters[0]["remaining"], 1, "it passes, so it is charged");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_domains_are_logged_by_name_once_and_a_flood_of_names_in_few_lines() {
    let service = Tollgate::start(RULES, &[]);
    for _ in 0..5 {
        assert!(service.passes("shpo", &[("user", "ann")]).await);
    }
    let line = service.must_log("no rules for the domain \"shpo\": did you mean \"shop\"?");
    assert_eq!((&line["domain"], &line["requests"], &line["gets"]), (&"shpo".into(), &1.into(), &"pass".into()));
    let mut client = service.client().await;
    let long = "x".repeat(3_000);
    for i in 0..200 {
        client.should_rate_limit(request(&format!("{i}\n{long}"), &[&[("user", "ann")]])).await.unwrap();
    }
    service.must_log("no rules for further domains, which are not listed");
    let lines = || {
        service
            .logs()
            .into_iter()
            .filter(|line| line["message"].as_str().is_some_and(|m| m.starts_with("no rules for")))
    };
    assert!(lines().count() < 50, "{}", lines().count());
    assert!(lines().all(|line| line.to_string().len() < 1_000 && !line.to_string().contains("ann")));
    assert_eq!(service.metric("tollgate_descriptors_total{match=\"domain_not_found\"}"), 205.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_control_character_of_an_argument_reaches_the_terminal() {
    const EVIL: &str = "a\u{1b}]0;x\u{7}\r\u{9b}2J\u{202e}\u{2028}\u{200b}b";
    let service =
        Tollgate::start("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 5}}]", &[]);
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    let quoted = "\"a\\e]0;x\\a\\r\\u009b2J\\u202e\\u2028\\u200bb\"";
    let text =
        format!("domain: shop\ndescriptors:\n- {{key: {quoted}, value: {quoted}, rate_limit: {{unit: {quoted}}}}}\n");
    std::fs::write(&rules, text).unwrap();
    let (rules, address) = (rules.to_str().unwrap(), format!("http://127.0.0.1:{}", service.grpc_port));
    let (entry, key) = (format!("user={EVIL}"), format!("{EVIL}={EVIL}"));
    let good = service.rules.path().join("rules.yaml");
    let good = good.to_str().unwrap();
    for words in [
        &["ask", "--address", &address, "--domain", "shop", &entry][..],
        &["ask", "--address", &address, "--domain", EVIL, &key],
        &["explain", "--rules", good, "--domain", "shop", &entry],
        &["explain", "--rules", good, "--domain", EVIL, &key],
        &["explain", "--rules", good, "--domain", "shop", EVIL],
        &["check", rules],
        &["check", EVIL],
        &["check", "--redis", EVIL],
    ] {
        let output = tollgate::command().args(words).output().unwrap();
        for said in [output.stdout, output.stderr] {
            let said = String::from_utf8(said).unwrap();
            let is_bad = |char: char| char != '\n' && (char.is_control() || "\u{202e}\u{2028}\u{200b}".contains(char));
            assert!(!said.contains(is_bad), "{words:?}: {said:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_is_told_with_when_it_began_and_when_it_ends() {
    let rules = "
domain: shop
descriptors:
- {key: login, rate_limit: {name: logins, unit: day, requests_per_unit: 1, penalty: {after: 1, within: 1m, ban: 1h}}}
";
    let redis = Redis::start();
    for setting in ["BACKEND_TYPE=memory".to_owned(), format!("REDIS_URL={}", redis.url())] {
        let service = Tollgate::start(rules, &[&ADMIN[..], &[&*setting]].concat());
        let before = std::time::SystemTime::now();
        for _ in 0..3 {
            service.passes("shop", &[("login", "eve")]).await;
        }
        let address = format!("localhost:{}", service.http_port);
        let words = ["--address", &address, "--domain", "shop", "login=eve"];
        let (code, text, _) = command(&[("ADMIN_TOKEN", TOKEN)], &words);
        assert_eq!(code, Some(2));
        let (_, json) = service.admin("GET", "/explain?domain=shop&login=eve", TOKEN);
        let state = &json["descriptors"][0]["limits"][0]["state"];
        let time = |name: &str| humantime::parse_rfc3339(state[name].as_str().unwrap()).unwrap();
        let (since, until) = (time("banned_since"), time("banned_until"));
        assert_eq!(until.duration_since(since).unwrap().as_secs(), 60 * 60);
        let slack = std::time::Duration::from_secs(60);
        assert!(since + slack > before && since < before + slack, "{state}");
        let [since, until] = ["banned_since", "banned_until"].map(|name| state[name].as_str().unwrap());
        assert!(text.contains(&format!(" (since {since}, until {until})")), "{text}");
        assert!(text.ends_with(&format!("a request would be LIMITED: banned by logins until {until}\n")), "{text}");
    }
}
