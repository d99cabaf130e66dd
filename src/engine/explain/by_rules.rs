//! The part of an explanation that comes from the rules alone, without counters.

use super::parts;
use super::{At, Explained, ExplainedLease, ExplainedLimit, Found, Matched, MissedBy, RoleName};
use crate::adjustment::Kind;
use crate::asked::{Asked, OVERRIDE, Source};
use crate::check::group::Votes;
use crate::descriptor::{Descriptor, Entry, Request, Role, per_of};
use crate::plan::Plan;
use crate::rules::{Allowance, Budget, Domain, Place, Rule, RuleLimit, Rules};

/// Returns why a request of one hit is denied whatever its counters' state; `None` if it depends on them.
pub(super) fn denied_anyway(plan: &Plan<'_>) -> Option<String> {
    let never_fits = |asked: &&Asked<'_>| {
        let limit = &asked.check.limit;
        u64::from(asked.cost()) > limit.capacity() && !limit.is_topped_up()
    };
    let mut votes = Votes::default();
    for asked in plan.asked() {
        votes.add(asked.check.role, &asked.check, never_fits(&asked));
    }
    let names = || plan.asked().iter().filter(never_fits).map(|asked| asked.source.label()).collect::<Vec<_>>();
    votes.deny().then(|| let_nothing_pass(&names()))
}

/// Describes the adjustments of a limit for the entries that name its counter, and their effects.
fn adjustments(asked: &Asked<'_>, entries: &[Entry]) -> Vec<String> {
    let words = asked.adjusted.all().map(|adjustment| {
        let words = adjustment.about(entries);
        match adjustment.content.effect.kind() {
            Kind::Number => {
                let limit = &asked.check.limit;
                format!("{words}: {} {}, {} at once", limit.number(), per_of(limit), limit.capacity())
            }
            Kind::Passage | Kind::Role => words,
        }
    });
    words.collect()
}

/// Describes limits of 0, and limits with a number lower than the cost of one hit.
pub(super) fn let_nothing_pass(names: &[&str]) -> String {
    format!("{} {} no requests", names.join(", "), if names.len() == 1 { "allows" } else { "allow" })
}

/// A descriptor and its part of a plan.
pub(super) struct OfPlan<'p, 'a> {
    pub(super) rules: &'a Rules,
    pub(super) request: &'a Request,
    pub(super) plan: &'p Plan<'a>,
    /// Position of the descriptor in the request.
    pub(super) index: usize,
}

impl OfPlan<'_, '_> {
    fn descriptor(&self) -> &Descriptor {
        &self.request.descriptors[self.index]
    }

    pub(super) fn explain(&self, descriptor: &Descriptor, budget: &mut Budget) -> Explained {
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
        if let Some(limit) = self.brought_along(domain) {
            return Explained {
                entries,
                matched: Vec::new(),
                found: Found::BroughtAlong,
                rule: None,
                missed: Vec::new(),
                limits: vec![limit],
            };
        }
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
            Some(_) if limits.iter().any(|limit| limit.counter.is_some() || !limit.adjustments.is_empty()) => {
                Found::Limited
            }
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
        let planned = self.plan.all().find(is_it);
        let asked = self.plan.asked().iter().find(is_it);
        let entries = rule.counted(&self.descriptor().entries);
        let is_limited = matches!(limit.config.allowance, Allowance::Limited(_));
        let replaced_by = if planned.is_none() && is_limited { self.replaced_by(limit) } else { None };
        ExplainedLimit {
            name: limit.label.to_string(),
            at: At::of(self.rules, Place { line: limit.line, ..rule.place }),
            role: match planned.map_or(rule.role, |asked| asked.role) {
                Role::Enforced => RoleName::Enforced,
                Role::Quota => RoleName::QuotaMode,
                Role::Shadow => RoleName::ShadowMode,
            },
            parts: {
                let brought = self.descriptor().limit.filter(|_| rule.takes_number());
                let effective = brought.and(planned).map(|asked| &asked.check.limit);
                let price = planned.and_then(|planned| Some(planned.weighed.as_ref()?.price));
                parts::of(self.rules, rule, (limit, effective, price))
            },
            lease: planned.and_then(|planned| planned.check.lease).map(ExplainedLease::from),
            in_share: limit
                .config
                .options
                .enforce
                .map(|share| share.has(rule, &limit.config, (&self.request.domain, &entries))),
            replaced_by,
            adjustments: planned.map(|planned| adjustments(planned, &entries)).unwrap_or_default(),
            counter: asked.map(|asked| asked.check.key.to_string()),
            penalty_counter: asked.and_then(|asked| Some(asked.check.penalty.as_ref()?.key.to_string())),
            state: None,
            no_state: None,
        }
    }

    /// Returns the limit that the request sets for this descriptor. It replaces the rules.
    fn brought_along(&self, domain: &Domain) -> Option<ExplainedLimit> {
        let is_it =
            |asked: &&Asked<'_>| asked.check.descriptor == self.index && matches!(asked.source, Source::Override(_));
        let planned = self.plan.all().find(is_it)?;
        let asked = self.plan.asked().iter().find(is_it);
        Some(ExplainedLimit {
            name: OVERRIDE.to_owned(),
            at: None,
            role: RoleName::Enforced,
            parts: parts::of_override(self.rules, domain, &planned.check.limit),
            lease: None,
            in_share: None,
            replaced_by: None,
            adjustments: adjustments(planned, &self.descriptor().entries),
            counter: asked.map(|asked| asked.check.key.to_string()),
            penalty_counter: None,
            state: None,
            no_state: None,
        })
    }

    /// Returns the limit of the request that replaces this one.
    fn replaced_by(&self, limit: &RuleLimit) -> Option<String> {
        let domain = self.rules.domain(&self.request.domain)?;
        let reached = self.request.descriptors.iter().filter_map(|one| self.rules.find_for(domain, one));
        let mut limits = reached.flat_map(|rule| &rule.limits);
        let replaces = |other: &&RuleLimit| other.config.replaces.iter().any(|name| name == limit.name());
        limits.find(replaces).map(|other| other.label.to_string())
    }
}
