//! The report on candidates for `GET /candidates`.

use std::cmp::Reverse;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::tally::RuleTally;
use super::trial::Trial;

/// The most rules in a report, those with the most differences first.
const MOST_RULES: usize = 500;

/// The results for candidates. Times are in RFC 3339 format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Paths of the candidate files.
    pub files: Vec<String>,
    /// The error in the present files. The previous candidates are then still compared.
    pub refused: Option<String>,
    /// Version of the candidates under comparison; `None` if there are none.
    pub version: Option<String>,
    /// Start of the comparison.
    pub since: Option<String>,
    /// The share of keys in the settings.
    pub sample: f64,
    /// The share of keys that there is memory for.
    pub sample_now: f64,
    /// Number of requests decided by both sets of rules.
    pub compared: u64,
    /// Number of requests denied only by the candidates.
    pub newly_denied: u64,
    /// Number of requests denied only by the rules in force.
    pub newly_allowed: u64,
    /// How many limits the candidates add, remove and change, in words.
    pub changed: String,
    /// The changes for each limit; the first of them if there are many.
    pub changes: Vec<String>,
    /// Results by rule, those with the most differences first.
    pub rules: Vec<RuleReport>,
    /// Number of rules left out.
    pub more_rules: usize,
    /// Whether more keys may be decided differently than can be told apart.
    pub more_keys: bool,
}

/// The results for a rule in either set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    /// Domain of the rule.
    pub domain: String,
    /// The rule's label.
    pub rule: String,
    /// Number of its requests that both sets decided the same.
    pub agreed: u64,
    /// Number of requests that it denies as a candidate, while the rules in force allow them.
    pub newly_denied: u64,
    /// Number of requests that it denies in force, while the candidates allow them.
    pub newly_allowed: u64,
    /// Number of keys with newly denied requests.
    pub keys_newly_denied: u64,
    /// Number of keys with newly allowed requests.
    pub keys_newly_allowed: u64,
    /// The latest requests with a difference, each of a different key.
    pub examples: Vec<Example>,
}

/// A request that the two sets decide differently. It contains values from clients as far as they are shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    /// Time of its latest occurrence.
    pub at: String,
    /// The request.
    pub asked: String,
}

impl Report {
    pub(super) fn new(files: &[String], sample: f64, refused: Option<String>, trial: Option<&Trial>) -> Report {
        let none = Report {
            files: files.to_vec(),
            refused,
            version: None,
            since: None,
            sample,
            sample_now: 0.0,
            compared: 0,
            newly_denied: 0,
            newly_allowed: 0,
            changed: String::new(),
            changes: Vec::new(),
            rules: Vec::new(),
            more_rules: 0,
            more_keys: false,
        };
        let Some(Trial { sampling, summary, begin_ms, tally, .. }) = trial else { return none };
        let all =
            tally.rules.iter().flat_map(|(domain, rules)| rules.iter().map(move |(rule, of)| (&**domain, &**rule, of)));
        let mut all: Vec<_> = all.collect();
        let differing = |of: &RuleTally| of.newly_denied + of.newly_allowed;
        all.sort_by_key(|(domain, rule, of)| (Reverse(differing(of)), *domain, *rule));
        Report {
            version: Some((*sampling.rules()[1]).as_ref().version().to_owned()),
            since: Some(time(*begin_ms)),
            sample_now: sampling.share().as_ratio(),
            compared: tally.compared,
            newly_denied: tally.newly_denied,
            newly_allowed: tally.newly_allowed,
            changed: summary.totals.to_string(),
            changes: summary.to_string().lines().map(str::to_owned).collect(),
            more_keys: tally.has_more_keys(),
            more_rules: all.len().saturating_sub(MOST_RULES),
            rules: all.into_iter().take(MOST_RULES).map(RuleReport::new).collect(),
            ..none
        }
    }
}

impl RuleReport {
    fn new((domain, rule, tally): (&str, &str, &RuleTally)) -> RuleReport {
        let RuleTally { agreed, newly_denied, newly_allowed, keys_newly_denied, keys_newly_allowed, examples } = tally;
        let example = |(at_ms, asked): &(u64, String)| Example { at: time(*at_ms), asked: asked.clone() };
        RuleReport {
            domain: domain.to_string(),
            rule: rule.to_string(),
            agreed: *agreed,
            newly_denied: *newly_denied,
            newly_allowed: *newly_allowed,
            keys_newly_denied: *keys_newly_denied,
            keys_newly_allowed: *keys_newly_allowed,
            examples: examples.iter().map(example).collect(),
        }
    }
}

fn time(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}
