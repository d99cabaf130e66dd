//! The metrics in Prometheus' text format.

use prometheus::{Encoder as _, TextEncoder};

use super::declaration::Metrics;

impl Metrics {
    /// Writes all metrics in Prometheus' text format.
    ///
    /// # Errors
    /// If a metric cannot be written.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        TextEncoder::new().encode(&self.of_process.gather(), &mut text)?;
        for family in self.by_rule.families() {
            TextEncoder::new().encode(&[family], &mut text)?;
        }
        text.shrink_to_fit();
        Ok(text)
    }
}
