//! Leaky bucket: `number` hits leak out per period, evenly. A request that comes faster is delayed, up to `max_delay`,
//! and denied beyond that.
//!
//! It shapes traffic: with the default burst of 1, requests leave one by one at even intervals, first come first
//! served. Without `max_delay` no request is delayed, and one that comes too early is denied. `bucket` describes how it
//! counts.
//!
//! A release time never changes. If a caller disconnects, its hits are refunded and the next request gets its release
//! time. So that request may leave together with one that was already delayed.

use super::bucket::Bucket;
use super::{LimitError, LimitErrors, MAX_DELAY, Occupies, Options, Traits};

pub(super) use super::bucket::{Bucket as Parameters, decide};
pub use super::bucket::{State, State as Change};

/// The default burst.
pub(super) const BURST: u32 = 1;

pub(super) const OPTIONS: &[&str] = &["burst", "max_delay"];

pub(super) const TRAITS: Traits = Traits {
    code: "lb1",
    has_holders: false,
    counts_in_progress: false,
    leased: Some(Occupies::Tokens),
    denials_last: true,
};

/// Returns a bucket that can delay hits.
pub(super) fn parameters(number: u32, period_ms: u64, options: &Options) -> Result<Bucket, LimitErrors> {
    let delay = options.max_delay.unwrap_or_default();
    let is_whole = delay.subsec_nanos().is_multiple_of(1_000_000);
    let is_wrong = options.max_delay.is_some_and(|delay| delay.is_zero()) || delay > MAX_DELAY || !is_whole;
    let delay_ms = if is_wrong { 0 } else { delay.as_millis() as u64 };
    let bucket = Bucket::new(number, period_ms, options.burst.unwrap_or(BURST), delay_ms);
    LimitErrors::any([is_wrong.then_some(LimitError::MaxDelay), bucket.err()])?;
    Ok(bucket?)
}
