//! Balances in the same weather: operators top up and refund at any instance, several at once, and repeat what was not
//! answered, while streams hold and settle. Each top-up is another power of two, so what a balance has beyond its
//! number says which of them it has got, and how often.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tollgate::engine::algorithm::Ask;
use tollgate::engine::descriptor::{Descriptor, Entry, Request};
use tollgate::inspect::credit::Written;
use tollgate::inspect::{Action, CounterOf, running};
use tollgate::limiter::Deadlines;

use super::{Run, Scenario, TIMEOUT, seeds};

const BALANCES: &str = "
domain: sim
descriptors:
  - key: spend
    descriptors:
      - key: hold
        rate_limits:
          - {name: balance, algorithm: budget, unit: never, requests_per_unit: 50, settle_within: 2s}
          - {name: month, algorithm: budget, unit: month, time_zone: UTC, requests_per_unit: 60, settle_within: 2s}
";

static SCENARIO: LazyLock<Arc<Scenario>> = LazyLock::new(|| Arc::new(Scenario::new(BALANCES, &["spend"], 1)));

/// What has become of the top-ups of a budget, each a bit.
#[derive(Default)]
struct Fates {
    sent: AtomicU64,
    heard: AtomicU64,
}

/// What a run has seen.
#[derive(Default)]
struct Seen {
    repeated: u64,
    lost: u64,
}

fn of(entries: &[(&str, &str)]) -> CounterOf {
    let entries = entries.iter().map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() }).collect();
    CounterOf { domain: "sim".into(), entries, limit: None }
}

/// Sends a credit until it is answered, at most this often. Returns whether it was, and how often an answer said that
/// it was done before.
async fn credit(run: &Run, written: &Written, tries: u32, rng: &mut fastrand::Rng) -> (bool, u64) {
    for _ in 0..tries {
        let limiter = run.replicas[rng.usize(..run.replicas.len())].workers[0].clone();
        match running::credit(&limiter, written, of(&[("spend", "ann")]), TIMEOUT).await {
            Ok(credited) => return (true, u64::from(credited.repeated)),
            Err(_) => sleep(Duration::from_millis(rng.u64(1..300))).await,
        }
    }
    (false, 0)
}

/// Holds and settles as a stream.
async fn stream(run: &Run, number: u64, rng: &mut fastrand::Rng) {
    let limiter = run.replicas[rng.usize(..run.replicas.len())].workers[0].clone();
    let asked = |key: &str, hits| {
        let entries = vec![
            Entry { key: "spend".into(), value: "ann".into() },
            Entry { key: key.into(), value: format!("s{number}").into() },
        ];
        let descriptors = vec![Descriptor { entries, ask: Ask::take(hits).unwrap(), limit: None }];
        Request { domain: "sim".into(), descriptors }
    };
    let deadlines = || Deadlines { store: Instant::now() + TIMEOUT, caller: None };
    let _ = limiter.decide(&limiter.snapshot(), &asked("hold", rng.u64(1..9)), deadlines()).await;
    sleep(Duration::from_millis(rng.u64(1..3_000))).await;
    if rng.u8(..8) > 0 {
        let _ = limiter.decide(&limiter.snapshot(), &asked("settle", rng.u64(0..12)), deadlines()).await;
    }
}

async fn go(seed: u64) -> Seen {
    let run = Arc::new(Run::new(&SCENARIO, seed, false));
    let mut rng = fastrand::Rng::with_seed(seed);
    let (fates, seen) = ([Fates::default(), Fates::default()].map(Arc::new), Arc::new(Mutex::new(Seen::default())));
    for number in 0..rng.u64(20..50) {
        sleep(Duration::from_micros(rng.u64(0..60_000))).await;
        match rng.u8(..) {
            0..6 => run.fleet.world.lock().fail_over(),
            6..12 => run.fleet.world.lock().step_clock(),
            12..18 => run.fleet.world.lock().go_away(),
            18..140 => {
                let (run, mut rng) = (Arc::clone(&run), rng.fork());
                tokio::spawn(async move { stream(&run, number, &mut rng).await });
            }
            kind => {
                let (which, is_top_up) = (rng.usize(..2), kind < 240);
                let bit = if is_top_up { 1 << number.min(50) } else { rng.u64(1..20) };
                let rule = ["balance", "month"][which].to_owned();
                let kind = if is_top_up { "top-up" } else { "refund" };
                let id = if number < 50 { format!("{kind} {number}") } else { continue };
                let written = Written { kind: kind.to_owned(), hits: bit, id, rule: Some(rule), why: None };
                // Two operators may do the same, and one of them twice.
                for _ in 0..rng.usize(1..4) {
                    let (run, fates, seen) = (Arc::clone(&run), Arc::clone(&fates[which]), Arc::clone(&seen));
                    let (mut rng, written) = (rng.fork(), written.clone());
                    tokio::spawn(async move {
                        if is_top_up {
                            fates.sent.fetch_or(bit, Ordering::Relaxed);
                        }
                        sleep(Duration::from_millis(rng.u64(0..200))).await;
                        let (heard, repeated) = credit(&run, &written, rng.u32(1..6), &mut rng).await;
                        if is_top_up && heard {
                            fates.heard.fetch_or(bit, Ordering::Relaxed);
                        }
                        seen.lock().repeated += repeated;
                    });
                }
            }
        }
    }
    sleep(Duration::from_secs(20)).await;
    run.fleet.world.lock().calm_down();
    // An outage lasts for seconds.
    sleep(Duration::from_secs(10)).await;
    let limiter = run.replicas[0].workers[0].clone();
    let counters = running::counters(&limiter, Action::Get, of(&[("spend", "ann"), ("hold", "-")]), TIMEOUT).await;
    let failed_over = run.fleet.world.lock().failovers > 0;
    for (counter, fates) in counters.unwrap().iter().zip(&fates) {
        let budget = counter.budget.unwrap();
        let (sent, heard) = (fates.sent.load(Ordering::Relaxed), fates.heard.load(Ordering::Relaxed));
        let said = format!("seed {seed}, {}: {:b} of {sent:b}, heard of {heard:b}", counter.rule, budget.extra);
        // A top-up that was done twice would be another one, or none that was ever sent.
        assert_eq!(budget.extra & !sent, 0, "{said}");
        assert!(failed_over || budget.extra & heard == heard, "{said}");
        seen.lock().lost += u64::from(budget.extra & heard != heard);
        assert_eq!((budget.held, budget.holds), (0, 0), "all streams have ended: {said}");
    }
    std::mem::take(&mut *seen.lock())
}

#[test]
fn whatever_befalls_the_store_each_top_up_counts_once() {
    let (mut repeated, mut lost) = (0, 0);
    let seeds = seeds(0..600);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let seen = runtime.block_on(go(seed));
        (repeated, lost) = (repeated + seen.repeated, lost + seen.lost);
    }
    // Conditions that never occur are never checked.
    assert!(count < 100 || (repeated > count / 4 && lost > 0), "{repeated} repeated, {lost} lost by a failover");
}
