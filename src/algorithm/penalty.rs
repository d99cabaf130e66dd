//! Penalty: a client that a limit denies `after` times within a while is banned for a while, whatever the limit would
//! say meanwhile.
//!
//! It is part of the check of its limit, and has a counter of its own beside it, which keeps the time of each denial. A
//! ban ends `ban` after the denial that brought it. Requests meanwhile change nothing, or begin it anew where it is to
//! be extended. A reset of the limit's counter is a pardon; a refund is none.
//!
//! The counter keeps when a ban began, not when it ends: a changed `ban` is in force at once. So it also stores until
//! when it is remembered: for as long as the ban lasts at present, and at least for [`REMEMBERED_MS`]. From then on it
//! is as fresh, deleted or not.

use std::fmt;
use std::time::Duration;

use super::{Change, Effect, Outcome, REMEMBERED_MS, State as AnyState, Verdict, is_period, push_number, steady};

/// The source of the Lua twin.
pub const LUA: &str = include_str!("../../lua/penalty.lua");

/// The most denials: the time of each is kept.
const MAX_AFTER: u32 = 1_000;

/// What became of a request, as far as its limit is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It only peeked.
    Peeked = 0,
    /// The limit let it pass.
    Passed = 1,
    /// The limit denied it.
    Denied = 2,
}

/// So many denials within a period bring a ban. Every value of this type can be computed exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    after: u32,
    within_ms: u64,
    ban_ms: u64,
    extend: bool,
}

/// What is wrong with a penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PenaltyError {
    /// Bans for nothing, or more denials than are kept.
    #[error("after must be from 1 to {MAX_AFTER}: the time of each denial is kept")]
    After,
    /// The period in which denials are counted is out of range.
    #[error("within is a whole number of milliseconds, from 1ms to 366d")]
    Within,
    /// The length of a ban is out of range.
    #[error("ban is a whole number of milliseconds, from 1ms to 366d")]
    Ban,
}

impl PenaltyError {
    /// The key in rules that is wrong.
    pub const fn key(&self) -> &'static str {
        match self {
            PenaltyError::After => "after",
            PenaltyError::Within => "within",
            PenaltyError::Ban => "ban",
        }
    }
}

/// A ban, or the denials that lead to one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// When a ban began, in milliseconds since the epoch; 0 where there is none.
    since: u64,
    /// From then on it is as fresh, in milliseconds since the epoch.
    until: u64,
    /// When requests were denied, the newest last.
    denials: Vec<u64>,
}

impl Penalty {
    /// A ban for a client that a limit denies `after` times `within`; `extend`: every request begins it anew.
    ///
    /// # Errors
    /// With each of these that is out of range.
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

    /// Decides whether a request is banned that has come to this at `now`, and what becomes of the counter, which last
    /// was `state`.
    pub fn decide(&self, event: Event, state: Option<&AnyState>, now: u64) -> Outcome {
        // A counter's name says what it counts, so no other ever comes.
        let state = match state {
            Some(AnyState::Penalty(state)) => Some(state),
            _ => None,
        };
        let (change, verdict) = self.decide_on(event, state, now);
        Outcome { effect: Effect::of(change, Change::Penalty), verdict }
    }

    fn decide_on(&self, event: Event, state: Option<&State>, now: u64) -> (Option<(State, u64)>, Verdict) {
        let Penalty { after, within_ms, ban_ms, extend } = *self;
        // Time is cut to milliseconds: one more, lest a denial be forgotten before the whole of the period has passed.
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
                // How long ago it was, the new clock cannot tell: it is as if it were now.
                since = if since > 0 { time } else { 0 };
                denials.fill(time);
            }
        }

        let banned = since > 0;
        let denied = event == Event::Denied && !banned;
        let extended = event != Event::Peeked && banned && extend;
        // A ban that has become longer needs it for longer than was stored.
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
            remaining,
            excess: None,
            reset_after_ms,
            retry_after_ms: Some(if since > 0 { left } else { 0 }),
            delay_ms: 0,
        };
        (changed.then(|| (State { since, until, denials }, until.saturating_sub(now))), verdict)
    }

    /// How much work a decision is at the most, where one of a small counter is 1: the denials are copied.
    pub fn work(&self) -> u64 {
        1 + u64::from(self.after) / 12
    }

    /// Its bans begin anew with every request.
    pub fn extends(&self) -> bool {
        self.extend
    }

    /// Its figures, as the Lua twin takes them.
    pub fn figures(&self) -> [u64; 4] {
        [self.after.into(), self.within_ms, self.ban_ms, self.extend.into()]
    }

    /// Appends what of the penalty is part of its counter's name: the version of its layout, and the period in which
    /// denials are counted.
    pub fn identity(&self, name: &mut String) {
        name.push_str("pe1:");
        push_number(name, self.within_ms);
    }
}

/// As rules have it.
impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = |ms| humantime::format_duration(Duration::from_millis(ms));
        let Penalty { after, within_ms, ban_ms, extend } = *self;
        write!(f, "{{after: {after}, within: {}, ban: {}", length(within_ms), length(ban_ms))?;
        f.write_str(if extend { ", extend: true}" } else { "}" })
    }
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.denials)
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        [self.since, self.until].iter().chain(&self.denials).flat_map(|at| (*at as f64).to_le_bytes()).collect()
    }
}
