//! Fixed window: one count for each window aligned to the clock.
//!
//! At most twice the number passes in an interval of one period: at the end of one window, and at the start of the
//! next. This is what `envoyproxy/ratelimit` does, counted denials included.

use super::{Attempt, Caller, FIGURES, Limit, LimitErrors, Options, Traits, Verdict, add, push_number, steady};

pub(super) const OPTIONS: &[&str] = &[];

pub(super) const TRAITS: Traits = Traits { code: "fw1", has_holders: false, no_lease: None, denials_last: true };

/// Nothing beyond number and period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters;

/// The hits of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// When the window began, in milliseconds since the epoch.
    window: u64,
    count: u32,
}

pub use self::State as Change;

pub(super) fn decide(
    limit: &Limit,
    _: &Parameters,
    Attempt { hits, denied, .. }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    let period = limit.period_ms;
    let mut window = now - now % period;
    let mut count = 0;
    let mut set_back = false;
    if let Some(state) = state {
        let time;
        (time, set_back) = steady(now, state.window, period);
        if set_back {
            count = state.count;
        } else {
            window = time - time % period;
            if state.window == window {
                count = state.count;
            }
        }
    }

    let number = limit.number;
    let allowed = hits < 0 || (!denied && i64::from(count) + hits <= i64::from(number));
    let charged = hits != 0 && (allowed || limit.count_denied());
    if charged {
        count = add(count, hits);
    }

    let reset_after_ms = window + period - now;
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
    ((charged || set_back).then_some((State { window, count }, reset_after_ms)), verdict)
}

impl Parameters {
    pub(super) fn new(_: u32, _: u64, _: &Options) -> Result<Self, LimitErrors> {
        Ok(Parameters)
    }

    pub(super) fn figures(&self, _: Caller) -> [u64; FIGURES] {
        [0; FIGURES]
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
        let mut bytes = (self.window as f64).to_le_bytes().to_vec();
        bytes.extend(self.count.to_le_bytes());
        bytes
    }
}
