//! Leases: hits that a process takes from a counter in advance, so that it decides requests of a hot key without asking
//! for each.
//!
//! Leased hits are charged before they are used, so never more pass than were charged. A lease stretches time: a hit
//! may be used up to `ttl` after it was charged. A process holds at most `size` hits of a counter, those on their way
//! included. So in any interval of one period at most
//!
//! ```text
//! what the limit admits without leases + processes x size
//! ```
//!
//! pass: the limit bounds the hits that were charged in the interval, and processes held the others when it began.
//! `tests/it/simulation.rs` holds replicas to it before a store that fails in many ways.
//!
//! A lease is as large as the demand, and at most an eighth of what remains: near the limit leases get smaller and end,
//! and each request asks the counter, exactly. When a lease ends, the hits that are not used are refunded.
//!
//! This file keeps the account, without I/O and without a clock: `store::lease` has both.

use std::fmt;
use std::time::Duration;

use crate::algorithm::{Limit, NoLease, Verdict};

/// The shortest and the longest time that a lease may last.
const TTL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));

/// A lease is at most this part of what remains, so that others find enough.
const PART: u32 = 8;

/// What may be taken in advance of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    size: u32,
    ttl: Duration,
}

/// As rules have it.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lease { size, ttl } = self;
        write!(f, "{{size: {size}, ttl: {}}}", humantime::format_duration(*ttl))
    }
}

/// Why a limit cannot have such a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Nothing would be taken.
    #[error("size must be at least 1: to take nothing in advance, leave the lease out")]
    ZeroSize,
    /// More than can ever be there.
    #[error("size must be at most {0}, which is all that this limit lets pass at once")]
    Size(u32),
    /// Out of range.
    #[error("ttl must be from 1ms to 10s: so long may a hit be used after it was counted")]
    Ttl,
    /// The counter would have forgotten what is refunded.
    #[error("ttl must be no longer than the period, {}", humantime::format_duration(*.0))]
    Period(Duration),
    /// Asking for a lease would be charged even where there is none.
    #[error(
        "a limit that counts denials has no lease: where there is none to be had, asking for it would be charged; \
         write count_denied: false"
    )]
    CountDenied,
    /// What is taken belongs to someone.
    #[error("concurrency has no lease: a slot belongs to the stream that takes it")]
    Holders,
    /// What is taken in advance would have to be delayed.
    #[error("a limit with max_delay has no lease: each request has a delay of its own")]
    Delay,
}

impl LeaseError {
    /// The key of the lease that is wrong, where it is one.
    pub const fn key(&self) -> Option<&'static str> {
        match self {
            LeaseError::ZeroSize | LeaseError::Size(_) => Some("size"),
            LeaseError::Ttl | LeaseError::Period(_) => Some("ttl"),
            LeaseError::CountDenied | LeaseError::Holders | LeaseError::Delay => None,
        }
    }
}

impl Lease {
    /// At most `size` hits of `limit`, to be used within `ttl`.
    ///
    /// # Errors
    /// Where the limit cannot have it.
    pub fn new(size: u32, ttl: Duration, limit: &Limit) -> Result<Lease, LeaseError> {
        match limit.no_lease() {
            None => {}
            Some(NoLease::Holders) => return Err(LeaseError::Holders),
            Some(NoLease::Delay) => return Err(LeaseError::Delay),
            Some(NoLease::CountDenied) => return Err(LeaseError::CountDenied),
        }
        if size == 0 {
            return Err(LeaseError::ZeroSize);
        }
        if size > limit.capacity() {
            return Err(LeaseError::Size(limit.capacity()));
        }
        let (shortest, longest) = TTL;
        if ttl < shortest || ttl > longest {
            return Err(LeaseError::Ttl);
        }
        if ttl > limit.period() {
            return Err(LeaseError::Period(limit.period()));
        }
        Ok(Lease { size, ttl })
    }

    /// The same for a limit that has been changed: at most as much as that lets pass at once. `None` where it can have
    /// none.
    pub fn within(self, limit: &Limit) -> Option<Lease> {
        Lease::new(self.size.min(limit.capacity()), self.ttl, limit).ok()
    }

    /// The most hits that a process holds.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// How long after it was charged a hit may be used.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// What one process knows of a counter, and holds of it. Time counts from a moment that the process chooses.
///
/// One [`Question`] is asked at a time, so the process never holds more than the size of a lease.
#[derive(Clone, Debug)]
pub struct Account {
    limit: Limit,
    lease: Lease,
    /// Goes up whenever the answers to earlier questions must not be used.
    generation: u64,
    /// Charged, and not used.
    held: u32,
    /// From then on it is to be refunded.
    ends: Duration,
    /// What the counter said last, and when.
    last: Option<(Verdict, Duration)>,
    /// The hits that requests have asked for since a lease was last taken.
    demand: u64,
    /// When a request last asked.
    asked: Duration,
}

/// What to ask the counter, in one call: first a refund, then a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Hits that were held and not used.
    pub refund: u32,
    /// Hits of the requests that wait, and of a new lease; zero where there shall be none.
    pub take: u32,
    lease: u32,
    at: Duration,
    generation: u64,
}

impl Question {
    /// There is nothing to refund and no lease to take: each request that waits asks for itself.
    pub fn is_empty(&self) -> bool {
        self.refund == 0 && self.take == 0
    }

    /// So many of the hits that it takes are a new lease.
    pub fn lease(&self) -> u32 {
        self.lease
    }
}

impl Account {
    /// The account of a counter that nothing is known of.
    pub fn new(limit: Limit, lease: Lease, now: Duration) -> Account {
        let (generation, held, demand) = (0, 0, 0);
        Account { limit, lease, generation, held, ends: now, last: None, demand, asked: now }
    }

    /// What the counter may admit.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// What may be taken in advance.
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// Sets the terms. Where they change, a lease ends.
    pub fn set_terms(&mut self, limit: Limit, lease: Lease) {
        if (limit, lease) != (self.limit, self.lease) {
            (self.limit, self.lease) = (limit, lease);
            self.end();
        }
    }

    /// Ends a lease at once, also one that is on its way, and forgets what is known of the counter.
    pub fn end(&mut self) {
        self.generation += 1;
        self.ends = Duration::ZERO;
        self.last = None;
    }

    /// Decides a request of so many hits by what is held, if that is enough.
    pub fn spend(&mut self, hits: u64, now: Duration) -> Option<Verdict> {
        let left = u32::try_from(hits).ok().filter(|_| now < self.ends).and_then(|hits| self.held.checked_sub(hits))?;
        let (last, at) = self.last?;
        self.held = left;
        self.count(hits, now);
        let elapsed_ms = u64::try_from((now - at).as_millis()).unwrap_or(u64::MAX);
        Some(Verdict { reset_after_ms: last.reset_after_ms.saturating_sub(elapsed_ms), ..self.with_held(last) })
    }

    /// Whether a request of so many hits asks for itself, because nothing is held and too little is known to remain for
    /// a lease.
    pub fn asks_alone(&mut self, hits: u64, now: Duration) -> bool {
        let alone = self.held == 0 && self.remaining() < PART;
        if alone {
            self.count(hits, now);
        }
        alone
    }

    /// What to ask for requests of so many hits together. It refunds what is held, to be charged anew.
    pub fn question(&mut self, hits: u64, now: Duration) -> Question {
        self.count(hits, now);
        let refund = std::mem::take(&mut self.held);
        let remaining = self.remaining();
        let demand = u32::try_from(self.demand.saturating_mul(2)).unwrap_or(u32::MAX);
        let lease = self.lease.size.min(demand).min(remaining / PART);
        let (take, lease) = match u32::try_from(u64::from(lease).saturating_add(hits)) {
            Ok(take) if lease > 0 && hits > 0 && take <= remaining => (take, lease),
            _ => (0, 0),
        };
        Question { refund, take, lease, at: now, generation: self.generation }
    }

    /// Takes the counter's answer, of the take if there was one. Returns the answer to the requests that waited if all
    /// of their hits pass together; otherwise, or if nothing was taken, each of them asks for itself.
    pub fn answered(&mut self, question: &Question, verdict: Verdict, now: Duration) -> Option<Verdict> {
        let current = question.generation == self.generation;
        if current {
            self.last = Some((verdict, now));
        }
        if question.take == 0 || !verdict.allowed {
            return None;
        }
        self.held = question.lease;
        if current {
            // Counted from before it was charged.
            self.ends = question.at + self.lease.ttl;
            self.demand = 0;
        }
        Some(self.with_held(verdict))
    }

    /// Notes what the counter said to a request that asked it without a lease.
    pub fn note(&mut self, limit: &Limit, verdict: Verdict, now: Duration) {
        // An answer from before a lease was taken says that too much remains.
        if self.held == 0 && *limit == self.limit {
            self.last = Some((verdict, now));
        }
    }

    /// Hits are held that must not be used any more.
    pub fn is_over(&self, now: Duration) -> bool {
        self.held > 0 && now >= self.ends
    }

    /// So many hits are charged and not used.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Nothing is held, and no request has asked for the length of a lease: there is nothing to remember.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.held == 0 && now >= self.asked + self.lease.ttl
    }

    /// When to check next whether it is over or idle.
    pub fn next_check(&self) -> Duration {
        if self.held > 0 { self.ends } else { self.asked + self.lease.ttl }
    }

    /// What remains, by what the counter said last.
    fn remaining(&self) -> u32 {
        self.last.map_or(0, |(last, _)| last.remaining)
    }

    fn count(&mut self, hits: u64, now: Duration) {
        self.demand = self.demand.saturating_add(hits);
        if hits > 0 {
            self.asked = now;
        }
    }

    /// Adds the hits that are held: they would pass, too.
    fn with_held(&self, last: Verdict) -> Verdict {
        Verdict { allowed: true, remaining: last.remaining.saturating_add(self.held), retry_after_ms: Some(0), ..last }
    }
}
