//! What the verdicts of a request's counters mean for it. Pure.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Ask, Caller, Verdict};
use crate::descriptor::Role;
use crate::plan::Asked;
use crate::rules::Rule;
use crate::store::group::{self, Votes};
use crate::store::{Check, CheckVerdict};

/// The whole answer.
#[derive(Debug)]
pub struct Decision<'a> {
    /// The request is denied.
    pub over_limit: bool,
    /// It would be denied, but global shadow mode denies nothing.
    pub only_shadow: bool,
    /// The rules know the domain.
    pub domain_found: bool,
    /// One for each descriptor, in its order.
    pub statuses: Few<Status<'a>>,
    /// What every limit says, in the order of the descriptors.
    pub limits: Vec<Limited<'a>>,
    /// How long the request is delayed before it passes; zero where it is denied.
    pub delay: Duration,
}

/// A list of what is small and mostly one or two: it needs no allocation then.
pub type Few<T> = SmallVec<[T; 2]>;

/// The answer to one descriptor.
#[derive(Clone, Debug)]
pub enum Status<'a> {
    /// No rule applies.
    NoLimit,
    /// The rules do not know it, or its domain, and a setting denies what they do not know.
    Unknown,
    /// A rule says that nothing is limited.
    Unlimited(&'a Rule),
    /// These of the limits have been asked; there is one at least.
    Limited(Range<usize>),
}

/// What one limit says.
#[derive(Debug)]
pub struct Limited<'a> {
    /// What was asked of it, and why.
    pub asked: Asked<'a>,
    /// Its answer.
    pub answer: Answer,
}

/// The answer for a limit; [`Answer::decided_by`] names where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The store.
    Store(CheckVerdict),
    /// The store was unavailable; it denied the same before, until a time that has not come.
    Known(CheckVerdict),
    /// This process alone, because the store was unavailable.
    Local(CheckVerdict),
    /// Not asked: another limit of the request is known to deny it.
    Skipped,
    /// The store was unavailable; the failure mode lets pass.
    FailedOpen,
    /// The store was unavailable; the failure mode denies.
    FailedClosed {
        /// How long until the store may decide again.
        retry_after_ms: u64,
    },
    /// The store was unavailable, and has not confirmed the refund; no request is denied for that.
    NotRefunded,
    /// Not asked: an adjustment lets requests pass.
    Exempt,
    /// Not asked: an adjustment denies requests.
    Blocked,
}

/// Why a limit never lets the same request pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Never {
    /// It is a limit of 0.
    LetsNothingPass,
    /// More hits than ever fit.
    TooMany,
    /// It would be delayed for longer than its caller waits.
    Timeout,
    /// It would be delayed, and as many requests are as may be.
    NoDelay,
}

impl Never {
    /// Every one.
    pub const ALL: [Never; 4] = [Never::LetsNothingPass, Never::TooMany, Never::Timeout, Never::NoDelay];

    /// The name in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Never::LetsNothingPass => "lets_nothing_pass",
            Never::TooMany => "too_many",
            Never::Timeout => "timeout",
            Never::NoDelay => "no_delay",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Never> {
        Never::ALL.into_iter().find(|never| never.name() == name)
    }
}

/// Where the answer for a limit comes from: one word for answers, logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecidedBy {
    /// The store, or what this process holds of it: a lease, or a denial that the store has just told.
    Store,
    /// The store was unavailable; it denied the same before, until a time that has not come.
    KnownDenial,
    /// The store was unavailable, and nobody has counted: the request passes.
    FailureModeOpen,
    /// The store was unavailable, and nobody has counted: the request is denied.
    FailureModeClosed,
    /// The store was unavailable: this process has decided by its share of the number.
    FailureModeLocal,
    /// The store was unavailable: the call fails, and no answer carries this.
    FailureModeError,
    /// Nobody: the store was unavailable, and has not confirmed a refund.
    NotRefunded,
    /// Nobody: another limit of the request is known to deny it.
    Skipped,
    /// An adjustment, by which requests always pass this limit or never.
    Adjustment,
    /// No limit: the rules do not have the domain, and a setting denies such.
    UnknownDomain,
    /// No limit: no rule is reached, and a setting denies such.
    UnknownDescriptor,
}

impl DecidedBy {
    /// Every one.
    pub const ALL: [DecidedBy; 11] = [
        DecidedBy::Store,
        DecidedBy::KnownDenial,
        DecidedBy::FailureModeOpen,
        DecidedBy::FailureModeClosed,
        DecidedBy::FailureModeLocal,
        DecidedBy::FailureModeError,
        DecidedBy::NotRefunded,
        DecidedBy::Skipped,
        DecidedBy::Adjustment,
        DecidedBy::UnknownDomain,
        DecidedBy::UnknownDescriptor,
    ];

    /// Those of limits that the store could not decide.
    pub const WITHOUT_STORE: [DecidedBy; 6] = [
        DecidedBy::KnownDenial,
        DecidedBy::FailureModeOpen,
        DecidedBy::FailureModeClosed,
        DecidedBy::FailureModeLocal,
        DecidedBy::FailureModeError,
        DecidedBy::NotRefunded,
    ];

    /// The name in answers, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DecidedBy::Store => "store",
            DecidedBy::KnownDenial => "known_denial",
            DecidedBy::FailureModeOpen => "failure_mode_open",
            DecidedBy::FailureModeClosed => "failure_mode_closed",
            DecidedBy::FailureModeLocal => "failure_mode_local",
            DecidedBy::FailureModeError => "failure_mode_error",
            DecidedBy::NotRefunded => "not_refunded",
            DecidedBy::Skipped => "skipped",
            DecidedBy::Adjustment => "adjustment",
            DecidedBy::UnknownDomain => "unknown_domain",
            DecidedBy::UnknownDescriptor => "unknown_descriptor",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<DecidedBy> {
        DecidedBy::ALL.into_iter().find(|decided_by| decided_by.name() == name)
    }

    /// The store was unavailable.
    pub const fn is_without_store(self) -> bool {
        match self {
            DecidedBy::Store
            | DecidedBy::Skipped
            | DecidedBy::Adjustment
            | DecidedBy::UnknownDomain
            | DecidedBy::UnknownDescriptor => false,
            DecidedBy::KnownDenial
            | DecidedBy::FailureModeOpen
            | DecidedBy::FailureModeClosed
            | DecidedBy::FailureModeLocal
            | DecidedBy::FailureModeError
            | DecidedBy::NotRefunded => true,
        }
    }
}

impl Answer {
    /// Where it comes from.
    pub const fn decided_by(self) -> DecidedBy {
        match self {
            Answer::Store(_) => DecidedBy::Store,
            Answer::Known(_) => DecidedBy::KnownDenial,
            Answer::Local(_) => DecidedBy::FailureModeLocal,
            Answer::Skipped => DecidedBy::Skipped,
            Answer::FailedOpen => DecidedBy::FailureModeOpen,
            Answer::FailedClosed { .. } => DecidedBy::FailureModeClosed,
            Answer::NotRefunded => DecidedBy::NotRefunded,
            Answer::Exempt | Answer::Blocked => DecidedBy::Adjustment,
        }
    }
}

/// The refund of a request that was admitted and does not pass after all.
#[derive(Debug, Default)]
pub struct Refund {
    /// To be asked of the store.
    pub to_store: Vec<Check>,
    /// To be asked of this process's memory, which decided while the store was unavailable.
    pub to_memory: Vec<Check>,
}

impl<'a> Decision<'a> {
    /// What these answers mean; global shadow mode denies no request.
    pub(crate) fn new(
        domain_found: bool,
        statuses: Few<Status<'a>>,
        limits: Vec<Limited<'a>>,
        shadow_mode: bool,
    ) -> Decision<'a> {
        let mut votes = Votes::default();
        for limited in &limits {
            votes.add(limited.role(), &limited.asked.check, limited.over());
        }
        let deny = votes.deny() || statuses.iter().any(Status::is_unknown);
        let only_shadow = deny && shadow_mode;
        let over_limit = deny && !shadow_mode;
        // A limit that denies no request delays none either.
        let enforced = limits.iter().filter(|limited| limited.role() != Role::Shadow);
        let delay_ms = enforced.filter_map(Limited::verdict).map(|verdict| verdict.delay_ms).max();
        let delay_ms = delay_ms.filter(|_| !over_limit && !shadow_mode).unwrap_or(0);
        let delay = Duration::from_millis(delay_ms);
        Decision { over_limit, only_shadow, domain_found, statuses, limits, delay }
    }

    /// For each descriptor that is limited, what its limits say.
    pub fn limited(&self) -> impl Iterator<Item = &[Limited<'a>]> {
        self.statuses.iter().filter_map(|status| match status {
            Status::Limited(range) => Some(&self.limits[range.clone()]),
            Status::NoLimit | Status::Unknown | Status::Unlimited(_) => None,
        })
    }

    /// What refunds all that the request has taken, but of limits that count denials, and records that it did not pass.
    /// Among `replicas` processes local decisions are divided.
    pub fn refund(&self, replicas: u32) -> Refund {
        let mut refund = Refund::default();
        for limited in &self.limits {
            let Limited { asked, answer } = limited;
            let check = &asked.check;
            let ask = match check.ask {
                Ask::Take(hits) if !limited.over() && !check.limit.count_denied() => Ask::Refund(hits),
                _ => Ask::Peek,
            };
            let recorded = match answer {
                Answer::Store(verdict) => group::undone(check, verdict.at_ms),
                _ => None,
            };
            if ask == Ask::Peek && recorded.is_none() {
                continue;
            }
            let check = Check { ask, role: Role::Shadow, lease: None, recorded, ..check.clone() };
            match answer {
                Answer::Store(_) => refund.to_store.push(check),
                Answer::Local(_) => refund.to_memory.push(Check { limit: check.limit.divided_by(replicas), ..check }),
                Answer::Known(_)
                | Answer::Skipped
                | Answer::FailedOpen
                | Answer::FailedClosed { .. }
                | Answer::NotRefunded
                | Answer::Exempt
                | Answer::Blocked => {}
            }
        }
        refund
    }

    /// Where the decision comes from, each once: of a denied request from the limits that are over, of another from
    /// all.
    pub fn decided_by(&self) -> Few<DecidedBy> {
        let mut all = Few::new();
        for limited in self.limits.iter().filter(|limited| !self.over_limit || limited.over()) {
            let decided_by = limited.answer.decided_by();
            if !all.contains(&decided_by) {
                all.push(decided_by);
            }
        }
        if self.denies_unknown() {
            all.push(if self.domain_found { DecidedBy::UnknownDescriptor } else { DecidedBy::UnknownDomain });
        }
        all
    }

    /// It is denied because the rules do not know something of it.
    pub fn denies_unknown(&self) -> bool {
        self.over_limit && self.statuses.iter().any(Status::is_unknown)
    }

    /// An adjustment has answered for one of its limits.
    pub fn is_settled_by_adjustment(&self) -> bool {
        self.limits.iter().any(|limited| !limited.is_asked())
    }

    /// The store was unavailable when this was decided.
    pub fn is_without_store(&self) -> bool {
        self.limits.iter().any(|limited| limited.answer.decided_by().is_without_store())
    }

    /// How long until the denied request may pass; `None` where it passes now, or where that is unknown.
    ///
    /// Every enforced limit must let it pass again, and one of the quotas if they have denied it. When a stream
    /// releases its slot is unknown, and the time at which the slot expires is no time to wait for. The end of a ban is
    /// known.
    pub fn retry_after_ms(&self) -> Option<u64> {
        // What the rules do not know is denied for as long as they do not.
        if !self.over_limit || self.denies_unknown() {
            return None;
        }
        let (mut longest, mut quotas) = (0, Vec::new());
        for limits in self.limited() {
            match limits[0].role() {
                Role::Enforced => longest = longest.max(wait_ms(limits)?),
                Role::Quota if !limits[0].asked.check.ask.is_refund() => quotas.push(wait_ms(limits)),
                Role::Quota | Role::Shadow => {}
            }
        }
        if !quotas.is_empty() && !quotas.contains(&Some(0)) {
            longest = longest.max(quotas.into_iter().flatten().min()?);
        }
        Some(longest)
    }

    /// Whether one more hit of each descriptor would pass now.
    pub fn next_passes(&self) -> bool {
        let mut votes = Votes::default();
        for (limited, has_room) in self.limits.iter().zip(self.rooms()) {
            votes.add(limited.asked.check.role, &limited.asked.check, !has_room);
        }
        !votes.deny() && !self.denies_unknown()
    }

    /// For each limit, whether one more hit of each descriptor would be within it, as far as that is known. Descriptors
    /// that share a counter take from it one after the other.
    pub fn rooms(&self) -> Vec<bool> {
        let mut rooms = Vec::with_capacity(self.limits.len());
        for limited in &self.limits {
            let key = &limited.asked.check.key;
            let before =
                self.limits.iter().zip(&rooms).filter(|(other, taken)| **taken && other.asked.check.key == *key);
            let taken = before.map(|(other, _)| other.asked.cost()).fold(0, u32::saturating_add);
            rooms.push(match limited.verdict() {
                Some(verdict) => {
                    let room = verdict.remaining.saturating_sub(taken);
                    limited.banned_ms().is_none() && room >= limited.asked.cost()
                }
                None => !limited.over(),
            });
        }
        rooms
    }
}

impl Status<'_> {
    /// It is denied because the rules do not know it.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Status::Unknown)
    }
}

impl Limited<'_> {
    /// The store, or what answers in its place, was asked: no adjustment has settled it before.
    pub fn is_asked(&self) -> bool {
        !matches!(self.answer, Answer::Exempt | Answer::Blocked)
    }

    /// What a denial means by its rule.
    pub fn role(&self) -> Role {
        self.asked.role
    }

    /// The limit is exceeded, or its penalty bans, whatever that means for the request.
    pub fn over(&self) -> bool {
        match self.answer {
            Answer::Store(verdict) | Answer::Known(verdict) | Answer::Local(verdict) => !verdict.allowed(),
            Answer::Skipped | Answer::FailedOpen | Answer::NotRefunded | Answer::Exempt => false,
            Answer::FailedClosed { .. } | Answer::Blocked => true,
        }
    }

    /// The limit is exceeded and not in shadow mode: the descriptor's status is `OVER_LIMIT`.
    pub fn shown_over(&self) -> bool {
        self.over() && self.role() != Role::Shadow
    }

    /// How many more hits would pass; `None` where nobody knows.
    pub fn remaining(&self) -> Option<u32> {
        self.verdict().map(|verdict| verdict.remaining)
    }

    /// How long until nothing is used any more; `None` where nobody knows, as of what an adjustment blocks.
    pub fn reset_after_ms(&self) -> Option<u64> {
        self.verdict().filter(|_| self.answer != Answer::Blocked).map(|verdict| verdict.reset_after_ms)
    }

    /// How long until this limit lets the same request pass; `None` where it never does. Zero where nobody denies it.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self.answer {
            Answer::FailedClosed { retry_after_ms } => Some(retry_after_ms),
            _ => self.verdict().map_or(Some(0), |verdict| verdict.retry_after_ms),
        }
    }

    /// Why the request never passes, where it is over the limit and no time is known to wait for.
    pub fn never(&self) -> Option<Never> {
        if !self.over() || self.retry_after_ms().is_some() {
            return None;
        }
        let Check { limit, ask, caller, .. } = &self.asked.check;
        let fits = ask.taken() <= u64::from(limit.capacity());
        let most = Caller::default();
        Some(match caller.max_wait_ms {
            _ if limit.capacity() == 0 => Never::LetsNothingPass,
            0 if fits && limit.max_delay_ms(most) > 0 => Never::NoDelay,
            _ if fits && limit.max_delay_ms(most) > limit.max_delay_ms(*caller) => Never::Timeout,
            _ => Never::TooMany,
        })
    }

    /// What the limit and its penalty say together, where a counter was asked.
    pub fn verdict(&self) -> Option<Verdict> {
        self.check_verdict().map(|verdict| verdict.together())
    }

    /// What the limit says by itself, where a counter was asked.
    pub fn own(&self) -> Option<Verdict> {
        self.check_verdict().map(|verdict| verdict.own)
    }

    /// It was denied before, and the store was not asked for that again.
    pub fn is_known_denial(&self) -> bool {
        self.check_verdict().is_some_and(|verdict| verdict.is_known)
    }

    /// How long a ban still lasts, where the penalty has brought one.
    pub fn banned_ms(&self) -> Option<u64> {
        self.check_verdict()?.banned_ms()
    }

    fn check_verdict(&self) -> Option<CheckVerdict> {
        match self.answer {
            Answer::Store(verdict) | Answer::Known(verdict) | Answer::Local(verdict) => Some(verdict),
            Answer::Blocked => Some(BLOCKED),
            Answer::Skipped
            | Answer::FailedOpen
            | Answer::FailedClosed { .. }
            | Answer::NotRefunded
            | Answer::Exempt => None,
        }
    }
}

/// How long until all limits of a descriptor let it pass; `None` where that is unknown.
fn wait_ms(limits: &[Limited<'_>]) -> Option<u64> {
    let mut longest = 0;
    for limited in limits.iter().filter(|limited| limited.over()) {
        let retry_after_ms = limited.retry_after_ms()?;
        let is_known = limited.asked.check.limit.window().is_some() || limited.verdict().is_none();
        longest = longest.max(if is_known { retry_after_ms } else { limited.banned_ms()? });
    }
    Some(longest)
}
/// What a limit says by which an adjustment lets nothing pass: no time is known to wait for.
const BLOCKED: CheckVerdict = CheckVerdict {
    own: Verdict { allowed: false, remaining: 0, excess: None, reset_after_ms: 0, retry_after_ms: None, delay_ms: 0 },
    ban: None,
    is_known: false,
    at_ms: 0,
};

/// The limit of a descriptor to report: of those that are over, the one with the longest wait; or else the one with
/// the least remaining. What nobody knows comes last.
pub fn most_pressing<'l, 'a>(limits: &'l [Limited<'a>]) -> Option<&'l Limited<'a>> {
    // What can never pass takes longest.
    let wait = |limited: &Limited<'_>| limited.retry_after_ms().unwrap_or(u64::MAX);
    let over = limits.iter().filter(|limited| limited.over()).max_by_key(|limited| wait(limited));
    over.or_else(|| limits.iter().min_by_key(|limited| least_first(limited)))
}

/// Orders limits by what remains: the least first, and last those of which nobody knows.
pub fn least_first(limited: &Limited<'_>) -> (bool, Option<u32>) {
    let remaining = limited.remaining();
    (remaining.is_none(), remaining)
}
