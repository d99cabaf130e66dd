//! Metrics of the decision log's lines.

use super::declaration::Metrics;
use super::register::{Known, Register};
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
        let help = "Lines of the decision log by fate: written, or dropped because of too many lines in one second \
                    (rate), too many denials of one limit in it (rule), a full queue (queue) or a write error (error).";
        let register = Register(&self.registry);
        Ok(DecisionLogMetrics(register.known(("decision_log_lines_total", help), ("fate", Fate::ALL), Fate::name)?))
    }
}

impl DecisionLogMetrics {
    /// Counts a line that had this fate.
    pub fn record(&self, fate: Fate) {
        self.0.inc(fate);
    }
}
