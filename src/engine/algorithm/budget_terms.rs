//! What the options of a budget mean: its windows, how holds end that are not settled, and what the Lua twin gets of
//! both.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::calendar::Calendar;
use super::sliding_window;
use super::{
    Bounds, Caller, Credit, FIGURES, Limit, LimitError, LimitErrors, MAX_HITS, NEVER, Options, Unsettled, figures,
    push_number,
};

pub(super) const OPTIONS: &[&str] = &[
    "segments",
    "time_zone",
    "starts_on",
    "settle_within",
    "estimate",
    "learn_estimate",
    "min_estimate",
    "max_estimate",
    "unsettled",
    "carry_percent",
];

/// The reason why a window of the calendar has no sub-windows.
pub(super) const NO_SEGMENTS: &str =
    "a window of the calendar begins anew as a whole, and has no sub-windows: remove one of the two";

/// The reason why denied requests are never charged.
pub(super) const COUNTS_NO_DENIED: &str =
    "a budget charges what streams have used, which denied streams never do: remove count_denied";

/// The reason why nothing is carried over between sub-windows.
pub(super) const CARRIES_NO_SEGMENTS: &str =
    "what is left of a window of the calendar is carried over, and it has no sub-windows: remove one of the two";

/// The reason why a balance has no windows.
pub(super) const NO_WINDOWS: &str = "a budget with unit: never has no windows: remove one of the two";

/// Default time after which a hold ends.
pub(super) const SETTLE_WITHIN: Duration = Duration::from_secs(600);

/// How long credits are known at least, and what is left of the last window that had a request.
pub(super) const CREDITS_KEPT_MS: u64 = 400 * 24 * 60 * 60 * 1000;

/// Time zones change by whole quarters of an hour, in this century at least.
const QUARTER_MS: u64 = 15 * 60 * 1000;

/// The twin gets a length in quarters of an hour beside one in milliseconds, which is below this.
const BESIDE: u64 = 1 << 36;

/// The twin gets several lengths in quarters of an hour in one number. Each is below this, as is the part to carry.
const LENGTHS: u64 = 1 << 16;

/// For the twin, a balance has so many segments, and a calendar none.
const NEVER_MOVES: u64 = 63;

/// The windows, and how holds end that are not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    pub(super) windows: Windows,
    pub(super) within_ms: u64,
    pub(super) unsettled: Unsettled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Windows {
    Sliding {
        segment_ms: u64,
        segments: u64,
    },
    Calendar {
        calendar: Calendar,
        /// The part of what is left that is carried over, in percent.
        carry: u64,
    },
    Never,
}

/// The window at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Window {
    /// It slides by segments of this length.
    Sliding { segment: u64 },
    /// It is one of a calendar, from `start` to `stop` on the counter's own clock.
    Calendar { start: u64, stop: u64 },
    /// It has no end.
    Never,
}

pub(super) fn parameters(_: u32, period_ms: u64, options: &Options) -> Result<Parameters, LimitErrors> {
    let within = options.settle_within.unwrap_or(SETTLE_WITHIN);
    let check = |name, estimate| match estimate {
        Some(0) => Some(LimitError::Estimate(name)),
        Some(MAX_HITS..) => Some(LimitError::TooLarge(name)),
        Some(_) | None => None,
    };
    let estimates: SmallVec<[u64; 3]> =
        [options.min_estimate, options.estimate, options.max_estimate].into_iter().flatten().collect();
    let segments = options.segments.unwrap_or(sliding_window::SEGMENTS);
    let is_possible = (1..=sliding_window::MAX_SEGMENTS).contains(&segments);
    let is_never = period_ms == NEVER.as_millis() as u64;
    LimitErrors::any([
        (!is_possible).then_some(LimitError::Segments),
        (options.segments.is_some() && options.time_zone.is_some()).then_some(LimitError::SegmentsOfCalendar),
        (options.segments.is_some() && is_never).then_some(LimitError::NoWindows("segments")),
        (options.time_zone.is_some() && is_never).then_some(LimitError::NoWindows("time_zone")),
        (options.carry_percent.is_some() && options.time_zone.is_none()).then_some(LimitError::CarriesNothing),
        (!matches!(options.carry_percent, None | Some(1..=100))).then_some(LimitError::CarryPercent),
        (!super::is_period(within)).then_some(LimitError::SettleWithin),
        check("estimate", options.estimate),
        check("min_estimate", options.min_estimate),
        check("max_estimate", options.max_estimate),
        (!estimates.is_sorted()).then_some(LimitError::Estimates),
        (options.count_denied == Some(true)).then_some(LimitError::DeniedOfBudget),
    ])?;
    let carry = options.carry_percent.unwrap_or(0).into();
    let windows = match Calendar::new(period_ms, options)? {
        _ if is_never => Windows::Never,
        Some(calendar) => Windows::Calendar { calendar, carry },
        None => {
            let segment_ms = period_ms.div_ceil(segments.into());
            Windows::Sliding { segment_ms, segments: period_ms.div_ceil(segment_ms) }
        }
    };
    let unsettled = options.unsettled.unwrap_or_default();
    Ok(Parameters { windows, within_ms: within.as_millis() as u64, unsettled })
}

impl Windows {
    /// Returns the window at `time` on the counter's own clock, which is ahead of the store's by `shift`.
    pub(super) fn at(self, time: u64, shift: u64) -> Window {
        match self {
            Windows::Sliding { segment_ms, .. } => Window::Sliding { segment: segment_ms },
            Windows::Calendar { calendar, .. } => {
                let Range { start, end } = calendar.window(time - shift);
                Window::Calendar { start: start + shift, stop: end + shift }
            }
            Windows::Never => Window::Never,
        }
    }

    /// Returns the start of the window before the one that starts at this time.
    pub(super) fn start_before(self, start: u64, shift: u64) -> u64 {
        match self.at(start.saturating_sub(1).max(shift), shift) {
            Window::Calendar { start, .. } => start,
            Window::Sliding { .. } | Window::Never => 0,
        }
    }

    /// Returns the number of counts.
    pub(super) fn places(self) -> usize {
        match self {
            Windows::Sliding { segments, .. } => segments as usize + 1,
            Windows::Calendar { .. } | Windows::Never => 1,
        }
    }
}

impl Parameters {
    /// Returns the longest time for which used hits stay in a window.
    pub(super) fn window_ms(&self, period_ms: u64) -> u64 {
        match self.windows {
            Windows::Sliding { segment_ms, segments } => (segments + 1) * segment_ms,
            // A month has 30 days and a year 365 here.
            Windows::Calendar { .. } => period_ms + period_ms / 8,
            // Nothing but a top-up frees what is used.
            Windows::Never => 0,
        }
    }

    /// Returns whether nothing that is used ever leaves the window.
    pub(super) fn is_balance(&self) -> bool {
        self.windows == Windows::Never
    }

    /// Returns how long a counter is kept at least after it has changed, if what it stands for has no end.
    pub(super) fn kept_ms(&self, period_ms: u64) -> Option<u64> {
        match self.windows {
            Windows::Never => Some(period_ms),
            Windows::Calendar { carry: 1.., .. } => Some(CREDITS_KEPT_MS),
            Windows::Calendar { .. } | Windows::Sliding { .. } => None,
        }
    }

    pub(super) fn figures(&self, Caller { holder, learned, .. }: Caller) -> [u64; FIGURES] {
        let refunds = u64::from(self.unsettled == Unsettled::Refund);
        let (segments, carry) = match self.windows {
            Windows::Sliding { segments, .. } => (segments, 0),
            Windows::Calendar { carry, .. } => (0, carry),
            Windows::Never => (NEVER_MOVES, 0),
        };
        let (mode, least, most) = learned.map_or((0, 0, 0), |Bounds { least, most }| (2, least, most));
        figures(&[holder, mode + 4 * refunds + 8 * segments + 512 * carry, least, self.within_ms, most])
    }

    /// Returns these figures for a settle.
    pub(super) fn settling([holder, mode, _, within_ms, _]: [u64; FIGURES], actual: u64) -> [u64; FIGURES] {
        [holder, mode - mode % 4 + 1, actual, within_ms, 0]
    }

    /// Returns these figures for a credit.
    pub(super) fn crediting(
        [_, mode, _, within_ms, _]: [u64; FIGURES],
        Credit { hits, id, kind }: Credit,
    ) -> [u64; FIGURES] {
        [id, mode - mode % 4 + 3, hits, within_ms, kind as u64]
    }

    /// Returns these figures with the start of the present window, and the length of the one before.
    pub(super) fn of_window(
        [holder, mode, amount, within_ms, most]: [u64; FIGURES],
        [_, before, start, ..]: [u64; 5],
    ) -> [u64; FIGURES] {
        let start_of = mode + 512 * 128 * (start / QUARTER_MS);
        [holder, start_of, amount, within_ms + (start - before) / QUARTER_MS * BESIDE, most]
    }

    /// Returns the lengths of the present window, of the one after, and of the last but one.
    pub(super) fn period_of_window([earliest, before, start, stop, last]: [u64; 5]) -> u64 {
        let lengths = [stop - start, last - stop, before - earliest].map(|length| length / QUARTER_MS);
        lengths.into_iter().rev().fold(0, |all, length| all * LENGTHS + length)
    }

    pub(super) fn calendar(&self) -> Option<Calendar> {
        if let Windows::Calendar { calendar, .. } = self.windows { Some(calendar) } else { None }
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u64 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        match self.windows {
            Windows::Sliding { segments, .. } => {
                push_number(name, limit.period_ms);
                name.push('/');
                push_number(name, segments);
            }
            Windows::Calendar { calendar, .. } => calendar.identity(name),
            Windows::Never => name.push_str("never"),
        }
    }

    /// A change sets at most six fields, so the most work of a request is fewer than Lua's 8,000 arguments of `HSET`.
    pub(super) fn work(&self, _: &Limit) -> u64 {
        6
    }
}
