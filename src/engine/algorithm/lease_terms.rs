//! Leases: hits that an instance takes from a counter in advance, so that it can decide requests for a hot key without
//! a call to the store for each.
//!
//! Leased hits are charged before they are used, so no more hits are used than were charged. A lease shifts hits in
//! time: a hit may be used up to `ttl` after it was charged. An instance holds at most `size` hits of a counter,
//! including those in an unanswered call. So in any interval of one period at most
//!
//! ```text
//! hits that the limit admits without leases + instances x size
//! ```
//!
//! are allowed. The limit bounds the hits that were charged in the interval; the rest were already held when it
//! began. `tests/it/simulation.rs` tests this bound with several instances and a store that fails in many ways.
//!
//! A lease is as large as the demand, but at most an eighth of the remaining hits. Near the limit leases get smaller
//! and stop, and each request asks the counter, which is exact. Unused hits are refunded when a lease ends.
//!
//! This file keeps the account, without I/O and without a clock; `store::lease` has both.

use std::fmt;
use std::time::Duration;

use crate::algorithm::{Limit, NoLease, Verdict};

/// The shortest and the longest TTL of a lease.
const TTL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));

/// A lease takes at most one in this many of the remaining hits, so that other instances find enough.
const PART: u32 = 8;

/// The terms of a lease: how many hits of a limit may be taken in advance, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    size: u32,
    ttl: Duration,
}

/// Formats the lease as rules write it.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lease { size, ttl } = self;
        write!(f, "{{size: {size}, ttl: {}}}", humantime::format_duration(*ttl))
    }
}

/// The reason why a limit cannot have a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// A size of 0.
    #[error("size must be at least 1: to lease no hits, remove the lease")]
    ZeroSize,
    /// A size above the limit's capacity.
    #[error("size must be at most {0}, the most hits that this limit allows at once")]
    Size(u32),
    /// A TTL out of range.
    #[error("ttl must be from 1ms to 10s: a leased hit can be used for this long after it was counted")]
    Ttl,
    /// A TTL longer than the period: the counter would have forgotten the hits that a refund returns.
    #[error("ttl must be no longer than the period, {}", humantime::format_duration(*.0))]
    Period(Duration),
    /// The limit counts denials, so an unsuccessful attempt to take a lease would be charged.
    #[error("{}", LeaseError::WITH_COUNT_DENIED)]
    CountDenied,
    /// Each slot belongs to a stream.
    #[error("{}", LeaseError::WITH_HOLDERS)]
    Holders,
    /// Leased hits would have to be delayed.
    #[error("{}", LeaseError::WITH_DELAY)]
    Delay,
}

impl LeaseError {
    /// The reason why a limit that counts denials has no lease.
    pub const WITH_COUNT_DENIED: &'static str = "a limit that counts denied requests cannot have a lease, because a \
                                                 denied attempt to take a lease would be charged: write count_denied: \
                                                 false";
    /// The reason why a limit on streams has no lease.
    pub const WITH_HOLDERS: &'static str = "concurrency cannot have a lease: a slot belongs to the stream that takes \
                                            it";
    /// The reason why a limit that delays requests has no lease.
    pub const WITH_DELAY: &'static str = "a limit with max_delay cannot have a lease: each request has its own delay";

    /// Returns the key of the lease that is wrong; `None` if the limit rules out any lease.
    pub const fn key(&self) -> Option<&'static str> {
        match self {
            LeaseError::ZeroSize | LeaseError::Size(_) => Some("size"),
            LeaseError::Ttl | LeaseError::Period(_) => Some("ttl"),
            LeaseError::CountDenied | LeaseError::Holders | LeaseError::Delay => None,
        }
    }
}

impl Lease {
    /// Creates a lease of at most `size` hits of `limit`, each to be used within `ttl`.
    ///
    /// # Errors
    /// Fails if the limit cannot have this lease.
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

    /// Returns the lease for a changed limit, with a size of at most the limit's capacity; `None` if the limit cannot
    /// have a lease.
    pub fn within(self, limit: &Limit) -> Option<Lease> {
        Lease::new(self.size.min(limit.capacity()), self.ttl, limit).ok()
    }

    /// Returns the most hits that an instance holds.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns how long after its charge a hit may be used.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// An instance's knowledge of a counter, and the hits it holds of it. Times are measured from a moment that the
/// instance chooses.
///
/// One [`Question`] is asked at a time, so the process never holds more than the size of a lease.
#[derive(Clone, Debug)]
pub struct Account {
    limit: Limit,
    lease: Lease,
    /// Increases whenever answers to earlier questions become invalid.
    generation: u64,
    /// Hits charged and not yet used.
    held: u32,
    /// Time from which held hits must be refunded.
    ends: Duration,
    /// The counter's last verdict, and its time.
    last: Option<(Verdict, Duration)>,
    /// Hits requested since the last lease was taken.
    demand: u64,
    /// Time of the last request.
    asked: Duration,
}

/// The call to make to the counter: first a refund, then a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Held hits to refund.
    pub refund: u32,
    /// Hits to take, for the waiting requests and for a new lease; 0 to take nothing.
    pub take: u32,
    lease: u32,
    at: Duration,
    generation: u64,
}

impl Question {
    /// Returns whether there is nothing to refund and nothing to take. Each waiting request then asks the counter
    /// separately.
    pub fn is_empty(&self) -> bool {
        self.refund == 0 && self.take == 0
    }

    /// Returns how many of the hits to take are for a new lease.
    pub fn lease(&self) -> u32 {
        self.lease
    }
}

impl Account {
    /// Creates an account for a counter that nothing is known about.
    pub fn new(limit: Limit, lease: Lease, now: Duration) -> Account {
        let (generation, held, demand) = (0, 0, 0);
        Account { limit, lease, generation, held, ends: now, last: None, demand, asked: now }
    }

    /// Returns the counter's limit.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// Returns the terms of the lease.
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// Sets the terms. If they change, the current lease ends.
    pub fn set_terms(&mut self, limit: Limit, lease: Lease) {
        if (limit, lease) != (self.limit, self.lease) {
            (self.limit, self.lease) = (limit, lease);
            self.end();
        }
    }

    /// Ends the current lease at once, including one in an unanswered call, and forgets the last verdict.
    pub fn end(&mut self) {
        self.generation += 1;
        self.ends = Duration::ZERO;
        self.last = None;
    }

    /// Decides a request of `hits` from the held hits, if there are enough.
    pub fn spend(&mut self, hits: u64, now: Duration) -> Option<Verdict> {
        let left = u32::try_from(hits).ok().filter(|_| now < self.ends).and_then(|hits| self.held.checked_sub(hits))?;
        let (last, at) = self.last?;
        self.held = left;
        self.count(hits, now);
        let elapsed_ms = u64::try_from((now - at).as_millis()).unwrap_or(u64::MAX);
        Some(Verdict { reset_after_ms: last.reset_after_ms.saturating_sub(elapsed_ms), ..self.with_held(last) })
    }

    /// Returns whether a request of `hits` should ask the counter separately, because no hits are held and too few
    /// remain for a lease.
    pub fn asks_alone(&mut self, hits: u64, now: Duration) -> bool {
        let alone = self.held == 0 && self.remaining() < PART;
        if alone {
            self.count(hits, now);
        }
        alone
    }

    /// Returns the question to ask for requests of `hits` in total. All held hits are refunded in it and charged again.
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

    /// Takes the counter's answer to the take, if there was one. Returns the answer for the waiting requests if all
    /// their hits are allowed together. Returns `None` if they are not or if nothing was taken; each request then asks
    /// separately.
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
            // The TTL starts before the charge, so that it ends in time.
            self.ends = question.at + self.lease.ttl;
            self.demand = 0;
        }
        Some(self.with_held(verdict))
    }

    /// Records the counter's verdict on a request that asked without a lease.
    pub fn note(&mut self, limit: &Limit, verdict: Verdict, now: Duration) {
        // While hits are held, this may be an older answer whose `remaining` is too high.
        if self.held == 0 && *limit == self.limit {
            self.last = Some((verdict, now));
        }
    }

    /// Returns whether held hits are past their TTL.
    pub fn is_over(&self, now: Duration) -> bool {
        self.held > 0 && now >= self.ends
    }

    /// Returns how many hits are charged and not used.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Returns whether the account can be dropped: no hits are held, and no request came for the TTL of a lease.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.held == 0 && now >= self.asked + self.lease.ttl
    }

    /// Returns when to check next whether the lease is over or the account idle.
    pub fn next_check(&self) -> Duration {
        if self.held > 0 { self.ends } else { self.asked + self.lease.ttl }
    }

    /// Returns the remaining hits by the counter's last verdict.
    fn remaining(&self) -> u32 {
        self.last.map_or(0, |(last, _)| last.remaining)
    }

    fn count(&mut self, hits: u64, now: Duration) {
        self.demand = self.demand.saturating_add(hits);
        if hits > 0 {
            self.asked = now;
        }
    }

    /// Adds the held hits to `remaining`, because they would be allowed, too.
    fn with_held(&self, last: Verdict) -> Verdict {
        Verdict { allowed: true, remaining: last.remaining.saturating_add(self.held), retry_after_ms: Some(0), ..last }
    }
}
