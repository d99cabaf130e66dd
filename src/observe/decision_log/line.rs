//! A line of the decision log: one limit's answer to a request.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::SystemTime;

use serde::Serialize;

use crate::engine::adjustment::{Adjustment, Content};
use crate::engine::algorithm::{Algorithm, Ask, Held, Limit};
use crate::engine::asked::{Asked, Source};
use crate::engine::decision::{Answer, DecidedBy, Decision, Limited, Never};
use crate::engine::descriptor::{Descriptor, Request, Role};
use crate::engine::rules::Allowance;
use crate::observe::redaction::Values;
use crate::observe::watch::FailedBy;

/// The outcome of a request at one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// The limit allowed the request, or another limit in quota mode did.
    Allowed,
    Denied,
    /// The rule is in shadow mode and denied nothing.
    ShadowDenied,
    /// Global shadow mode allowed the request.
    GlobalShadowDenied,
    /// The call failed without a decision.
    Failed,
}

/// The fields of a line in their order.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    time: String,
    domain: &'a str,
    /// Label of the limit in metrics; none if no rule matches.
    rule: Option<Cow<'a, str>>,
    descriptor: Vec<Pair<'a>>,
    hits: i64,
    /// The hits that a stream of a budget holds or settles, for all its parts in the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<u64>,
    limit: Option<Number>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    outcome: Outcome,
    reason: &'static str,
    /// Whether the limit never lets such a request pass.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    never: bool,
    /// What operators have changed about the limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adjustments: Vec<Adjusted<'a>>,
    /// Number of lines of this limit that were left out since its last line, if any.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) suppressed: u64,
    sampled: bool,
    /// In a sampled line, the share of such lines that are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_share: Option<f64>,
    /// ID of the instance that decided the call.
    instance: &'a str,
    /// Number of the call among those that the instance logged. All lines of a call have the same number.
    call: u64,
    request_id: Option<String>,
}

#[derive(Debug, Serialize)]
struct Pair<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
}

/// An adjustment that applied to the limit.
#[derive(Debug, Serialize)]
struct Adjusted<'a> {
    id: &'a str,
    effect: String,
    who: &'a str,
    why: &'a str,
}

/// Serde asks with a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A limit, with the names that answers use.
#[derive(Debug, Serialize)]
struct Number {
    algorithm: &'static str,
    number: u64,
    /// None for a limit without a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    period_ms: Option<u64>,
}

/// The values shared by all lines of a call.
#[derive(Clone, Copy)]
pub(super) struct OfCall<'a> {
    pub(super) time: SystemTime,
    pub(super) request: &'a Request,
    pub(super) values: &'a Values,
    pub(super) id: CallId<'a>,
}

/// A call that was decided.
pub(super) struct Context<'a, 'd> {
    pub(super) call: OfCall<'a>,
    pub(super) decision: &'a Decision<'d>,
}

/// The identity of a call.
#[derive(Clone, Copy)]
pub(super) struct CallId<'a> {
    pub(super) instance: &'a str,
    pub(super) call: u64,
    /// The caller's ID for the request, if it sent one.
    pub(super) request_id: Option<&'a dyn Display>,
}

impl<'a> OfCall<'a> {
    /// Returns the line of a limit for which the call failed.
    pub(super) fn of_failed(&self, asked: &'a Asked<'a>, cause: FailedBy) -> Option<Line<'a>> {
        Some(Line {
            rule: Some(self.values.label(asked.source)),
            counted: counted(asked, None),
            limit: Some(Number::of(&asked.check.limit)),
            outcome: Outcome::Failed,
            reason: cause.name(),
            adjustments: adjustments(asked),
            ..self.of_descriptor(self.request.descriptors.get(asked.check.descriptor)?)
        })
    }

    /// Returns a line that knows nothing of a limit.
    fn of_descriptor(&self, descriptor: &'a Descriptor) -> Line<'a> {
        Line {
            time: humantime::format_rfc3339_millis(self.time).to_string(),
            domain: &self.request.domain,
            rule: None,
            descriptor: self.values.of_entries(&descriptor.entries).map(|(key, value)| Pair { key, value }).collect(),
            hits: descriptor.ask.hits(),
            counted: None,
            limit: None,
            remaining: None,
            retry_after_ms: None,
            outcome: Outcome::Denied,
            reason: "",
            never: false,
            adjustments: Vec::new(),
            suppressed: 0,
            sampled: false,
            sample_share: None,
            instance: self.id.instance,
            call: self.id.call,
            request_id: self.id.request_id.map(ToString::to_string),
        }
    }
}

impl<'a> Context<'a, '_> {
    /// Returns the line of a limit. `sample_share` is set if only this share of such lines is written.
    pub(super) fn of_limit(&self, limited: &'a Limited<'a>, sample_share: Option<f64>) -> Option<Line<'a>> {
        let check = &limited.asked.check;
        Some(Line {
            rule: Some(self.call.values.label(limited.asked.source)),
            counted: counted_by(limited),
            limit: Some(Number::of(of_rule(limited))),
            remaining: limited.remaining(),
            retry_after_ms: limited.known_retry_after_ms().filter(|_| limited.over()),
            outcome: self.outcome(limited),
            reason: reason(limited),
            never: matches!(limited.never(), Some(Never::LetsNothingPass | Never::TooMany)),
            adjustments: adjustments(&limited.asked),
            sampled: sample_share.is_some(),
            sample_share,
            ..self.call.of_descriptor(self.call.request.descriptors.get(check.descriptor)?)
        })
    }

    /// Returns the line of a descriptor that is denied because the rules do not know it, or because its request does
    /// not bring an expected entry.
    pub(super) fn of_unknown(&self, descriptor: &'a Descriptor) -> Line<'a> {
        let unknown = match self.decision.domain_found {
            _ if self.decision.missing.is_some_and(|missing| missing.denies()) => DecidedBy::MissingEntry,
            true => DecidedBy::UnknownDescriptor,
            false => DecidedBy::UnknownDomain,
        };
        Line {
            outcome: if self.decision.only_shadow { Outcome::GlobalShadowDenied } else { Outcome::Denied },
            reason: unknown.name(),
            ..self.call.of_descriptor(descriptor)
        }
    }

    fn outcome(&self, limited: &Limited<'_>) -> Outcome {
        match limited.role() {
            _ if !limited.over() => Outcome::Allowed,
            Role::Shadow => Outcome::ShadowDenied,
            Role::Enforced | Role::Quota if self.decision.over_limit => Outcome::Denied,
            Role::Enforced | Role::Quota if self.decision.only_shadow => Outcome::GlobalShadowDenied,
            Role::Enforced | Role::Quota => Outcome::Allowed,
        }
    }
}

impl Number {
    fn of(limit: &Limit) -> Number {
        let period_ms = limit.window().map(|_| limit.period_ms());
        Number { algorithm: limit.algorithm().name(), number: limit.number(), period_ms }
    }
}

/// Returns the hits that a limit counts in place of those of the request: see [`counted`]. An adjustment that answers
/// for a limit counts none.
fn counted_by(limited: &Limited<'_>) -> Option<u64> {
    let held = limited.own().and_then(|own| own.held);
    limited.is_asked().then(|| counted(&limited.asked, held)).flatten()
}

/// Returns the hits that a stream holds or settles of a budget, or would hold if it was denied. `held` is what the
/// counter says that it holds.
///
/// `None` for other limits, for a part for which another line of the call has the hits, and where they are unknown: a
/// stream without an estimate holds what the counter has learned, which only the counter knows, and a denial does not
/// tell it.
fn counted(Asked { check, is_part, .. }: &Asked<'_>, held: Option<Held>) -> Option<u64> {
    if check.limit.algorithm() != Algorithm::Budget || *is_part {
        return None;
    }
    match (check.ask, held) {
        (Ask::Settle(hits), _) => Some(hits),
        (Ask::Take(_), Some(held)) => Some(held.hits),
        (Ask::Take(hits), None) => Some(hits).filter(|_| check.caller.learned.is_none()),
        (Ask::Peek, _) => Some(0),
        (Ask::Refund(_) | Ask::Credit(_) | Ask::Reset | Ask::TakeBack(_), _) => None,
    }
}

/// Returns the adjustments that apply to a limit.
fn adjustments<'a>(asked: &Asked<'a>) -> Vec<Adjusted<'a>> {
    let of = |adjustment: &'a Adjustment| {
        let Content { effect, who, why, .. } = &adjustment.content;
        Adjusted { id: adjustment.id.as_str(), effect: effect.to_string(), who, why }
    };
    asked.adjusted.all().map(of).collect()
}

/// Returns the limit that a line shows. A blocked limit is asked about with the number 0; the line shows the rule's.
fn of_rule<'l>(limited: &'l Limited<'_>) -> &'l Limit {
    let Source::Rule(_, limit) = limited.asked.source else { return &limited.asked.check.limit };
    match &limit.config.allowance {
        Allowance::Limited(own) if limited.answer == Answer::Blocked => own,
        _ => &limited.asked.check.limit,
    }
}

/// Returns the reason of a limit's answer: the state of its counter, or the substitute that answered.
fn reason(limited: &Limited<'_>) -> &'static str {
    match limited.answer.decided_by() {
        DecidedBy::Store if limited.banned_ms().is_some() => "banned",
        DecidedBy::Store if limited.over() => "over",
        DecidedBy::Store => "within",
        without_counter => without_counter.name(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::descriptor::Entry;
    use crate::engine::plan::{Names, Plan, PlanOptions};
    use crate::engine::rules::Rules;
    use crate::observe::decision_log::tests::rules;
    use crate::store::memory::MemoryStore;

    const RULES: &str = "
domain: shop
prices: {small: 2.5, free: 0}
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 10, cost: 2}}
- key: bounded
  descriptors:
  - key: hold
    rate_limit: {algorithm: budget, unit: year, requests_per_unit: 1000,
                 estimate: 455, min_estimate: 100, max_estimate: 800}
- key: learned
  descriptors:
  - {key: hold, rate_limit: {algorithm: budget, unit: year, requests_per_unit: 1000, estimate: 455,
                             learn_estimate: true}}
- key: money
  descriptors:
  - {key: hold, rate_limit: {algorithm: budget, unit: year, requests_per_unit: 1000000, weigh_by: [model]}}
";

    /// A descriptor: its first key, whether a stream holds or settles, the stream, and hits.
    type Part<'p> = (&'p str, &'p str, &'p str, u64);

    struct World {
        rules: Rules,
        store: MemoryStore,
    }

    impl World {
        fn new() -> World {
            World { rules: rules(RULES), store: MemoryStore::default() }
        }

        /// Returns the outcome of each part of a call, its hits, and what counts.
        fn call(&self, parts: &[Part<'_>]) -> Vec<Value> {
            let descriptor = |(first, key, stream, hits): &Part<'_>| {
                let mut entries = vec![(*first, "acme"), (*key, *stream)];
                entries.extend((*first == "money").then_some(("model", "small")));
                entries.retain(|(key, _)| !key.is_empty());
                let entry = |(key, value): (&str, &str)| Entry { key: key.into(), value: value.into() };
                let entries = entries.into_iter().map(entry).collect();
                Descriptor { entries, ask: Ask::take(*hits).unwrap(), limit: None }
            };
            let request = Request { domain: "shop".into(), descriptors: parts.iter().map(descriptor).collect() };
            let options = PlanOptions::default();
            let plan = Plan::new(&options, &self.rules, &request, Names::default());
            let verdicts = self.store.decide(plan.asked()).unwrap();
            let decision = plan.conclude(&verdicts);
            let id = CallId { instance: "toll-1", call: 1, request_id: None };
            let call = OfCall { time: SystemTime::now(), request: &request, values: &Values::Plain, id };
            let context = Context { call, decision: &decision };
            let line = |limited| {
                let line = serde_json::to_value(context.of_limit(limited, None).unwrap()).unwrap();
                json!([line["outcome"], line["hits"], line["counted"]])
            };
            decision.limits.iter().map(line).collect()
        }
    }

    #[test]
    fn a_line_of_a_budget_tells_what_a_stream_holds_and_settles_for() {
        let world = World::new();
        let call = |parts: &[(&str, &str, u64)]| {
            world.call(&parts.iter().map(|(key, stream, hits)| ("bounded", *key, *stream, *hits)).collect::<Vec<_>>())
        };
        assert_eq!(call(&[("hold", "a", 0)]), [json!(["allowed", 0, 455])], "the estimate of the rule");
        assert_eq!(call(&[("hold", "b", 20)]), [json!(["allowed", 20, 100])], "the least");
        assert_eq!(call(&[("hold", "c", 300)]), [json!(["allowed", 300, 300])], "its own");
        assert_eq!(call(&[("settle", "c", 70)]), [json!(["allowed", 70, 70])]);
        let parts = [json!(["allowed", 30, 70]), json!(["allowed", 40, null])];
        assert_eq!(call(&[("settle", "b", 30), ("settle", "b", 40)]), parts, "once for all parts");
        assert_eq!(call(&[("hold", "d", 900)]), [json!(["denied", 900, 455])], "as if it had brought none");
        assert_eq!(call(&[("settle", "d", 0)]), [json!(["allowed", 0, 0])]);
        assert_eq!(world.call(&[("user", "", "", 3)]), [json!(["allowed", 3, null])], "no budget");
        let money = [json!(["allowed", 100, 500_000]), json!(["allowed", 100, null])];
        assert_eq!(world.call(&[("money", "hold", "a", 100), ("money", "hold", "a", 100)]), money);
        assert_eq!(world.call(&[("money", "hold", "b", 300)]), [json!(["denied", 300, 750_000])]);
    }

    #[test]
    fn a_learned_estimate_is_told_where_it_is_held_and_not_guessed_where_it_is_denied() {
        let world = World::new();
        let call = |key, stream, hits| world.call(&[("learned", key, stream, hits)]).remove(0);
        assert_eq!(call("hold", "a", 0), json!(["allowed", 0, 455]), "nothing is learned yet");
        assert_eq!(call("settle", "a", 200), json!(["allowed", 200, 200]));
        assert_eq!(call("hold", "b", 0), json!(["allowed", 0, 450]), "learned");
        assert_eq!(call("hold", "c", 0), json!(["denied", 0, null]), "unknown");
        assert_eq!(call("hold", "d", 400), json!(["denied", 400, 400]), "its own");
        assert_eq!(call("settle", "e", 10), json!(["allowed", 10, 10]));
        assert_eq!(call("hold", "e", 0), json!(["allowed", 0, 0]), "its settle had overtaken it");
    }
}
