//! Results of evaluations, for people and as JSON. Times are in RFC 3339 format.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::comparison::{Comparison, Difference, OfRule};
use super::run::Run;
use super::suggestion::{Denied, Found, Goal, Search, Target};
use crate::engine::clock::timestamp;
use crate::engine::descriptor::{self, Role, counted};
use crate::engine::rules::{Place, Rule, RuleLimit};

/// The most rules in the differences of two sets of rules.
const MOST_RULES: usize = 500;

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OldLimit {
    /// Number of denials.
    pub denied: u64,
    /// Number of keys with a denial.
    pub keys_denied: u64,
}

/// The requests that two sets of rules decide differently.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Differences {
    /// Number of requests decided by both sets of rules.
    pub compared: u64,
    /// Number of requests denied only by the new rules.
    pub newly_denied: u64,
    /// Number of requests denied only by the old rules.
    pub newly_allowed: u64,
    /// Results by rule, those with the most differences first. A request that several limits deny counts for each.
    pub rules: Vec<RuleDifferences>,
    /// Number of rules left out.
    pub more_rules: usize,
    /// Whether more keys may be decided differently than can be told apart.
    pub more_keys: bool,
}

/// Formats the requests that are decided differently, in lines that are indented, by the limits that deny them.
impl Display for Differences {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write(f, Difference::NewlyDenied)?;
        self.write(f, Difference::NewlyAllowed)?;
        match self.more_rules {
            0 => Ok(()),
            more => writeln!(f, "  {more} more limits are left out"),
        }
    }
}

impl Differences {
    /// Writes the requests with one kind of difference.
    pub(super) fn write(&self, f: &mut Formatter<'_>, difference: Difference) -> fmt::Result {
        let is_denial = difference == Difference::NewlyDenied;
        let (requests, words, by) = match is_denial {
            true => (self.newly_denied, "newly denied", "by"),
            false => (self.newly_allowed, "no longer denied", "by the old"),
        };
        writeln!(f, "  {} {words}", counted(requests, "request"))?;
        for rule in &self.rules {
            let (requests, keys) = match is_denial {
                true => (rule.newly_denied, rule.keys_newly_denied),
                false => (rule.newly_allowed, rule.keys_newly_allowed),
            };
            if requests == 0 {
                continue;
            }
            let keys = counted(keys as u64, "key");
            writeln!(f, "    {requests} {by} {}: {}, {keys}", rule.domain, rule.rule)?;
            let mut examples = rule.examples.iter().filter(|example| example.outcome == difference.name());
            examples.try_for_each(|example| writeln!(f, "      {}  {}", example.at, example.asked))?;
        }
        Ok(())
    }
}

/// The differences of a rule in either set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleDifferences {
    /// Domain of the rule.
    pub domain: String,
    /// The rule's label.
    pub rule: String,
    /// Number of its requests that both sets decide alike.
    pub agreed: u64,
    /// Number of requests that it denies in the new rules, while the old rules allow them.
    pub newly_denied: u64,
    /// Number of requests that it denies in the old rules, while the new rules allow them.
    pub newly_allowed: u64,
    /// Number of keys with newly denied requests.
    pub keys_newly_denied: usize,
    /// Number of keys with newly allowed requests.
    pub keys_newly_allowed: usize,
    /// The latest requests with a difference, each of them once.
    pub examples: Vec<Example>,
}

/// A request that two sets of rules decide differently. It contains values from clients as far as they are shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Example {
    /// Time of its latest occurrence.
    pub at: String,
    /// The request.
    pub asked: String,
    /// The difference: `newly_denied` or `newly_allowed`.
    pub outcome: Cow<'static, str>,
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
    pub number: Option<u64>,
    /// The number in the rules.
    pub present: u64,
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
    pub number: u64,
    /// Number of keys with a denial.
    pub keys_denied: u64,
    /// Number of denied requests.
    pub requests_denied: u64,
}

impl Run<'_> {
    /// Returns the results of a limit of its rules, with up to `most_keys` of the keys that it denied most.
    pub fn limit_report(&self, limit: (&Rule, &RuleLimit), most_keys: usize) -> LimitReport {
        LimitReport::new(self, limit, most_keys)
    }

    /// Returns the results of all limits that were asked, with up to `most_keys` of the keys that each denied most.
    pub fn limit_reports(&self, most_keys: usize) -> Vec<LimitReport> {
        let asked = self.rules.rules.limits().filter(|(_, limit)| self.tallies[limit.id].decisions > 0);
        asked.map(|limit| self.limit_report(limit, most_keys)).collect()
    }
}

impl Search<'_> {
    /// Returns the numbers found, by limit.
    pub fn suggestions(&self) -> Vec<Suggestion> {
        let limits: Vec<_> = self.rules.rules.limits().collect();
        self.targets.iter().map(|target| Suggestion::new(self.goal, limits[target.id], target)).collect()
    }
}

impl Comparison {
    /// Returns the results so far.
    pub fn report(&self) -> Differences {
        let all = self
            .rules
            .iter()
            .flat_map(|(domain, rules)| rules.iter().map(move |(rule, of_rule)| ((&**domain, &**rule), of_rule)));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(name, of_rule)| (Reverse(of_rule.newly_denied + of_rule.newly_allowed), *name));
        let [compared, newly_denied, newly_allowed] = self.counts();
        Differences {
            compared,
            newly_denied,
            newly_allowed,
            more_rules: all.len().saturating_sub(MOST_RULES),
            rules: all.into_iter().take(MOST_RULES).map(RuleDifferences::new).collect(),
            more_keys: self.has_more_keys(),
        }
    }
}

impl RuleDifferences {
    fn new(((domain, rule), of_rule): ((&str, &str), &OfRule)) -> RuleDifferences {
        let example = |(at_ms, difference, asked): &(u64, Difference, String)| Example {
            at: timestamp(*at_ms),
            asked: asked.clone(),
            outcome: difference.name().into(),
        };
        RuleDifferences {
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            agreed: of_rule.agreed,
            newly_denied: of_rule.newly_denied,
            newly_allowed: of_rule.newly_allowed,
            keys_newly_denied: of_rule.keys_newly_denied.len(),
            keys_newly_allowed: of_rule.keys_newly_allowed.len(),
            examples: of_rule.examples.iter().map(example).collect(),
        }
    }
}

impl LimitReport {
    fn new(run: &Run<'_>, (rule, limit): (&Rule, &RuleLimit), most: usize) -> LimitReport {
        let tally = &run.tallies[limit.id];
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
            file: run.rules.rules.origin(place).map(|origin| origin.name.display().to_string()),
            line: place.line.map(Into::into),
            role: match run.rules.options.role(rule.role) {
                Role::Enforced => "enforced",
                Role::Quota => "quota_mode",
                Role::Shadow => "shadow_mode",
            },
            not_replayed: has_holders && !run.has_streams() && !run.rules.has_releases,
            decisions: tally.decisions,
            allowed: tally.decisions - tally.denied,
            denied: tally.denied,
            keys,
            keys_denied,
            first_denied: tally.denied_between_ms.map(|(first, _)| timestamp(first)),
            last_denied: tally.denied_between_ms.map(|(_, last)| timestamp(last)),
            worst_minute: (worst.denied > 0)
                .then(|| WorstMinute { begin: timestamp(worst.begin_ms), denied: worst.denied }),
            most_denied: most_denied.collect(),
            old: None,
        }
    }
}

impl Suggestion {
    fn new(goal: Goal, (rule, limit): (&Rule, &RuleLimit), target: &Target) -> Suggestion {
        let point = |(number, denied): (&u64, &Denied)| Point {
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
