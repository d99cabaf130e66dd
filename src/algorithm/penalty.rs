//! Penalty: who is denied `number` times within a period is banned for a while, whatever the limit would say meanwhile.
//!
//! It stands beside a limit and counts that limit's denials, each with its time; so it is no algorithm that a limit can have, but
//! is decided like one, right after its limit and in the same group. Its hits are what became of the request: [`LOOKED`],
//! [`PASSED`] or [`DENIED`] by the limit. Giving back, however much, is a pardon: a reset by hand.
//!
//! A ban ends `ban` after the denial that brought it. Requests meanwhile change nothing, or where it is to be extended begin it anew.
//! What is kept is when a ban began, not when it ends: a changed `ban` is in force at once.

use super::{FIGURES, Limit, LimitError, LimitErrors, Options, Verdict, figures, hold, is_period, push_number};

pub(super) const OPTIONS: &[&str] = &["ban", "extend"];

/// The most denials: the time of each is kept.
pub(super) const MAX_NUMBER: u32 = 1_000;

/// Nobody asked for anything.
pub const LOOKED: i64 = 0;
/// The limit let the request pass.
pub const PASSED: i64 = 1;
/// The limit denied it.
pub const DENIED: i64 = 2;

/// What a ban is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    ban_ms: u64,
    extend: bool,
}

/// A ban, or the denials that lead to one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// When a ban began, in milliseconds since the epoch; 0 where there is none.
    since: u64,
    /// When requests were denied, the newest last.
    denials: Vec<u64>,
}

pub use self::State as Change;

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    hits: i64,
    state: Option<&State>,
    now: u64,
) -> (Option<State>, Verdict) {
    let Parameters { ban_ms, extend } = *parameters;
    let number = limit.number as usize;
    // Time is cut to milliseconds: one more, lest a denial be forgotten before the whole of the period has passed.
    let held = limit.period_ms + 1;
    let mut time = now;
    let mut set_back = false;
    let mut since = 0;
    let mut denials = Vec::new();
    if let Some(state) = state {
        let newest = state.denials.last().copied().unwrap_or(state.since);
        (time, set_back) = hold(now, newest, limit.period_ms);
        let clock = if set_back { newest } else { time };
        if state.since + ban_ms > clock {
            since = state.since;
        }
        denials.extend(state.denials.iter().copied().filter(|at| at + held > clock));
        if set_back {
            // How long ago it was, the new clock cannot tell: it is as if it were now.
            since = if since > 0 { time } else { 0 };
            denials.fill(time);
        }
    }

    let banned = since > 0;
    let pardoned = hits < 0;
    let denied = hits == DENIED && !banned;
    let extended = hits > 0 && banned && extend;
    if pardoned {
        since = 0;
        denials.clear();
    } else if extended {
        since = time;
    } else if denied {
        denials.push(time);
        if denials.len() >= number {
            since = time;
            denials.clear();
        }
    }

    let left = since.saturating_add(ban_ms).saturating_sub(now);
    let (remaining, reset_after_ms) = match (since, denials.last()) {
        (1.., _) => (0, left),
        (0, Some(newest)) => (number.saturating_sub(denials.len()), newest + held - now),
        (0, None) => (number, 0),
    };
    let verdict = Verdict {
        allowed: since == 0,
        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        reset_after_ms,
        retry_after_ms: Some(if since > 0 { left } else { 0 }),
        delay_ms: 0,
    };
    let changed = pardoned || extended || denied || set_back;
    (changed.then_some(State { since, denials }), verdict)
}

impl Parameters {
    pub(super) fn new(number: u32, _: u64, options: &Options) -> Result<Self, LimitErrors> {
        let ban = options.ban.unwrap_or_default();
        LimitErrors::any([
            (number == 0 || number > MAX_NUMBER).then_some(LimitError::Denials),
            (!is_period(ban)).then_some(LimitError::Ban),
        ])?;
        Ok(Parameters { ban_ms: ban.as_millis() as u64, extend: options.extend.unwrap_or(false) })
    }

    pub(super) fn arguments(&self) -> [u64; FIGURES] {
        figures(&[self.ban_ms, self.extend.into()])
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u32 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        name.push_str("pe");
        push_number(name, limit.period_ms);
    }
}

impl State {
    pub(super) fn pack(&self) -> Vec<u8> {
        std::iter::once(&self.since).chain(&self.denials).flat_map(|at| (*at as f64).to_le_bytes()).collect()
    }
}
