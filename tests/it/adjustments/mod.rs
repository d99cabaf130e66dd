//! Adjustments: temporary changes of limits on all instances, and their effects.

mod alerts;
mod brakes;
mod hours;
mod kept;
mod targets;

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use crc16::{State, XMODEM};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::cluster::{Cluster, SLOTS};
use support::redis::Redis;
use support::tollgate::{self as process, Tollgate, request};
use support::{SOON, wait_until};
use tokio::time::Instant;
use tollgate::engine::adjustment::{Adjustment, Id, InForce, Mistakes, Written, WrittenEntry};
use tollgate::engine::algorithm::Ask;
use tollgate::engine::decision::{Answer, DecidedBy, Status};
use tollgate::engine::descriptor::{Descriptor, Entry, Request, Role};
use tollgate::engine::plan::{Names, Plan, PlanOptions};
use tollgate::engine::rules::Rules;
use tollgate::limiter::{Deadlines, Limiter, LimiterOptions};
use tollgate::metrics::Metrics;
use tollgate::shared::adjustment::board::MemoryAdjustments;
use tollgate::shared::adjustment::{AdjustmentStore, Adjustments, By};
use tollgate::sources::files::load::{LoadOptions, Sources, load};
use tollgate::store::Store;
use tollgate::store::denied::{Denials, DeniedCache};
use tollgate::store::lease::Leases;
use tollgate::store::memory::MemoryStore;
use tollgate::wire::rate_limit_descriptor::RateLimitOverride;
use tollgate::wire::rate_limit_response::Code;

const TOKEN: &str = "a token of some length";
const READ_TOKEN: &str = "a token for reading";

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 20, algorithm: sliding_window, failure_mode: open}
  - key: quiet
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
  - key: exact
    rate_limit: {unit: year, requests_per_unit: 5000, algorithm: sliding_log}
";

const ADMIN: [&str; 3] =
    ["ADMIN_API=true", "ADMIN_TOKEN=a token of some length", "ADMIN_READ_TOKEN=a token for reading"];

fn start(settings: &[&str]) -> Tollgate {
    Tollgate::start(RULES, &[&ADMIN[..], settings].concat())
}

/// Sends a request with a body to the admin port; returns the status and the body.
fn send(tollgate: &Tollgate, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
    let headers = [("Authorization", format!("Bearer {token}"))];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let (status, said) = tollgate.send(method, path, &headers, body.to_string().as_bytes());
    (status, serde_json::from_str(&said).unwrap_or(Value::Null))
}

/// Creates an adjustment, with author, reason and end.
fn begin(tollgate: &Tollgate, said: Value) -> (u16, Value) {
    let mut body = json!({"who": "ann", "why": "a sale", "for": "1h"});
    body.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
    send(tollgate, "POST", "/adjustments", TOKEN, &body)
}

fn user(name: &str) -> Value {
    json!([{"key": "user", "value": name}])
}

async fn passed(tollgate: &Tollgate, key: &str, value: &str, times: usize) -> usize {
    let mut passed = 0;
    for _ in 0..times {
        passed += usize::from(tollgate.passes("shop", &[(key, value)]).await);
    }
    passed
}

fn in_force(tollgate: &Tollgate, effect: &str) -> f64 {
    tollgate.metric(&format!("tollgate_adjustments{{effect=\"{effect}\"}}"))
}

fn count_logged(tollgate: &Tollgate, message: &str, id: &str) -> usize {
    tollgate.logs().iter().filter(|line| line["message"] == message && line["id"] == id).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_scales_limits_at_all_replicas_and_what_it_changes_ends_with_it() {
    let redis = Redis::start();
    let url = redis.url();
    let setting = format!("REDIS_URL={url}");
    let replicas = [(); 2].map(|()| start(&[&setting, "REDIS_TIMEOUT=20s", "CACHE_KEY_PREFIX=p:"]));
    let rules = replicas[0].rules.path().to_str().unwrap();
    let run = |words: &[&str]| {
        let settings = [("REDIS_URL", url.as_str()), ("RULES", rules), ("CACHE_KEY_PREFIX", "p:"), ("USER", "ann")];
        let output = process::command().args(words).envs(settings).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, said, error) =
        run(&["scale", "10%", "--domain", "shop", "--for", "30m", "--why", "an incident", "--id", "INC-1"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(said.starts_with("INC-1  scale 10%  domain shop\n  until "), "{said}");
    assert!(said.ends_with(", by ann: an incident\n"), "{said}");
    for (replica, name) in replicas.iter().zip(["bob", "eve"]) {
        wait_until("it is in force", || in_force(replica, "scale") == 1.0);
        assert_eq!(passed(replica, "user", name, 5).await, 2, "a tenth of 20");
        let line = replica.must_log("an adjustment is in force");
        for (field, value) in [
            ("id", "INC-1"),
            ("effect", "scale 10%"),
            ("target", "domain shop"),
            ("who", "ann"),
            ("why", "an incident"),
        ] {
            assert_eq!(line[field], value);
        }
    }
    let (_, list, _) = run(&["adjustments"]);
    assert_eq!(list, said);
    let (_, counter, _) = run(&["counter", "get", "--domain", "shop", "user=bob"]);
    assert!(counter.contains("  2 per year, sliding_window (user): 0 of 2 left"), "{counter}");
    let (code, explained, _) = run(&["explain", "--domain", "shop", "user=bob"]);
    assert_eq!(code, Some(2));
    assert!(explained.contains("    adjustment INC-1  scale 10%  domain shop  until "), "{explained}");
    let (_, again, _) = run(&["overrides", "--json"]);
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(
        (&again[0]["id"], &again[0]["share"], &again[0]["domain"]),
        (&json!("INC-1"), &json!("10%"), &json!("shop"))
    );

    // The same once more is the same, and another of this id is refused.
    let (code, same, _) =
        run(&["scale", "10%", "--domain", "shop", "--for", "30m", "--why", "an incident", "--id", "INC-1"]);
    assert_eq!((code, &same), (Some(0), &said));
    let (code, _, error) = run(&["scale", "20%", "--all", "--for", "30m", "--why", "an incident", "--id", "INC-1"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("another adjustment has the id INC-1"), "{error}");
    for (words, wrong) in [
        (&["scale", "10", "--all", "--for", "1h", "--why", "x"][..], "share: write a percentage with its sign"),
        (&["scale", "10%", "--all", "--for", "8d", "--why", "x"], "for: write a duration"),
        (&["scale", "10%", "--all", "--why", "x"], "--for <DURATION>"),
        (&["scale", "10%", "--all", "--for", "1h"], "--why <WHY>"),
        (&["adjust", "block", "--for", "1m", "--why", "x"], "<--domain <DOMAIN>|--all>"),
        (&["adjust", "block", "--all", "--domain", "shop", "--for", "1m", "--why", "x"], "cannot be used with"),
        (&["adjust", "pass", "--domain", "mall", "--for", "1h", "--why", "x"], "the rules have no domain mall"),
        (&["adjust", "number", "5", "--all", "--for", "1m", "--why", "x"], "change all limits with tollgate scale\n"),
        (
            &["adjust", "number", "5", "--domain", "shpo", "--for", "1m", "--why", "x"],
            "change all limits with tollgate scale; domain \"shpo\": did you mean \"shop\"?\n",
        ),
        (&["adjust", "shadow", "--domain", "shop", "--rule", "usr", "--for", "1h", "--why", "x"], "has no rule usr"),
        (&["adjust", "end", "INC-2", "--why", "x"], "no adjustment has the id INC-2"),
    ] {
        let (code, _, error) = run(words);
        assert_eq!(code, Some(1), "{words:?}");
        assert!(error.contains(wrong), "{error}");
        let is_ours = !error.contains("Usage:");
        assert!(!is_ours || error.matches(wrong).count() == 1, "{error}");
    }

    assert_eq!(run(&["adjust", "end", "INC-1", "--why", "it is over"]).0, Some(0));
    for (replica, name) in replicas.iter().zip(["bob", "eve"]) {
        wait_until("it has ended", || in_force(replica, "scale") == 0.0);
        assert_eq!(passed(replica, "user", name, 30).await, 18, "what was counted meanwhile counts");
        replica.must_log("an adjustment has ended");
        assert_eq!(count_logged(replica, "an adjustment is in force", "INC-1"), 1);
        assert_eq!(count_logged(replica, "an adjustment has ended", "INC-1"), 1);
    }
    assert_eq!(run(&["adjustments"]).1, "no adjustment is in force\n");
    let left = redis.command::<Vec<String>>("KEYS *adjustments*").await;
    assert_eq!(left, ["p:{|adjustments}|audit"], "who did it is known for longer");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_port_changes_what_one_key_a_rule_or_everything_gets() {
    let tollgate = start(&[]);
    assert_eq!(send(&tollgate, "GET", "/adjustments", READ_TOKEN, &Value::Null), (200, json!([])));
    let (status, said) = begin(
        &tollgate,
        json!({"id": "few", "effect": "number", "number": 3, "domain": "shop", "entries": user("ann")}),
    );
    assert_eq!((status, &said["id"], &said["number"]), (201, &json!("few"), &json!(3)), "{said}");
    assert_eq!(passed(&tollgate, "user", "ann", 9).await, 3);
    assert_eq!(passed(&tollgate, "user", "bob", 9).await, 9, "another key is as it was");

    // Blocked: nothing passes, and nothing is counted.
    begin(&tollgate, json!({"id": "no", "effect": "block", "domain": "shop", "entries": user("crimson")}));
    assert_eq!(passed(&tollgate, "user", "crimson", 3).await, 0);
    let denied = tollgate.details(request("shop", &[&[("user", "crimson")]])).await;
    assert_eq!(denied.decided_by, "adjustment");
    assert_eq!(tollgate.metric("tollgate_over_limit_hits_total{domain=\"shop\",rule=\"user\"}"), 10.0);
    let explained = |name: &str| tollgate.admin("GET", &format!("/explain?domain=shop&user={name}"), READ_TOKEN).1;
    let said = explained("crimson");
    assert_eq!((&said["answer"], &said["because"]), (&json!("deny"), &json!("the adjustment no blocks it")));
    let line = said["descriptors"][0]["limits"][0]["adjustments"][0].as_str().unwrap();
    assert!(line.starts_with("no  block  shop: user=crimson  until ") && line.ends_with(", by ann: a sale"), "{line}");

    // An adjustment that allows everything.
    begin(&tollgate, json!({"id": "yes", "effect": "pass", "domain": "shop", "entries": user("scarlet")}));
    assert_eq!(passed(&tollgate, "user", "scarlet", 30).await, 30);
    let said = explained("scarlet");
    assert_eq!((&said["answer"], &said["because"]), (&json!("pass"), &json!("the adjustment yes allows it")));
    let said = explained("ann");
    assert_eq!((&said["answer"], &said["because"]), (&json!("deny"), &json!("used up: user")));
    let line = said["descriptors"][0]["limits"][0]["adjustments"][0].as_str().unwrap();
    assert!(line.ends_with(": 3 per year, 3 at once"), "{line}");
    let (_, counters) = tollgate.admin("GET", "/counters?domain=shop&user=ann", READ_TOKEN);
    assert_eq!((&counters[0]["capacity"], &counters[0]["remaining"]), (&json!(3), &json!(0)));

    // A rule in shadow mode that is enforced for a while, and the reverse.
    assert_eq!(passed(&tollgate, "quiet", "x", 3).await, 3);
    begin(&tollgate, json!({"id": "hard", "effect": "enforce", "domain": "shop", "rule": "quiet"}));
    assert_eq!(passed(&tollgate, "quiet", "x", 3).await, 0);
    begin(&tollgate, json!({"id": "soft", "effect": "shadow", "domain": "shop", "rule": "user"}));
    assert_eq!(passed(&tollgate, "user", "ann", 3).await, 3);
    assert_eq!(passed(&tollgate, "user", "crimson", 3).await, 0, "what is blocked is, in shadow mode, too");

    for effect in ["number", "block", "pass", "enforce", "shadow"] {
        assert_eq!(in_force(&tollgate, effect), 1.0, "{effect}");
    }
    let (_, list) = tollgate.admin("GET", "/adjustments", TOKEN);
    let ids: Vec<&str> = list.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["few", "no", "yes", "hard", "soft"]);
    let path = "/adjustments/hard?who=ann&why=enough";
    assert_eq!(send(&tollgate, "DELETE", path, TOKEN, &Value::Null).0, 200);
    assert_eq!(passed(&tollgate, "quiet", "x", 3).await, 3);
    assert_eq!(send(&tollgate, "DELETE", path, TOKEN, &Value::Null).0, 404, "it has ended");
    assert_eq!(tollgate.must_log("an operator has created an adjustment")["level"], "WARN");
    let line = tollgate.must_log("an operator has ended an adjustment");
    assert_eq!(line["level"], "WARN");
    assert_eq!((&line["who"], &line["why"], &line["role"]), (&json!("ann"), &json!("enough"), &json!("admin")));
    let logs = format!("{:?}", tollgate.logs());
    assert!(!logs.contains("crimson") && !logs.contains("scarlet"), "the log tells no values: {logs}");

    // It expires by itself.
    begin(&tollgate, json!({"id": "brief", "effect": "block", "everything": true, "for": "1s"}));
    wait_until("it has ended", || {
        in_force(&tollgate, "block") == 1.0 && count_logged(&tollgate, "an adjustment has ended", "brief") == 1
    });
    assert!(tollgate.passes("shop", &[("quiet", "x")]).await);
}

#[test]
fn a_reader_sees_values_as_the_setting_has_them_and_an_administrator_as_they_are() {
    let hash = {
        let key = blake3::hash(b"a key of sixteen");
        blake3::keyed_hash(key.as_bytes(), b"crimson").to_hex()[..32].to_owned()
    };
    for (settings, shown) in [
        (&[][..], user("crimson")),
        (&["TOP_KEYS_VALUES=hidden"], json!([{"key": "user"}])),
        (&["TOP_KEYS_VALUES=hashed", "VALUES_KEY=a key of sixteen", "TOP_KEYS=false"], user(&hash)),
    ] {
        let tollgate = start(settings);
        begin(&tollgate, json!({"id": "no", "effect": "block", "domain": "shop", "entries": user("crimson")}));
        begin(&tollgate, json!({"id": "all", "effect": "scale", "share": "50%", "domain": "shop"}));
        let (_, list) = tollgate.admin("GET", "/adjustments", READ_TOKEN);
        assert_eq!(
            (&list[0]["entries"], &list[0]["effect"], &list[1]["share"]),
            (&shown, &"block".into(), &"50%".into())
        );
        assert_eq!(tollgate.admin("GET", "/adjustments", TOKEN).1[0]["entries"], user("crimson"));
        assert!(!format!("{:?}", tollgate.logs()).contains("does nothing"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_read_changes_nothing_and_what_is_wrong_is_told() {
    let tollgate = start(&[]);
    let good = json!({"effect": "pass", "everything": true, "who": "ann", "why": "a sale", "for": "1h"});
    for (method, path) in [
        ("POST", "/adjustments"),
        ("DELETE", "/adjustments/x?who=a&why=b"),
        ("DELETE", "/counters?domain=shop&user=ann"),
    ] {
        let (status, said) = send(&tollgate, method, path, READ_TOKEN, &good);
        assert_eq!(status, 403, "{method} {path}");
        assert!(said["error"].as_str().unwrap().contains("send the ADMIN_TOKEN"), "{said}");
        assert_eq!(send(&tollgate, method, path, "another token", &good).0, 401);
    }
    for path in ["/adjustments", "/counters?domain=shop&user=ann", "/explain?domain=shop&user=ann"] {
        assert_eq!(tollgate.admin("GET", path, READ_TOKEN).0, 200, "{path}");
        assert_eq!(tollgate.admin("GET", path, "").0, 401, "{path}");
    }
    assert_eq!(tollgate.admin("GET", "/adjustments", READ_TOKEN).1, json!([]), "nothing has changed");
    for (said, status, wrong) in [
        (json!({"effect": "blcok"}), 400, "effect: one of scale, number, pass, block, enforce, shadow"),
        (json!({"effect": "block"}), 400, "domain: name one, or write \"everything\": true"),
        (json!({"effect": "pass", "everything": true, "who": ""}), 400, "who: say who you are"),
        (json!({"effect": "pass", "everything": true, "why": " "}), 400, "why: say why"),
        (json!({"effect": "pass", "everything": true, "for": "1y"}), 400, "for: write a duration"),
        (json!({"effect": "pass", "until": "noon"}), 400, "send one such as {"),
        (json!({"effect": "pass", "domain": "mall"}), 404, "the rules have no domain mall"),
        (json!({"effect": "pass", "domain": "shop", "rule": "usr"}), 404, "domain shop has no rule usr"),
        (json!({"effect": "pass", "domain": "shop", "rule": "free"}), 404, "the rule is unlimited"),
        (
            json!({"effect": "scale", "share": "10000%", "domain": "shop", "rule": "exact"}),
            404,
            "sliding_log cannot have the number 500000",
        ),
        (
            json!({
                "effect": "scale", "share": "10000%", "domain": "shop", "entries": [{"key": "exact", "value": "x"}]
            }),
            404,
            "sliding_log cannot have the number 500000",
        ),
    ] {
        let (given, answer) = begin(&tollgate, said);
        assert_eq!(given, status, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(wrong), "{answer}");
    }
    begin(&tollgate, json!({"id": "x", "effect": "pass", "domain": "shop"}));
    let long = format!("who=ann&why={}", "x".repeat(501));
    for (words, wrong) in [
        ("", "who: say who you are; why: say why"),
        ("who=ann&why=+", "why: say why"),
        ("who=a%0Ab&why=x", "who: one line of at most 100"),
        ("who=ann&why=%1b[2J", "why: one line of at most 500"),
        (&long, "why: one line of at most 500"),
    ] {
        let (status, said) = send(&tollgate, "DELETE", &format!("/adjustments/x?{words}"), TOKEN, &Value::Null);
        assert_eq!(status, 400, "{words}");
        assert!(said["error"].as_str().unwrap().contains(wrong), "{said}");
    }
    assert!(tollgate.logged("an operator has ended an adjustment").is_none());
    for (method, path, status) in
        [("PUT", "/adjustments", 405), ("GET", "/adjustments/x", 405), ("DELETE", "/adjustments/x", 400)]
    {
        assert_eq!(send(&tollgate, method, path, TOKEN, &good).0, status, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_holds_while_redis_is_down_and_a_new_replica_hears_of_it_first() {
    let mut redis = Redis::start();
    let setting = format!("REDIS_URL={}", redis.url());
    let tollgate = start(&[&setting]);
    begin(&tollgate, json!({"id": "no", "effect": "block", "domain": "shop", "entries": user("eve")}));
    let second = start(&[&setting]);
    assert!(!second.passes("shop", &[("user", "eve")]).await, "from its first decision on");
    assert!(second.logged("an adjustment is in force").is_some());
    redis.kill();
    tollgate.must_log("cannot read adjustments from the store");
    assert!(!tollgate.passes("shop", &[("user", "eve")]).await, "a limit that fails open is blocked all the same");
    // A command asks Redis alone, and a service that knows no such adjustment cannot end it for all. Nothing changed.
    let (status, said) = send(&tollgate, "DELETE", "/adjustments/other?who=ann&why=x", TOKEN, &Value::Null);
    assert_eq!(status, 503);
    let by_command = process::command()
        .args(["adjust", "pass", "--all", "--for", "1h", "--why", "x"])
        .envs([
            ("REDIS_URL", redis.url().as_str()),
            ("RULES", tollgate.rules.path().to_str().unwrap()),
            ("USER", "ann"),
        ])
        .output()
        .unwrap();
    let by_command = String::from_utf8(by_command.stderr).unwrap();
    for error in [said["error"].as_str().unwrap(), by_command.trim_end()] {
        assert!(error.contains("the store is unavailable (redis is down: "), "{error}");
        assert_eq!(error.matches("unavailable").count(), 1, "{error}");
    }
    redis.restart();
    tollgate.must_log("adjustments can be read from the store again");
    redis.freeze();
    let (status, said) = send(&tollgate, "DELETE", "/adjustments/other?who=ann&why=x", TOKEN, &Value::Null);
    assert_eq!(status, 503);
    let error = said["error"].as_str().unwrap();
    assert!(error.ends_with("the change may have been made: repeat it with the id other"), "{error}");
    // What begins here meanwhile has an ID, by which a repeated request is known. Redis hears of it when it answers.
    let (status, said) = begin(&tollgate, json!({"effect": "pass", "everything": true}));
    let id = said["id"].as_str().unwrap();
    assert!(status == 201 && id.len() == 10 && said["only_here"].is_object(), "{said}");
    redis.thaw();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adjustment_of_a_rule_that_goes_stays_and_is_told() {
    let tollgate = start(&[]);
    begin(&tollgate, json!({"id": "gone", "effect": "block", "domain": "shop", "rule": "user"}));
    tollgate.change_rules("domain: shop\ndescriptors: [{key: guest, rate_limit: {unit: year, requests_per_unit: 1}}]");
    let line = tollgate.must_log("an adjustment does not match the rules");
    assert_eq!(line["id"], "gone");
    let (_, list) = tollgate.admin("GET", "/adjustments", TOKEN);
    assert!(list[0]["unmatched"].as_str().unwrap().starts_with("domain shop has no rule user"), "{list}");
    assert!(tollgate.passes("shop", &[("guest", "x")]).await);
    tollgate.change_rules(RULES);
    wait_until("it is of use again", || tollgate.admin("GET", "/adjustments", TOKEN).1[0]["unmatched"].is_null());
    assert!(!tollgate.passes("shop", &[("user", "x")]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_a_request_brings_along_is_changed_by_its_descriptor_alone() {
    let tollgate = start(&[]);
    for (key, why) in [("guest", "no rule matches"), ("free", "the rule is unlimited")] {
        let entries = json!([{"key": key, "value": "x"}]);
        let said = json!({"id": key, "effect": "number", "number": 2, "domain": "shop", "entries": entries});
        let (status, said) = begin(&tollgate, said);
        assert_eq!(status, 201, "{said}");
        assert!(said["unmatched"].as_str().unwrap().contains(why), "{said}");
        let mut passed = 0;
        for _ in 0..5 {
            let mut asked = request("shop", &[&[(key, "x")]]);
            asked.descriptors[0].limit =
                Some(RateLimitOverride { requests_per_unit: 4, unit: 6, unit_multiplier: None });
            passed += usize::from(tollgate.ask(asked).await.unwrap().overall_code() == Code::Ok);
        }
        assert_eq!(passed, 2, "{key}");
    }
    let (_, list) = tollgate.admin("GET", "/adjustments", TOKEN);
    assert!(list[1]["unmatched"].as_str().unwrap().contains("limits that requests supply"), "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_share_a_counter_have_one_number_and_each_its_own_passage() {
    let rules = "
domain: shop
descriptors:
  - {key: path, value: /static/*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 4}}
";
    let tollgate = Tollgate::start(rules, &ADMIN);
    let of = |value: &str, said: Value| {
        let mut asked = json!({"domain": "shop", "entries": [{"key": "path", "value": value}]});
        asked.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        begin(&tollgate, asked)
    };
    let mut rule = String::new();
    for (value, said) in [
        ("/static/*", json!({"effect": "block"})),
        ("/static/*", json!({"effect": "number", "number": 2})),
        ("/static/a", json!({"effect": "number", "number": 2})),
        ("/static/a", json!({"effect": "scale", "share": "50%"})),
    ] {
        let (status, answer) = of(value, said);
        let error = answer["error"].as_str().unwrap();
        assert_eq!(status, 404, "{answer}");
        assert!(error.contains("match /static/* share one counter"), "{error}");
        rule = error.rsplit_once("name the rule ").unwrap().1.to_owned();
    }
    assert_eq!(of("/static/a", json!({"id": "a", "effect": "block"})).0, 201);
    let (status, said) = begin(&tollgate, json!({"effect": "number", "number": 2, "domain": "shop", "rule": rule}));
    assert_eq!(status, 201, "{said}");
    assert_eq!(passed(&tollgate, "path", "/static/a", 3).await, 0);
    assert_eq!(passed(&tollgate, "path", "/static/b", 1).await + passed(&tollgate, "path", "/static/c", 3).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_read_and_reset_behind_what_passes_or_is_blocked() {
    let tollgate = start(&[]);
    let counters = |method: &str| tollgate.admin(method, "/counters?domain=shop&user=ann", TOKEN);
    for effect in ["pass", "block"] {
        assert_eq!(passed(&tollgate, "user", "ann", 5).await, 5);
        begin(&tollgate, json!({"id": effect, "effect": effect, "domain": "shop", "entries": user("ann")}));
        let (status, found) = counters("GET");
        assert_eq!((status, &found[0]["capacity"], &found[0]["remaining"]), (200, &json!(20), &json!(15)), "{found}");
        assert_eq!(counters("DELETE").0, 200);
        assert_eq!(counters("GET").1[0]["remaining"], 20);
        let end = format!("/adjustments/{effect}?who=ann&why=enough");
        assert_eq!(send(&tollgate, "DELETE", &end, TOKEN, &Value::Null).0, 200);
        assert_eq!(counters("DELETE").0, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_the_node_of_their_slot_has_the_adjustments() {
    let cluster = Cluster::start(3, 0).await;
    let setting = cluster.setting();
    let replicas = [(); 2].map(|()| start(&[&setting, "REDIS_TIMEOUT=20s"]));
    let (status, said) = begin(&replicas[0], json!({"id": "all", "effect": "block", "everything": true}));
    assert_eq!(status, 201, "{said}");
    wait_until("the other has it", || in_force(&replicas[1], "block") == 1.0);
    assert!(!replicas[1].passes("shop", &[("user", "ann")]).await);
    // Their slot moves to another node.
    let slot = State::<XMODEM>::calculate(b"|adjustments") % SLOTS;
    let from = (0..3).find(|master| cluster.slots(*master).contains(&slot)).unwrap();
    cluster.move_slot(slot, from.into(), ((from + 1) % 3).into(), async || {}).await;
    let end = "/adjustments/all?who=ann&why=enough";
    wait_until("it is ended there", || send(&replicas[0], "DELETE", end, TOKEN, &Value::Null).0 == 200);
    wait_until("the other hears of it", || in_force(&replicas[1], "block") == 0.0);
    assert!(replicas[1].passes("shop", &[("user", "ann")]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_configured_node_is_gone_keeps_what_instances_share() {
    let mut cluster = Cluster::start(3, 0).await;
    let seed = cluster.join(&[]).await;
    let tollgate = start(&[&format!("REDIS_URL=redis-cluster://{seed}"), "REDIS_TIMEOUT=20s"]);
    let (status, said) = begin(&tollgate, json!({"id": "one", "effect": "pass", "everything": true}));
    assert_eq!(status, 201, "{said}");
    let id = cluster.id(3).await;
    for node in &cluster.nodes[..3] {
        node.command::<()>(&format!("CLUSTER FORGET {id}")).await;
    }
    cluster.nodes[3].kill();
    // Open connections would hide that new ones find no node.
    for node in &cluster.nodes[..3] {
        node.command::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
    }
    wait_until("an adjustment is in force", || {
        begin(&tollgate, json!({"id": "two", "effect": "pass", "everything": true})).0 == 201
    });
    let (status, said) = tollgate.send("GET", "/usage", &[("Authorization", &format!("Bearer {TOKEN}"))], b"");
    assert_eq!(status, 200, "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adjustment_that_is_ended_is_reported_and_logged_though_the_reply_is_lost() {
    let redis = Redis::start();
    let address = crate::causes::proxy(&redis, |sent, reply| {
        let is_end = sent.windows(7).any(|part| part == b"\r\nend\r\n");
        (!is_end).then_some(reply)
    });
    let tollgate = start(&[&format!("REDIS_URL=redis://{address}"), "REDIS_TIMEOUT=20s"]);
    assert_eq!(begin(&tollgate, json!({"id": "one", "effect": "block", "everything": true})).0, 201);
    let end = "/adjustments/one?who=ann&why=enough";
    let (status, said) = send(&tollgate, "DELETE", end, TOKEN, &Value::Null);
    assert_eq!(status, 200, "{said}");
    tollgate.must_log("an operator has ended an adjustment");
    assert_eq!(count_logged(&tollgate, "an operator has ended an adjustment", "one"), 1);
    assert!(tollgate.passes("shop", &[("user", "ann")]).await);
    assert_eq!(send(&tollgate, "DELETE", end, TOKEN, &Value::Null).0, 404, "there is none any more");
}

fn written(id: &str, effect: &str, lasts: &str) -> Written {
    Written {
        id: Some(id.to_owned()),
        effect: effect.to_owned(),
        everything: true,
        who: "ann".to_owned(),
        why: "a tést, of \"words\"".to_owned(),
        lasts: Some(lasts.to_owned()),
        ..Written::default()
    }
}

fn rules(text: &str) -> Rules {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules
}

fn limiter<S: Store>(store: S, rules_text: &str) -> (Arc<Limiter<S>>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let local = Arc::<MemoryStore>::default();
    let limiter = Limiter::new(LimiterOptions::default(), Arc::new(store), local, Arc::clone(&metrics));
    limiter.put_in_force(rules(rules_text));
    (Arc::new(limiter), metrics)
}

fn adjustments<S: Store>((limiter, metrics): (Arc<Limiter<S>>, Arc<Metrics>)) -> Adjustments<S> {
    Adjustments::new(limiter, metrics, AdjustmentStore::Memory(MemoryAdjustments::default()))
}

#[tokio::test(start_paused = true)]
async fn a_replica_ends_an_adjustment_by_its_own_clock_and_does_not_take_it_back() {
    let all = limiter(MemoryStore::default(), RULES);
    let limiter = Arc::clone(&all.0);
    let adjustments = Arc::new(adjustments(all));
    let kept = Arc::clone(&adjustments);
    tokio::spawn(async move { kept.keep().await });
    adjustments.begin(&written("a", "block", "1m"), "admin", true).await.unwrap();
    assert!(limiter.snapshot().adjustments().is_some());
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(adjustments.list().len(), 1);
    // The store uses the host's clock, which has hardly moved: the adjustment still exists, and the next one shows it.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(adjustments.list().is_empty() && limiter.snapshot().adjustments().is_none());
    adjustments.begin(&written("b", "pass", "1m"), "admin", true).await.unwrap();
    assert_eq!(adjustments.list().len(), 1, "what has ended here does not come back");
    let by = By { who: "ann", why: "a test", role: "admin" };
    assert!(adjustments.end(&Id::parse("b").unwrap(), by, true).await.is_ok());
    assert!(adjustments.list().is_empty() && limiter.snapshot().adjustments().is_none());
}

/// Every algorithm, with a lease if it can have one.
const LIMITS: [&str; 6] = [
    "algorithm: sliding_window, lease: {unused: 50%, ttl: 10s}",
    "algorithm: sliding_log, lease: {unused: 50%, ttl: 10s}",
    "algorithm: token_bucket, burst: 40, lease: {unused: 50%, ttl: 10s}",
    "algorithm: leaky_bucket, burst: 40, lease: {unused: 50%, ttl: 10s}",
    "algorithm: fixed_window",
    "algorithm: fixed_window, count_denied: false, lease: {unused: 50%, ttl: 10s}",
];

#[tokio::test(start_paused = true)]
async fn neither_a_lease_nor_a_known_denial_answers_by_the_old_number() {
    for limit in LIMITS {
        let denials = Arc::new(Denials::new(1 << 20, Box::new(|| {})));
        let cached = DeniedCache::new(MemoryStore::default(), denials);
        let leased = Leases::around(vec![cached], 100, Box::new(|_| {})).remove(0);
        let rules = format!(
            "domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: day, requests_per_unit: 40, {limit}}}}}]"
        );
        let all = limiter(leased, &rules);
        let limiter = Arc::clone(&all.0);
        let adjustments = adjustments(all);
        let passes = async |times: u32| {
            let mut passed = 0;
            for _ in 0..times {
                let request = request_of("ann");
                let deadlines = Deadlines { store: Instant::now() + SOON, caller: None };
                let snapshot = limiter.snapshot();
                let (decision, _) = limiter.decide(&snapshot, &request, deadlines).await.unwrap();
                passed += u32::from(!decision.over_limit);
            }
            passed
        };
        let number = |id: &str, number: u64| Written {
            effect: "number".to_owned(),
            number: Some(number),
            everything: false,
            domain: Some("shop".to_owned()),
            rule: Some("user".to_owned()),
            ..written(id, "", "1h")
        };
        assert_eq!(passes(20).await, 20, "{limit}");
        // A lease may hold the remaining hits, which can no longer be used.
        adjustments.begin(&number("lower", 25), "admin", true).await.unwrap();
        assert_eq!(passes(20).await, 5, "{limit}");
        adjustments.end(&Id::parse("lower").unwrap(), By { who: "ann", why: "x", role: "admin" }, true).await.unwrap();
        let left = if limit == "algorithm: fixed_window" { 0 } else { 15 };
        assert_eq!(passes(30).await, left, "{limit}: what was denied may have been counted");
        // The denial is known, of the old number.
        adjustments.begin(&number("higher", 200), "admin", true).await.unwrap();
        assert!(passes(1).await == 1, "{limit}");
    }
}

fn entry(key: &str, value: &str) -> Entry {
    Entry { key: key.into(), value: value.into() }
}

fn request_of(user: &str) -> Request {
    let descriptor = Descriptor { entries: vec![entry("user", user)], ask: Ask::Take(1), limit: None };
    Request { domain: "shop".into(), descriptors: vec![descriptor] }
}

const SEVERAL: &str = "
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {name: burst, unit: second, requests_per_unit: 10, algorithm: token_bucket}
      - {unit: day, requests_per_unit: 100}
      - {name: all, unit: year, requests_per_unit: 1000, algorithm: sliding_log}
  - key: path
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 7}
";

fn any_adjustment() -> impl Strategy<Value = Written> {
    let effect = prop::sample::select(vec!["scale", "number", "pass", "block", "enforce", "shadow"]);
    let targets = ["all", "domain", "user", "user#burst", "user#1", "all", "path", "ann", "like a", "several"];
    let target = prop::sample::select(targets.to_vec());
    (effect, target).prop_map(|(effect, target)| {
        let like = |pattern: &str| WrittenEntry { key: "user".into(), pattern: Some(pattern.into()), value: None };
        let exactly = |key, value| WrittenEntry::from(entry(key, value));
        let (domain, rule, descriptors) = match target {
            "all" => (None, None, Vec::new()),
            "domain" => (Some("shop"), None, Vec::new()),
            "ann" => (Some("shop"), None, vec![vec![exactly("user", "ann")]]),
            "like a" => (Some("shop"), None, vec![vec![like("a*")]]),
            "several" => (Some("shop"), None, vec![vec![exactly("path", "/")], vec![like("*b")]]),
            rule => (Some("shop"), Some(rule), Vec::new()),
        };
        Written {
            everything: domain.is_none(),
            domain: domain.map(str::to_owned),
            rule: rule.map(str::to_owned),
            descriptors,
            share: (effect == "scale").then(|| "10%".to_owned()),
            number: (effect == "number").then_some(3),
            ..written("x", effect, "1h")
        }
    })
}

proptest! {
    #[test]
    fn a_plan_has_every_limit_in_its_place_and_asks_those_that_no_adjustment_answers(
        said in prop::collection::vec(any_adjustment(), 0..6), user in prop::sample::select(vec!["ann", "bob"]),
        ask in prop::sample::select(vec![Ask::Take(1), Ask::Peek, Ask::Refund(1), Ask::Reset]),
    ) {
        let contents: Vec<_> = said.iter().map(Written::content).filter_map(Result::ok).collect();
        let adjustment = |(i, content)| {
            Arc::new(Adjustment { id: Id::of_number(i), content, since_ms: i, until_ms: 1_000 })
        };
        let adjustments = InForce::new((0..).zip(contents).map(adjustment).collect());
        let (rules, options) = (rules(SEVERAL), PlanOptions::default());
        let descriptor = |key: &str, value: &str| Descriptor { entries: vec![entry(key, value)], ask, limit: None };
        let request = Request {
            domain: "shop".into(),
            descriptors: vec![descriptor("user", user), descriptor("path", "/"), descriptor("none", "x")],
        };
        let bare = Plan::new(&options, &rules, &request, Names::default());
        let plan = Plan::adjusted(&options, (&rules, Some(&adjustments)), &request, Names::default());
        prop_assert_eq!(plan.all().count(), bare.asked().len());
        let store = MemoryStore::default();
        let verdicts = store.decide(plan.asked()).unwrap();
        let asked = plan.asked().len();
        let decision = plan.conclude(&verdicts);
        for (limited, was) in decision.limits.iter().zip(bare.asked()) {
            let check = &limited.asked.check;
            prop_assert_eq!(limited.asked.source.label(), was.source.label());
            prop_assert_eq!(&check.key, &was.check.key, "it goes on with its counter");
            prop_assert_eq!(check.limit.number() == 0, limited.answer == Answer::Blocked);
            prop_assert!(!limited.is_asked() || matches!(limited.answer, Answer::Store(_)));
            prop_assert!(limited.is_asked() || limited.answer.decided_by() == DecidedBy::Adjustment);
            prop_assert!(limited.answer != Answer::Blocked || limited.role() == Role::Enforced);
            prop_assert!(ask != Ask::Reset || limited.is_asked(), "a reset reaches every counter");
        }
        prop_assert_eq!(decision.limits.iter().filter(|limited| limited.is_asked()).count(), asked);
        let blocked = decision.limits.iter().any(|limited| limited.answer == Answer::Blocked);
        prop_assert_eq!(decision.over_limit, blocked, "a new counter denies nothing by itself");
        prop_assert!(!ask.is_refund() || !blocked, "a refund always passes");
        prop_assert!(matches!(&decision.statuses[0], Status::Limited(range) if *range == (0..3)));
        prop_assert!(matches!(&decision.statuses[1], Status::Limited(range) if *range == (3..4)));
        prop_assert!(matches!(&decision.statuses[2], Status::NoLimit));
        if blocked {
            let charged = decision.limits.iter().filter(|limited| limited.is_asked());
            prop_assert!(charged.into_iter().all(|limited| limited.asked.check.ask.taken() == 0));
        }
    }
}

#[test]
fn mistakes_say_what_would_be_right() {
    let mistakes: Mistakes = Written::default().content().unwrap_err();
    assert!(mistakes.to_string().contains("effect: one of"), "{mistakes}");
}

#[tokio::test]
async fn the_code_of_a_denied_request_is_over_limit() {
    let tollgate = start(&[]);
    begin(&tollgate, json!({"effect": "block", "everything": true}));
    let answer = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(answer.statuses[0].code, 2);
}

#[tokio::test]
async fn what_is_blocked_tells_no_time() {
    for format in ["separate", "ietf"] {
        let format = format!("LIMIT_RESPONSE_HEADERS_FORMAT={format}");
        let tollgate = start(&["LIMIT_RESPONSE_HEADERS_ENABLED=true", &format]);
        let headers = async || {
            let answer = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
            let headers = answer.response_headers_to_add.into_iter().map(|header| (header.key, header.value));
            (answer.statuses[0].duration_until_reset, headers.collect::<Vec<(String, String)>>())
        };
        let tells_reset = |headers: &[(String, String)]| {
            headers.iter().any(|(key, value)| key == "RateLimit-Reset" || value.contains(";t="))
        };
        let (reset, told) = headers().await;
        assert!(reset.is_some() && tells_reset(&told), "{told:?}");
        begin(&tollgate, json!({"effect": "block", "everything": true}));
        let (reset, told) = headers().await;
        assert!(reset.is_none() && !told.is_empty() && !tells_reset(&told), "{told:?}");
    }
}
