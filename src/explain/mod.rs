//! Why a request is limited, or is not: level by level what its descriptors match, the nearest miss where they match
//! nothing, the limits that apply and where each part of them comes from, their counters, and what a request would get.
//!
//! One type tells all of it, as JSON and as text. It is made in two steps: what rules say needs no store and no time
//! ([`Explanation::new`]); what counters say comes by a peek ([`Explanation::answered`]). Nothing is counted.

mod by_counters;
mod by_rules;
mod parts;
mod text;

use std::iter;

use serde::{Deserialize, Serialize};

use self::by_rules::OfPlan;
use crate::adjustment::InForce;
use crate::algorithm::Ask;
use crate::decision::Decision;
use crate::descriptor::{Descriptor, Entry, Override, Request};
use crate::plan::{Asked, MAX_WORK, Names, Plan, PlanOptions, Undecided, Unknown};
use crate::rules::{Budget, MatchedBy, Miss, Missed, Place, Rules};

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
    /// Why it is denied whatever the counters say.
    #[serde(skip)]
    denied_anyway: Option<String>,
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
    /// The request brings its limit along, and the rules are not looked at.
    BroughtAlong,
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
    /// What is changed about it for a while, each in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adjustments: Vec<String>,
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
    /// One more hit of each descriptor would be over the limit, or banned.
    pub used_up: bool,
    /// Where it is used up: when one more hit passes; `None` where nobody can say.
    pub next_after_ms: Option<u64>,
    /// Who says so: `store`, or what answers while the store is unavailable.
    pub decided_by: String,
}

/// The request that is explained: one hit of each descriptor, each of which may bring a limit along.
pub fn request(domain: &str, descriptors: Vec<Vec<Entry>>, limit: Option<Override>) -> Request {
    let descriptor = |entries| Descriptor { entries, ask: Ask::Take(1), limit };
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
    pub fn new(rules: &Rules, options: &PlanOptions, request: &Request, names: Names) -> Explanation {
        Explanation::adjusted((rules, None), options, request, names)
    }

    /// The same where adjustments are in force.
    pub fn adjusted(
        (rules, adjustments): (&Rules, Option<&InForce>),
        options: &PlanOptions,
        request: &Request,
        names: Names,
    ) -> Explanation {
        let plan = Plan::adjusted(options, (rules, adjustments), request, names);
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
            denied_anyway: by_rules::denied_anyway(&plan),
        };
        explanation.conclude_unasked(options, &plan);
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

    /// What is to be said where no limit is asked, or where the answer needs none; `plan` is that of the request.
    fn conclude_unasked(&mut self, options: &PlanOptions, plan: &Plan<'_>) {
        let adjustment = |asked: &Asked<'_>| asked.adjusted.passage.map(|adjustment| adjustment.id.to_string());
        let is_blocked = plan.blocked().next().is_some();
        let settled = plan.blocked().chain(plan.all()).find_map(adjustment).unwrap_or_default();
        let unknown = self.descriptors.iter().find_map(|descriptor| match descriptor.found {
            Found::UnknownDomain => Some(("UNKNOWN_DOMAIN", options.unknown_domain)),
            Found::UnknownDescriptor => Some(("UNKNOWN_DESCRIPTOR", options.unknown_descriptor)),
            Found::Limited | Found::BroughtAlong | Found::Unlimited | Found::Replaced => None,
        });
        let (answer, because) = match unknown {
            Some((setting, Unknown::Deny)) if options.shadow_mode => {
                (Verdict::Pass, format!("only SHADOW_MODE lets it pass, {setting} is deny"))
            }
            Some((setting, Unknown::Deny)) => (Verdict::Deny, format!("no rule is reached, and {setting} is deny")),
            _ if is_blocked && options.shadow_mode => {
                (Verdict::Pass, format!("only SHADOW_MODE lets it pass, the adjustment {settled} blocks it"))
            }
            _ if is_blocked => (Verdict::Deny, format!("the adjustment {settled} blocks it")),
            _ if self.asked().next().is_some() => return,
            Some((setting, Unknown::Pass)) => (Verdict::Pass, format!("no limit applies, and {setting} is pass")),
            None if settled.is_empty() => (Verdict::Pass, "its rules limit nothing".to_owned()),
            None => (Verdict::Pass, format!("the adjustment {settled} lets it pass")),
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
        let denied_anyway = self.denied_anyway.take();
        if self.answer == Verdict::Unknown {
            let unknown = || (Verdict::Unknown, reason.to_owned());
            (self.answer, self.because) = denied_anyway.map_or_else(unknown, |because| (Verdict::Deny, because));
        }
        self
    }

    /// Adds what the counters say to a peek, and for each limit when one more hit passes, as far as that is known.
    #[must_use]
    pub fn answered(mut self, decision: &Decision<'_>, next_after_ms: &[Option<u64>]) -> Explanation {
        let next_after_ms = next_after_ms.iter().copied().chain(iter::repeat(None));
        let limits = decision.limits.iter().zip(decision.rooms()).zip(next_after_ms);
        let limits = limits.filter(|((limited, _), _)| limited.is_asked());
        for (limit, ((limited, has_room), next_after_ms)) in self.asked().zip(limits) {
            match State::of(limited) {
                Some(state) => limit.state = Some(State { used_up: !has_room, next_after_ms, ..state }),
                None => limit.no_state = Some(by_counters::without_counter(limited)),
            }
        }
        if self.answer == Verdict::Unknown {
            (self.answer, self.because) = by_counters::conclude(decision);
        }
        self
    }

    /// Says that the call fails, because the store is unavailable and a limit wants it so.
    #[must_use]
    pub fn undecided(self, undecided: Undecided<'_>, error: &str) -> Explanation {
        let mut explanation = self.without_state(&format!("the store is unavailable: {error}"));
        let name = undecided.source.label();
        let because = format!("the store is unavailable, and failure_mode error of {name} fails the call");
        (explanation.answer, explanation.because) = (Verdict::Fail, because);
        explanation
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
