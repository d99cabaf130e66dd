//! Fixed window: one count for each window. Windows are aligned with the clock, or with the calendar of a time zone, or
//! each starts with the first request that is counted in it.
//!
//! At most twice the number is allowed in an interval of one period (with a calendar, of its shortest window): once at
//! the end of a window, and once at the start of the next. This is how `envoyproxy/ratelimit` counts, including counted
//! denials. The same holds for windows that start with a request: two of them follow each other at a period's distance.
//! That is how code counts that calls `INCR`, and `EXPIRE` after the first.
//!
//! Lua knows no calendar. So the instance that asks sends the starts of four windows (`Calendar::starts`) by its clock,
//! and the twin selects the window that contains the time of Redis's clock. If none of the three complete windows
//! contains it, because the two clocks differ by more than a window, the twin fails the check. If two instances have
//! different rules for a time zone, the later start of a window applies to both, so they do not restart it with each
//! request.
//!
//! If counters are shared with envoyproxy/ratelimit, the window is part of the counter's name
//! ([`NamedWindow`](super::NamedWindow)), and the counter is a plain number as `INCRBY` stores it.

use std::ops::Range;

use super::calendar::Calendar;
use super::{
    Attempt, Caller, FIGURES, Limit, LimitError, LimitErrors, Occupies, Options, Packed, Starts, Traits, Verdict, add,
    figures, push_number, steady,
};

pub(super) const OPTIONS: &[&str] = &["time_zone", "starts_on", "starts"];

/// How far a clock may step back before a counter of a calendar follows it. This is less than any window, so the
/// counter stays at most one window ahead of the clock.
const STANDS_STILL_MS: u64 = 60 * 60 * 1000;

pub(super) const TRAITS: Traits = Traits {
    code: "fw1",
    has_holders: false,
    counts_in_progress: false,
    leased: Some(Occupies::Window),
    denials_last: true,
};

/// The alignment of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    /// `None` for alignment with the clock.
    calendar: Option<Calendar>,
    starts: Starts,
}

/// The hits of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    window: Window,
    count: u32,
}

/// The window that a count belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    /// The window that began at this time, in milliseconds since the epoch.
    Began(u64),
    /// The window in the counter's name.
    Named,
}

pub use self::State as Change;

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    Attempt { hits, charge, denied, caller, .. }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    let mut window = parameters.window(limit.period_ms, now);
    let mut began = window.start;
    let mut count = 0;
    let mut set_back = false;
    // Whether the window would start with this request.
    let starts = parameters.starts == Starts::FirstRequest && caller.window.is_none();
    let mut is_new = starts;
    match (state, caller.window) {
        (Some(State { window: Window::Named, count: named }), Some(_)) => count = *named,
        (Some(State { window: Window::Began(before), count: counted }), None) => {
            let time;
            (time, set_back) = steady(now, *before, parameters.stands_still_ms(limit.period_ms));
            if starts && !set_back && time < before + limit.period_ms {
                window = *before..before + limit.period_ms;
                began = window.start;
            } else if time > now {
                window = parameters.window(limit.period_ms, time);
                began = window.start;
            }
            if set_back {
                count = *counted;
            } else if *before >= began {
                (began, count) = (*before, *counted);
                is_new = false;
            }
        }
        // A counter's name shows whether it includes a window, so no other combination occurs.
        _ => {}
    }

    let number = limit.number_as_u32();
    let allowed = hits < 0 || (!denied && i64::from(count) + hits <= i64::from(number));
    // A charge of another window is no longer in the count.
    let is_past = charge.is_some_and(|charge| caller.window.is_none() && !window.contains(&charge.at_ms));
    let begins = !is_new || hits > 0;
    let charged = hits != 0 && begins && !is_past && (allowed || limit.count_denied());
    if charged {
        count = add(count, hits);
    }

    // Where nothing is counted, no window has started.
    let is_empty = starts && count == 0;
    let left_ms = if is_empty { 0 } else { window.end.saturating_sub(now) };
    let (window, reset_after_ms, kept_ms) = match caller.window {
        Some(named) => (Window::Named, named.left_ms.get(), named.kept_ms),
        None => (Window::Began(began), left_ms, left_ms),
    };
    let verdict = Verdict {
        allowed,
        remaining: number.saturating_sub(count).into(),
        excess: count.checked_sub(number).filter(|excess| *excess > 0).map(u64::from),
        reset_after_ms,
        retry_after_ms: if allowed {
            Some(0)
        } else if hits > i64::from(number) {
            None
        } else {
            Some(reset_after_ms)
        },
        ..Verdict::NOTHING
    };
    ((charged || set_back).then_some((State { window, count }, kept_ms)), verdict)
}

pub(super) fn parameters(_: u32, period_ms: u64, options: &Options) -> Result<Parameters, LimitErrors> {
    let calendar = Calendar::new(period_ms, options)?;
    let starts = options.starts.unwrap_or_default();
    if calendar.is_some() && starts == Starts::FirstRequest {
        return Err(LimitError::Starts.into());
    }
    Ok(Parameters { calendar, starts })
}

impl Parameters {
    /// Returns the window that contains `time`.
    fn window(&self, period_ms: u64, time: u64) -> Range<u64> {
        match self.calendar {
            Some(calendar) => calendar.window(time),
            None if self.starts == Starts::FirstRequest => time..time + period_ms,
            None => {
                let start = time - time % period_ms;
                start..start + period_ms
            }
        }
    }

    fn stands_still_ms(&self, period_ms: u64) -> u64 {
        if self.calendar.is_some() { STANDS_STILL_MS } else { period_ms }
    }

    pub(super) fn calendar(&self) -> Option<Calendar> {
        self.calendar
    }

    pub(super) fn figures(&self, caller: Caller) -> [u64; FIGURES] {
        let starts = u64::from(self.starts == Starts::FirstRequest);
        match caller.window {
            Some(window) => figures(&[window.left_ms.get(), window.kept_ms]),
            None => figures(&[0, 0, 0, starts]),
        }
    }

    /// Returns the figures of a calendar by the clock of this process.
    pub(super) fn calendar_figures(calendar: Calendar, now: u64) -> [u64; FIGURES] {
        let [before, first, second, last] = calendar.starts(now);
        [0, before, first, second, last]
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u64 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        match self.calendar {
            Some(calendar) => calendar.identity(name),
            None => push_number(name, limit.period_ms),
        }
        if self.starts == Starts::FirstRequest {
            name.push_str("/first");
        }
    }

    pub(super) fn work(&self, _: &Limit) -> u64 {
        1
    }
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        0
    }

    /// Parses a state from [`pack`](State::pack), or a count by another program; `None` if it is damaged.
    pub(super) fn unpack(_: &Limit, caller: Caller, bytes: &[u8]) -> Option<State> {
        if caller.window.is_some() {
            let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
            let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
            // Limited to the range of counts.
            let count = if digits.len() < bytes.len() { 0 } else { number.parse().unwrap_or(u32::MAX) };
            return Some(State { window: Window::Named, count });
        }
        let mut packed = Packed(bytes);
        let (window, count) = (Window::Began(packed.whole()?), packed.count()?);
        packed.is_empty().then_some(State { window, count })
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        match self.window {
            Window::Began(window) => [&(window as f64).to_le_bytes()[..], &self.count.to_le_bytes()].concat(),
            Window::Named => self.count.to_string().into_bytes(),
        }
    }
}
