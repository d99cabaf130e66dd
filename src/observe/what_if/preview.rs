//! The recorded requests, decided with and without an adjustment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::trial::{MOST_BYTES, Scene, Trouble};
use super::{Others, WhatIf, WhatIfError};
use crate::engine::adjustment::{Effect, Id, InForce, Kind, LimitName, Target};
use crate::engine::algorithm::Ask;
use crate::engine::descriptor::{Descriptor, Entry, Request};
use crate::engine::plan::PlanOptions;
use crate::engine::rules::diff::example;
use crate::engine::rules::{Allowance, Rule, RuleLimit, Rules};
use crate::evaluate::{Changed, Evaluator, RuleSet};

/// The most examples.
const EXAMPLES: usize = 5;

/// An adjustment that is not in force yet.
#[derive(Clone, Copy, Debug)]
pub struct Adjusted<'a> {
    /// The rules in force.
    pub rules: &'a Rules,
    /// The adjustments in force, if any.
    pub before: Option<&'a InForce>,
    /// The same with the adjustment.
    pub after: &'a InForce,
    /// Its ID.
    pub id: &'a Id,
}

/// What an adjustment would have done to the recorded requests. Rates and numbers of keys are those of all keys and all
/// instances; `None` if the recorder does not know them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    /// Number of keys that it touches.
    pub keys: Option<u64>,
    /// Number of keys with requests that are denied only with it.
    pub keys_denied: Option<u64>,
    /// Number of keys with requests that are denied only without it.
    pub keys_allowed: Option<u64>,
    /// Requests that it touches.
    pub requests_per_s: Option<f64>,
    /// Requests that are denied only with it.
    pub denied_per_s: Option<f64>,
    /// Requests that are denied only without it.
    pub allowed_per_s: Option<f64>,
    /// Number of seconds that the recorded requests cover.
    pub seconds: u64,
    /// The share of keys with recorded requests. The figures are scaled to all keys.
    pub sample: f64,
    /// Some keys with requests that are decided differently, those with the most first.
    pub examples: Vec<String>,
}

/// The answer about an adjustment that is not in force.
#[derive(Debug, Serialize, Deserialize)]
pub struct Previewable {
    /// Number of limits that it touches.
    pub limits: usize,
    /// Why it changes only limits that requests bring along, if so.
    pub note: Option<String>,
    /// What it would have done.
    #[serde(flatten)]
    pub preview: Preview,
}

/// The keys of the sample that an adjustment is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A share of many.
    Sampled,
    /// Its only key, which is recorded.
    Complete,
    /// None: its only key is not recorded.
    No,
}

impl WhatIf {
    /// Decides the recorded requests with and without an adjustment, each with its own counters. This takes seconds if
    /// there are many requests.
    ///
    /// # Errors
    /// Fails if the requests cannot be replayed.
    pub fn preview(&self, adjusted: Adjusted<'_>, others: &Others) -> Result<Preview, WhatIfError> {
        self.replay(others, |scene| self.decide_both(scene, adjusted))
    }

    fn decide_both(&self, scene: &Scene, adjusted: Adjusted<'_>) -> Result<Preview, Trouble> {
        let Adjusted { rules, before, after, id } = adjusted;
        let sample = scene.sampling.share().as_ratio();
        let nothing = Preview { seconds: scene.seconds, sample, ..Preview::default() };
        if scene.seconds == 0 {
            return Ok(nothing);
        }
        let weight = match adjusted.known(|request| scene.sampling.picks_any(request)) {
            Known::Sampled if sample > 0.0 => 1.0 / sample,
            Known::Complete => 1.0,
            Known::Sampled | Known::No => return Ok(nothing),
        };
        let options = PlanOptions { shadow_mode: self.shadow_mode, ..self.options.plan.clone() };
        let evaluators = [MOST_BYTES / 2; 2].map(Evaluator::new);
        let [without, with] = [before, Some(after)].map(|adjustments| {
            let replicas = scene.replicas;
            RuleSet { adjustments, replicas, ..RuleSet::new(rules, &options) }
        });
        let mut changed = Changed::new(id, self.options.values.clone());
        scene.each(|arrival| {
            let [by_old, by_new] = &evaluators;
            let (old, new) = (by_old.decide(&without, arrival)?, by_new.decide(&with, arrival)?);
            if let (Some(old), Some(new)) = (old, new) {
                changed.add(arrival, (&old, &new));
            }
            Ok(())
        })?;
        // The requests of a key are spread over the instances, but each instance sees about all keys.
        let rate = |count: u64| {
            let rate = count as f64 * weight * scene.factor / scene.seconds as f64;
            Some((rate * 100.0).round() / 100.0)
        };
        let keys = |count: usize| Some((count as f64 * weight).round() as u64);
        // Requests do not show when a stream ends, so a limit of concurrency decides nothing in a replay.
        let is_replayed = !adjusted.is_of_concurrency();
        Ok(Preview {
            keys: keys(changed.keys()),
            keys_denied: keys(changed.keys_denied()).filter(|_| is_replayed),
            keys_allowed: keys(changed.keys_allowed()).filter(|_| is_replayed),
            requests_per_s: rate(changed.touched),
            denied_per_s: rate(changed.newly_denied).filter(|_| is_replayed),
            allowed_per_s: rate(changed.newly_allowed).filter(|_| is_replayed),
            examples: changed.examples(EXAMPLES),
            sample: 1.0 / weight,
            ..nothing
        })
    }
}

impl<'a> Adjusted<'a> {
    fn content(&self) -> Option<(&'a Target, Effect)> {
        let adjustment = self.after.iter().find(|adjustment| adjustment.id == *self.id)?;
        Some((&adjustment.content.target, adjustment.content.effect))
    }

    /// Returns the number of limits in the rules that the adjustment touches. A limit with a narrower adjustment of the
    /// same kind is not among them.
    pub fn limits(&self) -> usize {
        self.touched().len()
    }

    fn touched(&self) -> Vec<(&'a Rule, &'a RuleLimit)> {
        let Adjusted { rules, after, id, .. } = *self;
        let applies = |rule: &Rule, limit: &RuleLimit, entries: &[Entry]| {
            let name = LimitName { path: &rule.path, label: &limit.label };
            limit.config.allowance != Allowance::Unlimited
                && after.of(&rule.domain, Some(name), entries).all().any(|adjustment| adjustment.id == *id)
        };
        let Some((Target::Descriptors { domain, descriptors }, _)) = self.content() else {
            return rules.limits().filter(|(rule, limit)| applies(rule, limit, &[])).collect();
        };
        let Some(domain) = rules.domain(domain) else { return Vec::new() };
        let mut found = BTreeMap::new();
        for descriptor in descriptors {
            let exact = descriptor.exact();
            let reached = match &exact {
                Some(entries) => rules.find(domain, entries).into_iter().collect(),
                None => rules.reached_by(domain, descriptor),
            };
            for (rule, limit) in reached.into_iter().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)))
            {
                let is_touched = match &exact {
                    Some(entries) => applies(rule, limit, entries),
                    // A narrower adjustment is of a few of its keys.
                    None => limit.config.allowance != Allowance::Unlimited,
                };
                if is_touched {
                    found.insert(limit.id, (rule, limit));
                }
            }
        }
        found.into_values().collect()
    }

    /// Returns whether it changes only limits of concurrency, in a way that depends on their counters.
    fn is_of_concurrency(&self) -> bool {
        let Some((_, effect)) = self.content() else { return false };
        let has_holders = |allowance: &Allowance| match allowance {
            Allowance::Limited(limit) => limit.algorithm().has_holders(),
            Allowance::Unlimited => false,
        };
        effect.kind() != Kind::Passage && self.touched().iter().all(|(_, limit)| has_holders(&limit.config.allowance))
    }

    /// Returns which of its keys are recorded.
    fn known(&self, is_sampled: impl Fn(&Request) -> bool) -> Known {
        let of = |domain: &str, entries: &[Entry]| {
            let descriptor = Descriptor { entries: entries.to_vec(), ask: Ask::Take(1), limit: None };
            let request = Request { domain: domain.into(), descriptors: vec![descriptor] };
            if is_sampled(&request) { Known::Complete } else { Known::No }
        };
        match self.content() {
            Some((Target::Descriptors { domain, descriptors }, _)) => match &**descriptors {
                [one] => one.exact().map_or(Known::Sampled, |entries| of(domain, &entries)),
                // Of several, as many are recorded as of all keys.
                _ => Known::Sampled,
            },
            Some((Target::Rule { domain, .. }, _)) => {
                // Several limits of one rule have the same keys.
                let mut rules = self.touched().into_iter().map(|(rule, _)| rule);
                let Some(rule) = rules.next() else { return Known::Sampled };
                let has_one_key = |rule: &Rule| {
                    let values = rule.keys_and_values().enumerate();
                    let is_one = |value: Option<&str>| value.is_some_and(|value| !value.contains('*'));
                    values.into_iter().all(|(level, (key, value))| {
                        !key.contains('*') && (is_one(value) || rule.shared_pattern(level).is_some())
                    })
                };
                match has_one_key(rule) && rules.all(|other| std::ptr::eq(other, rule)) {
                    true => of(domain, &example(rule)),
                    false => Known::Sampled,
                }
            }
            Some((Target::All | Target::Domain(_), _)) | None => Known::Sampled,
        }
    }
}
