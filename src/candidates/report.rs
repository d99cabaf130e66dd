//! What is known of candidates, as `GET /candidates` tells it.

use std::cmp::Reverse;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::tally::RuleTally;
use super::trial::Trial;

/// So many rules are told at most, those that differ most first.
const MOST_RULES: usize = 500;

/// What is known of candidates. Times are RFC 3339.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Where they are.
    pub files: Vec<String>,
    /// What is wrong with the files as they are now; those before are compared then.
    pub refused: Option<String>,
    /// The version of the candidates that are compared. `None`: nothing is.
    pub version: Option<String>,
    /// Since when.
    pub since: Option<String>,
    /// The share of keys that the settings want.
    pub sample: f64,
    /// The share that there is room for.
    pub sample_now: f64,
    /// Requests that both sets of rules have decided.
    pub compared: u64,
    /// Those that the candidates alone deny.
    pub newly_denied: u64,
    /// Those that the rules in force alone deny.
    pub newly_allowed: u64,
    /// How many limits the candidates add, remove and change, in words.
    pub changed: String,
    /// What they change, limit by limit; the first of many.
    pub changes: Vec<String>,
    /// By rule, those that differ most first.
    pub rules: Vec<RuleReport>,
    /// There are so many more.
    pub more_rules: usize,
    /// There may be more keys that are decided otherwise than are told apart.
    pub more_keys: bool,
}

/// What is known of a rule, of either set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    /// Its domain.
    pub domain: String,
    /// What it is called everywhere.
    pub rule: String,
    /// Requests that asked it, and that both sets decided alike.
    pub agreed: u64,
    /// Requests that it denies as a candidate, and that the rules in force let pass.
    pub newly_denied: u64,
    /// Requests that it denies in force, and that the candidates let pass.
    pub newly_allowed: u64,
    /// Of how many keys requests are newly denied.
    pub keys_newly_denied: u64,
    /// Of how many they are newly allowed.
    pub keys_newly_allowed: u64,
    /// The last requests that differ, of different keys.
    pub examples: Vec<Example>,
}

/// A request that is decided otherwise. It holds what clients send, as far as values are shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    /// When it came last.
    pub at: String,
    /// What it asked.
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
