//! The Rust and the Lua of every algorithm, and of a request's group, are the same function: verdicts, stored bytes and
//! TTLs are equal at every step, by a real Redis, down to the last bit.

use crate::support;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{FromRedisValue, Value, cmd, from_redis_value, pipe};
use proptest::prelude::*;
use support::limits::{
    Change, any_change, any_limit, any_penalty, any_time_zone, any_window, ask, calendar_limit, max_wait_ms, memory_ms,
    small_limit,
};
use support::redis::Redis;
use tollgate::algorithm::{
    Algorithm, Ask, Caller, Charge, Effect, Limit, MAX_HITS, NamedWindow, Options, Outcome, Penalty, State,
};
use tollgate::descriptor::Role;
use tollgate::store::memory::Clock;
use tollgate::store::redis::script::{self, Group, Reply, Scripts};
use tollgate::store::{Check, CheckVerdict, Key, Occasion, Origin, Penalized, Recorded, StoreError, Verdicts, group};
use tollgate::usage::{Period, Totals, Usage};

const START: u64 = 1_784_000_000_123;

const HOUR_MS: i64 = 60 * 60 * 1000;

/// One call: how far the clock moves, and for each request in it what is asked of which counter, by whom.
type Step = (Move, Vec<Vec<Asked>>);

/// A counter, how its limit may have been changed, for whom it is asked, for what, role, and what makes its record
/// where its use is kept.
type Asked = (usize, Option<Change>, Caller, Wants, Role, Occasion);

#[derive(Clone, Debug)]
enum Wants {
    Hits(i64),
    Reset,
    /// One of the charges of before is taken back, perhaps not for the first time.
    TakeBack(prop::sample::Index),
    /// A charge is that never was.
    Invented(Charge),
}

/// The charges so far, of which counter and for whom.
type Charges = Vec<(Key, Caller, Charge)>;

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
        1 => 0..=MAX_HITS as i64, 1 => -(MAX_HITS as i64)..=0, 1 => Just(-(MAX_HITS as i64)), 1 => 0..=u32::MAX as i64,
    ];
    let invented = (1..=MAX_HITS, 0..2 * START, 0..MAX_HITS);
    let invented = invented.prop_map(|(hits, at_ms, reset_after_ms)| Charge { hits, at_ms, reset_after_ms });
    let wants = prop_oneof![
        22 => hits.prop_map(Wants::Hits), 1 => Just(Wants::Reset),
        8 => any::<prop::sample::Index>().prop_map(Wants::TakeBack), 1 => invented.prop_map(Wants::Invented),
    ];
    let role = prop_oneof![4 => Just(Role::Enforced), 1 => Just(Role::Quota), 1 => Just(Role::Shadow)];
    let holder = prop::sample::select(vec![0, 1, MAX_HITS]);
    let change = prop::option::weighted(0.1, any_change());
    let caller = (holder, max_wait_ms()).prop_map(|(holder, max_wait_ms)| Caller { holder, max_wait_ms, window: None });
    let undone = (0..2 * START, 0..=MAX_HITS).prop_map(|(at_ms, cost)| Occasion::Undone { at_ms, cost });
    let exempt =
        prop_oneof![-9..9_i64, -(MAX_HITS as i64)..=MAX_HITS as i64].prop_map(|hits| Occasion::Exempt { hits });
    let refused = (1..=MAX_HITS).prop_map(|hits| Occasion::Denied { hits });
    let occasion = prop_oneof![8 => Just(Occasion::Decided), 1 => refused, 1 => undone, 1 => exempt];
    let alone = (0..3_usize, change, caller, wants, role, occasion).boxed();
    let request = prop::collection::vec(alone.clone(), 1..5);
    // A check that is all of its call has a script of its own.
    let calls = prop_oneof![
        2 => prop::collection::vec(request, 1..4),
        1 => alone.prop_map(|asked| vec![vec![asked]]),
    ];
    prop::collection::vec((moves, calls), 1..25)
}

/// A limit, the penalty behind it, the window in its counter's name, where it is a fixed one of no calendar, and what
/// is kept of its use, with or without a tag.
type Limited = (Limit, Option<Penalty>, Option<NamedWindow>, Option<(Usage, bool)>);

fn any_usage() -> impl Strategy<Value = (Usage, bool)> {
    (prop::sample::select(&Period::ALL[..]), 1..3_660_u64, any::<bool>())
        .prop_map(|(period, days, tag)| (Usage::new(period, Duration::from_secs(days * 86_400)).unwrap(), tag))
}

/// The checks of a request. Each descriptor has up to two limits, which share its role and whether it gives back.
fn checks(limits: &[Limited], charges: &Charges, asked: &[Asked]) -> Vec<Check> {
    let check = |(i, (counter, change, caller, wants, _, occasion)): (usize, &Asked)| {
        let (descriptor, (.., first, role, _)) = (i / 2, &asked[i - i % 2]);
        let (limit, penalty, window, usage) = limits[counter % limits.len()];
        let is_aligned = limit.algorithm() == Algorithm::FixedWindow && limit.options().time_zone.is_none();
        let window = window.filter(|_| is_aligned);
        let limit = change.as_ref().and_then(|change| change.of(&limit)).unwrap_or(limit);
        let name = format!("c{}", counter % limits.len());
        let own = Key::new("", &name, &[], |_| None, &limit, Origin::Rule);
        let penalty = penalty.map(|penalty| Penalized { key: own.of_penalty(&penalty), penalty });
        let key = if window.is_some() { Key::of_window("", &name, &[], |_| None, 1200) } else { own };
        let charged = charges.iter().filter(|(of, ..)| *of == key);
        let charged: Vec<(Caller, Charge)> = charged.map(|(_, caller, charge)| (*caller, *charge)).collect();
        let amount = if let Wants::Hits(hits) = wants { hits.abs() } else { 1 };
        let (caller, wants) = match (first, wants) {
            (Wants::Reset, _) => (*caller, Ask::Reset),
            (Wants::Hits(first), _) if *first >= 0 => (*caller, ask(amount)),
            (_, Wants::TakeBack(which)) if !charged.is_empty() => {
                let (caller, charge) = charged[which.index(charged.len())];
                (caller, Ask::TakeBack(charge))
            }
            (_, Wants::Invented(charge)) => (*caller, Ask::TakeBack(*charge)),
            _ => (*caller, ask(-amount.max(1))),
        };
        let recorded =
            usage.map(|(usage, tag)| Recorded { usage, tag: tag.then(|| "d|key=value".into()), occasion: *occasion });
        let caller = Caller { window, ..caller };
        Check { penalty, caller, role: *role, descriptor, recorded, ..Check::new(key, limit, wants) }
    };
    asked.iter().enumerate().map(check).collect()
}

/// The counters of a request, and whether each is a list.
fn counters(checks: &[Check]) -> Vec<(&Key, bool)> {
    let mut counters = Vec::new();
    for check in checks {
        counters.push((&check.key, check.limit.algorithm() == Algorithm::SlidingLog));
        counters.extend(check.penalized().map(|penalized| (&penalized.key, false)));
    }
    assert!(counters.iter().map(|(key, _)| *key).eq(group::keys(checks)));
    counters
}

/// The scripts behind the clock of `support/clock.lua`.
struct Lua {
    connection: MultiplexedConnection,
    scripts: Scripts,
}

impl Lua {
    async fn new(redis: &Redis) -> Lua {
        let scripts = Scripts::behind(include_str!("support/clock.lua"));
        let mut connection = redis.connection().await;
        for load in scripts.load(false) {
            load.exec_async(&mut connection).await.unwrap();
        }
        Lua { connection, scripts }
    }

    /// What a page has: its records, and the tag.
    async fn page(&mut self, page: &Key) -> Kept {
        let mut fields: BTreeMap<String, Vec<u8>> =
            cmd("HGETALL").arg(page.as_str()).query_async(&mut self.connection).await.unwrap();
        let tag = fields.remove("tag").map(|tag| String::from_utf8(tag).unwrap());
        let record = |(index, bytes): (String, Vec<u8>)| (index.parse().unwrap(), Totals::unpack(&bytes).unwrap());
        let ends_at: Option<u64> =
            cmd("HGET").arg("expiry").arg(page.as_str()).query_async(&mut self.connection).await.unwrap();
        (fields.into_iter().map(record).collect(), tag, ends_at)
    }

    async fn forget(&mut self) {
        cmd("FLUSHDB").exec_async(&mut self.connection).await.unwrap();
    }

    /// The verdicts on all requests of a call, each where there is one, and for each of their counters its bytes and
    /// when it expires.
    async fn decide(&mut self, requests: &[Vec<Check>], clocks: Clocks) -> (Vec<Decided>, Vec<Stored>) {
        let mut pipe = pipe();
        pipe.cmd("SET").arg("clock").arg(clocks.redis).ignore();
        let groups: Vec<Group> = requests.iter().map(|checks| Group::by_clock(checks, &clocks)).collect();
        pipe.add_command(script::call_of(&self.scripts, &groups));
        for (key, is_list) in requests.iter().flat_map(|checks| counters(checks)) {
            if is_list {
                pipe.cmd("LRANGE").arg(key.as_str()).arg(0).arg(-1);
            } else {
                pipe.cmd("GET").arg(key.as_str());
            }
            pipe.cmd("HGET").arg("expiry").arg(key.as_str());
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
        let mut reply = Reply::new(&reply, groups.iter().map(Group::counters).sum()).unwrap();
        (groups.iter().map(|group| reply.next(group)).collect(), stored.collect())
    }
}

type Decided = Result<Verdicts, StoreError>;

/// A counter's bytes, and when it expires.
type Stored = (Option<Vec<u8>>, Option<u64>);

/// What the clocks of Redis and of the process that asks read.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    redis: u64,
    process: u64,
}

impl Clock for Clocks {
    fn now(&self) -> u64 {
        self.process
    }
}

fn read<T: FromRedisValue>(value: &Value) -> T {
    from_redis_value(value.clone()).unwrap()
}

/// The records of a page, its tag, and when it expires.
type Kept = (BTreeMap<u64, Totals>, Option<String>, Option<u64>);

/// The same in Rust.
#[derive(Default)]
struct Twin {
    /// Each with its state, and when it expires.
    counters: HashMap<Key, (State, u64)>,
    pages: BTreeMap<Key, Kept>,
}

impl Twin {
    fn state(&self, key: &Key) -> Option<&State> {
        self.counters.get(key).map(|(state, _)| state)
    }

    /// The process that asks has another clock.
    fn record(&mut self, checks: &[Check], verdicts: &Verdicts, clocks: Clocks) {
        for (place, added) in group::added(checks, verdicts, clocks.redis) {
            let check = &checks[place];
            let recorded = check.recorded.as_ref().unwrap();
            let page = self.pages.entry(check.key.of_page(recorded.usage.period(), clocks.process)).or_default();
            if !page.0.contains_key(&added.index) {
                page.1 = recorded.tag.as_deref().map(str::to_owned).or(page.1.take());
                page.2 = page.2.max(Some(clocks.redis + recorded.usage.page_kept_ms()));
            }
            let record = page.0.entry(added.index).or_default();
            *record = record.with(added);
        }
    }

    fn decide(&mut self, checks: &[Check], now: u64) -> Verdicts {
        let keys: Vec<&Key> = group::keys(checks).collect();
        let (verdicts, effects) = group::decide(checks, now, |i| self.state(keys[i]));
        if let ([check], [_]) = (checks, &keys[..]) {
            let Outcome { effect, verdict } = group::decide_alone(check, now, self.state(&check.key));
            let alone: Vec<_> =
                Some(effect).filter(|effect| *effect != Effect::None).map(|effect| (0, effect)).into_iter().collect();
            let verdict = Some(CheckVerdict { own: verdict, ban: None, is_known: false, at_ms: now });
            assert_eq!((&verdicts[..], &effects), (&[verdict][..], &alone), "a check alone is a group of one");
        }
        // What has expired stays, and nothing may depend on it.
        for (i, effect) in effects {
            let state = self.counters.remove(keys[i]).map(|(state, _)| state);
            let expires_at = match effect {
                Effect::Changed { expires_after_ms, .. } => now + expires_after_ms,
                Effect::None | Effect::Forgotten => now,
            };
            if let Some(state) = effect.apply(state) {
                self.counters.insert(keys[i].clone(), (state, expires_at));
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
    let limits = prop::collection::vec(
        (
            limit,
            prop::option::weighted(0.3, any_penalty()),
            prop::option::weighted(0.5, any_window()),
            prop::option::weighted(0.3, any_usage()),
        ),
        1..4,
    );
    // In this range the clock of the process that asks makes no difference to a calendar.
    let ahead = -HOUR_MS..=HOUR_MS;
    let agree = runner.run(&(limits, 0..1_000_000_u64, ahead, steps()), |(limits, offset, ahead, steps)| {
        let mut lua = lua.borrow_mut();
        runtime.block_on(lua.forget());
        let mut rust = Twin::default();
        let mut now = START + offset;
        let mut charges = Charges::new();
        for (by, calls) in steps {
            now = match by {
                Move::Forward(part) => now + (u128::from(memory_ms(&limits[0].0)) * u128::from(part) / 64) as u64,
                Move::Ms(ms) => now + ms,
                Move::Back(ms) => now.saturating_sub(ms),
            };
            let requests: Vec<Vec<Check>> = calls.iter().map(|asked| checks(&limits, &charges, asked)).collect();
            let clocks = Clocks { redis: now, process: now.saturating_add_signed(ahead) };
            let (decided, stored) = runtime.block_on(lua.decide(&requests, clocks));
            let verdicts: Verdicts = decided.into_iter().flat_map(Result::unwrap).collect();
            let mut twins = Verdicts::new();
            for checks in &requests {
                let verdicts = rust.decide(checks, now);
                rust.record(checks, &verdicts, clocks);
                twins.extend(verdicts);
            }
            prop_assert_eq!(&verdicts, &twins, "at {}: {:?}", now, requests);
            for (name, page) in &rust.pages {
                prop_assert_eq!(&runtime.block_on(lua.page(name)), page, "at {}: {:?}", now, requests);
            }
            for (check, verdict) in requests.iter().flatten().zip(verdicts.iter().flatten()) {
                let charge = Charge::of(check.ask, verdict.at_ms, &verdict.own);
                charges.extend(charge.map(|charge| (check.key.clone(), check.caller, charge)));
            }
            let asked = requests.iter().flat_map(|checks| counters(checks));
            for ((key, _), (bytes, expiry)) in asked.zip(stored) {
                let twin = rust.counters.get(key);
                prop_assert_eq!(bytes, twin.map(|(state, _)| state.pack()), "at {}: {:?}", now, key);
                if let Some((_, expires_at)) = twin {
                    prop_assert_eq!(expiry, Some(*expires_at), "at {}: {:?}", now, key);
                }
            }
        }
        Ok(())
    });
    agree.unwrap_or_else(|failure| panic!("{failure}"));
}

/// However wrong the clock of the process that asks is: by the calendar Redis decides as its own clock says, or not at
/// all. Two processes may know different rules of the time zone, as if it were another.
#[test]
fn a_window_of_the_calendar_is_that_of_the_clock_of_redis() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let lua = std::cell::RefCell::new(runtime.block_on(Lua::new(&redis)));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let ahead = prop_oneof![-HOUR_MS..=HOUR_MS, -30 * HOUR_MS..=30 * HOUR_MS, -800 * 24 * HOUR_MS..=800 * 24 * HOUR_MS];
    let moved = prop_oneof![2 => Just(0), 2 => 0..20 * HOUR_MS, 1 => 0..400 * 24 * HOUR_MS, 1 => -2 * HOUR_MS..0];
    let steps = prop::collection::vec((moved, ahead, 0..4_i64, any::<bool>(), any::<bool>()), 1..30);
    let second = Limit::new(Algorithm::TokenBucket, 9, Duration::from_secs(1), Options::default()).unwrap();
    let agree = runner.run(&(calendar_limit(), any_time_zone(), steps), |(limit, other, steps)| {
        let mut lua = lua.borrow_mut();
        runtime.block_on(lua.forget());
        let (mut rust, mut now) = (Twin::default(), START);
        let options = Options { time_zone: Some(other), ..limit.options() };
        let other = Limit::new(limit.algorithm(), limit.number(), limit.period(), options).unwrap();
        let check = |counter: &Limit, limit, hits| {
            vec![Check::new(Key::new("", "shop", &[], |_| None, counter, Origin::Rule), limit, ask(hits))]
        };
        for (by, ahead, hits, is_alone, is_other) in steps {
            now = now.saturating_add_signed(by);
            let clocks = Clocks { redis: now, process: now.saturating_add_signed(ahead) };
            let first = check(&limit, if is_other { other } else { limit }, hits);
            // Another request of the same call is decided, whatever becomes of this one.
            let requests = if is_alone { vec![first] } else { vec![first, check(&second, second, hits)] };
            let (decided, stored) = runtime.block_on(lua.decide(&requests, clocks));
            for ((checks, decided), (bytes, _)) in requests.iter().zip(&decided).zip(&stored) {
                match decided {
                    Ok(verdicts) => prop_assert_eq!(verdicts, &rust.decide(checks, now), "{:?}", clocks),
                    Err(StoreError::Counter(why)) => {
                        prop_assert!(checks[0].limit != second && ahead.abs() > HOUR_MS, "{}: {:?}", why, clocks);
                        prop_assert!(why.ends_with("too far from that of Redis for a window of the calendar"));
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
                let twin = rust.state(&checks[0].key).map(State::pack);
                prop_assert_eq!(bytes, &twin, "{:?}", clocks);
            }
        }
        Ok(())
    });
    agree.unwrap_or_else(|failure| panic!("{failure}"));
}
