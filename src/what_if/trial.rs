//! Replays of the ring.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;

use super::ring::Event;
use super::{Question, WhatIf, WhatIfError};
use crate::algorithm::{Algorithm, Limit, LimitErrors, Options};
use crate::descriptor::Request;
use crate::replay::{LimitReport, Peaks, Point, Read, Report, Run, Search, Suggestion, Trying, UpTo};
use crate::rules::{Allowance, Rule, RuleLimit, Rules};
use crate::sample::Sampling;
use crate::store::StoreError;

/// A replay takes no longer.
pub(super) const LONGEST: Duration = Duration::from_secs(10);

/// What the counters of a replay may take, in bytes. With the ring, what waits for it, and a copy of its list, that is
/// below 32 MiB.
const MOST_BYTES: usize = 12 << 20;

/// So many rules are told at most, and so many keys of one.
const MOST_RULES: usize = 500;
const MOST_KEYS: usize = 25;

/// So many requests are replayed between two looks at the clock.
const BETWEEN_LOOKS: usize = 1_024;

/// What the ring has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kept {
    /// The share of keys that the settings want.
    pub sample: f64,
    /// The share that was replayed: less where counters have no room.
    pub sample_now: f64,
    /// Among so many processes a key's requests are divided.
    pub replicas: u32,
    /// How many requests were replayed.
    pub requests: usize,
    /// When the first came (RFC 3339).
    pub first: Option<String>,
    /// When the last came.
    pub last: Option<String>,
    /// So many requests were not kept since the start, because too many waited.
    pub dropped: u64,
}

/// The limits that the requests of the ring have reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overview {
    /// What the ring has.
    #[serde(flatten)]
    pub kept: Kept,
    /// Those that were asked most often first.
    pub rules: Vec<RuleLine>,
    /// There are so many more.
    pub more_rules: usize,
}

/// What a limit in force says of the ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleLine {
    /// Its domain.
    pub domain: String,
    /// What it is called.
    pub rule: String,
    /// What it says, in words.
    pub limit: String,
    /// How often it was asked.
    pub decisions: u64,
    /// How often it denies.
    pub denied: u64,
    /// How many keys it counts.
    pub keys: u64,
    /// How many of them it denies something.
    pub keys_denied: u64,
}

/// A limit, without its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitOfRule {
    /// Its number.
    pub number: u32,
    /// How it counts.
    pub algorithm: &'static str,
    /// Its period, in milliseconds.
    pub period_ms: u64,
}

/// What another limit does with the requests of the ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// What the ring has.
    #[serde(flatten)]
    pub kept: Kept,
    /// The limit in force.
    pub in_force: LimitOfRule,
    /// The one that is tried.
    pub tried: LimitOfRule,
    /// What the one in force says.
    pub now: LimitReport,
    /// What the other one says.
    pub then: LimitReport,
    /// How the most that each key asks for within a period is spread.
    pub peaks: Vec<UpTo>,
    /// The number that was searched, with what other numbers deny.
    pub suggestion: Option<Suggestion>,
}

/// What is replayed.
struct Scene {
    sampling: Arc<Sampling<1>>,
    events: Vec<Event>,
    dropped: u64,
    end: Instant,
}

/// Takes the descriptors out of a request that are not in the sample; `false` where none is.
pub(super) fn strip(sampling: &Sampling<1>, request: &mut Request) -> bool {
    let mut picked = sampling.picked(request).into_iter();
    request.descriptors.retain(|_| picked.next().unwrap_or_default());
    !request.descriptors.is_empty()
}

impl WhatIf {
    /// The limits that the requests of the ring have reached. A matter of seconds where there are many.
    ///
    /// # Errors
    /// Where it cannot be replayed.
    pub fn overview(&self) -> Result<Overview, WhatIfError> {
        self.replay(|scene| {
            let mut run = Run::trying(scene.rules(), &self.options.plan, self.trying(None));
            scene.each(|at_ms, request| run.decide_at(at_ms, request).map(drop))?;
            let mut limits = Report::new(Read::default(), &run).limits;
            limits.retain(|limit| !limit.not_replayed);
            limits.sort_by_key(|limit| Reverse(limit.decisions));
            let more_rules = limits.len().saturating_sub(MOST_RULES);
            let rules = limits.into_iter().take(MOST_RULES).map(RuleLine::new).collect();
            Ok(Overview { kept: self.kept(scene), rules, more_rules })
        })
    }

    /// What another limit does with them.
    ///
    /// # Errors
    /// Where there is no such limit, or it cannot be replayed.
    pub fn ask(&self, question: &Question) -> Result<Trial, WhatIfError> {
        self.replay(|scene| self.try_on(scene, question))
    }

    /// Replays with half of the keys where the counters of all have no room, and again.
    fn replay<T>(&self, replay: impl Fn(&Scene) -> Result<T, Trouble>) -> Result<T, WhatIfError> {
        self.keep();
        let mut scene = {
            let state = self.state.lock();
            let sampling = self.queue.sampling().ok_or(WhatIfError::NoRules)?;
            Scene { sampling, events: state.ring.events(), dropped: state.dropped, end: Instant::now() + LONGEST }
        };
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
        let (rules, plan) = (scene.rules(), &self.options.plan);
        let found = find(rules, question)?;
        let (rule, of_rule, in_force) = found;
        let tried = other(&in_force, question).map_err(WhatIfError::Limit)?;
        if in_force.algorithm().has_holders() || tried.algorithm().has_holders() {
            return Err(WhatIfError::Concurrency.into());
        }
        let told_by = |limit: Option<Limit>| {
            let limit = limit.map(|limit| (of_rule.id, limit));
            let mut run = Run::trying(rules, plan, self.trying(limit));
            scene.each(|at_ms, request| run.decide_at(at_ms, request).map(drop))?;
            let search = question.goal.filter(|_| limit.is_some());
            let search = search.map(|goal| Search::of(goal, &run, |limit| limit.id == of_rule.id));
            // The counters of the run go before those of the search come.
            Ok::<_, Trouble>((run.told_by((rule, of_rule), MOST_KEYS), search))
        };
        let (now, _) = told_by(None)?;
        let (then, search) = told_by(Some(tried))?;
        let suggestion = search.map(|search| self.suggest(scene, search)).transpose()?.flatten();
        let mut peaks = Peaks::new(rules, plan, (of_rule.id, tried.period_ms()));
        scene.each(|at_ms, request| {
            peaks.add(at_ms, request);
            Ok(())
        })?;
        let replicas = u64::from(self.replicas());
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

    /// The number that denies no more than somebody wants, of all processes together.
    fn suggest(&self, scene: &Scene, mut search: Search<'_>) -> Result<Option<Suggestion>, Trouble> {
        while !search.is_done() {
            scene.each(|at_ms, request| search.decide_at(at_ms, request))?;
            search.narrow();
        }
        let whole = |number: u32| number.saturating_mul(self.replicas());
        Ok(search.suggestions().into_iter().next().map(|suggestion| Suggestion {
            number: suggestion.number.map(whole),
            present: whole(suggestion.present),
            curve: suggestion.curve.iter().map(|point| Point { number: whole(point.number), ..*point }).collect(),
            ..suggestion
        }))
    }

    fn replicas(&self) -> u32 {
        self.options.replicas.max(1)
    }

    fn trying(&self, limit: Option<(usize, Limit)>) -> Trying {
        let values = self.options.values.clone();
        Trying { limit, replicas: self.replicas(), values, most_bytes: MOST_BYTES }
    }

    fn kept(&self, scene: &Scene) -> Kept {
        let time = |(at_ms, _): &Event| {
            humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(*at_ms)).to_string()
        };
        Kept {
            sample: self.options.sample,
            sample_now: scene.sampling.share().as_ratio(),
            replicas: self.replicas(),
            requests: scene.events.len(),
            first: scene.events.first().map(time),
            last: scene.events.last().map(time),
            dropped: scene.dropped,
        }
    }
}

impl Scene {
    fn rules(&self) -> &Rules {
        (*self.sampling.rules()[0]).as_ref()
    }

    /// Visits every request.
    fn each(&self, mut visit: impl FnMut(u64, &Request) -> Result<(), StoreError>) -> Result<(), Trouble> {
        for some in self.events.chunks(BETWEEN_LOOKS) {
            if Instant::now() >= self.end {
                return Err(WhatIfError::TooLong.into());
            }
            // A memory store fails for want of room alone.
            some.iter().try_for_each(|(at_ms, request)| visit(*at_ms, request)).map_err(|_| Trouble::Room)?;
        }
        Ok(())
    }

    fn halve(&mut self) {
        self.sampling = Arc::new(self.sampling.half());
        let sampling = &self.sampling;
        self.events.retain_mut(|(_, request)| {
            if sampling.picked(request).iter().all(|is_picked| *is_picked) {
                return true;
            }
            strip(sampling, Arc::make_mut(request))
        });
    }
}

/// Why a replay ends before its end.
enum Trouble {
    /// The counters have no room.
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

/// The limit that somebody asks about.
fn other(limit: &Limit, question: &Question) -> Result<Limit, LimitErrors> {
    let algorithm = question.algorithm.unwrap_or(limit.algorithm());
    let period = question.period_ms.map_or(limit.period(), Duration::from_millis);
    Limit::new(algorithm, question.number.unwrap_or(limit.number()), period, options_of(algorithm, limit.options()))
}

/// Those of the options that an algorithm has.
fn options_of(algorithm: Algorithm, options: Options) -> Options {
    let has = |option: &str| algorithm.options().contains(&option);
    Options {
        count_denied: options.count_denied,
        burst: options.burst.filter(|_| has("burst")),
        max_delay: options.max_delay.filter(|_| has("max_delay")),
        initial: options.initial.filter(|_| has("initial")),
        segments: options.segments.filter(|_| has("segments")),
        weighting: options.weighting.filter(|_| has("weighting")),
        time_zone: options.time_zone.filter(|_| has("time_zone")),
    }
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
