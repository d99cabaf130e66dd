//! The Rust and the Lua of every algorithm, and of a request's group, are the same function: verdicts, stored bytes and TTLs are
//! equal at every step, by a real Redis, down to the last bit.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod support;

use std::collections::HashMap;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{FromRedisValue, Script, Value, cmd, from_redis_value, pipe};
use proptest::prelude::*;
use support::limits::{Change, any_change, any_limit, any_penalty, memory_ms, patience_ms, small_limit};
use support::redis::Redis;
use tollgate::algorithm::{Algorithm, Limit, MAX_HITS, Outcome, State};
use tollgate::descriptor::{Hits, Role};
use tollgate::store::redis::script::{self, Group, Reply};
use tollgate::store::{Check, Key, Verdicts, group};

const START: u64 = 1_784_000_000_123;

/// One call: how far the clock moves, and for each request in it what is asked of which counter, by whom.
type Step = (Move, Vec<Vec<Asked>>);

/// A counter, how its limit may have been changed, who holds what is taken of it, how long they would wait, hits and role.
type Asked = (usize, Option<Change>, u64, u64, i64, Role);

#[derive(Clone, Copy, Debug)]
enum Move {
    /// By so many 64ths of what the first limit remembers.
    Forward(u64),
    Ms(u64),
    Back(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let moves = prop_oneof![
        3 => Just(Move::Ms(0)), 3 => (0..70_u64).prop_map(Move::Forward), 2 => (0..50_u64).prop_map(Move::Ms),
        1 => (0..200_u64).prop_map(Move::Back), 1 => (0..START / 2).prop_map(Move::Back),
    ];
    let hits = prop_oneof![
        6 => 1..4_i64, 2 => 4..40_i64, 1 => Just(0), 2 => -5..0_i64,
        1 => 0..=MAX_HITS as i64, 1 => -(MAX_HITS as i64)..=0, 1 => Just(Hits::RESET.get()), 1 => 0..=u32::MAX as i64,
    ];
    let role = prop_oneof![4 => Just(Role::Enforced), 1 => Just(Role::Quota), 1 => Just(Role::Shadow)];
    let holder = prop::sample::select(vec![0, 1, MAX_HITS]);
    let change = prop::option::weighted(0.1, any_change());
    let request = prop::collection::vec((0..3_usize, change, holder, patience_ms(), hits, role), 1..5);
    prop::collection::vec((moves, prop::collection::vec(request, 1..4)), 1..25)
}

/// A limit, and the penalty behind it.
type Penalized = (Limit, Option<Limit>);

/// The checks of a request. Each descriptor has up to two limits, which share its role and whether it gives back.
fn checks(limits: &[Penalized], asked: &[Asked]) -> Vec<Check> {
    let checks = |(i, (counter, change, holder, patience, hits, _)): (usize, &Asked)| {
        let (descriptor, (.., first, role)) = (i / 2, &asked[i - i % 2]);
        let (first, role) = (*first, *role);
        let (limit, penalty) = limits[counter % limits.len()];
        let limit =
            change.as_ref().and_then(|change| change.of(&limit)).unwrap_or(limit).held_by(*holder).within(*patience);
        let hits =
            if first < 0 { Hits::give_back(hits.unsigned_abs().max(1)) } else { Hits::take(hits.unsigned_abs()) };
        let key = Key::new("", &format!("c{}", counter % limits.len()), &[], |_| None, &limit);
        let hits = hits.unwrap();
        let penalty =
            penalty.map(|limit| Check { key: key.of_penalty(&limit), limit, hits, role, descriptor, lease: None });
        [Some(Check { key, limit, hits, role, descriptor, lease: None }), penalty]
    };
    asked.iter().enumerate().flat_map(checks).flatten().collect()
}

/// The script behind the clock of `support/clock.lua`.
struct Lua {
    connection: MultiplexedConnection,
    sha1: String,
}

impl Lua {
    async fn new(redis: &Redis) -> Lua {
        let text = format!("{}\n{}", include_str!("support/clock.lua"), *script::SOURCE);
        let mut connection = redis.connection().await;
        let sha1 = Script::new(&text).prepare_invoke().load_async(&mut connection).await.unwrap();
        Lua { connection, sha1 }
    }

    async fn forget(&mut self) {
        cmd("FLUSHDB").exec_async(&mut self.connection).await.unwrap();
    }

    /// The verdicts on all requests of a call, and for each check its counter's bytes and when it expires.
    async fn decide(&mut self, requests: &[Vec<Check>], now: u64) -> (Verdicts, Vec<(Option<Vec<u8>>, Option<u64>)>) {
        let checks = requests.iter().flatten();
        let mut pipe = pipe();
        pipe.cmd("SET").arg("clock").arg(now).ignore();
        let groups: Vec<Group> = requests.iter().map(|checks| Group::new(checks)).collect();
        pipe.add_command(script::call_by(&self.sha1, &groups));
        for check in checks.clone() {
            let key = check.key.as_str();
            match check.limit.algorithm() {
                Algorithm::SlidingLog => pipe.cmd("LRANGE").arg(key).arg(0).arg(-1),
                _ => pipe.cmd("GET").arg(key),
            };
            pipe.cmd("HGET").arg("expiry").arg(key);
        }
        let mut values: Vec<Value> = pipe.query_async(&mut self.connection).await.unwrap();
        let stored = values.split_off(1);
        let reply: Vec<u8> = read(&values.remove(0));
        let stored = stored.chunks(2).map(|pair| {
            let [bytes, ttl] = pair else { unreachable!("two commands a check") };
            let bytes = match bytes {
                Value::Array(items) if items.is_empty() => None,
                Value::Array(items) => Some(items.iter().flat_map(read::<Vec<u8>>).collect()),
                string => read(string),
            };
            (bytes, read(ttl))
        });
        let count = checks.count();
        (Reply::new(&reply, count).unwrap().verdicts(0..count).unwrap(), stored.collect())
    }
}

fn read<T: FromRedisValue>(value: &Value) -> T {
    from_redis_value(value.clone()).unwrap()
}

/// The same in Rust.
#[derive(Default)]
struct Twin {
    /// Each with its state, and when it expires.
    counters: HashMap<Key, (State, u64)>,
}

impl Twin {
    fn state(&self, check: &Check) -> Option<&State> {
        self.counters.get(&check.key).map(|(state, _)| state)
    }

    fn decide(&mut self, checks: &[Check], now: u64) -> Verdicts {
        let (verdicts, changes) = group::decide(checks, now, |i| self.state(&checks[i]));
        if let [check] = checks {
            let Outcome { change, verdict } = group::decide_alone(check, now, self.state(check));
            let changes_alone: Vec<_> = change.into_iter().map(|change| (0, change, verdict.reset_after_ms)).collect();
            assert_eq!((&verdicts[..], &changes), (&[verdict][..], &changes_alone), "a check alone is a group of one");
        }
        let mut emptied = Vec::new();
        for (i, change, reset_after_ms) in changes {
            emptied.extend((reset_after_ms == 0).then_some(&checks[i].key));
            let state = self.counters.remove(&checks[i].key).map(|(state, _)| state);
            self.counters.insert(checks[i].key.clone(), (State::after(state, change), now + reset_after_ms));
        }
        // As fresh ones they go; the others stay beyond their end, where nothing may depend on it.
        for key in emptied {
            if self.counters.get(key).is_some_and(|(_, expires_at)| *expires_at == now) {
                self.counters.remove(key);
            }
        }
        verdicts
    }
}

#[test]
fn rust_and_lua_agree_at_every_step() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let lua = std::cell::RefCell::new(runtime.block_on(Lua::new(&redis)));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1_500,
        max_shrink_iters: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let limit = prop_oneof![any_limit(), small_limit()];
    let limits = prop::collection::vec((limit, prop::option::weighted(0.3, any_penalty())), 1..4);
    let agree = runner.run(&(limits, 0..1_000_000_u64, steps()), |(limits, offset, steps)| {
        let mut lua = lua.borrow_mut();
        runtime.block_on(lua.forget());
        let mut rust = Twin::default();
        let mut now = START + offset;
        for (by, calls) in steps {
            now = match by {
                Move::Forward(part) => now + (u128::from(memory_ms(&limits[0].0)) * u128::from(part) / 64) as u64,
                Move::Ms(ms) => now + ms,
                Move::Back(ms) => now.saturating_sub(ms),
            };
            let requests: Vec<Vec<Check>> = calls.iter().map(|asked| checks(&limits, asked)).collect();
            let (verdicts, stored) = runtime.block_on(lua.decide(&requests, now));
            let twins: Verdicts = requests.iter().flat_map(|checks| rust.decide(checks, now)).collect();
            prop_assert_eq!(verdicts, twins, "at {}: {:?}", now, requests);
            for (check, (bytes, expiry)) in requests.iter().flatten().zip(stored) {
                let twin = rust.counters.get(&check.key);
                prop_assert_eq!(bytes, twin.map(|(state, _)| state.pack()), "at {}: {:?}", now, check);
                if let Some((_, expires_at)) = twin {
                    prop_assert_eq!(expiry, Some(*expires_at), "at {}: {:?}", now, check);
                }
            }
        }
        Ok(())
    });
    agree.unwrap_or_else(|failure| panic!("{failure}"));
}
