//! The rules in force, page by page, with their counts.

use serde::Serialize;

use crate::engine::descriptor::Role;
use crate::engine::descriptor::in_words;
use crate::engine::rules::{Allowance, Rule, RuleLimit, Rules};
use crate::metrics::{Metrics, RuleReading};

/// Most lines on a page.
pub const MOST: usize = 500;

/// Filter, order and page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only limits of this domain.
    pub domain: Option<String>,
    /// Only limits whose name or path contains this text, ignoring case.
    pub search: String,
    /// Only limits of this failure mode.
    pub failure_mode: Option<String>,
    /// Whether the most denied come first; if not, limits are in the order of the rules.
    pub by_denials: bool,
    /// Number of limits to skip.
    pub offset: usize,
    /// Number of limits to return, at most [`MOST`].
    pub limit: usize,
}

/// A page of rules.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listing {
    /// The domains by name, with their number of limits.
    pub domains: Vec<DomainLine>,
    /// Number of limits that pass the filter, on all pages.
    pub total: usize,
    /// Limits of this page.
    pub limits: Vec<LimitLine>,
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DomainLine {
    /// Its name in requests.
    pub domain: String,
    /// Number of its limits.
    pub limits: usize,
}

/// A limit of a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitLine {
    /// The domain of its rule.
    pub domain: String,
    /// Name of the rule in logs and metrics.
    pub rule: String,
    /// The path of its rule.
    pub path: String,
    /// Location in the files: `file:line`.
    pub at: Option<String>,
    /// The limit in words.
    pub limit: String,
    /// Its algorithm; `None` if it does not count.
    pub algorithm: Option<&'static str>,
    /// Its answer while the store is unavailable.
    pub failure_mode: &'static str,
    /// Effect of a denial: `enforced`, `quota` or `shadow`.
    pub role: &'static str,
    /// Its counts; `None` if no request has reached it since the start.
    pub counted: Option<RuleReading>,
}

impl Listing {
    /// Lists these rules. Takes milliseconds for a hundred thousand rules.
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
