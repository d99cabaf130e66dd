//! Explanations of why a request is limited or not: the matches of its descriptors on each level, the nearest misses if
//! they match nothing, the limits that apply and the origin of each of their parts, their counters, and the answer that
//! a request would get.
//!
//! One type holds all of this, for JSON and text. It is created in two steps. The part from the rules needs no store
//! and no time ([`Explanation::new`]). The part from the counters comes from a peek ([`Explanation::answered`]).
//! Nothing is counted.

mod by_counters;
mod by_rules;
mod parts;
mod text;

use std::iter;

use serde::{Deserialize, Serialize};

use self::by_rules::OfPlan;
use crate::adjustment::InForce;
use crate::algorithm::lease_terms::Lease;
use crate::algorithm::{self as counted, Ask, Held, Limit};
use crate::asked::Asked;
use crate::check::ShareLeft;
use crate::decision::Decision;
use crate::descriptor::{Descriptor, Entry, Override, Request};
use crate::plan::{MAX_WORK, Names, Plan, PlanOptions, Undecided, Unknown};
use crate::rules::expect::Missing;
use crate::rules::{Budget, MatchedBy, Miss, Missed, Place, Rules};
use crate::usage::Time;

pub use parts::{From, Part};

/// The explanation of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The domain in the request.
    pub domain: String,
    /// The domain's place in the rules; `None` if they do not have it.
    pub at: Option<At>,
    /// The first entry that the domain expects and the request does not bring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<MissingEntry>,
    /// The descriptors in the order of the request.
    pub descriptors: Vec<Explained>,
    /// The answer that a request of one hit would get.
    pub answer: Verdict,
    /// The reason for the answer.
    pub because: String,
    /// The reason why the request is denied whatever its counters' state.
    #[serde(skip)]
    denied_anyway: Option<String>,
}

/// An entry that a domain expects and a request does not bring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingEntry {
    /// Its key.
    pub entry: String,
    /// What happens to the request, by its name in rules.
    pub on_missing: String,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// Path of the file, as in the settings.
    pub file: String,
    /// Line number, from 1.
    pub line: Option<u32>,
}

/// The answer that a request would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The request passes.
    Pass,
    /// The request is denied.
    Deny,
    /// The call fails.
    Fail,
    /// The answer depends on counters that could not be read.
    Unknown,
}

/// The explanation of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Its entries as `key=value`.
    pub entries: Vec<String>,
    /// Matches of the entries, from the top level down to the last that matches.
    pub matched: Vec<Matched>,
    /// The result.
    pub found: Found,
    /// Path of the matching rule.
    pub rule: Option<String>,
    /// The nearest misses if no rule matches, the likeliest first.
    pub missed: Vec<MissedBy>,
    /// Limits of the matching rule.
    pub limits: Vec<ExplainedLimit>,
}

/// The rules' result for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Limits apply.
    Limited,
    /// The request sets its own limit, which replaces the rules.
    BroughtAlong,
    /// A rule exempts the descriptor from limits.
    Unlimited,
    /// All its limits are replaced by limits of other descriptors.
    Replaced,
    /// The rules do not have the domain.
    UnknownDomain,
    /// No rule matches.
    UnknownDescriptor,
}

/// An entry that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matched {
    /// The entry as `key=value`.
    pub entry: String,
    /// The matching node, as written in the file.
    pub node: String,
    /// The reason why it matches.
    pub by: MatchedBy,
    /// Place of the node.
    pub at: Option<At>,
}

/// The difference between a descriptor and a rule that it nearly matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedBy {
    /// The kind of difference.
    pub what: Missed,
    /// The difference in words, with a correction.
    pub words: String,
    /// Place of the rule.
    pub at: Option<At>,
}

/// A limit of the rule that a descriptor matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedLimit {
    /// The limit's label in metrics, headers, logs and answers.
    pub name: String,
    /// Place of the limit.
    pub at: Option<At>,
    /// The effect of a denial on the request.
    pub role: RoleName,
    /// The parts of the limit with their origins.
    pub parts: Vec<Part>,
    /// The limit that replaces this one, which is then not asked.
    pub replaced_by: Option<String>,
    /// Its lease, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<ExplainedLease>,
    /// Whether the key is in the share of keys for which the limit is enforced; `None` if it is enforced for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_share: Option<bool>,
    /// Descriptions of its adjustments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adjustments: Vec<String>,
    /// Name of its counter; `None` if it has none or is not asked.
    pub counter: Option<String>,
    /// Name of the counter of its penalty.
    pub penalty_counter: Option<String>,
    /// State of the counter.
    pub state: Option<State>,
    /// The reason why the state is unknown.
    pub no_state: Option<String>,
}

/// The terms of a limit's lease, by the number in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedLease {
    /// The most hits that instances may hold, all together.
    pub most: u32,
    /// Time for which an instance holds them.
    pub ttl_ms: u64,
}

/// An instance's share of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedShare {
    /// The most hits at one moment that the instance may admit by itself.
    pub capacity: u64,
    /// How many of them remain.
    pub remaining: u64,
}

/// What streams have used of a budget, and what those in progress hold of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedBudget {
    /// Hits that were charged within the period.
    pub used: u64,
    /// Hits that are held.
    pub held: u64,
    /// Number of holds.
    pub holds: u32,
    /// Time until the first of the holds ends, if nothing settles it before; `None` if there is none.
    pub first_ends_after_ms: Option<u64>,
    /// Hits beyond the number: topped up, or carried over into the present window.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extra: u64,
    /// What nine of ten streams use at most, as far as it has been learned; 0 if nothing has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub learned: u64,
}

/// The effect of a denial, by its name in rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleName {
    /// The request is denied.
    Enforced,
    /// The request is denied if all limits with this role deny it.
    QuotaMode,
    /// No effect.
    ShadowMode,
}

/// The state of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The most hits that can be allowed at one moment.
    pub capacity: u64,
    /// Number of further hits that would be allowed now.
    pub remaining: u64,
    /// Hits that instances hold in leases, if the limit has a lease. They do not remain, and may still be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased: Option<u32>,
    /// The share of this instance, if it has one now. What remains of it is part of `remaining`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ExplainedShare>,
    /// The most hits that other instances may have admitted by their shares, which are in none of these numbers; `None`
    /// if the limit has no shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_shares: Option<u64>,
    /// What is used and held of a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<ExplainedBudget>,
    /// Time until the counter is equivalent to a new one.
    pub reset_after_ms: u64,
    /// How much longer a ban lasts.
    pub banned_ms: Option<u64>,
    /// When a ban began: the denial that caused it, or the latest request that extended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub banned_since: Option<Time>,
    /// When a ban ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub banned_until: Option<Time>,
    /// Whether one more hit of each descriptor would be over the limit or banned.
    pub used_up: bool,
    /// If so, the time until one more hit is allowed; `None` if unknown.
    pub next_after_ms: Option<u64>,
    /// Origin of the state: `store`, or the substitute that answers while the store is unavailable.
    pub decided_by: String,
}

/// Returns the request to explain: one hit of each descriptor. `limit` is a limit that the request sets.
pub fn request(domain: &str, descriptors: Vec<Vec<Entry>>, limit: Option<Override>) -> Request {
    let descriptor = |entries| Descriptor { entries, ask: Ask::Take(1), limit };
    Request { domain: domain.into(), descriptors: descriptors.into_iter().map(descriptor).collect() }
}

/// Returns, for each descriptor of a request, a short description of how it misses the rules; `None` if a rule matches.
/// This is fast enough to add to every answer.
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
    /// Creates the part from the rules.
    pub fn new(rules: &Rules, options: &PlanOptions, request: &Request, names: Names) -> Explanation {
        Explanation::adjusted((rules, None), options, request, names)
    }

    /// Creates the part from the rules, with adjustments in force.
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
            domain: request.domain.to_string(),
            at: rules.domain(&request.domain).and_then(|domain| At::of(rules, domain.place)),
            missing: plan.missing().map(|missing| MissingEntry {
                entry: missing.entry.to_owned(),
                on_missing: missing.action.name().to_owned(),
            }),
            descriptors,
            answer: Verdict::Unknown,
            because: "the counters have not been read".to_owned(),
            denied_anyway: by_rules::denied_anyway(&plan),
        };
        explanation.conclude_unasked(options, &plan);
        if plan.work() > MAX_WORK {
            let because = "checking all these limits at once is too expensive: the call is invalid";
            explanation = explanation.without_state(because);
            (explanation.answer, explanation.because) = (Verdict::Fail, because.to_owned());
        }
        explanation
    }

    /// Returns whether a rule applies to at least one descriptor.
    pub fn applies(&self) -> bool {
        let is_unknown = |found| matches!(found, Found::UnknownDomain | Found::UnknownDescriptor);
        self.descriptors.iter().any(|descriptor| !is_unknown(descriptor.found))
    }

    /// Returns whether there are counters to read.
    pub fn reads(&self) -> bool {
        let mut limits = self.descriptors.iter().flat_map(|descriptor| &descriptor.limits);
        self.answer != Verdict::Fail && limits.any(|limit| limit.counter.is_some())
    }

    /// Concludes if no limit is asked, or if the answer does not depend on them. `plan` is the request's plan.
    fn conclude_unasked(&mut self, options: &PlanOptions, plan: &Plan<'_>) {
        let adjustment = |asked: &Asked<'_>| asked.adjusted.passage.map(|adjustment| adjustment.id.to_string());
        let is_blocked = plan.blocked().next().is_some();
        let settled = plan.blocked().chain(plan.all()).find_map(adjustment).unwrap_or_default();
        let unknown = self.descriptors.iter().find_map(|descriptor| match descriptor.found {
            Found::UnknownDomain => Some(("UNKNOWN_DOMAIN", options.unknown_domain)),
            Found::UnknownDescriptor => Some(("UNKNOWN_DESCRIPTOR", options.unknown_descriptor)),
            Found::Limited | Found::BroughtAlong | Found::Unlimited | Found::Replaced => None,
        });
        let missing = plan.missing().filter(Missing::denies);
        let without =
            missing.map(|missing| format!("the domain expects the entry {}, and the request has none", missing.entry));
        let (answer, because) = match unknown {
            _ if missing.is_some() => {
                let because = without.unwrap_or_default();
                match options.shadow_mode {
                    true => (Verdict::Pass, format!("allowed only because of SHADOW_MODE: {because}")),
                    false => (Verdict::Deny, because),
                }
            }
            Some((setting, Unknown::Deny)) if options.shadow_mode => {
                (Verdict::Pass, format!("allowed only because of SHADOW_MODE: no rule matches, and {setting} is deny"))
            }
            Some((setting, Unknown::Deny)) => (Verdict::Deny, format!("no rule matches, and {setting} is deny")),
            _ if is_blocked && options.shadow_mode => {
                (Verdict::Pass, format!("allowed only because of SHADOW_MODE: the adjustment {settled} blocks it"))
            }
            _ if is_blocked => (Verdict::Deny, format!("the adjustment {settled} blocks it")),
            _ if self.asked().next().is_some() => return,
            Some((setting, Unknown::Pass)) => (Verdict::Pass, format!("no limit applies, and {setting} is pass")),
            None if settled.is_empty() => (Verdict::Pass, "the rules that match set no limit".to_owned()),
            None => (Verdict::Pass, format!("the adjustment {settled} allows it")),
        };
        (self.answer, self.because) = (answer, because);
    }

    /// Returns the limits that are asked, in the order of the plan.
    fn asked(&mut self) -> impl Iterator<Item = &mut ExplainedLimit> {
        self.descriptors
            .iter_mut()
            .flat_map(|descriptor| &mut descriptor.limits)
            .filter(|limit| limit.counter.is_some())
    }

    /// Sets the reason why the state of each counter is unknown.
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

    /// Adds the result of a peek, and for each limit the time until one more hit is allowed, as far as is known.
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

    /// Sets the answer to a failed call, because the store is unavailable and a limit in failure mode `error` applies.
    #[must_use]
    pub fn undecided(self, undecided: Undecided<'_>, error: &str) -> Explanation {
        let mut explanation = self.without_state(&format!("the store is unavailable: {error}"));
        let name = undecided.source.label();
        let because = format!("the store is unavailable, and failure_mode error of {name} fails the call");
        (explanation.answer, explanation.because) = (Verdict::Fail, because);
        explanation
    }
}

impl std::convert::From<Lease> for ExplainedLease {
    fn from(lease: Lease) -> ExplainedLease {
        ExplainedLease { most: lease.most(), ttl_ms: u64::try_from(lease.ttl().as_millis()).unwrap_or(u64::MAX) }
    }
}

impl std::convert::From<ShareLeft> for ExplainedShare {
    fn from(ShareLeft { capacity, remaining }: ShareLeft) -> ExplainedShare {
        ExplainedShare { capacity, remaining }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ExplainedBudget {
    /// Returns what a peek tells of a budget; `None` for other limits.
    pub fn of(limit: &Limit, verdict: &counted::Verdict) -> Option<ExplainedBudget> {
        let counted::Verdict { remaining, excess, held, extra, learned, .. } = *verdict;
        let Held { hits: held, holds, first_ends_ms } = held?;
        let charged = limit.capacity_with(extra) + excess.unwrap_or(0);
        let used = charged.saturating_sub(remaining + held);
        let first_ends_after_ms = (holds > 0).then_some(first_ends_ms);
        Some(ExplainedBudget { used, held, holds, first_ends_after_ms, extra, learned })
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
