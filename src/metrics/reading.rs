//! Current values of the metrics, for the console, which reads them from the process directly rather than from a
//! scraper.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus::proto::Histogram;
use serde::{Deserialize, Serialize};

use super::by_rule::RuleCounters;
use super::declaration::Metrics;
use super::tally::OfRule;
use crate::store::health::Health;

/// Outcomes of a rule's requests; each request is counted under exactly one of them.
const REQUESTS: [OfRule; 4] =
    [OfRule::WithinLimitRequests, OfRule::OverLimitRequests, OfRule::ShadowRequests, OfRule::UndecidedRequests];

/// Metrics that show the state of the service.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Requests allowed.
    pub passed: u64,
    /// Requests denied.
    pub denied: u64,
    /// Calls that failed or were rejected.
    pub failed: u64,
    /// Answers of limits given without the store.
    pub without_store: u64,
    /// Durations of calls.
    pub calls: Times,
    /// Durations of calls to the store.
    pub store: Times,
    /// The share of the store that is available; 1 is all of it.
    pub store_up: f64,
    /// Why the store is not fully available.
    pub store_cause: Option<String>,
}

/// Metrics of the store since the process started.
#[derive(Clone, Debug, Default)]
pub struct StoreReading {
    /// Durations of calls, including the time in the queue.
    pub times: Times,
    /// Sum of the durations, in seconds.
    pub seconds: f64,
    /// Number of calls to Redis.
    pub calls: u64,
    /// Number of requests carried in those calls.
    pub requests: u64,
    /// Number of requests the store could not decide, by kind of error.
    pub errors: Vec<(&'static str, u64)>,
    /// Counters that were damaged.
    pub damaged: u64,
}

/// A cumulative histogram of durations: upper bounds in seconds in rising order, each with the number of durations up
/// to it.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<(f64, u64)>);

/// Counters of one rule's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleReading {
    /// Requests that the limit was checked for.
    pub requests: u64,
    /// Requests that the limit denied.
    pub over_limit_requests: u64,
    /// Requests over the limit that were allowed because the rule is in shadow mode.
    pub shadow_requests: u64,
    /// Requests that the store could not decide.
    pub undecided_requests: u64,
    /// Hits of all requests.
    pub hits: u64,
    /// Hits over the limit.
    pub over_limit: u64,
    /// Hits within the limit and near it.
    pub near_limit: u64,
    /// Hits over the limit that were allowed because the rule is in shadow mode.
    pub shadow: u64,
    /// Hits of banned keys.
    pub banned: u64,
    /// Answers given without the store.
    pub without_store: u64,
}

impl Metrics {
    /// Reads the current values.
    pub fn reading(&self) -> Reading {
        let requests = &self.calls.outcomes;
        let failed = [&requests.invalid, &requests.unavailable, &requests.no_rules, &requests.overloaded];
        let down = |(_, metric): &(&str, i64)| *metric == 1;
        let causes = Health::CAUSES.map(|cause| (cause, self.store.down.with_label_values(&[cause]).get()));
        Reading {
            passed: requests.ok.get(),
            denied: requests.over_limit.get(),
            failed: failed.iter().map(|count| count.get()).sum::<u64>() + requests.deadline_exceeded.get(),
            without_store: self.calls.failure_answers.0.iter().map(|(_, count)| count.get()).sum(),
            calls: Times::of(&self.calls.seconds.histogram()),
            store: Times::of(&self.store.seconds.histogram()),
            store_up: self.store.up.get(),
            store_cause: causes.iter().find(|cause| down(cause)).map(|(cause, _)| (*cause).to_owned()),
        }
    }

    /// Reads the current values of the store's metrics.
    pub fn store_reading(&self) -> StoreReading {
        let (times, calls) = (self.store.seconds.histogram(), self.store.call_requests.histogram());
        StoreReading {
            times: Times::of(&times),
            seconds: times.get_sample_sum(),
            calls: calls.get_sample_count(),
            // The sum is exact: only whole numbers were observed.
            requests: calls.get_sample_sum() as u64,
            errors: self.store.errors.0.iter().map(|(kind, count)| (*kind, count.get())).collect(),
            damaged: self.store.damaged.get(),
        }
    }

    /// Returns whether the latest rules were rejected, so that older ones or none are in force.
    pub fn are_rules_refused(&self) -> bool {
        self.rules.are_refused.load(Ordering::Relaxed)
    }

    /// Returns the counters of a rule's limit by its label, or `None` if no request has been checked against it.
    pub fn reading_of(&self, domain: &str, rule: &str) -> Option<RuleReading> {
        self.by_rule.known(domain, rule).map(|counters| RuleReading::of(&counters))
    }

    /// Calls `each` with the domain, the label and the counters of each rule's limit that was ever used.
    pub fn each_rule(&self, each: impl FnMut(&str, &str, RuleReading)) {
        self.by_rule.each(each, RuleReading::of);
    }
}

impl AddAssign for RuleReading {
    fn add_assign(&mut self, other: RuleReading) {
        self.requests += other.requests;
        self.over_limit_requests += other.over_limit_requests;
        self.shadow_requests += other.shadow_requests;
        self.undecided_requests += other.undecided_requests;
        self.hits += other.hits;
        self.over_limit += other.over_limit;
        self.near_limit += other.near_limit;
        self.shadow += other.shadow;
        self.banned += other.banned;
        self.without_store += other.without_store;
    }
}

impl RuleReading {
    fn of(counters: &RuleCounters) -> RuleReading {
        let get = |of_rule| counters.tally.get(of_rule);
        RuleReading {
            requests: REQUESTS.into_iter().map(get).sum(),
            over_limit_requests: get(OfRule::OverLimitRequests),
            shadow_requests: get(OfRule::ShadowRequests),
            undecided_requests: get(OfRule::UndecidedRequests),
            hits: get(OfRule::Hits),
            over_limit: get(OfRule::OverLimit),
            near_limit: get(OfRule::NearLimit),
            shadow: get(OfRule::Shadow),
            banned: get(OfRule::Banned),
            without_store: counters.without_store(),
        }
    }
}

impl Times {
    fn of(histogram: &Histogram) -> Times {
        let bucket = |bucket: &prometheus::proto::Bucket| (bucket.upper_bound(), bucket.cumulative_count());
        Times(histogram.get_bucket().iter().map(bucket).collect())
    }

    /// Estimates a quantile of the durations since `before`: see [`Spread::quantile`].
    pub fn quantile_since(&self, before: &Times, quantile: f64) -> Option<Duration> {
        self.since(before).quantile(quantile)
    }

    /// Returns how the durations since `before` are spread.
    pub fn since(&self, before: &Times) -> Spread {
        let counted = |at: usize| before.0.get(at).map_or(0, |(_, count)| *count);
        let (mut spread, mut lower_us, mut below) = (Spread::default(), 0, 0);
        for (at, (bound, count)) in self.0.iter().enumerate() {
            let upper_us = if bound.is_finite() { (bound * 1e6).round() as u64 } else { u64::MAX };
            let until = count.saturating_sub(counted(at));
            if until > below {
                spread.0.insert(upper_us, (lower_us, until - below));
            }
            (lower_us, below) = (upper_us, until.max(below));
        }
        spread
    }
}

/// Durations by buckets: for each upper bound in microseconds the lower bound, and the number of durations between
/// both. Those of several instances add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spread(BTreeMap<u64, (u64, u64)>);

impl Spread {
    /// Adds these durations.
    pub fn add(&mut self, other: &Spread) {
        for (upper, (lower, count)) in &other.0 {
            self.0.entry(*upper).or_insert((*lower, 0)).1 += count;
        }
    }

    /// Estimates a quantile as Prometheus does, assuming that durations are spread evenly within a bucket. Returns
    /// `None` if there are none, or if the quantile is above the last bound.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let all: u64 = self.0.values().map(|(_, count)| count).sum();
        let (rank, mut below) = (all as f64 * quantile, 0);
        for (upper, (lower, count)) in &self.0 {
            if (below + count) as f64 >= rank {
                let share = ((rank - below as f64) / *count as f64).clamp(0.0, 1.0);
                let (lower, upper_us) = (*lower as f64, *upper as f64);
                return (*upper < u64::MAX)
                    .then(|| Duration::from_secs_f64((lower + (upper_us - lower) * share) / 1e6));
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(counts: [u64; 3]) -> Times {
        Times([0.001, 0.01, 0.1].into_iter().zip(counts).collect())
    }

    #[test]
    fn a_quantile_is_of_what_came_since() {
        let quantile =
            |now, before, quantile| times(now).quantile_since(&times(before), quantile).map(|time| time.as_secs_f64());
        assert_eq!(quantile([0, 0, 0], [0, 0, 0], 0.5), None);
        assert_eq!(quantile([10, 10, 10], [10, 10, 10], 0.5), None, "nothing has come");
        assert_eq!(quantile([10, 10, 10], [0, 0, 0], 0.5), Some(0.0005));
        assert_eq!(quantile([10, 20, 20], [10, 10, 10], 1.0), Some(0.01), "the quick ones came before");
        assert_eq!(quantile([90, 90, 100], [0, 0, 0], 0.99), Some(0.091));
    }

    #[test]
    fn what_no_request_has_asked_has_no_reading() {
        assert_eq!(Metrics::new(0.8).unwrap().reading_of("shop", "user"), None);
    }
}
