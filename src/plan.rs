//! Which counters a request touches, and what their verdicts mean for it. Pure: the store is asked by someone else.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Limit, LimitErrors, Options, Verdict};
use crate::descriptor::{Hits, Override, Request, Role};
use crate::lease::Lease;
use crate::rules::{Allowance, Domain, FailureMode, Rule, RuleLimit, Rules};
use crate::store::group::Votes;
use crate::store::{self, Check, Key, Verdicts};

/// What holds for every request.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// In front of every counter's name.
    pub key_prefix: String,
    /// No request is denied; what would have been is counted and reported.
    pub shadow_mode: bool,
    /// Among so many processes `local` decisions are divided.
    pub expected_replicas: u32,
}

/// What a request asks of the store, and for what.
#[derive(Debug)]
pub struct Plan<'a> {
    options: &'a PlanOptions,
    domain_found: bool,
    statuses: Few<Status<'a>>,
    /// How many limits are asked.
    limits: usize,
    /// Of a limit that takes no give-backs, one was asked for: by this descriptor.
    refused: Option<(usize, &'a RuleLimit)>,
    /// What each check is asked for.
    reasons: Few<Reason<'a>>,
    checks: Vec<Check>,
}

/// A list of what is small and mostly one or two: it needs no allocation then.
type Few<T> = SmallVec<[T; 2]>;

/// Why a counter is asked.
#[derive(Clone, Copy, Debug)]
struct Reason<'a> {
    source: Source<'a>,
    role: Role,
    failure_mode: FailureMode,
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// From the rules.
    Rule(&'a Rule, &'a RuleLimit),
    /// From the client, in this domain.
    Override(&'a Domain),
}

impl<'a> Source<'a> {
    /// The name that the rules give the limit; empty where it has none.
    pub fn name(self) -> &'a str {
        match self {
            Source::Rule(_, limit) => &limit.config.name,
            Source::Override(_) => "",
        }
    }
}

/// The whole answer.
#[derive(Debug)]
pub struct Decision<'a> {
    /// The request is denied.
    pub over_limit: bool,
    /// It would be denied, but nothing is in shadow mode.
    pub spared: bool,
    /// The rules know the domain.
    pub domain_found: bool,
    /// One for each descriptor, in its order.
    pub statuses: Few<Status<'a>>,
    /// What every limit says, in the order of the descriptors.
    pub limits: Vec<Limited<'a>>,
    /// How long the request is to be held before it passes; zero where it is denied.
    pub delay: Duration,
}

/// What takes back the hits of a request that was admitted and does not pass after all.
#[derive(Debug, Default)]
pub struct GiveBack {
    /// To be asked of the store.
    pub to_store: Vec<Check>,
    /// To be asked of this process's memory, which decided because the store could not.
    pub to_memory: Vec<Check>,
}

/// The answer to one descriptor.
#[derive(Debug)]
pub enum Status<'a> {
    /// No rule applies.
    NoLimit,
    /// A rule says that nothing is limited.
    Unlimited(&'a Rule),
    /// These of the limits have been asked; there is one at least.
    Limited(Range<usize>),
}

impl<'a> Decision<'a> {
    /// For each descriptor that is limited, what its limits say.
    pub fn limited(&self) -> impl Iterator<Item = &[Limited<'a>]> {
        self.statuses.iter().filter_map(|status| match status {
            Status::Limited(range) => Some(&self.limits[range.clone()]),
            Status::NoLimit | Status::Unlimited(_) => None,
        })
    }

    /// What gives back all that the request has taken, but of limits that count denials.
    pub fn give_back(&self, options: &PlanOptions) -> GiveBack {
        let mut give_back = GiveBack::default();
        for limited in self.limits.iter().filter(|limited| !limited.over() && !limited.limit.count_denied()) {
            let Limited { key, limit, hits, .. } = limited;
            let Some(hits) = u64::try_from(hits.get()).ok().filter(|hits| *hits > 0).and_then(Hits::give_back) else {
                continue;
            };
            let check = Check { key: key.clone(), limit: *limit, hits, role: Role::Shadow, descriptor: 0, lease: None };
            match limited.answer {
                Answer::Store(_) => give_back.to_store.push(check),
                Answer::Local(_) => {
                    give_back.to_memory.push(Check { limit: limit.divided_by(options.expected_replicas), ..check });
                }
                Answer::FailedOpen | Answer::FailedClosed => {}
            }
        }
        give_back
    }

    /// Denies a request that would have to be held and cannot. Its turn is when it would have been.
    pub fn refuse_to_hold(&mut self) {
        self.over_limit = true;
        self.delay = Duration::ZERO;
        for limited in self.limits.iter_mut().filter(|limited| limited.role != Role::Shadow) {
            if let Answer::Store(verdict) | Answer::Local(verdict) = &mut limited.answer
                && verdict.delay_ms > 0
            {
                let retry_after_ms = Some(verdict.delay_ms);
                *verdict = Verdict { allowed: false, remaining: 0, retry_after_ms, delay_ms: 0, ..*verdict };
            }
        }
    }
}

/// The one of a descriptor's limits to tell of: of those that are over, the one that takes longest; or else the one with the
/// least remaining.
pub fn most_pressing<'l, 'a>(limits: &'l [Limited<'a>]) -> Option<&'l Limited<'a>> {
    // What can never pass takes longest.
    let wait = |limited: &Limited<'_>| limited.verdict().and_then(|verdict| verdict.retry_after_ms).unwrap_or(u64::MAX);
    let over = limits.iter().filter(|limited| limited.over()).max_by_key(|limited| wait(limited));
    over.or_else(|| limits.iter().min_by_key(|limited| limited.remaining()))
}

/// What one limit says.
#[derive(Clone, Debug)]
pub struct Limited<'a> {
    /// Its counter.
    pub key: Key,
    /// Where the limit comes from.
    pub source: Source<'a>,
    /// The limit.
    pub limit: Limit,
    /// What was asked of it, its cost included.
    pub hits: Hits,
    /// What a denial means.
    pub role: Role,
    /// Its answer, that of its penalty included.
    pub answer: Answer,
    /// How long a ban still lasts, where its penalty has brought one.
    pub banned_ms: Option<u64>,
}

/// Who answered for a limit, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The store.
    Store(Verdict),
    /// This process alone, because the store could not.
    Local(Verdict),
    /// Nobody could tell; the failure mode lets pass.
    FailedOpen,
    /// Nobody could tell; the failure mode denies.
    FailedClosed,
}

impl Answer {
    /// What a limit says under its penalty, and how long a ban still lasts.
    fn under(self, penalty: Answer) -> (Answer, Option<u64>) {
        let ban = |penalty: Verdict| penalty.retry_after_ms.filter(|_| !penalty.allowed);
        match (self, penalty) {
            (Answer::Store(own), Answer::Store(penalty)) => (Answer::Store(own.under(penalty)), ban(penalty)),
            (Answer::Local(own), Answer::Local(penalty)) => (Answer::Local(own.under(penalty)), ban(penalty)),
            (own, _) => (own, None),
        }
    }
}

impl Limited<'_> {
    /// The limit is exceeded, whatever that means for the request.
    pub fn over(&self) -> bool {
        match self.answer {
            Answer::Store(verdict) | Answer::Local(verdict) => !verdict.allowed,
            Answer::FailedOpen => false,
            Answer::FailedClosed => true,
        }
    }

    /// The limit is exceeded and not in shadow mode: the descriptor's status is `OVER_LIMIT`.
    pub fn shown_over(&self) -> bool {
        self.over() && self.role != Role::Shadow
    }

    /// How many more hits would pass. Where a limit is not enforced because it cannot be, as many as it allows.
    pub fn remaining(&self) -> u32 {
        match self.answer {
            Answer::Store(verdict) | Answer::Local(verdict) => verdict.remaining,
            Answer::FailedOpen => self.limit.capacity(),
            Answer::FailedClosed => 0,
        }
    }

    /// The counter's verdict, where one could be had.
    pub fn verdict(&self) -> Option<Verdict> {
        match self.answer {
            Answer::Store(verdict) | Answer::Local(verdict) => Some(verdict),
            Answer::FailedOpen | Answer::FailedClosed => None,
        }
    }
}

/// A limit that the store could not decide is in failure mode `error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undecided;

impl<'a> Plan<'a> {
    /// Matches every descriptor.
    pub fn new(options: &'a PlanOptions, rules: &'a Rules, request: &'a Request) -> Plan<'a> {
        let mut plan = Plan {
            options,
            domain_found: false,
            statuses: Few::with_capacity(request.descriptors.len()),
            limits: 0,
            refused: None,
            reasons: Few::new(),
            checks: Vec::new(),
        };
        let Some(domain) = rules.domain(&request.domain) else {
            plan.statuses.extend(request.descriptors.iter().map(|_| Status::NoLimit));
            return plan;
        };
        plan.domain_found = true;
        let matched: Few<Option<&Rule>> = request
            .descriptors
            .iter()
            .map(|descriptor| match descriptor.limit {
                Some(_) => None,
                None => rules.find(domain, &descriptor.entries),
            })
            .collect();
        // Most rules have one limit.
        let limits = matched.iter().flatten().count();
        plan.checks.reserve_exact(limits);
        plan.reasons.reserve_exact(limits);
        for (index, (descriptor, rule)) in request.descriptors.iter().zip(&matched).enumerate() {
            let begin = plan.limits;
            match (descriptor.limit, rule) {
                (Some(limit), _) => {
                    let limit = brought_along(domain.defaults.algorithm, limit);
                    let reason = Reason {
                        source: Source::Override(domain),
                        role: Role::Enforced,
                        failure_mode: domain.defaults.failure_mode,
                    };
                    // Any number in any such period is a limit.
                    if let Ok(limit) = limit {
                        plan.ask(request, index, (limit, None, None), descriptor.hits, reason);
                    }
                }
                (None, Some(rule)) => plan.ask_rule(request, index, rule, &matched),
                (None, None) => {}
            }
            plan.statuses.push(match rule {
                _ if plan.limits > begin => Status::Limited(begin..plan.limits),
                Some(rule) if is_unlimited(rule) => Status::Unlimited(rule),
                _ => Status::NoLimit,
            });
        }
        plan
    }

    /// Asks every limit of a rule that no other takes the place of.
    fn ask_rule(&mut self, request: &'a Request, index: usize, rule: &'a Rule, matched: &[Option<&Rule>]) {
        for rule_limit in &rule.limits {
            let config = &rule_limit.config;
            let Allowance::Limited(limit) = config.allowance else { continue };
            if is_replaced(&config.name, matched) {
                continue;
            }
            let hits = request.descriptors[index].hits.times(config.cost);
            if hits.get() < 0 && !config.give_back {
                self.refused = self.refused.or(Some((index, rule_limit)));
            }
            let source = Source::Rule(rule, rule_limit);
            self.ask(
                request,
                index,
                (limit, config.penalty, config.lease),
                hits,
                Reason { source, role: rule.role, failure_mode: config.failure_mode },
            );
        }
    }

    fn ask(
        &mut self,
        request: &'a Request,
        index: usize,
        (limit, penalty, lease): (Limit, Option<Limit>, Option<Lease>),
        hits: Hits,
        reason: Reason<'a>,
    ) {
        let shared_pattern = |level| match reason.source {
            Source::Rule(rule, _) => rule.shared_pattern(level),
            Source::Override(_) => None,
        };
        let entries = &request.descriptors[index].entries;
        let key = Key::new(&self.options.key_prefix, &request.domain, entries, shared_pattern, &limit);
        let role = if self.options.shadow_mode { Role::Shadow } else { reason.role };
        let limit = if limit.algorithm().has_holders() { limit.held_by(store::holder(entries)) } else { limit };
        self.limits += 1;
        // A give-back is neither denied nor banned; but a reset, which is one of all there can be, is a pardon.
        let penalty = penalty.filter(|_| hits.get() >= 0 || hits == Hits::RESET);
        let penalty = penalty.map(|limit| Check {
            key: key.of_penalty(&limit),
            limit,
            hits,
            role,
            descriptor: index,
            lease: None,
        });
        self.checks.push(Check { key, limit, hits, role, descriptor: index, lease });
        self.reasons.push(reason);
        if let Some(penalty) = penalty {
            self.checks.push(penalty);
            self.reasons.push(reason);
        }
    }

    /// The same for a caller who waits no longer than this for a turn.
    #[must_use]
    pub fn within(mut self, patience: Duration) -> Plan<'a> {
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        for check in &mut self.checks {
            check.limit = check.limit.within(patience_ms);
        }
        self
    }

    /// A descriptor that gives back what its limit does not take back.
    pub fn refused_give_back(&self) -> Option<(usize, &'a RuleLimit)> {
        self.refused
    }

    /// What to ask the store.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// What the store's verdicts, one for each check, mean.
    pub fn conclude(self, verdicts: &[Verdict]) -> Decision<'a> {
        let answers = verdicts.iter().map(|verdict| Answer::Store(*verdict));
        self.decision(answers)
    }

    /// What the failure modes answer where the store could not; `decide` decides checks in this process.
    ///
    /// The request is still one group: what is decided here is not charged if a limit that fails closed denies it.
    ///
    /// # Errors
    /// Where a limit wants the call to fail.
    pub fn conclude_without_store(self, decide: impl FnOnce(&[Check]) -> Verdicts) -> Result<Decision<'a>, Undecided> {
        let mode = |(reason, check): (&Reason<'_>, &Check)| match reason.failure_mode {
            // What denies nobody fails nobody's call.
            FailureMode::Error if check.role == Role::Shadow => FailureMode::Open,
            // A give-back always passes.
            FailureMode::Closed if check.hits.get() < 0 => FailureMode::Open,
            mode => mode,
        };
        let modes: Vec<FailureMode> = self.reasons.iter().zip(&self.checks).map(mode).collect();
        if modes.contains(&FailureMode::Error) {
            return Err(Undecided);
        }
        let local = |(check, mode): (&Check, &FailureMode)| match mode {
            // Nobody is punished for what the store could not decide.
            FailureMode::Closed if check.limit.is_penalty() => Check { hits: Hits::default(), ..check.clone() },
            FailureMode::Local => {
                Check { limit: check.limit.divided_by(self.options.expected_replicas), ..check.clone() }
            }
            FailureMode::Closed => Check { limit: check.limit.closed(), ..check.clone() },
            FailureMode::Open | FailureMode::Error => Check { hits: Hits::default(), ..check.clone() },
        };
        // Where every limit fails open or closed, there is nothing to count.
        let verdicts = if modes.contains(&FailureMode::Local) {
            decide(&self.checks.iter().zip(&modes).map(local).collect::<Vec<_>>())
        } else {
            Verdicts::new()
        };
        let mut verdicts = verdicts.into_iter();
        let answers: Vec<Answer> = modes
            .into_iter()
            .map(|mode| match (mode, verdicts.next()) {
                (FailureMode::Local, Some(verdict)) => Answer::Local(verdict),
                (FailureMode::Closed, _) => Answer::FailedClosed,
                _ => Answer::FailedOpen,
            })
            .collect();
        Ok(self.decision(answers.into_iter()))
    }

    fn decision(self, answers: impl Iterator<Item = Answer>) -> Decision<'a> {
        let mut votes = Votes::default();
        let asked = self.reasons.into_iter().zip(self.checks);
        let mut limits: Vec<Limited<'a>> = Vec::with_capacity(self.limits);
        for ((Reason { source, role, .. }, Check { key, limit, hits, descriptor, .. }), answer) in asked.zip(answers) {
            let limited = Limited { key, source, limit, hits, role, answer, banned_ms: None };
            match limits.last_mut() {
                Some(before) if limit.is_penalty() => {
                    (before.answer, before.banned_ms) = before.answer.under(answer);
                    votes.add(role, descriptor, hits, before.over());
                }
                _ => {
                    votes.add(role, descriptor, hits, limited.over());
                    limits.push(limited);
                }
            }
        }
        let spared = votes.deny() && self.options.shadow_mode;
        let over_limit = votes.deny() && !spared;
        // What denies nobody holds nobody either.
        let delays = limits.iter().filter(|limited| limited.role != Role::Shadow).filter_map(Limited::verdict);
        let delay_ms = match delays.map(|verdict| verdict.delay_ms).max() {
            Some(delay_ms) if !over_limit && !self.options.shadow_mode => delay_ms,
            _ => 0,
        };
        let delay = Duration::from_millis(delay_ms);
        Decision { over_limit, spared, domain_found: self.domain_found, statuses: self.statuses, limits, delay }
    }
}

/// A limit that the client brings along counts as the rules do by default; or in a sliding window, where it is more than a log keeps.
fn brought_along(algorithm: Algorithm, limit: Override) -> Result<Limit, LimitErrors> {
    let limit = |algorithm| Limit::new(algorithm, limit.number, limit.period, Options::default());
    limit(algorithm).or_else(|_| limit(Algorithm::SlidingWindow))
}

fn is_unlimited(rule: &Rule) -> bool {
    rule.limits.iter().any(|limit| limit.config.allowance == Allowance::Unlimited)
}

/// A limit that applies to the request takes the place of those of this name.
fn is_replaced(name: &String, matched: &[Option<&Rule>]) -> bool {
    let mut limits = matched.iter().flatten().flat_map(|rule| &rule.limits);
    !name.is_empty() && limits.any(|limit| limit.config.replaces.contains(name))
}
