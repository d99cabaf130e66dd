//! Metrics of exported spans.

use super::declaration::Metrics;
use super::register::{Known, Register};
use crate::spans::Fate;

/// Counters of spans by fate.
#[derive(Debug)]
pub struct SpanMetrics(Known<Fate, { Fate::ALL.len() }>);

impl Metrics {
    /// Registers the metrics of spans.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn spans(&self) -> prometheus::Result<SpanMetrics> {
        let help = "Spans by fate: sent to the collector, dropped because the queue was full, or lost because the \
                    collector did not accept them.";
        let register = Register(&self.registry);
        Ok(SpanMetrics(register.known(("spans_total", help), ("fate", Fate::ALL), Fate::name)?))
    }
}

impl SpanMetrics {
    /// Counts spans that had this fate.
    pub fn record(&self, fate: Fate, spans: u64) {
        self.0.inc_by(fate, spans);
    }
}
