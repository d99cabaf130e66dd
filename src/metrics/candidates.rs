//! Metrics of candidate rules.

use prometheus::{Gauge, IntCounter, IntCounterVec};

use super::declaration::{Metrics, REQUESTS_OF_CANDIDATES};
use super::register::Register;

/// Comparison of two sets of rules on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateOutcome {
    /// Both decide alike.
    Agreed,
    /// Only the candidates deny it.
    NewlyDenied,
    /// Only the rules in force deny it.
    NewlyAllowed,
}

impl CandidateOutcome {
    /// All outcomes.
    pub const ALL: [CandidateOutcome; 3] =
        [CandidateOutcome::Agreed, CandidateOutcome::NewlyDenied, CandidateOutcome::NewlyAllowed];

    /// Returns the value of the label.
    pub const fn name(self) -> &'static str {
        match self {
            CandidateOutcome::Agreed => "agreed",
            CandidateOutcome::NewlyDenied => "newly_denied",
            CandidateOutcome::NewlyAllowed => "newly_allowed",
        }
    }
}

/// Metrics of the candidate rules.
#[derive(Debug)]
pub struct CandidateMetrics {
    requests: IntCounterVec,
    dropped: IntCounter,
    sample: Gauge,
}

impl Metrics {
    /// Registers the metrics of candidate rules.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn candidates(&self) -> prometheus::Result<CandidateMetrics> {
        let register = Register(&self.registry);
        let (name, help) = REQUESTS_OF_CANDIDATES;
        Ok(CandidateMetrics {
            requests: register.counters(name, help, &["domain", "rule", "outcome"])?,
            dropped: register.counter(
                "candidate_dropped_requests_total",
                "Requests in the sample of candidate rules that were not compared, because too many waited for it.",
            )?,
            sample: register.share(
                "candidate_sample_ratio",
                "The share of keys on which candidate rules are compared: CANDIDATE_SAMPLE, or less where their \
                 counters have no room; 0 where nothing is compared.",
            )?,
        })
    }
}

impl CandidateMetrics {
    /// Resets the counts, which belong to other rules, and records the share of keys that the new trial samples.
    pub fn begin(&self, sample: f64) {
        self.requests.reset();
        self.set_sample(sample);
    }

    /// Records the share of keys in the sample.
    pub fn set_sample(&self, sample: f64) {
        self.sample.set(sample);
    }

    /// Counts a request's outcome for this domain and rule.
    pub fn record(&self, (domain, rule): (&str, &str), outcome: CandidateOutcome) {
        self.requests.with_label_values(&[domain, rule, outcome.name()]).inc();
    }

    /// Counts requests that were not compared.
    pub fn record_dropped(&self, requests: u64) {
        self.dropped.inc_by(requests);
    }
}
