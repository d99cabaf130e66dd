//! Token bucket: refilled with the number per period, evenly and without end, up to the burst; it starts full.
//!
//! At most number + burst passes in an interval of one period. What is kept is what is *missing* from a full bucket, so that a
//! counter never seen and a full bucket are the same, and a changed burst is in force at once.
//!
//! Refill is exact: what is missing is whole tokens and a fraction counted in `1/period_ms` of a token, and every millisecond
//! restores `number` of those. Nothing is rounded away, however slow the rate or however often it is asked.
//!
//! Where denials count, a bucket goes into debt, by at most the number: as with the windows, usage that has happened keeps others
//! out for at most a period. A changed number is in force from the last charge on, because that is when the refill was last
//! worked out.

use std::fmt::Write as _;

use super::{FIGURES, Limit, LimitError, MAX_REFILL_MS, Options, Verdict, hold, mul_div};

pub(super) const OPTIONS: &[&str] = &["burst"];

/// What the bucket holds, and how long an empty one takes to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    burst: u32,
    /// How long the deepest debt takes to be paid and the bucket to fill.
    refill_ms: u64,
}

/// What is missing from a full bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// When this was so, in milliseconds since the epoch.
    at: u64,
    /// Whole tokens missing; more than the burst is debt.
    missing: u64,
    /// And this many `1/period_ms` of a token.
    fraction: u64,
}

pub use self::State as Change;

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    hits: i64,
    state: Option<&State>,
    now: u64,
) -> (Option<State>, Verdict) {
    let (number, period) = (u64::from(limit.number), limit.period_ms);
    let Parameters { burst, refill_ms } = *parameters;
    let burst = u64::from(burst);
    let most = if limit.count_denied() { burst + number } else { burst };
    let mut time = now;
    let mut set_back = false;
    let mut missing = 0;
    let mut fraction = 0;
    if let Some(state) = state {
        (time, set_back) = hold(now, state.at, period);
        (missing, fraction) = (state.missing, state.fraction);
        if missing >= most {
            (missing, fraction) = (most, 0);
        }
        let elapsed = if set_back { 0 } else { time - state.at };
        if elapsed >= refill_ms {
            (missing, fraction) = (0, 0);
        } else {
            let (mut restored, part) = mul_div(elapsed % period, number, period);
            restored += elapsed / period * number;
            if fraction >= part {
                fraction -= part;
            } else {
                fraction += period - part;
                restored += 1;
            }
            if missing >= restored {
                missing -= restored;
            } else {
                (missing, fraction) = (0, 0);
            }
        }
    }

    // Negative where there is debt.
    let room = |missing: u64, fraction: u64| burst as i64 - missing as i64 - i64::from(fraction > 0);
    let allowed = hits < 0 || hits <= room(missing, fraction);
    let charged = hits != 0 && (allowed || limit.count_denied());
    // How long until `tokens` and the fraction are restored.
    let wait = |tokens: u64, fraction: u64| {
        if tokens == 0 && fraction == 0 {
            return 0;
        }
        let (quotient, rest) = mul_div(period, tokens, number);
        time - now + quotient + (rest + fraction).div_ceil(number)
    };
    if charged {
        let sum = missing as i64 + hits;
        if sum < 0 {
            (missing, fraction) = (0, 0);
        } else if sum >= most as i64 {
            (missing, fraction) = (most, 0);
        } else {
            missing = sum as u64;
        }
    }

    let verdict = Verdict {
        allowed,
        remaining: u32::try_from(room(missing, fraction).max(0)).unwrap_or(u32::MAX),
        reset_after_ms: wait(missing, fraction),
        retry_after_ms: if allowed {
            Some(0)
        } else if hits > burst as i64 {
            None
        } else {
            Some(wait((missing as i64 + hits - burst as i64) as u64, fraction))
        },
    };
    ((charged || set_back).then_some(State { at: time, missing, fraction }), verdict)
}

impl Parameters {
    pub(super) fn new(number: u32, period_ms: u64, options: &Options) -> Result<Self, LimitError> {
        let burst = match options.burst {
            Some(0) => return Err(LimitError::ZeroBurst),
            _ if number == 0 => 0,
            Some(burst) => burst,
            None => number,
        };
        let deepest = u128::from(burst) + u128::from(number);
        let refill_ms = (deepest * u128::from(period_ms)).div_ceil(u128::from(number.max(1)));
        if refill_ms > MAX_REFILL_MS {
            return Err(LimitError::EndlessRefill);
        }
        Ok(Parameters { burst, refill_ms: refill_ms as u64 })
    }

    pub(super) fn arguments(&self) -> [u64; FIGURES] {
        [u64::from(self.burst), self.refill_ms, 0]
    }

    pub(super) fn capacity(&self, _: &Limit) -> u32 {
        self.burst
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        let _ = write!(name, "tb{}", limit.period_ms);
    }
}

impl State {
    pub(super) fn pack(&self) -> Vec<u8> {
        let mut bytes = (self.at as f64).to_le_bytes().to_vec();
        bytes.extend((self.missing as f64).to_le_bytes());
        bytes.extend((self.fraction as f64).to_le_bytes());
        bytes
    }
}
