//! Two versions of Tollgate on one Redis, as while a Deployment rolls: with one layout of counters they hold a limit
//! together, with two each holds it for itself. Neither hurts the other, whatever becomes of the scripts.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::slice::from_ref;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::cmd;
use fastrand::Rng;
use support::redis::Redis;
use tokio::time::Instant;
use tollgate::engine::algorithm::{
    Algorithm, Ask, Caller, LeaseAsk, Limit, MAX_PERIOD, Options, Penalty, Starts, State,
};
use tollgate::engine::check::group;
use tollgate::engine::check::{Check, Key, Leased, Origin, Penalized};
use tollgate::store::Store as _;
use tollgate::store::redis::RedisStore;
use tollgate::store::redis::script::{self, Group, Reply, Scripts};
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};

const NUMBER: u32 = 40;

/// Number of requests to each version, more than both may admit.
const REQUESTS: usize = 100;

/// A new version with the same layout, whose scripts have other hashes.
const SAME_LAYOUT: &str = "-- Another version.\n";

const NEXT_LAYOUT: &str = include_str!("support/next_layout.lua");

/// Returns a limit that allows NUMBER hits at once.
fn limit(algorithm: Algorithm) -> Limit {
    let burst = algorithm.options().contains(&"burst").then_some(NUMBER);
    Limit::new(algorithm, NUMBER.into(), MAX_PERIOD, Options { burst, ..Options::default() }).unwrap()
}

fn check(algorithm: Algorithm) -> Check {
    let limit = limit(algorithm);
    Check::new(Key::new("", "shop", &[], |_| None, &limit, Origin::Rule), limit, Ask::Take(1))
}

/// Returns the `n`th request; with slots, it takes its own.
fn request(check: &Check, n: usize) -> Check {
    Check { caller: Caller { holder: n as u64, ..check.caller }, ..check.clone() }
}

/// The version that is tested.
struct Present(RedisStore);

impl Present {
    async fn start(redis: &Redis) -> Present {
        let config = RedisConfig {
            address: redis.url().parse().unwrap(),
            connections: 2,
            timeout: Duration::from_secs(30),
            queue: 1_000,
            key_prefix: String::new(),
            per_second: None,
            on_call: OnCall::default(),
        };
        Present(RedisStore::start(config, Box::new(|_| {})).await.unwrap())
    }

    async fn passes(&self, check: &Check) -> bool {
        let verdicts = self.0.check(from_ref(check), Instant::now() + Duration::from_secs(30)).await;
        verdicts.unwrap()[0].unwrap().own.allowed
    }
}

/// Another version.
struct Other {
    scripts: Scripts,
    connection: MultiplexedConnection,
}

impl Other {
    async fn start(redis: &Redis, text: &str) -> Other {
        Other { scripts: Scripts::behind(text), connection: redis.connection().await }
    }

    async fn passes(&mut self, check: &Check) -> bool {
        let group = Group::new(from_ref(check));
        let call = script::call_of(&self.scripts, [&group]);
        let reply: Vec<u8> = match call.query_async(&mut self.connection).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                for load in self.scripts.load(false) {
                    load.exec_async(&mut self.connection).await.unwrap();
                }
                call.query_async(&mut self.connection).await.unwrap()
            }
            reply => reply.unwrap(),
        };
        let verdicts = Reply::new(&reply, group.counters()).unwrap().next(&group).unwrap();
        verdicts[0].unwrap().own.allowed
    }
}

/// Asks both at random, while the scripts are lost at random: how many requests the present version lets pass, and the
/// other.
async fn passed_at_random(redis: &Redis, other: &str, check: &Check) -> (u32, u32) {
    let present = Present::start(redis).await;
    let mut other = Other::start(redis, other).await;
    let mut rng = Rng::with_seed(7);
    let mut turns = [vec![true; REQUESTS], vec![false; REQUESTS]].concat();
    rng.shuffle(&mut turns);
    let (mut by_present, mut by_other) = (0, 0);
    for (n, is_of_present) in turns.into_iter().enumerate() {
        if rng.u8(..20) == 0 {
            redis.command::<()>("SCRIPT FLUSH").await;
        }
        let request = request(check, n);
        if is_of_present {
            by_present += u32::from(present.passes(&request).await);
        } else {
            by_other += u32::from(other.passes(&request).await);
        }
    }
    (by_present, by_other)
}

/// The names of counters, but for that of the service's own checks.
async fn keys(redis: &Redis) -> BTreeSet<String> {
    redis.command::<Vec<String>>("KEYS {shop*").await.into_iter().collect()
}

#[tokio::test]
async fn versions_of_one_layout_hold_a_limit_together() {
    for algorithm in Algorithm::ALL {
        let (redis, check) = (Redis::start(), check(*algorithm));
        let (by_present, by_other) = passed_at_random(&redis, SAME_LAYOUT, &check).await;
        assert_eq!(by_present + by_other, NUMBER, "{algorithm}");
        assert!(by_present > 0 && by_other > 0, "{algorithm}: both are asked from the first request on");
        assert_eq!(keys(&redis).await, BTreeSet::from([check.key.as_str().to_owned()]), "{algorithm}");
    }
}

#[tokio::test]
async fn versions_of_two_layouts_hold_a_limit_each_for_itself() {
    for algorithm in Algorithm::ALL {
        let (redis, check) = (Redis::start(), check(*algorithm));
        assert_eq!(passed_at_random(&redis, NEXT_LAYOUT, &check).await, (NUMBER, NUMBER), "{algorithm}");
        let own = check.key.as_str().to_owned();
        let next = own.replace("1:", "2:");
        assert_eq!(keys(&redis).await, BTreeSet::from([own, next]), "{algorithm}");
    }
}

#[tokio::test]
async fn a_version_leaves_the_counters_of_another_layout_as_they_are() {
    for algorithm in Algorithm::ALL {
        let (redis, check) = (Redis::start(), check(*algorithm));
        let present = Present::start(&redis).await;
        let mut next = Other::start(&redis, NEXT_LAYOUT).await;
        let mut connection = redis.connection().await;
        assert!(present.passes(&request(&check, 0)).await);
        let dump = cmd("DUMP").arg(check.key.as_str()).to_owned();
        let before: Vec<u8> = dump.query_async(&mut connection).await.unwrap();
        for n in 1..=NUMBER as usize + 1 {
            assert_eq!(next.passes(&request(&check, n)).await, n <= NUMBER as usize, "{algorithm}");
        }
        let after: Vec<u8> = dump.query_async(&mut connection).await.unwrap();
        assert_eq!(before, after, "{algorithm}");
    }
}

/// Returns the contents of counters after fixed requests: the bytes in Redis by name. The Lua writes the same
/// (`twins`).
fn layouts() -> BTreeMap<String, String> {
    let minute = Duration::from_secs(60);
    let penalty = Penalty::new(2, minute, minute, false).unwrap();
    let mut layouts = BTreeMap::<String, String>::new();
    let first_request = Options { starts: Some(Starts::FirstRequest), ..Options::default() };
    let all = Algorithm::ALL.iter().map(|algorithm| (*algorithm, Options::default(), false));
    let others = [(Algorithm::FixedWindow, first_request, false), (Algorithm::SlidingWindow, Options::default(), true)];
    for (algorithm, options, is_leased) in all.chain(others) {
        let limit = Limit::new(algorithm, if is_leased { 30 } else { 3 }, minute, options).unwrap();
        let name = if is_leased { "leased" } else { "shop" };
        let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
        let penalized = Penalized { key: key.of_penalty(&penalty), penalty };
        let leased =
            Leased { key: key.of_leases(), ask: LeaseAsk { returned: None, want: 4, ttl_ms: 60_000, most: 9 } };
        let check = Check {
            penalty: Some(penalized.clone()).filter(|_| !algorithm.has_holders() && !is_leased),
            leased: Some(leased.clone()).filter(|_| is_leased),
            ..Check::new(key.clone(), limit, Ask::Take(1))
        };
        let beside = if is_leased { leased.key } else { penalized.key };
        let mut counters: [Option<State>; 2] = [None, None];
        for (n, after_ms) in [0, 7_000, 14_500, 14_500, 21_250].into_iter().enumerate() {
            let check = request(&check, n);
            let (_, effects) = group::decide(&[check], 1_784_000_000_123 + after_ms, |i| counters[i].as_ref());
            for (i, effect) in effects {
                counters[i] = effect.apply(counters[i].take());
            }
        }
        for (key, state) in [key, beside].iter().zip(&counters) {
            let Some(state) = state else { continue };
            let bytes = state.pack().iter().map(|byte| format!("{byte:02x}")).collect();
            layouts.insert(key.as_str().to_owned(), bytes);
        }
    }
    layouts
}

#[test]
fn another_layout_has_another_version_in_its_name() {
    let recorded = std::fs::read_to_string("tests/it/upgrades/layouts.txt").unwrap();
    let recorded: BTreeMap<&str, &str> = recorded.lines().filter_map(|line| line.split_once(' ')).collect();
    let layouts = layouts();
    for (name, recorded) in &recorded {
        let bytes = layouts.get(*name).unwrap_or_else(|| panic!("{name} has gone: take it out of the record"));
        let remedy = "give it another version, lest a counter of before be misread";
        assert_eq!(bytes, recorded, "{name} has another layout: {remedy}");
    }
    let is_new = |(name, _): &(&String, &String)| !recorded.contains_key(name.as_str());
    let new: Vec<String> = layouts.iter().filter(is_new).map(|(name, bytes)| format!("{name} {bytes}")).collect();
    assert!(new.is_empty(), "write into tests/it/upgrades/layouts.txt:\n{}", new.join("\n"));
}
