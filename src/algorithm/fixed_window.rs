//! Fixed window: one count for each window aligned to the clock, or to the calendar of a time zone.
//!
//! At most twice the number passes in an interval of one period, of a calendar one as long as its shortest window: at
//! the end of one window, and at the start of the next. This is what `envoyproxy/ratelimit` does, counted denials
//! included.
//!
//! Lua knows no calendar. So the process that asks tells it where four windows begin (`Calendar::starts`), by its own
//! clock, and the twin takes the window that Redis's clock lies in. Where that is none of these three, because the two
//! clocks are more than a window apart, the twin fails the check. Should two processes know different rules of a zone,
//! the later start of a window holds for both, so that neither begins it anew for each request.
//!
//! Where counters are shared with it, the window is in the counter's name ([`NamedWindow`](super::NamedWindow)), and
//! the counter is a plain number, as `INCRBY` leaves it.

use std::ops::Range;

use super::calendar::Calendar;
use super::{
    Attempt, Caller, FIGURES, Limit, LimitError, LimitErrors, Options, Traits, Verdict, add, figures, push_number,
    steady,
};

pub(super) const OPTIONS: &[&str] = &["time_zone"];

/// So far a clock may step back while a counter of a calendar stands still: less than any window, so that it stands in
/// the window behind the present one.
const STANDS_STILL_MS: u64 = 60 * 60 * 1000;

pub(super) const TRAITS: Traits = Traits { code: "fw1", has_holders: false, no_lease: None, denials_last: true };

/// What aligns the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    /// `None`: the clock.
    calendar: Option<Calendar>,
}

/// The hits of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    window: Window,
    count: u32,
}

/// Which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    /// The one that began then, in milliseconds since the epoch.
    Began(u64),
    /// The one in the counter's name.
    Named,
}

pub use self::State as Change;

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    Attempt { hits, charge, denied, caller }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    let mut window = parameters.window(limit.period_ms, now);
    let mut began = window.start;
    let mut count = 0;
    let mut set_back = false;
    match (state, caller.window) {
        (Some(State { window: Window::Named, count: named }), Some(_)) => count = *named,
        (Some(State { window: Window::Began(before), count: counted }), None) => {
            let time;
            (time, set_back) = steady(now, *before, parameters.stands_still_ms(limit.period_ms));
            if time > now {
                window = parameters.window(limit.period_ms, time);
                began = window.start;
            }
            if set_back {
                count = *counted;
            } else if *before >= began {
                (began, count) = (*before, *counted);
            }
        }
        // A counter's name tells whether its window is in it, so nothing else ever comes.
        _ => {}
    }

    let number = limit.number;
    let allowed = hits < 0 || (!denied && i64::from(count) + hits <= i64::from(number));
    // What another window was charged has left with it.
    let is_past = charge.is_some_and(|charge| caller.window.is_none() && !window.contains(&charge.at_ms));
    let charged = hits != 0 && !is_past && (allowed || limit.count_denied());
    if charged {
        count = add(count, hits);
    }

    let left_ms = window.end.saturating_sub(now);
    let (window, reset_after_ms, kept_ms) = match caller.window {
        Some(named) => (Window::Named, named.left_ms.get(), named.kept_ms),
        None => (Window::Began(began), left_ms, left_ms),
    };
    let verdict = Verdict {
        allowed,
        remaining: number.saturating_sub(count),
        excess: count.checked_sub(number).filter(|excess| *excess > 0),
        reset_after_ms,
        retry_after_ms: if allowed {
            Some(0)
        } else if hits > i64::from(number) {
            None
        } else {
            Some(reset_after_ms)
        },
        delay_ms: 0,
    };
    ((charged || set_back).then_some((State { window, count }, kept_ms)), verdict)
}

impl Parameters {
    pub(super) fn new(_: u32, period_ms: u64, options: &Options) -> Result<Self, LimitErrors> {
        let calendar = match options.time_zone {
            None => None,
            Some(time_zone) => Some(Calendar::new(period_ms, time_zone).ok_or(LimitError::TimeZone)?),
        };
        Ok(Parameters { calendar })
    }

    /// The window that a time lies in.
    fn window(&self, period_ms: u64, time: u64) -> Range<u64> {
        match self.calendar {
            Some(calendar) => calendar.window(time),
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
        caller.window.map_or([0; FIGURES], |window| figures(&[window.left_ms.get(), window.kept_ms]))
    }

    /// The figures of a calendar, by the clock of the process that asks.
    pub(super) fn calendar_figures(calendar: Calendar, now: u64) -> [u64; FIGURES] {
        let [before, first, second, last] = calendar.starts(now);
        [0, before, first, second, last]
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u32 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        match self.calendar {
            Some(calendar) => calendar.identity(name),
            None => push_number(name, limit.period_ms),
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

    pub(super) fn pack(&self) -> Vec<u8> {
        match self.window {
            Window::Began(window) => [&(window as f64).to_le_bytes()[..], &self.count.to_le_bytes()].concat(),
            Window::Named => self.count.to_string().into_bytes(),
        }
    }
}
