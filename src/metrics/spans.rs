//! What there is to count of spans, where they are exported.

use prometheus::{IntCounterVec, Opts};

use super::declaration::{Known, Metrics};
use crate::spans::Fate;

/// Of all spans.
#[derive(Debug)]
pub struct SpanMetrics(Known<Fate, { Fate::ALL.len() }>);

impl Metrics {
    /// From now on they tell of spans, too.
    ///
    /// # Errors
    /// Where they do already.
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
    /// This has become of so many.
    pub fn record(&self, fate: Fate, spans: u64) {
        self.0.inc_by(fate, spans);
    }
}
