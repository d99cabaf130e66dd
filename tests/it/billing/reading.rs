//! Reading usage, from pages written by the test, and its ledger.

use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::tollgate::engine::algorithm::{Algorithm, Limit, Options};
use ::tollgate::engine::check::{Key, Origin};
use ::tollgate::engine::descriptor::Entry;
use ::tollgate::engine::usage::page::{Owner, Page, PageName, Part, Scope};
use ::tollgate::engine::usage::{Period, Time, Totals};
use ::tollgate::ledger::statement::{Counter, Row};
use ::tollgate::ledger::{Closing, KeyError, Ledger, Length, PublicKey, SigningKey, Wrong};
use ::tollgate::shared::usage::{UsageReadError, UsageStore};
use ::tollgate::store::memory::MemoryPages;
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Value as Reply, cmd, pipe};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::cluster::Cluster;
use support::redis::Redis;
use support::tollgate::{self, Tollgate};
use support::wait_until_async;

const RULES: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 5, name: per-user, usage: {by: hour, keep: 400d}}}
- {key: path, value: /pay, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: fixed_window, name: pay}}
";

const TOKEN: &str = "a token of some length";
const READER: &str = "another token, to read";

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

fn start(settings: &[&str]) -> Tollgate {
    let (token, reader) = (format!("ADMIN_TOKEN={TOKEN}"), format!("ADMIN_READ_TOKEN={READER}"));
    let all = ["ADMIN_API=true", &token, &reader, "REDIS_TIMEOUT=20s"];
    Tollgate::start(RULES, &[&all, settings].concat())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// The beginning of the day so many days ago; the same for as long as the tests run.
fn days_ago(days: u64) -> u64 {
    static TODAY: OnceLock<u64> = OnceLock::new();
    TODAY.get_or_init(|| now_ms() / DAY * DAY) - days * DAY
}

/// Returns a record as packed by the script: `struct.pack('<i6I6i7', …)`.
fn record(admitted: u64, denied: u64, cost: i64) -> Vec<u8> {
    [&admitted.to_le_bytes()[..6], &denied.to_le_bytes()[..6], &cost.to_le_bytes()[..7]].concat()
}

/// The name of the page of a counter that has this time on it.
fn page(counter: &str, period: Period, at_ms: u64) -> String {
    format!("{counter}|u1:{}:{}", period.ms(), period.index(at_ms) / period.per_page())
}

/// The name of the counter of `(user=NAME)` by the first of the rules.
fn of_user(name: &str) -> String {
    counter("shop", &[("user", name)])
}

fn counter(domain: &str, entries: &[(&str, &str)]) -> String {
    let limit = Limit::new(Algorithm::SlidingWindow, 5, Duration::from_secs(60), Options::default()).unwrap();
    key("", domain, entries, None, &limit)
}

fn key(prefix: &str, domain: &str, entries: &[(&str, &str)], shared: Option<usize>, limit: &Limit) -> String {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let entries: Vec<Entry> = entries.iter().map(entry).collect();
    let pattern = |level| (shared == Some(level)).then_some("a*");
    Key::new(prefix, domain, &entries, pattern, limit, Origin::Rule).as_str().to_owned()
}

/// Writes a record of a counter.
async fn write(redis: &mut MultiplexedConnection, counter: &str, period: Period, at_ms: u64, bytes: &[u8]) {
    let mut set = cmd("HSET");
    set.arg(page(counter, period, at_ms)).arg(period.index(at_ms)).arg(bytes);
    set.query_async::<()>(redis).await.unwrap();
}

/// All answers of `/usage`, one after the other.
fn read(service: &Tollgate, query: &str) -> Vec<Value> {
    let (mut answers, mut cursor): (Vec<Value>, _) = (Vec::new(), String::new());
    loop {
        let (status, answer) = service.admin("GET", &format!("/usage?{query}{cursor}"), READER);
        assert_eq!(status, 200, "{answer}");
        let next = answer["cursor"].as_str().map(str::to_owned);
        answers.push(answer);
        match next {
            None => return answers,
            Some(next) => cursor = format!("&cursor={next}"),
        }
    }
}

/// Returns the owners of the pages with their admitted hits. A page that occurs twice counts once.
fn told(answers: &[Value]) -> BTreeMap<String, u64> {
    let pages = answers.iter().flat_map(|answer| answer["pages"].as_array().unwrap());
    let page = |page: &Value| {
        let records = page["records"].as_array().unwrap().iter();
        let name = format!("{} {}", page["page"].as_str().unwrap(), page["rule"].as_str().unwrap_or("-"));
        (name, records.map(|record| record["admitted"].as_u64().unwrap()).sum())
    };
    pages.map(page).collect()
}

/// `tollgate usage` with these words.
fn usage(service: &Tollgate, words: &[&str]) -> Output {
    command(words, Some(service)).output().unwrap()
}

fn command(words: &[&str], service: Option<&Tollgate>) -> Command {
    let mut command = tollgate::command();
    command.arg("usage").args(words).env("ADMIN_TOKEN", READER);
    if let Some(service) = service {
        command.args(["--address", &format!("http://127.0.0.1:{}", service.http_port), "--timeout", "60s"]);
    }
    command
}

/// Returns the output of a successful command.
fn printed(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_told_with_whose_they_are_and_damaged_ones_are_counted() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut connection = redis.connection().await;
    let at = days_ago(3);
    write(&mut connection, &of_user("ann"), Period::Hour, at, &record(7, 2, 7)).await;
    write(&mut connection, &of_user("ann"), Period::Hour, at + HOUR, &record(1 << 40, 0, -3)).await;
    write(&mut connection, &of_user("b|b}"), Period::Day, at, &record(5, 0, 5)).await;
    write(&mut connection, &counter("mall", &[("user", "ann")]), Period::Minute, at, &record(3, 0, 3)).await;
    let ann = page(&of_user("ann"), Period::Hour, at);
    cmd("PEXPIREAT").arg(&ann).arg(at + 400 * DAY).query_async::<()>(&mut connection).await.unwrap();

    // A long tag is stored in a field of its page. If that field is missing or belongs to another page, the owner
    // appears only as a hash.
    let long = "x".repeat(500);
    let (hashed, tag) = (of_user(&long), format!("shop|user={long}"));
    write(&mut connection, &hashed, Period::Hour, at, &record(11, 0, 11)).await;
    let name = page(&hashed, Period::Hour, at);
    assert!(name.starts_with("{|"), "{name}");
    let nameless = read(&service, "");
    assert_eq!(nameless.iter().map(|answer| answer["damaged"].as_u64().unwrap()).sum::<u64>(), 0);
    let mut told_pages = nameless.iter().flat_map(|answer| answer["pages"].as_array().unwrap());
    let unknown = told_pages.find(|page| page["page"] == name).unwrap();
    let hash = blake3::hash(tag.as_bytes()).to_hex().to_string();
    let expected = json!([{"key": "hash", "value": hash}]);
    assert_eq!((&unknown["domain"], &unknown["descriptor"]), (&"".into(), &expected));
    assert_eq!(unknown["records"][0]["cost"], 11);
    let of_shop = read(&service, "domain=shop");
    assert_eq!(of_shop.iter().map(|answer| answer["damaged"].as_u64().unwrap()).sum::<u64>(), 1, "it may be its");
    cmd("HSET").arg(&name).arg("tag").arg(&tag).query_async::<()>(&mut connection).await.unwrap();

    let all = read(&service, "");
    let pages: BTreeMap<String, u64> = told(&all);
    assert_eq!(pages.values().sum::<u64>(), 7 + (1 << 40) + 5 + 3 + 11, "{pages:?}");
    assert_eq!(pages[&format!("{ann} per-user")], 7 + (1 << 40));
    let find = |name: &str| {
        let mut pages = all.iter().flat_map(|answer| answer["pages"].as_array().unwrap());
        pages.find(|page| page["page"] == name).unwrap().clone()
    };
    // Equal, apart from the time between two commands to Redis.
    let expires: Time = find(&ann)["expires"].as_str().unwrap().parse().unwrap();
    assert!(expires.0.abs_diff(at + 400 * DAY) < 60_000, "{expires}");
    assert_eq!(
        find(&ann),
        json!({
            "page": ann, "domain": "shop", "descriptor": [{"key": "user", "value": "ann"}], "limit": "sw1:60000/10",
            "rule": "per-user", "period": "hour", "expires": expires.to_string(), "records": [
                {"start": Time(at).to_string(), "admitted": 7, "denied": 2, "cost": 7},
                {"start": Time(at + HOUR).to_string(), "admitted": 1_u64 << 40, "denied": 0, "cost": -3},
            ],
        })
    );
    assert_eq!(find(&name)["descriptor"][0]["value"], long);

    // Filters select only the requested pages.
    let sum = |query: &str| told(&read(&service, query)).values().sum::<u64>();
    assert_eq!(sum("domain=shop"), 7 + (1 << 40) + 5 + 11);
    assert_eq!(sum("domain=mall"), 3);
    assert_eq!(sum("domain=sho"), 0);
    assert_eq!(sum("rule=per-user&key=user%3Db%7Cb%7D"), 5);
    assert_eq!(sum("rule=pay"), 0);
    assert_eq!(sum(&format!("domain=shop&from={at}&to={}", Time(at + HOUR))), 7 + 5 + 11);
    assert_eq!(sum(&format!("key=user%3Dann&from={}", at + 1)), 1 << 40);

    // A record of another length, a record without a period, a record far from its page, and a key that is not a page.
    write(&mut connection, &of_user("ann"), Period::Hour, at + 2 * HOUR, b"short").await;
    for field in ["x", "7"] {
        cmd("HSET").arg(&ann).arg(field).arg(record(9, 9, 9)).query_async::<()>(&mut connection).await.unwrap();
    }
    let other = page(&of_user("eve"), Period::Hour, at);
    cmd("SET").arg(&other).arg("text").query_async::<()>(&mut connection).await.unwrap();
    let all = read(&service, "domain=shop");
    assert_eq!(all.iter().map(|answer| answer["damaged"].as_u64().unwrap()).sum::<u64>(), 4);
    assert_eq!(told(&all).values().sum::<u64>(), 7 + (1 << 40) + 5 + 11);
    let output = usage(&service, &["--domain", "shop"]);
    assert!(text(&output.stderr).contains("warning: 4 records in the store are damaged"), "{output:?}");
    assert!(printed(output).contains("(user=ann)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_for_those_who_have_a_token_and_know_what_they_ask() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    for (method, token, status) in
        [("GET", TOKEN, 200), ("GET", READER, 200), ("GET", "a guess", 401), ("DELETE", TOKEN, 405)]
    {
        assert_eq!(service.admin(method, "/usage", token).0, status, "{method} {token}");
    }
    for (query, words) in [
        ("from=yesterday", "2026-11-01T12:00:00Z"),
        ("from=2026-11-02&to=2026-11-01", "to must be later"),
        ("user=ann", "the parameters are domain, rule, key, exact, from, to and cursor"),
        ("key=user", "key=user%3Dann"),
        ("cursor=7", "start without one"),
    ] {
        let (status, said) = service.admin("GET", &format!("/usage?{query}"), TOKEN);
        assert!(status == 400 && said["error"].as_str().unwrap().contains(words), "{query}: {status} {said}");
    }
    for (words, expected) in [
        (&["--from", "today"][..], "2026-11-01T12:00:00Z"),
        (&["--from", "2026-11-02", "--to", "2026-11-02"], "--to must be later than --from"),
        (&["--key", "user"], "user=ann"),
        (&["--admin-token", "a guess"], "does not accept this ADMIN_TOKEN"),
    ] {
        let output = usage(&service, words);
        assert!(output.status.code() == Some(1) && text(&output.stderr).contains(expected), "{output:?}");
    }
    assert_eq!(printed(usage(&service, &[])), "no usage recorded\n");
    for (words, meant) in [
        (["--domain", "shpo"], "domain \"shpo\": did you mean \"shop\"?\n"),
        (["--rule", "per-usr"], "rule \"per-usr\": did you mean \"per-user\"?\n"),
        (["--rule", "x"], "rule \"x\": the rules have \"pay\", \"per-user\"\n"),
    ] {
        let output = usage(&service, &words);
        assert_eq!((output.status.code(), &*text(&output.stderr)), (Some(3), meant), "before the first record");
    }
    assert_eq!(printed(usage(&service, &["--domain", "shop", "--rule", "pay"])), "no usage recorded\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_used_in_memory_is_read_as_what_is_used_in_redis() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5, usage: {by: hour, keep: 400d}}
";
    let token = format!("ADMIN_READ_TOKEN={READER}");
    let memory = Tollgate::start(rules, &["ADMIN_API=true", &token]);
    memory.must_log("usage is kept in memory and lost when this process ends");
    let mut client = memory.client().await;
    for user in 0..1_200 {
        client.should_rate_limit(tollgate::request("shop", &[&[("user", &format!("user{user}"))]])).await.unwrap();
    }
    // More pages than one answer has.
    let rows = printed(usage(&memory, &["--open", "--json"]));
    assert_eq!(rows.matches("\"admitted\":1").count(), 1_200, "{}", &rows[..400]);
    assert_eq!(printed(usage(&memory, &[])), "no usage recorded\n", "the hour is not over");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_prints_rows_in_order_and_the_same_twice() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut connection = redis.connection().await;
    let year = 1_735_689_600_000; // 2025-01-01
    for (user, at, admitted) in [
        ("bob", year, 1),
        ("ann", year, 2),
        ("ann", year + HOUR, 4),
        ("ann", year + 31 * DAY, 8),
        ("=1+1", year + DAY, 16),
        ("a)(x=1", year + DAY, 32),
    ] {
        write(&mut connection, &of_user(user), Period::Hour, at, &record(admitted, 1, admitted as i64)).await;
    }
    let pay = key(
        "",
        "=shop",
        &[("path", "/pay")],
        None,
        &Limit::new(Algorithm::FixedWindow, 5, Duration::from_secs(60), Options::default()).unwrap(),
    );
    write(&mut connection, &pay, Period::Day, year, &record(64, 0, -64)).await;
    let table = printed(usage(&service, &["--to", "2025-01-02"]));
    let expected = "\
FROM                  FOR   DOMAIN  DESCRIPTOR    LIMIT      ADMITTED  DENIED  COST
2025-01-01T00:00:00Z  day   =shop   (path=/pay)   fw1:60000        64       0   -64
2025-01-01T00:00:00Z  hour  shop    (user=ann)    per-user          2       1     2
2025-01-01T00:00:00Z  hour  shop    (user=bob)    per-user          1       1     1
2025-01-01T01:00:00Z  hour  shop    (user=ann)    per-user          4       1     4
";
    let same = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(same(&table), same(expected), "{table}");
    let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
    assert_eq!(printed(usage(&service, &["--to", "2025-01-02"])), table);

    let csv = printed(usage(&service, &["--csv", "--by", "month", "--from", "2025-01-01", "--to", "2025-03-01"]));
    let expected = r#""from","for","domain","descriptor","limit","rule","admitted","denied","cost","topped_up","open"
"2025-01-01T00:00:00Z","month","'=shop","(path=/pay)","fw1:60000","",64,0,-64,0,"no"
"2025-01-01T00:00:00Z","month","shop","(user==1+1)","sw1:60000/10","per-user",16,1,16,0,"no"
"2025-01-01T00:00:00Z","month","shop","(user=a\)\(x=1)","sw1:60000/10","per-user",32,1,32,0,"no"
"2025-01-01T00:00:00Z","month","shop","(user=ann)","sw1:60000/10","per-user",6,2,6,0,"no"
"2025-01-01T00:00:00Z","month","shop","(user=bob)","sw1:60000/10","per-user",1,1,1,0,"no"
"2025-02-01T00:00:00Z","month","shop","(user=ann)","sw1:60000/10","per-user",8,1,8,0,"no"
"#;
    assert_eq!(csv, expected);
    let words = ["--json", "--by", "total", "--key", "user=ann", "--rule", "per-user", "--domain", "shop"];
    let total: Value = serde_json::from_str(&printed(usage(&service, &words))).unwrap();
    assert_eq!((&total["rows"][0]["admitted"], total["rows"].as_array().unwrap().len()), (&json!(14), 1));
    assert_eq!((&total["rows"][0]["for"], &total["rows"][0]["open"]), (&json!("total"), &json!(false)));

    // Periods that have not ended are not billed.
    write(&mut connection, &of_user("cat"), Period::Day, now_ms(), &record(1, 0, 1)).await;
    let output = usage(&service, &["--key", "user=cat"]);
    assert!(text(&output.stderr).contains("1 records of periods that are not over are omitted: --open shows them"));
    assert_eq!(printed(output), "no usage recorded\n");
    assert!(printed(usage(&service, &["--key", "user=cat", "--open"])).contains("day, open"));
}

/// Pages of so many users, of a hundred in one call.
async fn write_many(connection: &mut MultiplexedConnection, users: std::ops::Range<u32>, at_ms: u64) {
    let users: Vec<u32> = users.collect();
    for users in users.chunks(1_000) {
        let mut all = pipe();
        for user in users {
            let name = page(&of_user(&format!("u{user}")), Period::Hour, at_ms);
            all.cmd("HSET").arg(name);
            for hour in 0..24 {
                all.arg(Period::Hour.index(at_ms) / 24 * 24 + hour).arg(record(1, 0, 1));
            }
            all.ignore();
        }
        all.query_async::<()>(connection).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_master_of_a_cluster_is_read_and_moved_slots_are_seen() {
    let cluster = Cluster::start(3, 0).await;
    let service = start(&[&cluster.setting()]);
    let at = days_ago(3);
    let mut connections = Vec::new();
    for node in &cluster.nodes {
        connections.push(node.connection().await);
    }
    let mut sums = 0;
    for user in 0..1_500_u64 {
        let name = of_user(&format!("u{user}"));
        let slot: u16 = cluster.nodes[0].command(&format!("CLUSTER KEYSLOT {name}")).await;
        let owner = (0..3).find(|node| cluster.slots(*node).contains(&slot)).unwrap();
        write(&mut connections[usize::from(owner)], &name, Period::Hour, at, &record(user, 0, 0)).await;
        sums += user;
    }
    assert!(cluster.sizes().await.iter().all(|size| *size > 400));
    let answers = read(&service, "domain=shop");
    let pages = told(&answers);
    assert_eq!((pages.len(), pages.values().sum::<u64>()), (1_500, sums));
    let csv = printed(usage(&service, &["--domain", "shop", "--csv", "--rule", "per-user"]));
    assert_eq!(csv.lines().count(), 1_501);

    // One counter is read where its slot is.
    for user in [3, 700, 1_499] {
        let one = told(&read(&service, &format!("domain=shop&key=user%3Du{user}&exact=true")));
        assert_eq!(one.into_values().collect::<Vec<_>>(), [user], "u{user}");
    }

    // The cursor points at the second master when a slot moves, so it is unknown which pages were read.
    let cursors: Vec<&str> = answers.iter().filter_map(|answer| answer["cursor"].as_str()).collect();
    let second = cursors.iter().find(|cursor| cursor.starts_with("0.1.")).unwrap();
    let go_on = || service.admin("GET", &format!("/usage?cursor={second}"), READER);
    assert_eq!(go_on().0, 200);
    cluster.move_slot(0, 0, 1, async || {}).await;
    wait_until_async("the cursor is refused", async || go_on().0 == 409).await;
    assert_eq!(told(&read(&service, "")).values().sum::<u64>(), sums);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_means_nothing_to_another_server() {
    let mut redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let at = days_ago(2);
    write_many(&mut redis.connection().await, 0..2_000, at).await;
    let (_, first) = service.admin("GET", "/usage", READER);
    let cursor = first["cursor"].as_str().unwrap();
    let go_on = || service.admin("GET", &format!("/usage?cursor={cursor}"), READER);
    assert_eq!(go_on().0, 200);
    redis.restart();
    write_many(&mut redis.connection().await, 0..2_000, at).await;
    let (status, said) = go_on();
    assert!(status == 409 && said["error"].as_str().unwrap().contains("start again"), "{said}");
    assert_eq!(told(&read(&service, "")).len(), 2_000);
    redis.kill();
    let (status, said) = service.admin("GET", "/usage", READER);
    assert!(status == 503 && said["error"].as_str().unwrap().contains("unavailable"), "{status} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_redises_are_read_and_pages_of_one_name_in_both_add_up() {
    let (main, second) = (Redis::start(), Redis::start());
    let urls = [format!("REDIS_URL={}", main.url()), format!("REDIS_PERSECOND_URL={}", second.url())];
    let service = start(&[&urls[0], &urls[1], "REDIS_PERSECOND=true", "CACHE_KEY_PREFIX=a*b:"]);
    let at = days_ago(2);
    for (redis, prefix, admitted) in [(&main, "a*b:", 1), (&second, "a*b:", 2), (&main, "axb:", 4)] {
        let name = format!("{prefix}{}", of_user("ann"));
        write(&mut redis.connection().await, &name, Period::Hour, at, &record(admitted, 0, 1)).await;
    }
    let stores: Vec<Value> = read(&service, "").iter().map(|answer| answer["store"].clone()).collect();
    assert_eq!(stores, ["main", "per_second"]);
    let csv = printed(usage(&service, &["--csv"]));
    assert!(csv.lines().count() == 2 && csv.contains(r#""per-user",3,0,2,"#), "{csv}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_redis_with_the_rights_that_are_named_reads_and_without_is_told_them() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    write(&mut redis.connection().await, &of_user("ann"), Period::Hour, days_ago(2), &record(1, 0, 1)).await;
    redis.command::<()>("ACL SETUSER default -scan").await;
    let (status, said) = service.admin("GET", "/usage", READER);
    let said = said["error"].as_str().unwrap();
    assert!(status == 503 && said.contains("+scan "), "{status} {said}");
    let grant = said.split("needs: ").nth(1).unwrap();
    redis.command::<()>("ACL SETUSER default -@all +acl|setuser +ping +hello +client").await;
    redis.command::<()>(grant).await;
    assert_eq!(told(&read(&service, "")).len(), 1);
}

const WITH_USAGE: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5, name: per-user, usage: {by: hour, keep: 400d}}
    descriptors:
      - {key: path, rate_limit: {unit: day, requests_per_unit: 9, usage: {by: day, keep: 400d}}}
  - key: path
    value: \"/a*\"
    share_threshold: true
    rate_limit: {unit: second, requests_per_unit: 5, usage: {by: minute, keep: 2d}}
  - {key: team, rate_limit: {unit: minute, requests_per_unit: 5}}
";

/// Returns the pages of an answer, sorted, without the time until they expire, which goes on.
fn pages_of(answers: &[Value]) -> Vec<Value> {
    let mut pages: Vec<Value> = answers.iter().flat_map(|answer| answer["pages"].as_array().unwrap().clone()).collect();
    pages.iter_mut().for_each(|page| page["expires"] = Value::Null);
    pages.sort_by_key(|page| page["page"].to_string());
    pages
}

/// Uses limits of users, and asks for each of some descriptors what the scan finds of it.
async fn what_is_read_by_name_is_what_a_scan_finds(service: &Tollgate) {
    let mut client = service.client().await;
    let long = "x".repeat(300);
    for user in ["ann", "b|b}", &long] {
        for path in ["/a1", "/a2"] {
            let all: [&[(&str, &str)]; 3] = [&[("user", user)], &[("user", user), ("path", path)], &[("path", path)]];
            client.should_rate_limit(tollgate::request("shop", &all)).await.unwrap();
        }
    }
    for (entries, counters) in [
        (vec![("user", "ann")], 1),
        (vec![("user", "b|b}")], 1),
        (vec![("user", &*long)], 1),
        (vec![("user", "ann"), ("path", "/a2")], 1),
        (vec![("path", "/a3")], 1),
        (vec![("user", "nobody")], 0),
    ] {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("domain", "shop").append_pair("exact", "true");
        query.extend_pairs(entries.iter().map(|(key, value)| ("key", format!("{key}={value}"))));
        let exact = pages_of(&read(service, &query.finish()));
        // All users of a pattern share its counter.
        let value = |page: &Value, at: usize| page["descriptor"][at]["value"].as_str().unwrap_or_default().to_owned();
        let is_its = |page: &Value| {
            page["descriptor"].as_array().unwrap().len() == entries.len()
                && entries.iter().enumerate().all(|(at, (key, wanted))| {
                    let value = value(page, at);
                    page["descriptor"][at]["key"] == *key && (value == *wanted || value == "/a*")
                })
        };
        let scanned: Vec<Value> = pages_of(&read(service, "domain=shop")).into_iter().filter(is_its).collect();
        assert_eq!(exact, scanned, "{entries:?}");
        assert_eq!(exact.len().min(1), counters, "{entries:?}: {exact:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_usage_of_one_key_is_read_by_the_names_of_its_pages() {
    let redis = Redis::start();
    let second = Redis::start();
    let urls = [format!("REDIS_URL={}", redis.url()), format!("REDIS_PERSECOND_URL={}", second.url())];
    let reader = format!("ADMIN_READ_TOKEN={READER}");
    let memory = Tollgate::start(WITH_USAGE, &["ADMIN_API=true", &reader]);
    what_is_read_by_name_is_what_a_scan_finds(&memory).await;
    let settings = ["ADMIN_API=true", &reader, &urls[0], &urls[1], "REDIS_PERSECOND=true", "CACHE_KEY_PREFIX=a*b:"];
    let service = Tollgate::start(WITH_USAGE, &settings);
    what_is_read_by_name_is_what_a_scan_finds(&service).await;

    // Without a scan, in parts, and with what was recorded long ago.
    let at = days_ago(390);
    let name = format!("a*b:{}", of_user("ann"));
    write(&mut redis.connection().await, &name, Period::Hour, at, &record(7, 0, 7)).await;
    redis.forget_calls();
    let rows =
        printed(usage(&service, &["--domain", "shop", "--key", "user=ann", "--exact", "--by", "total", "--json"]));
    assert!(rows.contains("\"admitted\":7"), "{rows}");
    assert_eq!(redis.calls_of("scan"), 0);
    let (asked, from) = (redis.calls_of("hgetall"), Time(days_ago(2)));
    assert!((400..=405).contains(&asked), "a page for each day: {asked}");
    redis.forget_calls();
    assert_eq!(
        read(&service, &format!("domain=shop&key=user%3Dann&exact=true&from={from}")).len(),
        2,
        "of two Redises"
    );
    assert!(redis.calls_of("hgetall") <= 6, "{}", redis.calls_of("hgetall"));

    for (query, said) in [
        ("exact=true&domain=shop", "each entry of the descriptor"),
        ("exact=true&key=user%3Dann", "exact needs a domain"),
        ("exact=maybe&domain=shop&key=user%3Dann", "exact"),
        ("exact=true&domain=shop&key=user%3Dann&cursor=0.1.2", "unknown cursor"),
    ] {
        let (status, answer) = service.admin("GET", &format!("/usage?{query}"), READER);
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(said), "{query}: {answer}");
    }
    let output = usage(&service, &["--domain", "shop", "--key", "team=red", "--exact"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("no limit with usage applies to this descriptor"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn months_are_those_of_a_time_zone() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut connection = redis.connection().await;
    let at = |text: &str| text.parse::<Time>().unwrap().0;
    // The last hour of September in Berlin, and the first one of October.
    for (start, admitted) in [("2026-09-30T21:00:00Z", 1), ("2026-09-30T22:00:00Z", 2)] {
        write(&mut connection, &of_user("ann"), Period::Hour, at(start), &record(admitted, 0, 0)).await;
    }
    let months = |words: &[&str]| {
        let all = [&["--by", "month", "--csv", "--key", "user=ann"], words].concat();
        let csv = printed(usage(&service, &all));
        let cells = |row: &str| {
            let cells: Vec<&str> = row.split(',').collect();
            format!("{} {} {}", cells[0], cells[1], cells[6]).replace('"', "")
        };
        csv.lines().skip(1).map(cells).collect::<Vec<_>>()
    };
    assert_eq!(months(&[]), ["2026-09-01T00:00:00Z month 3"]);
    let berlin = ["--time-zone", "europe/berlin"];
    assert_eq!(months(&berlin), ["2026-09-01T00:00:00+02:00 month 1", "2026-10-01T00:00:00+02:00 month 2"]);
    // A date is one of the time zone, too.
    let october = [&berlin[..], &["--from", "2026-10-01"]].concat();
    assert_eq!(months(&october), ["2026-10-01T00:00:00+02:00 month 2"]);
    let json = printed(usage(&service, &[&october[..], &["--by", "day", "--json"]].concat()));
    assert!(json.contains("\"from\":\"2026-10-01T00:00:00+02:00\""), "{json}");
    for (words, said) in [
        (["--time-zone", "Europe/Berlyn"], "such as Europe/Berlin"),
        (["--time-zone", "Asia/Kolkata"], "records by the hour cannot be summed by days of Asia/Kolkata"),
    ] {
        let output = usage(&service, &[&["--by", "month"], &words[..]].concat());
        assert!(!output.status.success() && text(&output.stderr).contains(said), "{output:?}");
    }
}

/// The rules change between two parts of an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_among_the_pages_of_other_counters_is_refused() {
    let reader = format!("ADMIN_READ_TOKEN={READER}");
    let by_minute = WITH_USAGE.replace("{by: hour, keep: 400d}", "{by: minute, keep: 400d}");
    let service = Tollgate::start(&by_minute, &["ADMIN_API=true", &reader]);
    let query = "/usage?domain=shop&key=user%3Dann&exact=true";
    let (_, first) = service.admin("GET", query, READER);
    let go_on = format!("{query}&cursor={}", first["cursor"].as_str().unwrap());
    assert_eq!(service.admin("GET", &go_on, READER).0, 200);
    service.change_rules(WITH_USAGE);
    wait_until_async("the cursor is refused", async || service.admin("GET", &go_on, READER).0 == 409).await;
}

/// `VmRSS` of the service, in bytes.
fn memory(service: &Tollgate) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

#[tokio::test(flavor = "multi_thread")]
async fn what_reading_takes_in_the_service_does_not_grow_with_what_is_read() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let at = days_ago(2);
    write_many(&mut redis.connection().await, 0..5_000, at).await;
    read(&service, "");
    let before = memory(&service);
    write_many(&mut redis.connection().await, 5_000..100_000, at).await;
    let started = std::time::Instant::now();
    let (mut names, mut most, mut cursor) = (std::collections::HashSet::new(), 0, String::new());
    loop {
        let (_, answer) = service.admin("GET", &format!("/usage?domain=shop{cursor}"), READER);
        let pages = answer["pages"].as_array().unwrap();
        most = most.max(pages.len());
        names.extend(pages.iter().map(|page| page["page"].as_str().unwrap().to_owned()));
        match answer["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    println!("100,000 pages of 24 records: {:?}", started.elapsed());
    let grown = memory(&service).saturating_sub(before);
    println!("{most} pages in an answer at the most; {} KiB more", grown / 1_024);
    assert_eq!(names.len(), 100_000);
    assert!(most < 1_500, "{most}");
    assert!(grown < 48 << 20, "{grown}");
}

proptest! {
    /// Texts are drawn from the bytes that could confuse a name.
    #[test]
    fn a_page_is_told_as_the_counter_that_it_is_of(
        prefix in "[ab|:*]{0,3}", domain in "[a|=~%_u1:é]{1,3}",
        entries in prop::collection::vec(("[a|=~%u1:*\0é}{]{0,5}", "[a|=~%u1:*\0é}{]{0,90}"), 0..3),
        shared in prop::option::of(0..2_usize), period in prop::sample::select(&Period::ALL[..]),
        algorithm in prop::sample::select(Algorithm::ALL), number in 0..1_000_000_u64,
    ) {
        let limit = Limit::new(algorithm, 5, Duration::from_secs(60), Options::default()).unwrap();
        prop_assume!(!algorithm.has_holders());
        let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        let key = key(&prefix, &domain, &entries, shared, &limit);
        let name = format!("{key}|u1:{}:{number}", period.ms());
        let read = PageName::read(&name).unwrap();
        prop_assert_eq!((read.period, read.number), (period, number));
        prop_assert_eq!(format!("{prefix}{}", read.counter), key);
        let is_pattern = |level| shared == Some(level);
        let part = |(level, (key, value)): (usize, &(&str, &str))| Part {
            key: (*key).to_owned(),
            value: if is_pattern(level) { "a*".to_owned() } else { (*value).to_owned() },
            is_pattern: is_pattern(level),
        };
        let owner = Owner { domain, parts: entries.iter().enumerate().map(part).collect() };
        if read.is_hashed() {
            prop_assert_eq!(read.owner(None), None);
        } else {
            prop_assert_eq!(read.owner(None), Some(owner));
        }
    }
}

// The ledger.

/// A key that `openssl` has made, and the public one.
struct Keys {
    folder: tempfile::TempDir,
}

impl Keys {
    fn new() -> Keys {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys { folder };
        let (private, public) = (keys.path("key.pem"), keys.path("public.pem"));
        let openssl = |words: &[&str]| assert!(Command::new("openssl").args(words).status().unwrap().success());
        openssl(&["genpkey", "-algorithm", "ed25519", "-out", private.to_str().unwrap()]);
        openssl(&["pkey", "-in", private.to_str().unwrap(), "-pubout", "-out", public.to_str().unwrap()]);
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ledger(&self) -> PathBuf {
        self.path("ledger.jsonl")
    }

    fn close(&self, service: &Tollgate, words: &[&str]) -> Output {
        let (ledger, key) = (self.ledger(), self.path("key.pem"));
        let flags = ["close", "--ledger", ledger.to_str().unwrap(), "--key", key.to_str().unwrap()];
        usage(service, &[&flags, words].concat())
    }

    /// Returns whether the ledger is valid, and the output.
    fn check(&self, service: Option<&Tollgate>, words: &[&str]) -> (bool, String) {
        let (ledger, public) = (self.ledger(), self.path("public.pem"));
        let flags = ["check", "--ledger", ledger.to_str().unwrap(), "--public-key", public.to_str().unwrap()];
        let offline: &[&str] = if service.is_none() { &["--offline"] } else { &[] };
        let output = command(&[&flags, words, offline].concat(), service).output().unwrap();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.ledger()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_closes_what_is_over_once_and_says_what_differs_afterwards() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut connection = redis.connection().await;
    let (shop, mall) = (of_user("ann"), counter("mall", &[("user", "bob")]));
    for (counter, day, admitted) in [(&shop, 5, 10), (&shop, 3, 20), (&shop, 0, 40), (&mall, 4, 80)] {
        write(&mut connection, counter, Period::Hour, days_ago(day) + HOUR, &record(admitted, 1, 2)).await;
    }
    let keys = Keys::new();
    printed(keys.close(&service, &[]));
    let lines = keys.lines();
    let of = |domain: &str, day: u64| {
        let is_it = |line: &&Value| line["domain"] == domain && line["from"] == Time(days_ago(day)).to_string();
        lines.iter().find(is_it).cloned().unwrap_or_default()
    };
    assert_eq!((&of("shop", 5)["admitted"], &of("shop", 5)["records"]), (&json!(10), &json!(1)));
    assert_eq!((&of("shop", 4)["admitted"], &of("shop", 4)["records"]), (&json!(0), &json!(0)), "no day is left out");
    assert_eq!((&of("mall", 4)["admitted"], &of("mall", 5)), (&json!(80), &Value::Null));
    assert_eq!(of("shop", 0), Value::Null, "today is not over");
    assert_eq!(lines.last().unwrap()["kind"], "seal");
    let (is_good, said) = keys.check(Some(&service), &["--to", &Time(days_ago(1)).to_string()]);
    assert!(is_good && said.contains("signed and in order; mall from "), "{said}");

    // Closed is closed.
    assert!(printed(keys.close(&service, &[])).contains("nothing more to close"));
    let (is_good, said) = keys.check(None, &["--to", "2100-01-01"]);
    assert!(!is_good && said.contains("no line closes shop from "), "{said}");

    // Any later change in the store is detected.
    let day = |day: u64| Time(days_ago(day)).to_string();
    write(&mut connection, &shop, Period::Hour, days_ago(5) + HOUR, &record(9, 1, 2)).await;
    let (is_good, said) = keys.check(Some(&service), &[]);
    let expected = format!("the store differs on shop from {} on: admitted is 9, was 10\n", day(5));
    assert!(!is_good && said.contains(&expected), "{said}");
    write(&mut connection, &shop, Period::Hour, days_ago(5) + HOUR, &record(10, 1, 2)).await;
    assert!(keys.check(Some(&service), &[]).0);
    let moved = [page(&shop, Period::Hour, days_ago(5)), page(&of_user("eve"), Period::Hour, days_ago(5))];
    redis.command::<()>(&format!("RENAME {} {}", moved[0], moved[1])).await;
    let (is_good, said) = keys.check(Some(&service), &[]);
    assert!(!is_good && said.contains("the sums agree, but the records behind them have changed"), "{said}");
    redis.command::<()>(&format!("DEL {}", moved[1])).await;
    let (_, said) = keys.check(Some(&service), &[]);
    assert!(said.contains("1 of 1 records are missing; admitted is 0, was 10; denied is 0, was 1"), "{said}");
    write(&mut connection, &shop, Period::Hour, days_ago(5) + HOUR, &record(10, 1, 2)).await;
    write(&mut connection, &shop, Period::Hour, days_ago(9), &record(1, 0, 1)).await;
    write(&mut connection, &counter("new", &[]), Period::Hour, days_ago(9), &record(1, 0, 1)).await;
    let (_, said) = keys.check(Some(&service), &[]);
    for domain in ["new", "shop"] {
        let expected = format!("1 records of {domain} from {} on that no line closes", day(9));
        assert!(said.contains(&expected), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_were_to_be_forgotten_are_no_fraud() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut connection = redis.connection().await;
    let at = days_ago(3);
    write(&mut connection, &of_user("ann"), Period::Hour, at, &record(10, 1, 2)).await;
    let name = page(&of_user("ann"), Period::Hour, at);
    let expires: u64 = now_ms() + 5_000;
    cmd("PEXPIREAT").arg(&name).arg(expires).query_async::<()>(&mut connection).await.unwrap();
    let keys = Keys::new();
    printed(keys.close(&service, &[]));
    let kept: Time = keys.lines()[0]["kept_until"].as_str().unwrap().parse().unwrap();
    assert!(kept.0 <= expires + 1 && kept.0 + 60_000 > expires, "{kept}");
    wait_until_async("it is forgotten", async || redis.command::<u64>(&format!("EXISTS {name}")).await == 0).await;
    wait_until_async("its time is over", async || keys.check(Some(&service), &[]).0).await;
    let (_, said) = keys.check(Some(&service), &[]);
    assert!(said.contains("1 lines were not compared: their records in the store have expired"), "{said}");
    // More than there was is wrong at any time.
    for user in ["ann", "eve"] {
        write(&mut connection, &of_user(user), Period::Hour, at, &record(10, 1, 2)).await;
    }
    let (is_good, said) = keys.check(Some(&service), &[]);
    assert!(!is_good && said.contains("1 more records than 1"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_survives_interruptions_and_has_one_writer() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    write(&mut redis.connection().await, &of_user("ann"), Period::Hour, days_ago(3), &record(10, 1, 2)).await;
    let keys = Keys::new();
    printed(keys.close(&service, &["--domain", "shop"]));
    let whole = fs::read(keys.ledger()).unwrap();
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    // An interrupted write: `check` reports the incomplete line, and the next run completes the ledger to the same
    // bytes.
    for end in [0, 1, ends[0] - 1, ends[0], ends[0] + 7, ends[1], whole.len() - 1] {
        fs::write(keys.ledger(), &whole[..end]).unwrap();
        let (is_good, said) = keys.check(None, &[]);
        let is_half = end > 0 && !ends.contains(&end);
        assert!(!is_good && said.contains("an incomplete line") == is_half, "{end}: {said}");
        let output = keys.close(&service, &["--domain", "shop"]);
        assert_eq!(text(&output.stderr).contains("removing an incomplete line"), is_half, "{output:?}");
        printed(output);
        let (is_good, said) = keys.check(Some(&service), &[]);
        assert!(is_good, "{end}: {said}");
    }

    let held = fs::File::open(keys.ledger()).unwrap();
    held.lock().unwrap();
    let output = keys.close(&service, &[]);
    assert!(!output.status.success() && text(&output.stderr).contains("another `tollgate usage close`"), "{output:?}");
    drop(held);

    // Behind damage nothing is written; another length, or another service that is down, changes nothing.
    let good = fs::read(keys.ledger()).unwrap();
    for (damage, words, expected) in [
        ("x", &[][..], "is damaged"),
        ("", &["--by", "hour"], "closes days"),
        ("", &["--address", "localhost:1"], "localhost:1"),
    ] {
        let bytes = [&good[..], damage.as_bytes(), if damage.is_empty() { b"" } else { b"\n" }].concat();
        fs::write(keys.ledger(), &bytes).unwrap();
        let (ledger, key) = (keys.ledger(), keys.path("key.pem"));
        let flags = ["close", "--ledger", ledger.to_str().unwrap(), "--key", key.to_str().unwrap()];
        let service = (!words.contains(&"--address")).then_some(&service);
        let output = command(&[&flags, words].concat(), service).output().unwrap();
        assert!(!output.status.success() && text(&output.stderr).contains(expected), "{output:?}");
        assert_eq!(fs::read(keys.ledger()).unwrap(), bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_is_closed_by_hours_and_no_day_by_an_hour() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut connection = redis.connection().await;
    for minute in 0..3 {
        write(&mut connection, &of_user("ann"), Period::Minute, days_ago(2) + minute * 60_000, &record(1, 0, 1)).await;
    }
    let keys = Keys::new();
    printed(keys.close(&service, &["--by", "hour"]));
    let lines = keys.lines();
    assert!(lines.len() > 24, "{}", lines.len());
    assert_eq!((&lines[0]["records"], &lines[0]["admitted"], &lines[1]["records"]), (&json!(3), &json!(3), &json!(0)));
    let (is_good, said) = keys.check(Some(&service), &[]);
    assert!(is_good, "{said}");
    write(&mut connection, &of_user("ann"), Period::Day, now_ms(), &record(1, 0, 1)).await;
    let output = keys.close(&service, &[]);
    assert!(!output.status.success() && text(&output.stderr).contains("use --by day"), "{output:?}");
}

#[test]
fn keys_that_are_none_are_told_with_what_would_be_right() {
    let keys = Keys::new();
    let private = fs::read(keys.path("key.pem")).unwrap();
    let public = fs::read(keys.path("public.pem")).unwrap();
    let signing = SigningKey::read(&private).unwrap();
    assert_eq!(signing.public(), PublicKey::read(&public).unwrap());
    let said = |error: Result<PublicKey, _>| error.map_err(|error: KeyError| error.to_string());
    assert!(said(PublicKey::read(&private)).unwrap_err().contains("openssl pkey -pubout"));
    let rsa = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    assert!(said(PublicKey::read(rsa.public_key_pem().as_bytes())).unwrap_err().contains("not a public Ed25519 key"));
    let other = |pem: &[u8]| SigningKey::read(pem).map(drop).unwrap_err().to_string();
    assert!(other(rsa.serialize_pem().as_bytes()).contains("openssl genpkey -algorithm ed25519"));
    assert!(other(b"-----BEGIN ENCRYPTED PRIVATE KEY-----").contains("is encrypted"));
    // Keys in PKCS#8 version 2 include the public key.
    let new = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let signing = SigningKey::read(new.serialize_pem().as_bytes()).unwrap();
    assert_eq!(signing.public(), PublicKey::read(new.public_key_pem().as_bytes()).unwrap());
}

/// Returns a ledger of two domains, written in three runs, and its public key.
fn ledger() -> (Vec<String>, [PublicKey; 1]) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let key = SigningKey::read(key.serialize_pem().as_bytes()).unwrap();
    let row = |domain: &str, day: u64| {
        let owner = Owner { domain: domain.to_owned(), parts: Vec::new() };
        let name = format!("{{{domain}}}|fw1:60000");
        let counter = Arc::new(Counter { name, owner, limit: "fw1:60000".to_owned(), rule: None });
        let totals = Totals { admitted: day.cast_signed(), denied: 1, cost: -1, topped_up: 0 };
        Row { start: Time(day * DAY + HOUR), span: "hour", counter, totals, is_open: false, expires: None }
    };
    let rows: Vec<Row> = (10..20).flat_map(|day| [row("shop", day), row("mall", day + 1)]).collect();
    let mut text = String::new();
    for days in [12, 15, 16] {
        let (domain, by, until) = (None, Length::Day, Time(days * DAY));
        let closing = Closing { rows: &rows, domain, by, until, at: until };
        let lines = Ledger::read(text.as_bytes()).close(&closing, &key).unwrap();
        text.push_str(&lines);
    }
    (text.lines().map(str::to_owned).collect(), [key.public()])
}

fn problems(lines: &[String], keys: &[PublicKey]) -> Vec<Wrong> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    Ledger::read(text.as_bytes()).problems(keys, None).into_iter().map(|problem| problem.what).collect()
}

#[test]
fn what_was_done_to_a_ledger_is_named() {
    let (lines, keys) = ledger();
    let say = |change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = lines.clone();
        change(&mut changed);
        problems(&changed, &keys)
    };
    assert_eq!(say(&|_| {}), []);
    assert_eq!(say(&|lines| lines.clear()), [Wrong::Empty]);
    assert_eq!(say(&|lines| drop(lines.remove(1))), [Wrong::TakenOut(2, 2)]);
    assert_eq!(say(&|lines| drop(lines.drain(1..4))), [Wrong::TakenOut(2, 4)]);
    assert_eq!(say(&|lines| drop(lines.pop())), [Wrong::NoSeal]);
    assert_eq!(say(&|lines| lines.swap(1, 2)), [Wrong::TakenOut(2, 2), Wrong::OutOfPlace(2)]);
    assert_eq!(say(&|lines| lines.insert(3, lines[1].clone())), [Wrong::OutOfPlace(2)]);
    assert_eq!(say(&|lines| lines[1] = lines[1].replace("\"denied\":1", "\"denied\":0")), [Wrong::Changed]);
    assert_eq!(say(&|lines| lines[1] = "{}".to_owned()), [Wrong::NoLine]);
    let (others, _) = ledger();
    assert!(matches!(say(&|lines| lines[1] = others[1].clone())[..], [Wrong::OtherKey(_)]));
    assert!(problems(&others, &keys).iter().all(|wrong| matches!(wrong, Wrong::OtherKey(_))));
}

proptest! {
    /// For any damage of one line.
    #[test]
    fn no_line_is_changed_taken_out_moved_or_doubled_unseen(
        kind in 0..5_u8, one in any::<prop::sample::Index>(), other in any::<prop::sample::Index>(), byte in 1..128_u8,
    ) {
        let (mut lines, keys) = ledger();
        let (at, to) = (one.index(lines.len()), other.index(lines.len()));
        match kind {
            0 => drop(lines.remove(at)),
            1 => {
                prop_assume!(at != to);
                lines.swap(at, to);
            }
            2 => lines.insert(to, lines[at].clone()),
            3 => {
                let place = other.index(lines[at].len());
                let mut bytes = lines[at].clone().into_bytes();
                prop_assume!(bytes[place] != byte);
                bytes[place] = byte;
                lines[at] = String::from_utf8(bytes).unwrap();
            }
            _ => {
                let place = other.index(lines[at].len());
                lines[at].remove(place);
            }
        }
        prop_assert_ne!(problems(&lines, &keys), Vec::new());
    }
}

#[test]
fn a_reply_of_redis_has_the_types_that_are_read() {
    // The records written by these tests equal those packed by a script.
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let packed: Reply = runtime.block_on(async {
        let mut eval = cmd("EVAL");
        eval.arg("return struct.pack('<i6I6i7', 1099511627776, 2, -3)").arg(0);
        eval.query_async(&mut redis.connection().await).await.unwrap()
    });
    let bytes = record(1 << 40, 2, -3);
    assert_eq!(packed, Reply::BulkString(bytes.clone()));
    assert_eq!(Totals::unpack(&bytes), Some(Totals { admitted: 1 << 40, denied: 2, cost: -3, topped_up: 0 }));
}

#[test]
fn the_digest_of_a_line_can_be_made_by_anybody() {
    let (lines, _) = ledger();
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    let records = format!("{{shop}}|fw1:60000 hour {} 10 1 -1\n", 10 * DAY + HOUR);
    assert_eq!(line["digest"], blake3::hash(records.as_bytes()).to_hex().to_string());
    let second: Value = serde_json::from_str(&lines[1]).unwrap();
    assert_eq!(second["previous"], blake3::hash(lines[0].as_bytes()).to_hex().to_string());
}

/// A store in memory with a page in each place.
struct Places(Vec<Page>);

impl MemoryPages for Places {
    fn pages(&self, _: &Scope<'_>, place: u64, _: usize) -> (Vec<Page>, Option<u64>) {
        let next = place + 1;
        (vec![self.0[place as usize].clone()], (next < self.0.len() as u64).then_some(next))
    }

    fn page(&self, _: &str) -> Option<Page> {
        None
    }

    fn now(&self) -> u64 {
        7
    }
}

#[tokio::test]
async fn pages_in_memory_are_read_one_part_after_the_other() {
    let page = |number: u64| Page {
        name: format!("{{shop}}|fw1:60000|u1:3600000:{number}"),
        full_tag: None,
        expires: None,
        records: vec![(number * 24, Totals::default())],
        damaged: 0,
    };
    let store = UsageStore::Memory(Arc::new(Places((0..3).map(page).collect())));
    let scope = Scope { domain: None, from: Time(0), to: Time::END };
    let (mut names, mut cursor) = (Vec::new(), None);
    loop {
        let batch = store.read(&scope, cursor.as_deref()).await.unwrap();
        assert_eq!((batch.store, batch.now), ("memory", Time(7)));
        names.extend(batch.pages.into_iter().map(|page| page.name));
        cursor = batch.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(names, [0, 1, 2].map(|number| page(number).name));
    assert!(matches!(store.read(&scope, Some("x")).await, Err(UsageReadError::Cursor)));
}

#[test]
fn the_job_of_kubernetes_closes_as_the_command_does() {
    let job = fs::read_to_string("deploy/ledger/cronjob.yaml").unwrap();
    let arguments: Vec<&str> = job
        .lines()
        .skip_while(|line| line.trim() != "args:")
        .skip(1)
        .map_while(|line| line.trim().strip_prefix("- "))
        .take_while(|word| !word.ends_with(':'))
        .collect();
    assert_eq!(arguments[..2], ["usage", "close"]);
    let output = tollgate::command().args(&arguments).arg("--help").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert!(job.contains(concat!("image: tollgate:", env!("CARGO_PKG_VERSION"), " ")));
}
