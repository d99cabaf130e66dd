//! Which counters a request touches, and what their failure modes answer. Pure: the limiter asks the store.

mod names;

use std::borrow::Borrow;
use std::time::Duration;

use crate::adjustment::{Applied, Effect, InForce, LimitName};
use crate::algorithm::{Algorithm, Ask, Caller, Limit, LimitErrors, Options};
use crate::decision::{Answer, Decision, Few, Limited, Status};
use crate::descriptor::{Descriptor, Override, Request, Role};
use crate::rules::{Allowance, Domain, FailureMode, LimitConfig, Rule, RuleLimit, Rules};
use crate::store::{
    self, Check, CheckVerdict, Key, Occasion, Origin, Partly, Penalized, Recorded, StoreError, Verdicts,
};

pub use names::{CounterKeys, Names};

/// The most work that one request may ask of the store, where a small counter is 1. Redis decides it in one go,
/// and this much takes Redis some milliseconds.
pub const MAX_WORK: u64 = 1_280;

/// What holds for every request.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// In front of every counter's name; without braces.
    pub key_prefix: String,
    /// Whose names counters have.
    pub counter_keys: CounterKeys,
    /// No request is denied; metrics and headers show those that would be.
    pub shadow_mode: bool,
    /// Every rule is in quota mode that is not in shadow mode, and so is a limit that a request brings along.
    pub quota_mode: bool,
    /// Among so many processes `local` decisions are divided.
    pub expected_replicas: u32,
    /// What a request gets whose domain the rules do not have.
    pub unknown_domain: Unknown,
    /// What one gets of whose descriptors one reaches no rule.
    pub unknown_descriptor: Unknown,
}

impl PlanOptions {
    /// What a denial means by a rule of this role.
    pub(crate) fn role(&self, role: Role) -> Role {
        if self.quota_mode && role == Role::Enforced { Role::Quota } else { role }
    }

    /// What the store is told of it.
    fn asked_role(&self, role: Role) -> Role {
        if self.shadow_mode { Role::Shadow } else { role }
    }
}

/// What a request gets that asks about something that the rules do not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// It passes, as far as that is concerned.
    #[default]
    Pass,
    /// It is denied, and charged to no limit but those that count denials.
    Deny,
}

impl Unknown {
    /// Both.
    pub const ALL: [Unknown; 2] = [Unknown::Pass, Unknown::Deny];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Unknown::Pass => "pass",
            Unknown::Deny => "deny",
        }
    }

    /// What a descriptor gets that is unknown. A refund always passes.
    fn status<'a>(self, descriptor: &Descriptor) -> Status<'a> {
        match self {
            Unknown::Deny if !descriptor.ask.is_refund() => Status::Unknown,
            Unknown::Deny | Unknown::Pass => Status::NoLimit,
        }
    }
}

/// What a request asks of the store, and why.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    options: &'a PlanOptions,
    names: Names,
    domain_found: bool,
    statuses: Few<Status<'a>>,
    adjustments: Option<&'a InForce>,
    asked: Vec<Asked<'a>>,
    /// What an adjustment answers in the store's place, mostly nothing.
    settled: Vec<Settled<'a>>,
    /// A refund was asked of a limit that takes none: by this descriptor.
    refused: Option<(usize, &'a RuleLimit)>,
}

/// What is asked of one limit, and why.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The question.
    pub check: Check,
    /// Where the limit comes from.
    pub source: Source<'a>,
    /// What a denial means by the rule; the check's own role is `Shadow` where no request is denied.
    pub role: Role,
    /// What it answers while the store is unavailable.
    pub failure_mode: FailureMode,
    /// What has been changed about it for a while.
    pub adjusted: Applied<'a>,
}

/// A limit that no store is asked about.
#[derive(Clone, Debug)]
struct Settled<'a> {
    /// Its place among all limits of the request.
    place: usize,
    asked: Asked<'a>,
    answer: Answer,
}

impl Borrow<Check> for Asked<'_> {
    fn borrow(&self) -> &Check {
        &self.check
    }
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// From the rules.
    Rule(&'a Rule, &'a RuleLimit),
    /// From the client, in this domain.
    Override(&'a Domain),
}

/// What a limit is called that a client brings along.
pub const OVERRIDE: &str = "(override)";

impl<'a> Source<'a> {
    /// The one name of the limit, in answers, metrics and logs: see [`RuleLimit::label`].
    pub fn label(self) -> &'a str {
        match self {
            Source::Rule(_, limit) => &limit.label,
            Source::Override(_) => OVERRIDE,
        }
    }

    /// The name that the rules give the limit; empty where it has none.
    pub fn name(self) -> &'a str {
        match self {
            Source::Rule(_, limit) => limit.name(),
            Source::Override(_) => "",
        }
    }

    /// The path of its rule.
    pub fn path(self) -> &'a str {
        match self {
            Source::Rule(rule, _) => &rule.path,
            Source::Override(_) => OVERRIDE,
        }
    }

    /// The domain's name.
    pub fn domain(self) -> &'a str {
        match self {
            Source::Rule(rule, _) => &rule.domain,
            Source::Override(domain) => &domain.name,
        }
    }
}

impl Asked<'_> {
    /// How much one hit counts.
    pub fn cost(&self) -> u32 {
        match self.source {
            Source::Rule(_, limit) => limit.config.cost,
            Source::Override(_) => 1,
        }
    }
}

/// A limit that the store could not decide is in failure mode `error`: which.
#[derive(Clone, Debug)]
pub struct Undecided<'a> {
    /// This one.
    pub source: Source<'a>,
    /// What the request has asked.
    pub asked: Vec<Asked<'a>>,
}

/// Who answers while the store is unavailable.
pub struct WithoutStore<'w, K, D> {
    /// What the store has decided nevertheless.
    pub partly: Option<&'w Partly>,
    /// Knows denials that still hold.
    pub known: K,
    /// Decides checks in this process.
    pub decide: D,
    /// After so long a request that fails closed may be asked again.
    pub retry_after_ms: u64,
}

impl<'a> Plan<'a> {
    /// Matches every descriptor. The names of counters are those of [`PlanOptions::counter_keys`] at this time.
    pub fn new(options: &'a PlanOptions, rules: &'a Rules, request: &'a Request, names: Names) -> Plan<'a> {
        Plan::adjusted(options, (rules, None), request, names)
    }

    /// The same where adjustments are in force.
    pub fn adjusted(
        options: &'a PlanOptions,
        (rules, adjustments): (&'a Rules, Option<&'a InForce>),
        request: &'a Request,
        names: Names,
    ) -> Plan<'a> {
        let mut plan = Plan {
            options,
            names,
            domain_found: false,
            statuses: Few::with_capacity(request.descriptors.len()),
            adjustments,
            asked: Vec::new(),
            settled: Vec::new(),
            refused: None,
        };
        let Some(domain) = rules.domain(&request.domain) else {
            let unknown = |descriptor| options.unknown_domain.status(descriptor);
            plan.statuses.extend(request.descriptors.iter().map(unknown));
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
        plan.asked.reserve_exact(matched.iter().flatten().count());
        for (index, (descriptor, rule)) in request.descriptors.iter().zip(&matched).enumerate() {
            let begin = plan.limits();
            match (descriptor.limit, rule) {
                (Some(limit), _) => plan.ask_override(request, index, domain, limit),
                (None, Some(rule)) => plan.ask_rule(request, index, rule, &matched),
                (None, None) => {}
            }
            plan.statuses.push(match rule {
                _ if plan.limits() > begin => Status::Limited(begin..plan.limits()),
                Some(rule) if is_unlimited(rule) => Status::Unlimited(rule),
                Some(_) => Status::NoLimit,
                None => options.unknown_descriptor.status(descriptor),
            });
        }
        let is_denied = plan.statuses.iter().any(Status::is_unknown) || plan.blocked().next().is_some();
        if is_denied && !options.shadow_mode {
            plan.charge_denial();
        }
        plan
    }

    /// How many limits the request meets.
    fn limits(&self) -> usize {
        self.asked.len() + self.settled.len()
    }

    /// The request is denied, whatever the limits say: only those that count denials are charged. The others are asked
    /// all the same, because refunds happen, and the answer tells what they say.
    fn charge_denial(&mut self) {
        for Asked { check, .. } in &mut self.asked {
            let hits = check.ask.taken();
            if let Some(recorded) = &mut check.recorded {
                recorded.occasion = match recorded.occasion {
                    Occasion::Decided if hits > 0 => Occasion::Denied { hits },
                    Occasion::Exempt { hits: exempt @ 1.. } => Occasion::Denied { hits: exempt.unsigned_abs() },
                    occasion => occasion,
                };
            }
            if hits > 0 && !check.limit.count_denied() {
                check.ask = Ask::Peek;
            }
        }
    }

    /// Asks every limit of a rule that no other limit replaces.
    fn ask_rule(&mut self, request: &'a Request, index: usize, rule: &'a Rule, matched: &[Option<&Rule>]) {
        for rule_limit in &rule.limits {
            let LimitConfig { allowance, failure_mode, cost, penalty, lease, durable, usage, give_back, .. } =
                &*rule_limit.config;
            let Allowance::Limited(limit) = *allowance else { continue };
            if is_replaced(rule_limit.name(), matched) {
                continue;
            }
            let descriptor = &request.descriptors[index];
            let name = LimitName { path: &rule.path, label: &rule_limit.label };
            let adjusted = self.applied(&request.domain, Some(name), descriptor);
            let limit = changed(&limit, adjusted);
            if descriptor.ask.is_refund() && !give_back {
                self.refused = self.refused.or(Some((index, rule_limit)));
            }
            let shared_pattern = |level| rule.shared_pattern(level);
            let (prefix, domain) = (&self.options.key_prefix, &request.domain);
            let own_key = || Key::new(prefix, domain, &descriptor.entries, shared_pattern, &limit, Origin::Rule);
            let of_window = |start_s| Key::of_window(prefix, domain, &descriptor.entries, shared_pattern, start_s);
            // The names of others have no place for a penalty, or for records, which lie in the same slot of a cluster.
            let window = self.names.window_in(rule, &limit).filter(|_| penalty.is_none() && usage.is_none());
            let (key, window) = names::name(window, own_key, of_window);
            let recorded = usage.map(|usage| Recorded {
                usage,
                tag: key.long_tag(domain, &descriptor.entries, shared_pattern, &limit),
                occasion: Occasion::default(),
            });
            let penalty = penalty.map(|penalty| Penalized { key: key.of_penalty(&penalty), penalty });
            let holder = if limit.algorithm().has_holders() { store::holder(&descriptor.entries) } else { 0 };
            let role = role_of(self.options.role(rule.role), adjusted);
            // What a rule may take in advance may be more than a changed limit lets pass.
            let lease = if adjusted.number.is_some() { lease.and_then(|lease| lease.within(&limit)) } else { *lease };
            let check = Check {
                penalty,
                caller: Caller { holder, window, ..Caller::default() },
                role: self.options.asked_role(role),
                descriptor: index,
                // Others count with us, and know of no lease.
                lease: lease.filter(|_| window.is_none()),
                durable: *durable,
                recorded,
                ..Check::new(key, limit, descriptor.ask.times(*cost))
            };
            let source = Source::Rule(rule, rule_limit);
            self.add(Asked { check, source, role, failure_mode: *failure_mode, adjusted });
        }
    }

    /// Asks the limit that a request brings along.
    fn ask_override(&mut self, request: &'a Request, index: usize, domain: &'a Domain, limit: Override) {
        // Any number in any unit is a limit.
        let Ok(limit) = brought_along(domain.defaults.algorithm, limit) else { return };
        let descriptor = &request.descriptors[index];
        let adjusted = self.applied(&request.domain, None, descriptor);
        let limit = changed(&limit, adjusted);
        let (prefix, name) = (&self.options.key_prefix, &request.domain);
        let own_key = || Key::new(prefix, name, &descriptor.entries, |_| None, &limit, Origin::Override);
        let of_window = |start_s| Key::of_window(prefix, name, &descriptor.entries, |_| None, start_s);
        let (key, window) = names::name(self.names.window(&limit), own_key, of_window);
        let caller = Caller { window, ..Caller::default() };
        let role = role_of(self.options.role(Role::Enforced), adjusted);
        let of_check = self.options.asked_role(role);
        let check = Check { role: of_check, descriptor: index, caller, ..Check::new(key, limit, descriptor.ask) };
        let failure_mode = domain.defaults.failure_mode;
        self.add(Asked { check, source: Source::Override(domain), role, failure_mode, adjusted });
    }

    /// What counts for a limit of this descriptor.
    fn applied(&self, domain: &str, limit: Option<LimitName<'_>>, descriptor: &Descriptor) -> Applied<'a> {
        let of = |adjustments: &'a InForce| adjustments.of(domain, limit, &descriptor.entries);
        self.adjustments.map(of).unwrap_or_default()
    }

    /// Adds a limit: to what the store is asked, unless an adjustment answers for it. A refund is no matter to one that
    /// denies. A reset is none to any, nor is the release of a slot, which may have been taken before.
    fn add(&mut self, mut asked: Asked<'a>) {
        let Check { ask, limit, .. } = &asked.check;
        let is_for_store = *ask == Ask::Reset || (ask.gives_back() && limit.algorithm().has_holders());
        let answer = match asked.adjusted.passage.map(|adjustment| adjustment.content.effect) {
            Some(Effect::Pass) if !is_for_store && asked.check.recorded.is_some() => {
                // It counts nothing, and what passes is recorded.
                let occasion = Occasion::Exempt { hits: ask.hits() };
                asked.check.recorded.iter_mut().for_each(|recorded| recorded.occasion = occasion);
                (asked.role, asked.check.role, asked.check.ask) = (Role::Shadow, Role::Shadow, Ask::Peek);
                return self.asked.push(asked);
            }
            Some(Effect::Pass) if !is_for_store => Answer::Exempt,
            Some(Effect::Block) if !is_for_store && !ask.gives_back() => {
                asked.check.limit = limit.closed();
                asked.role = Role::Enforced;
                asked.check.role = self.options.asked_role(Role::Enforced);
                Answer::Blocked
            }
            _ => return self.asked.push(asked),
        };
        let place = self.limits();
        self.settled.push(Settled { place, asked, answer });
    }

    /// The limits that an adjustment lets nothing pass.
    pub fn blocked(&self) -> impl Iterator<Item = &Asked<'a>> {
        self.settled.iter().filter(|settled| settled.answer == Answer::Blocked).map(|settled| &settled.asked)
    }

    /// Every limit of the request that applies, whoever answers for it.
    pub fn all(&self) -> impl Iterator<Item = &Asked<'a>> {
        self.asked.iter().chain(self.settled.iter().map(|settled| &settled.asked))
    }

    /// What to ask the store.
    pub fn asked(&self) -> &[Asked<'a>] {
        &self.asked
    }

    /// How much work that is.
    pub fn work(&self) -> u64 {
        self.asked.iter().map(|asked| asked.check.work()).sum()
    }

    /// The same plan of one who only wants to see: nothing is counted.
    #[must_use]
    pub fn peek(mut self) -> Plan<'a> {
        let settled = self.settled.iter_mut().map(|settled| &mut settled.asked);
        for Asked { check, .. } in self.asked.iter_mut().chain(settled) {
            (check.ask, check.recorded) = (Ask::Peek, None);
        }
        self
    }

    /// The same plan of one who never says when a stream ends: no slot is taken.
    #[must_use]
    pub fn without_holders(mut self) -> Plan<'a> {
        for Asked { check, .. } in self.asked.iter_mut().filter(|asked| asked.check.limit.algorithm().has_holders()) {
            check.ask = Ask::Peek;
        }
        self
    }

    /// The same plan of one who asks about these of the descriptors alone: of the others nothing is counted, and they
    /// deny nothing.
    #[must_use]
    pub fn only(mut self, is_asked: impl Fn(usize) -> bool) -> Plan<'a> {
        for Asked { check, role, .. } in self.asked.iter_mut().filter(|asked| !is_asked(asked.check.descriptor)) {
            (check.ask, check.recorded) = (Ask::Peek, None);
            (check.role, *role) = (Role::Shadow, Role::Shadow);
        }
        let others = self.statuses.iter_mut().enumerate().filter(|(descriptor, _)| !is_asked(*descriptor));
        others.filter(|(_, status)| status.is_unknown()).for_each(|(_, status)| *status = Status::NoLimit);
        self
    }

    /// The same plan where rules have other limits: what this makes of one.
    #[must_use]
    pub fn with_limits(mut self, other: impl Fn(&RuleLimit, &Limit) -> Limit) -> Plan<'a> {
        for Asked { check, source, .. } in &mut self.asked {
            if let Source::Rule(_, rule_limit) = *source {
                check.limit = other(rule_limit, &check.limit);
            }
        }
        self
    }

    /// Whether the answer may be to delay the request.
    pub fn may_delay(&self) -> bool {
        let takes = self.asked.iter().filter(|asked| asked.check.ask.taken() > 0);
        takes.into_iter().any(|Asked { check, .. }| check.limit.max_delay_ms(check.caller) > 0)
    }

    /// The same plan for a caller that waits no longer than this.
    #[must_use]
    pub fn within(mut self, max_wait: Duration) -> Plan<'a> {
        let max_wait_ms = u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX);
        for Asked { check, .. } in &mut self.asked {
            check.caller.max_wait_ms = max_wait_ms;
        }
        self
    }

    /// The rules have the domain.
    pub fn domain_found(&self) -> bool {
        self.domain_found
    }

    /// A descriptor that asks for a refund that its limit does not take.
    pub fn refused_refund(&self) -> Option<(usize, &'a RuleLimit)> {
        self.refused
    }

    /// What the store's verdicts, one for each check, mean.
    pub fn conclude(self, verdicts: &Verdicts) -> Decision<'a> {
        let answers = verdicts.iter().map(|verdict| verdict.map_or(Answer::Skipped, Answer::Store));
        self.decision(answers)
    }

    /// What the failure modes answer while the store is unavailable, or a part of it: what it has decided stands.
    ///
    /// The request is still one group: local decisions charge nothing if a limit that fails closed denies the request.
    /// No penalty counts meanwhile.
    ///
    /// # Errors
    /// Where a limit wants the call to fail.
    pub fn conclude_without_store(
        self,
        without: WithoutStore<
            '_,
            impl Fn(&Check) -> Option<CheckVerdict>,
            impl FnOnce(&[Check]) -> Result<Verdicts, StoreError>,
        >,
    ) -> Result<Decision<'a>, Undecided<'a>> {
        let WithoutStore { partly, known, decide, retry_after_ms } = without;
        let decided = |place: usize| partly.and_then(|partly| partly.decided.get(place).copied().flatten());
        let is_denied = partly.is_some_and(|partly| partly.denied);
        let mode = |Asked { check, failure_mode, .. }: &Asked<'_>| match failure_mode {
            // A limit that denies no request fails no call.
            FailureMode::Error if check.role == Role::Shadow => FailureMode::Open,
            // A refund always passes.
            FailureMode::Closed if check.ask.is_refund() => FailureMode::Open,
            mode => *mode,
        };
        let modes: Vec<FailureMode> = self.asked.iter().map(mode).collect();
        let fails = |(place, mode): (usize, &FailureMode)| *mode == FailureMode::Error && decided(place).is_none();
        if !is_denied && let Some(place) = modes.iter().enumerate().position(fails) {
            return Err(Undecided { source: self.asked[place].source, asked: self.asked });
        }
        let open = |check: &Check| if check.ask.is_refund() { Answer::NotRefunded } else { Answer::FailedOpen };
        let answer = |(place, (asked, mode)): (usize, (&Asked<'_>, &FailureMode))| {
            if let Some(verdict) = decided(place) {
                return Some(Answer::Store(verdict));
            }
            match (known(&asked.check), mode) {
                (Some(verdict), _) => Some(Answer::Known(verdict)),
                (None, FailureMode::Closed) => Some(Answer::FailedClosed { retry_after_ms }),
                (None, FailureMode::Local) => None,
                // Another limit denies the request.
                (None, FailureMode::Error) => Some(Answer::Skipped),
                (None, FailureMode::Open) => Some(open(&asked.check)),
            }
        };
        let mut answers: Vec<Option<Answer>> = self.asked.iter().zip(&modes).enumerate().map(answer).collect();
        // Where every limit fails open or closed, there is nothing to count.
        if answers.contains(&None) {
            let replicas = self.options.expected_replicas;
            let local = |(Asked { check, .. }, answer): (&Asked<'_>, &Option<Answer>)| {
                let check = Check { penalty: None, recorded: None, ..check.clone() };
                match answer {
                    None => Check { limit: check.limit.divided_by(replicas), ..check },
                    Some(Answer::FailedOpen | Answer::NotRefunded) => Check { ask: Ask::Peek, ..check },
                    Some(Answer::Store(verdict)) if verdict.allowed() => Check { ask: Ask::Peek, ..check },
                    Some(_) => Check { limit: check.limit.closed(), ask: Ask::Take(1), ..check },
                }
            };
            let checks: Vec<Check> = self.asked.iter().zip(&answers).map(local).collect();
            // Without room for its counter a limit cannot be decided here either.
            let verdicts = decide(&checks).unwrap_or_default();
            let mut verdicts = verdicts.into_iter();
            for (answer, asked) in answers.iter_mut().zip(&self.asked) {
                let verdict = verdicts.next().flatten();
                answer.get_or_insert(verdict.map_or(open(&asked.check), Answer::Local));
            }
        }
        Ok(self.decision(answers.into_iter().flatten()))
    }

    fn decision(self, answers: impl Iterator<Item = Answer>) -> Decision<'a> {
        let mut limits: Vec<_> =
            self.asked.into_iter().zip(answers).map(|(asked, answer)| Limited { asked, answer }).collect();
        // In ascending order, so that each finds those before it.
        for Settled { place, asked, answer } in self.settled {
            limits.insert(place.min(limits.len()), Limited { asked, answer });
        }
        Decision::new(self.domain_found, self.statuses, limits, self.options.shadow_mode)
    }
}

/// An override counts by the default algorithm of the rules; or by a sliding window, where it is more than a log keeps.
fn brought_along(algorithm: Algorithm, limit: Override) -> Result<Limit, LimitErrors> {
    let limit = |algorithm| Limit::new(algorithm, limit.number, limit.period, Options::default());
    limit(algorithm).or_else(|_| limit(Algorithm::SlidingWindow))
}

/// The limit with the number that an adjustment gives it.
fn changed(limit: &Limit, adjusted: Applied<'_>) -> Limit {
    adjusted.number.map_or(*limit, |adjustment| adjustment.content.effect.limit(limit))
}

/// What a denial means where an adjustment may say so.
fn role_of(role: Role, adjusted: Applied<'_>) -> Role {
    match adjusted.role.map(|adjustment| adjustment.content.effect) {
        Some(Effect::Enforce) => Role::Enforced,
        Some(Effect::Shadow) => Role::Shadow,
        _ => role,
    }
}

fn is_unlimited(rule: &Rule) -> bool {
    rule.limits.iter().any(|limit| limit.config.allowance == Allowance::Unlimited)
}

/// Another limit that applies to the request replaces the limits of this name.
fn is_replaced(name: &str, matched: &[Option<&Rule>]) -> bool {
    let mut limits = matched.iter().flatten().flat_map(|rule| &rule.limits);
    !name.is_empty() && limits.any(|limit| limit.config.replaces.iter().any(|replaced| replaced == name))
}
