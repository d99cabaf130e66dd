//! During a rolling update from `envoyproxy/ratelimit` to Tollgate both share counters (`COUNTER_KEYS=reference`): with
//! one Redis and randomly distributed requests, exactly the limit passes. Windows are years long, so no test crosses a
//! window's end.

use crate::support;

use std::time::{SystemTime, UNIX_EPOCH};

use ::tollgate::wire::rate_limit_response::Code;
use ::tollgate::wire::{RateLimitRequest, RateLimitResponse, RateLimitServiceClient};
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{cmd, pipe};
use fastrand::Rng;
use futures_util::future::join_all;
use support::redis::Redis;
use support::reference::Reference;
use support::tollgate::{self, Tollgate, request};
use tonic::transport::Channel;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 60}
  - key: tenant
    descriptors:
      - {key: path, value: '/api/*', share_threshold: true, rate_limit: {unit: year, requests_per_unit: 40}}
";

/// The same with what `envoyproxy/ratelimit` does not read.
const OUR_RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 60}
  - key: odd
    rate_limit: {period: 400h, requests_per_unit: 5}
  - key: sliding
    rate_limit: {unit: year, requests_per_unit: 5, algorithm: sliding_window}
  - key: two
    rate_limits:
      - {unit: year, requests_per_unit: 5}
      - {unit: month, requests_per_unit: 5}
  - key: mixed
    rate_limits:
      - {unit: year, requests_per_unit: 5}
      - {unit: year, requests_per_unit: 5, algorithm: token_bucket}
  - key: banned
    rate_limit: {unit: year, requests_per_unit: 1, penalty: {after: 3, within: 10m, ban: 1h}}
  - key: leased
    rate_limit: {unit: year, requests_per_unit: 1000, count_denied: false, lease: {unused: 10%, ttl: 10s}}
  - key: strict
    rate_limit: {unit: year, requests_per_unit: 60, failure_mode: closed}
";

const YEAR: u64 = 365 * 24 * 60 * 60;

fn start(rules: &str, redis: &Redis, more: &[&str]) -> Tollgate {
    let url = format!("REDIS_URL={}", redis.url());
    // A generous timeout for busy machines.
    let settings =
        [&[url.as_str(), "REDIS_TIMEOUT=10s", "COUNTER_KEYS=reference", "DEFAULT_ALGORITHM=fixed_window"], more];
    Tollgate::start(rules, &settings.concat())
}

/// The name there of the counter of a yearly limit.
fn key(entries: &[(&str, &str)]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let entries: String = entries.iter().map(|(key, value)| format!("{key}_{value}_")).collect();
    format!("shop_{entries}{}", now - now % YEAR)
}

/// Whether the request passes, and the remaining hits.
type Said = (Code, u32);

fn said(response: &RateLimitResponse) -> Said {
    (response.overall_code(), response.statuses[0].limit_remaining)
}

/// By the count after its charge.
fn expected(after: u64, limit: u64) -> Said {
    let code = if after > limit { Code::OverLimit } else { Code::Ok };
    (code, limit.saturating_sub(after) as u32)
}

/// The servers to send requests to.
#[derive(Clone)]
enum Process {
    /// Over the wire.
    Served(RateLimitServiceClient<Channel>),
    /// A connection that does what `envoyproxy/ratelimit` does in Redis, with a key composed by the test.
    Plain(MultiplexedConnection),
}

impl Process {
    async fn ask(&mut self, counter: &Counter, hits: u32) -> Said {
        match self {
            Process::Served(client) => {
                let request = RateLimitRequest { hits_addend: hits, ..request("shop", &[counter.entries]) };
                said(&client.should_rate_limit(request).await.unwrap().into_inner())
            }
            Process::Plain(redis) => {
                let key = key(counter.named);
                let mut pipe = pipe();
                pipe.cmd("INCRBY").arg(&key).arg(hits).cmd("EXPIRE").arg(&key).arg(YEAR + 17).ignore();
                let (after,): (u64,) = pipe.query_async(redis).await.unwrap();
                expected(after, counter.limit)
            }
        }
    }
}

/// A descriptor and its counter's name.
struct Counter {
    entries: &'static [(&'static str, &'static str)],
    named: &'static [(&'static str, &'static str)],
    limit: u64,
}

const COUNTERS: [Counter; 4] = [
    Counter { entries: &[("user", "ann")], named: &[("user", "ann")], limit: 60 },
    Counter { entries: &[("user", "")], named: &[("user", "")], limit: 60 },
    Counter { entries: &[("user", "b{o}b %_é|=")], named: &[("user", "b{o}b %_é|=")], limit: 60 },
    Counter {
        entries: &[("tenant", "a_b"), ("path", "/api/pay")],
        named: &[("tenant", "a_b"), ("path", "/api/*")],
        limit: 40,
    },
];

/// Sends requests to random processes: each answer equals the total count exactly.
async fn ask_at_random(processes: &mut [Process], seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut counts = [0; COUNTERS.len()];
    for turn in 0..600 {
        let (counter, process) = (rng.usize(..COUNTERS.len()), rng.usize(..processes.len()));
        let hits = if rng.u8(..8) == 0 { rng.u32(2..9) } else { 1 };
        let answer = processes[process].ask(&COUNTERS[counter], hits).await;
        counts[counter] += u64::from(hits);
        let expected = expected(counts[counter], COUNTERS[counter].limit);
        assert_eq!(answer, expected, "turn {turn}: {hits} hits of counter {counter} by process {process}");
    }
    assert!(counts.iter().zip(&COUNTERS).all(|(count, counter)| *count > counter.limit), "{counts:?}");
}

/// Sends more requests than the limit to all of them at once; returns the number that passed.
async fn passed_at_once(processes: &[Process], entries: &'static [(&'static str, &'static str)]) -> usize {
    let counter = Counter { entries, named: entries, limit: 60 };
    let asking = (0..150).map(|turn| {
        let mut process = processes[turn % processes.len()].clone();
        let counter = &counter;
        async move { process.ask(counter, 1).await }
    });
    join_all(asking).await.into_iter().filter(|(code, _)| *code == Code::Ok).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_incr_and_two_of_ours_count_together_to_the_digit() {
    let redis = Redis::start();
    let ours = [start(RULES, &redis, &[]), start(RULES, &redis, &["LOCAL_CACHE_SIZE_IN_BYTES=0"])];
    let mut processes = vec![Process::Plain(redis.connection().await), Process::Plain(redis.connection().await)];
    for tollgate in &ours {
        processes.push(Process::Served(tollgate.client().await));
    }
    ask_at_random(&mut processes, 1).await;
    assert_eq!(passed_at_once(&processes, &[("user", "crowd")]).await, 60);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs envoyproxy/ratelimit: make e2e"]
async fn envoyproxy_ratelimit_itself_and_ours_count_together_to_the_digit() {
    let redis = Redis::start();
    let (theirs, ours) = (Reference::start(RULES, &redis, &[]), start(RULES, &redis, &[]));
    let mut processes = vec![Process::Served(theirs.client().await), Process::Served(ours.client().await)];
    ask_at_random(&mut processes, 2).await;
    assert_eq!(passed_at_once(&processes, &[("user", "crowd")]).await, 60);
    // The names are theirs: one process that only counts agrees with both.
    let (mut plain, ann) = (Process::Plain(redis.connection().await), &COUNTERS[0]);
    processes.swap(0, 1);
    for process in &mut processes {
        assert_eq!(process.ask(ann, 1).await, plain.ask(ann, 1).await);
    }
}

/// The value of a counter, as text and as what `INCRBY` takes for a number, and its TTL.
async fn stored(redis: &mut MultiplexedConnection, key: &str) -> (String, u64, u64) {
    let mut pipe = pipe();
    pipe.cmd("GET").arg(key).cmd("INCRBY").arg(key).arg(0).cmd("TTL").arg(key);
    pipe.query_async(redis).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_is_a_plain_integer_that_outlives_its_window_by_the_jitter_at_most() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    for (settings, most) in [(&[][..], 299), (&["EXPIRATION_JITTER_MAX_SECONDS=0"], 0)] {
        let tollgate = start(RULES, &redis, settings);
        let users: Vec<String> = (0..20).map(|i| format!("{most}-{i}")).collect();
        for user in &users {
            assert!(tollgate.passes("shop", &[("user", user)]).await);
            let (value, number, ttl) = stored(&mut connection, &key(&[("user", user)])).await;
            assert_eq!((value.as_str(), number), ("1", 1));
            // In whole seconds, which pass meanwhile.
            assert!((YEAR - 60..=YEAR + most).contains(&ttl), "{ttl}");
            assert!(tollgate.passes("shop", &[("user", user)]).await);
            assert_eq!(stored(&mut connection, &key(&[("user", user)])).await.0, "2");
        }
    }
    let keys: Vec<String> = cmd("KEYS").arg("*shop*").query_async(&mut connection).await.unwrap();
    assert_eq!(keys.len(), 40, "there is nothing beside: {keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_descriptor_is_charged_also_where_another_denies_and_an_override_is_the_same_counter() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let tollgate = start(RULES, &redis, &[]);
    cmd("SET").arg(key(&[("user", "ann")])).arg(60).exec_async(&mut connection).await.unwrap();
    let both = request("shop", &[&[("user", "ann")], &[("user", "bob")], &[("user", "bob")]]);
    for round in 1..=2 {
        let response = tollgate.ask(both.clone()).await.unwrap();
        let codes: Vec<_> = response.statuses.iter().map(|status| status.code()).collect();
        assert_eq!(codes, [Code::OverLimit, Code::Ok, Code::Ok]);
        let left = [1, 2].map(|place| response.statuses[place].limit_remaining);
        assert_eq!(left, [60 - round * 2 + 1, 60 - round * 2], "each of two that are the same counts");
    }
    assert_eq!(stored(&mut connection, &key(&[("user", "ann")])).await.0, "62", "a denied request counts");
    assert_eq!(stored(&mut connection, &key(&[("user", "bob")])).await.0, "4");

    use ::tollgate::wire::rate_limit_descriptor::RateLimitOverride;
    let mut brought = request("shop", &[&[("user", "bob")]]);
    brought.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 6, unit_multiplier: None });
    assert_eq!(said(&tollgate.ask(brought.clone()).await.unwrap()), (Code::Ok, 0));
    assert_eq!(said(&tollgate.ask(brought).await.unwrap()), (Code::OverLimit, 0));
    // A peek shows it, and leaves no counter behind.
    for user in ["bob", "nobody"] {
        let mut peek = request("shop", &[&[("user", user)]]);
        peek.descriptors[0].hits_addend = Some(0);
        let left = if user == "bob" { 54 } else { 60 };
        assert_eq!(said(&tollgate.ask(peek).await.unwrap()), (Code::Ok, left));
    }
    let exists: u32 = cmd("EXISTS").arg(key(&[("user", "nobody")])).query_async(&mut connection).await.unwrap();
    assert_eq!(exists, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_envoyproxy_ratelimit_cannot_have_keeps_our_names() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let tollgate = start(OUR_RULES, &redis, &["CACHE_KEY_PREFIX=p:"]);
    for key in ["odd", "sliding", "two", "mixed", "banned", "banned"] {
        tollgate.ask(request("shop", &[&[(key, "x")]])).await.unwrap();
    }
    let mut keys: Vec<String> = cmd("KEYS").arg("*shop*").query_async(&mut connection).await.unwrap();
    keys.sort();
    let theirs = |entry: &str| format!("p:{}", key(&[(entry, "x")]));
    let mut expected = vec![
        theirs("mixed"),
        "p:{shop|banned=x}|fw1:31536000000".to_owned(),
        "p:{shop|banned=x}|fw1:31536000000|pe1:600000".to_owned(),
        "p:{shop|mixed=x}|tb1:31536000000".to_owned(),
        "p:{shop|odd=x}|fw1:1440000000".to_owned(),
        "p:{shop|sliding=x}|sw1:31536000000/10".to_owned(),
        "p:{shop|two=x}|fw1:2592000000".to_owned(),
        "p:{shop|two=x}|fw1:31536000000".to_owned(),
    ];
    expected.sort();
    assert_eq!(keys, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_in_advance_of_a_counter_that_others_count_in() {
    let redis = Redis::start();
    let tollgate = start(OUR_RULES, &redis, &[]);
    for hits in ["1", "2", "3"] {
        assert!(tollgate.passes("shop", &[("leased", "x")]).await);
        assert_eq!(stored(&mut redis.connection().await, &key(&[("leased", "x")])).await.0, hits);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_no_integer_is_a_fresh_counter_and_any_integer_is_read() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let tollgate = start(OUR_RULES, &redis, &[]);
    let strict = |user: &str| key(&[("strict", user)]);
    for (user, value) in [("word", "abc"), ("half", "1.5"), ("empty", ""), ("hex", "0x10"), ("space", " 7")] {
        cmd("SET").arg(strict(user)).arg(value).exec_async(&mut connection).await.unwrap();
        let alone = tollgate.ask(request("shop", &[&[("strict", user)]])).await.unwrap();
        assert_eq!(alone.overall_code(), Code::Ok, "{user}: it would stay damaged for both until it expires");
        let left: String = cmd("GET").arg(strict(user)).query_async(&mut connection).await.unwrap();
        assert_eq!(left, "1", "{user}: written so that the other can count on");
    }
    cmd("RPUSH").arg(strict("list")).arg(1).exec_async(&mut connection).await.unwrap();
    assert_eq!(tollgate.ask(request("shop", &[&[("strict", "list")]])).await.unwrap().overall_code(), Code::Ok);
    assert!(tollgate.passes("shop", &[("strict", "sound")]).await, "others go on");
    // A process there can have counted anything that fits.
    for (user, value, left) in [
        ("much", "9223372036854775807", (Code::OverLimit, 0)),
        ("more", "4294967296", (Code::OverLimit, 0)),
        ("below", "-5", (Code::Ok, 59)),
        ("edge", "59", (Code::Ok, 0)),
    ] {
        cmd("SET").arg(strict(user)).arg(value).exec_async(&mut connection).await.unwrap();
        assert_eq!(said(&tollgate.ask(request("shop", &[&[("strict", user)]])).await.unwrap()), left, "{user}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_show_and_reset_the_counter_that_both_count_in() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let (url, name) = (redis.url(), key(&[("user", "ann")]));
    let tollgate = start(RULES, &redis, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    cmd("SET").arg(&name).arg(58).exec_async(&mut connection).await.unwrap();
    let run = |words: &[&str]| {
        let settings = [
            ("REDIS_URL", url.as_str()),
            ("RULES", tollgate.rules.path().to_str().unwrap()),
            ("COUNTER_KEYS", "reference"),
            ("DEFAULT_ALGORITHM", "fixed_window"),
            ("REDIS_TIMEOUT", "10s"),
        ];
        let output = tollgate::command().args(words).envs(settings).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = run(&["counter", "get", "--domain", "shop", "user=ann"]);
    assert!(shown.starts_with(&format!("{name}\n  60 per year, fixed_window (user): 2 of 60 left")), "{shown}");
    let explained = run(&["explain", "--domain", "shop", "user=ann"]);
    assert!(explained.contains(&name) && explained.contains("2 of 60 left"), "{explained}");
    let (status, explained) = tollgate.admin("GET", "/explain?domain=shop&user=ann", "a token of some length");
    assert_eq!(status, 200);
    assert!(explained.to_string().contains(&name), "{explained}");
    run(&["counter", "reset", "--domain", "shop", "user=ann"]);
    let exists: u32 = cmd("EXISTS").arg(&name).query_async(&mut connection).await.unwrap();
    assert_eq!(exists, 0);
    assert!(tollgate.passes("shop", &[("user", "ann")]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_the_one_kind_of_names_are_not_read_by_the_other() {
    let redis = Redis::start();
    let rolling = start(RULES, &redis, &[]);
    let url = format!("REDIS_URL={}", redis.url());
    let ours = Tollgate::start(RULES, &[&url, "REDIS_TIMEOUT=10s", "DEFAULT_ALGORITHM=fixed_window"]);
    for tollgate in [&rolling, &ours] {
        let response = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap();
        assert_eq!(said(&response), (Code::Ok, 59), "each for itself");
    }
}

#[test]
fn what_the_setting_does_not_do_is_told() {
    let check = |settings: &[(&str, &str)]| {
        let mut command = tollgate::command();
        let output = command.args(["check", "--env"]).env("RULES", "config/rules").envs(settings.to_vec()).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let redis = ("REDIS_URL", "localhost:6379");
    let (reference, fixed) = (("COUNTER_KEYS", "reference"), ("DEFAULT_ALGORITHM", "fixed_window"));
    let jitter = ("EXPIRATION_JITTER_MAX_SECONDS", "100");
    assert_eq!(check(&[redis, reference, fixed, jitter]), [""; 0]);
    assert_eq!(check(&[redis, ("EXPIRATION_JITTER_MAX_SECONDS", "0")]), [""; 0]);
    for (settings, told) in [
        (
            &[reference, fixed][..],
            "COUNTER_KEYS=reference (environment) does nothing: envoyproxy/ratelimit cannot share counters",
        ),
        (&[redis, reference], "COUNTER_KEYS=reference does little: only limits with"),
        (&[redis, jitter], "EXPIRATION_JITTER_MAX_SECONDS=100 (environment) does nothing: without COUNTER_KEYS"),
    ] {
        let warnings = check(settings);
        assert!(warnings.len() == 1 && warnings[0].contains(told), "{warnings:?}");
    }
}
