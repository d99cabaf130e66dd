//! Plans: the counters that a request uses, and the answers of failure modes. Pure: the limiter asks the store.

mod names;

use std::time::Duration;

use crate::adjustment::{Applied, Effect, InForce, LimitName};
use crate::algorithm::{Algorithm, Ask, Bounds, Caller, Limit, LimitErrors, MAX_HITS, MAX_NUMBER, Options};
use crate::asked::{Asked, Source, Weighed};
use crate::check::{
    Check, CheckVerdict, Key, Occasion, Origin, Partly, Penalized, Recorded, StoreError, Verdicts, holder,
};
use crate::decision::{Answer, Decision, Few, Limited, Status};
use crate::descriptor::{Descriptor, Entry, Override, Request, Role};
use crate::rules::expect::{Expect, Missing};
use crate::rules::options::RuleOptions;
use crate::rules::{Allowance, Defaults, Domain, FailureMode, LimitConfig, Rule, RuleLimit, Rules};
use crate::share::{Shared, Split};

pub use names::{CounterKeys, Names};

/// The most work that one request may cause in the store; 1 is a decision on a small counter. Redis decides a request
/// in one step, which takes some milliseconds for this much work.
pub const MAX_WORK: u64 = 1_280;

/// Options that apply to every request.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Prefix of every counter's name, without braces.
    pub key_prefix: String,
    /// The naming scheme of counters.
    pub counter_keys: CounterKeys,
    /// Denies no request; metrics and headers show which would be denied.
    pub shadow_mode: bool,
    /// Puts all rules in quota mode, except those in shadow mode, and also limits that requests set.
    pub quota_mode: bool,
    /// Number of instances that share `local` decisions.
    pub expected_replicas: u32,
    /// The answer to a request with a domain that the rules do not have.
    pub unknown_domain: Unknown,
    /// The answer to a request with a descriptor that no rule matches.
    pub unknown_descriptor: Unknown,
}

impl PlanOptions {
    /// Returns the effect of a denial by a rule with this role.
    pub fn role(&self, role: Role) -> Role {
        if self.quota_mode && role == Role::Enforced { Role::Quota } else { role }
    }

    /// Returns what a denial by a limit does now, as pages and commands show it: for one key, which is a domain with
    /// the entries of a descriptor, or for those of its keys that it is enforced for.
    pub fn role_in_force(
        &self,
        (rule, limit): (&Rule, &RuleLimit),
        key: Option<(&str, &[Entry])>,
        adjusted: Applied<'_>,
    ) -> Role {
        let is_blocked = adjusted.passage.is_some_and(|adjustment| adjustment.content.effect == Effect::Block);
        let role = if is_blocked { Role::Enforced } else { self.role_of_limit(rule, &limit.config, key, adjusted) };
        self.asked_role(role)
    }

    /// Returns the effect of a denial by a limit, without the shadow mode of the whole service.
    fn role_of_limit(
        &self,
        rule: &Rule,
        limit: &LimitConfig,
        key: Option<(&str, &[Entry])>,
        adjusted: Applied<'_>,
    ) -> Role {
        let is_outside = limit.options.enforce.zip(key).is_some_and(|(share, key)| !share.has(rule, limit, key));
        role_of(if is_outside { Role::Shadow } else { self.role(rule.role) }, adjusted)
    }

    /// Returns the role to send to the store.
    fn asked_role(&self, role: Role) -> Role {
        if self.shadow_mode { Role::Shadow } else { role }
    }
}

/// The answer to a request with a domain or descriptor that the rules do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// It is not denied for this reason.
    #[default]
    Pass,
    /// It is denied, and charged only to limits that count denials.
    Deny,
}

impl Unknown {
    /// Both values.
    pub const ALL: [Unknown; 2] = [Unknown::Pass, Unknown::Deny];

    /// Returns the name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Unknown::Pass => "pass",
            Unknown::Deny => "deny",
        }
    }

    /// Returns the status of an unknown descriptor. A refund always passes.
    fn status<'a>(self, descriptor: &Descriptor) -> Status<'a> {
        match self {
            Unknown::Deny if !descriptor.ask.is_refund() => Status::Unknown,
            Unknown::Deny | Unknown::Pass => Status::NoLimit,
        }
    }
}

/// A request's questions to the store, with their context.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    options: &'a PlanOptions,
    names: Names,
    domain_found: bool,
    /// An expected entry that the request does not bring.
    missing: Option<Missing<'a>>,
    statuses: Few<Status<'a>>,
    adjustments: Option<&'a InForce>,
    asked: Vec<Asked<'a>>,
    /// Limits that an adjustment answers instead of the store; usually none.
    settled: Vec<Settled<'a>>,
    /// The descriptor that asked for a refund, and the limit that does not accept refunds.
    refused: Option<(usize, &'a RuleLimit)>,
}

/// A limit that the store is not asked about.
#[derive(Clone, Debug)]
struct Settled<'a> {
    /// Its position among all limits of the request.
    place: usize,
    asked: Asked<'a>,
    answer: Answer,
}

/// The error of a request with a limit in failure mode `error` that the store could not decide.
#[derive(Clone, Debug)]
pub struct Undecided<'a> {
    /// The limit.
    pub source: Source<'a>,
    /// The request's questions.
    pub asked: Vec<Asked<'a>>,
    /// Place of the limit's question.
    pub place: usize,
}

/// The sources of answers while the store is unavailable.
pub struct WithoutStore<'w, K, D> {
    /// The part that the store decided, if any.
    pub partly: Option<&'w Partly>,
    /// Returns earlier denials that still apply.
    pub known: K,
    /// Decides checks in this process.
    pub decide: D,
    /// Retry time for requests that fail closed.
    pub retry_after_ms: u64,
}

impl<'a> Plan<'a> {
    /// Plans a request: matches every descriptor. `names` is from [`PlanOptions::counter_keys`] at this time.
    pub fn new(options: &'a PlanOptions, rules: &'a Rules, request: &'a Request, names: Names) -> Plan<'a> {
        Plan::adjusted(options, (rules, None), request, names)
    }

    /// Plans a request with adjustments in force.
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
            missing: None,
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
        plan.missing = Expect::missing(domain, request);
        let matched: Few<Option<&Rule>> =
            request.descriptors.iter().map(|descriptor| rules.find_for(domain, descriptor)).collect();
        // Most rules have one limit.
        plan.asked.reserve_exact(matched.iter().flatten().count());
        for (index, (descriptor, rule)) in request.descriptors.iter().zip(&matched).enumerate() {
            let begin = plan.limits();
            match (descriptor.limit, rule) {
                (_, Some(rule)) => plan.ask_rule((request, domain), index, rule, &matched),
                (Some(limit), None) => plan.ask_override(request, index, domain, limit),
                (None, None) => {}
            }
            plan.statuses.push(match rule {
                _ if plan.limits() > begin => Status::Limited(begin..plan.limits()),
                Some(rule) if is_unlimited(rule) => Status::Unlimited(rule),
                Some(_) => Status::NoLimit,
                None => options.unknown_descriptor.status(descriptor),
            });
        }
        plan.hold_estimates();
        let is_denied = plan.statuses.iter().any(Status::is_unknown)
            || plan.missing.is_some_and(|missing| missing.denies())
            || plan.blocked().next().is_some();
        if is_denied && !options.shadow_mode {
            plan.charge_denial();
        }
        plan
    }

    /// Returns the number of limits that apply to the request.
    fn limits(&self) -> usize {
        self.asked.len() + self.settled.len()
    }

    /// Changes the plan of a request that is denied whatever its limits answer. Only limits that count denials are
    /// charged. The others are still asked, because refunds happen and the answer reports their state.
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

    /// Asks every limit of a rule that is not replaced by another limit.
    fn ask_rule(
        &mut self,
        (request, rules_domain): (&'a Request, &'a Domain),
        index: usize,
        rule: &'a Rule,
        matched: &[Option<&Rule>],
    ) {
        for rule_limit in &rule.limits {
            let LimitConfig { allowance, failure_mode, options, .. } = &*rule_limit.config;
            // Every option takes effect somewhere: mostly here, and those of the answer in `grpc`.
            let RuleOptions { cost, give_back, penalty, lease, own_share, durable, usage, number, weigh_by, .. } =
                options;
            let RuleOptions { enforce: _, denied_body: _, soft: _, quota_unit: _, notify: _, .. } = options;
            let Allowance::Limited(limit) = *allowance else { continue };
            if is_replaced(rule_limit.name(), matched) {
                continue;
            }
            let descriptor = &request.descriptors[index];
            let is_of_budget = limit.algorithm() == Algorithm::Budget;
            let (entries, ask) = (&*rule.counted(&descriptor.entries), descriptor.ask);
            let ask = if rule.settles(&descriptor.entries) { settle(ask) } else { ask };
            let price = weigh_by.as_ref().map(|weights| weights.price(rule.split(&descriptor.entries).1));
            let weighed = price.map(|price| Weighed { price, cost: price.of(ask.settled().unwrap_or(ask.taken())) });
            let ask = weighed.map_or(ask.times(*cost), |weighed| weighed.ask(ask));
            let name = LimitName { path: &rule.path, label: &rule_limit.label };
            let adjusted = self.applied(&request.domain, Some(name), entries);
            let brought = number.zip(descriptor.limit).map(|(number, brought)| number.limit(&limit, brought));
            let limit = changed(&brought.unwrap_or(limit), adjusted);
            if descriptor.ask.is_refund() && (is_of_budget || !give_back) {
                self.refused = self.refused.or(Some((index, rule_limit)));
            }
            let shared_pattern = |level| rule.shared_pattern(level);
            let (prefix, domain, origin) = (&self.options.key_prefix, &request.domain, rule_limit.config.origin());
            let own_key = || Key::new(prefix, domain, entries, shared_pattern, &limit, origin);
            let of_window = |start_s| Key::of_window(prefix, domain, entries, shared_pattern, start_s);
            // Names of envoyproxy/ratelimit have no form for a penalty, or for usage pages, which must be in the same
            // cluster slot.
            let window = self.names.window_in(rule, &limit).filter(|_| penalty.is_none() && usage.is_none());
            let (key, window) = names::name(window, own_key, of_window);
            let recorded = usage.map(|usage| Recorded {
                usage,
                tag: key.long_tag(domain, entries, shared_pattern, &limit),
                occasion: Occasion::default(),
            });
            let penalty = penalty.map(|penalty| Penalized { key: key.of_penalty(&penalty), penalty });
            let holder = if limit.algorithm().has_holders() { holder(entries) } else { 0 };
            let of_key = Some((&*request.domain, entries));
            let role = self.options.role_of_limit(rule, &rule_limit.config, of_key, adjusted);
            // A changed limit may allow fewer hits than the rule's lease takes.
            let is_changed = brought.is_some() || adjusted.number.is_some();
            let lease = if is_changed { lease.and_then(|lease| lease.within(&limit)) } else { *lease };
            let split = own_share.map(|share| Split::new(share.hundredths(), self.options.expected_replicas));
            // Counters shared with envoyproxy/ratelimit have no shares, because it asks for all of the limit.
            let shared = Shared { split: split.filter(|_| window.is_none()), is_changed, ..rules_domain.shares.shared };
            let check = Check {
                penalty,
                caller: Caller { holder, window, ..Caller::default() },
                role: self.options.asked_role(role),
                descriptor: index,
                // Counters shared with envoyproxy/ratelimit have no lease, because it knows nothing of leases.
                lease: lease.filter(|_| window.is_none()),
                shared,
                durable: *durable,
                recorded,
                ..Check::new(key, limit, ask)
            };
            let source = Source::Rule(rule, rule_limit);
            let (failure_mode, weighed) = (*failure_mode, weighed.map(Box::new));
            self.add(Asked { check, source, role, failure_mode, adjusted, is_part: false, weighed });
        }
    }

    /// Asks the limit that a request sets.
    fn ask_override(&mut self, request: &'a Request, index: usize, domain: &'a Domain, limit: Override) {
        // Cannot fail: any number in any unit is a valid limit.
        let Ok(limit) = brought_along(&domain.defaults, limit) else { return };
        let descriptor = &request.descriptors[index];
        let adjusted = self.applied(&request.domain, None, &descriptor.entries);
        let limit = changed(&limit, adjusted);
        let (prefix, name) = (&self.options.key_prefix, &request.domain);
        let own_key = || Key::new(prefix, name, &descriptor.entries, |_| None, &limit, Origin::Override);
        let of_window = |start_s| Key::of_window(prefix, name, &descriptor.entries, |_| None, start_s);
        let (key, window) = names::name(self.names.window(&limit), own_key, of_window);
        let caller = Caller { window, ..Caller::default() };
        let role = role_of(self.options.role(Role::Enforced), adjusted);
        let of_check = self.options.asked_role(role);
        let shared = domain.shares.shared;
        let check =
            Check { role: of_check, descriptor: index, caller, shared, ..Check::new(key, limit, descriptor.ask) };
        let failure_mode = domain.defaults.failure_mode;
        self.add(Asked {
            check,
            source: Source::Override(domain),
            role,
            failure_mode,
            adjusted,
            is_part: false,
            weighed: None,
        });
    }

    /// Returns the adjustments that apply to a limit of this descriptor.
    fn applied(&self, domain: &str, limit: Option<LimitName<'_>>, entries: &[Entry]) -> Applied<'a> {
        let of = |adjustments: &'a InForce| adjustments.of(domain, limit, entries);
        self.adjustments.map(of).unwrap_or_default()
    }

    /// Adds a limit, to be answered by an adjustment or else by the store. A blocking adjustment does not affect
    /// refunds. No adjustment affects a reset, or the release of a slot, which may have been taken before the
    /// adjustment.
    fn add(&mut self, mut asked: Asked<'a>) {
        let settles = asked.check.ask.settled().is_some();
        if self.join_streams(&mut asked) {
            asked.join();
        }
        if settles {
            // A settle tells what has happened, so nothing denies it. An instance that decides alone must know of it.
            if asked.failure_mode != FailureMode::Local {
                asked.failure_mode = FailureMode::Open;
            }
            return self.asked.push(asked);
        }
        let Check { ask, limit, .. } = &asked.check;
        let is_for_store = *ask == Ask::Reset || (ask.returns_hits() && limit.algorithm().has_holders());
        let answer = match asked.adjusted.passage.map(|adjustment| adjustment.content.effect) {
            Some(Effect::Pass) if !is_for_store && asked.check.recorded.is_some() => {
                // The limit counts nothing, but the request is recorded.
                let hits = match limit.algorithm() {
                    // A stream is one, however many parts tell of it.
                    Algorithm::Budget => i64::from(!self.asked.iter().any(|other| {
                        other.check.key == asked.check.key && other.check.caller.holder == asked.check.caller.holder
                    })),
                    _ => ask.hits(),
                };
                let occasion = Occasion::Exempt { hits };
                asked.check.recorded.iter_mut().for_each(|recorded| recorded.occasion = occasion);
                (asked.role, asked.check.role, asked.check.ask) = (Role::Shadow, Role::Shadow, Ask::Peek);
                return self.asked.push(asked);
            }
            Some(Effect::Pass) if !is_for_store => Answer::Exempt,
            Some(Effect::Block) if !is_for_store && !ask.returns_hits() => {
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

    /// Adds what a stream holds or settles to the same of an earlier descriptor, which asks for both: Envoy tells the
    /// parts of a stream's cost by several descriptors of one call, in any order, and the first must not settle alone.
    /// Returns whether there is an earlier one.
    fn join_streams(&mut self, Asked { check, weighed, .. }: &mut Asked<'a>) -> bool {
        if check.limit.algorithm() != Algorithm::Budget {
            return false;
        }
        let is_same = |other: &Check| other.key == check.key && other.caller.holder == check.caller.holder;
        for Asked { check: other, weighed: of_other, .. } in &mut self.asked {
            let sum = |a: u64, b: u64| a.saturating_add(b).min(MAX_HITS);
            other.ask = match (other.ask, check.ask) {
                (Ask::Take(a), Ask::Take(b)) if is_same(other) => Ask::Take(sum(a, b)),
                (Ask::Settle(a), Ask::Settle(b)) if is_same(other) => Ask::Settle(sum(a, b)),
                _ => continue,
            };
            if let (Some(sum), Some(part)) = (of_other, weighed) {
                // Rounded up once, after the sum.
                sum.cost = sum.cost.and(part.cost);
                other.ask = sum.ask(other.ask);
            }
            if check.ask.settled().is_some() {
                // No ban denies a settle.
                check.penalty = None;
            }
            check.ask = Ask::Peek;
            return true;
        }
        false
    }

    /// Bounds the estimates that streams bring, and lets those that bring none hold that of the rule, or of another
    /// budget for the same descriptor, or one hit: a stream that held nothing would pass however little is left.
    fn hold_estimates(&mut self) {
        let is_budget = |check: &Check| check.limit.algorithm() == Algorithm::Budget;
        for place in 0..self.asked.len() {
            let Asked { check, source, is_part, weighed, .. } = &self.asked[place];
            let brought = check.ask.taken();
            // An adjustment lets the request pass without it.
            let is_exempt =
                check.recorded.as_ref().is_some_and(|recorded| matches!(recorded.occasion, Occasion::Exempt { .. }));
            if !is_budget(check) || *is_part || is_exempt || (brought == 0 && check.ask != Ask::Peek) {
                continue;
            }
            let is_same = |other: &Check| other.key == check.key && other.caller.holder == check.caller.holder;
            let same = || self.asked.iter().filter(|other| is_same(&other.check));
            if brought == 0 && same().any(|other| other.check.ask.taken() > 0) {
                self.asked[place].join();
                continue;
            }
            let options = check.limit.options();
            let cost = match source {
                Source::Rule(_, limit) => u64::from(limit.config.options.cost),
                Source::Override(_) => 1,
            };
            let times = |hits: u64| hits.saturating_mul(cost).min(MAX_NUMBER);
            let least = times(options.min_estimate.unwrap_or(1));
            let most = options.max_estimate.map_or(MAX_NUMBER, times);
            let is_sound = |most: u64| brought <= most.saturating_mul(cost);
            let is_brought = brought > 0 && options.max_estimate.is_none_or(is_sound);
            let is_beside = |other: &Check| other.descriptor == check.descriptor && is_budget(other);
            let beside = || self.asked.iter().filter(|other| is_beside(&other.check));
            // Of the prices of all parts, the highest: any of them may be the one that brings no estimate.
            let price =
                weighed.as_ref().and_then(|_| same().filter_map(|part| Some(part.weighed.as_ref()?.price)).max());
            let of_other = |other: &Asked<'_>| {
                let estimate = other.check.limit.options().estimate?;
                match (price, &other.weighed) {
                    // Units, at their price.
                    (Some(price), None) => Some(price.of(estimate).hits()),
                    (None, Some(_)) => None,
                    (Some(_), Some(_)) | (None, None) => Some(estimate),
                }
            };
            let of_others = || beside().filter_map(of_other).max();
            let of_rule = || times(options.estimate.or_else(of_others).unwrap_or(1));
            let hits = if is_brought { brought } else { of_rule().min(most) }.max(least);
            let learns = !is_brought && options.learn_estimate == Some(true);
            let check = &mut self.asked[place].check;
            check.ask = Ask::Take(hits.min(MAX_HITS));
            check.caller.learned = learns.then_some(Bounds { least, most });
        }
    }

    /// Returns the limits that an adjustment blocks.
    pub fn blocked(&self) -> impl Iterator<Item = &Asked<'a>> {
        self.settled.iter().filter(|settled| settled.answer == Answer::Blocked).map(|settled| &settled.asked)
    }

    /// Returns all limits that apply to the request, including those answered by adjustments.
    pub fn all(&self) -> impl Iterator<Item = &Asked<'a>> {
        self.asked.iter().chain(self.settled.iter().map(|settled| &settled.asked))
    }

    /// Returns the questions to the store.
    pub fn asked(&self) -> &[Asked<'a>] {
        &self.asked
    }

    /// Returns the questions to the store without the plan.
    pub fn into_asked(self) -> Vec<Asked<'a>> {
        self.asked
    }

    /// Returns the work that the questions take.
    pub fn work(&self) -> u64 {
        self.asked.iter().map(|asked| asked.check.work()).sum()
    }

    /// Turns the plan into a peek that counts nothing.
    #[must_use]
    pub fn peek(mut self) -> Plan<'a> {
        let settled = self.settled.iter_mut().map(|settled| &mut settled.asked);
        for Asked { check, .. } in self.asked.iter_mut().chain(settled) {
            (check.ask, check.recorded) = (Ask::Peek, None);
        }
        self
    }

    /// Changes the plan for a caller that never reports the end of a stream, so it takes no slots and holds nothing.
    #[must_use]
    pub fn without_holders(mut self) -> Plan<'a> {
        for Asked { check, .. } in self.asked.iter_mut().filter(|asked| asked.check.limit.algorithm().has_holders()) {
            check.ask = Ask::Peek;
        }
        self
    }

    /// Replaces the limits by the result of `other`.
    #[must_use]
    pub fn with_limits(mut self, other: impl Fn(Source<'a>, &Limit) -> Limit) -> Plan<'a> {
        for Asked { check, source, .. } in &mut self.asked {
            check.limit = other(*source, &check.limit);
        }
        self
    }

    /// Replaces what the checks of the limits know of shares by the result of `other`.
    #[must_use]
    pub fn with_shared(mut self, other: impl Fn(Source<'a>, Shared) -> Shared) -> Plan<'a> {
        for Asked { check, source, .. } in &mut self.asked {
            check.shared = other(*source, check.shared);
        }
        self
    }

    /// Returns whether the answer may be a delay.
    pub fn may_delay(&self) -> bool {
        let takes = self.asked.iter().filter(|asked| asked.check.ask.taken() > 0);
        takes.into_iter().any(|Asked { check, .. }| check.limit.max_delay_ms(check.caller) > 0)
    }

    /// Changes the plan for a caller that waits at most `max_wait`.
    #[must_use]
    pub fn within(mut self, max_wait: Duration) -> Plan<'a> {
        let max_wait_ms = u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX);
        for Asked { check, .. } in &mut self.asked {
            check.caller.max_wait_ms = max_wait_ms;
        }
        self
    }

    /// Returns whether the rules have the domain.
    pub fn domain_found(&self) -> bool {
        self.domain_found
    }

    /// Returns an expected entry that the request does not bring.
    pub fn missing(&self) -> Option<Missing<'a>> {
        self.missing
    }

    /// Returns a descriptor that asks for a refund from a limit that does not accept refunds, and the limit.
    pub fn refused_refund(&self) -> Option<(usize, &'a RuleLimit)> {
        self.refused
    }

    /// Concludes from the store's verdicts, one for each check.
    pub fn conclude(self, verdicts: &Verdicts) -> Decision<'a> {
        let answers = verdicts.iter().map(|verdict| verdict.map_or(Answer::Skipped, Answer::Store));
        self.decision(answers)
    }

    /// Concludes from the failure modes while the store, or a part of it, is unavailable. Verdicts that the store
    /// reached remain.
    ///
    /// The request is still one group: if a limit that fails closed denies it, local decisions charge nothing.
    /// Penalties are not applied.
    ///
    /// # Errors
    /// Fails if a limit requires the call to fail.
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
            // A limit that cannot deny the request cannot fail it either.
            FailureMode::Error if check.role == Role::Shadow => FailureMode::Open,
            // A refund or settle always passes.
            FailureMode::Closed if check.ask.is_report() => FailureMode::Open,
            mode => *mode,
        };
        let modes: Vec<FailureMode> = self.asked.iter().map(mode).collect();
        let fails = |(place, mode): (usize, &FailureMode)| *mode == FailureMode::Error && decided(place).is_none();
        if !is_denied && let Some(place) = modes.iter().enumerate().position(fails) {
            return Err(Undecided { source: self.asked[place].source, asked: self.asked, place });
        }
        let open = |check: &Check| if check.ask.is_report() { Answer::NotRefunded } else { Answer::FailedOpen };
        let answer = |(place, (asked, mode)): (usize, (&Asked<'_>, &FailureMode))| {
            if let Some(verdict) = decided(place) {
                return Some(Answer::Store(verdict));
            }
            match (known(&asked.check), mode) {
                (Some(verdict), _) => Some(Answer::Known(verdict)),
                (None, FailureMode::Closed) => Some(Answer::FailedClosed { retry_after_ms }),
                (None, FailureMode::Local) => None,
                // The request is denied by another limit.
                (None, FailureMode::Error) => Some(Answer::Skipped),
                (None, FailureMode::Open) => Some(open(&asked.check)),
            }
        };
        let mut answers: Vec<Option<Answer>> = self.asked.iter().zip(&modes).enumerate().map(answer).collect();
        // If all limits fail open or closed, nothing is counted locally.
        if answers.contains(&None) {
            let replicas = self.options.expected_replicas;
            let local = |(Asked { check, .. }, answer): (&Asked<'_>, &Option<Answer>)| {
                let check = Check { penalty: None, recorded: None, ..check.clone() };
                match answer {
                    None => Check { limit: check.local_limit(replicas), ..check },
                    Some(Answer::FailedOpen | Answer::NotRefunded) => Check { ask: Ask::Peek, ..check },
                    Some(Answer::Store(verdict)) if verdict.allowed() => Check { ask: Ask::Peek, ..check },
                    Some(_) => Check { limit: check.limit.closed(), ask: Ask::Take(1), ..check },
                }
            };
            let checks: Vec<Check> = self.asked.iter().zip(&answers).map(local).collect();
            // A limit without memory for its counter is not decided locally either.
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
        // In ascending order, so each position is valid when it is inserted.
        for Settled { place, asked, answer } in self.settled {
            limits.insert(place.min(limits.len()), Limited { asked, answer });
        }
        let shadow_mode = self.options.shadow_mode;
        Decision::new((self.domain_found, self.missing), self.statuses, limits, shadow_mode)
    }
}

/// Returns what a descriptor that settles asks of a budget.
fn settle(ask: Ask) -> Ask {
    match ask {
        Ask::Take(_) | Ask::Peek => Ask::Settle(ask.taken()),
        other => other,
    }
}

/// Returns the limit that a request sets. It uses the defaults of its domain, but a sliding window if the number is too
/// large for a log.
fn brought_along(defaults: &Defaults, limit: Override) -> Result<Limit, LimitErrors> {
    let limit = |algorithm| {
        let (count_denied, time_zone) = (defaults.count_denied(algorithm), defaults.time_zone(algorithm, limit.period));
        let options = Options { count_denied, time_zone, ..Options::default() };
        Limit::new(algorithm, limit.number.into(), limit.period, options)
    };
    limit(defaults.algorithm).or_else(|_| limit(Algorithm::SlidingWindow))
}

/// Returns the limit with an adjustment's number.
fn changed(limit: &Limit, adjusted: Applied<'_>) -> Limit {
    adjusted.number.map_or(*limit, |adjustment| adjustment.content.effect.limit(limit))
}

/// Returns the effect of a denial, which an adjustment may change.
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

/// Returns whether another limit that applies to the request replaces limits with this name.
fn is_replaced(name: &str, matched: &[Option<&Rule>]) -> bool {
    let mut limits = matched.iter().flatten().flat_map(|rule| &rule.limits);
    !name.is_empty() && limits.any(|limit| limit.config.replaces.iter().any(|replaced| replaced == name))
}
