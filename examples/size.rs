//! What a million counters and a million rules take: the figures of `docs/measurements-memory.md` about size.
//!
//! `cargo run --release --example size` measures memory and look-up times. `-- churn SECONDS PERIOD` creates
//! 200,000 counters per second with new names, which live for PERIOD seconds, and prints their number and the longest
//! decision, in CPU time, so other processes do not matter.

#![allow(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

#[path = "../benches/service/rules.rs"]
mod rules;

use std::fmt;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tollgate::engine::algorithm::{Algorithm, Ask, Limit, Options};
use tollgate::engine::check::{Check, Key, Origin};
use tollgate::engine::descriptor::Entry;
use tollgate::store::memory::MemoryStore;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MILLION: usize = 1_000_000;
/// New counters in a millisecond.
const CHURN: usize = 200;
/// Clients that continue after the crowd has gone.
const STAYING: usize = 1_000;

fn main() {
    // As the service does.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_thp_disable(true).unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => tables(),
        ["counters", algorithm, counters] => println!("{}", bytes_per_counter(algorithm, counters.parse().unwrap())),
        ["rules", count] => println!("{}", of_rules(count.parse().unwrap())),
        ["churn", seconds, period] => churn(seconds.parse().unwrap(), Duration::from_secs(period.parse().unwrap())),
        _ => panic!("size [churn SECONDS PERIOD]"),
    }
}

fn tables() {
    println!("| bytes per counter, of | 500,000 | 750,000 | 1,000,000 | 2,000,000 |\n|---|---|---|---|---|");
    for algorithm in Algorithm::ALL {
        let counts = ["500000", "750000", "1000000", "2000000"];
        let [a, b, c, d] = counts.map(|count| alone(&["counters", algorithm.name(), count]));
        println!("| `{algorithm}` | {a} | {b} | {c} | {d} |");
    }
    println!(
        "\n| rules of one level | bytes each | made in | found in, each in turn | the same again |\n\
         |---|---|---|---|---|"
    );
    for count in ["10", "10000", "1000000"] {
        println!("| {count} | {} |", alone(&["rules", count]));
    }
}

/// Returns the output of this program with these arguments, in a separate process whose allocator has nothing left
/// over.
fn alone(arguments: &[&str]) -> String {
    let output = Command::new(std::env::current_exe().unwrap()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What so many counters hold that one request each has asked.
fn bytes_per_counter(algorithm: &str, counters: usize) -> usize {
    let algorithm = Algorithm::ALL.iter().find(|known| known.name() == algorithm).unwrap();
    let limit = limit(*algorithm, Duration::from_secs(24 * 3600));
    let store = MemoryStore::default();
    let before = resident();
    for i in 0..counters {
        store.decide(&[check(i, limit)]).unwrap();
    }
    assert_eq!(store.len(), counters);
    (resident() - before) / counters
}

/// What so many rules hold, how long it takes to make them, and how long to find one.
fn of_rules(count: usize) -> String {
    let before = resident();
    let start = Instant::now();
    let rules = rules::of_one_level(count);
    let (took, bytes) = (start.elapsed(), (resident() - before) / count);
    let each = find_ns(&rules, (0..MILLION).map(|i| i * 7_919 % count));
    let same = find_ns(&rules, std::iter::repeat_n(count / 2, MILLION));
    format!("{bytes} | {took:.0?} | {each:.0} ns | {same:.0} ns")
}

/// Nanoseconds for a look-up, the names of the users among them made before.
fn find_ns(rules: &tollgate::engine::rules::Rules, users: impl Iterator<Item = usize>) -> f64 {
    let domain = rules.domain("bench").unwrap();
    let users: Vec<Vec<Entry>> = users.map(rules::entries).collect();
    let start = Instant::now();
    for entries in &users {
        assert!(rules.find(domain, black_box(entries)).is_some());
    }
    start.elapsed().as_nanos() as f64 / users.len() as f64
}

fn churn(seconds: u64, period: Duration) {
    let limit = limit(Algorithm::SlidingWindow, period);
    let store = Arc::new(MemoryStore::default());
    let swept = Arc::clone(&store);
    // Until the process ends.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(swept.sweep());
    });
    let (mut crowd, mut most) = (Longest::default(), 0);
    let took = every_ms(seconds * 1_000, |ms| {
        for i in 0..CHURN {
            crowd.decide(&store, check(ms * CHURN + i, limit));
        }
        most = most.max(store.len());
    });
    let at_the_end = (store.len(), resident());
    // A few who stay, while all the others' counters expire and their memory goes back.
    let mut after = Longest::default();
    every_ms(2 * period.as_millis() as u64, |ms| after.decide(&store, check(ms % STAYING, limit)));
    let left = (store.len(), resident());
    println!("{} new counters in {took:.1?}, at most {most} at once", seconds as usize * 1_000 * CHURN);
    for (when, Longest { decision, nothing }) in [("of these", crowd), ("while they expire", after)] {
        println!("the longest decision {when}: {decision}; the longest nothing, which is the machine's: {nothing}");
    }
    for (when, (counters, bytes)) in [("at the end", at_the_end), ("two periods later", left)] {
        println!("{when}: {counters} counters, {} MiB", bytes >> 20);
    }
}

/// What took the longest.
#[derive(Default)]
struct Longest {
    decision: Took,
    nothing: Took,
}

impl Longest {
    fn decide(&mut self, store: &MemoryStore, check: Check) {
        let before = Took::now();
        let _ = black_box(store.decide(&[check]));
        let (decided, again) = (Took::now(), Took::now());
        self.decision.grow(before, decided);
        self.nothing.grow(decided, again);
    }
}

/// How long something took; or what both clocks read.
#[derive(Clone, Copy, Default)]
struct Took {
    /// Of this thread.
    processor: Duration,
    clock: Duration,
}

impl Took {
    fn now() -> Took {
        let read = |clock| {
            let time = clock_gettime(clock);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        Took { processor: read(ClockId::ThreadCPUTime), clock: read(ClockId::Monotonic) }
    }

    fn grow(&mut self, before: Took, after: Took) {
        self.processor = self.processor.max(after.processor - before.processor);
        self.clock = self.clock.max(after.clock - before.clock);
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2?} of the processor, {:.2?} by the clock", self.processor, self.clock)
    }
}

/// Runs it once per millisecond, and returns the time it took.
fn every_ms(times: u64, mut run: impl FnMut(usize)) -> Duration {
    let start = Instant::now();
    for ms in 0..times {
        run(ms as usize);
        thread::sleep(Duration::from_millis(ms + 1).saturating_sub(start.elapsed()));
    }
    start.elapsed()
}

fn limit(algorithm: Algorithm, period: Duration) -> Limit {
    Limit::new(algorithm, 100, period, Options::default()).unwrap()
}

fn check(user: usize, limit: Limit) -> Check {
    let mut entries = rules::entries(user);
    entries.push(Entry { key: "stream".into(), value: "1".into() });
    let key = Key::new("", "bench", &entries, |_| None, &limit, Origin::Rule);
    Check::new(key, limit, Ask::Take(1))
}

/// The bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}
