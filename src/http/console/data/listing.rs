//! The rules in force, page by page, with their counts.

use std::cmp::Ordering;

use serde::Serialize;

use crate::engine::adjustment::{Applied, LimitName};
use crate::engine::descriptor::{Role, in_words};
use crate::engine::explain::ExplainedLease;
use crate::engine::plan::PlanOptions;
use crate::engine::rules::{Allowance, Rule, RuleLimit};
use crate::limiter::Snapshot;
use crate::metrics::{Metrics, RuleReading};
use crate::observe::history::Rate;
use crate::survey::{Counts, LimitCounts};

/// Most lines on a page.
pub const MOST: usize = 500;

/// Filter, order and page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only limits of this domain.
    pub domain: Option<String>,
    /// Only the limit with this label.
    pub label: Option<String>,
    /// Only limits whose name or path contains this text, ignoring case.
    pub search: String,
    /// Only limits of this failure mode.
    pub failure_mode: Option<&'static str>,
    /// Only limits in this state.
    pub filter: Option<Filter>,
    /// The order.
    pub sort: Sort,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// Number of limits to skip.
    pub offset: usize,
    /// Number of limits to return, at most [`MOST`].
    pub limit: usize,
}

/// A state of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// It denies requests now.
    Denying,
    /// It is in shadow mode for all of its keys: by its rule, by an adjustment, or with the whole service.
    Shadow,
    /// An adjustment changes it.
    Adjusted,
    /// No request has reached it since the start.
    Unused,
    /// The store cannot decide some of its requests now.
    Undecided,
}

impl Filter {
    /// All states.
    pub const ALL: [Filter; 5] = [Filter::Denying, Filter::Shadow, Filter::Adjusted, Filter::Unused, Filter::Undecided];

    /// Returns the name in queries.
    pub const fn name(self) -> &'static str {
        match self {
            Filter::Denying => "denying",
            Filter::Shadow => "shadow",
            Filter::Adjusted => "adjusted",
            Filter::Unused => "unused",
            Filter::Undecided => "undecided",
        }
    }
}

/// The order of a listing: by a number, the largest first, or by a text, in the order of letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// As in the files.
    #[default]
    Rules,
    /// By the name of the limit.
    Rule,
    /// By the number in force.
    Number,
    /// By the burst of a bucket.
    Burst,
    /// By the name of the algorithm.
    Algorithm,
    /// By the failure mode.
    Mode,
    /// By requests denied a second, and then since the start.
    Denials,
    /// By requests a second, and then since the start.
    Requests,
    /// By the share of requests denied.
    Share,
    /// By hits near the limit a second, and then since the start.
    Near,
    /// By requests a second that the store cannot decide.
    Undecided,
}

impl Sort {
    /// All orders.
    pub const ALL: [Sort; 11] = [
        Sort::Rules,
        Sort::Rule,
        Sort::Number,
        Sort::Burst,
        Sort::Algorithm,
        Sort::Mode,
        Sort::Denials,
        Sort::Requests,
        Sort::Share,
        Sort::Near,
        Sort::Undecided,
    ];

    /// Returns the name in queries.
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Rules => "rules",
            Sort::Rule => "rule",
            Sort::Number => "number",
            Sort::Burst => "burst",
            Sort::Algorithm => "algorithm",
            Sort::Mode => "mode",
            Sort::Denials => "denials",
            Sort::Requests => "requests",
            Sort::Share => "share",
            Sort::Near => "near",
            Sort::Undecided => "undecided",
        }
    }

    /// Returns whether the counts of limits decide the order.
    pub const fn needs_counts(self) -> bool {
        matches!(self, Sort::Denials | Sort::Requests | Sort::Share | Sort::Near | Sort::Undecided)
    }
}

/// What ranks a limit: by the text, and then by the numbers, the largest first.
#[derive(Default)]
struct Rank<'s> {
    text: &'s str,
    now: f64,
    since_start: u64,
}

impl Rank<'_> {
    fn cmp(&self, other: &Rank<'_>) -> Ordering {
        let by_numbers = || other.now.total_cmp(&self.now).then(other.since_start.cmp(&self.since_start));
        self.text.cmp(other.text).then_with(by_numbers)
    }
}

fn denied_share(rate: &Rate) -> Option<f64> {
    (rate.requests_per_s > 0.0).then(|| rate.denied_per_s / rate.requests_per_s)
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
    /// Effect of a denial now: `enforced`, `quota` or `shadow`.
    pub role: &'static str,
    /// Share of its keys that it is enforced for, if not for all: `5%`. All others are in shadow mode.
    pub enforce: Option<String>,
    /// The burst of a bucket.
    pub burst: Option<u32>,
    /// The lease in the rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<ExplainedLease>,
    /// The part that instances admit by themselves: `5%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_share: Option<String>,
    /// What adjustments change.
    pub adjusted: Option<Adjusted>,
    /// Its counts; `None` if no request has reached it since the start.
    pub counted: Option<RuleReading>,
    /// Requests a second; `None` if it was not used in the last fifteen seconds.
    pub rate: Option<LimitRate>,
    /// Requests over the limit in each thirtieth of the last fifteen minutes, the oldest first; empty if there were
    /// none.
    pub spark: Vec<u64>,
}

/// Requests a second of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LimitRate {
    /// The requests.
    #[serde(flatten)]
    pub rate: Rate,
    /// Share of the requests that was denied.
    pub denied_share: Option<f64>,
}

/// The changes of a limit by adjustments that are for all of its keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Adjusted {
    /// The number in force.
    pub number: Option<u64>,
    /// The limit in force, in words.
    pub limit: Option<String>,
    /// IDs of the adjustments.
    pub ids: Vec<String>,
    /// Their effects.
    pub effects: Vec<String>,
}

impl Listing {
    /// Lists the rules of a snapshot with these counts; a limit without has those of this instance. Takes milliseconds
    /// for a hundred thousand rules.
    pub fn new(
        (snapshot, options): (&Snapshot, &PlanOptions),
        metrics: &Metrics,
        counts: &Counts,
        wanted: &Wanted,
    ) -> Listing {
        let (rules, search) = (&snapshot.rules, wanted.search.to_lowercase());
        let mut domains: Vec<DomainLine> =
            rules.domain_names().map(|name| DomainLine { domain: name.to_owned(), limits: 0 }).collect();
        domains.sort_by(|one, other| one.domain.cmp(&other.domain));
        let scene = Scene { snapshot, options, metrics, counts };
        let mut found = Vec::new();
        for (rule, limit) in rules.limits() {
            if let Ok(at) = domains.binary_search_by(|line| line.domain.as_str().cmp(&rule.domain)) {
                domains[at].limits += 1;
            }
            let is_in_state = || wanted.filter.is_none_or(|filter| scene.is(filter, rule, limit));
            if wanted.has(rule, limit, &search) && is_in_state() {
                found.push((rule, limit));
            }
        }
        if wanted.sort != Sort::Rules {
            let ranked = found.iter().map(|(rule, limit)| (scene.rank(wanted.sort, rule, limit), (*rule, *limit)));
            let mut ranked: Vec<_> = ranked.collect();
            ranked.sort_by(|(one, _), (other, _)| one.cmp(other));
            found = ranked.into_iter().map(|(_, found)| found).collect();
        }
        if wanted.reverse {
            found.reverse();
        }
        let page = found.iter().skip(wanted.offset).take(wanted.limit.min(MOST));
        let limits = page.map(|(rule, limit)| scene.line(rule, limit)).collect();
        Listing { domains, total: found.len(), limits }
    }
}

/// What a listing shows.
struct Scene<'s> {
    snapshot: &'s Snapshot,
    options: &'s PlanOptions,
    metrics: &'s Metrics,
    counts: &'s Counts,
}

impl Wanted {
    fn has(&self, rule: &Rule, limit: &RuleLimit, search: &str) -> bool {
        let has = |text: &str| search.is_empty() || text.to_lowercase().contains(search);
        self.domain.as_ref().is_none_or(|domain| **domain == *rule.domain)
            && self.failure_mode.is_none_or(|mode| {
                matches!(limit.config.allowance, Allowance::Limited(_)) && mode == limit.config.failure_mode.name()
            })
            && self.label.as_ref().is_none_or(|label| **label == *limit.label)
            && (has(&limit.label) || has(&rule.path))
    }
}

impl Scene<'_> {
    fn counts(&self, rule: &Rule, limit: &RuleLimit) -> LimitCounts {
        let name = (rule.domain.to_string(), limit.label.to_string());
        self.counts.get(&name).cloned().unwrap_or_else(|| LimitCounts {
            counted: self.metrics.reading_of(&rule.domain, &limit.label).unwrap_or_default(),
            ..LimitCounts::default()
        })
    }

    /// Returns what ranks a limit in this order.
    fn rank<'r>(&self, sort: Sort, rule: &'r Rule, limit: &'r RuleLimit) -> Rank<'r> {
        let own = match &limit.config.allowance {
            Allowance::Limited(limit) => Some(limit),
            Allowance::Unlimited => None,
        };
        let of_text = |text: &'r str| Rank { text, ..Rank::default() };
        let of_number =
            |number: Option<u64>| Rank { now: number.map_or(-1.0, |number| number as f64), ..Rank::default() };
        match sort {
            Sort::Rules => Rank::default(),
            Sort::Rule => of_text(&limit.label),
            Sort::Number => of_number(own.map(|own| match self.applied(rule, limit).number {
                Some(adjustment) => adjustment.content.effect.limit(own).number(),
                None => own.number(),
            })),
            Sort::Burst => of_number(own.and_then(|own| own.options().burst).map(u64::from)),
            Sort::Algorithm => of_text(own.map_or("", |own| own.algorithm().name())),
            Sort::Mode => of_text(limit.config.failure_mode.name()),
            Sort::Denials | Sort::Requests | Sort::Share | Sort::Near | Sort::Undecided => {
                let LimitCounts { counted, rate, .. } = self.counts(rule, limit);
                let rate = rate.unwrap_or_default();
                let (now, since_start) = match sort {
                    Sort::Denials => (rate.denied_per_s + rate.shadow_per_s, counted.over_limit),
                    Sort::Requests => (rate.requests_per_s, counted.requests),
                    Sort::Share => (denied_share(&rate).unwrap_or_default(), counted.over_limit_requests),
                    Sort::Near => (rate.near_per_s, counted.near_limit),
                    _ => (rate.undecided_per_s, 0),
                };
                Rank { now, since_start, ..Rank::default() }
            }
        }
    }

    fn applied(&self, rule: &Rule, limit: &RuleLimit) -> Applied<'_> {
        let name = LimitName { path: &rule.path, label: &limit.label };
        // Adjustments of single keys are not those of the limit.
        self.snapshot.adjustments().map(|all| all.of(&rule.domain, Some(name), &[])).unwrap_or_default()
    }

    fn role(&self, rule: &Rule, limit: &RuleLimit) -> Role {
        self.options.role_in_force((rule, limit), None, self.applied(rule, limit))
    }

    fn adjusted(&self, rule: &Rule, limit: &RuleLimit) -> Option<Adjusted> {
        let applied = self.applied(rule, limit);
        let all: Vec<_> = applied.all().collect();
        let changed = match (&limit.config.allowance, applied.number) {
            (Allowance::Limited(limit), Some(adjustment)) => Some(adjustment.content.effect.limit(limit)),
            _ => None,
        };
        (!all.is_empty()).then(|| Adjusted {
            number: changed.as_ref().map(|limit| limit.number()),
            limit: changed.as_ref().map(in_words),
            ids: all.iter().map(|adjustment| adjustment.id.to_string()).collect(),
            effects: all.iter().map(|adjustment| adjustment.content.effect.to_string()).collect(),
        })
    }

    fn is(&self, filter: Filter, rule: &Rule, limit: &RuleLimit) -> bool {
        let rate = || self.counts(rule, limit).rate.unwrap_or_default();
        match filter {
            Filter::Denying => rate().denied_per_s > 0.0,
            Filter::Shadow => self.role(rule, limit) == Role::Shadow,
            Filter::Adjusted => self.adjusted(rule, limit).is_some(),
            Filter::Unused => self.counts(rule, limit).counted.requests == 0,
            Filter::Undecided => rate().undecided_per_s > 0.0,
        }
    }

    fn line(&self, rule: &Rule, limit: &RuleLimit) -> LimitLine {
        let (words, algorithm, burst) = match &limit.config.allowance {
            Allowance::Unlimited => ("unlimited".to_owned(), None, None),
            Allowance::Limited(limit) => (in_words(limit), Some(limit.algorithm().name()), limit.options().burst),
        };
        let at = self.snapshot.rules.origin(rule.place).map(|origin| match limit.line.or(rule.place.line) {
            Some(line) => format!("{}:{line}", origin.name.display()),
            None => origin.name.display().to_string(),
        });
        let LimitCounts { counted, rate, spark, .. } = self.counts(rule, limit);
        let (role, applied) = (self.role(rule, limit), self.applied(rule, limit));
        let is_changed = applied.role.is_some() || applied.passage.is_some();
        let share = limit.config.options.enforce.filter(|_| role != Role::Shadow && !is_changed);
        LimitLine {
            domain: rule.domain.to_string(),
            rule: limit.label.to_string(),
            path: rule.path.to_string(),
            at,
            limit: words,
            algorithm,
            failure_mode: limit.config.failure_mode.name(),
            role: role.name(),
            enforce: share.map(|share| share.to_string()),
            burst,
            lease: limit.config.options.lease.map(ExplainedLease::from),
            own_share: limit.config.options.own_share.map(|share| share.to_string()),
            adjusted: self.adjusted(rule, limit),
            counted: (counted != RuleReading::default()).then_some(counted),
            rate: rate.map(|rate| LimitRate { rate, denied_share: denied_share(&rate) }),
            spark: if spark.iter().any(|bar| *bar > 0) { spark } else { Vec::new() },
        }
    }
}
