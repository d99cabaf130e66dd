//! Where counters live. A store decides all the checks of a request together, atomically, on its own clock.

pub mod adjustments;
pub mod denied;
pub mod group;
pub mod heartbeats;
mod key;
pub mod lease;
pub mod memory;
pub mod redis;
pub mod scatter;
mod sharded;
pub mod timed;
pub mod usage;

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::algorithm::{Ask, Caller, Limit, Penalty, Verdict};
use crate::descriptor::Role;
use crate::lease::Lease;
use crate::usage::Usage;

pub use key::{Key, Origin, holder};

/// The longest pause between two attempts to reach a store that is down: so soon it may decide again.
pub const RETRY: Duration = Duration::from_millis(500);

/// One question to the store: what does this counter say to this request?
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Which counter.
    pub key: Key,
    /// What it may admit.
    pub limit: Limit,
    /// What its denials bring, and the counter of them. A refund is no matter to it, nor what is taken back.
    pub penalty: Option<Penalized>,
    /// What the request wants of it.
    pub ask: Ask,
    /// The caller's part of the question.
    pub caller: Caller,
    /// What a denial means for the rest of the request.
    pub role: Role,
    /// Which descriptor of the request it is asked for: several limits of one descriptor are one rule.
    pub descriptor: usize,
    /// What may be taken in advance, where the store is remote.
    pub lease: Option<Lease>,
    /// It is decided only when a replica of the store has heard of it, where the store has replicas.
    pub durable: bool,
    /// What the store records of it, where its use is kept.
    pub recorded: Option<Recorded>,
}

/// What of a check goes into the records of its counter.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// What is kept.
    pub usage: Usage,
    /// The counter's tag, where its name has but a hash of it.
    pub tag: Option<Arc<str>>,
    /// What makes the record.
    pub occasion: Occasion,
}

/// What makes a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occasion {
    /// The check: what it asks, and what becomes of its request.
    #[default]
    Decided,
    /// The request, which has asked for so many hits, is denied, whatever the store says.
    Denied {
        /// From 1 to 2^53.
        hits: u64,
    },
    /// So many hits that the limit is not asked for, because it lets them pass for now; negative ones are refunded.
    Exempt {
        /// At most 2^53 of them.
        hits: i64,
    },
    /// A request passed then, at this cost, and is denied after all.
    Undone {
        /// When, on the store's clock, in milliseconds since the epoch.
        at_ms: u64,
        /// What it cost.
        cost: u64,
    },
}

/// The penalty of a check.
#[derive(Clone, Debug, PartialEq)]
pub struct Penalized {
    /// Its counter.
    pub key: Key,
    /// What brings a ban.
    pub penalty: Penalty,
}

impl Check {
    /// Asks one counter for nobody in particular; a denial denies the request.
    pub fn new(key: Key, limit: Limit, ask: Ask) -> Check {
        let (caller, role) = (Caller::default(), Role::Enforced);
        let (penalty, lease, recorded) = (None, None, None);
        Check { key, limit, penalty, ask, caller, role, descriptor: 0, lease, durable: false, recorded }
    }

    /// The penalty, where it is a matter of this request.
    pub fn penalized(&self) -> Option<&Penalized> {
        self.penalty.as_ref().filter(|_| !self.ask.gives_back())
    }

    /// How many counters it asks.
    pub fn counters(&self) -> usize {
        1 + usize::from(self.penalized().is_some())
    }

    /// What a denied request would have used, it has: the rule says so itself. A fixed window counts denials of its own
    /// accord, because others do.
    pub(crate) fn costs_denied(&self) -> bool {
        self.limit.options().count_denied == Some(true)
    }

    /// How much work it is at the most, where a small counter is 1.
    pub fn work(&self) -> u64 {
        let penalty = self.penalized().map_or(0, |penalized| penalized.penalty.work());
        self.limit.work() + penalty + u64::from(self.recorded.is_some())
    }
}

/// What the store says to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckVerdict {
    /// What the limit says.
    pub own: Verdict,
    /// What the penalty says, where one was asked.
    pub ban: Option<Verdict>,
    /// A denial of before, which the store was not asked for again.
    pub is_known: bool,
    /// When the store decided, on its clock, in milliseconds since the epoch; 0 from [`lease`], which decides
    /// requests of one check, of which nothing is ever taken back.
    pub at_ms: u64,
}

impl CheckVerdict {
    /// What both say together.
    pub fn together(&self) -> Verdict {
        self.ban.map_or(self.own, |ban| self.own.under(ban))
    }

    /// The limit lets it pass, and so does the penalty.
    pub fn allowed(&self) -> bool {
        self.own.allowed && self.ban.is_none_or(|ban| ban.allowed)
    }

    /// How long a ban still lasts, where there is one.
    pub fn banned_ms(&self) -> Option<u64> {
        self.ban.filter(|ban| !ban.allowed)?.retry_after_ms
    }
}

/// Counters, and the one way to ask them.
pub trait Store: Send + Sync + 'static {
    /// Decides `checks` as one group, and charges them: all of them if the request passes; otherwise only refunds and
    /// limits that count denials, and charges are taken back. The verdicts come in the order of the checks.
    ///
    /// # Errors
    /// Where the store does not answer before `deadline`. Whether anything was charged is then unknown; nothing is
    /// charged twice.
    fn check<C: Borrow<Check> + Sync>(
        &self,
        checks: &[C],
        deadline: Instant,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send;

    /// A denial of this check that is known and still holds. For use while the store is unavailable.
    fn known_denial(&self, _check: &Check) -> Option<CheckVerdict> {
        None
    }

    /// Refunds what is held in advance, until `deadline`. Called once, when no more requests come.
    fn close(&self, _deadline: Instant) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Logs what its throttles have kept back, because the process ends.
    fn flush_log(&self) {}
}

/// What a store says to a request; mostly that is one check, and needs no allocation. `None` for a check that was not
/// asked, because another check is known to deny the request.
pub type Verdicts = SmallVec<[Option<CheckVerdict>; 1]>;

/// Why a store could not decide.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer before the deadline.
    #[error("no answer in time")]
    Timeout,
    /// In memory there is no room for another counter, or for one that needs more.
    #[error("no room for more counters in memory")]
    Full,
    /// Too many requests wait already, or it has waited too long among them: not asked at all.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// Redis is known to be down, and why: not asked at all.
    #[error("redis is down: {0}")]
    Down(Arc<str>),
    /// The connection broke.
    #[error("connection lost: {0}")]
    Connection(Arc<str>),
    /// It refused to do what it was asked.
    #[error("the store refused: {0}")]
    Refused(Arc<str>),
    /// It cannot read or write a counter that the request asks for: which, and why. That is not printed, because the
    /// name holds what clients send.
    #[error("a counter failed (LOG_LEVEL=debug names it)")]
    Counter(String),
    /// It answered something else than verdicts.
    #[error("unexpected answer")]
    Answer,
    /// Some of its nodes have decided, and another has not.
    #[error("{}", .0.error)]
    Partly(Box<Partly>),
}

/// What is decided of a request where a node could not.
#[derive(Clone, Debug)]
pub struct Partly {
    /// The verdicts that there are, in the order of the checks.
    pub decided: Verdicts,
    /// They deny the request, so that nothing is charged for it; where they do not, what they have charged is charged.
    pub denied: bool,
    /// Why the others are missing.
    pub error: StoreError,
}

impl StoreError {
    /// The kind, as metrics have it.
    pub const KINDS: [&'static str; 8] =
        ["timeout", "full", "overloaded", "down", "connection", "refused", "counter", "answer"];

    /// What is decided nevertheless, if anything is.
    pub fn partly(&self) -> Option<&Partly> {
        if let StoreError::Partly(partly) = self { Some(partly) } else { None }
    }

    /// Why what is not decided is not.
    pub fn without_verdicts(&self) -> &StoreError {
        self.partly().map_or(self, |partly| &partly.error)
    }

    /// The store has not been asked, or has no room: it is as it was.
    pub fn changes_nothing(&self) -> bool {
        matches!(self, StoreError::Full | StoreError::Overloaded | StoreError::Down(_))
    }

    /// One of [`StoreError::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            StoreError::Timeout => "timeout",
            StoreError::Full => "full",
            StoreError::Overloaded => "overloaded",
            StoreError::Down(_) => "down",
            StoreError::Connection(_) => "connection",
            StoreError::Refused(_) => "refused",
            StoreError::Counter(_) => "counter",
            StoreError::Answer => "answer",
            StoreError::Partly(partly) => partly.error.kind(),
        }
    }
}
