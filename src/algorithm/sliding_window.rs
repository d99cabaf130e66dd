//! Sliding window: a period cut into sub-windows, called segments in rules and here, each with a count.
//!
//! With strict weighting the oldest segment, which the window has partly left, still counts in full. So no interval of
//! one period, wherever it begins, admits more than the number. The price: under steady overload a window is up to one
//! segment longer than the period, and admits `number / (1 + 1 / segments)`.
//!
//! With linear weighting that segment counts for the part that the window still covers, as if its hits had come evenly.
//! Then the number passes on average; at the worst, when they all came at the segment's end, twice the number does. One
//! segment with linear weighting is the estimate from two counters that content delivery networks use.

use smallvec::SmallVec;

use super::{
    Attempt, Becomes, Caller, FIGURES, Limit, LimitError, LimitErrors, Options, Traits, Verdict, Weighting, add,
    figures, mul_div, push_number, steady,
};

pub(super) const OPTIONS: &[&str] = &["segments", "weighting"];

pub(super) const TRAITS: Traits = Traits { code: "sw1", has_holders: false, no_lease: None, denials_last: true };

/// How many segments a period is cut into by default, and the most.
pub(super) const SEGMENTS: u32 = 10;
const MAX_SEGMENTS: u32 = 60;

/// The cut: `segments` segments of `segment_ms` each are at least the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    segment_ms: u64,
    segments: u64,
    weighting: Weighting,
}

/// The hits of the last segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The number of the newest segment, counted from the epoch.
    index: u64,
    /// The counts of the newest segment and the `segments` before it.
    counts: Counts,
}

/// Those of the default lie in the counter itself: a million counters are then no million pieces of memory, which one
/// thread takes and another gives back.
type Counts = SmallVec<[u32; SEGMENTS as usize + 1]>;

/// What becomes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// So many hits in the newest segment.
    Taken {
        /// Its number.
        index: u64,
        /// They pass, so that they are no more than a limit's number.
        hits: u32,
        /// How many segments a period has.
        segments: usize,
    },
    /// Anything else.
    Other(State),
}

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    Attempt { hits, charge, denied, .. }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(Change, u64)>, Verdict) {
    let Parameters { segment_ms: segment, segments, weighting } = *parameters;
    let number = i64::from(limit.number);
    let mut index = now / segment;
    if hits > 0 && !denied && weighting == Weighting::Strict && state.is_none_or(|state| state.index <= index) {
        // The short way, of most requests: they pass, and what matters of the counts is their sum.
        let sum = state.map_or(0, |state| state.sum_at(index)) as i64 + hits;
        if sum <= number {
            let change = Change::Taken { index, hits: hits as u32, segments: segments as usize };
            let verdict = Verdict {
                allowed: true,
                remaining: (number - sum) as u32,
                excess: None,
                reset_after_ms: (index + segments + 1) * segment - now,
                retry_after_ms: Some(0),
                delay_ms: 0,
            };
            return (Some((change, verdict.reset_after_ms)), verdict);
        }
    }

    let oldest = segments as usize;
    let mut counts = Counts::from_elem(0, oldest + 1);
    let mut set_back = false;
    if let Some(state) = state {
        (index, set_back) = steady(index, state.index, segments);
        let left = if set_back { 0 } else { index - state.index };
        for age in left..=segments {
            counts[age as usize] = state.counts[(age - left) as usize];
        }
        if set_back {
            // How much of the oldest is left, the new clock cannot tell: it counts as one younger.
            counts[oldest - 1] = add(counts[oldest - 1], counts[oldest].into());
            counts[oldest] = 0;
        }
    }
    // What a count weighs that is as old as can be, now.
    let into = now.saturating_sub(index * segment);
    let weigh = |count: u32| match weighting {
        Weighting::Strict => i64::from(count),
        Weighting::Linear => {
            let (whole, part) = mul_div(segment - into, count.into(), segment);
            (whole + u64::from(part > 0)) as i64
        }
    };
    let used = |counts: &[u32]| counts[..oldest].iter().copied().map(i64::from).sum::<i64>() + weigh(counts[oldest]);

    let allowed = hits < 0 || (!denied && used(&counts) + hits <= number);
    let mut charged = hits != 0 && (allowed || limit.count_denied());
    if let Some(charge) = charge {
        // From the segment that it was put in and no other. Which that is now, a clock that was set back cannot tell.
        let age = index.checked_sub(charge.at_ms / segment).filter(|age| *age <= segments && !set_back);
        charged = age.is_some();
        if let Some(age) = age {
            counts[age as usize] = add(counts[age as usize], hits);
        }
    } else if charged && hits > 0 {
        counts[0] = add(counts[0], hits);
    } else if charged {
        // Refunds take the newest hits first: a refund right after its charge leaves no trace.
        let mut owed = hits;
        for count in &mut counts {
            let kept = add(*count, owed);
            owed += i64::from(*count - kept);
            *count = kept;
        }
    }

    let mut reset_after_ms = 0;
    let mut retry_after_ms = if allowed { Some(0) } else { None };
    let mut younger: i64 = counts.iter().copied().map(i64::from).sum();
    for age in (0..=segments).rev() {
        let count = counts[age as usize];
        if count == 0 {
            continue;
        }
        younger -= i64::from(count);
        // A count of this age is gone when its segment lies wholly outside the window.
        reset_after_ms = (index + segments + 1 - age) * segment - now;
        let slack = number - hits - younger;
        if retry_after_ms.is_none() && !denied && slack >= 0 {
            let early = match weighting {
                Weighting::Strict => 0,
                // It weighs no more than the slack so long before.
                Weighting::Linear => mul_div(segment, slack as u64, count.into()).0,
            };
            retry_after_ms = Some(reset_after_ms - early);
        }
    }
    let verdict = Verdict {
        allowed,
        remaining: u32::try_from((number - used(&counts)).max(0)).unwrap_or(u32::MAX),
        excess: None,
        reset_after_ms,
        retry_after_ms,
        delay_ms: 0,
    };
    ((charged || set_back).then_some((Change::Other(State { index, counts }), reset_after_ms)), verdict)
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        spilled_bytes(self.counts.len())
    }

    /// The sum of what will be left of the counts when this segment is the newest.
    fn sum_at(&self, index: u64) -> u64 {
        let left = self.counts.len().saturating_sub((index - self.index) as usize);
        self.counts[..left].iter().copied().map(u64::from).sum()
    }
}

/// What so many counts take beside the counter.
fn spilled_bytes(counts: usize) -> usize {
    if counts > SEGMENTS as usize + 1 { counts * size_of::<u32>() } else { 0 }
}

impl Change {
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Change::Taken { segments, .. } => spilled_bytes(segments + 1),
            Change::Other(state) => state.heap_bytes(),
        }
    }
}

impl Becomes<State> for Change {
    fn begin(self) -> State {
        match self {
            Change::Taken { index, hits, segments } => {
                let mut counts = Counts::from_elem(0, segments + 1);
                counts[0] = hits;
                State { index, counts }
            }
            Change::Other(state) => state,
        }
    }

    fn onto(self, state: &mut State) {
        match self {
            Change::Taken { index, hits, .. } => {
                let left = ((index - state.index) as usize).min(state.counts.len());
                state.counts.rotate_right(left);
                state.counts[..left].fill(0);
                state.counts[0] += hits;
                state.index = index;
            }
            Change::Other(other) => *state = other,
        }
    }
}

impl Parameters {
    /// A period too short for so many segments of a millisecond has fewer.
    pub(super) fn new(_: u32, period_ms: u64, options: &Options) -> Result<Self, LimitErrors> {
        let segments = options.segments.unwrap_or(SEGMENTS);
        if !(1..=MAX_SEGMENTS).contains(&segments) {
            return Err(LimitError::Segments.into());
        }
        let segment_ms = period_ms.div_ceil(segments.into());
        let weighting = options.weighting.unwrap_or_default();
        Ok(Parameters { segment_ms, segments: period_ms.div_ceil(segment_ms), weighting })
    }

    pub(super) fn figures(&self, _: Caller) -> [u64; FIGURES] {
        figures(&[self.segment_ms, self.segments, u64::from(self.weighting == Weighting::Linear)])
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u32 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        push_number(name, limit.period_ms);
        name.push('/');
        push_number(name, self.segments);
    }

    pub(super) fn work(&self, _: &Limit) -> u64 {
        1
    }
}

impl State {
    pub(super) fn pack(&self) -> Vec<u8> {
        let mut bytes = (self.index as f64).to_le_bytes().to_vec();
        bytes.extend((self.sum_at(self.index) as f64).to_le_bytes());
        bytes.extend(self.counts.iter().flat_map(|count| count.to_le_bytes()));
        bytes
    }
}
