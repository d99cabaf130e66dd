//! Leases: hits that a process takes from a counter in advance, so that it decides requests of a hot key without asking for each.
//!
//! They are charged before they are used, so that never more pass than have been charged. What a lease stretches is time: a hit may be
//! used up to `ttl` after it was charged. A process holds at most `size` of a counter, in use and on the way together. So in any interval of
//! one period at most
//!
//! ```text
//! what the limit admits without leases + processes x size
//! ```
//!
//! pass: of what passes in the interval, the limit bounds what was charged in it, and what was charged before was held when the interval
//! began. `tests/simulation.rs` holds replicas to it before a store that fails in many ways.
//!
//! A lease is as large as the demand is, and at most an eighth of what remains: near the limit leases get smaller and end, and each request
//! asks the counter, exactly. What has not been used when a lease ends is given back.
//!
//! This is the bookkeeping, without I/O and without a clock: `store::lease` has both.

use std::time::Duration;

use crate::algorithm::{Limit, NoLease, Verdict};

/// The shortest and the longest time that a lease may last.
const TTL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));

/// A lease is at most this part of what remains, so that others find enough.
const PART: u32 = 8;

/// What may be taken in advance of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    size: u32,
    ttl: Duration,
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
    /// The counter would have forgotten what is given back.
    #[error("ttl must be no longer than the period, {}", humantime::format_duration(*.0))]
    Period(Duration),
    /// Asking for a lease would be charged even where there is none.
    #[error(
        "a limit that counts denials has no lease: where there is none to be had, asking for it would be charged; write count_denied: false"
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

    /// The most hits that a process holds.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// How long after it was charged a hit may be used.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// What one process knows of a counter, and holds of it. Time is what has passed since a moment of the process's own choice.
///
/// One [`Question`] is asked at a time: so never more than the size of a lease is held.
#[derive(Clone, Debug)]
pub struct Account {
    limit: Limit,
    lease: Lease,
    /// Goes up whenever what has been asked before shall not be used any more.
    generation: u64,
    /// Charged, and not used.
    held: u32,
    /// From then on it is to be given back.
    ends: Duration,
    /// What the counter has said last, and when.
    told: Option<(Verdict, Duration)>,
    /// The hits that have been asked for since a lease was last taken.
    demand: u64,
    /// When that was last.
    asked: Duration,
}

/// What to ask the counter, in one go: first to take back, then to charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Hits that were held and have not been used.
    pub give_back: u32,
    /// Hits of those who wait, and of a new lease; zero where there shall be none.
    pub take: u32,
    lease: u32,
    at: Duration,
    generation: u64,
}

impl Question {
    /// There is nothing to give back and no lease to take: who waits asks for himself.
    pub fn is_empty(&self) -> bool {
        self.give_back == 0 && self.take == 0
    }
}

impl Account {
    /// Of a counter that nothing is known of.
    pub fn new(limit: Limit, lease: Lease, now: Duration) -> Account {
        let (generation, held, demand) = (0, 0, 0);
        Account { limit, lease, generation, held, ends: now, told: None, demand, asked: now }
    }

    /// What the counter may admit.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// What may be taken in advance.
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// Goes on by these terms. Under others a lease ends.
    pub fn set_terms(&mut self, limit: Limit, lease: Lease) {
        if (limit, lease) != (self.limit, self.lease) {
            (self.limit, self.lease) = (limit, lease);
            self.end();
        }
    }

    /// A lease ends at once, also one that is on its way; and what is known of the counter does not hold any more.
    pub fn end(&mut self) {
        self.generation += 1;
        self.ends = Duration::ZERO;
        self.told = None;
    }

    /// Decides a request of so many hits by what is held, if that is enough.
    pub fn spend(&mut self, hits: u64, now: Duration) -> Option<Verdict> {
        let left = u32::try_from(hits).ok().filter(|_| now < self.ends).and_then(|hits| self.held.checked_sub(hits))?;
        let (told, at) = self.told?;
        self.held = left;
        self.count(hits, now);
        let elapsed_ms = u64::try_from((now - at).as_millis()).unwrap_or(u64::MAX);
        Some(Verdict { reset_after_ms: told.reset_after_ms.saturating_sub(elapsed_ms), ..self.with_held(told) })
    }

    /// Whether a request of so many hits is to ask for itself, because nothing is held, and too little is known to remain for a lease.
    pub fn asks_alone(&mut self, hits: u64, now: Duration) -> bool {
        let alone = self.held == 0 && self.remaining() < PART;
        if alone {
            self.count(hits, now);
        }
        alone
    }

    /// What to ask for requests of so many hits together. What is held goes with it: it is given back, to be charged anew.
    pub fn question(&mut self, hits: u64, now: Duration) -> Question {
        self.count(hits, now);
        let give_back = std::mem::take(&mut self.held);
        let remaining = self.remaining();
        let demand = u32::try_from(self.demand.saturating_mul(2)).unwrap_or(u32::MAX);
        let lease = self.lease.size.min(demand).min(remaining / PART);
        let (take, lease) = match u32::try_from(u64::from(lease).saturating_add(hits)) {
            Ok(take) if lease > 0 && hits > 0 && take <= remaining => (take, lease),
            _ => (0, 0),
        };
        Question { give_back, take, lease, at: now, generation: self.generation }
    }

    /// The counter's answer; for what was taken, if there was something. Tells what those are told whose hits pass; if they do not pass
    /// together, or nothing was taken, each of them asks for himself.
    pub fn answered(&mut self, question: &Question, verdict: Verdict, now: Duration) -> Option<Verdict> {
        let current = question.generation == self.generation;
        if current {
            self.told = Some((verdict, now));
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

    /// What the counter has said to a request that asked it without a lease.
    pub fn note(&mut self, limit: &Limit, verdict: Verdict, now: Duration) {
        // What was said before a lease was taken would tell too much.
        if self.held == 0 && *limit == self.limit {
            self.told = Some((verdict, now));
        }
    }

    /// Something is held that may not be used any more.
    pub fn is_over(&self, now: Duration) -> bool {
        self.held > 0 && now >= self.ends
    }

    /// So many hits are charged and not used.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Nothing is held, and nobody has asked for so long as a lease lasts: there is nothing to remember.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.held == 0 && now >= self.asked + self.lease.ttl
    }

    /// When to look next whether it is over or idle.
    pub fn look_again(&self) -> Duration {
        if self.held > 0 { self.ends } else { self.asked + self.lease.ttl }
    }

    /// By what the counter has said last.
    fn remaining(&self) -> u32 {
        self.told.map_or(0, |(told, _)| told.remaining)
    }

    fn count(&mut self, hits: u64, now: Duration) {
        self.demand = self.demand.saturating_add(hits);
        if hits > 0 {
            self.asked = now;
        }
    }

    /// What is held would pass, too.
    fn with_held(&self, told: Verdict) -> Verdict {
        Verdict { allowed: true, remaining: told.remaining.saturating_add(self.held), retry_after_ms: Some(0), ..told }
    }
}
