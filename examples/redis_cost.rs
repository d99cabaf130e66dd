//! What a decision costs Redis, and what a counter holds: the tables of costs in `docs/algorithms-in-detail.md`.
//!
//! `cargo run --release --example redis_cost -- redis://localhost:6379` uses that Redis, which should have no other
//! load and no valuable data: usage pages are left behind. With `sizes` only the second table is printed, for counters
//! that grow with their contents, in a few seconds; with `streams` the third, for budgets; with `usage` the tables of
//! `docs/usage.md`, and with `fleet` what heartbeats and an open console cost.

#![allow(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Client, Script, Value, cmd, from_redis_value, pipe};
use tollgate::engine::algorithm::{Algorithm, Ask, Caller, Limit, Options, State};
use tollgate::engine::check::{Check, Key, Occasion, Origin, Recorded};
use tollgate::engine::descriptor::Entry;
use tollgate::engine::usage::{Period, Totals, Usage};
use tollgate::store::redis::script::{self, Group};

/// Enough for every hit that a counter gets here, and few enough that it does not forget them at once.
const NUMBER: u32 = 1_000;
const PERIOD: Duration = Duration::from_secs(60);
/// So long that the oldest entry of the largest counter is not over.
const SIZED_PERIOD: Duration = Duration::from_secs(300);
const COUNTERS: usize = 10_000;
const DECISIONS: usize = 320_000;
/// Of counters of one size: so few that they do not grow much by it.
const SIZED_DECISIONS: usize = 4_000;
/// In all counters of one size together.
const ENTRIES: u32 = 100_000;
/// What a counter of the second table keeps when it is asked.
const SIZES: [(Algorithm, &[u32]); 2] =
    [(Algorithm::SlidingLog, &[10, 1_000, 90_000]), (Algorithm::Concurrency, &[10, 100, 1_000])];
/// Streams in progress of a budget.
const STREAMS: [u32; 4] = [1, 100, 1_000, 9_000];
/// Streams that begin together and then settle, and how often.
const BATCH: u32 = 1_024;
const BATCHES: u32 = 16;
/// An entry of a sliding log, as the script packs it.
const ENTRY_BYTES: usize = 20;
/// Number of requests sent together: in one call, as Tollgate does, or in separate calls.
const TOGETHER: usize = 32;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://localhost:6379".into());
    let mut redis = Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    for load in script::load(false) {
        load.exec_async(&mut redis).await.unwrap();
    }
    match std::env::args().nth(2).as_deref() {
        Some("sizes") => by_size(&mut redis).await,
        Some("streams") => by_streams(&mut redis).await,
        Some("usage") => by_usage(&mut redis).await,
        Some("fleet") => by_fleet(&mut redis).await,
        _ => {
            by_algorithm(&mut redis).await;
            by_size(&mut redis).await;
            by_streams(&mut redis).await;
            by_usage(&mut redis).await;
            by_fleet(&mut redis).await;
        }
    }
}

async fn by_algorithm(redis: &mut MultiplexedConnection) {
    println!(
        "| | allowed, {TOGETHER} in a call | one in a call | denied, {TOGETHER} in a call \
         | one in a call | bytes per counter |"
    );
    println!("|---|---|---|---|---|---|");
    // Streams of a budget have names of their own, see `by_streams`.
    for algorithm in Algorithm::ALL.iter().filter(|algorithm| **algorithm != Algorithm::Budget) {
        let (allowed, denied) = (checks(*algorithm, NUMBER), checks(*algorithm, 1));
        // The limits are used up now.
        cpu_us(redis, &denied, TOGETHER, COUNTERS).await;
        let mut row = format!("| `{algorithm}`");
        for checks in [&allowed, &denied] {
            for in_a_call in [TOGETHER, 1] {
                let each_us = cpu_us(redis, checks, in_a_call, DECISIONS).await;
                write!(row, " | {each_us:.1} µs").unwrap();
            }
        }
        println!("{row} | {} |", counter_bytes(redis, &allowed[0]).await);
    }
    println!();
}

async fn by_size(redis: &mut MultiplexedConnection) {
    println!(
        "| | holds | allowed | denied | of half as many hits, denied | bytes per counter |\n|---|---|---|---|---|---|"
    );
    for (algorithm, size) in SIZES.iter().flat_map(|(algorithm, sizes)| sizes.iter().map(|size| (*algorithm, *size))) {
        // The name does not hold the number: all of these ask the same counters.
        let [room, full] = [size + 1_000, size].map(|number| limit(algorithm, number, SIZED_PERIOD));
        let counters = (ENTRIES / size).clamp(10, 1_000);
        let asked = |limit: Limit, hits: u32| -> Vec<Check> {
            let ask = Ask::Take(hits.into());
            (0..counters).map(|i| Check { ask, ..check(limit, format!("size-{size}-{i}")) }).collect()
        };
        let (one, state) = (asked(room, 1), used(room, size));
        for check in &one {
            write(redis, check, &state).await;
        }
        let bytes = memory(redis, &one[0]).await;
        let allowed_us = cpu_us(redis, &one, 1, SIZED_DECISIONS).await;
        let denied_us = cpu_us(redis, &asked(full, 1), 1, SIZED_DECISIONS).await;
        let several_us = cpu_us(redis, &asked(full, size / 2), 1, SIZED_DECISIONS).await;
        println!("| `{algorithm}` | {size} | {allowed_us:.1} µs | {denied_us:.1} µs | {several_us:.1} µs | {bytes} |");
    }
}

/// Measures what a stream costs a budget at its two ends, beside a request of a `sliding_window`.
async fn by_streams(redis: &mut MultiplexedConnection) {
    println!(
        "| streams in progress | it begins | it settles | `sliding_window` | bytes per stream |\n|---|---|---|---|---|"
    );
    let window = checks(Algorithm::SlidingWindow, NUMBER);
    let limit = limit(Algorithm::Budget, u32::MAX, SIZED_PERIOD);
    for size in STREAMS {
        let counters = (ENTRIES / size).clamp(10, 1_000);
        let all: Vec<Check> = (0..counters).map(|i| check(limit, format!("streams-{size}-{i}"))).collect();
        // Each stream has a name of its own.
        let asked = |streams: Range<u32>, ask: Ask| -> Vec<Check> {
            let of = |stream: u32| {
                let check = &all[(stream % counters) as usize];
                Check { ask, caller: Caller { holder: stream.into(), ..check.caller }, ..check.clone() }
            };
            streams.map(of).collect()
        };
        let present = (size * counters).next_multiple_of(BATCH);
        cpu_us(redis, &asked(0..present, Ask::Take(1)), 1, present as usize).await;
        let bytes = memory(redis, &all[0]).await / u64::from(size);
        let mut sums_us = [0.0; 3];
        for batch in 0..BATCHES {
            let streams = present + batch * BATCH..present + (batch + 1) * BATCH;
            let (begins, settles) = (asked(streams.clone(), Ask::Take(1)), asked(streams, Ask::Settle(1)));
            for (checks, sum_us) in [&begins, &settles, &window].into_iter().zip(&mut sums_us) {
                *sum_us += cpu_us(redis, checks, 1, BATCH as usize).await;
            }
        }
        let [begins_us, settles_us, window_us] = sums_us.map(|sum| sum / f64::from(BATCHES));
        println!("| {size} | {begins_us:.1} µs | {settles_us:.1} µs | {window_us:.1} µs | {bytes} |");
    }
    println!();
}

/// Measures decisions with and without usage records, and the size of a page of records.
async fn by_usage(redis: &mut MultiplexedConnection) {
    println!("| | {TOGETHER} in a call | with `usage` | one in a call | with `usage` |\n|---|---|---|---|---|");
    let usage = Usage::new(Period::Hour, Duration::from_secs(400 * 86_400)).unwrap();
    let recorded = Some(Recorded { usage, tag: None, occasion: Occasion::Decided });
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket] {
        let plain = checks(algorithm, NUMBER);
        let with: Vec<Check> =
            plain.iter().map(|check| Check { recorded: recorded.clone(), ..check.clone() }).collect();
        // Now each has its page.
        cpu_us(redis, &with, TOGETHER, COUNTERS).await;
        let mut row = format!("| `{algorithm}`");
        for in_a_call in [TOGETHER, 1] {
            for checks in [&plain, &with] {
                write!(row, " | {:.1} µs", cpu_us(redis, checks, in_a_call, DECISIONS).await).unwrap();
            }
        }
        println!("{row} |");
    }
    println!("\n| a page of | records | bytes |\n|---|---|---|");
    let record = Totals { admitted: 1_000, denied: 10, cost: 1_000, topped_up: 0 }.pack();
    for period in Period::ALL {
        let check = check(limit(Algorithm::FixedWindow, NUMBER, PERIOD), "page".to_owned());
        let page = Check { key: check.key.of_page(period, period.page_ms() * 500), ..check };
        for index in 0..period.per_page() {
            let index = period.per_page() * 500 + index;
            cmd("HSET").arg(page.key.as_str()).arg(index).arg(&record).exec_async(redis).await.unwrap();
        }
        cmd("PEXPIRE").arg(page.key.as_str()).arg(600_000).exec_async(redis).await.unwrap();
        println!("| {period}s | {} | {} |", period.per_page(), memory(redis, &page).await);
    }
}

/// Measures the commands of a fleet in a minute, as a share of Redis's core: its heartbeats, and questions of one open
/// page of the console as `src/shared/fleet/questions.rs` asks them.
async fn by_fleet(redis: &mut MultiplexedConnection) {
    const MINUTE: u64 = 60_000;
    const BEAT_EVERY_MS: u64 = 3_000;
    const ASK_EVERY_MS: u64 = 5_000;
    const COLLECT_EVERY_MS: u64 = 100;
    const QUESTIONS: usize = 3;
    const ANSWER_BYTES: usize = 4_096;
    // As long as the texts of real heartbeats.
    let published = format!(r#"{{"state":"serving","version":"{}","up_ms":1}}"#, "0".repeat(600));
    let (keys, answer) = ("{redis_cost|fleet}", "a".repeat(ANSWER_BYTES));
    let [heard, asked] = ["heard", "asked"].map(|name| format!("{keys}|{name}"));
    let (beat, questions) =
        (Script::new(include_str!("../lua/fleet.lua")), Script::new(include_str!("../lua/questions.lua")));
    println!("| instances | heartbeats | with an open page |\n|---|---|---|");
    for instances in [2, 20, 200] {
        let look_every_ms = 200 + 200 * instances as u64 / 100;
        let mut shares = [0.0; 2];
        for (is_open, share) in [false, true].into_iter().zip(&mut shares) {
            let mut versions = vec![0_u64; instances];
            let before = cpu_seconds(redis).await;
            for now in (0..MINUTE).step_by(100) {
                let is_time = |every: u64| now / every != (now + 100) / every;
                for (instance, version) in versions.iter_mut().enumerate().filter(|_| is_time(BEAT_EVERY_MS)) {
                    let mut call = beat.key(&heard);
                    call.key(&asked).arg("beat").arg(instance).arg(20_000).arg(200).arg(BEAT_EVERY_MS);
                    let reply: Vec<Value> = call.arg(*version).arg(&published).invoke_async(redis).await.unwrap();
                    *version = from_redis_value(reply[2].clone()).unwrap();
                }
                if is_open && is_time(ASK_EVERY_MS) {
                    for question in 0..QUESTIONS {
                        let (id, answers) = (format!("{now}-{question}"), format!("{keys}|{now}-{question}"));
                        let call = |command: &str| {
                            let mut call = questions.key(&asked);
                            call.key(&answers).arg(command).arg(&id);
                            call
                        };
                        call("ask").arg(7_000).arg(16).arg("overview").invoke_async::<Value>(redis).await.unwrap();
                        for instance in 1..instances {
                            call("answer").arg(instance).arg(&answer).invoke_async::<Value>(redis).await.unwrap();
                        }
                        // Answers come over a look's interval, and are collected meanwhile.
                        for _ in 0..look_every_ms / COLLECT_EVERY_MS {
                            call("collect").arg(instances).invoke_async::<Value>(redis).await.unwrap();
                        }
                        call("collect").arg(instances - 1).invoke_async::<Value>(redis).await.unwrap();
                    }
                }
                for _ in (0..instances).filter(|_| is_open && is_time(look_every_ms)) {
                    let mut call = questions.key(&asked);
                    call.key(&asked).arg("read").arg("").invoke_async::<Value>(redis).await.unwrap();
                }
            }
            *share = (cpu_seconds(redis).await - before) * 1_000.0 / MINUTE as f64 * 100.0;
        }
        println!("| {instances} | {:.2} % | {:.2} % |", shares[0], shares[1]);
        cmd("DEL").arg(&heard).arg(&asked).exec_async(redis).await.unwrap();
    }
}

/// A counter of so many entries, of one hit each and a millisecond apart. To ask for them would take as many
/// milliseconds.
fn used(limit: Limit, size: u32) -> State {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let mut state = None;
    for entry in 0..size {
        let caller = Caller { holder: entry.into(), ..Caller::default() };
        let then = now - u64::from(size - entry);
        state = limit.decide(Ask::Take(1), caller, state.as_ref(), then).effect.apply(state.take());
    }
    state.unwrap()
}

async fn write(redis: &mut MultiplexedConnection, check: &Check, state: &State) {
    let (key, packed) = (check.key.as_str(), state.pack());
    cmd("DEL").arg(key).exec_async(redis).await.unwrap();
    if check.limit.algorithm() == Algorithm::SlidingLog {
        for entries in packed.chunks(1_000 * ENTRY_BYTES) {
            let entries: Vec<&[u8]> = entries.chunks(ENTRY_BYTES).collect();
            cmd("RPUSH").arg(key).arg(entries).exec_async(redis).await.unwrap();
        }
    } else {
        cmd("SET").arg(key).arg(packed).exec_async(redis).await.unwrap();
    }
    cmd("PEXPIRE").arg(key).arg(check.limit.period_ms()).exec_async(redis).await.unwrap();
}

/// One check for each counter.
fn checks(algorithm: Algorithm, number: u32) -> Vec<Check> {
    (0..COUNTERS).map(|i| check(limit(algorithm, number, PERIOD), format!("{number}-{i:05}"))).collect()
}

fn limit(algorithm: Algorithm, number: u32, period: Duration) -> Limit {
    let has = |option| algorithm.options().contains(&option);
    let burst = Some(number.max(1)).filter(|_| has("burst"));
    let max_delay = Some(Duration::from_secs(1)).filter(|_| has("max_delay"));
    let options = Options { count_denied: Some(false), burst, max_delay, ..Options::default() };
    Limit::new(algorithm, number.into(), period, options).unwrap()
}

fn check(limit: Limit, user: String) -> Check {
    // The last entry names the holder, if any, and is not part of the counter's name.
    let entries =
        [("user", user), ("stream", String::new())].map(|(key, value)| Entry { key: key.into(), value: value.into() });
    let of_counter = if limit.algorithm().has_holders() { &entries[..] } else { &entries[..1] };
    let key = Key::new("", "cost", of_counter, |_| None, &limit, Origin::Rule);
    Check::new(key, limit, Ask::Take(1))
}

/// Microseconds of Redis's own processor time for each decision.
async fn cpu_us(redis: &mut MultiplexedConnection, checks: &[Check], in_a_call: usize, decisions: usize) -> f64 {
    let mut groups = checks.iter().cycle().map(|check| Group::new(std::slice::from_ref(check)));
    let before = cpu_seconds(redis).await;
    for _ in 0..decisions / TOGETHER {
        let groups: Vec<Group> = groups.by_ref().take(TOGETHER).collect();
        let mut calls = pipe();
        for groups in groups.chunks(in_a_call) {
            calls.add_command(script::call(groups)).ignore();
        }
        calls.exec_async(redis).await.unwrap();
    }
    (cpu_seconds(redis).await - before) * 1e6 / decisions as f64
}

/// What a counter holds in Redis, its name and TTL included.
async fn counter_bytes(redis: &mut MultiplexedConnection, check: &Check) -> u64 {
    // So much that it does not forget it at once.
    let many = Check { ask: Ask::Take(u64::from(NUMBER) / 4), ..check.clone() };
    script::call(&[Group::new(&[many])]).exec_async(redis).await.unwrap();
    memory(redis, check).await
}

/// What Redis says that a counter takes; a long list is looked at in whole, for `SAMPLES 0`.
async fn memory(redis: &mut MultiplexedConnection, check: &Check) -> u64 {
    cmd("MEMORY").arg("USAGE").arg(check.key.as_str()).arg("SAMPLES").arg(0).query_async(redis).await.unwrap()
}

async fn cpu_seconds(redis: &mut MultiplexedConnection) -> f64 {
    let info: String = cmd("INFO").arg("cpu").query_async(redis).await.unwrap();
    let used = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().parse().unwrap()
    };
    used("used_cpu_user") + used("used_cpu_sys")
}
