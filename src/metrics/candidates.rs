//! Metrics of candidate rules.

use prometheus::{Gauge, IntCounter, IntCounterVec};

use super::declaration::{Metrics, REQUESTS_OF_CANDIDATES};
use super::register::Register;
use crate::evaluate::Difference;

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
                "Requests in the sample of candidate rules that were not compared because the queue was full.",
            )?,
            sample: register.share(
                "candidate_sample_ratio",
                "Share of keys on which candidate rules are compared: CANDIDATE_SAMPLE, or less if memory for their \
                 counters is short; 0 if nothing is compared.",
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

    /// Counts a request for this domain and rule, by how both sets of rules decide it.
    pub fn record(&self, (domain, rule): (&str, &str), difference: Difference) {
        self.requests.with_label_values(&[domain, rule, difference.name()]).inc();
    }

    /// Counts requests that were not compared.
    pub fn record_dropped(&self, requests: u64) {
        self.dropped.inc_by(requests);
    }
}
