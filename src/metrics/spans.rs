//! Metrics of exported spans.

use prometheus::{IntCounterVec, Opts};

use super::declaration::{Known, Metrics};
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
        let options = Opts::new(
            "spans_total",
            "Spans by their fate: sent to the collector; dropped, because too many waited for it; or lost, because it \
             did not take them.",
        );
        let spans = IntCounterVec::new(options, &["fate"])?;
        self.registry.register(Box::new(spans.clone()))?;
        Ok(SpanMetrics(Known(Fate::ALL.map(|fate| (fate, spans.with_label_values(&[fate.name()]))))))
    }
}

impl SpanMetrics {
    /// Counts spans that had this fate.
    pub fn record(&self, fate: Fate, spans: u64) {
        self.0.inc_by(fate, spans);
    }
}
