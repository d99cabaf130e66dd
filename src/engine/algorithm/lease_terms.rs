//! Leases: hits that an instance takes from a counter in advance, so that it can decide requests for a busy key without
//! a call to the store for each.
//!
//! [`leased`](super::leased) has the promise, the store's part and its proof. An instance keeps its part here: it uses
//! a lease until `ttl` after it *sent* the question, by its own clock, and never after the end that the store says. It
//! returns each lease with the hits it has used, together with the question for the next one. Where an answer is lost,
//! the instance has no lease, and the store charges all its hits at its end.
//!
//! A lease is as large as the demand, up to what the store grants. Near the limit the store grants little and then
//! nothing, and each request asks the counter.
//!
//! This file keeps the account, without I/O and without a clock; `store::lease` has both.

use std::fmt;
use std::time::Duration;

use super::leased::{MAX_TTL_MS, PART};
use super::{Granted, LeaseAsk, Returned};
use crate::algorithm::{Limit, NoLease, Verdict, clipped};

/// The shortest and the longest TTL of a lease.
const TTL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(MAX_TTL_MS));

/// The longest TTL of a lease.
pub const MOST_TTL: Duration = TTL.1;

/// The terms of a lease: which part of a limit may be out with all instances together, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// In hundredths of a percent.
    unused: u16,
    /// The most hits that may be out; that part of the limit's capacity.
    most: u32,
    ttl: Duration,
}

/// The reason why a limit cannot have a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The part is less than one hit.
    #[error("of {0} hits at once this is less than one, so there would be no lease: name a larger part, or remove it")]
    None(u32),
    /// A part that leaves too little to those who ask the store.
    #[error("unused must be at most 50%: it may be out with other instances when a request is denied")]
    Part,
    /// A TTL out of range.
    #[error("ttl must be from 1ms to 30s: a lease that is lost counts as used for this long, and a period")]
    Ttl,
    /// A TTL longer than the period.
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
            LeaseError::None(_) | LeaseError::Part => Some("unused"),
            LeaseError::Ttl | LeaseError::Period(_) => Some("ttl"),
            LeaseError::CountDenied | LeaseError::Holders | LeaseError::Delay => None,
        }
    }
}

/// Formats the lease as rules write it.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{unused: {}%, ttl: {}}}", self.percent(), humantime::format_duration(self.ttl))
    }
}

/// The whole of a limit, in hundredths of a percent.
const WHOLE: u16 = 10_000;

impl Lease {
    /// Creates leases of `limit`, of which this part may be out, in hundredths of a percent. Without a TTL they last
    /// half of the period, but at most 30 s.
    ///
    /// # Errors
    /// Fails if the limit cannot have such leases.
    pub fn new(unused: u16, ttl: Option<Duration>, limit: &Limit) -> Result<Lease, LeaseError> {
        match limit.no_lease() {
            None => {}
            Some(NoLease::Holders) => return Err(LeaseError::Holders),
            Some(NoLease::Delay) => return Err(LeaseError::Delay),
            Some(NoLease::CountDenied) => return Err(LeaseError::CountDenied),
        }
        Lease::check_terms(unused, ttl)?;
        // Limits that can have leases are narrow.
        let capacity = clipped(limit.capacity());
        let most = clipped(u64::from(capacity) * u64::from(unused) / u64::from(WHOLE));
        if most == 0 {
            return Err(LeaseError::None(capacity));
        }
        let ttl = ttl.unwrap_or_else(|| Duration::from_millis(limit.period_ms() / 2).clamp(TTL.0, TTL.1));
        if ttl > limit.period() {
            return Err(LeaseError::Period(limit.period()));
        }
        Ok(Lease { unused, most, ttl })
    }

    /// Checks what no limit allows.
    ///
    /// # Errors
    /// Fails if the part or the TTL is out of range.
    pub fn check_terms(unused: u16, ttl: Option<Duration>) -> Result<(), LeaseError> {
        if unused > WHOLE / 2 {
            return Err(LeaseError::Part);
        }
        match ttl {
            Some(ttl) if ttl < TTL.0 || ttl > TTL.1 => Err(LeaseError::Ttl),
            _ => Ok(()),
        }
    }

    /// Returns the lease for a changed limit; `None` if the limit cannot have it.
    pub fn within(self, limit: &Limit) -> Option<Lease> {
        Lease::new(self.unused, Some(self.ttl), limit).ok()
    }

    /// Returns the most hits that are out, with all instances together.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Returns for how long a lease is granted.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the most hits that one lease of `limit` ever has, if each request costs this many: half of what may be
    /// out, and an eighth of what remains after a request.
    pub fn largest(&self, limit: &Limit, cost: u32) -> u32 {
        self.most.div_ceil(2).min(clipped(limit.capacity()).saturating_sub(cost) / PART)
    }

    /// Returns how many requests of this cost a counter of `limit` lets pass within the TTL of a lease, on average.
    pub fn requests(&self, limit: &Limit, cost: u32) -> f64 {
        limit.number() as f64 * self.ttl.as_secs_f64() / limit.period().as_secs_f64() / f64::from(cost)
    }

    /// Returns the part of the limit that may be out, in percent.
    pub fn percent(&self) -> f64 {
        f64::from(self.unused) / 100.0
    }

    /// Returns the part of the limit that may be out, in hundredths of a percent.
    pub fn unused(&self) -> u16 {
        self.unused
    }
}

/// An instance's knowledge of a counter, and the lease it has of it. Times are measured from a moment that the instance
/// chooses.
///
/// One [`Question`] is asked at a time, so the process never has more than one lease of a counter.
#[derive(Clone, Debug)]
pub struct Account {
    limit: Limit,
    lease: Lease,
    /// Increases whenever answers to earlier questions become invalid.
    generation: u64,
    /// The lease, if the store does not know yet that it has ended.
    granted: Option<Granted>,
    /// Hits of it that are not used.
    held: u32,
    /// Number of requests that it has decided.
    decided: u64,
    /// Time from which they may no longer be used.
    ends: Duration,
    /// The counter's last verdict, and its time.
    last: Option<(Verdict, Duration)>,
    /// Hits requested since the last lease was taken.
    demand: u64,
    /// Time of the last request.
    asked: Duration,
}

/// The call to make to the counter: it returns a lease, takes hits, and asks for a new lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Hits to take for the requests that wait; 0 to take nothing.
    pub take: u64,
    /// What to ask of the counter's leases.
    pub ask: LeaseAsk,
    /// Number of requests that the returned lease has decided.
    pub decided: u64,
    at: Duration,
    generation: u64,
}

impl Question {
    /// Returns whether there is nothing to return and nothing to take. Each waiting request then asks the counter
    /// separately.
    pub fn is_empty(&self) -> bool {
        self.ask.returned.is_none() && self.take == 0
    }

    /// Returns the used hits of the lease that it returns.
    pub fn used(&self) -> u32 {
        self.ask.returned.map_or(0, |returned| returned.used)
    }

    /// Returns the hits that it returns unused.
    pub fn unused(&self) -> u32 {
        self.ask.returned.map_or(0, |returned| returned.hits - returned.used)
    }
}

impl Account {
    /// Creates an account for a counter that nothing is known about.
    pub fn new(limit: Limit, lease: Lease, now: Duration) -> Account {
        let (generation, held, decided, demand) = (0, 0, 0, 0);
        Account { limit, lease, generation, granted: None, held, decided, ends: now, last: None, demand, asked: now }
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

    /// Decides a request of `hits` by the lease, if it has enough.
    pub fn spend(&mut self, hits: u64, now: Duration) -> Option<Verdict> {
        let left = u32::try_from(hits).ok().filter(|_| now < self.ends).and_then(|hits| self.held.checked_sub(hits))?;
        let (last, at) = self.last?;
        self.held = left;
        self.decided += 1;
        self.count(hits, now);
        // Of two readings of the clock, the later one may be a little less.
        let elapsed_ms = u64::try_from(now.saturating_sub(at).as_millis()).unwrap_or(u64::MAX);
        Some(Verdict { reset_after_ms: last.reset_after_ms.saturating_sub(elapsed_ms), ..self.with_held(last) })
    }

    /// Returns whether a request of `hits` should ask the counter separately, because there is no lease and too few
    /// hits remain for one.
    pub fn asks_alone(&mut self, hits: u64, now: Duration) -> bool {
        let alone = self.held == 0 && self.remaining() < PART;
        if alone {
            self.count(hits, now);
        }
        alone
    }

    /// Returns the question to ask for requests of `hits` in total. It ends the lease.
    pub fn question(&mut self, hits: u64, now: Duration) -> Question {
        self.count(hits, now);
        let (held, decided) = (std::mem::take(&mut self.held), std::mem::take(&mut self.decided));
        let returned = self.granted.take().map(|granted| Returned {
            until_ms: granted.until_ms,
            hits: granted.hits,
            used: granted.hits.saturating_sub(held),
        });
        let remaining = self.remaining().saturating_add(held);
        let has_room = remaining >= PART && hits <= u64::from(remaining - remaining / PART);
        // A lease that ends while requests come is renewed in the same call.
        let takes = has_room && hits > 0;
        let renews = has_room && hits == 0 && returned.is_some() && self.last.is_some();
        let want = if takes || renews { u32::try_from(self.demand.saturating_mul(2)).unwrap_or(u32::MAX) } else { 0 };
        let ttl_ms = u64::try_from(self.lease.ttl.as_millis()).unwrap_or(u64::MAX);
        let ask = LeaseAsk { returned, want, ttl_ms, most: self.lease.most };
        Question { take: if takes { hits } else { 0 }, ask, decided, at: now, generation: self.generation }
    }

    /// Takes the counter's answer of `at_ms` on the store's clock. Returns the answer for the waiting requests if all
    /// their hits are allowed together. Returns `None` if they are not or if nothing was taken; each request then asks
    /// separately.
    pub fn answered(
        &mut self,
        question: &Question,
        (verdict, granted, at_ms): (Verdict, Granted, u64),
        now: Duration,
    ) -> Option<Verdict> {
        let current = question.generation == self.generation;
        let after = Verdict { remaining: verdict.remaining.saturating_sub(granted.hits.into()), ..verdict };
        if current {
            self.last = Some((after, now));
        }
        if granted.hits > 0 {
            (self.granted, self.held) = (Some(granted), granted.hits);
        }
        if current && question.ask.want > 0 {
            // From before the charge, so that it ends in time by the store's clock.
            let lasts = self.lease.ttl.min(Duration::from_millis(granted.until_ms.saturating_sub(at_ms)));
            self.ends = question.at + lasts;
            self.demand = 0;
        }
        (question.take > 0 && verdict.allowed).then(|| self.with_held(after))
    }

    /// Records the counter's verdict on a request that asked without a lease.
    pub fn note(&mut self, limit: &Limit, verdict: Verdict, now: Duration) {
        // While hits are held, this may be an older answer whose `remaining` is too high.
        if self.held == 0 && *limit == self.limit {
            self.last = Some((verdict, now));
        }
    }

    /// Returns whether there are unused hits past their TTL.
    pub fn is_over(&self, now: Duration) -> bool {
        self.held > 0 && now >= self.ends
    }

    /// Returns whether the store does not know yet how many hits of a lease were used.
    pub fn owes(&self) -> bool {
        self.granted.is_some()
    }

    /// Returns whether the account can be dropped: no hits are held, and no request came for the TTL of a lease.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.held == 0 && now >= self.asked + self.lease.ttl
    }

    /// Returns the time from which the lease may no longer be used.
    pub fn ends(&self) -> Duration {
        self.ends
    }

    /// Returns the time of the last request.
    pub fn asked(&self) -> Duration {
        self.asked
    }

    /// Returns when to check next whether the lease is over or the account idle.
    pub fn next_check(&self) -> Duration {
        if self.held > 0 { self.ends } else { self.asked + self.lease.ttl }
    }

    /// Returns the remaining hits by the counter's last verdict.
    fn remaining(&self) -> u32 {
        self.last.map_or(0, |(last, _)| clipped(last.remaining))
    }

    fn count(&mut self, hits: u64, now: Duration) {
        self.demand = self.demand.saturating_add(hits);
        if hits > 0 {
            self.asked = now;
        }
    }

    /// Adds the held hits to `remaining`, because they would be allowed, too.
    fn with_held(&self, last: Verdict) -> Verdict {
        Verdict {
            allowed: true,
            remaining: last.remaining.saturating_add(self.held.into()),
            retry_after_ms: Some(0),
            ..last
        }
    }
}
