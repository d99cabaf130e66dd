//! Which counters a request touches, and what their failure modes answer. Pure: the limiter asks the store.

mod names;

use std::borrow::Borrow;
use std::time::Duration;

use crate::algorithm::{Algorithm, Ask, Caller, Limit, LimitErrors, Options};
use crate::decision::{Answer, Decision, Few, Limited, Status};
use crate::descriptor::{Descriptor, Override, Request, Role};
use crate::rules::{Allowance, Domain, FailureMode, LimitConfig, Rule, RuleLimit, Rules};
use crate::store::{self, Check, CheckVerdict, Key, Origin, Partly, Penalized, StoreError, Verdicts};

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
    fn role(&self, role: Role) -> Role {
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
    asked: Vec<Asked<'a>>,
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
        let statuses = Few::with_capacity(request.descriptors.len());
        let mut plan = Plan { options, names, domain_found: false, statuses, asked: Vec::new(), refused: None };
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
            let begin = plan.asked.len();
            match (descriptor.limit, rule) {
                (Some(limit), _) => plan.ask_override(request, index, domain, limit),
                (None, Some(rule)) => plan.ask_rule(request, index, rule, &matched),
                (None, None) => {}
            }
            plan.statuses.push(match rule {
                _ if plan.asked.len() > begin => Status::Limited(begin..plan.asked.len()),
                Some(rule) if is_unlimited(rule) => Status::Unlimited(rule),
                Some(_) => Status::NoLimit,
                None => options.unknown_descriptor.status(descriptor),
            });
        }
        if !options.shadow_mode && plan.statuses.iter().any(Status::is_unknown) {
            plan.charge_denial();
        }
        plan
    }

    /// The request is denied, whatever the limits say: only those that count denials are charged. The others are asked
    /// all the same, because refunds happen, and the answer tells what they say.
    fn charge_denial(&mut self) {
        for Asked { check, .. } in &mut self.asked {
            if check.ask.taken() > 0 && !check.limit.count_denied() {
                check.ask = Ask::Peek;
            }
        }
    }

    /// Asks every limit of a rule that no other limit replaces.
    fn ask_rule(&mut self, request: &'a Request, index: usize, rule: &'a Rule, matched: &[Option<&Rule>]) {
        for rule_limit in &rule.limits {
            let LimitConfig { allowance, failure_mode, cost, penalty, lease, durable, give_back, .. } =
                &*rule_limit.config;
            let Allowance::Limited(limit) = *allowance else { continue };
            if is_replaced(rule_limit.name(), matched) {
                continue;
            }
            let descriptor = &request.descriptors[index];
            if descriptor.ask.is_refund() && !give_back {
                self.refused = self.refused.or(Some((index, rule_limit)));
            }
            let shared_pattern = |level| rule.shared_pattern(level);
            let (prefix, domain) = (&self.options.key_prefix, &request.domain);
            let own_key = || Key::new(prefix, domain, &descriptor.entries, shared_pattern, &limit, Origin::Rule);
            let of_window = |start_s| Key::of_window(prefix, domain, &descriptor.entries, shared_pattern, start_s);
            // The names of others have no place for a penalty, whose counter lies in the same slot of a cluster.
            let window = self.names.window_in(rule, &limit).filter(|_| penalty.is_none());
            let (key, window) = names::name(window, own_key, of_window);
            let penalty = penalty.map(|penalty| Penalized { key: key.of_penalty(&penalty), penalty });
            let holder = if limit.algorithm().has_holders() { store::holder(&descriptor.entries) } else { 0 };
            let role = self.options.role(rule.role);
            let check = Check {
                penalty,
                caller: Caller { holder, window, ..Caller::default() },
                role: self.options.asked_role(role),
                descriptor: index,
                // Others count with us, and know of no lease.
                lease: lease.filter(|_| window.is_none()),
                durable: *durable,
                ..Check::new(key, limit, descriptor.ask.times(*cost))
            };
            let source = Source::Rule(rule, rule_limit);
            self.asked.push(Asked { check, source, role, failure_mode: *failure_mode });
        }
    }

    /// Asks the limit that a request brings along.
    fn ask_override(&mut self, request: &'a Request, index: usize, domain: &'a Domain, limit: Override) {
        // Any number in any unit is a limit.
        let Ok(limit) = brought_along(domain.defaults.algorithm, limit) else { return };
        let descriptor = &request.descriptors[index];
        let (prefix, name) = (&self.options.key_prefix, &request.domain);
        let own_key = || Key::new(prefix, name, &descriptor.entries, |_| None, &limit, Origin::Override);
        let of_window = |start_s| Key::of_window(prefix, name, &descriptor.entries, |_| None, start_s);
        let (key, window) = names::name(self.names.window(&limit), own_key, of_window);
        let caller = Caller { window, ..Caller::default() };
        let role = self.options.role(Role::Enforced);
        let of_check = self.options.asked_role(role);
        let check = Check { role: of_check, descriptor: index, caller, ..Check::new(key, limit, descriptor.ask) };
        let failure_mode = domain.defaults.failure_mode;
        self.asked.push(Asked { check, source: Source::Override(domain), role, failure_mode });
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
        for Asked { check, .. } in &mut self.asked {
            check.ask = Ask::Peek;
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
                let check = Check { penalty: None, ..check.clone() };
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
        let limits = self.asked.into_iter().zip(answers).map(|(asked, answer)| Limited { asked, answer }).collect();
        Decision::new(self.domain_found, self.statuses, limits, self.options.shadow_mode)
    }
}

/// An override counts by the default algorithm of the rules; or by a sliding window, where it is more than a log keeps.
fn brought_along(algorithm: Algorithm, limit: Override) -> Result<Limit, LimitErrors> {
    let limit = |algorithm| Limit::new(algorithm, limit.number, limit.period, Options::default());
    limit(algorithm).or_else(|_| limit(Algorithm::SlidingWindow))
}

fn is_unlimited(rule: &Rule) -> bool {
    rule.limits.iter().any(|limit| limit.config.allowance == Allowance::Unlimited)
}

/// Another limit that applies to the request replaces the limits of this name.
fn is_replaced(name: &str, matched: &[Option<&Rule>]) -> bool {
    let mut limits = matched.iter().flatten().flat_map(|rule| &rule.limits);
    !name.is_empty() && limits.any(|limit| limit.config.replaces.iter().any(|replaced| replaced == name))
}
