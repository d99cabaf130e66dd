//! The report of a replay: one type for both JSON and text.

use std::collections::HashMap;

use serde::Serialize;

use super::source::Read;
use crate::engine::clock::timestamp;
use crate::evaluate::{
    Comparison, Differences, FleetReport, FleetShares, LimitReport, OldLimit, Run, Search, Suggestion,
};

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
    /// How the first request misses the rules, if all requests do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
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
    /// What a fleet whose instances have shares of the limits would have done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetReport>,
    /// Suggestions of other numbers.
    pub suggestions: Vec<Suggestion>,
    /// Why there is no suggestion, although one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_suggestion: Option<&'static str>,
}

/// The decisions of other rules, as far as they differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// Number of requests that the other rules deny.
    pub denied: u64,
    /// The requests that both decide differently.
    #[serde(flatten)]
    pub differences: Differences,
}

impl Report {
    /// Creates the report of a run over a log.
    pub fn new(log: Read, run: &Run<'_>) -> Report {
        let (totals, limits) = (run.totals(), run.limit_reports(MOST_DENIED));
        Report {
            log,
            requests: totals.requests,
            denied: totals.denied,
            would_be_denied: totals.would_be_denied,
            delayed: totals.delayed,
            without_limit: totals.unlimited,
            missed: None,
            invalid: totals.invalid,
            first: totals.between_ms.map(|(first, _)| timestamp(first)),
            last: totals.between_ms.map(|(_, last)| timestamp(last)),
            more_keys: run.has_more_keys(),
            limits_not_reached: run.limits() - limits.len(),
            limits,
            against: None,
            fleet: None,
            suggestions: Vec::new(),
            no_suggestion: None,
        }
    }

    /// Returns whether the log has lines that can be read, and no limit applies to any of them.
    pub fn reaches_no_limit(&self) -> bool {
        self.log.lines > 0 && !self.log.is_unreadable() && self.without_limit == self.requests
    }

    /// Adds a comparison with other rules.
    #[must_use]
    pub fn against(mut self, old: &Run<'_>, comparison: &Comparison) -> Report {
        let by_name: HashMap<(&str, &str), OldLimit> = old.denied().collect();
        for limit in &mut self.limits {
            limit.old = by_name.get(&(&*limit.domain, &*limit.rule)).copied();
        }
        self.against = Some(Against { denied: old.totals().denied, differences: comparison.report() });
        self
    }

    /// Adds what a fleet with shares has done.
    #[must_use]
    pub fn of_fleet(self, fleet: &FleetShares<'_>) -> Report {
        Report { fleet: Some(fleet.report()), ..self }
    }

    /// Adds the numbers that a search found.
    #[must_use]
    pub fn suggesting(mut self, search: &Search<'_>) -> Report {
        self.suggestions = search.suggestions();
        self.no_suggestion = self.suggestions.is_empty().then_some(match self.log.lines {
            0 => "the log is empty",
            _ => "no request reaches a limit whose number can be tried",
        });
        self
    }
}
