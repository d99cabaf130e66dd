//! Token bucket: refilled with `number` tokens per period, evenly and without end, up to the burst. It starts full,
//! unless `initial` is `empty`.
//!
//! At most number + burst hits are allowed in an interval of one period. `bucket` describes how it counts.

use super::bucket::Bucket;
use super::{Initial, LimitErrors, Occupies, Options, Traits};

pub(super) use super::bucket::{Bucket as Parameters, decide};
pub use super::bucket::{State, State as Change};

pub(super) const OPTIONS: &[&str] = &["burst", "initial"];

pub(super) const TRAITS: Traits = Traits {
    code: "tb1",
    has_holders: false,
    counts_in_progress: false,
    leased: Some(Occupies::Tokens),
    denials_last: true,
};

/// Returns a bucket that never delays hits. The default burst is the number.
pub(super) fn parameters(number: u32, period_ms: u64, options: &Options) -> Result<Bucket, LimitErrors> {
    let burst = options.burst.unwrap_or(number.max(1));
    let bucket = Bucket::new(number, period_ms, burst, 0)?;
    Ok(match options.initial.unwrap_or_default() {
        Initial::Full => bucket,
        Initial::Empty => bucket.beginning_empty(number, period_ms),
    })
}
