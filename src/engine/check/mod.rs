//! Checks, which ask counters about a request, and their verdicts. A store decides them.

pub mod error;
pub mod group;
pub mod key;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::lease_terms::Lease;
use crate::algorithm::{Algorithm, Ask, Caller, Granted, LeaseAsk, Limit, Penalty, Verdict};
use crate::descriptor::Role;
use crate::share::Shared;
use crate::usage::Usage;

pub use error::{Partly, StoreError};
pub use key::{Key, Origin, holder};

/// A question to the store: does this counter allow this request?
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The counter's name.
    pub key: Key,
    /// The limit to apply.
    pub limit: Limit,
    /// The penalty for denials, and its counter. It is not used for refunds and take-backs.
    pub penalty: Option<Penalized>,
    /// The operation to perform.
    pub ask: Ask,
    /// The caller's part of the question.
    pub caller: Caller,
    /// The effect of a denial on the request.
    pub role: Role,
    /// The request's descriptor that this check belongs to. Several limits of one descriptor belong to one rule.
    pub descriptor: usize,
    /// The hits that may be taken in advance from a remote store.
    pub lease: Option<Lease>,
    /// The counter's leases, if its limit has a lease and the store is a remote one.
    pub leased: Option<Leased>,
    /// What the check knows of the shares that instances have of its limit.
    pub shared: Shared,
    /// Whether a decision must reach a replica of the store first, if the store has replicas.
    pub durable: bool,
    /// The usage record that the store writes, if the limit keeps usage.
    pub recorded: Option<Recorded>,
}

/// The usage record of a check.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The kind of records to keep.
    pub usage: Usage,
    /// The counter's tag, if its name contains only a hash of it.
    pub tag: Option<Arc<str>>,
    /// The reason for the record.
    pub occasion: Occasion,
}

/// The reason for a usage record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occasion {
    /// The check was decided: records the operation and the outcome of its request.
    #[default]
    Decided,
    /// The request, which asked for `hits`, is denied whatever the store's verdict.
    Denied {
        /// From 1 to 2^53.
        hits: u64,
    },
    /// An adjustment lets the request pass without asking the limit. Negative hits are a refund.
    Exempt {
        /// At most 2^53 in absolute value.
        hits: i64,
    },
    /// A lease is returned, and hits are taken for requests that wait for the next one. Records what the lease was used
    /// for, and the requests that wait if all of them pass; if not, each asks again.
    Leased {
        /// Number of requests that wait.
        waiting: u64,
        /// Number of requests that the lease has decided.
        decided: u64,
    },
    /// A request that passed is denied after all.
    Undone {
        /// When it passed on the store's clock, in milliseconds since the epoch.
        at_ms: u64,
        /// Its cost.
        cost: u64,
    },
}

/// The penalty of a check.
#[derive(Clone, Debug, PartialEq)]
pub struct Penalized {
    /// The name of its counter.
    pub key: Key,
    /// The penalty's terms.
    pub penalty: Penalty,
}

/// The leases of a check's counter.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    /// The name of the counter of hits that are out.
    pub key: Key,
    /// What is asked of them.
    pub ask: LeaseAsk,
}

impl Check {
    /// Creates a check of one counter with no particular caller; a denial denies the request.
    pub fn new(key: Key, limit: Limit, ask: Ask) -> Check {
        let (caller, role) = (Caller::default(), Role::Enforced);
        let (penalty, lease, leased, recorded) = (None, None, None, None);
        let (shared, durable) = (Shared::default(), false);
        Check { key, limit, penalty, ask, caller, role, descriptor: 0, lease, leased, shared, durable, recorded }
    }

    /// Returns the check as a store that instances share decides it: hits that are out occupy its counter there.
    #[must_use]
    pub fn of_leases(&self, ask: LeaseAsk) -> Check {
        Check { leased: Some(Leased { key: self.key.of_leases(), ask }), ..self.clone() }
    }

    /// Returns the most hits that instances may have admitted by their shares, beside a share of `own` hits; `None` if
    /// the limit has no shares.
    pub fn other_shares(&self, own: u64) -> Option<u64> {
        let all = self.limit.capacity().saturating_sub(self.shared.rest(&self.limit).capacity());
        self.shared.split.map(|_| all.saturating_sub(own))
    }

    /// Returns the limit that an instance decides by itself while the store is unavailable, of a fleet of so many: its
    /// part of what is not in shares, since those may be in use.
    pub fn local_limit(&self, replicas: u32) -> Limit {
        self.shared.rest(&self.limit).divided_by(replicas)
    }

    /// Returns the penalty, if it applies to this operation.
    pub fn penalized(&self) -> Option<&Penalized> {
        self.penalty.as_ref().filter(|_| !self.ask.returns_hits())
    }

    /// Returns the number of counters the check asks.
    pub fn counters(&self) -> usize {
        1 + usize::from(self.penalized().is_some()) + usize::from(self.leased.is_some())
    }

    /// Returns whether a denied request costs its hits because the rule says so. Fixed windows charge denials by
    /// default, only to match other services, so the default does not count here.
    pub fn costs_denied(&self) -> bool {
        self.limit.options().count_denied == Some(true)
    }

    /// Returns the most work that the check takes; 1 is a decision on a small counter.
    pub fn work(&self) -> u64 {
        // A part of what a stream holds or settles, for which another check asks.
        if self.limit.algorithm() == Algorithm::Budget && self.ask == Ask::Peek {
            return 1;
        }
        let penalty = self.penalized().map_or(0, |penalized| penalized.penalty.work());
        self.limit.work() + penalty + u64::from(self.leased.is_some()) + u64::from(self.recorded.is_some())
    }
}

/// The store's verdict on a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckVerdict {
    /// The verdict of the limit.
    pub own: Verdict,
    /// Whether the penalty bans, if one was asked.
    pub ban: Option<Ban>,
    /// The lease that was granted, if the counter's leases were asked.
    pub lease: Option<Granted>,
    /// The share of the instance that decided, if it may use one. What remains of it is in `own`, too.
    pub share: Option<ShareLeft>,
    /// Whether this is an earlier denial that was reused without asking the store.
    pub is_known: bool,
    /// Time of the decision on the store's clock, in milliseconds since the epoch. It is 0 if the store was not asked:
    /// what a lease or a share decides is never taken back by the store.
    pub at_ms: u64,
}

/// An instance's share of a limit, after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLeft {
    /// The most hits at once.
    pub capacity: u64,
    /// How many remain.
    pub remaining: u64,
}

/// What the penalty of a limit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Whether a ban denies the request.
    pub in_force: bool,
    /// How much longer it lasts; 0 without one.
    pub left_ms: u64,
}

impl From<Verdict> for Ban {
    fn from(verdict: Verdict) -> Ban {
        Ban { in_force: !verdict.allowed, left_ms: verdict.retry_after_ms.unwrap_or(0) }
    }
}

impl Ban {
    /// Returns this verdict of the limit combined with what its penalty says.
    fn over(self, own: Verdict) -> Verdict {
        let Ban { in_force, left_ms } = self;
        if !in_force {
            return own;
        }
        Verdict {
            allowed: false,
            remaining: 0,
            reset_after_ms: own.reset_after_ms.max(left_ms),
            // `None` means never, so it wins.
            retry_after_ms: own.retry_after_ms.map(|own| own.max(left_ms)),
            delay_ms: 0,
            ..own
        }
    }
}

impl CheckVerdict {
    /// Returns the verdict of a limit alone, at this time on the store's clock.
    pub const fn new(own: Verdict, at_ms: u64) -> CheckVerdict {
        CheckVerdict { own, ban: None, lease: None, share: None, is_known: false, at_ms }
    }

    /// Returns the combined verdict.
    pub fn together(&self) -> Verdict {
        self.ban.map_or(self.own, |ban| ban.over(self.own))
    }

    /// Returns whether both the limit and the penalty allow the request.
    pub fn allowed(&self) -> bool {
        self.own.allowed && self.ban.is_none_or(|ban| !ban.in_force)
    }

    /// Returns how much longer a ban lasts, if there is one.
    pub fn banned_ms(&self) -> Option<u64> {
        self.ban.filter(|ban| ban.in_force).map(|ban| ban.left_ms)
    }
}

/// A store's verdicts on a request. Most requests have one check and need no allocation. `None` for a check that was
/// not asked because another check is known to deny the request.
pub type Verdicts = SmallVec<[Option<CheckVerdict>; 1]>;
