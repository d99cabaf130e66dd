//! Instances that share a store: each knows the others, and whether all have the same rules.

use crate::support;

use std::time::Duration;

use deadpool_redis::redis::cmd;
use serde_json::Value;
use support::cluster::Cluster;
use support::redis::Redis;
use support::tollgate::{Tollgate, command};
use support::{wait_until, wait_until_async};
use tollgate::shared::fleet::heartbeats::{Beat, Command, Heartbeat, MOST, Published, ReplicaState, Reply, TTL};
use tollgate::shared::fleet::redis::RedisHeartbeats;
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};
use tollgate::store::redis::topology::route::Route;

const TOKEN: &str = "a token of some length";
const READ_TOKEN: &str = "a token for reading";

const RULES: &str = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 5}}]";
const OTHERS: &str = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 6}}]";

fn start_with(rules: &str, settings: &[&str]) -> Tollgate {
    let (admin, reader) = (format!("ADMIN_TOKEN={TOKEN}"), format!("ADMIN_READ_TOKEN={READ_TOKEN}"));
    Tollgate::start(rules, &[&["ADMIN_API=true", "REDIS_TIMEOUT=20s", &admin, &reader], settings].concat())
}

fn start(url: &str, settings: &[&str]) -> Tollgate {
    start_with(RULES, &[&[&*format!("REDIS_URL={url}")], settings].concat())
}

fn report(service: &Tollgate) -> Value {
    let (status, told) = service.admin("GET", "/replicas", READ_TOKEN);
    assert_eq!(status, 200, "{told}");
    told
}

fn replicas(service: &Tollgate) -> Vec<Value> {
    report(service)["replicas"].as_array().unwrap().clone()
}

/// Runs `tollgate replicas` for this service.
fn asked(service: &Tollgate, words: &[&str]) -> (Option<i32>, String) {
    let address = format!("http://127.0.0.1:{}", service.http_port);
    let mut asking = command();
    asking.args(["replicas", "--address", &address, "--timeout", "30s"]).args(words).env("ADMIN_TOKEN", READ_TOKEN);
    let output = asking.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn replicas_see_each_other_and_who_has_other_rules() {
    let redis = Redis::start();
    let url = redis.url();
    let services = [(); 3].map(|()| start(&url, &["CACHE_KEY_PREFIX=p:"]));
    let stranger = start(&url, &["CACHE_KEY_PREFIX=q:"]);
    let [first, second, _] = &services;
    wait_until("each sees all", || services.iter().all(|service| replicas(service).len() == 3));
    // They are listed before they have rules.
    let are_ready = || replicas(first).iter().filter(|replica| replica["state"] == "ready").count() == 3;
    wait_until("all are ready", are_ready);
    let (code, text) = asked(first, &["--expect", "4", "--wait", "10ms"]);
    assert!(code == Some(1) && text.ends_with("3 of 4 are ready\n"), "{text}");
    let (code, text) = asked(first, &["--expect", "3", "--wait", "60s"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(replicas(&stranger).len(), 1, "another prefix is another service");
    let told = report(first);
    assert_eq!((&told["rules_differ_ms"], &told["unavailable"]), (&Value::Null, &Value::Null));
    let own: Vec<&Value> = told["replicas"].as_array().unwrap().iter().filter(|line| line["is_self"] == true).collect();
    assert_eq!(own.len(), 1, "{told}");
    let (line, version) = (own[0], own[0]["rules"].as_str().unwrap());
    assert_eq!((&line["state"], &line["version"]), (&"ready".into(), &env!("CARGO_PKG_VERSION").into()));
    let info = format!("tollgate_rules_info{{version=\"{version}\"}}");
    assert_eq!(first.metric(&info), 1.0, "it is that of the metric");
    assert_eq!(asked(first, &["--rules", version]).0, Some(0));
    assert_eq!(asked(first, &["--rules", "another"]).0, Some(1));

    second.change_rules(OTHERS);
    wait_until("the first hears of it", || report(first)["rules_differ_ms"].is_u64());
    let lines = replicas(first);
    let differing: Vec<&Value> = lines.iter().filter(|line| line["differs"] == true).collect();
    assert_eq!(differing.len(), 1, "{lines:?}");
    assert!(differing[0]["rules"] != version && differing[0]["is_self"] == false);
    let (code, text) = asked(first, &[]);
    let marked = text.lines().filter(|line| line.starts_with("! ")).count();
    assert!(
        code == Some(1) && marked == 1 && text.contains("the instances have had different rules for at least "),
        "{text}"
    );
    let count = |rules: &str| first.metric(&format!("tollgate_replicas{{rules=\"{rules}\"}}"));
    wait_until("it is counted", || ["same", "other", "unknown"].map(count) == [2.0, 1.0, 0.0]);

    // The wait for new rules ends when the last instance has them.
    let new = differing[0]["rules"].as_str().unwrap();
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| asked(first, &["--rules", new, "--wait", "60s", "--json"]));
        services.iter().for_each(|service| service.change_rules(OTHERS));
        let (code, text) = waiting.join().unwrap();
        assert_eq!(code, Some(0), "{text}");
        assert!(text.starts_with("{\"replicas\":["), "{text}");
    });
}

#[test]
fn a_replica_that_goes_is_draining_first_and_then_it_is_not_there() {
    let redis = Redis::start();
    let first = start(&redis.url(), &[]);
    let mut second = start(&redis.url(), &["DRAIN_DELAY=8s"]);
    wait_until("both are there", || replicas(&first).len() == 2);
    second.signal("TERM");
    wait_until("it drains", || replicas(&first).iter().any(|line| line["state"] == "draining"));
    assert!(second.wait().success());
    wait_until("it is gone", || replicas(&first).len() == 1);
    // Long before it would be for its silence: it took itself out.
    assert_eq!(replicas(&first)[0]["is_self"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_down_that_is_said_and_decisions_go_on() {
    let mut redis = Redis::start();
    let services = [(); 2].map(|()| start(&redis.url(), &["FAILURE_MODE=open"]));
    let [first, _] = &services;
    wait_until("both are there", || replicas(first).len() == 2);
    redis.kill();
    wait_until("it is said", || report(first)["unavailable"].is_string());
    assert!(replicas(first).iter().any(|line| line["is_self"] == true), "of itself each knows");
    assert!(first.passes("shop", &[("user", "ann")]).await);
    let (code, text) = asked(first, &[]);
    assert!(code == Some(1) && text.contains("cannot read the other instances from the store"), "{text}");
    redis.restart();
    wait_until("both are there again", || {
        report(first)["unavailable"].is_null() && services.iter().all(|service| replicas(service).len() == 2)
    });
}

#[test]
fn in_memory_there_is_nobody_else_and_only_administrators_are_told() {
    let service = start_with(RULES, &[]);
    wait_until("it is counted", || service.metric("tollgate_replicas{rules=\"same\"}") == 1.0);
    let told = report(&service);
    assert_eq!((told["replicas"].as_array().unwrap().len(), &told["unavailable"]), (1, &Value::Null));
    assert_eq!(asked(&service, &["--wait", "30s"]).0, Some(0));
    assert_eq!(service.admin("GET", "/replicas", "another token").0, 401);
    let without = Tollgate::start(RULES, &[]);
    assert_eq!(without.get("/replicas").0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_has_them_too() {
    let cluster = Cluster::start(3, 0).await;
    let setting = cluster.setting();
    let services = [(); 2].map(|()| start_with(RULES, &[&setting, "REDIS_TYPE=CLUSTER"]));
    wait_until("each sees all", || services.iter().all(|service| replicas(service).len() == 2));
}

// The heartbeat script, called as an instance does.

fn heartbeats(redis: &Redis) -> RedisHeartbeats {
    let config = RedisConfig {
        address: redis.url().parse().unwrap(),
        connections: 1,
        timeout: Duration::from_secs(30),
        queue: 1_000,
        key_prefix: String::new(),
        per_second: None,
        on_call: OnCall::default(),
    };
    RedisHeartbeats::new(&Route::start(config).unwrap())
}

fn published(rules: &str) -> Published {
    Published { rules: Some(rules.to_owned()), state: ReplicaState::Ready, ..Published::default() }
}

/// A heartbeat of an instance that has these rules, and knows this version of the list.
async fn beat_with(heartbeats: &RedisHeartbeats, id: &str, rules: &str, list: u64) -> Reply {
    heartbeats.ask(id, Command::Beat(Beat { published: &published(rules), list })).await.unwrap()
}

async fn again(heartbeats: &RedisHeartbeats, id: &str, list: u64) -> Reply {
    beat_with(heartbeats, id, "x", list).await
}

async fn beat(heartbeats: &RedisHeartbeats, id: &str) -> Reply {
    again(heartbeats, id, 0).await
}

fn listed(reply: &Reply) -> &[Heartbeat] {
    reply.replicas.as_deref().unwrap()
}

fn ids(reply: &Reply) -> Vec<&str> {
    let mut ids: Vec<&str> = listed(reply).iter().map(|one| &*one.id).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn who_is_silent_for_too_long_goes_and_a_clock_that_was_set_back_keeps_nobody() {
    let redis = Redis::start();
    let heartbeats = heartbeats(&redis);
    assert_eq!(ids(&beat(&heartbeats, "a").await), ["a"]);
    let (seconds, _): (u64, u64) = redis.command("TIME").await;
    let now = seconds * 1_000;
    for (id, heard) in [
        ("silent", now - TTL.as_millis() as u64),
        ("slow", now - TTL.as_millis() as u64 / 2),
        ("ahead", now + 86_400_000),
    ] {
        let mut set = cmd("HSET");
        set.arg("{|replicas}|heard").arg(id).arg(format!("{heard} {{}}"));
        set.exec_async(&mut redis.connection().await).await.unwrap();
    }
    redis.command::<()>("HSET {|replicas}|heard damaged nonsense").await;
    let reply = beat(&heartbeats, "b").await;
    assert_eq!(ids(&reply), ["a", "ahead", "b", "slow"]);
    let heard = |id: &str| listed(&reply).iter().find(|one| one.id == id).unwrap().heard_ms;
    assert!(heard("ahead") < 1_000 && heard("slow") >= TTL.as_millis() as u64 / 2);
    // From then on its age counts from that time.
    wait_until_async("it grows old", async || {
        let reply = beat(&heartbeats, "b").await;
        listed(&reply).iter().any(|one| one.id == "ahead" && one.heard_ms > 0)
    })
    .await;
    assert_eq!(redis.command::<u64>("HLEN {|replicas}|heard").await, 5, "what is not listed is not kept");
    let left: i64 = redis.command("PTTL {|replicas}|heard").await;
    assert!(left > 0 && left <= TTL.as_millis() as i64);
    heartbeats.ask("a", Command::Leave).await.unwrap();
    assert_eq!(ids(&beat(&heartbeats, "b").await), ["ahead", "b", "slow"]);
}

#[tokio::test]
async fn the_list_is_read_where_it_has_changed_and_not_at_each_heartbeat() {
    let redis = Redis::start();
    let heartbeats = heartbeats(&redis);
    let first = beat(&heartbeats, "a").await;
    let second = beat(&heartbeats, "b").await;
    assert!(second.list > first.list);
    let reply = again(&heartbeats, "a", first.list).await;
    assert_eq!((ids(&reply), reply.list), (vec!["a", "b"], second.list));
    redis.forget_calls();
    for (uptime_ms, id) in ["a", "b", "a", "b"].into_iter().enumerate() {
        let aged = Published { uptime_ms: uptime_ms as u64, ..published("x") };
        let reply = heartbeats.ask(id, Command::Beat(Beat { published: &aged, list: second.list })).await.unwrap();
        assert_eq!((reply.replicas, reply.list), (None, second.list));
    }
    assert_eq!(redis.calls_of("hgetall"), 0);
    // News is for the others.
    let reply = beat_with(&heartbeats, "b", "y", second.list).await;
    assert!(reply.replicas.is_none() && reply.list > second.list);
    assert_eq!(ids(&again(&heartbeats, "a", second.list).await), ["a", "b"]);
    let list = beat(&heartbeats, "c").await.list;
    heartbeats.ask("b", Command::Leave).await.unwrap();
    let reply = again(&heartbeats, "a", list).await;
    assert_eq!(ids(&reply), ["a", "c"]);
    redis.command::<()>("DEL {|replicas}|heard").await;
    let lost = again(&heartbeats, "a", reply.list).await;
    assert!(ids(&lost) == ["a"] && lost.list > reply.list, "{lost:?}");
}

#[tokio::test]
async fn others_read_a_state_that_changed_back_after_a_lost_reply_or_differs_after_a_failover() {
    let redis = Redis::start();
    let heartbeats = heartbeats(&redis);
    let rules_of = |reply: &Reply, id: &str| {
        let found = listed(reply).iter().find(|one| one.id == id).unwrap();
        found.published.clone().unwrap().rules.unwrap()
    };
    beat(&heartbeats, "a").await;
    let known = beat(&heartbeats, "b").await.list;
    // The reply is lost: so is the version.
    beat_with(&heartbeats, "b", "y", known).await;
    let read = again(&heartbeats, "a", known).await;
    assert_eq!(rules_of(&read, "b"), "y");
    again(&heartbeats, "b", known).await;
    assert_eq!(rules_of(&again(&heartbeats, "a", read.list).await, "b"), "x");

    // A replica of Redis that has not seen the last change is promoted.
    let before: Vec<String> = redis.command("HGETALL {|replicas}|heard").await;
    let known = again(&heartbeats, "b", 0).await.list;
    let changed = beat_with(&heartbeats, "b", "y", known).await;
    let mut restore = cmd("HSET");
    restore.arg("{|replicas}|heard").arg(&before);
    restore.exec_async(&mut redis.connection().await).await.unwrap();
    // The list differs from the one that others know by the same version, or a later one.
    let lost = again(&heartbeats, "a", changed.list).await;
    assert!(lost.list > changed.list, "{} is new to all", lost.list);
    assert_eq!(rules_of(&lost, "b"), "x");
    beat_with(&heartbeats, "b", "y", changed.list).await;
    assert_eq!(rules_of(&again(&heartbeats, "a", lost.list).await, "b"), "y");
}

#[tokio::test]
async fn while_an_instance_is_late_all_see_its_age() {
    let redis = Redis::start();
    let heartbeats = heartbeats(&redis);
    beat(&heartbeats, "a").await;
    let (seconds, _): (u64, u64) = redis.command("TIME").await;
    let mut set = cmd("HSET");
    let heard = (seconds - TTL.as_secs() * 2 / 3) * 1_000;
    set.arg("{|replicas}|heard").arg("late").arg(format!("{heard} {{}}"));
    set.exec_async(&mut redis.connection().await).await.unwrap();
    let mut list = beat(&heartbeats, "b").await.list;
    for id in ["a", "b", "a"] {
        let reply = again(&heartbeats, id, list).await;
        let late = listed(&reply).iter().find(|one| one.id == "late").unwrap();
        assert!(late.heard_ms >= TTL.as_millis() as u64 / 2, "{late:?}");
        list = reply.list;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_not_listed_says_so_once_and_sees_the_others() {
    let redis = Redis::start();
    let mut fill = cmd("HSET");
    fill.arg("{|replicas}|heard");
    // Heard in the future, as after a clock that was set back: so none of them is silent for too long now.
    for number in 0..MOST {
        fill.arg(format!("r{number}")).arg("9999999999999 {}");
    }
    fill.exec_async(&mut redis.connection().await).await.unwrap();
    let service = start(&redis.url(), &[]);
    assert_eq!(service.must_log("too many instances share this store")["replicas"], MOST);
    wait_until("it sees them", || replicas(&service).len() == MOST + 1);
}

#[tokio::test]
async fn no_more_are_listed_than_may_be_and_those_who_are_stay() {
    let redis = Redis::start();
    let heartbeats = heartbeats(&redis);
    for number in 0..MOST {
        assert!(!beat(&heartbeats, &format!("r{number}")).await.is_full);
    }
    let reply = beat(&heartbeats, "more").await;
    assert!(reply.is_full && listed(&reply).len() == MOST && !ids(&reply).contains(&"more"));
    let reply = beat(&heartbeats, "r7").await;
    assert!(!reply.is_full && listed(&reply).len() == MOST);
    heartbeats.ask("r7", Command::Leave).await.unwrap();
    assert!(ids(&beat(&heartbeats, "more").await).contains(&"more"));
}
