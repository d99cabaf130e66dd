//! `tollgate ask`: what it prints, and how it exits.

use crate::process::{RULES, refusal, run, text};
use crate::support::tollgate::Tollgate;

#[test]
fn ask_prints_the_decision_and_exits_by_it() {
    let tollgate = Tollgate::start(RULES, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |more: &[&str]| {
        let mut arguments = vec!["ask", "--address", &address, "--domain", "shop"];
        arguments.extend(more);
        let output = run(&arguments, &[]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, _) = ask(&["user=ann"]);
    assert_eq!(code, Some(0));
    assert!(
        out.starts_with("passed\n  user=ann: within the limit of 2 per year (per-user), 1 left, resets in "),
        "{out}"
    );
    let (code, out, _) = ask(&["--hits", "2", "user=ann", "+", "color=red"]);
    assert_eq!(code, Some(2));
    let denied = "LIMITED\n  user=ann: over the limit of 2 per year (per-user), 1 left, try again in ";
    assert!(out.contains(denied), "{out}");
    assert!(out.contains("\n  color=red: no limit applies: key \"color\": this level has \"user\"\n"), "{out}");
    assert!(out.contains("\n  Retry-After: "), "{out}");
    let (_, out, _) = ask(&["--refund", "color=red"]);
    assert!(out.starts_with("nothing to refund\n"), "{out}");
    let (code, out, _) = ask(&["--json", "--refund", "user=ann"]);
    assert_eq!(code, Some(0));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["code"], &json["outcome"]), (&"OK".into(), &"refunded".into()));
    assert_eq!(json["statuses"][0]["limit_remaining"], 2);
    assert_eq!(json["statuses"][0]["limit"]["name"], "per-user");
    assert_eq!(json["headers"]["RateLimit-Limit"], "2");
    assert_eq!((&json["decided_by"], &json["statuses"][0]["rule"]), (&"store".into(), &"user".into()));
    assert_eq!(json["statuses"][0]["limits"][0]["algorithm"], "sliding_window");
}

#[test]
fn a_peek_tells_whether_one_more_would_pass() {
    let rules = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: costly, rate_limit: {unit: year, requests_per_unit: 6, cost: 5}}
  - {key: dark, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: banned, rate_limit: {unit: year, requests_per_unit: 1, penalty: {after: 1, within: 1h, ban: 1h}}}
  - {key: gold, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: silver, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |hits: &str, words: &[&str]| {
        let mut arguments = vec!["ask", "--address", &address, "--domain", "shop", "--hits", hits];
        arguments.extend(words);
        let output = run(&arguments, &[]);
        (output.status.code(), text(&output.stdout))
    };
    for (words, takes, passes) in [
        (&["user=ann"][..], 1, true),
        (&["costly=ann"], 1, true),
        (&["dark=ann"], 1, false),
        (&["banned=ann"], 2, true),
        (&["gold=ann", "+", "silver=ann"], 2, true),
    ] {
        let (code, out) = ask("0", words);
        assert!(code == Some(0) && out.starts_with("one more would pass\n"), "{words:?}: {out}");
        for _ in 0..takes {
            ask("1", words);
        }
        let (code, out) = ask("0", words);
        let (expected, begins) = if passes { (2, "one more would be LIMITED\n") } else { (0, "one more would pass\n") };
        assert!(code == Some(expected) && out.starts_with(begins), "{words:?}: {out}");
        let (code, out) = ask("0", &[words, &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &json["next_passes"]), (Some(expected), &(!passes).into()), "{words:?}: {out}");
    }
}

#[test]
fn a_limit_that_denies_says_whether_it_ever_lets_the_same_pass_and_a_peek_when_one_more() {
    let rules = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: zero, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: costly, rate_limit: {unit: year, requests_per_unit: 6, cost: 5}}
  - {key: slow, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: leaky_bucket, max_delay: 60s}}
  - {key: upload, descriptors: [{key: stream, rate_limit: {requests_per_unit: 1, algorithm: concurrency}}]}
  - {key: banned, rate_limit: {unit: year, requests_per_unit: 1, penalty: {after: 1, within: 1h, ban: 1h}}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |words: &[&str]| {
        let output = run(&[&["ask", "--address", &address, "--domain", "shop"], words].concat(), &[]);
        text(&output.stdout)
    };
    for (words, said) in [
        (&["--hits", "8", "slow=ann"][..], "more hits than the limit ever allows at once"),
        (&["--hits", "3", "slow=ann"], "its delay would be longer than the timeout"),
        (&["zero=ann"], "over the limit of 0 per year (zero), 0 left, it allows no requests"),
        (&["--hits", "0", "zero=ann"], "the limit of 0 per year (zero) allows no requests"),
        (&["--hits", "2", "user=ann"], "more hits than the limit ever allows at once"),
        (
            &["--limit", "0/minute", "user=ann"],
            "over the limit of 0 per minute (override), 0 left, it allows no requests",
        ),
    ] {
        assert!(ask(words).contains(said), "{words:?}: {}", ask(words));
    }
    for words in [&["user=ann"][..], &["costly=ann"], &["upload=a", "stream=1"], &["banned=ann"], &["banned=ann"]] {
        ask(words);
    }
    for (words, said) in [
        (&["user=ann"][..], "the limit of 1 per year (user) is used up, 0 left, one more passes in "),
        (&["costly=ann"], "the limit of 6 per year (costly) has no room for one more, 1 left, one more passes in "),
        (&["upload=a", "stream=1"], "is used up, 0 left, one more passes when a slot is released, resets in "),
        // Longer than the ban.
        (&["banned=ann"], ", one more passes in 1year "),
    ] {
        let peek = ask(&[words, &["--hits", "0"]].concat());
        assert!(peek.starts_with("one more would be LIMITED\n") && peek.contains(said), "{peek}");
    }
    assert!(ask(&["upload=a", "stream=2"]).contains("try again when a slot is released; one expires in "));
    let json: serde_json::Value = serde_json::from_str(&ask(&["--json", "--hits", "0", "user=ann"])).unwrap();
    let limit = &json["statuses"][0]["limits"][0];
    assert_eq!((&json["outcome"], &limit["used_up"]), (&"would_be_limited".into(), &true.into()), "{json}");
    assert!(limit["next_after_ms"].as_u64().unwrap() > 365 * 86_400_000, "{json}");
}

#[test]
fn descriptors_that_share_a_counter_need_room_for_each_of_them() {
    let rules = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |words: &[&str]| {
        let output = run(&[&["ask", "--address", &address, "--domain", "shop"], words].concat(), &[]);
        (output.status.code(), text(&output.stdout))
    };
    let twice = ["--hits", "0", "user=ann", "+", "user=ann"];
    assert_eq!(ask(&twice).0, Some(0));
    assert_eq!(ask(&["user=ann"]).0, Some(0));
    let (code, out) = ask(&twice);
    let second = "\n  user=ann: the limit of 2 per year (user) has no room for one more, 1 left, one more passes in ";
    assert!(code == Some(2) && out.contains(second), "{out}");
    assert_eq!(ask(&["user=ann", "+", "user=ann"]).0, Some(2), "so it is");
}

#[test]
fn ask_shows_every_limit_of_a_descriptor_with_its_own_period() {
    let rules = "
domain: sms
descriptors:
  - key: phone
    rate_limits:
      - {period: 1500ms, requests_per_unit: 1000, algorithm: token_bucket, burst: 2000}
      - {name: daily, unit: day, requests_per_unit: 3}
  - {key: odd, rate_limit: {period: 90s, requests_per_unit: 3}}
  - {key: stream, rate_limit: {requests_per_unit: 3, algorithm: concurrency}}
";
    let tollgate = Tollgate::start(rules, &[]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |words: &[&str]| {
        let mut arguments = vec!["ask", "--address", &address, "--domain", "sms"];
        arguments.extend(words);
        text(&run(&arguments, &[]).stdout)
    };
    let out = ask(&["phone=1"]);
    let expected = "passed
  phone=1: 2 limits
    rule     limit                          algorithm       left
    phone#0  1000 per 1500ms, 2000 at once  token_bucket    1999  within, resets in 2ms
    daily    3 per day                      sliding_window     2  within, resets in 1day ";
    assert!(out.starts_with(expected), "{out}");
    assert!(ask(&["odd=1"]).contains("within the limit of 3 per 90s (odd), 2 left, resets in "));
    assert!(ask(&["stream=1"]).contains("within the limit of 3 at once (stream), 2 left, resets in "));
    assert!(
        ask(&["--hits", "4", "odd=1"])
            .contains("over the limit of 3 per 90s (odd), 2 left, more hits than the limit ever allows at once")
    );
}

#[test]
fn a_question_without_an_answer_exits_with_1_and_says_why() {
    for (arguments, reason) in [
        (&["ask", "--domain", "shop", "ann"][..], "\"ann\" is not an entry: write KEY=VALUE, for example user=ann"),
        (
            &["ask", "--domain", "shop", "--address", "localhost:1", "user=ann"],
            "connection to localhost:1 refused: is the service running?",
        ),
        (&["ask", "user=ann"], "--domain"),
        (&["ask", "--domain", "shop", "--hits", "many", "user=ann"], "--hits"),
        (&["ask", "--domain", "shop", "--hits", "-1", "user=ann"], "to refund them, write --refund --hits 1"),
    ] {
        let said = refusal(arguments, &[]);
        assert!(said.contains(reason), "{said}");
    }
    let tollgate = Tollgate::start(RULES, &["MAX_ENTRIES=1"]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let said = refusal(&["ask", "--address", &address, "--domain", "shop", "user=ann", "path=/"], &[]);
    assert!(said.contains("descriptors[0] has 2 entries, more than the 1 that MAX_ENTRIES allows"), "{said}");
}

#[test]
fn an_answer_of_an_adjustment_names_it_and_no_wait_of_the_limit() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {name: per-user, unit: minute, requests_per_unit: 3, usage: {by: hour, keep: 40d}}
      - {name: per-day, unit: day, requests_per_unit: 9}
  - {key: plain, rate_limit: {name: plain, unit: minute, requests_per_unit: 3}}
  - {key: billed, rate_limit: {name: billed, unit: minute, requests_per_unit: 3, usage: {by: hour, keep: 40d}}}
";
    let token = "a token of some length";
    let tollgate = Tollgate::start(rules, &["ADMIN_API=true", &format!("ADMIN_TOKEN={token}")]);
    for (id, effect) in [("no", "block"), ("yes", "pass")] {
        for key in ["user", "plain", "billed"] {
            let body = serde_json::json!({
                "id": format!("{id}-{key}"), "effect": effect, "domain": "shop",
                "entries": [{"key": key, "value": id}], "who": "ann", "why": "a test", "for": "1h",
            });
            let bearer = format!("Bearer {token}");
            let headers = [("Authorization", &*bearer)];
            assert_eq!(tollgate.send("POST", "/adjustments", &headers, body.to_string().as_bytes()).0, 201);
        }
    }
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = |words: &[&str]| {
        let output = run(&[&["ask", "--address", &address, "--domain", "shop"], words].concat(), &[]);
        (output.status.code(), text(&output.stdout))
    };
    for key in ["plain", "billed"] {
        let blocks = format!("  {key}=no: not checked against the limit {key}: the adjustment no-{key} blocks it\n");
        let allows = format!("  {key}=yes: not checked against the limit {key}: the adjustment yes-{key} allows it\n");
        let [no, yes] = ["no", "yes"].map(|value| format!("{key}={value}"));
        assert_eq!(ask(&[&no]), (Some(2), format!("LIMITED\n{blocks}")));
        assert_eq!(ask(&["--hits", "0", &no]), (Some(2), format!("one more would be LIMITED\n{blocks}")));
        assert_eq!(ask(&[&yes]), (Some(0), format!("passed\n{allows}")));
    }
    let (_, several) = ask(&["user=no"]);
    assert!(several.contains("the adjustment no-user blocks it\n") && !several.contains("no requests"), "{several}");
    assert_eq!(several.matches("the adjustment no-user blocks it").count(), 2, "{several}");
}
