//! Sliding window: a period cut into segments, each with a count; the segment that is partly left still counts in full.
//!
//! So no interval of one period, wherever it begins, admits more than the number. The price: under steady overload a window
//! is up to one segment longer than the period, and admits `number / (1 + 1 / segments)`.

use std::fmt::Write as _;

use super::{Limit, LimitError, Options, Verdict, add, hold};

/// How many segments a period is cut into, unless it is too short.
const SEGMENTS: u64 = 10;

/// The cut: `segments` segments of `segment_ms` each are at least the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    segment_ms: u64,
    segments: u64,
}

/// The hits of the last segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The number of the newest segment, counted from the epoch.
    index: u64,
    /// The counts of the newest segment and the `segments` before it.
    counts: Box<[u32]>,
}

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    hits: i64,
    state: Option<&State>,
    now: u64,
) -> (Option<State>, Verdict) {
    let Parameters { segment_ms, segments } = *parameters;
    let mut index = now / segment_ms;
    let mut counts = vec![0; segments as usize + 1].into_boxed_slice();
    let mut set_back = false;
    let mut total = 0;
    if let Some(state) = state {
        (index, set_back) = hold(index, state.index, segments);
        let left = if set_back { 0 } else { index - state.index };
        for age in left..=segments {
            let count = state.counts[(age - left) as usize];
            counts[age as usize] = count;
            total += i64::from(count);
        }
    }

    let number = i64::from(limit.number);
    let allowed = hits < 0 || total + hits <= number;
    let charged = hits != 0 && (allowed || limit.count_denied());
    if charged && hits > 0 {
        let count = add(counts[0], hits);
        total += i64::from(count - counts[0]);
        counts[0] = count;
    } else if charged {
        // The newest hits come back first: a give-back right after its charge leaves no trace.
        let mut owed = hits;
        for count in &mut counts {
            let kept = add(*count, owed);
            owed += i64::from(*count - kept);
            total -= i64::from(*count - kept);
            *count = kept;
        }
    }

    // A count of this age goes when its segment lies wholly outside the window.
    let gone = |age: u64| (index + segments + 1 - age) * segment_ms - now;
    let mut reset_after_ms = 0;
    let mut retry_after_ms = if allowed { Some(0) } else { None };
    let mut left = total;
    for age in (0..=segments).rev() {
        let count = counts[age as usize];
        if count > 0 {
            reset_after_ms = gone(age);
            left -= i64::from(count);
            if retry_after_ms.is_none() && left + hits <= number {
                retry_after_ms = Some(reset_after_ms);
            }
        }
    }
    let verdict = Verdict {
        allowed,
        remaining: u32::try_from((number - total).max(0)).unwrap_or(u32::MAX),
        reset_after_ms,
        retry_after_ms,
    };
    ((charged || set_back).then_some(State { index, counts }), verdict)
}

impl Parameters {
    pub(super) fn new(_: u32, period_ms: u64, options: &Options) -> Result<Self, LimitError> {
        if options.burst.is_some() {
            return Err(LimitError::NoBurst(super::Algorithm::SlidingWindow));
        }
        let segment_ms = period_ms.div_ceil(SEGMENTS);
        Ok(Parameters { segment_ms, segments: period_ms.div_ceil(segment_ms) })
    }

    pub(super) fn arguments(&self) -> [u64; 2] {
        [self.segment_ms, self.segments]
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u32 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        let _ = write!(name, "sw{}/{}", limit.period_ms, self.segments);
    }
}

impl State {
    pub(super) fn pack(&self) -> Vec<u8> {
        let mut bytes = (self.index as f64).to_le_bytes().to_vec();
        bytes.extend(self.counts.iter().flat_map(|count| count.to_le_bytes()));
        bytes
    }
}
