//! Reading counters from replicas of Redis: nothing is charged, and no master is needed.

use crate::support;

use std::collections::BTreeMap;
use std::time::Duration;

use deadpool_redis::redis::cmd;
use support::redis::Redis;
use support::tollgate::{Tollgate, command};
use support::wait_until_async;
use tokio::time::Instant;
use tollgate::engine::algorithm::{Algorithm, Ask, Limit, MAX_PERIOD, Options, Penalty};
use tollgate::engine::check::{Check, CheckVerdict, Key, Origin, Penalized};
use tollgate::engine::descriptor::Entry;
use tollgate::store::Store;
use tollgate::store::redis::RedisStore;
use tollgate::store::redis::replicas::{RedisReplicas, Staleness};
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
";

fn config(address: &str) -> RedisConfig {
    RedisConfig {
        address: address.parse().unwrap(),
        connections: 1,
        timeout: Duration::from_secs(30),
        queue: 1_000,
        key_prefix: String::new(),
        per_second: None,
        on_call: OnCall::default(),
    }
}

/// Returns a counter of every algorithm for each number of hits, with and without a penalty.
fn checks(period: Duration, hits: std::ops::Range<u64>) -> Vec<Check> {
    let penalty = Penalty::new(2, period, period, false).unwrap();
    let mut checks = Vec::new();
    for algorithm in Algorithm::ALL {
        let options = Options { settle_within: Some(period), ..Options::default() }.of(*algorithm);
        let limit = Limit::new(*algorithm, 5, period, options).unwrap();
        for hits in hits.clone() {
            for is_penalized in [false, true] {
                let entries = [("hits", hits.to_string()), ("penalized", is_penalized.to_string())];
                let entries = entries.map(|(key, value)| Entry { key: key.into(), value: value.into() });
                let key = |origin| Key::new("", "shop", &entries, |_| None, &limit, origin);
                let penalized = Penalized { key: key(Origin::Rule).of_penalty(&penalty), penalty };
                let penalty = is_penalized.then_some(penalized);
                checks.push(Check { penalty, ..Check::new(key(Origin::Rule), limit, Ask::take(hits).unwrap()) });
            }
        }
    }
    checks
}

/// Checks each separately, with its own hits or as a peek.
async fn ask(store: &RedisStore, checks: &[Check], peek: bool) -> Vec<CheckVerdict> {
    let mut verdicts = Vec::new();
    for check in checks {
        let check = Check { ask: if peek { Ask::Peek } else { check.ask }, ..check.clone() };
        verdicts.push(store.check(&[check], Instant::now() + support::SOON).await.unwrap()[0].unwrap());
    }
    verdicts
}

/// All that is in a Redis, but for the counter by which Tollgate tries it, which expires within a second.
async fn dump(redis: &Redis) -> Vec<(String, Vec<u8>)> {
    let mut connection = redis.connection().await;
    let mut keys: Vec<String> = redis.command("KEYS *").await;
    keys.retain(|key| !key.starts_with("{}"));
    keys.sort();
    let mut dump = Vec::new();
    for key in keys {
        let kind: String = cmd("TYPE").arg(&key).query_async(&mut connection).await.unwrap();
        // The fields of a hash are in another order in each Redis.
        let value = if kind == "hash" {
            let fields: BTreeMap<Vec<u8>, Vec<u8>> =
                cmd("HGETALL").arg(&key).query_async(&mut connection).await.unwrap();
            fields.into_iter().flat_map(|(field, value)| [field, value]).flatten().collect()
        } else {
            cmd("DUMP").arg(&key).query_async(&mut connection).await.unwrap()
        };
        dump.push((key, value));
    }
    dump
}

async fn in_step(master: &Redis, replica: &Redis) {
    wait_until_async("the replica has heard of all", async || dump(master).await == dump(replica).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_says_what_its_master_says_and_nothing_changes_whatever_is_asked() {
    let master = Redis::start();
    let replica = master.start_replica(&[]).await;
    let store = RedisStore::start(config(&master.url()), Box::new(|_| {})).await.unwrap();
    let replicas = RedisReplicas::new(config(&master.url())).unwrap();
    let checks = checks(MAX_PERIOD, 1..8);
    // Again for each: used-up limits deny and cause bans.
    for _ in 0..3 {
        ask(&store, &checks, false).await;
    }
    in_step(&master, &replica).await;
    let held = dump(&master).await;

    let before = ask(&store, &checks, true).await;
    let calls = master.script_calls();
    let read = replicas.peek(&checks).await.unwrap();
    assert_eq!(master.script_calls(), calls, "the master is not asked for counters");
    let after = ask(&store, &checks, true).await;
    assert!(before.iter().any(|verdict| verdict.banned_ms().is_some()));
    assert_eq!(read.len(), checks.len());
    for ((check, reading), (before, after)) in checks.iter().zip(read).zip(before.into_iter().zip(after)) {
        let key = &check.key;
        // Time alone changes them, and in one way.
        let [before, own, after] = [before, reading.verdict, after].map(|verdict| {
            let together = verdict.together();
            let over = together.excess.map_or(0, |over| over as i64);
            let bans = verdict.ban.map(|ban| ban.in_force);
            (together.remaining as i64 - over, together.reset_after_ms, bans)
        });
        assert!((before.0..=after.0).contains(&own.0), "{key}: {before:?} {own:?} {after:?}");
        assert!((after.1..=before.1).contains(&own.1), "{key}: {before:?} {own:?} {after:?}");
        assert_eq!((before.2, after.2), (own.2, own.2), "{key}");
        assert_eq!(reading.replica.server, replica.tcp_address());
        assert!(matches!(reading.replica.staleness, Staleness::Linked { .. }));
    }
    assert_eq!(dump(&master).await, held);
    assert_eq!(dump(&replica).await, held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_expires_is_fresh_at_a_replica_whose_master_cannot_say_so() {
    let master = Redis::start();
    let replica = master.start_replica(&[]).await;
    let store = RedisStore::start(config(&master.url()), Box::new(|_| {})).await.unwrap();
    let checks = checks(Duration::from_secs(2), 1..4);
    ask(&store, &checks, false).await;
    in_step(&master, &replica).await;
    master.freeze();
    let replicas = RedisReplicas::new(config(&replica.url())).unwrap();
    wait_until_async("all of them are fresh", async || {
        let read = replicas.peek(&checks).await.unwrap();
        read.iter().zip(&checks).all(|(reading, check)| reading.verdict.together().remaining == check.limit.capacity())
    })
    .await;
    master.thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_does_not_answer_is_passed_over() {
    let master = Redis::start();
    let both = [master.start_replica(&[]).await, master.start_replica(&[]).await];
    let config = RedisConfig { timeout: Duration::from_secs(2), ..config(&master.url()) };
    let replicas = RedisReplicas::new(config).unwrap();
    let checks = checks(MAX_PERIOD, 1..2);
    for (frozen, other) in [(&both[0], &both[1]), (&both[1], &both[0])] {
        frozen.freeze();
        let read = replicas.peek(&checks).await.unwrap();
        frozen.thaw();
        assert!(read.iter().all(|reading| reading.replica.server == other.tcp_address()), "{read:?}");
    }
    both.iter().for_each(Redis::freeze);
    let error = replicas.peek(&checks).await.unwrap_err().to_string();
    both.iter().for_each(Redis::thaw);
    for replica in &both {
        assert!(error.contains(&format!("{}: cannot connect: no answer within 2s", replica.tcp_address())), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_seconds_are_read_where_they_live() {
    let (main, seconds) = (Redis::start(), Redis::start());
    let (of_main, of_seconds) = (main.start_replica(&[]).await, seconds.start_replica(&[]).await);
    let config = RedisConfig { per_second: Some(Box::new(config(&seconds.url()))), ..config(&main.url()) };
    let checks = [checks(Duration::from_secs(1), 1..2), checks(MAX_PERIOD, 1..2)].concat();
    let read = RedisReplicas::new(config).unwrap().peek(&checks).await.unwrap();
    for (check, reading) in checks.iter().zip(read) {
        let is_of_seconds = check.limit.period_ms() == 1_000 && !check.limit.algorithm().has_holders();
        let replica = if is_of_seconds { &of_seconds } else { &of_main };
        assert_eq!(reading.replica.server, replica.tcp_address(), "{}", check.key);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_asks_a_replica_and_says_how_far_behind_it_may_be() {
    let mut master = Redis::start();
    let service = Tollgate::start(RULES, &[&format!("REDIS_URL={}", master.url())]);
    let rules = service.rules.path().to_str().unwrap();
    let counter = |word: &str, redis: &Redis| {
        let words = ["counter", word, "--replica", "--domain", "shop", "user=ann"];
        let settings = [("REDIS_URL", redis.url()), ("RULES", rules.to_owned()), ("REDIS_TIMEOUT", "20s".to_owned())];
        let output = command().args(words).envs(settings).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    assert!(service.passes("shop", &[("user", "ann")]).await);
    let (code, _, said) = counter("get", &master);
    assert_eq!(code, Some(1));
    assert!(said.contains("has no replica that is up: start one, or ask the master"), "{said}");

    let replica = master.start_replica(&[]).await;
    let strict = master.start_replica(&["--replica-serve-stale-data", "no"]).await;
    let (code, out, said) = counter("get", &master);
    assert_eq!(code, Some(0), "{said}");
    assert!(out.contains(": 4 of 5 left, resets in "), "{out}");
    assert!(
        [&replica, &strict].iter().any(|replica| {
            out.contains(&format!("\n  at the replica {}, which heard from its master ", replica.tcp_address()))
        }),
        "{out}"
    );
    let (code, out, said) = counter("reset", &master);
    assert_eq!((code, &*out), (Some(1), ""));
    assert!(said.contains("a replica accepts no writes"), "{said}");

    master.kill();
    let lost = async |replica: &Redis| {
        wait_until_async("the replica has lost its master", async || {
            replica.command::<String>("INFO replication").await.contains("master_link_status:down")
        })
        .await;
    };
    lost(&replica).await;
    let (code, out, said) = counter("get", &replica);
    assert_eq!(code, Some(0), "{said}");
    assert!(out.contains(": 4 of 5 left, ") && out.contains(", which lost its master "), "{out}");
    lost(&strict).await;
    let (code, _, said) = counter("get", &strict);
    assert_eq!(code, Some(1));
    assert!(said.contains("it is a replica that has lost its primary and rejects commands"), "{said}");
    let (host, port) = master.host_and_port();
    let empty = Redis::start_with(&["--replicaof", &host, &port]);
    let (code, _, said) = counter("get", &empty);
    assert_eq!(code, Some(1));
    assert!(said.contains("it has no copy of its master yet"), "{said}");
}
