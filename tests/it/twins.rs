//! The Rust and the Lua of every algorithm, and of a request's group, are the same function: verdicts, stored bytes and
//! TTLs are equal at every step, by a real Redis, down to the last bit.

use crate::fuzzing::damage;
use crate::support;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{FromRedisValue, Value, cmd, from_redis_value, pipe};
use proptest::prelude::*;
use support::limits::{
    Change, any_change, any_limit, any_penalty, any_time_zone, any_window, ask, bound, calendar_limit, large_part,
    max_wait_ms, memory_ms, small_limit, wide_number,
};
use support::redis::Redis;
use tollgate::engine::algorithm::{
    Algorithm, Ask, Bounds, Caller, Charge, Credit, CreditKind, Effect, Granted, LeaseAsk, Limit, MAX_HITS, MAX_NUMBER,
    NamedWindow, Options, Outcome, Penalty, Returned, State, leased, penalty,
};
use tollgate::engine::algorithm::{NEVER, TimeZone, Unsettled};
use tollgate::engine::check::group::{self, Effects};
use tollgate::engine::check::{
    Check, CheckVerdict, Key, Leased, Occasion, Origin, Penalized, Recorded, StoreError, Verdicts,
};
use tollgate::engine::clock::Clock;
use tollgate::engine::descriptor::Role;
use tollgate::engine::usage::{Period, Totals, Usage};
use tollgate::store::redis::script::{self, Group, Reply, Scripts};

pub const START: u64 = 1_784_000_000_123;

const HOUR_MS: i64 = 60 * 60 * 1000;

/// A call: the step of the clock, and for each of its requests the counters, hits and holders.
type Step = (Move, Vec<Vec<Asked>>);

/// A counter, a change of its limit, the caller, the hits, the role, the record of its usage, and what is asked of its
/// leases.
type Asked = (usize, Option<Change>, Caller, Wants, Role, Occasion, Lends);

/// A question about leases.
#[derive(Clone, Debug)]
struct Lends {
    /// Which of the leases so far is returned, perhaps repeatedly.
    returns: Option<prop::sample::Index>,
    used: u32,
    want: u32,
    ttl_ms: u64,
    most: u32,
}

/// The leases so far, by the counter.
type Grants = Vec<(Key, Granted)>;

#[derive(Clone, Debug)]
enum Wants {
    Hits(i64),
    Reset,
    /// Takes back an earlier charge, perhaps repeatedly.
    TakeBack(prop::sample::Index),
    /// A stream tells what it has used.
    Settles(u64),
    /// A charge is that never was.
    Invented(Charge),
    /// An operator credits, perhaps repeatedly.
    Credits(Credit),
}

/// The charges so far, with counter and caller.
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
        1 => wide_number().prop_map(|hits| hits as i64),
        2 => large_part().prop_map(|hits| hits as i64),
    ];
    let invented = (1..=MAX_HITS, 0..2 * START, 0..MAX_HITS);
    let invented = invented.prop_map(|(hits, at_ms, reset_after_ms)| Charge { hits, at_ms, reset_after_ms });
    let settled = prop_oneof![4 => 0..20_u64, 1 => 0..=MAX_HITS, 1 => wide_number(), 1 => large_part()];
    let wants = prop_oneof![
        22 => hits.prop_map(Wants::Hits), 1 => Just(Wants::Reset),
        4 => settled.prop_map(Wants::Settles),
        3 => credit().prop_map(Wants::Credits),
        8 => any::<prop::sample::Index>().prop_map(Wants::TakeBack), 1 => invented.prop_map(Wants::Invented),
    ];
    let role = prop_oneof![4 => Just(Role::Enforced), 1 => Just(Role::Quota), 1 => Just(Role::Shadow)];
    let holder = prop::sample::select(vec![0, 1, MAX_HITS]);
    let change = prop::option::weighted(0.1, any_change());
    let learned = prop::option::weighted(0.4, (1..12_u64, prop_oneof![1..60_u64, wide_number()]));
    let caller = (holder, max_wait_ms(), learned).prop_map(|(holder, max_wait_ms, learned)| {
        let learned = learned.map(|(least, more)| Bounds { least, most: more.saturating_add(least).min(MAX_NUMBER) });
        Caller { holder, max_wait_ms, learned, window: None }
    });
    let undone = (0..2 * START, 0..=MAX_HITS).prop_map(|(at_ms, cost)| Occasion::Undone { at_ms, cost });
    let exempt =
        prop_oneof![-9..9_i64, -(MAX_HITS as i64)..=MAX_HITS as i64].prop_map(|hits| Occasion::Exempt { hits });
    let refused = (1..=MAX_HITS).prop_map(|hits| Occasion::Denied { hits });
    let leased = (0..9_u64, 0..9_u64).prop_map(|(waiting, decided)| Occasion::Leased { waiting, decided });
    let occasion = prop_oneof![8 => Just(Occasion::Decided), 1 => refused, 1 => undone, 1 => exempt, 2 => leased];
    let alone = (0..3_usize, change, caller, wants, role, occasion, any_lends()).boxed();
    let request = prop::collection::vec(alone.clone(), 1..5).boxed();
    // A call with a single check has a separate script, and a check that is the same as the previous one is sent as one
    // byte.
    let repeated = (alone.clone(), 2..5_usize).prop_map(|(asked, times)| vec![vec![asked]; times]);
    let requests = |count: std::ops::Range<usize>| prop::collection::vec(request.clone(), count);
    let mixed = (requests(0..3), repeated.clone(), requests(0..3));
    let calls = prop_oneof![
        4 => requests(1..4),
        2 => alone.prop_map(|asked| vec![vec![asked]]),
        1 => repeated,
        1 => mixed.prop_map(|(before, repeated, after)| [before, repeated, after].concat()),
    ];
    prop::collection::vec((moves, calls), 1..25)
}

/// A few IDs, so that many repeat.
fn credit() -> impl Strategy<Value = Credit> {
    let hits = prop_oneof![4 => 1..20_u64, 1 => wide_number().prop_map(|hits| hits.max(1)), 1 => large_part()];
    let id = prop_oneof![4 => 0..4_u64, 1 => 0..=MAX_HITS];
    (hits, id, prop::sample::select(&CreditKind::ALL[..])).prop_map(|(hits, id, kind)| Credit { hits, id, kind })
}

/// Ends of leases meet, and no lease is too long.
fn any_lends() -> impl Strategy<Value = Lends> {
    let ttl_ms = prop_oneof![1..40_u64, Just(100), 1..=leased::MAX_TTL_MS];
    let want = prop_oneof![Just(0), 1..60_u32, any::<u32>()];
    let most = prop_oneof![Just(0), 1..60_u32, any::<u32>()];
    (prop::option::of(any::<prop::sample::Index>()), 0..60_u32, want, ttl_ms, most)
        .prop_map(|(returns, used, want, ttl_ms, most)| Lends { returns, used, want, ttl_ms, most })
}

/// A limit, the penalty behind it, the window in its counter's name, where it is a fixed one of no calendar, what is
/// kept of its use, with or without a tag, and whether it has leases, where it can.
type Limited = (Limit, Option<Penalty>, Option<NamedWindow>, Option<(Usage, bool)>, bool);

fn any_usage() -> impl Strategy<Value = (Usage, bool)> {
    (prop::sample::select(&Period::ALL[..]), 1..3_660_u64, any::<bool>())
        .prop_map(|(period, days, tag)| (Usage::new(period, Duration::from_secs(days * 86_400)).unwrap(), tag))
}

/// Returns the checks of a request. Each descriptor has up to two limits, which share its role and whether it refunds.
fn checks(limits: &[Limited], (charges, grants): (&Charges, &Grants), asked: &[Asked]) -> Vec<Check> {
    let check = |(i, (counter, change, caller, wants, _, occasion, lends)): (usize, &Asked)| {
        let (descriptor, (.., first, role, _, _)) = (i / 2, &asked[i - i % 2]);
        let (limit, penalty, window, usage, leases) = limits[counter % limits.len()];
        let window = window.filter(|_| is_aligned(&limit));
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
            (_, Wants::Settles(hits)) if limit.algorithm() == Algorithm::Budget && i % 2 == 0 => {
                (*caller, Ask::Settle(*hits))
            }
            (_, Wants::Credits(credit)) if limit.algorithm() == Algorithm::Budget && i % 2 == 0 => {
                (*caller, Ask::Credit(*credit))
            }
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
        let leased = (leases && window.is_none() && limit.no_lease().is_none()).then(|| lends.of(&key, grants));
        Check { penalty, leased, caller, role: *role, descriptor, recorded, ..Check::new(key, limit, wants) }
    };
    asked.iter().enumerate().map(check).collect()
}

/// Whether a limit's windows may be part of its counter's name.
fn is_aligned(limit: &Limit) -> bool {
    let Options { time_zone, starts, .. } = limit.options();
    limit.algorithm() == Algorithm::FixedWindow && time_zone.is_none() && starts.is_none()
}

impl Lends {
    fn of(&self, counter: &Key, grants: &Grants) -> Leased {
        let granted: Vec<&Granted> = grants.iter().filter(|(of, _)| of == counter).map(|(_, one)| one).collect();
        let returned = self.returns.filter(|_| !granted.is_empty()).map(|which| {
            let Granted { until_ms, hits, .. } = *granted[which.index(granted.len())];
            Returned { until_ms, hits, used: self.used.min(hits) }
        });
        let Lends { want, ttl_ms, most, .. } = *self;
        Leased { key: counter.of_leases(), ask: LeaseAsk { returned, want, ttl_ms, most } }
    }
}

/// The type of a counter's key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Type {
    Text,
    List,
    Hash,
}

impl Type {
    fn of(limit: &Limit) -> Type {
        match limit.algorithm() {
            Algorithm::SlidingLog => Type::List,
            Algorithm::Budget => Type::Hash,
            _ => Type::Text,
        }
    }
}

/// The counters of a request, and the types of their keys.
fn counters(checks: &[Check]) -> Vec<(&Key, Type)> {
    let mut counters = Vec::new();
    for check in checks {
        counters.push((&check.key, Type::of(&check.limit)));
        counters.extend(check.leased.iter().map(|leased| (&leased.key, Type::Text)));
        counters.extend(check.penalized().map(|penalized| (&penalized.key, Type::Text)));
    }
    assert!(counters.iter().map(|(key, _)| *key).eq(group::keys(checks)));
    counters
}

/// The scripts behind the clock of `support/clock.lua`.
pub struct Lua {
    connection: MultiplexedConnection,
    scripts: Scripts,
}

impl Lua {
    pub async fn new(redis: &Redis) -> Lua {
        let scripts = Scripts::behind(include_str!("support/clock.lua"));
        let mut connection = redis.connection().await;
        for load in scripts.load(false) {
            load.exec_async(&mut connection).await.unwrap();
        }
        Lua { connection, scripts }
    }

    /// Returns the records and the tag of a page.
    async fn page(&mut self, page: &Key) -> Kept {
        let mut fields: BTreeMap<String, Vec<u8>> =
            cmd("HGETALL").arg(page.as_str()).query_async(&mut self.connection).await.unwrap();
        let tag = fields.remove("tag").map(|tag| String::from_utf8(tag).unwrap());
        let record = |(index, bytes): (String, Vec<u8>)| (index.parse().unwrap(), Totals::unpack(&bytes).unwrap());
        let ends_at: Option<u64> =
            cmd("HGET").arg("expiry").arg(page.as_str()).query_async(&mut self.connection).await.unwrap();
        (fields.into_iter().map(record).collect(), tag, ends_at)
    }

    pub async fn forget(&mut self) {
        cmd("FLUSHDB").exec_async(&mut self.connection).await.unwrap();
    }

    /// Puts this in the place of a counter.
    async fn put(&mut self, key: &Key, held: &Held) {
        let put = match held {
            Held::Text(bytes) => cmd("SET").arg(key.as_str()).arg(bytes).to_owned(),
            Held::List(items) => cmd("RPUSH").arg(key.as_str()).arg(items).to_owned(),
            Held::Hash(fields) => cmd("HSET").arg(key.as_str()).arg(fields).to_owned(),
        };
        cmd("DEL").arg(key.as_str()).exec_async(&mut self.connection).await.unwrap();
        put.exec_async(&mut self.connection).await.unwrap();
    }

    /// The verdicts on all requests of a call, each where there is one, and for each of their counters its bytes and
    /// when it expires.
    async fn decide(&mut self, requests: &[Vec<Check>], clocks: Clocks) -> (Vec<Decided>, Vec<Stored>) {
        let (decided, stored, _) = self.decide_damaged(requests, clocks).await;
        (decided, stored)
    }

    /// The verdicts alone.
    async fn verdicts(&mut self, requests: &[Vec<Check>], clocks: Clocks) -> Vec<Decided> {
        let groups: Vec<Group> = requests.iter().map(|checks| Group::by_clock(checks, &clocks)).collect();
        let mut pipe = pipe();
        pipe.cmd("SET").arg("clock").arg(clocks.redis).ignore();
        pipe.add_command(script::call_of(&self.scripts, &groups));
        let (reply,): (Vec<u8>,) = pipe.query_async(&mut self.connection).await.unwrap();
        let mut reply = Reply::new(&reply, groups.iter().map(Group::counters).sum()).unwrap();
        groups.iter().map(|group| reply.next(group)).collect()
    }

    /// The same with the names of the counters that were damaged.
    async fn decide_damaged(
        &mut self,
        requests: &[Vec<Check>],
        clocks: Clocks,
    ) -> (Vec<Decided>, Vec<Stored>, Vec<Vec<u8>>) {
        let mut pipe = pipe();
        pipe.cmd("SET").arg("clock").arg(clocks.redis).ignore();
        let groups: Vec<Group> = requests.iter().map(|checks| Group::by_clock(checks, &clocks)).collect();
        pipe.add_command(script::call_of(&self.scripts, &groups));
        let counters: Vec<(&Key, Type)> = requests.iter().flat_map(|checks| counters(checks)).collect();
        for (key, kind) in &counters {
            match kind {
                Type::Text => pipe.cmd("GET").arg(key.as_str()),
                Type::List => pipe.cmd("LRANGE").arg(key.as_str()).arg(0).arg(-1),
                Type::Hash => pipe.cmd("HGETALL").arg(key.as_str()),
            };
            pipe.cmd("HGET").arg("expiry").arg(key.as_str());
        }
        let mut values: Vec<Value> = pipe.query_async(&mut self.connection).await.unwrap();
        let stored = values.split_off(1);
        let reply: Vec<u8> = read(&values.remove(0));
        let stored = stored.chunks(2).zip(&counters).map(|(pair, (_, kind))| {
            let [held, ttl] = pair else { unreachable!("two commands a check") };
            let held = match kind {
                Type::Text => read::<Option<Vec<u8>>>(held).map(Held::Text),
                Type::List => Some(Held::List(read(held))),
                Type::Hash => Some(Held::Hash(read(held))),
            };
            (held.filter(|held| !held.is_empty()).and_then(|held| held.bytes(*kind)), read(ttl))
        });
        let mut reply = Reply::new(&reply, groups.iter().map(Group::counters).sum()).unwrap();
        let decided = groups.iter().map(|group| reply.next(group)).collect();
        (decided, stored.collect(), reply.into_damaged())
    }
}

/// The contents of a key.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
}

impl Held {
    /// Decodes the contents of a counter's key.
    fn of(packed: Vec<u8>, kind: Type) -> Held {
        match kind {
            Type::Text => Held::Text(packed),
            Type::List => Held::List(packed.chunks(20).map(<[u8]>::to_vec).collect()),
            Type::Hash => {
                let mut rest = &packed[..];
                let mut text = || {
                    let (length, texts) = rest.split_first_chunk()?;
                    let (text, others) = texts.split_at(u32::from_le_bytes(*length) as usize);
                    rest = others;
                    Some(text.to_vec())
                };
                Held::Hash(std::iter::from_fn(|| text().map(|name| (name, text().unwrap()))).collect())
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Held::Text(_) => false,
            Held::List(items) => items.is_empty(),
            Held::Hash(fields) => fields.is_empty(),
        }
    }

    /// The same, or another type, damaged somewhere.
    fn damaged(self, rng: &mut fastrand::Rng) -> Held {
        match (rng.usize(..8), self) {
            (0, Held::Hash(_)) => Held::Text(Vec::new()),
            (0, _) => Held::Hash(BTreeMap::from([(b"0".to_vec(), Vec::new())])),
            (1, Held::Text(bytes)) => Held::List(vec![bytes]),
            (1, Held::List(items)) => Held::Text(items.concat()),
            (1, Held::Hash(fields)) => Held::List(fields.into_values().collect()),
            (2, Held::Text(_)) => Held::Text((0..rng.usize(..120)).map(|_| rng.u8(..)).collect()),
            (2, Held::Hash(mut fields)) => {
                fields.remove(&fields.keys().nth(rng.usize(..fields.len())).unwrap().clone());
                Held::Hash(fields)
            }
            (_, Held::List(mut items)) => {
                let place = rng.usize(..items.len());
                damage(rng, &mut items[place]);
                Held::List(items)
            }
            (_, Held::Hash(mut fields)) => {
                let place = rng.usize(..fields.len());
                damage(rng, fields.values_mut().nth(place).unwrap());
                Held::Hash(fields)
            }
            (_, Held::Text(mut bytes)) => {
                damage(rng, &mut bytes);
                Held::Text(bytes)
            }
        }
    }

    /// The bytes, where it is of the type of such a counter.
    fn bytes(&self, kind: Type) -> Option<Vec<u8>> {
        match self {
            Held::Text(bytes) if kind == Type::Text => Some(bytes.clone()),
            Held::List(items) if kind == Type::List => {
                Some(items.concat()).filter(|_| items.iter().all(|item| item.len() == 20))
            }
            Held::Hash(fields) if kind == Type::Hash => {
                let texts = fields.iter().flat_map(|(name, value)| [name, value]);
                Some(texts.flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text].concat()).collect())
            }
            _ => None,
        }
    }
}

type Decided = Result<Verdicts, StoreError>;

/// A counter's bytes, and when it expires.
type Stored = (Option<Vec<u8>>, Option<u64>);

/// The times of Redis's clock and of the caller's.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    pub redis: u64,
    pub process: u64,
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
#[derive(Clone, Default)]
pub struct Twin {
    /// Each with its state, and when it expires.
    counters: HashMap<Key, (State, u64)>,
    pages: BTreeMap<Key, Kept>,
}

impl Twin {
    fn state(&self, key: &Key) -> Option<&State> {
        self.counters.get(key).map(|(state, _)| state)
    }

    /// The process that asks has another clock.
    fn record(&mut self, checks: &[Check], decided: (&Verdicts, &Effects), clocks: Clocks) {
        for (place, added) in group::added(checks, decided, clocks.redis) {
            let check = &checks[place];
            let recorded = check.recorded.as_ref().unwrap();
            let period = recorded.usage.period();
            let is_near = (clocks.process / period.page_ms()).abs_diff(clocks.redis / period.page_ms()) <= 1;
            let named_by = if is_near { clocks.process } else { clocks.redis };
            let page = self.pages.entry(check.key.of_page(period, named_by)).or_default();
            let charged = page.0.values().map(|record| record.cost).sum();
            let Some(added) = added.on_page(charged) else { continue };
            if !page.0.contains_key(&added.index) {
                page.1 = recorded.tag.as_deref().map(str::to_owned).or(page.1.take());
                page.2 = page.2.max(Some(clocks.redis + recorded.usage.page_kept_ms()));
            }
            let record = page.0.entry(added.index).or_default();
            *record = record.with(added);
        }
    }

    pub fn decide(&mut self, checks: &[Check], now: u64) -> Verdicts {
        self.decided(checks, now).0
    }

    /// Decides, and returns the effects, too.
    fn decided(&mut self, checks: &[Check], now: u64) -> (Verdicts, Effects) {
        let keys: Vec<&Key> = group::keys(checks).collect();
        let (verdicts, effects) = group::decide(checks, now, |i| self.state(keys[i]));
        if let ([check], [_]) = (checks, &keys[..]) {
            let Outcome { effect, verdict } = group::decide_alone(check, now, self.state(&check.key));
            let alone: Vec<_> =
                Some(effect).filter(|effect| *effect != Effect::None).map(|effect| (0, effect)).into_iter().collect();
            let verdict = Some(CheckVerdict::new(verdict, now));
            assert_eq!((&verdicts[..], &effects), (&[verdict][..], &alone), "a check alone is a group of one");
        }
        // Expired counters are kept; no decision may depend on them.
        for (i, effect) in effects.clone() {
            let state = self.counters.remove(keys[i]).map(|(state, _)| state);
            let expires_at = match effect {
                Effect::Changed { expires_after_ms, .. } => now + expires_after_ms,
                Effect::None | Effect::Forgotten => now,
            };
            if let Some(state) = effect.apply(state) {
                self.counters.insert(keys[i].clone(), (state, expires_at));
            }
        }
        (verdicts, effects)
    }
}

/// Lets both decide the requests of a call, and asserts equal verdicts and counters.
pub async fn agree(
    lua: &mut Lua,
    rust: &mut Twin,
    requests: &[Vec<Check>],
    clocks: Clocks,
) -> Result<Verdicts, TestCaseError> {
    let now = clocks.redis;
    let (decided, stored) = lua.decide(requests, clocks).await;
    let verdicts: Verdicts = decided.into_iter().flat_map(Result::unwrap).collect();
    let mut twins = Verdicts::new();
    for checks in requests {
        let (verdicts, effects) = rust.decided(checks, now);
        rust.record(checks, (&verdicts, &effects), clocks);
        twins.extend(verdicts);
    }
    prop_assert_eq!(&verdicts, &twins, "at {}: {:?}", now, requests);
    for (name, page) in &rust.pages {
        prop_assert_eq!(&lua.page(name).await, page, "at {}: {:?}", now, requests);
    }
    let asked = requests.iter().flat_map(|checks| counters(checks));
    for ((key, _), (bytes, expiry)) in asked.zip(stored) {
        let twin = rust.counters.get(key);
        prop_assert_eq!(bytes, twin.map(|(state, _)| state.pack()), "at {}: {:?}", now, key);
        if let Some((_, expires_at)) = twin {
            prop_assert_eq!(expiry, Some(*expires_at), "at {}: {:?}", now, key);
        }
    }
    Ok(verdicts)
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
    let large =
        (small_limit(), large_part()).prop_map(|(limit, number)| limit.with_number_alone(number).unwrap_or(limit));
    let limit = prop_oneof![2 => any_limit(), 2 => small_limit(), 1 => large];
    let limits = prop::collection::vec(
        (
            limit,
            prop::option::weighted(0.3, any_penalty()),
            prop::option::weighted(0.5, any_window()),
            prop::option::weighted(0.3, any_usage()),
            prop::bool::weighted(0.5),
        ),
        1..4,
    );
    let seen = std::cell::Cell::new(0);
    // In this range the clock of the process that asks makes no difference to a calendar.
    let ahead = -HOUR_MS..=HOUR_MS;
    let agree = runner.run(&(limits, 0..1_000_000_u64, ahead, steps()), |(limits, offset, ahead, steps)| {
        let mut lua = lua.borrow_mut();
        runtime.block_on(lua.forget());
        let mut rust = Twin::default();
        let mut now = START + offset;
        let (mut charges, mut grants) = (Charges::new(), Grants::new());
        for (by, calls) in steps {
            now = match by {
                Move::Forward(part) => now + (u128::from(memory_ms(&limits[0].0)) * u128::from(part) / 64) as u64,
                Move::Ms(ms) => now + ms,
                Move::Back(ms) => now.saturating_sub(ms),
            };
            let known = (&charges, &grants);
            let requests: Vec<Vec<Check>> = calls.iter().map(|asked| checks(&limits, known, asked)).collect();
            let clocks = Clocks { redis: now, process: now.saturating_add_signed(ahead) };
            let verdicts = runtime.block_on(agree(&mut lua, &mut rust, &requests, clocks))?;
            for (check, verdict) in requests.iter().flatten().zip(verdicts.iter().flatten()) {
                let charge = Charge::of(check.ask, verdict.at_ms, &verdict.own);
                charges.extend(charge.map(|charge| (check.key.clone(), check.caller, charge)));
                let granted = verdict.lease.filter(|granted| granted.hits > 0);
                seen.set(seen.get() + usize::from(granted.is_some()));
                grants.extend(granted.map(|granted| (check.key.clone(), granted)));
            }
        }
        Ok(())
    });
    agree.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(seen.get() > 300, "{} leases", seen.get());
}

/// For any error of the caller's clock: with calendar windows, Redis decides by its own clock or not at all. Two
/// processes may have different rules of a time zone, as if the zones differed.
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
    let limits = prop_oneof![calendar_limit(Algorithm::FixedWindow), calendar_limit(Algorithm::Budget)];
    let agree = runner.run(&(limits, any_time_zone(), steps), |(limit, other, steps)| {
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
            // Another request of the same call is decided regardless of this one.
            let others = [first.clone(), check(&second, second, hits), check(&second, second, hits)];
            let requests = [vec![first], if is_alone { Vec::new() } else { others.to_vec() }].concat();
            let (decided, stored) = runtime.block_on(lua.decide(&requests, clocks));
            for (checks, decided) in requests.iter().zip(&decided) {
                match decided {
                    Ok(verdicts) => prop_assert_eq!(verdicts, &rust.decide(checks, now), "{:?}", clocks),
                    Err(StoreError::Counter(why)) => {
                        prop_assert!(checks[0].limit != second && ahead.abs() > HOUR_MS, "{}: {:?}", why, clocks);
                        prop_assert!(why.ends_with("too far from that of Redis for a window of the calendar"));
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            for (checks, (bytes, _)) in requests.iter().zip(&stored) {
                let twin = rust.state(&checks[0].key).map(State::pack);
                prop_assert_eq!(bytes, &twin, "{:?}", clocks);
            }
        }
        Ok(())
    });
    agree.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Balances, and windows of the calendar of which a part is carried over: over months, with credits that repeat.
#[test]
fn both_twins_of_a_budget_credit_and_carry_over_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let lua = std::cell::RefCell::new(runtime.block_on(Lua::new(&redis)));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let month = |number: u64, percent: Option<u32>, time_zone: TimeZone, within: u64, options: Options| {
        let settle_within = Some(Duration::from_secs(within));
        let options = Options { time_zone: Some(time_zone), carry_percent: percent, settle_within, ..options };
        Limit::new(Algorithm::Budget, number, Duration::from_secs(30 * 86_400), options).unwrap()
    };
    let number = prop_oneof![4 => 1..300_u64, 1 => wide_number()];
    let percent = prop::option::weighted(0.8, 1..=100_u32);
    let unsettled = prop::sample::select(vec![Unsettled::Charge, Unsettled::Refund]);
    let limit = (number, percent, any_time_zone(), 60..40 * 86_400_u64, unsettled, prop::bool::weighted(0.25))
        .prop_map(move |(number, percent, zone, within, unsettled, is_balance)| {
            let options = Options { unsettled: Some(unsettled), ..Options::default() };
            match is_balance {
                true => Limit::new(Algorithm::Budget, number, NEVER, options).unwrap(),
                false => month(number, percent, zone, within, options),
            }
        });
    let moves = prop_oneof![
        4 => 0..1_000_i64, 3 => 0..3 * 86_400_000_i64, 2 => 0..80 * 86_400_000_i64, 1 => -5_000_000..0_i64,
    ];
    let hits = prop_oneof![6 => 1..120_u64, 1 => wide_number().prop_map(|hits| hits.max(1)), 1 => large_part()];
    let asks = prop_oneof![
        5 => hits.clone().prop_map(Ask::Take),
        4 => prop_oneof![4 => 0..150_u64, 1 => wide_number()].prop_map(Ask::Settle),
        1 => Just(Ask::Peek),
        1 => hits.prop_map(Ask::Refund),
        4 => credit().prop_map(Ask::Credit),
    ];
    let steps = prop::collection::vec((moves, asks, 0..3_u64, 1..3_usize), 1..30);
    let carried = std::cell::Cell::new(0);
    let agree = runner.run(&(limit, steps), |(limit, steps)| {
        let mut lua = lua.borrow_mut();
        runtime.block_on(lua.forget());
        let (mut rust, mut now) = (Twin::default(), START);
        let key = Key::new("", "llm", &[], |_| None, &limit, Origin::Rule);
        for (by, ask, holder, times) in steps {
            now = now.saturating_add_signed(by);
            let caller = Caller { holder, ..Caller::default() };
            let check = Check { caller, ..Check::new(key.clone(), limit, ask) };
            let clocks = Clocks { redis: now, process: now };
            let verdicts = runtime.block_on(agree(&mut lua, &mut rust, &vec![vec![check]; times], clocks))?;
            let extra = verdicts.iter().flatten().map(|verdict| verdict.own.extra).max();
            carried.set(carried.get() + usize::from(limit.options().time_zone.is_some() && extra > Some(0)));
        }
        Ok(())
    });
    agree.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(carried.get() > 100, "{} times", carried.get());
}

/// Lua reads only as much of a log, of slots and of a window's sum as it needs for a decision, so it can miss damage
/// elsewhere in them. The next test bounds the effect.
#[test]
fn a_damaged_counter_is_decided_as_a_fresh_one_and_written_anew() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let lua = std::cell::RefCell::new(runtime.block_on(Lua::new(&redis)));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1_500,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let before = prop::collection::vec((0..20_u64, 0..6_i64, 0..3_u64), 1..12);
    let limits = (prop_oneof![any_limit(), small_limit()], prop::option::weighted(0.3, any_penalty()));
    let wants = prop_oneof![4 => 1..4_i64, 1 => -3..0_i64];
    let drawn = (limits, prop::option::weighted(0.3, any_window()), before, wants, any::<u64>(), any::<bool>());
    let seen = std::cell::Cell::new(0);
    let agree = runner.run(&drawn, |((limit, penalty), window, before, hits, seed, is_alone)| {
        let (mut lua, mut rng) = (lua.borrow_mut(), fastrand::Rng::with_seed(seed));
        runtime.block_on(lua.forget());
        let kind = Type::of(&limit);
        let window = window.filter(|_| is_aligned(&limit));
        let own = Key::new("", "shop", &[], |_| None, &limit, Origin::Rule);
        let penalty = penalty.map(|penalty| Penalized { key: own.of_penalty(&penalty), penalty });
        let check = |hits, holder| Check {
            penalty: penalty.clone(),
            caller: Caller { window, holder, ..Caller::default() },
            ..Check::new(own.clone(), limit, ask(hits))
        };
        let (mut rust, mut now) = (Twin::default(), START);
        for (by, hits, holder) in before {
            now += by;
            rust.decide(&[check(hits, holder)], now);
        }
        let mut expected = Vec::new();
        let asked = check(hits, 0);
        let read = |key: &Key, bytes: &[u8]| match key {
            key if key == &own => State::unpack(&limit, asked.caller, bytes),
            key if penalty.as_ref().is_some_and(|penalty| key == &penalty.key) => {
                penalty::State::unpack(bytes).map(State::Penalty)
            }
            _ => None,
        };
        let of_penalty = penalty.as_ref().map(|penalty| (&penalty.key, Type::Text));
        for (key, kind) in [(&own, kind)].into_iter().chain(of_penalty) {
            let Some((state, _)) = rust.counters.remove(key) else { continue };
            let mut held = Held::of(state.pack(), kind);
            if rng.bool() {
                held = held.damaged(&mut rng);
            }
            if held.is_empty() {
                continue;
            }
            runtime.block_on(lua.put(key, &held));
            match held.bytes(kind).and_then(|bytes| read(key, &bytes)) {
                Some(state) => drop(rust.counters.insert(key.clone(), (state, 0))),
                // A refund is none of a penalty's business.
                None if key == &own || hits > 0 => expected.push(key.as_str().as_bytes().to_vec()),
                None => {}
            }
        }
        let other = Limit::new(Algorithm::TokenBucket, 9, Duration::from_secs(1), Options::default()).unwrap();
        let other = Check::new(Key::new("", "other", &[], |_| None, &other, Origin::Rule), other, ask(1));
        let requests = if is_alone { vec![vec![asked.clone()]] } else { vec![vec![asked.clone()], vec![other]] };
        let clocks = Clocks { redis: now, process: now };
        let (decided, stored, damaged) = runtime.block_on(lua.decide_damaged(&requests, clocks));
        let decided: Vec<Verdicts> = decided.into_iter().map(Result::unwrap).collect();
        seen.set(seen.get() + damaged.len());
        let is_lazy = [Algorithm::SlidingWindow, Algorithm::SlidingLog, Algorithm::Concurrency, Algorithm::Budget];
        if is_lazy.contains(&limit.algorithm()) && damaged != expected {
            let own = own.as_str().as_bytes();
            prop_assert!(expected.iter().any(|name| name == own) && !damaged.iter().any(|name| name == own));
            return Ok(());
        }
        prop_assert_eq!(&damaged, &expected);
        for (checks, decided) in requests.iter().zip(&decided) {
            prop_assert_eq!(decided, &rust.decide(checks, now));
        }
        for ((key, _), (bytes, _)) in requests.iter().flat_map(|checks| counters(checks)).zip(stored) {
            // Lua may keep a -0.0, which is the same number as Rust's 0.0.
            let bytes = bytes.map(|bytes| read(key, &bytes).map_or(bytes, |state| state.pack()));
            prop_assert_eq!(bytes, rust.state(key).map(State::pack), "{:?}", key);
        }
        Ok(())
    });
    agree.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(seen.get() > 100, "{} damaged counters", seen.get());
}

/// Cases found by the property above: a running sum so large that Lua's next sum is not exact; a holder of -0.0, which
/// equals 0.0 as a number but not as bytes; and an old entry between young ones, whose hits would have expired.
#[test]
fn damage_that_the_property_found_is_damage_in_both_twins() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let mut lua = runtime.block_on(Lua::new(&redis));
    let now = START as f64;
    let entry = |first: f64, second: f64, hits: u32| {
        [first.to_le_bytes().as_slice(), &second.to_le_bytes(), &hits.to_le_bytes()].concat()
    };
    let slots = |used: u32, count: u32, entries: &[Vec<u8>]| {
        Held::Text([used.to_le_bytes().as_slice(), &count.to_le_bytes(), &entries.concat()].concat())
    };
    let sum = Held::List(vec![entry(now, MAX_HITS as f64 - 1.0, 1)]);
    let old = Held::List(vec![entry(now - 2.0, 1.0, 1), entry(19.0, 2.0, 1), entry(now, 4.0, 2)]);
    let holder = slots(0, 0, &[entry(-0.0, now, 1)]);
    let old_slot = slots(3, 3, &[entry(1.0, now - 2.0, 1), entry(2.0, 19.0, 1), entry(3.0, now, 1)]);
    let cases = [
        (Algorithm::SlidingLog, sum, 3),
        (Algorithm::SlidingLog, old.clone(), 2),
        (Algorithm::SlidingLog, old, -2),
        (Algorithm::Concurrency, holder, 5),
        (Algorithm::Concurrency, old_slot, 3),
    ];
    for (algorithm, held, hits) in cases {
        let limit = Limit::new(algorithm, 4, Duration::from_secs(60), Options::default()).unwrap();
        let key = Key::new("", "shop", &[], |_| None, &limit, Origin::Rule);
        let bytes = held.bytes(Type::of(&limit)).unwrap();
        assert_eq!(State::unpack(&limit, Caller::default(), &bytes), None, "{held:?}");
        runtime.block_on(lua.put(&key, &held));
        let requests = [vec![Check::new(key, limit, ask(hits))]];
        let clocks = Clocks { redis: START, process: START };
        let (decided, _, _) = runtime.block_on(lua.decide_damaged(&requests, clocks));
        let fresh = Twin::default().decide(&requests[0], START);
        assert_eq!(decided.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [fresh], "{held:?}, {hits} hits");
    }
}

/// More streams than a budget remembers, and more with one name: drawn sequences are too short for that.
#[test]
fn both_twins_of_a_budget_forget_the_same_streams_and_refuse_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let mut lua = runtime.block_on(Lua::new(&redis));
    let limit = Limit::new(Algorithm::Budget, MAX_NUMBER, Duration::from_secs(3_600), Options::default()).unwrap();
    let key = Key::new("", "shop", &[], |_| None, &limit, Origin::Rule);
    let mut rust = Twin::default();
    // Returns how many of these streams pass, and what remains then.
    let mut ask_all = |now: u64, streams: Vec<u64>, ask: Ask| {
        let (mut passed, mut remaining) = (0, 0);
        for streams in streams.chunks(250) {
            let check = |holder: &u64| {
                let caller = Caller { holder: *holder, ..Caller::default() };
                vec![Check { caller, ..Check::new(key.clone(), limit, ask) }]
            };
            let requests: Vec<Vec<Check>> = streams.iter().map(check).collect();
            let clocks = Clocks { redis: now, process: now };
            let decided = runtime.block_on(lua.verdicts(&requests, clocks));
            for (checks, decided) in requests.iter().zip(decided) {
                let verdicts = rust.decide(checks, now);
                assert_eq!(decided.unwrap(), verdicts, "{checks:?}");
                let own = verdicts[0].unwrap().own;
                (passed, remaining) = (passed + usize::from(own.allowed), own.remaining);
            }
        }
        let peek = [vec![Check::new(key.clone(), limit, Ask::Peek)]];
        let state = rust.state(&key).map(State::pack);
        let (_, stored) = runtime.block_on(lua.decide(&peek, Clocks { redis: now, process: now }));
        assert!(stored[0].0 == state, "{now}: the twins differ");
        (passed, MAX_NUMBER - remaining)
    };
    let (hour, now) = (HOUR_MS.unsigned_abs(), START);
    assert_eq!(ask_all(now, vec![50_000], Ask::Take(1)), (1, 1), "it lasts longer than the others");
    assert_eq!(ask_all(now, (0..10_005).collect(), Ask::Take(1)), (9_999, 10_000));
    assert_eq!(ask_all(now, (0..9_999).rev().collect(), Ask::Settle(2)), (9_999, 19_999));
    // The first are forgotten for the next, but for the one that holds hits, and that has settled since.
    assert_eq!(ask_all(now + 1, (20_000..20_500).collect(), Ask::Take(1)), (500, 20_499));
    assert_eq!(ask_all(now + 1, (20_000..20_500).collect(), Ask::Settle(1)), (500, 20_499));
    assert_eq!(ask_all(now + 2, vec![50_000; 3], Ask::Settle(1)), (3, 20_499));
    assert_eq!(ask_all(now + 2, vec![9_998, 9_997], Ask::Settle(2)), (2, 20_499), "they are known");
    assert_eq!(ask_all(now + 2, vec![0, 1], Ask::Settle(2)), (2, 20_503), "they are not");
    // A hundred streams with one name.
    assert_eq!(ask_all(now + 3, vec![7; 105], Ask::Take(1)), (100, 20_603));
    assert_eq!(ask_all(now + 3, vec![7; 30], Ask::Settle(1)), (30, 20_603));
    assert_eq!(ask_all(now + 3, vec![7; 30], Ask::Take(1)), (30, 20_633));
    // A name that comes and goes is once in the queue.
    assert_eq!(ask_all(now + 4, vec![8; 50], Ask::Take(1)), (50, 20_683));
    assert_eq!(ask_all(now + 4, vec![8; 50], Ask::Refund(1)), (50, 20_633));
    assert_eq!(ask_all(now + 4, vec![8], Ask::Take(1)), (1, 20_634));
    // An hour after the last, each decision forgets two.
    let later = now + 2 * hour;
    assert_eq!(ask_all(later, (30_000..36_000).collect(), Ask::Take(1)).0, 6_000);
    assert_eq!(ask_all(later + 1, (30_000..36_000).collect(), Ask::Settle(0)).0, 6_000);
}

#[test]
fn damage_opens_no_limit_for_longer_than_it_remembers_and_denies_for_no_longer() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let lua = std::cell::RefCell::new(runtime.block_on(Lua::new(&redis)));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let limit = small_limit().prop_filter("it lets something pass, however many are denied", |limit| {
        let counts_denied = limit.count_denied() && limit.algorithm() != Algorithm::FixedWindow;
        // What is used of a balance is used for good.
        limit.number() > 0 && limit.period_ms() >= 20 && !counts_denied && !limit.is_balance()
    });
    let bounded = runner.run(&(limit, any::<u64>()), |(limit, seed)| {
        let (mut lua, mut rng) = (lua.borrow_mut(), fastrand::Rng::with_seed(seed));
        runtime.block_on(lua.forget());
        let key = Key::new("", "shop", &[], |_| None, &limit, Origin::Rule);
        let (memory, period) = (memory_ms(&limit), limit.period_ms());
        let (tick, mut now, mut holder) = ((period / 8).max(1), START, 0);
        let mut take = || {
            holder += 1;
            let caller = Caller { holder, ..Caller::default() };
            vec![Check { caller, ..Check::new(key.clone(), limit, ask(1)) }]
        };
        let mut rust = Twin::default();
        for _ in 0..rng.usize(1..40) {
            rust.decide(&take(), now);
            now += rng.u64(..=tick);
        }
        let Some((state, _)) = rust.counters.remove(&key) else { return Ok(()) };
        runtime.block_on(lua.put(&key, &Held::of(state.pack(), Type::of(&limit)).damaged(&mut rng)));
        // The clock may have been set back by a period, during which the counter does not advance.
        let settled = now + memory + period + 2 * tick;
        let mut left = Vec::new();
        while now < settled + memory + 2 * period {
            let requests: Vec<Vec<Check>> = (0..limit.number() + 2).map(|_| take()).collect();
            let (decided, ..) = runtime.block_on(lua.decide(&requests, Clocks { redis: now, process: now }));
            for verdict in decided.into_iter().map(|decided| decided.unwrap()[0].unwrap().own) {
                left.extend(verdict.allowed.then_some(now + verdict.delay_ms));
            }
            now += tick;
        }
        left.sort_unstable();
        let settled: Vec<u64> = left.into_iter().filter(|at| *at >= settled).collect();
        prop_assert!(!settled.is_empty(), "it is denied for good");
        let within = |at: &u64| settled.iter().filter(|other| (*at..at + period).contains(other)).count() as u64;
        let most = settled.iter().map(within).max().unwrap_or_default();
        prop_assert!(most <= bound(&limit, 1), "{} within a period", most);
        Ok(())
    });
    bounded.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn where_the_clock_of_a_process_is_far_off_records_go_to_the_page_of_redis() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let mut lua = runtime.block_on(Lua::new(&redis));
    let limit = Limit::new(Algorithm::FixedWindow, 50, Duration::from_secs(3_600), Options::default()).unwrap();
    let usage = Usage::new(Period::Minute, Duration::from_secs(86_400)).unwrap();
    let recorded = Some(Recorded { usage, tag: None, occasion: Occasion::Decided });
    let check =
        Check { recorded, ..Check::new(Key::new("", "shop", &[], |_| None, &limit, Origin::Rule), limit, ask(1)) };
    let hour = HOUR_MS.unsigned_abs();
    for (process, named_by) in [(START, START), (START - hour, START - hour), (START - 3 * hour, START), (1, START)] {
        runtime.block_on(lua.forget());
        let clocks = Clocks { redis: START, process };
        let (decided, ..) = runtime.block_on(lua.decide(&[vec![check.clone()]], clocks));
        assert!(decided[0].is_ok());
        let (records, ..) = runtime.block_on(lua.page(&check.key.of_page(Period::Minute, named_by)));
        let one = Totals { admitted: 1, denied: 0, cost: 1, topped_up: 0 };
        assert_eq!(records, BTreeMap::from([(Period::Minute.index(START), one)]), "the process is at {process}");
    }
}

#[test]
fn a_reset_clears_whatever_its_key_holds() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let mut lua = runtime.block_on(Lua::new(&redis));
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(*algorithm, 5, Duration::from_secs(60), Options::default()).unwrap();
        let key = Key::new("", "shop", &[], |_| None, &limit, Origin::Rule);
        let penalty = Penalty::new(1, Duration::from_secs(60), Duration::from_secs(60), false).unwrap();
        let penalty = Penalized { key: key.of_penalty(&penalty), penalty };
        for held in [
            Held::Hash(BTreeMap::from([(b"0".to_vec(), Vec::new())])),
            Held::Text(b"\x00nonsense".to_vec()),
            Held::List(vec![b"nonsense".to_vec()]),
        ] {
            runtime.block_on(lua.put(&key, &held));
            runtime.block_on(lua.put(&penalty.key, &held));
            let reset = Check { penalty: Some(penalty.clone()), ..Check::new(key.clone(), limit, Ask::Reset) };
            let clocks = Clocks { redis: START, process: START };
            let (decided, _, damaged) = runtime.block_on(lua.decide_damaged(&[vec![reset]], clocks));
            assert_eq!(
                decided[0].as_ref().unwrap()[0].unwrap().own.remaining,
                limit.capacity(),
                "{algorithm}: {held:?}"
            );
            assert_eq!(damaged, [[0_u8; 0]; 0], "it is not read");
            let left: u32 = runtime
                .block_on(cmd("EXISTS").arg(key.as_str()).arg(penalty.key.as_str()).query_async(&mut lua.connection))
                .unwrap();
            assert_eq!(left, 0, "{algorithm}: {held:?}");
        }
    }
}
