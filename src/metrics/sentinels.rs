//! Metrics of the Sentinels, if they name the master.

use prometheus::{GaugeVec, Opts};

use super::declaration::Metrics;
use super::register::Register;

/// Metrics of the Sentinels.
#[derive(Clone, Debug)]
pub struct SentinelMetrics(GaugeVec);

impl Metrics {
    /// Registers the metrics of the Sentinels.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn sentinels(&self) -> prometheus::Result<SentinelMetrics> {
        let answering = Opts::new(
            "sentinels_answering_ratio",
            "Share of the Sentinels that answer. At a half or less no failover takes place.",
        );
        let answering = GaugeVec::new(answering, &["master"])?;
        Ok(SentinelMetrics(Register(&self.registry).add(answering)?))
    }
}

impl SentinelMetrics {
    /// Records how many of all Sentinels of the master with this name answer.
    pub fn set_answering(&self, master: &str, answering: usize, all: usize) {
        self.0.with_label_values(&[master]).set(answering as f64 / all.max(1) as f64);
    }
}
