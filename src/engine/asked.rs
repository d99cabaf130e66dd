//! A request's question to one limit, with its context. A plan creates it, and a decision combines it with the limit's
//! answer.

use std::borrow::Borrow;

use crate::adjustment::Applied;
use crate::algorithm::Ask;
use crate::check::Check;
use crate::descriptor::Role;
use crate::price::{Cost, Price};
use crate::rules::{Domain, FailureMode, Rule, RuleLimit};

/// A question to one limit, with its context.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The question.
    pub check: Check,
    /// The origin of the limit.
    pub source: Source<'a>,
    /// The effect of a denial by the rule. The check's role is `Shadow` where requests are never denied.
    pub role: Role,
    /// The answer while the store is unavailable.
    pub failure_mode: FailureMode,
    /// The adjustments that apply.
    pub adjusted: Applied<'a>,
    /// Whether another question of the request asks for it: a part of what a stream holds or settles.
    pub is_part: bool,
    /// What the hits are worth, for a budget that is kept in money.
    pub weighed: Option<Box<Weighed>>,
}

/// The cost of what a stream asks for, from which the hits of the question are rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// The price of a million units. Of several parts, each has its own.
    pub price: Price,
    /// The exact cost, of all parts together.
    pub cost: Cost,
}

impl Borrow<Check> for Asked<'_> {
    fn borrow(&self) -> &Check {
        &self.check
    }
}

impl Weighed {
    /// Returns the question for the cost instead of units. A hold takes at least one hit: a stream that held nothing
    /// would pass however little is left.
    pub(crate) fn ask(&self, units: Ask) -> Ask {
        match units {
            Ask::Take(_) => Ask::Take(self.cost.hits().max(1)),
            Ask::Settle(_) => Ask::Settle(self.cost.hits()),
            other => other,
        }
    }
}

/// The origin of a limit.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The rules.
    Rule(&'a Rule, &'a RuleLimit),
    /// The client, in this domain.
    Override(&'a Domain),
}

/// The label of limits that clients set.
pub const OVERRIDE: &str = "(override)";

impl<'a> Source<'a> {
    /// Returns the limit's name in answers, metrics and logs: see [`RuleLimit::label`].
    pub fn label(self) -> &'a str {
        match self {
            Source::Rule(_, limit) => &limit.label,
            Source::Override(_) => OVERRIDE,
        }
    }

    /// Returns the limit's name in the rules; empty if it has none.
    pub fn name(self) -> &'a str {
        match self {
            Source::Rule(_, limit) => limit.name(),
            Source::Override(_) => "",
        }
    }

    /// Returns the path of the limit's rule.
    pub fn path(self) -> &'a str {
        match self {
            Source::Rule(rule, _) => &rule.path,
            Source::Override(_) => OVERRIDE,
        }
    }

    /// Returns the name of the domain.
    pub fn domain(self) -> &'a str {
        match self {
            Source::Rule(rule, _) => &rule.domain,
            Source::Override(domain) => &domain.name,
        }
    }
}

impl Asked<'_> {
    /// Makes this a part for which another question of the request asks: it denies nothing, and is no vote of a quota.
    pub(crate) fn join(&mut self) {
        (self.role, self.check.role, self.is_part) = (Role::Shadow, Role::Shadow, true);
    }

    /// Returns the cost of one hit.
    pub fn cost(&self) -> u32 {
        match self.source {
            Source::Rule(_, limit) => limit.config.options.cost,
            Source::Override(_) => 1,
        }
    }
}
