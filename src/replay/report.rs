//! What a replay has come to: one type tells all of it, as JSON and as text.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::comparison::{ByLimit, Comparison, Difference};
use super::run::Run;
use super::source::Read;
use super::suggestion::{Denied, Found, Goal, Search, Target};
use super::tally::Tally;
use crate::descriptor::{self, Role};
use crate::rules::{Place, Rule, RuleLimit, Rules};

/// So many of the keys that a limit denies most are told.
const MOST_DENIED: usize = 5;

/// What rules would have done with the requests of a log. Times are RFC 3339.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was read.
    pub log: Read,
    /// All requests.
    pub requests: u64,
    /// The requests that are denied.
    pub denied: u64,
    /// Requests that would be denied, but for the global shadow mode.
    pub would_be_denied: u64,
    /// Requests that pass after a delay.
    pub delayed: u64,
    /// Requests that no limit applies to.
    pub without_limit: u64,
    /// Requests that the service would call invalid, because they ask for too much work.
    pub invalid: u64,
    /// When the first came.
    pub first: Option<String>,
    /// When the last came.
    pub last: Option<String>,
    /// There were more keys than are told apart.
    pub more_keys: bool,
    /// The limits that requests have reached, in the order of the rules.
    pub limits: Vec<LimitReport>,
    /// How many limits none has reached.
    pub limits_not_reached: usize,
    /// What other rules decide otherwise.
    pub against: Option<Against>,
    /// Other numbers.
    pub suggestions: Vec<Suggestion>,
}

/// What one limit has said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitReport {
    /// Its domain.
    pub domain: String,
    /// What it is called everywhere.
    pub rule: String,
    /// `5 per minute`.
    pub limit: String,
    /// The file that says so.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u32>,
    /// What a denial means: `enforced`, `quota_mode` or `shadow_mode`.
    pub role: &'static str,
    /// It is not replayed, because no log says when a stream ends.
    pub not_replayed: bool,
    /// How often it was asked.
    pub decisions: u64,
    /// How often it let pass.
    pub allowed: u64,
    /// How often it denied; in shadow mode: would have.
    pub denied: u64,
    /// How many keys it has counted.
    pub keys: u64,
    /// How many of them it denied something.
    pub keys_denied: u64,
    /// When it denied first.
    pub first_denied: Option<String>,
    /// When it denied last.
    pub last_denied: Option<String>,
    /// The minute in which it denied most.
    pub worst_minute: Option<WorstMinute>,
    /// Whom it denied most.
    pub most_denied: Vec<KeyReport>,
    /// What the limit of this name denies by the rules that are compared with.
    pub old: Option<OldLimit>,
}

/// The minute in which a limit denied most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstMinute {
    /// When it began.
    pub begin: String,
    /// How often it denied.
    pub denied: u64,
}

/// What a limit has said to one key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyReport {
    /// The entries that it counts.
    pub key: String,
    /// How often it was asked.
    pub decisions: u64,
    /// How often it denied.
    pub denied: u64,
}

/// What a limit denied by the rules that are compared with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OldLimit {
    /// How often.
    pub denied: u64,
    /// How many keys.
    pub keys_denied: u64,
}

/// What other rules decide otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// The requests that they deny.
    pub denied: u64,
    /// What they let pass, and the new rules deny.
    pub newly_denied: Changed,
    /// What they deny, and the new rules let pass.
    pub newly_allowed: Changed,
}

/// Requests that are decided otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changed {
    /// How many.
    pub requests: u64,
    /// By the limits that deny them; a request that several deny counts for each.
    pub limits: Vec<ChangedBy>,
}

/// Requests that are decided otherwise because of one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangedBy {
    /// Its domain.
    pub domain: String,
    /// What it is called.
    pub rule: String,
    /// How many.
    pub requests: u64,
    /// The first of them.
    pub examples: Vec<Example>,
}

/// A request that is decided otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    /// When it came.
    pub time: String,
    /// What it asks.
    pub request: String,
}

/// Another number of a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// Its domain.
    pub domain: String,
    /// What it is called.
    pub rule: String,
    /// What its number is for: `per minute`.
    pub per: String,
    /// At most so many in a hundred are denied.
    pub percent: f64,
    /// Of what: `keys` or `requests`.
    pub of: &'static str,
    /// The least number that does so; `None` where all that were tried deny more.
    pub number: Option<u32>,
    /// The number that the rules have.
    pub present: u32,
    /// How many keys it counts.
    pub keys: u64,
    /// How many requests it counts.
    pub requests: u64,
    /// What each number denies that was tried, the least first.
    pub curve: Vec<Point>,
}

/// What a number denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The number.
    pub number: u32,
    /// So many keys are denied something.
    pub keys_denied: u64,
    /// So many requests are denied.
    pub requests_denied: u64,
}

impl Report {
    /// What rules have done with what was read.
    pub fn new(log: Read, run: &Run<'_>) -> Report {
        let limits: Vec<_> = run.rules.limits().map(|(rule, limit)| (rule, limit, &run.tallies[limit.id])).collect();
        let reached = limits.iter().filter(|(.., tally)| tally.decisions > 0);
        let reached: Vec<_> =
            reached.map(|(rule, limit, tally)| LimitReport::new(run, (*rule, *limit), tally, MOST_DENIED)).collect();
        Report {
            log,
            requests: run.totals.requests,
            denied: run.totals.denied,
            would_be_denied: run.totals.would_be_denied,
            delayed: run.totals.delayed,
            without_limit: run.totals.unlimited,
            invalid: run.totals.invalid,
            first: run.totals.between_ms.map(|(first, _)| time(first)),
            last: run.totals.between_ms.map(|(_, last)| time(last)),
            more_keys: run.room.is_used_up(),
            limits_not_reached: limits.len() - reached.len(),
            limits: reached,
            against: None,
            suggestions: Vec::new(),
        }
    }

    /// The same with what other rules decide otherwise.
    #[must_use]
    pub fn against(mut self, old: &Run<'_>, new: &Run<'_>, comparison: &Comparison) -> Report {
        let by_name: HashMap<(&str, &str), &Tally> =
            old.rules.limits().map(|(rule, limit)| ((&*rule.domain, &*limit.label), &old.tallies[limit.id])).collect();
        for limit in &mut self.limits {
            let tally = by_name.get(&(&*limit.domain, &*limit.rule));
            limit.old = tally.map(|tally| OldLimit { denied: tally.denied, keys_denied: tally.keys().1 });
        }
        self.against = Some(Against {
            denied: old.totals.denied,
            newly_denied: Changed::new(new.rules, &comparison.newly_denied),
            newly_allowed: Changed::new(old.rules, &comparison.newly_allowed),
        });
        self
    }

    /// The same with the numbers that a search has found.
    #[must_use]
    pub fn suggesting(mut self, search: &Search<'_>) -> Report {
        self.suggestions = search.suggestions();
        self
    }
}

impl Run<'_> {
    /// What a limit of its rules has said, with so many of the keys that it denied most.
    pub fn told_by(&self, limit: (&Rule, &RuleLimit), most_keys: usize) -> LimitReport {
        LimitReport::new(self, limit, &self.tallies[limit.1.id], most_keys)
    }
}

impl Search<'_> {
    /// What it has found, by limit.
    pub fn suggestions(&self) -> Vec<Suggestion> {
        let limits: Vec<_> = self.rules.limits().collect();
        self.targets.iter().map(|target| Suggestion::new(self.goal, limits[target.id], target)).collect()
    }
}

impl LimitReport {
    fn new(run: &Run<'_>, (rule, limit): (&Rule, &RuleLimit), tally: &Tally, most: usize) -> LimitReport {
        let (words, has_holders) = match run.limit(limit) {
            None => (String::new(), false),
            Some((_, limit)) => {
                let words = format!("{} {}", limit.number(), descriptor::per_of(&limit));
                (words, limit.algorithm().has_holders())
            }
        };
        let place = Place { line: limit.line, ..rule.place };
        let (keys, keys_denied) = tally.keys();
        let worst = tally.worst_minute;
        let most_denied = tally.most_denied(most).into_iter().map(|(name, key)| KeyReport {
            key: name.to_owned(),
            decisions: key.decisions,
            denied: key.denied,
        });
        LimitReport {
            domain: rule.domain.to_string(),
            rule: limit.label.to_string(),
            limit: words,
            file: run.rules.origin(place).map(|origin| origin.name.display().to_string()),
            line: place.line.map(Into::into),
            role: match run.options.role(rule.role) {
                Role::Enforced => "enforced",
                Role::Quota => "quota_mode",
                Role::Shadow => "shadow_mode",
            },
            not_replayed: has_holders,
            decisions: tally.decisions,
            allowed: tally.decisions - tally.denied,
            denied: tally.denied,
            keys,
            keys_denied,
            first_denied: tally.denied_between_ms.map(|(first, _)| time(first)),
            last_denied: tally.denied_between_ms.map(|(_, last)| time(last)),
            worst_minute: (worst.denied > 0).then(|| WorstMinute { begin: time(worst.begin_ms), denied: worst.denied }),
            most_denied: most_denied.collect(),
            old: None,
        }
    }
}

impl Changed {
    fn new(rules: &Rules, difference: &Difference) -> Changed {
        let limits = rules.limits().filter_map(|(rule, limit)| {
            let ByLimit { requests, examples } = difference.by_limit.get(&limit.id)?;
            let examples = examples.iter();
            Some(ChangedBy {
                domain: rule.domain.to_string(),
                rule: limit.label.to_string(),
                requests: *requests,
                examples: examples
                    .map(|(at_ms, request)| Example { time: time(*at_ms), request: request.clone() })
                    .collect(),
            })
        });
        Changed { requests: difference.requests, limits: limits.collect() }
    }
}

impl Suggestion {
    fn new(goal: Goal, (rule, limit): (&Rule, &RuleLimit), target: &Target) -> Suggestion {
        let point = |(number, denied): (&u32, &Denied)| Point {
            number: *number,
            keys_denied: denied.keys,
            requests_denied: denied.requests,
        };
        Suggestion {
            domain: rule.domain.to_string(),
            rule: limit.label.to_string(),
            per: descriptor::per_of(&target.limit),
            percent: goal.percent,
            of: goal.of.name(),
            number: match target.found {
                Found::Number(number) => Some(number),
                Found::Searching | Found::None => None,
            },
            present: target.limit.number(),
            keys: target.keys,
            requests: target.decisions,
            curve: target.curve.iter().map(point).collect(),
        }
    }
}

fn time(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}
