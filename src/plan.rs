//! Which counters a request touches, and what their verdicts mean for it. Pure: the store is asked by someone else.

use crate::algorithm::{Limit, Options, Verdict};
use crate::descriptor::{Descriptor, Hits, Request, Role};
use crate::rules::{Allowance, Domain, FailureMode, Rule, Rules};
use crate::store::{self, Check, Key};

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
    steps: Vec<Step<'a>>,
    checks: Vec<Check>,
}

/// One descriptor. The steps that are `Limited` have the checks, in the same order.
#[derive(Debug)]
enum Step<'a> {
    NoLimit,
    Unlimited(&'a Rule),
    Limited { source: Source<'a>, limit: Limit, hits: Hits, role: Role, failure_mode: FailureMode },
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// From the rules.
    Rule(&'a Rule),
    /// From the client, in a domain of this name.
    Override(&'a str),
}

impl<'a> Source<'a> {
    /// The name that the rule gives its limit; empty where it has none.
    pub fn name(self) -> &'a str {
        match self {
            Source::Rule(rule) => &rule.config.name,
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
    pub statuses: Vec<Status<'a>>,
}

/// The answer to one descriptor.
#[derive(Debug)]
pub enum Status<'a> {
    /// No rule applies.
    NoLimit,
    /// A rule says that nothing is limited.
    Unlimited(&'a Rule),
    /// A limit has been asked.
    Limited(Limited<'a>),
}

/// What one limit says.
#[derive(Clone, Copy, Debug)]
pub struct Limited<'a> {
    /// Where the limit comes from.
    pub source: Source<'a>,
    /// The limit.
    pub limit: Limit,
    /// What was asked of it.
    pub hits: Hits,
    /// What a denial means.
    pub role: Role,
    /// Its answer.
    pub answer: Answer,
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
        let mut plan = Plan { options, domain_found: false, steps: Vec::new(), checks: Vec::new() };
        let Some(domain) = rules.domain(&request.domain) else {
            plan.steps.extend(request.descriptors.iter().map(|_| Step::NoLimit));
            return plan;
        };
        plan.domain_found = true;
        let matched: Vec<Option<&Rule>> = request
            .descriptors
            .iter()
            .map(|descriptor| match descriptor.limit {
                Some(_) => None,
                None => rules.find(domain, &descriptor.entries),
            })
            .collect();
        for (descriptor, rule) in request.descriptors.iter().zip(&matched) {
            let step = match (descriptor.limit.is_some(), rule) {
                (true, _) => overriding(domain, &request.domain, descriptor),
                (false, Some(rule)) if !is_replaced(rule, &matched) => by_rule(rule, descriptor),
                (false, _) => Step::NoLimit,
            };
            if let Step::Limited { source, limit, hits, role, .. } = step {
                let shared_pattern = |level| match source {
                    Source::Rule(rule) => rule.shared_pattern(level),
                    Source::Override(_) => None,
                };
                let key = Key::new(&options.key_prefix, &request.domain, &descriptor.entries, shared_pattern, &limit);
                let role = if options.shadow_mode { Role::Shadow } else { role };
                let limit = limit.held_by(store::holder(&descriptor.entries));
                plan.checks.push(Check { key, limit, hits, role });
            }
            plan.steps.push(step);
        }
        plan
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
    pub fn conclude_without_store(
        self,
        decide: impl FnOnce(&[Check]) -> Vec<Verdict>,
    ) -> Result<Decision<'a>, Undecided> {
        let modes: Vec<FailureMode> = self
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Limited { failure_mode, .. } => Some(*failure_mode),
                Step::NoLimit | Step::Unlimited(_) => None,
            })
            .zip(&self.checks)
            .map(|(mode, check)| match mode {
                // What denies nobody fails nobody's call.
                FailureMode::Error if check.role == Role::Shadow => FailureMode::Open,
                // A give-back always passes.
                FailureMode::Closed if check.hits.get() < 0 => FailureMode::Open,
                mode => mode,
            })
            .collect();
        if modes.contains(&FailureMode::Error) {
            return Err(Undecided);
        }
        let local: Vec<Check> = self
            .checks
            .iter()
            .zip(&modes)
            .filter_map(|(check, mode)| {
                let limit = match mode {
                    FailureMode::Local => check.limit.divided_by(self.options.expected_replicas),
                    FailureMode::Closed => check.limit.closed(),
                    FailureMode::Open | FailureMode::Error => return None,
                };
                Some(Check { limit, ..check.clone() })
            })
            .collect();
        // Nothing to count where every limit fails open or closed.
        let mut local = if modes.contains(&FailureMode::Local) { decide(&local) } else { Vec::new() }.into_iter();
        let answers: Vec<Answer> = modes
            .into_iter()
            .map(|mode| {
                let verdict = if mode == FailureMode::Open { None } else { local.next() };
                match (mode, verdict) {
                    (FailureMode::Local, Some(verdict)) => Answer::Local(verdict),
                    (FailureMode::Closed, _) => Answer::FailedClosed,
                    _ => Answer::FailedOpen,
                }
            })
            .collect();
        Ok(self.decision(answers.into_iter()))
    }

    fn decision(self, mut answers: impl Iterator<Item = Answer>) -> Decision<'a> {
        let (mut refused, mut quotas, mut quotas_over) = (false, 0, 0);
        let statuses: Vec<Status<'a>> = self
            .steps
            .into_iter()
            .filter_map(|step| match step {
                Step::NoLimit => Some(Status::NoLimit),
                Step::Unlimited(rule) => Some(Status::Unlimited(rule)),
                Step::Limited { source, limit, hits, role, .. } => {
                    let limited = Limited { source, limit, hits, role, answer: answers.next()? };
                    match role {
                        Role::Enforced => refused |= limited.over(),
                        // Giving back needs no quota.
                        Role::Quota if hits.get() >= 0 => {
                            quotas += 1;
                            quotas_over += u32::from(limited.over());
                        }
                        Role::Quota => {}
                        Role::Shadow => {}
                    }
                    Some(Status::Limited(limited))
                }
            })
            .collect();
        let over = refused || (quotas > 0 && quotas_over == quotas);
        let spared = over && self.options.shadow_mode;
        Decision { over_limit: over && !spared, spared, domain_found: self.domain_found, statuses }
    }
}

fn by_rule<'a>(rule: &'a Rule, descriptor: &Descriptor) -> Step<'a> {
    match rule.config.allowance {
        Allowance::Unlimited => Step::Unlimited(rule),
        Allowance::Limited(limit) => Step::Limited {
            source: Source::Rule(rule),
            limit,
            hits: descriptor.hits,
            role: rule.config.role,
            failure_mode: rule.config.failure_mode,
        },
    }
}

fn overriding<'a>(domain: &Domain, name: &'a str, descriptor: &Descriptor) -> Step<'a> {
    let limit = descriptor.limit.and_then(|limit| {
        Limit::new(domain.defaults.algorithm, limit.number, limit.unit.duration(), Options::default()).ok()
    });
    match limit {
        Some(limit) => Step::Limited {
            source: Source::Override(name),
            limit,
            hits: descriptor.hits,
            role: Role::Enforced,
            failure_mode: domain.defaults.failure_mode,
        },
        None => Step::NoLimit,
    }
}

/// Another rule that applies to the request takes this one's place. An unlimited rule cannot be replaced.
fn is_replaced(rule: &Rule, matched: &[Option<&Rule>]) -> bool {
    let name = &rule.config.name;
    !name.is_empty()
        && matches!(rule.config.allowance, Allowance::Limited(_))
        && matched.iter().flatten().any(|other| other.config.replaces.contains(name))
}
