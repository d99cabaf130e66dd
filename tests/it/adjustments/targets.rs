//! Adjustments of many descriptors at once: by patterns, and several.

use std::process::Output;

use serde_json::{Value, json};

use super::{ADMIN, READ_TOKEN, TOKEN, begin, in_force, passed, user};
use crate::process::{run, text};
use crate::support::redis::Redis;
use crate::support::tollgate::Tollgate;
use crate::support::wait_until;

/// Users of one company, and of another.
const RULES: &str = r"
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 20}
  - key: team
    value: red_*
    share_threshold: true
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: plan
    value: free
    rate_limit: {unlimited: true}
  - key: method
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 3}
";

fn like(key: &str, pattern: &str) -> Value {
    json!([{"key": key, "pattern": pattern}])
}

fn service(settings: &[&str]) -> Tollgate {
    Tollgate::start(RULES, &[&ADMIN[..], settings].concat())
}

/// Runs a command at the admin port of a service.
fn at(tollgate: &Tollgate, words: &[&str]) -> (Option<i32>, String) {
    let address = format!("127.0.0.1:{}", tollgate.http_port);
    let words: Vec<&str> = words.iter().copied().chain(["--address", &address, "--admin-token", TOKEN]).collect();
    let Output { status, stdout, stderr } = run(&words, &[]);
    (status.code(), text(&stdout) + &text(&stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_changes_every_descriptor_of_its_keys_that_matches() {
    let tollgate = service(&[]);
    let (status, said) = begin(
        &tollgate,
        json!({"id": "few", "effect": "number", "number": 3, "domain": "shop", "entries": like("user", "acme_*")}),
    );
    assert_eq!((status, &said["entries"]), (201, &like("user", "acme_*")), "{said}");
    for (user, passes) in [("acme_1", 3), ("acme_2", 3), ("acme_", 3), ("acme", 9), ("other", 9)] {
        assert_eq!(passed(&tollgate, "user", user, 9).await, passes, "{user}: each has its own counter");
    }

    // A single descriptor counts more than a pattern, whichever began later, and a pattern more than the rule.
    begin(&tollgate, json!({"id": "one", "effect": "pass", "domain": "shop", "entries": user("acme_1")}));
    begin(&tollgate, json!({"id": "all", "effect": "block", "domain": "shop", "entries": like("user", "*1")}));
    begin(&tollgate, json!({"id": "rule", "effect": "shadow", "domain": "shop", "rule": "user"}));
    for (user, passes) in [("acme_1", 9), ("other_1", 0), ("acme_2", 9)] {
        assert_eq!(passed(&tollgate, "user", user, 9).await, passes, "{user}");
    }
    // A star that a client sends is a character like any other.
    begin(&tollgate, json!({"id": "star", "effect": "block", "domain": "shop", "entries": user("o*")}));
    assert_eq!((passed(&tollgate, "user", "o*", 1).await, passed(&tollgate, "user", "ox", 1).await), (0, 1));
    assert!(!format!("{:?}", tollgate.logs()).contains("acme_"), "the log tells no values");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_descriptors_are_changed_by_one_adjustment_on_every_replica() {
    let redis = Redis::start();
    let setting = format!("REDIS_URL={}", redis.url());
    let replicas = [(); 2].map(|()| service(&[&setting, "REDIS_TIMEOUT=20s"]));
    let path = |path: &str| json!([{"key": "method", "value": "POST"}, {"key": "path", "pattern": path}]);
    let descriptors = json!([user("ann"), user("bob"), path("/pay*"), user("ann")]);
    let (status, said) =
        begin(&replicas[0], json!({"id": "flood", "effect": "block", "domain": "shop", "descriptors": descriptors}));
    let kept = json!([user("ann"), user("bob"), path("/pay*")]);
    assert_eq!((status, &said["descriptors"]), (201, &kept), "one that is given twice is there once: {said}");
    for replica in &replicas {
        wait_until("it is in force", || in_force(replica, "block") == 1.0);
        for (name, passes) in [("ann", 0), ("bob", 0), ("eve", 2)] {
            assert_eq!(passed(replica, "user", name, 2).await, passes, "{name}");
        }
        for (method, path, passes) in [("POST", "/pay/1", false), ("GET", "/pay/1", true), ("POST", "/", true)] {
            let found = replica.passes("shop", &[("method", method), ("path", path)]).await;
            assert_eq!(found, passes, "{method} {path}");
        }
        let line = replica.must_log("an adjustment is in force");
        assert_eq!(line["target"], "3 descriptors shop/method|path + user");
    }
    // Who asks about one of them is told of no other.
    let (_, explained) = replicas[0].admin("GET", "/explain?domain=shop&user=bob", READ_TOKEN);
    let line = explained["descriptors"][0]["limits"][0]["adjustments"][0].as_str().unwrap();
    assert!(line.starts_with("flood  block  shop: user=bob (one of 3)  until "), "{line}");
    let path = "/explain?domain=shop&method=POST&path=/pay/7";
    let (_, explained) = replicas[0].admin("GET", path, READ_TOKEN);
    let line = explained["descriptors"][0]["limits"][0]["adjustments"][0].as_str().unwrap();
    assert!(line.starts_with("flood  block  shop: method=POST path~/pay* (one of 3)  until "), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_patterns_as_the_setting_has_values() {
    for (settings, hides, shown) in [
        (&["TOP_KEYS_VALUES=hidden"][..], true, [json!([{"key": "user"}]), json!([{"key": "user"}])]),
        (&[], false, [user("crimson"), like("user", "scarlet*")]),
    ] {
        let tollgate = service(settings);
        let both = json!([user("crimson"), like("user", "scarlet*")]);
        begin(&tollgate, json!({"id": "two", "effect": "block", "domain": "shop", "descriptors": both}));
        let (_, list) = tollgate.admin("GET", "/adjustments", READ_TOKEN);
        assert_eq!(list[0]["descriptors"], json!(shown));
        assert_eq!(tollgate.admin("GET", "/adjustments", TOKEN).1[0]["descriptors"], both);
        // Without rules for them the reason has no values either, and neither has the log or the audit trail.
        tollgate.change_rules(
            "domain: shop\ndescriptors: [{key: guest, rate_limit: {unit: year, \
            requests_per_unit: 1}}]",
        );
        tollgate.must_log("an adjustment does not match the rules");
        let (_, list) = tollgate.admin("GET", "/adjustments", READ_TOKEN);
        let reason = list[0]["unmatched"].as_str().unwrap();
        assert!(reason.starts_with("descriptor 1 of 2: no rule matches"), "{reason}");
        let (_, trail) = tollgate.admin("GET", "/audit", READ_TOKEN);
        let told = format!("{reason} {:?} {}", tollgate.logs(), if hides { trail } else { Value::Null });
        assert!(!told.contains("crimson") && !told.contains("scarlet"), "{told}");
    }
}

#[test]
fn what_changes_nothing_is_refused_with_what_would() {
    let tollgate = service(&[]);
    for (said, status, wrong) in [
        (
            json!({"effect": "number", "number": 2, "entries": like("team", "red_*")}),
            404,
            "the values of team that match red_* share one counter: name the rule team=red_*",
        ),
        (
            json!({"effect": "block", "descriptors": [user("ann"), [{"key": "team", "value": "red_*"}]]}),
            404,
            "descriptor 2 of 2: the values of team that match red_* share one counter",
        ),
        (json!({"effect": "block", "entries": like("user", "ann")}), 400, "has a *, such as ann*"),
        (json!({"effect": "block", "entries": [{"key": "user"}]}), 400, "user has a value, or a pattern such as"),
    ] {
        let mut said = said;
        said["domain"] = json!("shop");
        let (given, answer) = begin(&tollgate, said);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(given == status && error.contains(wrong), "{given} {answer}");
    }
    // Requests may bring along limits of their own, so it begins and says so.
    for (entries, note) in [
        (like("usr", "a*"), "no rule matches descriptors like these: it changes only limits that requests supply"),
        (like("plan", "f*"), "the rule is unlimited: it changes only limits that requests supply"),
    ] {
        let (status, said) = begin(&tollgate, json!({"effect": "block", "domain": "shop", "entries": entries}));
        assert_eq!((status, &said["unmatched"]), (201, &json!(note)), "{said}");
    }
    // Teams share a number, and each may be blocked.
    let said = json!({"effect": "block", "domain": "shop", "entries": like("team", "red_b*")});
    let (status, said) = begin(&tollgate, said);
    assert!(status == 201 && said["unmatched"].is_null(), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_takes_patterns_and_several_descriptors() {
    let tollgate = service(&[]);
    let begin = ["--domain", "shop", "--for", "1h", "--why", "a flood", "--who", "ann"];
    let block = |id: &str, entries: &[&str]| {
        let words = [&["adjust", "block"], entries, &begin, &["--id", id]].concat();
        at(&tollgate, &words)
    };
    let (code, said) = block("some", &["user~acme_*", "+", "user=bob", "+", "method=POST", "path~/a=*"]);
    assert_eq!(code, Some(0), "{said}");
    let line = "some  block  shop: user~acme_* + user=bob + method=POST path~/a=*\n  until ";
    assert!(said.contains(line), "{said}");
    assert_eq!(passed(&tollgate, "user", "acme_7", 1).await + passed(&tollgate, "user", "bob", 1).await, 0);
    assert!(!tollgate.passes("shop", &[("method", "POST"), ("path", "/a=b")]).await);
    assert!(tollgate.passes("shop", &[("user", "a~b")]).await);
    let (code, said) = block("value", &["user=a~*"]);
    assert!(code == Some(0) && said.contains("shop: user=a~*\n"), "the first sign counts: {said}");

    let (code, said) = at(&tollgate, &["adjustments", "--format", "csv"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(r#""[[{""key"":""user"",""pattern"":""acme_*""}],[{""key"":""user"",""value"":""bob""}],"#),
        "{said}"
    );
    for (entries, wrong) in [
        (&["user"][..], "\"user\" is not an entry: write KEY=VALUE, for example user=ann, or KEY~PATTERN"),
        (&["=x"], "is not an entry"),
        (&["+", "user=ann"], "a + is between two descriptors"),
        (&["user=ann", "+"], "a + is between two descriptors"),
        (&["user~ann"], "has a *, such as ann*"),
    ] {
        let (code, said) = block("wrong", entries);
        assert!(code == Some(1) && said.contains(wrong), "{entries:?}: {said}");
    }
    let (code, said) = at(&tollgate, &[&["adjust", "block", "user~*"], &begin[..], &["--dry-run"]].concat());
    assert!(code == Some(0) && said.starts_with("nothing was changed; it would reach 1 limit"), "{said}");
}
