//! What the two buckets have in common. The twin of `lua/bucket.lua`.
//!
//! A bucket has a hole through which the number leaks per period, evenly and without end. Hits fill it; they pass at
//! once as long as it holds them, that is up to the burst. With `max_delay` a request passes also if it would fit that
//! much later, and is delayed until then. A token bucket is the same seen from the other side: the hits that have not
//! leaked yet are *missing* from it.
//!
//! At most number + burst leaves in an interval of one period, or number + hits where one request takes more than the
//! burst. The counter keeps what is missing. So a new counter and one that nothing is missing from are the same, and a
//! changed burst is in force at once.
//!
//! The leak is exact: what is missing is whole hits and a fraction counted in `1/period_ms` of a hit, and every
//! millisecond restores `number` of those. Nothing is rounded away, however slow the rate and however many requests
//! ask, so that delayed requests leave evenly.
//!
//! A bucket that begins empty begins to fill with the first request, even a denied one, so the counter keeps that time.
//! A full one is kept for as long again as it takes to fill, and then forgotten: a client that stays away for longer
//! begins with an empty one, as a new client does.
//!
//! Where denials count, a bucket goes into debt, by at most the number: as with the windows, usage that has happened
//! keeps other requests out for at most a period. A changed number is in force from the last charge on, because the
//! leak is computed from there.
//!
//! How long a bucket takes to fill depends on the number, which a rule may change. So a bucket stores until when it is
//! remembered: until it is full at the present number, and at least for one period for each hit that is missing, as a
//! limit of 1 would need, up to [`REMEMBERED_MS`]. From then on it is as fresh, deleted or not.
//!
//! A charge is taken back as far as it surely has not leaked yet. Hits leak in the order in which they came, and those
//! above a hit that is taken back sink. The verdict of a charge tells where it lies: it says when the bucket would be
//! empty, and what leaks until then covers the charge. That holds until another charge is taken back, perhaps from
//! below; from then on, all that has leaked since the charge may have been its own. So however many charges are taken
//! back, in any order, they never are more than what is still missing because of them. For this a bucket notes when
//! something was last taken back, and it is not forgotten any sooner, lest an older charge finds a new bucket.
//!
//! While requests wait behind a charge none of it is taken back: they leave when they were told to, and room that was
//! made before them would let others leave at the same time.

use super::{Attempt, Caller, FIGURES, Limit, LimitError, MAX_REFILL_MS, REMEMBERED_MS, Verdict, mul_div, steady};

/// What passes at once, what may wait, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    burst: u32,
    /// The burst, and what may wait.
    capacity: u32,
    /// The most that can be missing where denials do not count, in whole hits.
    deepest: u64,
    /// How long the deepest debt takes to be paid and the bucket to be as fresh.
    refill_ms: u64,
    /// How long a request may be delayed. A caller with a nearer deadline has less of it; everything else is the
    /// same for every caller.
    max_delay_ms: u64,
    /// How long a full bucket is kept that has begun empty; 0 where buckets begin full.
    kept_ms: u64,
}

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// When this was so, in milliseconds since the epoch.
    at: u64,
    /// Whole hits missing; more than the burst waits, or is debt.
    missing: u64,
    /// And this many `1/period_ms` of a hit.
    fraction: u64,
    /// From then on it is as fresh, in milliseconds since the epoch.
    until: u64,
    /// When a charge was last taken back, in milliseconds since the epoch; 0 where none was.
    taken_back: u64,
}

pub(super) fn decide(
    limit: &Limit,
    bucket: &Bucket,
    Attempt { hits, charge, denied, caller }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    let (number, period) = (u64::from(limit.number), limit.period_ms);
    let Bucket { burst, deepest, refill_ms, max_delay_ms, kept_ms, .. } = *bucket;
    let (burst, max_delay_ms) = (u64::from(burst), max_delay_ms.min(caller.max_wait_ms));
    let most = if limit.count_denied() { deepest + number } else { deepest };
    // How long so many hits and the fraction take to leak.
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
    let unseen = state.is_none_or(|state| now >= state.until);
    if let Some(state) = state.filter(|_| !unseen) {
        (time, set_back) = steady(now, state.at, period);
        (missing, fraction, until) = (state.missing, state.fraction, state.until);
        taken_back = state.taken_back;
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

    // What leaks while a request is delayed.
    let (queue, part) = mul_div(max_delay_ms, number, period);
    let capacity = burst + queue;
    // Negative where there is debt.
    let room = |missing: u64, fraction: u64| capacity as i64 - missing as i64 - i64::from(fraction > part);
    let allowed = hits < 0 || (!denied && hits <= room(missing, fraction));
    let begins = unseen && kept_ms > 0 && hits > 0;
    // Of a number of 0 nothing is kept, not even denials.
    let mut charged = hits != 0 && number > 0 && (allowed || limit.count_denied());
    let mut retry_after_ms = if allowed { Some(0) } else { None };
    if let Some(charge) = charge {
        let mut left = (0, 0);
        // When the charge was, a clock that was set back cannot tell.
        if number > 0 && !unseen && !set_back && charge.at_ms <= time {
            // The level of the charge, which was rounded up to a millisecond.
            let empties_ms = (charge.at_ms + charge.reset_after_ms).saturating_sub(kept_ms + time).min(refill_ms);
            let (level, elapsed) = (leaked_in(empties_ms.saturating_sub(1), number, period), time - charge.at_ms);
            // One that begins empty tells of its level only as long as nothing was taken back.
            let is_level_known = charge.at_ms > taken_back && (kept_ms == 0 || taken_back == 0);
            left = if is_level_known {
                level.min((charge.hits, 0))
            } else if elapsed < refill_ms {
                less_by((charge.hits, 0), leaked_in(elapsed, number, period), period)
            } else {
                (0, 0)
            };
            // Behind it nobody waits.
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
    // A limit that has become slower needs it for longer than was stored; one that begins empty needs it even when it
    // is full, because a new one is not.
    let needed = time + empties_ms + u64::from(kept_ms > 0);
    let outlives = hits > 0 && !unseen && !is_empty && needed > until;
    let changed = charged || begins || set_back;
    if changed || outlives {
        // To forget one that begins empty gives nothing away.
        let owed = if kept_ms > 0 { 0 } else { missing + u64::from(fraction > 0) };
        let remembered = REMEMBERED_MS.min(owed.saturating_mul(period));
        let least = if taken_back > 0 && !set_back { until } else { 0 };
        until = (time + (empties_ms + kept_ms).max(remembered)).max(least);
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
        remaining: u32::try_from(room(missing, fraction).max(0)).unwrap_or(u32::MAX),
        excess: None,
        reset_after_ms,
        retry_after_ms,
        delay_ms: if allowed && hits > 0 && missing >= burst { leak(missing - burst, fraction) } else { 0 },
    };
    let state = match state {
        // What is missing may be more than the present limit cares for, and another may care.
        Some(state) if outlives && !changed => Some(State { until, ..*state }),
        _ if changed => Some(State { at: time, missing, fraction, until, taken_back }),
        _ => None,
    };
    (state.map(|state| (state, if until > time { until - now } else { 0 })), verdict)
}

/// How many hits leak in so many milliseconds, up to those of a refill, and what fraction of one in `1/period`.
fn leaked_in(ms: u64, number: u64, period: u64) -> (u64, u64) {
    let (hits, fraction) = mul_div(ms % period, number, period);
    (hits + ms / period * number, fraction)
}

/// So many hits and this fraction less, at least none.
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
    /// Of `burst` hits at once, and of those that may wait for so many milliseconds; a number of 0 lets nothing pass.
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

    /// The same that begins empty; one that never lets pass is as good as empty already.
    pub(super) fn beginning_empty(self, number: u32, period_ms: u64) -> Bucket {
        let kept_ms = mul_div(period_ms, self.burst.into(), number.max(1).into()).0;
        Bucket { kept_ms: if number == 0 { 0 } else { kept_ms.max(1) }, ..self }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn figures(&self, caller: Caller) -> [u64; FIGURES] {
        let max_delay_ms = self.max_delay_ms.min(caller.max_wait_ms);
        [u64::from(self.burst), self.deepest, self.refill_ms, max_delay_ms, self.kept_ms]
    }
}

impl State {
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
