//! Token bucket: refilled with the number per period, evenly and without end, up to the burst; it starts full.
//!
//! At most number + burst passes in an interval of one period. See `bucket` for how it counts.

use super::bucket::{self, Bucket};
use super::{FIGURES, Initial, Limit, LimitErrors, Options, Verdict, push_number};

pub use super::bucket::{State, State as Change};

pub(super) const OPTIONS: &[&str] = &["burst", "initial"];

/// A bucket in which nobody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters(Bucket);

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    hits: i64,
    state: Option<&State>,
    now: u64,
) -> (Option<State>, Verdict) {
    bucket::decide(limit, &parameters.0, hits, state, now)
}

impl Parameters {
    /// Without a burst it holds the number.
    pub(super) fn new(number: u32, period_ms: u64, options: &Options) -> Result<Self, LimitErrors> {
        let burst = options.burst.unwrap_or(number.max(1));
        let bucket = Bucket::new(number, period_ms, burst, 0)?;
        Ok(Parameters(match options.initial.unwrap_or_default() {
            Initial::Full => bucket,
            Initial::Empty => bucket.beginning_empty(number, period_ms),
        }))
    }

    pub(super) fn arguments(&self) -> [u64; FIGURES] {
        self.0.arguments()
    }

    pub(super) fn capacity(&self, _: &Limit) -> u32 {
        self.0.capacity()
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        name.push_str("tb");
        push_number(name, limit.period_ms);
    }
}
