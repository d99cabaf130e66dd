//! Penalty: bans a client that a limit denied `after` times `within` a period. During the ban every request is denied,
//! even if the limit would allow it.
//!
//! A penalty is decided together with its limit and has a separate counter that stores the time of each denial. A ban
//! ends `ban` after the denial that caused it. Requests during the ban change nothing, or restart it if `extend` is
//! set. A reset of the limit's counter lifts the ban; a refund does not.
//!
//! The counter stores the start of a ban, not its end, so a changed `ban` takes effect at once. It therefore also
//! stores an expiry time: the end of the ban by the present rule, but at least [`REMEMBERED_MS`] away. From then on the
//! counter is equivalent to a new one, whether it is deleted or not.

use std::fmt;
use std::time::Duration;

use super::{
    Change, Effect, Outcome, Packed, REMEMBERED_MS, State as AnyState, Verdict, is_period, push_number, steady,
};

/// The source of the Lua twin.
pub const LUA: &str = include_str!("../../../lua/penalty.lua");

/// The largest `after`, because the time of each denial is stored.
const MAX_AFTER: u32 = 1_000;

/// The outcome of a request at its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The request was a peek.
    Peeked = 0,
    /// The limit allowed the request.
    Passed = 1,
    /// The limit denied the request.
    Denied = 2,
}

/// A ban after a number of denials within a period. Every value of this type can be computed exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    after: u32,
    within_ms: u64,
    ban_ms: u64,
    extend: bool,
}

/// An invalid value of a penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PenaltyError {
    /// `after` is 0, or exceeds the number of denials that are stored.
    #[error("after must be from 1 to {MAX_AFTER}: the time of each denial is stored")]
    After,
    /// `within` is out of range.
    #[error("within is a whole number of milliseconds, from 1ms to 366d")]
    Within,
    /// `ban` is out of range.
    #[error("ban is a whole number of milliseconds, from 1ms to 366d")]
    Ban,
}

impl PenaltyError {
    /// Returns the key in rules that is wrong.
    pub const fn key(&self) -> &'static str {
        match self {
            PenaltyError::After => "after",
            PenaltyError::Within => "within",
            PenaltyError::Ban => "ban",
        }
    }
}

/// A ban, or the denials that may lead to one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Start of the ban, in milliseconds since the epoch; 0 if there is none.
    since: u64,
    /// Expiry, in milliseconds since the epoch; from then on the counter is equivalent to a new one.
    until: u64,
    /// Times of denied requests, the newest last.
    denials: Vec<u64>,
}

impl Penalty {
    /// Creates a penalty. With `extend`, every request during a ban restarts it.
    ///
    /// # Errors
    /// Returns an error for each value that is out of range.
    pub fn new(after: u32, within: Duration, ban: Duration, extend: bool) -> Result<Penalty, Vec<PenaltyError>> {
        let wrong = [
            (!(1..=MAX_AFTER).contains(&after)).then_some(PenaltyError::After),
            (!is_period(within)).then_some(PenaltyError::Within),
            (!is_period(ban)).then_some(PenaltyError::Ban),
        ];
        let wrong: Vec<PenaltyError> = wrong.into_iter().flatten().collect();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(Penalty { after, within_ms: within.as_millis() as u64, ban_ms: ban.as_millis() as u64, extend })
    }

    /// Decides whether the ban denies a request that had this outcome at its limit at `now`, and what changes in the
    /// counter.
    pub fn decide(&self, event: Event, state: Option<&AnyState>, now: u64) -> Outcome {
        // The kind of counter is part of its name, so the state is always a penalty's.
        let state = match state {
            Some(AnyState::Penalty(state)) => Some(state),
            _ => None,
        };
        let (change, verdict) = self.decide_on(event, state, now);
        Outcome { effect: Effect::of(change, Change::Penalty), verdict }
    }

    fn decide_on(&self, event: Event, state: Option<&State>, now: u64) -> (Option<(State, u64)>, Verdict) {
        let Penalty { after, within_ms, ban_ms, extend } = *self;
        // Times are truncated to milliseconds, so a denial is kept one millisecond longer to cover the whole period.
        let held = within_ms + 1;
        let mut time = now;
        let mut set_back = false;
        let mut since = 0;
        let mut until = 0;
        let mut denials = Vec::new();
        if let Some(state) = state.filter(|state| now < state.until) {
            let newest = state.denials.last().copied().unwrap_or(state.since);
            (time, set_back) = steady(now, newest, within_ms);
            let clock = if set_back { newest } else { time };
            until = state.until;
            if state.since + ban_ms > clock {
                since = state.since;
            }
            denials.extend(state.denials.iter().copied().filter(|at| at + held > clock));
            if set_back {
                // After a clock reset the age of the events is unknown, so they are dated now.
                since = if since > 0 { time } else { 0 };
                denials.fill(time);
            }
        }

        let banned = since > 0;
        let denied = event == Event::Denied && !banned;
        let extended = event != Event::Peeked && banned && extend;
        // A ban that a rule change made longer must be kept longer than was stored.
        let outlives = event != Event::Peeked && banned && since + ban_ms > until;
        if extended {
            since = time;
        } else if denied {
            denials.push(time);
            if denials.len() >= after as usize {
                since = time;
                denials.clear();
            }
        }

        let newest = denials.last().copied().unwrap_or_default();
        let changed = extended || denied || set_back || outlives;
        if changed {
            until = match (since, newest) {
                (1.., _) => since + ban_ms.max(REMEMBERED_MS),
                (0, 1..) => newest + held,
                (0, 0) => 0,
            };
        }
        let left = (since + ban_ms).min(until).saturating_sub(now);
        let (remaining, reset_after_ms) = match (since, newest) {
            (1.., _) => (0, left),
            (0, 1..) => (after.saturating_sub(denials.len() as u32), newest + held - now),
            (0, 0) => (after, 0),
        };
        let verdict = Verdict {
            allowed: since == 0,
            remaining: remaining.into(),
            reset_after_ms,
            retry_after_ms: Some(if since > 0 { left } else { 0 }),
            ..Verdict::NOTHING
        };
        (changed.then(|| (State { since, until, denials }, until.saturating_sub(now))), verdict)
    }

    /// Returns the most work that a decision takes, because the denials are copied; 1 is a decision on a small counter.
    pub fn work(&self) -> u64 {
        1 + u64::from(self.after) / 12
    }

    /// Returns whether requests during a ban restart it.
    pub fn extends(&self) -> bool {
        self.extend
    }

    /// Returns the penalty's figures for the Lua twin.
    pub fn figures(&self) -> [u64; 4] {
        [self.after.into(), self.within_ms, self.ban_ms, self.extend.into()]
    }

    /// Appends the penalty's part of its counter's name: the version of its layout, and the period in which denials are
    /// counted.
    pub fn identity(&self, name: &mut String) {
        name.push_str("pe1:");
        push_number(name, self.within_ms);
    }
}

/// Formats the penalty as rules write it.
impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = |ms| humantime::format_duration(Duration::from_millis(ms));
        let Penalty { after, within_ms, ban_ms, extend } = *self;
        write!(f, "{{after: {after}, within: {}, ban: {}", length(within_ms), length(ban_ms))?;
        f.write_str(if extend { ", extend: true}" } else { "}" })
    }
}

impl State {
    /// Parses a state from [`pack`](State::pack); `None` if it is damaged. The times of denials must be in order, and a
    /// ban must have none.
    pub fn unpack(bytes: &[u8]) -> Option<State> {
        let mut packed = Packed(bytes);
        let (since, until) = (packed.whole()?, packed.whole()?);
        let mut denials = Vec::new();
        while !packed.is_empty() {
            denials.push(packed.whole()?);
        }
        let is_sound = denials.is_sorted() && denials.len() <= MAX_AFTER as usize && (since == 0 || denials.is_empty());
        is_sound.then_some(State { since, until, denials })
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.denials)
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        [self.since, self.until].iter().chain(&self.denials).flat_map(|at| (*at as f64).to_le_bytes()).collect()
    }
}
