//! How much each algorithm admits, by simulation: the table of `docs/algorithms-in-detail.md`.
//!
//! Every algorithm meets the same traffic as a log of exact times does, which never lets more than the number pass in
//! any interval of one period and never refuses where that would hold. Two figures come of it: what the algorithm
//! admits of what the log admits, and the most that it admits in any interval of one period, in multiples of the
//! number.
//!
//! A generator with a fixed seed creates the traffic, so the table is the same everywhere.

#![allow(dead_code, reason = "a test takes the table and leaves main")]

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use tollgate::engine::algorithm::{Algorithm, Ask, Caller, Limit, Options, Outcome, Weighting};

/// The limit: so many in a period of so many milliseconds.
const NUMBER: u32 = 100;
const PERIOD_MS: u64 = 60_000;
/// How long each simulation runs.
const PERIODS: u64 = 300;
/// When it begins, in milliseconds since the epoch: at the beginning of a window.
const START: u64 = 1_784_000_040_000 / PERIOD_MS * PERIOD_MS;

fn main() {
    print!("{}", table());
}

/// The table, in Markdown.
pub fn table() -> String {
    let names = TRAFFIC.map(|(name, _)| name).join(" | ");
    let mut text = format!("| | {names} |\n|---|");
    text.push_str(&"---|".repeat(TRAFFIC.len()));
    text.push('\n');
    for (name, limit) in limits() {
        let _ = write!(text, "| {name} | ");
        for (_, traffic) in TRAFFIC {
            let arrivals = traffic();
            let admitted = through_limit(&limit, &arrivals);
            let exact = through_log(&arrivals);
            let share = admitted.len() as f64 / exact.len() as f64;
            let most = most_in_a_period(&admitted) as f64 / f64::from(NUMBER);
            let _ = write!(text, "{share:.2}, {most:.2} N | ");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Returns the limits to compare.
fn limits() -> Vec<(&'static str, Limit)> {
    let limit = |algorithm, options| {
        let options = Options { count_denied: Some(false), ..options };
        Limit::new(algorithm, NUMBER.into(), Duration::from_millis(PERIOD_MS), options).expect("a limit that there is")
    };
    let window = |segments, weighting| {
        let options = Options { segments: Some(segments), weighting: Some(weighting), ..Options::default() };
        limit(Algorithm::SlidingWindow, options)
    };
    let leaky = |max_delay| limit(Algorithm::LeakyBucket, Options { max_delay, ..Options::default() });
    let bucket = |burst| limit(Algorithm::TokenBucket, Options { burst: Some(burst), ..Options::default() });
    vec![
        ("`fixed_window`", limit(Algorithm::FixedWindow, Options::default())),
        ("`sliding_window` (10 segments, strict)", window(10, Weighting::Strict)),
        ("`segments: 60`", window(60, Weighting::Strict)),
        ("`weighting: linear`", window(10, Weighting::Linear)),
        ("`weighting: linear, segments: 1`", window(1, Weighting::Linear)),
        ("`sliding_log`", limit(Algorithm::SlidingLog, Options::default())),
        ("`token_bucket` (burst N)", bucket(NUMBER)),
        ("`token_bucket`, `burst: N/10`", bucket(NUMBER / 10)),
        ("`leaky_bucket`", leaky(None)),
        ("`leaky_bucket`, `max_delay: 10s`", leaky(Some(Duration::from_secs(10)))),
    ]
}

/// When requests come, in milliseconds since the epoch.
type Traffic = fn() -> Vec<u64>;

const TRAFFIC: [(&str, Traffic); 5] = [
    ("at random, 0.8 of the limit", || at_random(0.8)),
    ("at random, the limit", || at_random(1.0)),
    ("at random, 5 times the limit", || at_random(5.0)),
    ("in bursts of N", in_bursts),
    ("hostile", hostile),
];

/// Independent requests, on average so many times the number in a period.
fn at_random(times: f64) -> Vec<u64> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mean = PERIOD_MS as f64 / (f64::from(NUMBER) * times);
    let mut at = START as f64;
    let mut arrivals = Vec::new();
    while at < (START + PERIODS * PERIOD_MS) as f64 {
        at -= mean * random.next().ln();
        arrivals.push(at as u64);
    }
    arrivals
}

/// The number at once, again and again, on average once in a period.
fn in_bursts() -> Vec<u64> {
    let mut random = Random(0xD1B5_4A32_D192_ED03);
    let mut at = START as f64;
    let mut arrivals = Vec::new();
    while at < (START + PERIODS * PERIOD_MS) as f64 {
        at -= PERIOD_MS as f64 * random.next().ln();
        arrivals.extend(std::iter::repeat_n(at as u64, NUMBER as usize));
    }
    arrivals
}

/// The number at the very end of every other window of the clock, and then whatever passes, for a window and a half.
fn hostile() -> Vec<u64> {
    let mut arrivals = Vec::new();
    for round in 0..PERIODS / 20 {
        let edge = START + (20 * round + 1) * PERIOD_MS;
        arrivals.extend(std::iter::repeat_n(edge - 1, NUMBER as usize));
        arrivals.extend((edge..edge + PERIOD_MS * 3 / 2).step_by(10));
    }
    arrivals
}

/// When requests pass the limit.
fn through_limit(limit: &Limit, arrivals: &[u64]) -> Vec<u64> {
    let mut state = None;
    let passes = |now: &u64| {
        let Outcome { effect, verdict } = limit.decide(Ask::Take(1), Caller::default(), state.as_ref(), *now);
        state = effect.apply(state.take());
        verdict.allowed.then_some(now + verdict.delay_ms)
    };
    arrivals.iter().filter_map(passes).collect()
}

/// When requests pass an exact log of those that have passed.
fn through_log(arrivals: &[u64]) -> Vec<u64> {
    let mut log = VecDeque::new();
    let passes = |now: &&u64| {
        while log.front().is_some_and(|first| *first + PERIOD_MS <= **now) {
            log.pop_front();
        }
        let room = log.len() < NUMBER as usize;
        if room {
            log.push_back(**now);
        }
        room
    };
    arrivals.iter().filter(passes).copied().collect()
}

fn most_in_a_period(admitted: &[u64]) -> usize {
    let within = |(i, from): (usize, &u64)| admitted[i..].partition_point(|at| *at < from + PERIOD_MS);
    admitted.iter().enumerate().map(within).max().unwrap_or(0)
}

/// Numbers from 0 to 1 (xorshift64*, by George Marsaglia and Sebastiano Vigna).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }
}
