//! What a decision costs Redis, and what a counter holds: the last table of `docs/algorithms.md`.
//!
//! `cargo run --release --example redis_cost -- redis://localhost:6379` asks that Redis, which should have nothing else to do, and
//! writes counters that expire within the minute.

#![allow(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Client, cmd, pipe};
use tollgate::algorithm::{Algorithm, Limit, Options};
use tollgate::descriptor::{Entry, Hits, Role};
use tollgate::store::redis::script::{self, Group};
use tollgate::store::{Check, Key};

/// Enough for every hit that a counter gets here, and few enough that it does not forget them at once.
const NUMBER: u32 = 1_000;
const COUNTERS: usize = 10_000;
const DECISIONS: usize = 320_000;
/// Calls that travel together, as those of concurrent requests do.
const PIPELINED: usize = 32;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://localhost:6379".into());
    let mut redis = Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    script::load().exec_async(&mut redis).await.unwrap();
    println!("| | allowed | denied | bytes per counter |\n|---|---|---|---|");
    for algorithm in Algorithm::ALL {
        let allowed = checks(*algorithm, NUMBER);
        let denied = checks(*algorithm, 0);
        let (allowed_us, denied_us) = (cpu_us(&mut redis, &allowed).await, cpu_us(&mut redis, &denied).await);
        let bytes = counter_bytes(&mut redis, &allowed[0]).await;
        println!("| `{algorithm}` | {allowed_us:.1} µs | {denied_us:.1} µs | {bytes} |");
    }
}

/// One check for each counter.
fn checks(algorithm: Algorithm, number: u32) -> Vec<Check> {
    let has = |option| algorithm.options().contains(&option);
    let burst = Some(number.max(1)).filter(|_| has("burst"));
    let max_delay = Some(Duration::from_secs(1)).filter(|_| has("max_delay"));
    let options = Options { count_denied: Some(false), burst, max_delay, ..Options::default() };
    let limit = Limit::new(algorithm, number, Duration::from_secs(60), options).unwrap();
    let check = |i: usize| {
        let entries = [Entry { key: "user".into(), value: format!("{number}-{i:05}") }];
        let key = Key::new("", "cost", &entries, |_| None, &limit);
        Check { key, limit, hits: Hits::take(1).unwrap(), role: Role::Enforced, descriptor: 0, lease: None }
    };
    (0..COUNTERS).map(check).collect()
}

/// Microseconds of Redis's own processor time for each decision.
async fn cpu_us(redis: &mut MultiplexedConnection, checks: &[Check]) -> f64 {
    let mut turn = checks.iter().cycle();
    let before = cpu_seconds(redis).await;
    for _ in 0..DECISIONS / PIPELINED {
        let mut calls = pipe();
        for check in turn.by_ref().take(PIPELINED) {
            calls.add_command(script::call(&[Group::new(std::slice::from_ref(check))])).ignore();
        }
        calls.exec_async(redis).await.unwrap();
    }
    (cpu_seconds(redis).await - before) * 1e6 / DECISIONS as f64
}

/// What a counter holds in Redis, its name and time to live included.
async fn counter_bytes(redis: &mut MultiplexedConnection, check: &Check) -> u64 {
    // So much that it does not forget it at once.
    let many = Check { hits: Hits::take(u64::from(NUMBER) / 4).unwrap(), ..check.clone() };
    script::call(&[Group::new(&[many])]).exec_async(redis).await.unwrap();
    cmd("MEMORY").arg("USAGE").arg(check.key.as_str()).query_async(redis).await.unwrap()
}

async fn cpu_seconds(redis: &mut MultiplexedConnection) -> f64 {
    let info: String = cmd("INFO").arg("cpu").query_async(redis).await.unwrap();
    let used = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().parse().unwrap()
    };
    used("used_cpu_user") + used("used_cpu_sys")
}
