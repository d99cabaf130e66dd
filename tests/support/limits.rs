//! Limits and requests for property tests, drawn up to the extremes.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::algorithm::{Algorithm, Limit, MAX_PERIOD, Options};

/// Numbers at which arithmetic likes to break, and any others.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..20_u32, 2 => 21..2_000_u32, 1 => any::<u32>(), 1 => Just(u32::MAX), 1 => Just(u32::MAX - 1), 1 => Just(1 << 16)]
}

fn period_ms() -> impl Strategy<Value = u64> {
    let longest = MAX_PERIOD.as_millis() as u64;
    let named = prop::sample::select(vec![1_000, 60_000, 3_600_000, 86_400_000, 31_536_000_000, longest, longest - 1]);
    prop_oneof![3 => 1..30_u64, 2 => 31..5_000_u64, 2 => named, 1 => 1..=longest]
}

fn make(algorithm: Algorithm, number: u32, period_ms: u64, burst: u32, count_denied: Option<bool>) -> Option<Limit> {
    let burst = (algorithm == Algorithm::TokenBucket && burst > 0).then_some(burst);
    let options = Options { burst, count_denied };
    Limit::new(algorithm, number, Duration::from_millis(period_ms), options).ok()
}

/// Any limit of any algorithm.
pub fn any_limit() -> impl Strategy<Value = Limit> {
    let algorithm = prop::sample::select(Algorithm::ALL);
    let count_denied = prop::option::of(any::<bool>());
    (algorithm, number(), period_ms(), number(), count_denied)
        .prop_filter_map("no such limit", |(algorithm, number, period_ms, burst, count_denied)| {
            make(algorithm, number, period_ms, burst, count_denied)
        })
}

/// A limit that a short sequence of hits can exhaust and a short time restore.
pub fn small_limit() -> impl Strategy<Value = Limit> {
    let algorithm = prop::sample::select(Algorithm::ALL);
    let count_denied = prop::option::of(any::<bool>());
    (algorithm, 0..12_u32, 1..150_u64, 0..20_u32, count_denied)
        .prop_filter_map("no such limit", |(algorithm, number, period_ms, burst, count_denied)| {
            make(algorithm, number, period_ms, burst, count_denied)
        })
}

/// The longest that a counter of this limit remembers anything.
pub fn memory_ms(limit: &Limit) -> u64 {
    let [first, second] = limit.arguments();
    match limit.algorithm() {
        Algorithm::FixedWindow => limit.period_ms(),
        Algorithm::SlidingWindow => first * (second + 1),
        Algorithm::TokenBucket => second,
    }
}

/// The most that may pass in any interval of one period.
pub fn bound(limit: &Limit) -> u64 {
    let number = u64::from(limit.number());
    match limit.algorithm() {
        Algorithm::FixedWindow => 2 * number,
        Algorithm::SlidingWindow => number,
        Algorithm::TokenBucket => number + u64::from(limit.capacity()),
    }
}
