//! Token bucket: refilled with `number` tokens per period, evenly and without end, up to the burst. It starts full,
//! unless `initial` is `empty`.
//!
//! At most number + burst hits are allowed in an interval of one period. `bucket` describes how it counts.

use super::bucket::{self, Bucket};
use super::{Attempt, Caller, FIGURES, Initial, Limit, LimitErrors, Options, Traits, Verdict, push_number};

pub use super::bucket::{State, State as Change};

pub(super) const OPTIONS: &[&str] = &["burst", "initial"];

pub(super) const TRAITS: Traits = Traits { code: "tb1", has_holders: false, no_lease: None, denials_last: true };

/// A bucket that never delays hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters(Bucket);

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    attempt: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    bucket::decide(limit, &parameters.0, attempt, state, now)
}

impl Parameters {
    /// Creates the parameters. The default burst is the number.
    pub(super) fn new(number: u32, period_ms: u64, options: &Options) -> Result<Self, LimitErrors> {
        let burst = options.burst.unwrap_or(number.max(1));
        let bucket = Bucket::new(number, period_ms, burst, 0)?;
        Ok(Parameters(match options.initial.unwrap_or_default() {
            Initial::Full => bucket,
            Initial::Empty => bucket.beginning_empty(number, period_ms),
        }))
    }

    pub(super) fn figures(&self, caller: Caller) -> [u64; FIGURES] {
        self.0.figures(caller)
    }

    pub(super) fn capacity(&self, _: &Limit) -> u32 {
        self.0.capacity()
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        push_number(name, limit.period_ms);
    }

    pub(super) fn work(&self, _: &Limit) -> u64 {
        1
    }
}
