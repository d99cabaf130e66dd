//! What there is to count of the lines of the decision log, where it is written.

use prometheus::{IntCounterVec, Opts};

use super::declaration::{Known, Metrics};
use crate::decision_log::Fate;

/// Of all lines.
#[derive(Debug)]
pub struct DecisionLogMetrics(Known<Fate, { Fate::ALL.len() }>);

impl Metrics {
    /// From now on they tell of the decision log, too.
    ///
    /// # Errors
    /// Where they do already.
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
    /// This has become of a line.
    pub fn record(&self, fate: Fate) {
        self.0.inc(fate);
    }
}
