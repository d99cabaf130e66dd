//! Metrics of the decision log's lines.

use prometheus::{IntCounterVec, Opts};

use super::declaration::{Known, Metrics};
use crate::observe::decision_log::Fate;

/// Counters of lines by fate.
#[derive(Debug)]
pub struct DecisionLogMetrics(Known<Fate, { Fate::ALL.len() }>);

impl Metrics {
    /// Registers the metrics of the decision log.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn decision_log(&self) -> prometheus::Result<DecisionLogMetrics> {
        let options = Opts::new(
            "decision_log_lines_total",
            "Lines of the decision log by their fate: written; or dropped, because there were too many in that second \
             (rate), because too many waited (queue), or because they could not be written (error).",
        );
        let lines = IntCounterVec::new(options, &["fate"])?;
        self.registry.register(Box::new(lines.clone()))?;
        Ok(DecisionLogMetrics(Known(Fate::ALL.map(|fate| (fate, lines.with_label_values(&[fate.name()]))))))
    }
}

impl DecisionLogMetrics {
    /// Counts a line that had this fate.
    pub fn record(&self, fate: Fate) {
        self.0.inc(fate);
    }
}
