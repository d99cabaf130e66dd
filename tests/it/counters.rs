//! Looking at counters and resetting them by hand: by the command against Redis, and over HTTP against the service.

use crate::support;

use serde_json::Value;
use support::redis::Redis;
use support::tollgate::{self, Tollgate};
use support::wait_until_async;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {name: burst, period: 90m, requests_per_unit: 2, algorithm: token_bucket}
      - {unit: year, requests_per_unit: 5}
      - {unit: day, requests_per_unit: 100, algorithm: leaky_bucket, burst: 5, max_delay: 250ms}
  - key: report
    descriptors:
      - {key: stream, rate_limit: {requests_per_unit: 2, algorithm: concurrency}}
  - key: user
    value: root
    rate_limit: {unlimited: true}
";

const TOKEN: &str = "a token of some length";

#[tokio::test]
async fn the_command_shows_and_resets_what_is_in_redis() {
    let redis = Redis::start();
    let url = redis.url();
    let service = Tollgate::start(RULES, &[&format!("REDIS_URL={url}"), "CACHE_KEY_PREFIX=p:"]);
    let rules = service.rules.path().to_str().unwrap();
    let counter = |words: &[&str]| {
        let settings = [("REDIS_URL", url.as_str()), ("RULES", rules), ("CACHE_KEY_PREFIX", "p:")];
        let output = tollgate::command().arg("counter").args(words).envs(settings).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for _ in 0..2 {
        assert!(service.passes("shop", &[("user", "ann")]).await);
    }
    assert!(!service.passes("shop", &[("user", "ann")]).await);
    for _ in 0..2 {
        let (code, out, _) = counter(&["get", "--domain", "shop", "user=ann"]);
        assert_eq!(code, Some(0));
        let begins = "p:{shop|user=ann}|tb1:5400000\n  2 per 90m, token_bucket (burst): 0 of 2 left, resets in 1h ";
        assert!(out.starts_with(begins), "{out}");
        assert!(out.contains("\n  5 per year, sliding_window (user#1): 3 of 5 left, resets in "), "{out}");
        assert!(
            out.contains("\n  100 per day, leaky_bucket, delayed up to 250ms (user#2): 3 of 5 left, resets in "),
            "{out}"
        );
    }
    let (code, out, log) = counter(&["reset", "--domain", "shop", "user=ann"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("2 of 2 left\n") && out.contains("5 of 5 left\n"), "{out}");
    assert!(log.contains("an operator has reset counters") && log.contains("[\"burst\", \"user#1\", "), "{log}");
    assert!(!log.contains("ann"), "the log tells no values: {log}");
    // The reset did not go through the service, so the service still has its cached denial.
    wait_until_async("ann passes", async || service.passes("shop", &[("user", "ann")]).await).await;

    // Slots that will not be released: a reset needs no holder.
    for (stream, passes) in [("1", true), ("2", true), ("3", false)] {
        assert_eq!(service.passes("shop", &[("report", "all"), ("stream", stream)]).await, passes);
    }
    let (_, out, _) = counter(&["reset", "--domain", "shop", "report=all", "stream=any"]);
    assert!(out.contains("2 at once, concurrency (report|stream): 2 of 2 left\n"), "{out}");

    for (words, reason) in [
        (&["get", "--domain", "shop", "user=root"][..], "no limit applies: the rule that matches it is unlimited"),
        (&["get", "--domain", "shop", "usr=ann"], "no limit applies: key \"usr\": did you mean \"user\"?"),
        (&["get", "--domain", "shpo", "user=ann"], "no limit applies: domain \"shpo\": did you mean \"shop\"?"),
        (&["reset", "--domain", "shop", "ann"], "\"ann\" is not an entry: write KEY=VALUE"),
    ] {
        let (code, _, said) = counter(words);
        assert_eq!(code, Some(1));
        assert!(said.contains(reason), "{said}");
    }
    redis.freeze();
    let (code, _, said) = counter(&["get", "--domain", "shop", "user=ann"]);
    redis.thaw();
    assert_eq!(code, Some(1));
    assert!(said.contains("the store is unavailable"), "{said}");
}

#[test]
fn the_command_does_not_reach_counters_in_memory_without_an_address() {
    let words = ["counter", "get", "--domain", "shop", "--rules", "config/rules", "user=ann"];
    let output = tollgate::command().args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("counters are in the service's memory; set REDIS_URL, or name the service by --address"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_and_a_token_suffice_for_the_commands() {
    const READ: &str = "a token that may only read";
    let admin = [format!("ADMIN_TOKEN={TOKEN}"), format!("ADMIN_READ_TOKEN={READ}"), "ADMIN_API=true".to_owned()];
    let service = Tollgate::start(RULES, &admin.each_ref().map(String::as_str));
    for _ in 0..2 {
        assert!(service.passes("shop", &[("user", "ann&bob")]).await);
    }
    let address = format!("localhost:{}", service.http_port);
    let run = |words: &[&str], token: &str| {
        // No rules, and settings of a Redis that do not concern a service.
        let settings = [("ADMIN_TOKEN", token), ("REDIS_URL", "localhost:1,localhost:2"), ("REDIS_TYPE", "SENTINEL")];
        let output = tollgate::command().args(words).args(["--address", &address]).envs(settings).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let ann = ["--domain", "shop", "user=ann&bob"];
    let counter = |action: &'static str| [&["counter", action], &ann[..]].concat();
    let (code, out, said) = run(&counter("get"), READ);
    assert_eq!((code, said), (Some(0), String::new()));
    assert!(out.contains("\n  2 per 90m, token_bucket (burst): 0 of 2 left, resets in 1h "), "{out}");
    let (code, _, said) = run(&counter("reset"), READ);
    assert!(code == Some(1) && said.contains("the ADMIN_READ_TOKEN permits only reading"), "{said}");
    let (code, out, _) = run(&counter("reset"), TOKEN);
    assert!(code == Some(0) && out.contains("(burst): 2 of 2 left\n"), "{out}");
    assert!(service.passes("shop", &[("user", "ann&bob")]).await);
    let (code, _, said) = run(&["counter", "get", "--domain", "shop", "usr=ann"], READ);
    assert!(code == Some(1) && said.contains("no limit applies: key \"usr\": did you mean \"user\"?"), "{said}");
    let (code, _, said) = run(&[&counter("get")[..], &["--replica"]].concat(), READ);
    assert!(code == Some(1) && said.contains("cannot be used with"), "{said}");
    assert_eq!(run(&[&["explain"], &ann[..]].concat(), READ).0, Some(0));
    let (code, out, _) = run(&["audit"], READ);
    assert!(code == Some(0) && out.contains("reset  counters of burst"), "{out}");
}

/// Sends a request to the admin port; returns the status and the body.
fn http(service: &Tollgate, method: &str, query: &str, token: &str) -> (u16, Value) {
    service.admin(method, &format!("/counters{query}"), token)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_port_shows_and_resets_for_clients_with_the_token() {
    let service = Tollgate::start(RULES, &["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")]);
    assert!(service.passes("shop", &[("user", "a&b")]).await);
    let ann = "?domain=shop&user=a%26b";
    let (status, counters) = http(&service, "GET", ann, TOKEN);
    assert_eq!(status, 200);
    assert_eq!((&counters[0]["rule"], &counters[0]["remaining"]), (&"burst".into(), &1.into()));
    assert_eq!((&counters[1]["limit"], &counters[1]["remaining"]), (&"5 per year, sliding_window".into(), &4.into()));
    for wrong in ["", "another token", "a token of some lengt"] {
        assert_eq!(http(&service, "DELETE", ann, wrong).0, 401);
    }
    assert_eq!(http(&service, "GET", ann, TOKEN).1[1]["remaining"], 4, "nothing has changed");

    let (status, counters) = http(&service, "DELETE", ann, TOKEN);
    assert_eq!((status, &counters[0]["remaining"], &counters[1]["remaining"]), (200, &2.into(), &5.into()));
    let line = service.must_log("an operator has reset counters").to_string();
    assert!(line.contains("shop") && !line.contains("a&b") && !line.contains("a%26b"), "{line}");
    for (method, query, status) in [
        ("GET", "", 400),
        ("GET", "?domain=shop", 400),
        ("GET", "?user=ann&domain=shop", 400),
        ("GET", "?domain=mall&user=ann", 404),
        ("GET", "?domain=shop&user=root", 404),
        ("POST", ann, 405),
    ] {
        let (given, said) = http(&service, method, query, TOKEN);
        assert_eq!(given, status, "{method} {query}: {said}");
        assert!(said["error"].is_string());
    }
    let (_, said) = http(&service, "GET", "?domain=shop&usr=ann", TOKEN);
    assert!(said["error"].as_str().unwrap().contains("did you mean \"user\"?"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_over_http_is_in_force_at_once_also_where_redis_is_known_to_deny() {
    const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 2, lease: {unused: 50%, ttl: 10s}}}
  - {key: banned, rate_limit: {unit: year, requests_per_unit: 2, penalty: {after: 1, within: 1h, ban: 1d}}}
";
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    // A generous timeout, so that a failure mode does not answer on a busy machine.
    let settings = [&url, "ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}"), "REDIS_TIMEOUT=30s"];
    let service = Tollgate::start(RULES, &settings);
    for (resets, key) in ["user", "leased", "banned"].into_iter().enumerate() {
        let passes = async || service.passes("shop", &[(key, "ann")]).await;
        assert!(passes().await && passes().await);
        let known = || service.metric("tollgate_denied_cache_hits_total");
        let before = known();
        while known() == before {
            assert!(!passes().await, "{key}");
        }
        assert_eq!(http(&service, "DELETE", &format!("?domain=shop&{key}=ann"), TOKEN).0, 200);
        wait_until_async("the reset is in the audit trail", async || {
            redis.command::<usize>("LLEN {|adjustments}|audit").await == resets + 1
        })
        .await;
        let asked = redis.script_calls();
        assert!(passes().await, "{key}");
        assert_eq!(redis.script_calls(), asked + 1, "{key}");
    }
}

/// What instances hold is told, and a reset of the counter does not take it from them.
#[tokio::test]
async fn hits_in_leases_are_told_and_a_reset_keeps_them() {
    const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000, lease: {unused: 10%, ttl: 30s}}}
";
    let redis = Redis::start();
    let url = redis.url();
    let service = Tollgate::start(RULES, &[&format!("REDIS_URL={url}"), "REDIS_TIMEOUT=30s"]);
    let rules = service.rules.path().to_str().unwrap();
    let counter = |word: &str| -> Value {
        let settings = [("REDIS_URL", url.as_str()), ("RULES", rules)];
        let words = [word, "--domain", "shop", "--format", "json", "user=ann"];
        let output = tollgate::command().arg("counter").args(words).envs(settings).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone()
    };
    for _ in 0..20 {
        assert!(service.passes("shop", &[("user", "ann")]).await);
    }
    let told = counter("get");
    let leased = told["leased"].as_u64().unwrap();
    assert!((1..=100).contains(&leased), "{told}");
    let words = ["explain", "--domain", "shop", "user=ann"];
    let explain = |format: &[&str]| {
        let settings = [("REDIS_URL", url.as_str()), ("RULES", rules)];
        let output = tollgate::command().args(words).args(format).envs(settings).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let explained: Value = serde_json::from_str(&explain(&["--format", "json"])).unwrap();
    let limit = &explained["descriptors"][0]["limits"][0];
    assert_eq!(limit["lease"], serde_json::json!({"most": 100, "ttl_ms": 30_000}), "{explained}");
    assert_eq!(limit["state"]["leased"].as_u64(), Some(leased), "{explained}");
    let text = explain(&[]);
    assert!(text.contains("lease: up to 10% with all instances together, 100 hits, for 30s each"), "{text}");
    assert!(text.contains(&format!("of 1000 left, {leased} in leases")), "{text}");
    // Used hits of the lease are part of what is out until it is returned.
    assert!(told["remaining"].as_u64().unwrap() <= 980, "{told}");
    let reset = counter("reset");
    assert_eq!(reset["leased"].as_u64(), Some(leased), "{reset}");
    assert_eq!(reset["remaining"].as_u64(), Some(1_000 - leased), "{reset}");
}

#[test]
fn hits_that_other_instances_may_have_admitted_by_their_shares_are_told() {
    let redis = Redis::start();
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let limit = "rate_limit: {unit: minute, requests_per_unit: 1000, own_share: 5%}";
    std::fs::write(rules.path(), format!("domain: shop\ndescriptors: [{{key: user, {limit}}}]\n")).unwrap();
    for action in ["get", "reset"] {
        let url = redis.url();
        let rules = rules.path().to_str().unwrap();
        let settings = [("REDIS_URL", &*url), ("RULES", rules)];
        let words = ["counter", action, "--domain", "shop", "user=ann"];
        let output = tollgate::command().args(words).envs(settings).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let expected = "950 of 1000 left, up to 50 more in the shares of other instances\n";
        assert!(said.contains(expected), "{action}: {said}");
    }
}

#[test]
fn the_admin_port_has_no_counters_unless_it_is_set_to() {
    let service = Tollgate::start(RULES, &[&format!("ADMIN_TOKEN={TOKEN}")]);
    assert_eq!(http(&service, "GET", "?domain=shop&user=ann", TOKEN).0, 404);
    for token in ["", "short"] {
        let settings = [("ADMIN_API", "true"), ("ADMIN_TOKEN", token), ("RULES", "config/rules")];
        let output = tollgate::command().envs(settings).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("at least 16"), "{said}");
    }
}
