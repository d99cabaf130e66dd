//! The report of a replay: one type for both JSON and text.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::comparison::{ByLimit, Comparison, Difference};
use super::run::Run;
use super::source::Read;
use super::suggestion::{Denied, Found, Goal, Search, Target};
use super::tally::Tally;
use crate::engine::descriptor::{self, Role};
use crate::engine::rules::{Place, Rule, RuleLimit, Rules};

/// The most keys in a report that a limit denies most.
const MOST_DENIED: usize = 5;

/// The decisions that rules would have made on the requests of a log. Times are in RFC 3339 format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Summary of the log.
    pub log: Read,
    /// Number of requests.
    pub requests: u64,
    /// Number of denied requests.
    pub denied: u64,
    /// Number of requests that would be denied without global shadow mode.
    pub would_be_denied: u64,
    /// Number of requests that are allowed after a delay.
    pub delayed: u64,
    /// Number of requests that no limit applies to.
    pub without_limit: u64,
    /// Number of requests that the service would reject as invalid because they ask for too much work.
    pub invalid: u64,
    /// Time of the first request.
    pub first: Option<String>,
    /// Time of the last request.
    pub last: Option<String>,
    /// Whether there were more keys than can be told apart.
    pub more_keys: bool,
    /// The limits that were used, in the order of the rules.
    pub limits: Vec<LimitReport>,
    /// Number of limits that were not used.
    pub limits_not_reached: usize,
    /// Comparison with other rules.
    pub against: Option<Against>,
    /// Suggestions of other numbers.
    pub suggestions: Vec<Suggestion>,
}

/// The results of one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitReport {
    /// Domain of the limit.
    pub domain: String,
    /// The limit's label.
    pub rule: String,
    /// The limit in words, such as `5 per minute`.
    pub limit: String,
    /// File that defines it.
    pub file: Option<String>,
    /// Line in the file.
    pub line: Option<u32>,
    /// The effect of a denial: `enforced`, `quota_mode` or `shadow_mode`.
    pub role: &'static str,
    /// Whether the limit is not replayed, because no log shows when a stream ends.
    pub not_replayed: bool,
    /// Number of decisions.
    pub decisions: u64,
    /// Number of requests that it allowed.
    pub allowed: u64,
    /// Number of requests that it denied or, in shadow mode, would have denied.
    pub denied: u64,
    /// Number of keys.
    pub keys: u64,
    /// Number of keys with a denial.
    pub keys_denied: u64,
    /// Time of the first denial.
    pub first_denied: Option<String>,
    /// Time of the last denial.
    pub last_denied: Option<String>,
    /// The minute with the most denials.
    pub worst_minute: Option<WorstMinute>,
    /// The keys with the most denials.
    pub most_denied: Vec<KeyReport>,
    /// Results of the limit with this name in the rules that are compared with.
    pub old: Option<OldLimit>,
}

/// The minute with the most denials of a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstMinute {
    /// Start of the minute.
    pub begin: String,
    /// Number of denials.
    pub denied: u64,
}

/// The results of a limit for one key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyReport {
    /// Entries of the key.
    pub key: String,
    /// Number of decisions.
    pub decisions: u64,
    /// Number of denials.
    pub denied: u64,
}

/// The results of a limit in the rules that are compared with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OldLimit {
    /// Number of denials.
    pub denied: u64,
    /// Number of keys with a denial.
    pub keys_denied: u64,
}

/// The decisions of other rules, as far as they differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// Number of requests that the other rules deny.
    pub denied: u64,
    /// Requests that the other rules allow and the new rules deny.
    pub newly_denied: Changed,
    /// Requests that the other rules deny and the new rules allow.
    pub newly_allowed: Changed,
}

/// Requests with different decisions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changed {
    /// Number of requests.
    pub requests: u64,
    /// Requests by the limits that deny them. A request that several limits deny counts for each.
    pub limits: Vec<ChangedBy>,
}

/// Requests with different decisions because of one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangedBy {
    /// Domain of the limit.
    pub domain: String,
    /// Label of the limit.
    pub rule: String,
    /// Number of requests.
    pub requests: u64,
    /// The first of these requests.
    pub examples: Vec<Example>,
}

/// A request with different decisions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    /// Time of the request.
    pub time: String,
    /// The request.
    pub request: String,
}

/// Another number for a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// Domain of the limit.
    pub domain: String,
    /// Label of the limit.
    pub rule: String,
    /// The period of the number, such as `per minute`.
    pub per: String,
    /// The goal: at most this percentage is denied.
    pub percent: f64,
    /// The base of the percentage: `keys` or `requests`.
    pub of: &'static str,
    /// The smallest number that meets the goal; `None` if all tried numbers deny more.
    pub number: Option<u32>,
    /// The number in the rules.
    pub present: u32,
    /// Number of keys.
    pub keys: u64,
    /// Number of requests.
    pub requests: u64,
    /// Denials by each number that was tried, the smallest first.
    pub curve: Vec<Point>,
}

/// The denials by one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The number.
    pub number: u32,
    /// Number of keys with a denial.
    pub keys_denied: u64,
    /// Number of denied requests.
    pub requests_denied: u64,
}

impl Report {
    /// Creates the report of a run over a log.
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

    /// Adds a comparison with other rules.
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

    /// Adds the numbers that a search found.
    #[must_use]
    pub fn suggesting(mut self, search: &Search<'_>) -> Report {
        self.suggestions = search.suggestions();
        self
    }
}

impl Run<'_> {
    /// Returns the results of a limit of its rules, with up to `most_keys` of the keys that it denied most.
    pub fn told_by(&self, limit: (&Rule, &RuleLimit), most_keys: usize) -> LimitReport {
        LimitReport::new(self, limit, &self.tallies[limit.1.id], most_keys)
    }
}

impl Search<'_> {
    /// Returns the numbers found, by limit.
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
