//! What the verdicts of a request's counters mean for it. Pure.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Ask, Verdict};
use crate::descriptor::Role;
use crate::plan::Asked;
use crate::rules::Rule;
use crate::store::group::Votes;
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

/// The answer for a limit, and where it comes from.
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
    FailedClosed,
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

    /// What refunds all that the request has taken, but of limits that count denials. Among `replicas` processes local
    /// decisions are divided.
    pub fn refund(&self, replicas: u32) -> Refund {
        let mut refund = Refund::default();
        for Limited { asked, answer } in self.limits.iter().filter(|limited| !limited.over()) {
            let check = &asked.check;
            let Ask::Take(hits) = check.ask else { continue };
            if check.limit.count_denied() {
                continue;
            }
            let check = Check { ask: Ask::Refund(hits), role: Role::Shadow, lease: None, ..check.clone() };
            match answer {
                Answer::Store(_) => refund.to_store.push(check),
                Answer::Local(_) => refund.to_memory.push(Check { limit: check.limit.divided_by(replicas), ..check }),
                Answer::Known(_) | Answer::Skipped | Answer::FailedOpen | Answer::FailedClosed => {}
            }
        }
        refund
    }
}

impl Status<'_> {
    /// It is denied because the rules do not know it.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Status::Unknown)
    }
}

impl Limited<'_> {
    /// What a denial means by its rule.
    pub fn role(&self) -> Role {
        self.asked.role
    }

    /// The limit is exceeded, or its penalty bans, whatever that means for the request.
    pub fn over(&self) -> bool {
        match self.answer {
            Answer::Store(verdict) | Answer::Known(verdict) | Answer::Local(verdict) => !verdict.allowed(),
            Answer::Skipped | Answer::FailedOpen => false,
            Answer::FailedClosed => true,
        }
    }

    /// The limit is exceeded and not in shadow mode: the descriptor's status is `OVER_LIMIT`.
    pub fn shown_over(&self) -> bool {
        self.over() && self.role() != Role::Shadow
    }

    /// How many more hits would pass. Where no counter was asked, as many as the limit allows.
    pub fn remaining(&self) -> u32 {
        match self.answer {
            Answer::FailedClosed => 0,
            _ => self.verdict().map_or_else(|| self.asked.check.limit.capacity(), |verdict| verdict.remaining),
        }
    }

    /// What the limit and its penalty say together, where a counter was asked.
    pub fn verdict(&self) -> Option<Verdict> {
        self.check_verdict().map(|verdict| verdict.together())
    }

    /// How long a ban still lasts, where the penalty has brought one.
    pub fn banned_ms(&self) -> Option<u64> {
        self.check_verdict()?.banned_ms()
    }

    fn check_verdict(&self) -> Option<CheckVerdict> {
        match self.answer {
            Answer::Store(verdict) | Answer::Known(verdict) | Answer::Local(verdict) => Some(verdict),
            Answer::Skipped | Answer::FailedOpen | Answer::FailedClosed => None,
        }
    }
}

/// The limit of a descriptor to report: of those that are over, the one with the longest wait; or else the one with
/// the least remaining.
pub fn most_pressing<'l, 'a>(limits: &'l [Limited<'a>]) -> Option<&'l Limited<'a>> {
    // What can never pass takes longest.
    let wait = |limited: &Limited<'_>| limited.verdict().and_then(|verdict| verdict.retry_after_ms).unwrap_or(u64::MAX);
    let over = limits.iter().filter(|limited| limited.over()).max_by_key(|limited| wait(limited));
    over.or_else(|| limits.iter().min_by_key(|limited| limited.remaining()))
}
