//! The operation that a request asks of a counter, and the caller it asks for.

use std::num::NonZeroU64;

use super::Verdict;

/// The most hits that one request may take or refund: 2^53, up to which a double represents every whole number.
pub const MAX_HITS: u64 = 1 << 53;

/// The largest number of a budget, and the most hits that it counts: the largest whole number below 2^53.
pub const MAX_NUMBER: u64 = MAX_HITS - 1;

/// An operation on a counter. Each operation is a separate variant and no hits value has a special meaning, so no
/// client can request a reset by sending a particular number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Takes this many hits, from 1 to 2^53.
    Take(u64),
    /// Peeks: reads the counter without changing it.
    #[default]
    Peek,
    /// Refunds this many hits, from 1 to 2^53, or releases the slots they hold. The counter never goes below zero.
    Refund(u64),
    /// Settles the caller's hold of a budget: this many hits were used, from 0 to 2^53.
    Settle(u64),
    /// Credits hits to a budget. Only operators can do this.
    Credit(Credit),
    /// Resets the counter to a new one, including its penalty and its slots. Only operators can do this.
    Reset,
    /// Takes back this charge because another limit denies the request. Only hits of this charge are removed.
    /// Afterwards the counter is as if the request had been denied; hits that it cannot tell apart from those of other
    /// requests stay charged.
    TakeBack(Charge),
}

/// A request's charge, with the details needed to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Charge {
    /// Hits charged, from 1 to 2^53.
    pub hits: u64,
    /// Time of the charge on the store's clock, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The `reset_after_ms` of the charge's verdict.
    pub reset_after_ms: u64,
}

/// Hits that an operator credits to a budget, once for each ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credit {
    /// At least 1, and below 2^53.
    pub hits: u64,
    /// Number of the credit, up to 2^53: a repetition changes nothing, and another credit with the number is refused.
    pub id: u64,
    /// What becomes of the hits.
    pub kind: CreditKind,
}

/// What becomes of credited hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CreditKind {
    /// They are added to what may be used: to a balance for good, to a window of the calendar until it closes.
    TopUp,
    /// They are given back: so many hits fewer are used, as far as there are any.
    Refund,
}

impl CreditKind {
    /// Both kinds.
    pub const ALL: [CreditKind; 2] = [CreditKind::TopUp, CreditKind::Refund];

    /// Returns the name in commands and paths.
    pub const fn name(self) -> &'static str {
        match self {
            CreditKind::TopUp => "top-up",
            CreditKind::Refund => "refund",
        }
    }
}

impl Charge {
    /// Returns the charge that `ask` caused, given its verdict at `at_ms`; `None` if it took nothing.
    pub fn of(ask: Ask, at_ms: u64, verdict: &Verdict) -> Option<Charge> {
        let Ask::Take(hits) = ask else { return None };
        // A stream may hold other hits than it asks for.
        let hits = verdict.held.map_or(hits, |held| held.hits);
        let is_charged = verdict.allowed && hits > 0;
        is_charged.then_some(Charge { hits, at_ms, reset_after_ms: verdict.reset_after_ms })
    }
}

impl Ask {
    /// Returns a take of `hits`, or a peek if `hits` is 0; `None` beyond 2^53.
    pub fn take(hits: u64) -> Option<Ask> {
        match hits {
            0 => Some(Ask::Peek),
            1..=MAX_HITS => Some(Ask::Take(hits)),
            _ => None,
        }
    }

    /// Returns a refund of `hits`, or a peek if `hits` is 0; `None` beyond 2^53.
    pub fn refund(hits: u64) -> Option<Ask> {
        Ask::take(hits).map(|ask| match ask {
            Ask::Take(hits) => Ask::Refund(hits),
            other => other,
        })
    }

    /// Multiplies the hits by `cost`, up to at most 2^53, which no limit allows anyway.
    #[must_use]
    pub fn times(self, cost: u32) -> Ask {
        let times = |hits: u64| hits.saturating_mul(cost.into()).clamp(1, MAX_HITS);
        match self {
            Ask::Take(hits) => Ask::Take(times(hits)),
            Ask::Refund(hits) => Ask::Refund(times(hits)),
            Ask::Settle(hits) => Ask::Settle(hits.saturating_mul(cost.into()).min(MAX_HITS)),
            Ask::Peek | Ask::Credit(_) | Ask::Reset | Ask::TakeBack(_) => self,
        }
    }

    /// Returns the hits: negative for a refund or take-back, 0 for a peek, settle, credit or reset.
    pub fn hits(self) -> i64 {
        match self {
            Ask::Take(hits) => hits as i64,
            Ask::Refund(hits) | Ask::TakeBack(Charge { hits, .. }) => -(hits as i64),
            Ask::Peek | Ask::Settle(_) | Ask::Credit(_) | Ask::Reset => 0,
        }
    }

    /// Returns the hits to take; 0 for all other operations.
    pub fn taken(self) -> u64 {
        match self {
            Ask::Take(hits) => hits,
            _ => 0,
        }
    }

    /// Returns whether hits are refunded or slots released.
    pub fn is_refund(self) -> bool {
        matches!(self, Ask::Refund(_))
    }

    /// Returns the hits that a stream has used, if its hold is settled.
    pub fn settled(self) -> Option<u64> {
        if let Ask::Settle(hits) = self { Some(hits) } else { None }
    }

    /// Returns the hits to credit, if any.
    pub fn credit(self) -> Option<Credit> {
        if let Ask::Credit(credit) = self { Some(credit) } else { None }
    }

    /// Returns whether no limit denies the operation, because it tells what has happened: a refund, a release or a
    /// settle.
    pub fn is_report(self) -> bool {
        matches!(self, Ask::Refund(_) | Ask::Settle(_))
    }

    /// Returns whether the operation may return hits to the counter: a refund, a release, a settle, a credit or a
    /// take-back.
    pub fn returns_hits(self) -> bool {
        matches!(self, Ask::Refund(_) | Ask::Settle(_) | Ask::Credit(_) | Ask::TakeBack(_))
    }

    /// Returns whether a quota has a vote on the request: it has none on what returns hits.
    pub fn is_vote(self) -> bool {
        !self.returns_hits()
    }

    /// Returns the charge to take back, if any.
    pub fn charge(self) -> Option<Charge> {
        match self {
            Ask::TakeBack(charge) => Some(charge),
            _ => None,
        }
    }
}

/// The caller that a counter is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Number of the stream that takes or releases a slot, or holds or settles hits, up to 2^53. Only limits with
    /// holders use it.
    pub holder: u64,
    /// The longest delay that the caller accepts. A request that would be delayed longer is denied and not charged.
    /// Only a leaky bucket with a `max_delay` uses it.
    pub max_wait_ms: u64,
    /// For a stream that brings no estimate to a budget that learns: it holds what was learned, within these bounds,
    /// and the hits of its question only while nothing is learned.
    pub learned: Option<Bounds>,
    /// The window that the counter's name ends with. Only fixed windows have such names, and only where counters are
    /// shared with `envoyproxy/ratelimit`.
    pub window: Option<NamedWindow>,
}

/// The least and the most hits of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At least 1.
    pub least: u64,
    /// At least as much, and below 2^53.
    pub most: u64,
}

/// A window that is part of a counter's name, by the clock of the host that asks. Such a counter stores only a count,
/// and each window has a separate counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedWindow {
    /// Time until the window ends.
    pub left_ms: NonZeroU64,
    /// TTL of the counter.
    pub kept_ms: u64,
}

impl Default for Caller {
    /// Returns a caller with no holder, no deadline, an estimate of its own, and no window in the counter's name.
    fn default() -> Self {
        Caller { holder: 0, max_wait_ms: u64::MAX, learned: None, window: None }
    }
}
