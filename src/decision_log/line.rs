//! One line: what a limit said of a request.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::SystemTime;

use serde::Serialize;

use crate::algorithm::Limit;
use crate::decision::{DecidedBy, Decision, Limited};
use crate::descriptor::{Descriptor, Request, Role};
use crate::values::Values;

/// What became of the request, as far as one limit is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// The limit let it pass; or it is one of several in quota mode, of which another did.
    Allowed,
    Denied,
    /// The rule is in shadow mode: it denied nothing.
    ShadowDenied,
    /// Global shadow mode let it pass.
    GlobalShadowDenied,
}

/// The fields of a line, in their order.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    time: String,
    domain: &'a str,
    /// What metrics call it; none where no rule is reached.
    rule: Option<Cow<'a, str>>,
    descriptor: Vec<Pair<'a>>,
    hits: i64,
    limit: Option<Number>,
    remaining: Option<u32>,
    retry_after_ms: Option<u64>,
    outcome: Outcome,
    reason: &'static str,
    sampled: bool,
    /// Of a sampled line: it stands for one in so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_share: Option<f64>,
    request_id: Option<String>,
}

#[derive(Debug, Serialize)]
struct Pair<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
}

/// A limit in the words that answers have for it.
#[derive(Debug, Serialize)]
struct Number {
    algorithm: &'static str,
    number: u32,
    /// Of a limit without a period: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    period_ms: Option<u64>,
}

/// What the lines of one request share.
pub(super) struct Context<'a, 'd> {
    pub(super) time: SystemTime,
    pub(super) request: &'a Request,
    pub(super) decision: &'a Decision<'d>,
    pub(super) values: &'a Values,
    pub(super) request_id: Option<&'a dyn Display>,
}

impl<'a> Context<'a, '_> {
    /// The line of a limit. A share is given where only so many such lines are written.
    pub(super) fn of_limit(&self, limited: &'a Limited<'a>, sample_share: Option<f64>) -> Option<Line<'a>> {
        let check = &limited.asked.check;
        Some(Line {
            rule: Some(self.values.label(limited.asked.source)),
            limit: Some(Number::of(&check.limit)),
            remaining: limited.remaining(),
            retry_after_ms: limited.retry_after_ms().filter(|_| limited.over()),
            outcome: self.outcome(limited),
            reason: reason(limited),
            sampled: sample_share.is_some(),
            sample_share,
            ..self.of_descriptor(self.request.descriptors.get(check.descriptor)?)
        })
    }

    /// The line of a descriptor that is denied because the rules do not know it.
    pub(super) fn of_unknown(&self, descriptor: &'a Descriptor) -> Line<'a> {
        self.of_descriptor(descriptor)
    }

    fn of_descriptor(&self, descriptor: &'a Descriptor) -> Line<'a> {
        let unknown = match self.decision.domain_found {
            true => DecidedBy::UnknownDescriptor,
            false => DecidedBy::UnknownDomain,
        };
        Line {
            time: humantime::format_rfc3339_millis(self.time).to_string(),
            domain: &self.request.domain,
            rule: None,
            descriptor: self.values.of_entries(&descriptor.entries).map(|(key, value)| Pair { key, value }).collect(),
            hits: descriptor.ask.hits(),
            limit: None,
            remaining: None,
            retry_after_ms: None,
            outcome: if self.decision.only_shadow { Outcome::GlobalShadowDenied } else { Outcome::Denied },
            reason: unknown.name(),
            sampled: false,
            sample_share: None,
            request_id: self.request_id.map(ToString::to_string),
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

/// Why a limit said so: what its counter says, or who answered in its place.
fn reason(limited: &Limited<'_>) -> &'static str {
    match limited.answer.decided_by() {
        DecidedBy::Store if limited.banned_ms().is_some() => "banned",
        DecidedBy::Store if limited.over() => "over",
        DecidedBy::Store => "within",
        without_counter => without_counter.name(),
    }
}
