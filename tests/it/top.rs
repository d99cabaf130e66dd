//! The keys with the most hits of each limit: over HTTP, and by `tollgate top`.

use crate::support;

use std::process::Output;

use serde_json::{Value, json};
use support::redis::Redis;
use support::terminal::Terminal;
use support::tollgate::{self, Tollgate, request};

const RULES: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 5, name: per-user}}
- {key: path, value: /pay, rate_limit: {unit: year, requests_per_unit: 1000}}
- key: path
  value: /api/*
  descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000}}]
";

const TOKEN: &str = "a token of some length";

fn start(settings: &[&str]) -> Tollgate {
    let token = format!("ADMIN_TOKEN={TOKEN}");
    Tollgate::start(RULES, &[settings, &["ADMIN_API=true", &token]].concat())
}

fn top(service: &Tollgate, query: &str) -> (u16, Value) {
    service.admin("GET", &format!("/top{query}"), TOKEN)
}

/// Asks once for each of twenty users, and for some others more often. With many users, one in a hundred runs would
/// have more of them in a bucket of the sketch than it counts.
async fn ask(service: &Tollgate) {
    let mut client = service.client().await;
    for turn in 0..60 {
        let hot = if turn % 2 == 0 { "ann" } else { "bob&co" };
        client.should_rate_limit(request("shop", &[&[("user", hot)]])).await.unwrap();
        if turn % 3 == 0 {
            let user = format!("u{turn}");
            client.should_rate_limit(request("shop", &[&[("user", &user)]])).await.unwrap();
            client.should_rate_limit(request("shop", &[&[("path", "/pay")]])).await.unwrap();
            client.should_rate_limit(request("shop", &[&[("path", "/api/a"), ("user", "ann")]])).await.unwrap();
        }
    }
}

/// The values and one count of each key.
fn told(top: &Value, count: &str) -> Vec<(String, u64)> {
    let values = |key: &Value| {
        let pairs = key["descriptor"].as_array().unwrap().iter();
        pairs.map(|pair| pair["value"].as_str().unwrap_or("-")).collect::<Vec<_>>().join(" ")
    };
    top["keys"].as_array().unwrap().iter().map(|key| (values(key), key[count].as_u64().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heaviest_keys_are_told_with_what_is_left_of_their_counters() {
    let service = start(&[]);
    ask(&service).await;
    let (status, answer) = top(&service, "?domain=shop&rule=per-user&n=3&remaining=true");
    assert_eq!(status, 200);
    let heaviest = told(&answer, "hits");
    let mut users: Vec<_> = heaviest[..2].to_vec();
    users.sort();
    assert_eq!(users, [("ann".to_owned(), 30), ("bob&co".to_owned(), 30)]);
    assert_eq!((heaviest.len(), heaviest[2].1, &answer["rules"]), (3, 1, &json!(1)));
    let key = &answer["keys"][0];
    let expected = json!([25, 1, 0, 5, 30, 0.375]);
    let fields = ["denied", "near", "remaining", "capacity", "at_least", "share"];
    assert_eq!(Value::from_iter(fields.map(|field| key[field].clone())), expected, "{key}");
    assert_eq!(answer["keys"][2]["remaining"], 4);

    let (_, denied) = top(&service, "?by=denied");
    assert_eq!(told(&denied, "denied").len(), 2);
    let (_, all) = top(&service, "?n=1000");
    assert_eq!((told(&all, "hits").len(), &all["rules"]), (24, &json!(3)));
    assert!(told(&all, "hits").contains(&("/api/a ann".to_owned(), 20)), "{all}");
    assert_eq!(top(&service, "?domain=mall").1["keys"], json!([]));
    assert!(all["keys"][0].get("remaining").is_none());

    for (query, status) in [("?by=size", 400), ("?n=0", 400), ("?n=1001", 400), ("?user=ann", 400), ("", 200)] {
        assert_eq!(top(&service, query).0, status, "{query}");
    }
    assert_eq!(service.admin("GET", "/top", "another token").0, 401);
    assert_eq!(service.admin("DELETE", "/top", TOKEN).0, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_counts_go_on_under_new_rules() {
    let service = start(&[]);
    ask(&service).await;
    service.change_rules(&RULES.replace("requests_per_unit: 5", "requests_per_unit: 6"));
    service.must_log("new rules are in force");
    for _ in 0..5 {
        service.passes("shop", &[("user", "ann")]).await;
    }
    let (_, answer) = top(&service, "?rule=per-user&n=1");
    assert_eq!(told(&answer, "hits"), [("ann".to_owned(), 35)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_hashed_or_hidden_and_counters_are_read_nevertheless() {
    for (settings, is_hidden) in
        [(&["TOP_KEYS_VALUES=hidden"][..], true), (&["TOP_KEYS_VALUES=hashed", "VALUES_KEY=a key of sixteen"], false)]
    {
        let service = start(settings);
        ask(&service).await;
        let (_, answer) = top(&service, "?remaining=true&n=1000");
        let text = answer.to_string();
        for value in ["ann", "bob", "/pay", "/api", "u57"] {
            assert!(!text.contains(value), "{value}: {text}");
        }
        assert!(answer["keys"].as_array().unwrap().iter().all(|key| key["remaining"].is_number()), "{text}");
        assert_eq!(answer["keys"][0]["descriptor"][0].get("value").is_none(), is_hidden);
        let rules: Vec<_> =
            answer["keys"].as_array().unwrap().iter().map(|key| key["rule"].as_str().unwrap()).collect();
        assert!(rules.contains(&"per-user") && rules.iter().any(|rule| rule.starts_with("path")), "{rules:?}");
    }
}

fn command(service: &Tollgate, words: &[&str]) -> Output {
    let address = format!("http://127.0.0.1:{}", service.http_port);
    let mut command = tollgate::command();
    command.arg("top").args(["--address", &address]).args(words).env("ADMIN_TOKEN", TOKEN);
    command.output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_prints_a_table_or_json() {
    let service = start(&[]);
    ask(&service).await;
    let output = command(&service, &["--by", "denied", "--rule", "per-user"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("top keys by denied, in the last "), "{text}");
    assert!(text.contains("DENIED/S") && text.contains(" 50.0%  0 of 5          shop/per-user  user=ann\n"), "{text}");
    assert!(!text.contains('\u{1b}'), "no terminal, no escapes");
    let output = command(&service, &["--format", "json", "-n", "2"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told(&json, "hits").len(), 2);

    // In a pod, a command has the settings of the service.
    let mut here = tollgate::command();
    here.args(["top", "--once"]).env("ADMIN_TOKEN", TOKEN).env("PORT", service.http_port.to_string());
    let said = String::from_utf8(here.output().unwrap().stdout).unwrap();
    assert!(said.contains("shop/per-user"), "{said}");

    let off = start(&["TOP_KEYS=false"]);
    ask(&off).await;
    assert_eq!(top(&off, "").0, 404);
    let output = command(&off, &["--once"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("ADMIN_API=true and TOP_KEYS=true"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_terminal_keys_select_the_order_and_the_rule() {
    let service = start(&[]);
    ask(&service).await;
    let line = format!("{} top --address localhost:{}", tollgate::BINARY, service.http_port);
    let mut terminal = Terminal::start(&line, &[("ADMIN_TOKEN", TOKEN)]);
    terminal.wait_for("top keys by hits");
    terminal.wait_for("\u{1b}[1m");
    terminal.wait_for("q quit");
    for (key, shown) in [
        ("d", "top keys by denied"),
        ("n", "top keys by near"),
        ("h", "top keys by hits"),
        ("r", "rule: path"),
        ("r", "rule: path"),
        ("r", "rule: per-user"),
        ("r", "\nkeys:"),
        ("r", "rule: path"),
        ("a", "\nkeys:"),
    ] {
        terminal.press(key);
        terminal.wait_for(shown);
    }
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_waits_for_a_service_that_went_away_and_not_for_one_that_was_never_there() {
    let service = start(&[]);
    let line = format!("{} top --address localhost:{}", tollgate::BINARY, service.http_port);
    let mut terminal = Terminal::start(&line, &[("ADMIN_TOKEN", TOKEN)]);
    terminal.wait_for("no keys by hits");
    drop(service);
    terminal.wait_for("error: ");
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
    let terminal = Terminal::start(&line, &[("ADMIN_TOKEN", TOKEN)]);
    assert_eq!(terminal.end(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn bans_are_told_with_how_long_they_last_and_of_nobody_else() {
    let rules = "
domain: shop
descriptors:
- {key: login, rate_limit: {unit: day, requests_per_unit: 2, penalty: {after: 3, within: 1m, ban: 1h}, name: logins}}
";
    let token = format!("ADMIN_TOKEN={TOKEN}");
    let service = Tollgate::start(rules, &["ADMIN_API=true", &token]);
    let address = format!("localhost:{}", service.http_port);
    let bans = |more: &[&str]| {
        let mut command = tollgate::command();
        let Output { status, stdout, stderr } =
            command.args(["bans", "--address", &address]).args(more).env("ADMIN_TOKEN", TOKEN).output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    };
    let mut client = service.client().await;
    client.should_rate_limit(request("shop", &[&[("login", "ann")]])).await.unwrap();
    assert_eq!(bans(&[]), "no key was denied in the last minutes\n");
    for _ in 0..2 {
        client.should_rate_limit(request("shop", &[&[("login", "ann")]])).await.unwrap();
    }
    assert_eq!(bans(&[]), "none of the 100 most denied keys is banned (rules: 1)\n");
    for _ in 0..6 {
        client.should_rate_limit(request("shop", &[&[("login", "eve")]])).await.unwrap();
    }
    let told = bans(&["--domain", "shop", "--rule", "logins"]);
    assert!(told.contains("eve") && !told.contains("ann") && told.lines().count() == 2, "{told}");
    assert!(told.starts_with("BANNED FOR  KEY\n   "), "{told}");
    let banned: Value = serde_json::from_str(&bans(&["--json"])).unwrap();
    assert!(banned[0]["banned_ms"].as_u64() > Some(3_500_000), "{banned}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bans_are_unknown_while_redis_is_down() {
    let rules = "
domain: shop
descriptors:
- {key: login, rate_limit: {unit: day, requests_per_unit: 2, penalty: {after: 3, within: 1m, ban: 1h}, name: logins}}
";
    let redis = Redis::start();
    let (token, url) = (format!("ADMIN_TOKEN={TOKEN}"), format!("REDIS_URL={}", redis.url()));
    let service = Tollgate::start(rules, &["ADMIN_API=true", &token, &url]);
    let mut client = service.client().await;
    for _ in 0..6 {
        client.should_rate_limit(request("shop", &[&[("login", "eve")]])).await.unwrap();
    }
    let bans = || {
        let mut command = tollgate::command();
        command.args(["bans", "--address", &format!("localhost:{}", service.http_port)]).env("ADMIN_TOKEN", TOKEN);
        command.output().unwrap()
    };
    assert!(String::from_utf8(bans().stdout).unwrap().contains("login=eve"));
    redis.freeze();
    let output = bans();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.starts_with("error: unknown: the store "), "{said}");
    assert!(output.stdout.is_empty());
    redis.thaw();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_matches_nothing_says_what_was_meant() {
    let service = start(&[]);
    ask(&service).await;
    for (words, missed) in [
        (&["--rule", "per-usr"][..], "rule \"per-usr\": did you mean \"per-user\"?\n"),
        (&["--domain", "shpo"], "domain \"shpo\": did you mean \"shop\"?\n"),
    ] {
        let output = command(&service, words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*said), (Some(3), missed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_filter_says_what_was_meant_before_any_hit_and_a_hidden_name_is_not_told() {
    let service = start(&["TOP_KEYS_VALUES=hidden", "ADMIN_READ_TOKEN=a token to read with"]);
    let address = format!("localhost:{}", service.http_port);
    let told = |words: &[&str], token: &str| {
        let mut command = tollgate::command();
        let output = command.args(words).args(["--address", &address]).env("ADMIN_TOKEN", token).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for name in ["top", "bans"] {
        let rule = told(&[name, "--rule", "per-usr"], TOKEN);
        assert_eq!(rule, (Some(3), "rule \"per-usr\": did you mean \"per-user\"?\n".to_owned()), "{name}");
        let domain = told(&[name, "--domain", "shpo"], TOKEN);
        assert_eq!(domain, (Some(3), "domain \"shpo\": did you mean \"shop\"?\n".to_owned()), "{name}");
        let reader = told(&[name, "--rule", "per-usr"], "a token to read with");
        assert!(!reader.1.contains("per-user"), "{name}: {reader:?}");
    }
    assert_eq!(told(&["bans", "--rule", "per-user"], TOKEN), (Some(0), String::new()));
}
