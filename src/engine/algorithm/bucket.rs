//! The common part of the two bucket algorithms. The twin of `lua/bucket.lua`.
//!
//! Hits fill a bucket, and `number` hits leak out of it per period, evenly and without end. Hits are allowed as long as
//! they fit into the bucket, which holds `burst` hits. With `max_delay`, a request is also allowed if it would fit
//! within that time, and is delayed until then. A token bucket is the same bucket seen from the other side: the hits
//! that have not leaked yet are the tokens *missing* from it.
//!
//! In an interval of one period, at most number + burst hits leave, or number + hits if one request takes more than the
//! burst. The counter stores how much is missing. So a counter with nothing missing is equivalent to a new one, and a
//! changed burst takes effect at once.
//!
//! The leak is exact: the missing amount is a number of whole hits plus a fraction in units of `1/period_ms` of a hit,
//! and every millisecond restores `number` of these units. Nothing is rounded, however slow the rate and however many
//! requests come, so delayed requests leave at even intervals.
//!
//! A bucket that starts empty starts to fill at the first request, even if that is denied, so the counter stores that
//! time. Once full, it is kept for as long as a refill takes and then forgotten. A client that stays away longer starts
//! again with an empty bucket, as a new client does.
//!
//! If denials count, a bucket can go into debt, by at most the number. As with windows, past usage then keeps other
//! requests out for at most one period. A changed number applies from the last charge on, because the leak is computed
//! from there.
//!
//! How long a bucket takes to fill depends on the number, which a rule may change. So a bucket stores an expiry time:
//! when it will be full at the present number, but at least one period later for each missing hit, as a limit of 1
//! would need, up to [`REMEMBERED_MS`]. From then on the bucket is equivalent to a new one, whether it is deleted or
//! not.
//!
//! A charge is taken back only to the extent that it surely has not leaked yet. Hits leak in the order in which they
//! came, and when a hit is taken back, those above it sink. The verdict of a charge locates it: the verdict says when
//! the bucket would be empty, so whatever leaks until then includes the charge. That is true until another charge is
//! taken back, because that one may have been below. From then on, all that has leaked since the charge is assumed to
//! be part of the charge. So take-backs in any number and order never exceed what is still missing because of their
//! charges. For this, a bucket stores the time of the last take-back. A take-back never shortens the expiry: if it did,
//! an older charge could meet a new bucket.
//!
//! While requests wait behind a charge, it is not taken back. Their release times are fixed, and new requests that used
//! the freed room would leave at the same time.

use super::{
    Attempt, Caller, FIGURES, Limit, LimitError, MAX_REFILL_MS, Packed, REMEMBERED_MS, Verdict, mul_div, push_number,
    steady,
};

/// The size of a bucket, and the delays it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    burst: u32,
    /// The burst plus the hits that may wait.
    capacity: u32,
    /// The most whole hits that can be missing if denials do not count.
    deepest: u64,
    /// Time until a bucket with the deepest debt is equivalent to a new one.
    refill_ms: u64,
    /// The longest delay of a request. A caller's deadline can shorten it; all other values are the same for all
    /// callers.
    max_delay_ms: u64,
    /// How long a full bucket is kept that started empty; 0 if buckets start full.
    kept_ms: u64,
}

/// The missing amount at a point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Time of this state, in milliseconds since the epoch.
    at: u64,
    /// Whole hits missing. Those above the burst are waiting, or are debt.
    missing: u64,
    /// The fraction missing in addition, in units of `1/period_ms` of a hit.
    fraction: u64,
    /// Expiry, in milliseconds since the epoch; from then on the bucket is equivalent to a new one.
    until: u64,
    /// Time of the last take-back, in milliseconds since the epoch; 0 if there was none.
    taken_back: u64,
}

pub(super) fn decide(
    limit: &Limit,
    bucket: &Bucket,
    Attempt { hits, charge, denied, caller, .. }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    let (number, period) = (limit.number, limit.period_ms);
    let Bucket { burst, deepest, refill_ms, max_delay_ms, kept_ms, .. } = *bucket;
    let (burst, max_delay_ms) = (u64::from(burst), max_delay_ms.min(caller.max_wait_ms));
    let most = if limit.count_denied() { deepest + number } else { deepest };
    // Time in which this many hits and the fraction leak.
    let leak = |hits: u64, fraction: u64| {
        if hits == 0 && fraction == 0 {
            return 0;
        }
        let (quotient, rest) = mul_div(period, hits, number);
        quotient + (rest + fraction).div_ceil(number)
    };
    let mut time = now;
    let mut set_back = false;
    let mut missing = 0;
    let mut fraction = 0;
    let mut until = 0;
    let mut taken_back = 0;
    let mut too_far = false;
    // A later expiry is from a slower limit before a rule change, or damaged. The latest one counts from the time of
    // the state, so a request that charges nothing cannot extend it.
    let latest = state.map_or(0, |state| state.at + refill_ms + kept_ms + REMEMBERED_MS);
    let unseen = state.is_none_or(|state| now >= state.until.min(latest));
    if let Some(state) = state.filter(|_| !unseen) {
        (time, set_back) = steady(now, state.at, period);
        (missing, fraction, until) = (state.missing, state.fraction, state.until.min(latest));
        taken_back = state.taken_back;
        too_far = state.until > latest;
        if missing >= most {
            (missing, fraction) = (most, 0);
        }
        let elapsed = if set_back { 0 } else { time - state.at };
        if elapsed >= refill_ms {
            (missing, fraction) = (0, 0);
        } else {
            let (restored, part) = leaked_in(elapsed, number, period);
            (missing, fraction) = less_by((missing, fraction), (restored, part), period);
        }
    } else if kept_ms > 0 {
        (missing, fraction) = (burst, 0);
    }

    // Hits that leak while a request is delayed.
    let (queue, part) = mul_div(max_delay_ms, number, period);
    let capacity = burst + queue;
    // Negative in debt.
    let room = |missing: u64, fraction: u64| capacity as i64 - missing as i64 - i64::from(fraction > part);
    let allowed = hits < 0 || (!denied && hits <= room(missing, fraction));
    let begins = unseen && kept_ms > 0 && hits > 0;
    // A limit with the number 0 stores nothing, not even denials.
    let mut charged = hits != 0 && number > 0 && (allowed || limit.count_denied());
    let mut retry_after_ms = if allowed { Some(0) } else { None };
    if let Some(charge) = charge {
        let mut left = (0, 0);
        // After a clock reset the time of the charge is unknown.
        if number > 0 && !unseen && !set_back && charge.at_ms <= time {
            // The bucket's level right after the charge. The verdict rounded its time up to a millisecond.
            let empties_ms = (charge.at_ms + charge.reset_after_ms).saturating_sub(kept_ms + time).min(refill_ms);
            let (level, elapsed) = (leaked_in(empties_ms.saturating_sub(1), number, period), time - charge.at_ms);
            // If buckets start empty, the level is known only until the first take-back.
            let is_level_known = charge.at_ms > taken_back && (kept_ms == 0 || taken_back == 0);
            left = if is_level_known {
                level.min((charge.hits, 0))
            } else if elapsed < refill_ms {
                less_by((charge.hits, 0), leaked_in(elapsed, number, period), period)
            } else {
                (0, 0)
            };
            // No request waits behind the last charge.
            let is_last = is_level_known && (missing, fraction) <= leaked_in(empties_ms, number, period);
            if (missing, fraction) > (burst, 0) && !is_last {
                left = (0, 0);
            }
        }
        charged = left > (0, 0);
        if charged {
            (missing, fraction) = less_by((missing, fraction), left, period);
            taken_back = time;
        }
    } else if charged {
        let sum = missing as i64 + hits;
        if sum < 0 {
            (missing, fraction) = (0, 0);
        } else if sum >= most as i64 {
            (missing, fraction) = (most, 0);
        } else {
            missing = sum as u64;
        }
    }
    if !allowed && !denied && hits <= capacity as i64 {
        let over = (missing as i64 + hits - burst as i64) as u64;
        retry_after_ms = Some(time - now + leak(over, fraction) - max_delay_ms);
    }

    let empties_ms = leak(missing, fraction);
    let is_empty = missing == 0 && fraction == 0;
    // A limit that became slower must keep its counter longer than was stored. A bucket that starts empty must be kept
    // even when it is full, because a new one is not.
    let needed = time + empties_ms + u64::from(kept_ms > 0);
    let outlives = hits > 0 && !unseen && (too_far || (!is_empty && needed > until));
    let changed = charged || begins || set_back;
    if changed || outlives {
        // Forgetting a bucket that starts empty cannot allow extra hits.
        let owed = if kept_ms > 0 { 0 } else { missing + u64::from(fraction > 0) };
        let remembered = REMEMBERED_MS.min(owed.saturating_mul(period));
        let least = if taken_back > 0 && !set_back { until } else { 0 };
        until = (time + (empties_ms + kept_ms).max(remembered)).max(least);
        if !changed {
            until = until.min(latest);
        }
    }
    let reset_after_ms = match kept_ms {
        0 if is_empty => 0,
        0 => (time - now + empties_ms).min(until - now),
        _ if unseen && !changed => 0,
        _ => until - now,
    };
    if !unseen {
        retry_after_ms = retry_after_ms.map(|ms| ms.min(until - now));
    }
    let verdict = Verdict {
        allowed,
        remaining: room(missing, fraction).max(0).unsigned_abs(),
        reset_after_ms,
        retry_after_ms,
        delay_ms: if allowed && hits > 0 && missing >= burst { leak(missing - burst, fraction) } else { 0 },
        ..Verdict::NOTHING
    };
    let state = match state {
        // A larger amount than the present limit can use may matter to another limit, so it is stored unchanged.
        Some(state) if outlives && !changed => Some(State { until, ..*state }),
        _ if changed => Some(State { at: time, missing, fraction, until, taken_back }),
        _ => None,
    };
    let change = state.map(|state| {
        let expires_after_ms = if until > time { key_expiry(state.at, until) - now } else { 0 };
        (state, expires_after_ms)
    });
    (change, verdict)
}

/// Returns when the key of a bucket with this state expires: up to an eighth of the TTL later than the bucket. Rounded
/// up to a step, this time seldom changes, and a script that leaves it as it is costs Redis less than one that sets it.
/// It is the same for all states with the same step and the same rounded expiry, so a script that reads one of them
/// knows the TTL of its key.
fn key_expiry(at: u64, until: u64) -> u64 {
    let step = match until.saturating_sub(at) {
        0..8_000 => 1,
        8_000..64_000 => 1_000,
        64_000..512_000 => 8_000,
        512_000.. => 64_000,
    };
    until.next_multiple_of(step)
}

/// Returns the hits that leak in `ms`, up to a whole refill, and the fraction in units of `1/period` of a hit.
fn leaked_in(ms: u64, number: u64, period: u64) -> (u64, u64) {
    let (hits, fraction) = mul_div(ms % period, number, period);
    (hits + ms / period * number, fraction)
}

/// Subtracts whole hits and a fraction from an amount, down to 0.
fn less_by(from: (u64, u64), (hits, fraction): (u64, u64), period: u64) -> (u64, u64) {
    if from < (hits, fraction) {
        (0, 0)
    } else if from.1 >= fraction {
        (from.0 - hits, from.1 - fraction)
    } else {
        (from.0 - hits - 1, from.1 + period - fraction)
    }
}

impl Bucket {
    /// Creates a bucket for `burst` hits at once and for those that may wait up to `max_delay_ms`. A number of 0 allows
    /// nothing.
    pub(super) fn new(number: u32, period_ms: u64, burst: u32, max_delay_ms: u64) -> Result<Self, LimitError> {
        if burst == 0 {
            return Err(LimitError::ZeroBurst);
        }
        let burst = if number == 0 { 0 } else { burst };
        let (queue, part) = mul_div(max_delay_ms, number.into(), period_ms);
        let capacity = u32::try_from(u64::from(burst) + queue).map_err(|_| LimitError::EndlessQueue)?;
        let deepest = u64::from(capacity) + u64::from(part > 0);
        let owed = u128::from(deepest) + u128::from(number);
        let refill_ms = (owed * u128::from(period_ms)).div_ceil(u128::from(number.max(1)));
        if refill_ms > MAX_REFILL_MS {
            return Err(LimitError::EndlessRefill);
        }
        Ok(Bucket { burst, capacity, deepest, refill_ms: refill_ms as u64, max_delay_ms, kept_ms: 0 })
    }

    /// Returns a bucket that starts empty. A bucket that never allows anything needs no change.
    pub(super) fn beginning_empty(self, number: u32, period_ms: u64) -> Bucket {
        let kept_ms = mul_div(period_ms, self.burst.into(), number.max(1).into()).0;
        Bucket { kept_ms: if number == 0 { 0 } else { kept_ms.max(1) }, ..self }
    }

    pub(super) fn capacity(&self, _: &Limit) -> u64 {
        self.capacity.into()
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        push_number(name, limit.period_ms);
    }

    pub(super) fn work(&self, _: &Limit) -> u64 {
        1
    }

    pub(super) fn figures(&self, caller: Caller) -> [u64; FIGURES] {
        let max_delay_ms = self.max_delay_ms.min(caller.max_wait_ms);
        [u64::from(self.burst), self.deepest, self.refill_ms, max_delay_ms, self.kept_ms]
    }
}

impl State {
    /// Parses a state from [`pack`](State::pack); `None` if no bucket with this period can have it.
    pub(super) fn unpack(limit: &Limit, _: Caller, bytes: &[u8]) -> Option<State> {
        let mut packed = Packed(bytes);
        let (at, missing, fraction, until) = (packed.whole()?, packed.whole()?, packed.whole()?, packed.whole()?);
        let taken_back = if packed.is_empty() { 0 } else { packed.whole()? };
        (packed.is_empty() && fraction < limit.period_ms).then_some(State { at, missing, fraction, until, taken_back })
    }

    pub(super) fn heap_bytes(&self) -> usize {
        0
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        let mut bytes = (self.at as f64).to_le_bytes().to_vec();
        bytes.extend((self.missing as f64).to_le_bytes());
        bytes.extend((self.fraction as f64).to_le_bytes());
        bytes.extend((self.until as f64).to_le_bytes());
        if self.taken_back > 0 {
            bytes.extend((self.taken_back as f64).to_le_bytes());
        }
        bytes
    }
}
