//! Why a request is limited, or is not: level by level what its descriptors match, the nearest miss where they match
//! nothing, the limits that apply and where each part of them comes from, their counters, and what a request would get.
//!
//! One type tells all of it, as JSON and as text. It is made in two steps: what rules say needs no store and no time
//! ([`Explanation::new`]); what counters say comes by a peek ([`Explanation::answered`]). Nothing is counted.

mod parts;
mod text;

use serde::{Deserialize, Serialize};

use crate::algorithm::Ask;
use crate::decision::{Answer, Decision, Limited};
use crate::descriptor::{Descriptor, Entry, Request, Role};
use crate::plan::{Asked, MAX_WORK, Plan, PlanOptions, Source, Undecided, Unknown};
use crate::rules::{Allowance, Budget, MatchedBy, Miss, Missed, Place, Rule, RuleLimit, Rules};
use crate::store::group::Votes;

pub use parts::{From, Part};

/// All that there is to say of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// What the request calls its domain.
    pub domain: String,
    /// Where the rules name it; `None` where they do not.
    pub at: Option<At>,
    /// In the order of the request.
    pub descriptors: Vec<Explained>,
    /// What a request of one hit would get.
    pub answer: Verdict,
    /// Why.
    pub because: String,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// The file, as the settings name it.
    pub file: String,
    /// The line, from 1 on.
    pub line: Option<u32>,
}

/// What a request would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It passes.
    Pass,
    /// It is denied.
    Deny,
    /// The call fails.
    Fail,
    /// That depends on counters which could not be read.
    Unknown,
}

/// What there is to say of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// What it asks about: `key=value`.
    pub entries: Vec<String>,
    /// What the entries match, from the top level on, as far as they do.
    pub matched: Vec<Matched>,
    /// What that comes to.
    pub found: Found,
    /// The path of the rule that it reaches.
    pub rule: Option<String>,
    /// Where it reaches none: by what it misses one, the likeliest first.
    pub missed: Vec<MissedBy>,
    /// Of the rule it reaches.
    pub limits: Vec<ExplainedLimit>,
}

/// What the rules say of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Limits apply.
    Limited,
    /// A rule says that nothing is limited.
    Unlimited,
    /// Limits of other descriptors stand in for all of its own.
    Replaced,
    /// There is no such domain.
    UnknownDomain,
    /// No rule is reached.
    UnknownDescriptor,
}

/// An entry that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matched {
    /// `key=value`.
    pub entry: String,
    /// What it matches, as the file has it.
    pub node: String,
    /// Why.
    pub by: MatchedBy,
    /// Where that stands.
    pub at: Option<At>,
}

/// By what a rule is missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedBy {
    /// What is wrong.
    pub what: Missed,
    /// The same in words, and what would be right.
    pub words: String,
    /// Where the rule stands that is missed.
    pub at: Option<At>,
}

/// A limit of the rule that a descriptor reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedLimit {
    /// What it is called everywhere: in metrics, headers, logs and answers.
    pub name: String,
    /// Where it stands.
    pub at: Option<At>,
    /// What a denial means for the request.
    pub role: RoleName,
    /// What it says, and where each part comes from.
    pub parts: Vec<Part>,
    /// The limit that stands in for it: then it is not asked.
    pub replaced_by: Option<String>,
    /// The name of its counter; `None` where it has none, or is not asked.
    pub counter: Option<String>,
    /// The name of the counter of its penalty.
    pub penalty_counter: Option<String>,
    /// What the counter says.
    pub state: Option<State>,
    /// Why nobody knows what it says.
    pub no_state: Option<String>,
}

/// What a denial means, by the name that rules have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleName {
    /// The request is denied.
    Enforced,
    /// The request is denied where all limits of this role deny it.
    QuotaMode,
    /// Nothing.
    ShadowMode,
}

/// What a counter says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// So many hits can pass at one moment.
    pub capacity: u32,
    /// So many more would pass now.
    pub remaining: u32,
    /// From then on it is as fresh.
    pub reset_after_ms: u64,
    /// How long a ban still lasts.
    pub banned_ms: Option<u64>,
    /// One more hit is over the limit, or banned.
    pub over: bool,
    /// Who says so: `store`, or what answers while the store is unavailable.
    pub decided_by: String,
}

/// The request that is explained: one hit of each descriptor.
pub fn request(domain: &str, descriptors: Vec<Vec<Entry>>) -> Request {
    let descriptor = |entries| Descriptor { entries, ask: Ask::Take(1), limit: None };
    Request { domain: domain.to_owned(), descriptors: descriptors.into_iter().map(descriptor).collect() }
}

/// By what the descriptors of a request miss a rule, in short: one for each, `None` where it reaches one. It takes so
/// little time that it can be told beside an answer.
pub fn missed(rules: &Rules, request: &Request) -> Vec<Option<String>> {
    let mut budget = Budget::new(Budget::REQUEST);
    let domain = rules.domain(&request.domain);
    let nearest = |descriptor: &Descriptor| {
        let miss = match domain {
            None => rules.missed_domain(&request.domain, &mut budget),
            Some(domain) => rules.trace(domain, &descriptor.entries, &mut budget).misses.into_iter().next()?,
        };
        let miss = MissedBy::new(rules, miss);
        Some(miss.to_string())
    };
    request.descriptors.iter().map(nearest).collect()
}

impl Explanation {
    /// What the rules say of a request, which its plan asks.
    pub fn new(rules: &Rules, options: &PlanOptions, request: &Request) -> Explanation {
        let plan = Plan::new(options, rules, request);
        let mut budget = Budget::new(Budget::PERSON);
        let descriptors = request.descriptors.iter().enumerate().map(|(index, descriptor)| {
            let of_plan = OfPlan { rules, request, plan: &plan, index };
            of_plan.explain(descriptor, &mut budget)
        });
        let descriptors = descriptors.collect();
        let mut explanation = Explanation {
            domain: request.domain.clone(),
            at: rules.domain(&request.domain).and_then(|domain| At::of(rules, domain.place)),
            descriptors,
            answer: Verdict::Unknown,
            because: "the counters have not been read".to_owned(),
        };
        explanation.conclude_unasked(options);
        if plan.work() > MAX_WORK {
            let because = "the limits keep too much to be asked all at once: the call is invalid";
            explanation = explanation.without_state(because);
            (explanation.answer, explanation.because) = (Verdict::Fail, because.to_owned());
        }
        explanation
    }

    /// A rule applies to one of the descriptors at least.
    pub fn applies(&self) -> bool {
        let is_unknown = |found| matches!(found, Found::UnknownDomain | Found::UnknownDescriptor);
        self.descriptors.iter().any(|descriptor| !is_unknown(descriptor.found))
    }

    /// It tells of counters, which can be read.
    pub fn reads(&self) -> bool {
        let mut limits = self.descriptors.iter().flat_map(|descriptor| &descriptor.limits);
        self.answer != Verdict::Fail && limits.any(|limit| limit.counter.is_some())
    }

    /// What is to be said where no limit is asked, or where the answer needs none.
    fn conclude_unasked(&mut self, options: &PlanOptions) {
        let unknown = self.descriptors.iter().find_map(|descriptor| match descriptor.found {
            Found::UnknownDomain => Some(("UNKNOWN_DOMAIN", options.unknown_domain)),
            Found::UnknownDescriptor => Some(("UNKNOWN_DESCRIPTOR", options.unknown_descriptor)),
            Found::Limited | Found::Unlimited | Found::Replaced => None,
        });
        let (answer, because) = match unknown {
            Some((setting, Unknown::Deny)) if options.shadow_mode => {
                (Verdict::Pass, format!("only SHADOW_MODE lets it pass, {setting} is deny"))
            }
            Some((setting, Unknown::Deny)) => (Verdict::Deny, format!("no rule is reached, and {setting} is deny")),
            _ if self.asked().next().is_some() => return,
            Some((setting, Unknown::Pass)) => (Verdict::Pass, format!("no limit applies, and {setting} is pass")),
            None => (Verdict::Pass, "its rules limit nothing".to_owned()),
        };
        (self.answer, self.because) = (answer, because);
    }

    /// The limits that are asked, in the order of the plan.
    fn asked(&mut self) -> impl Iterator<Item = &mut ExplainedLimit> {
        self.descriptors
            .iter_mut()
            .flat_map(|descriptor| &mut descriptor.limits)
            .filter(|limit| limit.counter.is_some())
    }

    /// Says of each counter why nobody knows what it says.
    #[must_use]
    pub fn without_state(mut self, reason: &str) -> Explanation {
        self.asked().for_each(|limit| limit.no_state = Some(reason.to_owned()));
        if self.answer == Verdict::Unknown {
            self.because = reason.to_owned();
        }
        self
    }

    /// Adds what the counters say to a peek.
    #[must_use]
    pub fn answered(mut self, decision: &Decision<'_>) -> Explanation {
        for (limit, limited) in self.asked().zip(&decision.limits) {
            match State::of(limited) {
                Some(state) => limit.state = Some(state),
                None => limit.no_state = Some(without_counter(limited)),
            }
        }
        if self.answer == Verdict::Unknown {
            (self.answer, self.because) = conclude(decision);
        }
        self
    }

    /// Says that the call fails, because the store is unavailable and a limit wants it so.
    #[must_use]
    pub fn undecided(self, undecided: Undecided<'_>, error: &str) -> Explanation {
        let mut explanation = self.without_state(&format!("the store is unavailable: {error}"));
        if explanation.answer == Verdict::Unknown {
            let name = undecided.0.label();
            let because = format!("the store is unavailable, and failure_mode error of {name} fails the call");
            (explanation.answer, explanation.because) = (Verdict::Fail, because);
        }
        explanation
    }
}

/// A descriptor, and what a plan has made of it.
struct OfPlan<'p, 'a> {
    rules: &'a Rules,
    request: &'a Request,
    plan: &'p Plan<'a>,
    /// Its place in the request.
    index: usize,
}

impl OfPlan<'_, '_> {
    fn explain(&self, descriptor: &Descriptor, budget: &mut Budget) -> Explained {
        let entries: Vec<String> =
            descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        let Some(domain) = self.rules.domain(&self.request.domain) else {
            let miss = self.rules.missed_domain(&self.request.domain, budget);
            return Explained {
                entries,
                matched: Vec::new(),
                found: Found::UnknownDomain,
                rule: None,
                missed: vec![MissedBy::new(self.rules, miss)],
                limits: Vec::new(),
            };
        };
        let trace = self.rules.trace(domain, &descriptor.entries, budget);
        let steps = entries.iter().zip(trace.steps);
        let matched = steps.map(|(entry, step)| Matched {
            entry: entry.clone(),
            node: step.node,
            by: step.by,
            at: At::of(self.rules, step.place),
        });
        let limits = trace.rule.iter().flat_map(|rule| rule.limits.iter().map(|limit| self.limit(rule, limit)));
        let (matched, limits): (Vec<_>, Vec<_>) = (matched.collect(), limits.collect());
        let found = match trace.rule {
            None => Found::UnknownDescriptor,
            Some(_) if limits.iter().any(|limit| limit.counter.is_some()) => Found::Limited,
            Some(_) if limits.iter().all(|limit| limit.replaced_by.is_some()) => Found::Replaced,
            Some(_) => Found::Unlimited,
        };
        let missed = trace.misses.into_iter().map(|miss| MissedBy::new(self.rules, miss)).collect();
        let rule = trace.rule.map(|rule| rule.path.to_string());
        Explained { entries, matched, found, rule, missed, limits }
    }

    fn limit(&self, rule: &Rule, limit: &RuleLimit) -> ExplainedLimit {
        let is_it = |asked: &&Asked<'_>| {
            asked.check.descriptor == self.index
                && matches!(asked.source, Source::Rule(_, asked) if asked.id == limit.id)
        };
        let asked = self.plan.asked().iter().find(is_it);
        let is_limited = matches!(limit.config.allowance, Allowance::Limited(_));
        let replaced_by = if asked.is_none() && is_limited { self.replaced_by(limit) } else { None };
        ExplainedLimit {
            name: limit.label.to_string(),
            at: At::of(self.rules, Place { line: limit.config.line, ..rule.place }),
            role: match asked.map_or(rule.role, |asked| asked.role) {
                Role::Enforced => RoleName::Enforced,
                Role::Quota => RoleName::QuotaMode,
                Role::Shadow => RoleName::ShadowMode,
            },
            parts: parts::of(self.rules, rule, limit),
            replaced_by,
            counter: asked.map(|asked| asked.check.key.to_string()),
            penalty_counter: asked.and_then(|asked| Some(asked.check.penalty.as_ref()?.key.to_string())),
            state: None,
            no_state: None,
        }
    }

    /// The limit of the request that stands in for this one.
    fn replaced_by(&self, limit: &RuleLimit) -> Option<String> {
        let domain = self.rules.domain(&self.request.domain)?;
        let reached = self.request.descriptors.iter().filter_map(|one| self.rules.find(domain, &one.entries));
        let mut limits = reached.flat_map(|rule| &rule.limits);
        limits.find(|other| other.config.replaces.contains(&limit.config.name)).map(|other| other.label.to_string())
    }
}

impl At {
    fn of(rules: &Rules, place: Place) -> Option<At> {
        let origin = rules.origin(place)?;
        Some(At { file: origin.name.display().to_string(), line: place.line.map(u32::from) })
    }
}

impl MissedBy {
    fn new(rules: &Rules, Miss { what, words, place }: Miss) -> MissedBy {
        MissedBy { what, words, at: place.and_then(|place| At::of(rules, place)) }
    }
}

impl State {
    /// `None` where no counter has said it.
    fn of(limited: &Limited<'_>) -> Option<State> {
        let verdict = limited.verdict()?;
        Some(State {
            capacity: limited.asked.check.limit.capacity(),
            remaining: verdict.remaining,
            reset_after_ms: verdict.reset_after_ms,
            banned_ms: limited.banned_ms(),
            over: !limited.has_room(),
            decided_by: limited.answer.decided_by().name().to_owned(),
        })
    }
}

/// Why no counter has been asked.
fn without_counter(limited: &Limited<'_>) -> String {
    match limited.answer {
        Answer::FailedOpen => "the store is unavailable, and failure_mode open lets pass",
        Answer::FailedClosed { .. } => "the store is unavailable, and failure_mode closed denies",
        Answer::Skipped => "another limit is known to deny the request",
        Answer::Store(_) | Answer::Known(_) | Answer::Local(_) => "it is known",
    }
    .to_owned()
}

/// What a request of one hit would get, by what a peek has said.
fn conclude(decision: &Decision<'_>) -> (Verdict, String) {
    let full: Vec<&Limited<'_>> = decision.limits.iter().filter(|limited| !limited.has_room()).collect();
    let mut votes = Votes::default();
    for limited in &decision.limits {
        votes.add(limited.role(), &limited.asked.check, !limited.has_room());
    }
    let names = |role: Option<Role>| {
        let of_role = full.iter().filter(|limited| role.is_none_or(|role| limited.role() == role));
        of_role.map(|limited| limited.asked.source.label()).collect::<Vec<_>>().join(", ")
    };
    let enforced = names(Some(Role::Enforced));
    let unavailable = decision.is_without_store();
    match (votes.deny(), decision.next_passes()) {
        (true, false) if unavailable => {
            (Verdict::Deny, format!("the store is unavailable, and these deny it: {}", names(None)))
        }
        (true, false) if enforced.is_empty() => (Verdict::Deny, format!("all quotas are used up: {}", names(None))),
        (true, false) => (Verdict::Deny, format!("used up: {enforced}")),
        (true, true) => (Verdict::Pass, format!("only SHADOW_MODE lets it pass, used up: {}", names(None))),
        (false, _) if unavailable => {
            (Verdict::Pass, "the store is unavailable, and failure modes let it pass".to_owned())
        }
        (false, _) if full.is_empty() => (Verdict::Pass, "every limit has room".to_owned()),
        (false, _) => (Verdict::Pass, format!("what is used up denies no request by itself: {}", names(None))),
    }
}
