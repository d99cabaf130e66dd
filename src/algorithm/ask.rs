//! What a request wants of a counter, and for whom.

use std::num::NonZeroU64;

use super::Verdict;

/// The most hits that one request may take or refund: 2^53, up to which a double holds every whole number.
pub const MAX_HITS: u64 = 1 << 53;

/// What a request wants of a counter. No number has a meaning of its own: a reset is a reset, and no client can ask for
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ask {
    /// So many hits, from 1 to 2^53.
    Take(u64),
    /// To see what the counter says; nothing changes.
    #[default]
    Peek,
    /// To refund so many hits, from 1 to 2^53, or to release what they hold; the counter never goes below empty.
    Refund(u64),
    /// To make the counter as fresh, penalty and slots included: by hand alone.
    Reset,
    /// To take this charge back, because another limit denies the request: from where it was put and from nowhere
    /// else. The counter then is as if the request had come denied; what it can no longer tell from other requests'
    /// hits stays charged.
    TakeBack(Charge),
}

/// What a request was charged, as far as it must be known to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Charge {
    /// The hits that were taken, from 1 to 2^53.
    pub hits: u64,
    /// When, on the store's clock, in milliseconds since the epoch.
    pub at_ms: u64,
    /// What the verdict then said of the counter's reset.
    pub reset_after_ms: u64,
}

impl Charge {
    /// What `ask` took by this verdict of `at_ms`; `None` where it took nothing.
    pub fn of(ask: Ask, at_ms: u64, verdict: &Verdict) -> Option<Charge> {
        match ask {
            Ask::Take(hits) if verdict.allowed => Some(Charge { hits, at_ms, reset_after_ms: verdict.reset_after_ms }),
            _ => None,
        }
    }
}

impl Ask {
    /// To take so many hits; none is a peek. `None` beyond 2^53.
    pub fn take(hits: u64) -> Option<Ask> {
        match hits {
            0 => Some(Ask::Peek),
            1..=MAX_HITS => Some(Ask::Take(hits)),
            _ => None,
        }
    }

    /// To refund so many hits; none is a peek. `None` beyond 2^53.
    pub fn refund(hits: u64) -> Option<Ask> {
        Ask::take(hits).map(|ask| match ask {
            Ask::Take(hits) => Ask::Refund(hits),
            other => other,
        })
    }

    /// So many for each hit; at most 2^53, which no limit lets pass anyway.
    #[must_use]
    pub fn times(self, cost: u32) -> Ask {
        let times = |hits: u64| hits.saturating_mul(cost.into()).clamp(1, MAX_HITS);
        match self {
            Ask::Take(hits) => Ask::Take(times(hits)),
            Ask::Refund(hits) => Ask::Refund(times(hits)),
            Ask::Peek | Ask::Reset | Ask::TakeBack(_) => self,
        }
    }

    /// Negative where they are refunded or taken back; 0 where nothing is counted.
    pub fn hits(self) -> i64 {
        match self {
            Ask::Take(hits) => hits as i64,
            Ask::Refund(hits) | Ask::TakeBack(Charge { hits, .. }) => -(hits as i64),
            Ask::Peek | Ask::Reset => 0,
        }
    }

    /// The hits that are taken; 0 where nothing is.
    pub fn taken(self) -> u64 {
        match self {
            Ask::Take(hits) => hits,
            Ask::Peek | Ask::Refund(_) | Ask::Reset | Ask::TakeBack(_) => 0,
        }
    }

    /// Something is refunded or released.
    pub fn is_refund(self) -> bool {
        matches!(self, Ask::Refund(_))
    }

    /// Hits come back: they are refunded or released, or a charge is taken back.
    pub fn gives_back(self) -> bool {
        matches!(self, Ask::Refund(_) | Ask::TakeBack(_))
    }

    /// The charge that is taken back, where one is.
    pub fn charge(self) -> Option<Charge> {
        match self {
            Ask::TakeBack(charge) => Some(charge),
            Ask::Take(_) | Ask::Peek | Ask::Refund(_) | Ask::Reset => None,
        }
    }
}

/// For whom a counter is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The stream that takes or releases a slot, as a number up to 2^53. Only concurrency cares.
    pub holder: u64,
    /// The caller waits no longer: what would be delayed for longer is denied, and nothing of it is charged. Only a
    /// leaky bucket with a `max_delay` cares.
    pub max_wait_ms: u64,
    /// The window that the counter's name ends with. Only a fixed window has such names, and only where counters are
    /// shared with `envoyproxy/ratelimit`.
    pub window: Option<NamedWindow>,
}

/// A window that is part of a counter's name, by the clock of the host that asks: the counter itself has nothing but a
/// count, and another window is another counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedWindow {
    /// It ends after so long.
    pub left_ms: NonZeroU64,
    /// The counter expires after so long.
    pub kept_ms: u64,
}

impl Default for Caller {
    /// No holder, no deadline, and no window in the name.
    fn default() -> Self {
        Caller { holder: 0, max_wait_ms: u64::MAX, window: None }
    }
}
