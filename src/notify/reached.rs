//! Which marks a decision has reached, and for how long nobody needs to hear of it again. Pure.
//!
//! A mark is reached as long as so much of the limit is used, not only by the request that uses it first: the reply to
//! that one may be lost after the charge, or its hits may come from a lease. That each mark is told once is the part of
//! the claims.

use std::time::Duration;

use crate::engine::algorithm::{Algorithm, Ask, Limit};
use crate::engine::decision::{Answer, Limited};
use crate::engine::rules::options::enforce::Share;
use crate::engine::rules::options::notify::Marks;

/// The shortest time after which a mark is told again. It is longer than the shortest periods: nobody reads a notice
/// every second.
pub(super) const SHORTEST: Duration = Duration::from_secs(60);

/// How much of a limit is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    /// The hits that are used.
    pub(super) used: u64,
    /// The hits that the limit admits.
    pub(super) capacity: u64,
    /// Whether the limit is used up: nothing is left, or too little for a request that fits into an unused one.
    pub(super) is_used_up: bool,
    /// Time until the counter is as new, in milliseconds.
    pub(super) reset_after_ms: u64,
    /// For how long nobody needs to hear of the same mark again.
    pub(super) lasts: Duration,
}

impl Reached {
    /// Returns how much is used after a decision of the store; `None` if the request takes no hits, or if the store was
    /// not asked.
    pub(super) fn by(limited: &Limited<'_>) -> Option<Reached> {
        let Answer::Store(verdict) = limited.answer else { return None };
        let (limit, own) = (&limited.asked.check.limit, verdict.own);
        let (Ask::Take(hits), capacity @ 1..) = (limited.asked.check.ask, limited.capacity()) else { return None };
        if verdict.is_known {
            return None;
        }
        Some(Reached {
            used: capacity.saturating_sub(own.remaining),
            capacity,
            is_used_up: own.remaining == 0 || !own.allowed && hits <= capacity,
            reset_after_ms: own.reset_after_ms,
            lasts: lasts(limit, own.reset_after_ms),
        })
    }

    /// Returns those of the marks that are reached, in ascending order.
    pub(super) fn of(self, marks: &Marks) -> impl Iterator<Item = Share> {
        marks.iter().filter(move |mark| self.is_used_up || mark.is_reached(self.used, self.capacity))
    }
}

/// Returns the time until a mark is told again: a fixed window's rest, or a period. A limit of requests in progress has
/// no period.
fn lasts(limit: &Limit, reset_after_ms: u64) -> Duration {
    match limit.window() {
        Some(window) if window < SHORTEST => SHORTEST,
        Some(_) if limit.algorithm() == Algorithm::FixedWindow => Duration::from_millis(reset_after_ms),
        Some(window) => window,
        None => SHORTEST,
    }
}
