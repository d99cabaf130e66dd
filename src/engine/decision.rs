//! Decisions: the result of a request's verdicts. Pure.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use crate::adjustment::Adjustment;
use crate::algorithm::{Algorithm, Ask, Caller, Verdict};
use crate::asked::Asked;
use crate::check::group::{self, Votes};
use crate::check::{Check, CheckVerdict, Occasion, ShareLeft};
use crate::descriptor::Role;
use crate::rules::Rule;
use crate::rules::expect::Missing;
use crate::usage::Time;

/// The complete answer to a request.
#[derive(Debug)]
pub struct Decision<'a> {
    /// Whether the request is denied.
    pub over_limit: bool,
    /// Whether the request would be denied, but is allowed because of global shadow mode.
    pub only_shadow: bool,
    /// Whether the rules have the domain.
    pub domain_found: bool,
    /// An expected entry that the request does not bring.
    pub missing: Option<Missing<'a>>,
    /// One status for each descriptor, in the same order.
    pub statuses: Few<Status<'a>>,
    /// The answers of all limits, in the order of the descriptors.
    pub limits: Vec<Limited<'a>>,
    /// The delay before the request passes; zero if it is denied.
    pub delay: Duration,
}

/// A list of small values that needs no allocation for one or two.
pub type Few<T> = SmallVec<[T; 2]>;

/// The answer to one descriptor.
#[derive(Clone, Debug)]
pub enum Status<'a> {
    /// No rule applies.
    NoLimit,
    /// The rules have no match for the descriptor or its domain, and a setting denies such requests.
    Unknown,
    /// A rule exempts the descriptor from limits.
    Unlimited(&'a Rule),
    /// The positions of the descriptor's limits; at least one.
    Limited(Range<usize>),
}

/// The answer of one limit.
#[derive(Debug)]
pub struct Limited<'a> {
    /// The question to the limit.
    pub asked: Asked<'a>,
    /// The answer.
    pub answer: Answer,
}

/// The answer for a limit; [`Answer::decided_by`] names its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The store decided.
    Store(CheckVerdict),
    /// The store was unavailable, but an earlier denial by it still applies.
    Known(CheckVerdict),
    /// The store was unavailable, so this instance decided alone.
    Local(CheckVerdict),
    /// Not asked, because another limit of the request is known to deny it.
    Skipped,
    /// The store was unavailable, and the failure mode lets the request pass.
    FailedOpen,
    /// The store was unavailable, and the failure mode denies the request.
    FailedClosed {
        /// Time until the store may be available again.
        retry_after_ms: u64,
    },
    /// The store was unavailable and did not confirm the refund or settle. This denies no request.
    NotRefunded,
    /// Not asked, because an adjustment lets requests pass.
    Exempt,
    /// Not asked, because an adjustment blocks requests.
    Blocked,
}

/// The reason why a limit never allows the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Never {
    /// The limit's capacity is 0.
    LetsNothingPass,
    /// The request has more hits than the limit can ever allow.
    TooMany,
    /// The request would be delayed beyond its caller's deadline.
    Timeout,
    /// The request would be delayed, but no more requests may be delayed.
    NoDelay,
    /// A balance is used up, and no time gives it back: only a top-up does.
    Spent,
}

impl Never {
    /// All reasons.
    pub const ALL: [Never; 5] = [Never::LetsNothingPass, Never::TooMany, Never::Timeout, Never::NoDelay, Never::Spent];

    /// Returns the name in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Never::LetsNothingPass => "lets_nothing_pass",
            Never::TooMany => "too_many",
            Never::Timeout => "timeout",
            Never::NoDelay => "no_delay",
            Never::Spent => "spent",
        }
    }

    /// Returns the reason with this name.
    pub fn named(name: &str) -> Option<Never> {
        Never::ALL.into_iter().find(|never| never.name() == name)
    }
}

/// The origin of a limit's answer, as one word for answers, logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecidedBy {
    /// The store, or data that this instance holds from it: a lease, or a recent denial.
    Store,
    /// An earlier denial that still applies; the store was unavailable.
    KnownDenial,
    /// The failure mode, which let the request pass uncounted; the store was unavailable.
    FailureModeOpen,
    /// The failure mode, which denied the request uncounted; the store was unavailable.
    FailureModeClosed,
    /// This instance, by its share of the number; the store was unavailable.
    FailureModeLocal,
    /// The failure mode, which made the call fail; the store was unavailable. No answer carries this value.
    FailureModeError,
    /// No decision: the store was unavailable and did not confirm a refund or settle.
    NotRefunded,
    /// No decision: another limit of the request is known to deny it.
    Skipped,
    /// An adjustment that always lets requests pass this limit, or blocks them.
    Adjustment,
    /// The setting for domains that the rules do not have.
    UnknownDomain,
    /// The setting for descriptors that no rule matches.
    UnknownDescriptor,
    /// The domain, which expects an entry that the request does not bring.
    MissingEntry,
}

impl DecidedBy {
    /// All origins.
    pub const ALL: [DecidedBy; 12] = [
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
        DecidedBy::MissingEntry,
    ];

    /// The origins where the store was unavailable.
    pub const WITHOUT_STORE: [DecidedBy; 6] = [
        DecidedBy::KnownDenial,
        DecidedBy::FailureModeOpen,
        DecidedBy::FailureModeClosed,
        DecidedBy::FailureModeLocal,
        DecidedBy::FailureModeError,
        DecidedBy::NotRefunded,
    ];

    /// Returns the name in answers, logs and metrics.
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
            DecidedBy::MissingEntry => "missing_entry",
        }
    }

    /// Returns the origin with this name.
    pub fn named(name: &str) -> Option<DecidedBy> {
        DecidedBy::ALL.into_iter().find(|decided_by| decided_by.name() == name)
    }

    /// Returns whether the store was unavailable.
    pub const fn is_without_store(self) -> bool {
        match self {
            DecidedBy::Store
            | DecidedBy::Skipped
            | DecidedBy::Adjustment
            | DecidedBy::UnknownDomain
            | DecidedBy::UnknownDescriptor
            | DecidedBy::MissingEntry => false,
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
    /// Returns the origin of the answer.
    pub const fn decided_by(&self) -> DecidedBy {
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

/// The refund of a request that was admitted but does not pass after all.
#[derive(Debug, Default)]
pub struct Refund {
    /// Checks for the store.
    pub to_store: Vec<Check>,
    /// Checks for this instance's memory, which decided while the store was unavailable.
    pub to_memory: Vec<Check>,
}

impl<'a> Decision<'a> {
    /// Concludes from these answers. In global shadow mode no request is denied.
    pub fn new(
        (domain_found, missing): (bool, Option<Missing<'a>>),
        statuses: Few<Status<'a>>,
        limits: Vec<Limited<'a>>,
        shadow_mode: bool,
    ) -> Decision<'a> {
        let mut votes = Votes::default();
        for limited in &limits {
            votes.add(limited.role(), &limited.asked.check, limited.over());
        }
        let is_missing = missing.is_some_and(|missing| missing.denies());
        let deny = votes.deny() || is_missing || statuses.iter().any(Status::is_unknown);
        let only_shadow = deny && shadow_mode;
        let over_limit = deny && !shadow_mode;
        // A limit that cannot deny the request does not delay it either.
        let enforced = limits.iter().filter(|limited| limited.role() != Role::Shadow);
        let delay_ms = enforced.filter_map(Limited::verdict).map(|verdict| verdict.delay_ms).max();
        let delay_ms = delay_ms.filter(|_| !over_limit && !shadow_mode).unwrap_or(0);
        let delay = Duration::from_millis(delay_ms);
        Decision { over_limit, only_shadow, domain_found, missing, statuses, limits, delay }
    }

    /// Returns, for each limited descriptor, the answers of its limits.
    pub fn limited(&self) -> impl Iterator<Item = &[Limited<'a>]> {
        self.statuses.iter().filter_map(|status| match status {
            Status::Limited(range) => Some(&self.limits[range.clone()]),
            Status::NoLimit | Status::Unknown | Status::Unlimited(_) => None,
        })
    }

    /// Returns the refund of all hits that the request took, except from limits that count denials. It also records
    /// that the request did not pass. `replicas` is the number of instances that share local decisions.
    pub fn refund(&self, replicas: u32) -> Refund {
        let mut refund = Refund::default();
        for limited in &self.limits {
            let Limited { asked, answer } = limited;
            let check = &asked.check;
            let ask = match check.ask {
                Ask::Take(_) if !limited.over() && !check.limit.count_denied() => {
                    Ask::refund(limited.taken()).unwrap_or(Ask::Peek)
                }
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
                Answer::Local(_) => refund.to_memory.push(Check { limit: check.local_limit(replicas), ..check }),
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

    /// Returns the origins of the decision, each once: those of the exceeded limits if the request is denied, or of all
    /// limits.
    pub fn decided_by(&self) -> Few<DecidedBy> {
        let mut all = Few::new();
        for limited in self.limits.iter().filter(|limited| !self.over_limit || limited.over()) {
            let decided_by = limited.answer.decided_by();
            if !all.contains(&decided_by) {
                all.push(decided_by);
            }
        }
        if self.over_limit && self.missing.is_some_and(|missing| missing.denies()) {
            all.push(DecidedBy::MissingEntry);
        }
        if self.over_limit && self.statuses.iter().any(Status::is_unknown) {
            all.push(if self.domain_found { DecidedBy::UnknownDescriptor } else { DecidedBy::UnknownDomain });
        }
        all
    }

    /// Returns whether the request is denied because the rules have no match for a part of it, or because it does not
    /// bring an expected entry.
    pub fn denies_unknown(&self) -> bool {
        let is_missing = || self.missing.is_some_and(|missing| missing.denies());
        self.over_limit && (self.statuses.iter().any(Status::is_unknown) || is_missing())
    }

    /// Returns whether an adjustment answered for one of the limits.
    pub fn is_settled_by_adjustment(&self) -> bool {
        self.limits.iter().any(|limited| !limited.is_asked())
    }

    /// Returns whether the store was unavailable for this decision.
    pub fn is_without_store(&self) -> bool {
        self.limits.iter().any(|limited| limited.answer.decided_by().is_without_store())
    }

    /// Returns the time until the denied request may pass; `None` if it passes now, or if the time is unknown.
    ///
    /// At that time every enforced limit allows it again, and one of the quotas if they denied it. For a concurrency
    /// limit the time is unknown, because a stream may release its slot at any moment; the expiry of a slot is not used
    /// as a retry time. The end of a ban is known.
    pub fn retry_after_ms(&self) -> Option<u64> {
        // The rules must change first.
        if !self.over_limit || self.denies_unknown() {
            return None;
        }
        let (mut longest, mut quotas) = (0, Vec::new());
        for limits in self.limited() {
            longest = longest.max(wait_ms(limits, Role::Enforced)?);
            let is_quota = |limited: &Limited<'_>| limited.role() == Role::Quota && limited.asked.check.ask.is_vote();
            if limits.iter().any(is_quota) {
                quotas.push(wait_ms(limits, Role::Quota));
            }
        }
        if !quotas.is_empty() && !quotas.contains(&Some(0)) {
            longest = longest.max(quotas.into_iter().flatten().min()?);
        }
        Some(longest)
    }

    /// Returns the limit to report to the client: the most pressing of the last descriptor that is over its limit, or
    /// else the one with the least remaining.
    pub fn reported(&self) -> Option<&Limited<'a>> {
        let pressing = || self.limited().filter_map(most_pressing);
        let over = pressing().filter(|limited| limited.shown_over() && limited.role() != Role::Quota).last();
        over.or_else(|| pressing().min_by_key(|limited| least_first(limited)))
    }

    /// Returns whether one more hit of each descriptor would pass now.
    pub fn next_passes(&self) -> bool {
        let mut votes = Votes::default();
        for (limited, has_room) in self.limits.iter().zip(self.rooms()) {
            votes.add(limited.asked.check.role, &limited.asked.check, !has_room);
        }
        !votes.deny() && !self.denies_unknown()
    }

    /// Returns, for each limit, whether one more hit of each descriptor would be within it, as far as is known.
    /// Descriptors that share a counter take from it in turn.
    pub fn rooms(&self) -> Vec<bool> {
        let mut rooms = Vec::with_capacity(self.limits.len());
        for limited in &self.limits {
            let key = &limited.asked.check.key;
            let before =
                self.limits.iter().zip(&rooms).filter(|(other, taken)| **taken && other.asked.check.key == *key);
            let taken =
                before.map(|(other, _)| other.asked.cost()).fold(0, |sum: u64, cost| sum.saturating_add(cost.into()));
            rooms.push(match limited.verdict() {
                Some(verdict) => {
                    let room = verdict.remaining.saturating_sub(taken);
                    limited.banned_ms().is_none() && room >= u64::from(limited.asked.cost())
                }
                None => !limited.over(),
            });
        }
        rooms
    }
}

impl Status<'_> {
    /// Returns whether the descriptor is denied because the rules have no match for it.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Status::Unknown)
    }
}

impl Limited<'_> {
    /// Returns whether the store, or its substitute, was asked. It is not if an adjustment already decided.
    pub fn is_asked(&self) -> bool {
        !matches!(self.answer, Answer::Exempt | Answer::Blocked)
    }

    /// Returns the effect of a denial by the rule.
    pub fn role(&self) -> Role {
        self.asked.role
    }

    /// Returns whether the limit is exceeded or its penalty bans the client, even if that does not deny the request.
    pub fn over(&self) -> bool {
        match &self.answer {
            Answer::Store(verdict) | Answer::Known(verdict) | Answer::Local(verdict) => !verdict.allowed(),
            Answer::Skipped | Answer::FailedOpen | Answer::NotRefunded | Answer::Exempt => false,
            Answer::FailedClosed { .. } | Answer::Blocked => true,
        }
    }

    /// Returns whether the descriptor's status is `OVER_LIMIT`: the limit is exceeded and not in shadow mode.
    pub fn shown_over(&self) -> bool {
        self.over() && self.role() != Role::Shadow
    }

    /// Returns how many more hits would be allowed; `None` if unknown.
    pub fn remaining(&self) -> Option<u64> {
        self.verdict().map(|verdict| verdict.remaining)
    }

    /// Returns the time until the counter is equivalent to a new one; `None` if unknown, as for a limit blocked by an
    /// adjustment.
    pub fn reset_after_ms(&self) -> Option<u64> {
        let resets = self.answer != Answer::Blocked && !self.asked.check.limit.is_balance();
        self.verdict().filter(|_| resets).map(|verdict| verdict.reset_after_ms)
    }

    /// Returns the time until this limit allows the same request: zero if it is not denied, `None` if it never will be
    /// allowed.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self.answer {
            Answer::FailedClosed { retry_after_ms } => Some(retry_after_ms),
            _ => self.verdict().map_or(Some(0), |verdict| verdict.retry_after_ms),
        }
    }

    /// Returns the time until this limit certainly allows the same request; `None` if that is unknown. A stream may
    /// release its slot of a concurrency limit, or settle what it holds of a budget, at any moment: the end of a slot
    /// or of a hold is no retry time. The end of a ban is known.
    pub fn known_retry_after_ms(&self) -> Option<u64> {
        let retry_after_ms = self.retry_after_ms()?;
        let is_known = self.asked.check.limit.is_freed_by_time(retry_after_ms) || self.verdict().is_none();
        if is_known || !self.over() { Some(retry_after_ms) } else { self.banned_ms() }
    }

    /// Returns the time after which the limit certainly allows more hits than now; `None` if that is unknown.
    ///
    /// If the limit denies the request, that is its retry time. The windows of a `fixed_window` end at once, and a
    /// bucket gains a hit at a time. More of a sliding window may be available earlier than at the returned time, when
    /// all of it is: when its oldest hits expire is known only in the store.
    pub fn more_after_ms(&self) -> Option<u64> {
        if self.over() {
            return self.known_retry_after_ms();
        }
        let limit = &self.asked.check.limit;
        let (reset_after_ms, verdict) = (self.reset_after_ms()?, self.verdict()?);
        limit.window()?;
        let missing = self.capacity().saturating_sub(verdict.remaining);
        let is_bucket = matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        if !is_bucket || limit.options().max_delay.is_some() || missing == 0 || limit.number() == 0 {
            return Some(reset_after_ms);
        }
        // Of the missing hits, all but the next one.
        let others_ms = u128::from(missing - 1) * u128::from(limit.period_ms()) / u128::from(limit.number());
        Some(reset_after_ms.saturating_sub(u64::try_from(others_ms).unwrap_or(u64::MAX)))
    }

    /// Returns why the request never passes, if it is over the limit and has no retry time.
    pub fn never(&self) -> Option<Never> {
        if !self.over() || self.retry_after_ms().is_some() {
            return None;
        }
        let Check { limit, ask, caller, .. } = &self.asked.check;
        let fits = ask.taken() <= self.capacity();
        let most = Caller::default();
        Some(match caller.max_wait_ms {
            _ if limit.is_balance() => Never::Spent,
            _ if self.capacity() == 0 => Never::LetsNothingPass,
            0 if fits && limit.max_delay_ms(most) > 0 => Never::NoDelay,
            _ if fits && limit.max_delay_ms(most) > limit.max_delay_ms(*caller) => Never::Timeout,
            _ => Never::TooMany,
        })
    }

    /// Returns the most hits that the limit admits at one moment: of a budget, with those beyond its number, if its
    /// counter was asked.
    pub fn capacity(&self) -> u64 {
        self.asked.check.limit.capacity_with(self.own().map_or(0, |own| own.extra))
    }

    /// Returns the combined verdict of the limit and its penalty, if a counter was asked.
    pub fn verdict(&self) -> Option<Verdict> {
        self.check_verdict().map(CheckVerdict::together)
    }

    /// Returns the hits that the request takes from the limit: a stream may hold what its budget has learned, and not
    /// what it asks for.
    pub fn taken(&self) -> u64 {
        let hits = self.asked.check.ask.taken();
        let held = self.own().filter(|_| hits > 0).and_then(|own| own.held);
        held.map_or(hits, |held| held.hits)
    }

    /// Returns the verdict of the limit alone, if a counter was asked.
    pub fn own(&self) -> Option<Verdict> {
        self.check_verdict().map(|verdict| verdict.own)
    }

    /// Returns whether the answer is an earlier denial that was reused without asking the store.
    pub fn is_known_denial(&self) -> bool {
        self.check_verdict().is_some_and(|verdict| verdict.is_known)
    }

    /// Returns the hits that instances hold in leases; `None` if the counter was not asked for them.
    pub fn leased(&self) -> Option<u32> {
        Some(self.check_verdict()?.lease?.out)
    }

    /// Returns the share of the instance that decided, if it has one.
    pub fn own_share(&self) -> Option<ShareLeft> {
        self.check_verdict()?.share
    }

    /// Returns the most hits that other instances may have admitted by their shares; `None` if the limit has no shares.
    pub fn other_shares(&self) -> Option<u64> {
        self.asked.check.other_shares(self.own_share().map_or(0, |share| share.capacity))
    }

    /// Returns how much longer a ban lasts, if there is one.
    pub fn banned_ms(&self) -> Option<u64> {
        self.check_verdict()?.banned_ms()
    }

    /// Returns when a ban began and when it ends, on the store's clock; `None` if there is no ban, or if the answer is
    /// older than the question.
    pub fn ban(&self) -> Option<(Time, Time)> {
        let Answer::Store(verdict) = &self.answer else { return None };
        let until = Time(verdict.at_ms).plus(verdict.banned_ms().filter(|_| verdict.at_ms > 0 && !verdict.is_known)?);
        let [_, _, ban_ms, _] = self.asked.check.penalized()?.penalty.figures();
        Some((Time(until.0.saturating_sub(ban_ms)), until))
    }

    /// Returns the adjustment that lets the request pass this limit.
    pub fn passed_by(&self) -> Option<&Adjustment> {
        let recorded = self.asked.check.recorded.as_ref().map(|recorded| recorded.occasion);
        let is_exempt = self.answer == Answer::Exempt || matches!(recorded, Some(Occasion::Exempt { .. }));
        self.asked.adjusted.passage.filter(|_| is_exempt)
    }

    /// Returns the adjustment that blocks the request.
    pub fn blocked_by(&self) -> Option<&Adjustment> {
        self.asked.adjusted.passage.filter(|_| self.answer == Answer::Blocked)
    }

    fn check_verdict(&self) -> Option<&CheckVerdict> {
        match &self.answer {
            Answer::Store(verdict) | Answer::Known(verdict) | Answer::Local(verdict) => Some(verdict),
            Answer::Blocked => Some(&BLOCKED),
            Answer::Skipped
            | Answer::FailedOpen
            | Answer::FailedClosed { .. }
            | Answer::NotRefunded
            | Answer::Exempt => None,
        }
    }
}

/// Returns the time until all limits of a descriptor with this role allow it; `None` if unknown.
fn wait_ms(limits: &[Limited<'_>], role: Role) -> Option<u64> {
    let mut longest = 0;
    for limited in limits.iter().filter(|limited| limited.over() && limited.role() == role) {
        longest = longest.max(limited.known_retry_after_ms()?);
    }
    Some(longest)
}
/// The verdict of a limit that an adjustment blocks. It has no retry time.
static BLOCKED: CheckVerdict = CheckVerdict::new(Verdict::NOTHING, 0);

/// Returns the limit of a descriptor to report: of the exceeded limits, the one with the longest retry time; if none is
/// exceeded, the one with the least remaining. Limits with unknown values come last. Limits that deny the request come
/// before those in shadow mode.
pub fn most_pressing<'l, 'a>(limits: &'l [Limited<'a>]) -> Option<&'l Limited<'a>> {
    // A limit that never allows the request counts as the longest.
    let wait = |limited: &Limited<'_>| limited.retry_after_ms().unwrap_or(u64::MAX);
    let over = limits.iter().filter(|limited| limited.over()).max_by_key(|limited| wait(limited));
    let denying = limits.iter().filter(|limited| limited.shown_over()).max_by_key(|limited| wait(limited));
    denying.or(over).or_else(|| limits.iter().min_by_key(|limited| least_first(limited)))
}

/// Returns a sort key that orders limits by their remaining hits, the least first and unknown values last.
pub fn least_first(limited: &Limited<'_>) -> (bool, Option<u64>) {
    let remaining = limited.remaining();
    (remaining.is_none(), remaining)
}
