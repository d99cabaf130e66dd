//! Replays of the ring.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::others::{Others, Stream};
use super::ring::Event;
use super::{Question, WhatIf, WhatIfError};
use crate::engine::algorithm::{Limit, LimitErrors};
use crate::engine::check::StoreError;
use crate::engine::clock::timestamp;
use crate::engine::rules::{Allowance, Rule, RuleLimit, Rules};
use crate::evaluate::{Arrival, LimitReport, Peaks, Point, RuleSet, Run, RunOptions, Search, Suggestion, UpTo};
use crate::observe::sample::Sampling;

/// The most memory of a replay's counters, in bytes. With the ring, its queue, and a copy of its list, this is below 32
/// MiB.
pub(super) const MOST_BYTES: usize = 12 << 20;

/// The most rules in an answer, and the most keys of a rule.
const MOST_RULES: usize = 500;
const MOST_KEYS: usize = 25;

/// Number of requests replayed between two checks of the time limit.
const BETWEEN_LOOKS: usize = 1_024;

/// The content of the ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kept {
    /// The share of keys in the settings.
    pub sample: f64,
    /// The share of keys that was replayed, which is lower for a busy service, or if there is too little memory for
    /// counters.
    pub sample_now: f64,
    /// Number of instances that share the requests of a key.
    pub replicas: u32,
    /// Number of requests replayed.
    pub requests: usize,
    /// Time of the first request (RFC 3339).
    pub first: Option<String>,
    /// Time of the last request.
    pub last: Option<String>,
    /// Number of seconds that the requests cover.
    pub seconds: u64,
    /// Number of requests dropped since the start because the queue was full.
    pub dropped: u64,
}

/// The limits that the requests of the ring used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overview {
    /// The content of the ring.
    #[serde(flatten)]
    pub kept: Kept,
    /// Limits, those with the most decisions first.
    pub rules: Vec<RuleLine>,
    /// Number of limits left out.
    pub more_rules: usize,
}

/// The results of a limit in force for the ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleLine {
    /// Domain of the rule.
    pub domain: String,
    /// Label of the limit.
    pub rule: String,
    /// The limit in words.
    pub limit: String,
    /// Number of decisions.
    pub decisions: u64,
    /// Number of denials.
    pub denied: u64,
    /// Number of keys.
    pub keys: u64,
    /// Number of keys with a denial.
    pub keys_denied: u64,
}

/// A limit without its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitOfRule {
    /// Number of hits.
    pub number: u64,
    /// Algorithm.
    pub algorithm: &'static str,
    /// Period in milliseconds.
    pub period_ms: u64,
}

/// The effect of another limit on the requests of the ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The content of the ring.
    #[serde(flatten)]
    pub kept: Kept,
    /// The limit in force.
    pub in_force: LimitOfRule,
    /// The other limit.
    pub tried: LimitOfRule,
    /// Results of the limit in force.
    pub now: LimitReport,
    /// Results of the other limit.
    pub then: LimitReport,
    /// Distribution of each key's highest demand within a period.
    pub peaks: Vec<UpTo>,
    /// The number that was searched for, with the denials at other numbers.
    pub suggestion: Option<Suggestion>,
}

/// The data of a replay.
pub(super) struct Scene {
    pub(super) sampling: Arc<Sampling<1>>,
    events: Vec<Event>,
    pub(super) seconds: u64,
    dropped: u64,
    pub(super) replicas: u32,
    pub(super) factor: f64,
    end: Instant,
}

impl WhatIf {
    /// Returns the limits that the requests of the ring and of other instances used. This takes seconds if there are
    /// many requests.
    ///
    /// # Errors
    /// Fails if the requests cannot be replayed.
    pub fn overview(&self, others: &Others) -> Result<Overview, WhatIfError> {
        self.replay(others, |scene| {
            let mut run = self.run(scene, None);
            scene.each(|arrival| run.decide(arrival).map(drop))?;
            let mut limits = run.limit_reports(0);
            limits.retain(|limit| !limit.not_replayed);
            limits.sort_by_key(|limit| Reverse(limit.decisions));
            let more_rules = limits.len().saturating_sub(MOST_RULES);
            let rules = limits.into_iter().take(MOST_RULES).map(RuleLine::new).collect();
            Ok(Overview { kept: self.kept(scene), rules, more_rules })
        })
    }

    /// Returns the effect of another limit on the requests of the ring and of other instances.
    ///
    /// # Errors
    /// Fails if the limit is invalid, or if the requests cannot be replayed.
    pub fn ask(&self, question: &Question, others: &Others) -> Result<Trial, WhatIfError> {
        self.replay(others, |scene| self.try_on(scene, question))
    }

    /// Replays all keys. While there is too little memory for their counters, it retries with half of the keys.
    pub(super) fn replay<T>(
        &self,
        others: &Others,
        replay: impl Fn(&Scene) -> Result<T, Trouble>,
    ) -> Result<T, WhatIfError> {
        let stream = self.stream(others).ok_or(WhatIfError::NoRules)?;
        let Stream { sampling, events, places: _, seconds, dropped, replicas, factor } = stream;
        let mut scene =
            Scene { sampling, events, seconds, dropped, replicas, factor, end: Instant::now() + self.options.longest };
        loop {
            match replay(&scene) {
                Ok(told) => return Ok(told),
                Err(Trouble::Other(error)) => return Err(error),
                Err(Trouble::Room) if scene.events.is_empty() => return Err(WhatIfError::NoRoom),
                Err(Trouble::Room) => scene.halve(),
            }
        }
    }

    fn try_on(&self, scene: &Scene, question: &Question) -> Result<Trial, Trouble> {
        let (rule, of_rule, in_force) = find(scene.rules(), question)?;
        let tried = other(&in_force, question).map_err(WhatIfError::Limit)?;
        if in_force.algorithm().has_holders() || tried.algorithm().has_holders() {
            return Err(WhatIfError::Concurrency.into());
        }
        // One replay after the other, so that each may use all of the memory.
        let now = {
            let mut run = self.run(scene, None);
            scene.each(|arrival| run.decide(arrival).map(drop))?;
            run.limit_report((rule, of_rule), MOST_KEYS)
        };
        let mut peaks = Peaks::new(of_rule.id, tried.period_ms());
        let (then, search) = {
            let mut run = self.run(scene, Some((of_rule.id, tried)));
            scene.each(|arrival| {
                let decision = run.decide(arrival)?;
                decision.iter().for_each(|decision| peaks.add(arrival, decision));
                Ok(())
            })?;
            let search = question.goal.map(|goal| Search::of(goal, &run, |limit| limit.id == of_rule.id));
            (run.limit_report((rule, of_rule), MOST_KEYS), search)
        };
        let suggestion = search.map(|search| self.suggest(scene, search)).transpose()?.flatten();
        let replicas = u64::from(scene.replicas);
        let whole = |UpTo { hits, keys }| UpTo { hits: hits * replicas, keys };
        Ok(Trial {
            kept: self.kept(scene),
            in_force: LimitOfRule::new(&in_force),
            tried: LimitOfRule::new(&tried),
            now,
            then,
            peaks: peaks.spread().into_iter().map(whole).collect(),
            suggestion,
        })
    }

    /// Returns the number for all instances together that denies no more than the goal.
    fn suggest(&self, scene: &Scene, mut search: Search<'_>) -> Result<Option<Suggestion>, Trouble> {
        while !search.is_done() {
            scene.each(|arrival| search.decide(arrival))?;
            search.narrow();
        }
        let whole = |number: u64| number.saturating_mul(scene.replicas.into());
        Ok(search.suggestions().into_iter().next().map(|suggestion| Suggestion {
            number: suggestion.number.map(whole),
            present: whole(suggestion.present),
            curve: suggestion.curve.iter().map(|point| Point { number: whole(point.number), ..*point }).collect(),
            ..suggestion
        }))
    }

    /// Returns a run of the rules in force, in which another limit may replace one of them.
    fn run<'s>(&'s self, scene: &'s Scene, tried: Option<(usize, Limit)>) -> Run<'s> {
        let rules = RuleSet { tried, replicas: scene.replicas, ..RuleSet::new(scene.rules(), &self.options.plan) };
        Run::new(rules, RunOptions { values: self.options.values.clone(), most_bytes: MOST_BYTES })
    }

    pub(super) fn kept(&self, scene: &Scene) -> Kept {
        let time = |(at_ms, _): &Event| timestamp(*at_ms);
        Kept {
            sample: self.options.sample,
            sample_now: scene.sampling.share().as_ratio(),
            replicas: scene.replicas,
            requests: scene.events.len(),
            first: scene.events.first().map(time),
            last: scene.events.last().map(time),
            seconds: scene.seconds,
            dropped: scene.dropped,
        }
    }
}

impl Scene {
    pub(super) fn rules(&self) -> &Rules {
        (*self.sampling.rules()[0]).as_ref()
    }

    /// Calls `visit` for every request with a sampled key.
    pub(super) fn each(&self, mut visit: impl FnMut(Arrival<'_>) -> Result<(), StoreError>) -> Result<(), Trouble> {
        for (index, (at_ms, request)) in self.events.iter().enumerate() {
            if index.is_multiple_of(BETWEEN_LOOKS) && Instant::now() >= self.end {
                return Err(WhatIfError::TooLong.into());
            }
            let Some(outside) = self.sampling.outside(request) else { continue };
            // A memory store fails only for lack of memory.
            visit(Arrival { at_ms: *at_ms, request, outside: &outside, lasts_ms: None }).map_err(|_| Trouble::Room)?;
        }
        Ok(())
    }

    fn halve(&mut self) {
        self.sampling = Arc::new(self.sampling.half());
        self.events.retain(|(_, request)| self.sampling.picks_any(request));
    }
}

/// The reason why a replay stopped early.
pub(super) enum Trouble {
    /// There is too little memory for counters.
    Room,
    Other(WhatIfError),
}

impl From<WhatIfError> for Trouble {
    fn from(error: WhatIfError) -> Self {
        Trouble::Other(error)
    }
}

fn find<'r>(rules: &'r Rules, question: &Question) -> Result<(&'r Rule, &'r RuleLimit, Limit), WhatIfError> {
    let Question { domain, rule: name, .. } = question;
    let is_it = |(rule, limit): &(&Rule, &RuleLimit)| *rule.domain == **domain && *limit.label == **name;
    let (rule, of_rule) =
        rules.limits().find(is_it).ok_or_else(|| WhatIfError::NoLimit(name.clone(), domain.clone()))?;
    match of_rule.config.allowance {
        Allowance::Limited(limit) => Ok((rule, of_rule, limit)),
        Allowance::Unlimited => Err(WhatIfError::NoLimit(name.clone(), domain.clone())),
    }
}

/// Returns the limit in question.
fn other(limit: &Limit, question: &Question) -> Result<Limit, LimitErrors> {
    let algorithm = question.algorithm.unwrap_or(limit.algorithm());
    let period = question.period_ms.map_or(limit.period(), Duration::from_millis);
    Limit::new(algorithm, question.number.unwrap_or(limit.number()), period, limit.options().of(algorithm))
}

impl LimitOfRule {
    fn new(limit: &Limit) -> LimitOfRule {
        let algorithm = limit.algorithm().name();
        LimitOfRule { number: limit.number(), algorithm, period_ms: limit.period_ms() }
    }
}

impl RuleLine {
    fn new(limit: LimitReport) -> RuleLine {
        let LimitReport { domain, rule, limit, decisions, denied, keys, keys_denied, .. } = limit;
        RuleLine { domain, rule, limit, decisions, denied, keys, keys_denied }
    }
}
