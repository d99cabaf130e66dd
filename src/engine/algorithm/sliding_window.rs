//! Sliding window: a period cut into sub-windows with one count each. Rules and this file call them segments.
//!
//! With strict weighting, the oldest segment counts in full although the window covers it only in part. So no interval
//! of one period admits more than the number, wherever it starts. The price: under steady overload a window is up to
//! one segment longer than the period, and admits `number / (1 + 1 / segments)`.
//!
//! With linear weighting, that segment counts for the part that the window still covers, as if its hits had come
//! evenly. The number is then admitted on average. At worst, if all hits came at the segment's end, twice the number is
//! admitted. One segment with linear weighting is the two-counter estimate that content delivery networks use.

use smallvec::SmallVec;

use super::{
    Attempt, Becomes, Caller, FIGURES, Limit, LimitError, LimitErrors, Occupies, Options, Packed,
    Parameters as AnyParameters, Traits, Verdict, Weighting, add, figures, mul_div, push_number, steady,
};

pub(super) const OPTIONS: &[&str] = &["segments", "weighting"];

pub(super) const TRAITS: Traits = Traits {
    code: "sw1",
    has_holders: false,
    counts_in_progress: false,
    leased: Some(Occupies::Room),
    denials_last: true,
};

/// Default number of segments in a period, and the largest number.
pub(super) const SEGMENTS: u32 = 10;
pub(super) const MAX_SEGMENTS: u32 = 60;

/// The segments of a period: `segments` segments of `segment_ms` each, together at least as long as the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    segment_ms: u64,
    segments: u64,
    weighting: Weighting,
}

/// The hits of the latest segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Number of the newest segment, counted from the epoch.
    index: u64,
    /// Counts of the newest segment and of the `segments` before it.
    counts: Counts,
}

/// Counts of the default number of segments are stored inline. A million counters then need no million heap
/// allocations, which one thread would allocate and another free.
type Counts = SmallVec<[u32; SEGMENTS as usize + 1]>;

/// A change to the counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Hits added to the newest segment.
    Taken {
        /// Number of the segment.
        index: u64,
        /// Allowed hits, so no more than the largest number of a limit.
        hits: u32,
        /// Number of segments in a period.
        segments: usize,
    },
    /// Any other change: the new state.
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
    let number = limit.number_as_i64();
    let mut index = now / segment;
    if hits > 0 && !denied && weighting == Weighting::Strict && state.is_none_or(|state| state.index <= index) {
        // The fast path for most requests: they are allowed, and the sum of the counts is all that matters.
        let sum = state.map_or(0, |state| state.sum_at(index)) as i64 + hits;
        if sum <= number {
            let change = Change::Taken { index, hits: hits as u32, segments: segments as usize };
            let verdict = Verdict {
                allowed: true,
                remaining: (number - sum).unsigned_abs(),
                reset_after_ms: (index + segments + 1) * segment - now,
                retry_after_ms: Some(0),
                ..Verdict::NOTHING
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
            // After a clock reset it is unknown how much of the oldest segment is covered, so its hits move to the next
            // one.
            counts[oldest - 1] = add(counts[oldest - 1], counts[oldest].into());
            counts[oldest] = 0;
        }
    }
    // The present weight of the oldest segment's count.
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
        // Only from the segment of the charge. After a clock reset that segment is unknown.
        let age = index.checked_sub(charge.at_ms / segment).filter(|age| *age <= segments && !set_back);
        charged = age.is_some();
        if let Some(age) = age {
            counts[age as usize] = add(counts[age as usize], hits);
        }
    } else if charged && hits > 0 {
        counts[0] = add(counts[0], hits);
    } else if charged {
        // Refunds remove the newest hits first, so a refund right after its charge leaves no trace.
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
        // A count of this age expires when its segment lies completely outside the window.
        reset_after_ms = (index + segments + 1 - age) * segment - now;
        let slack = number - hits - younger;
        if retry_after_ms.is_none() && !denied && slack >= 0 {
            let early = match weighting {
                Weighting::Strict => 0,
                // Already this much earlier, the count weighs no more than the slack.
                Weighting::Linear => mul_div(segment, slack as u64, count.into()).0,
            };
            retry_after_ms = Some(reset_after_ms - early);
        }
    }
    let verdict = Verdict {
        allowed,
        remaining: (number - used(&counts)).max(0).unsigned_abs(),
        reset_after_ms,
        retry_after_ms,
        ..Verdict::NOTHING
    };
    ((charged || set_back).then_some((Change::Other(State { index, counts }), reset_after_ms)), verdict)
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        spilled_bytes(self.counts.len())
    }

    /// Returns the sum of the counts that are left when segment `index` is the newest.
    fn sum_at(&self, index: u64) -> u64 {
        let left = self.counts.len().saturating_sub((index - self.index) as usize);
        self.counts[..left].iter().copied().map(u64::from).sum()
    }
}

/// Returns the heap memory of this many counts, in bytes.
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

/// Returns the parameters. A period shorter than `segments` milliseconds gets fewer segments.
pub(super) fn parameters(_: u32, period_ms: u64, options: &Options) -> Result<Parameters, LimitErrors> {
    let segments = options.segments.unwrap_or(SEGMENTS);
    if !(1..=MAX_SEGMENTS).contains(&segments) {
        return Err(LimitError::Segments.into());
    }
    let segment_ms = period_ms.div_ceil(segments.into());
    let weighting = options.weighting.unwrap_or_default();
    Ok(Parameters { segment_ms, segments: period_ms.div_ceil(segment_ms), weighting })
}

impl Parameters {
    pub(super) fn figures(&self, _: Caller) -> [u64; FIGURES] {
        figures(&[self.segment_ms, self.segments, u64::from(self.weighting == Weighting::Linear)])
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u64 {
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
    /// Parses a state from [`pack`](State::pack); `None` if it is damaged.
    pub(super) fn unpack(limit: &Limit, _: Caller, bytes: &[u8]) -> Option<State> {
        let mut packed = Packed(bytes);
        let (index, sum) = (packed.whole()?, packed.whole()?);
        let mut counts = Counts::new();
        while !packed.is_empty() {
            counts.push(packed.count()?);
        }
        let AnyParameters::SlidingWindow(Parameters { segments, .. }) = limit.parameters else { return None };
        let is_sound = counts.len() as u64 == segments + 1 && counts.iter().copied().map(u64::from).sum::<u64>() == sum;
        is_sound.then_some(State { index, counts })
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        let mut bytes = (self.index as f64).to_le_bytes().to_vec();
        bytes.extend((self.sum_at(self.index) as f64).to_le_bytes());
        bytes.extend(self.counts.iter().flat_map(|count| count.to_le_bytes()));
        bytes
    }
}
