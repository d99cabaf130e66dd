//! Fixed window: one count for each window aligned to the clock.
//!
//! At most twice the number passes in an interval of one period: at the end of one window, and at the start of the
//! next. This is what `envoyproxy/ratelimit` does, counted denials included.
//!
//! Where counters are shared with it, the window is in the counter's name ([`NamedWindow`](super::NamedWindow)), and
//! the counter is a plain number, as `INCRBY` leaves it.

use super::{
    Attempt, Caller, FIGURES, Limit, LimitErrors, Options, Traits, Verdict, add, figures, push_number, steady,
};

pub(super) const OPTIONS: &[&str] = &[];

pub(super) const TRAITS: Traits = Traits { code: "fw1", has_holders: false, no_lease: None, denials_last: true };

/// Nothing beyond number and period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters;

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
    _: &Parameters,
    Attempt { hits, charge, denied, caller }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    let period = limit.period_ms;
    let mut window = now - now % period;
    let mut count = 0;
    let mut set_back = false;
    match (state, caller.window) {
        (Some(State { window: Window::Named, count: named }), Some(_)) => count = *named,
        (Some(State { window: Window::Began(began), count: counted }), None) => {
            let time;
            (time, set_back) = steady(now, *began, period);
            if set_back {
                count = *counted;
            } else {
                window = time - time % period;
                if *began == window {
                    count = *counted;
                }
            }
        }
        // A counter's name tells whether its window is in it, so nothing else ever comes.
        _ => {}
    }

    let number = limit.number;
    let allowed = hits < 0 || (!denied && i64::from(count) + hits <= i64::from(number));
    // What another window was charged has left with it.
    let is_past =
        charge.is_some_and(|charge| caller.window.is_none() && window != charge.at_ms - charge.at_ms % period);
    let charged = hits != 0 && !is_past && (allowed || limit.count_denied());
    if charged {
        count = add(count, hits);
    }

    let (window, reset_after_ms, kept_ms) = match caller.window {
        Some(named) => (Window::Named, named.left_ms.get(), named.kept_ms),
        None => (Window::Began(window), window + period - now, window + period - now),
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
    pub(super) fn new(_: u32, _: u64, _: &Options) -> Result<Self, LimitErrors> {
        Ok(Parameters)
    }

    pub(super) fn figures(&self, caller: Caller) -> [u64; FIGURES] {
        caller.window.map_or([0; FIGURES], |window| figures(&[window.left_ms.get(), window.kept_ms]))
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u32 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        push_number(name, limit.period_ms);
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
