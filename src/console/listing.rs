//! The rules in force, a page of them at a time, with what has been counted of each.

use serde::Serialize;

use crate::counters::in_words;
use crate::descriptor::Role;
use crate::metrics::{Metrics, RuleReading};
use crate::rules::{Allowance, Rule, RuleLimit, Rules};

/// A page has so many lines at most.
pub const MOST: usize = 500;

/// Which of them.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Those of this domain alone.
    pub domain: Option<String>,
    /// Those whose name or path has this in it, whatever the case of its letters.
    pub search: String,
    /// Those of this failure mode alone.
    pub failure_mode: Option<String>,
    /// The most denied first; else in the order of the rules.
    pub by_denials: bool,
    /// So many are left out at the beginning.
    pub offset: usize,
    /// So many, at most [`MOST`].
    pub limit: usize,
}

/// A page of rules.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listing {
    /// The domains, in the order of their names, and how many limits each has.
    pub domains: Vec<DomainLine>,
    /// So many limits are wanted, on all pages.
    pub total: usize,
    /// Those of this page.
    pub limits: Vec<LimitLine>,
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DomainLine {
    /// What requests call it.
    pub domain: String,
    /// How many limits it has.
    pub limits: usize,
}

/// A limit of a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitLine {
    /// The domain of its rule.
    pub domain: String,
    /// What it is called everywhere.
    pub rule: String,
    /// The path of its rule.
    pub path: String,
    /// Where it stands: `file:line`.
    pub at: Option<String>,
    /// What it says, in words.
    pub limit: String,
    /// How it counts; `None` where it does not.
    pub algorithm: Option<&'static str>,
    /// What it answers while the store is unavailable.
    pub failure_mode: &'static str,
    /// What a denial means: `enforced`, `quota` or `shadow`.
    pub role: &'static str,
    /// What has been counted of it; `None` where no request has asked it since the start.
    pub counted: Option<RuleReading>,
}

impl Listing {
    /// Of these rules. A matter of milliseconds with a hundred thousand.
    pub fn new(rules: &Rules, metrics: &Metrics, wanted: &Wanted) -> Listing {
        let search = wanted.search.to_lowercase();
        let mut domains: Vec<DomainLine> =
            rules.domain_names().map(|name| DomainLine { domain: name.to_owned(), limits: 0 }).collect();
        domains.sort_by(|one, other| one.domain.cmp(&other.domain));
        let mut found = Vec::new();
        for (rule, limit) in rules.limits() {
            if let Ok(at) = domains.binary_search_by(|line| line.domain.as_str().cmp(&rule.domain)) {
                domains[at].limits += 1;
            }
            if wanted.has(rule, limit, &search) {
                found.push((rule, limit));
            }
        }
        if wanted.by_denials {
            let denied = |(rule, limit): &(&Rule, &RuleLimit)| {
                metrics.reading_of(&rule.domain, &limit.label).map_or(0, |reading| reading.over_limit)
            };
            found.sort_by_cached_key(|found| std::cmp::Reverse(denied(found)));
        }
        let page = found.iter().skip(wanted.offset).take(wanted.limit.min(MOST));
        let limits = page.map(|(rule, limit)| LimitLine::new(rules, rule, limit, metrics)).collect();
        Listing { domains, total: found.len(), limits }
    }
}

impl Wanted {
    fn has(&self, rule: &Rule, limit: &RuleLimit, search: &str) -> bool {
        let has = |text: &str| search.is_empty() || text.to_lowercase().contains(search);
        self.domain.as_ref().is_none_or(|domain| **domain == *rule.domain)
            && self.failure_mode.as_ref().is_none_or(|mode| {
                matches!(limit.config.allowance, Allowance::Limited(_)) && mode == limit.config.failure_mode.name()
            })
            && (has(&limit.label) || has(&rule.path))
    }
}

impl LimitLine {
    fn new(rules: &Rules, rule: &Rule, limit: &RuleLimit, metrics: &Metrics) -> LimitLine {
        let (words, algorithm) = match &limit.config.allowance {
            Allowance::Unlimited => ("unlimited".to_owned(), None),
            Allowance::Limited(limit) => (in_words(limit), Some(limit.algorithm().name())),
        };
        let at = rules.origin(rule.place).map(|origin| match limit.line.or(rule.place.line) {
            Some(line) => format!("{}:{line}", origin.name.display()),
            None => origin.name.display().to_string(),
        });
        LimitLine {
            domain: rule.domain.to_string(),
            rule: limit.label.to_string(),
            path: rule.path.to_string(),
            at,
            limit: words,
            algorithm,
            failure_mode: limit.config.failure_mode.name(),
            role: match rule.role {
                Role::Enforced => "enforced",
                Role::Quota => "quota",
                Role::Shadow => "shadow",
            },
            counted: metrics.reading_of(&rule.domain, &limit.label),
        }
    }
}
