//! Metrics of notices.

use super::declaration::Metrics;
use super::register::{Known, Register};
use crate::notify::Fate;

/// Counters of notices by fate.
#[derive(Debug)]
pub struct NoticeMetrics(Known<Fate, { Fate::ALL.len() }>);

impl Metrics {
    /// Registers the metrics of notices.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn notices(&self) -> prometheus::Result<NoticeMetrics> {
        let help = "Notices that counters have reached a share of their limits, by fate: told to the webhook or the \
                    log (told), told before or by another instance (repeated), dropped because too many were waiting \
                    (queue), left to a later request because the store did not answer (store) or because the webhook \
                    did not take it (failed).";
        let register = Register(&self.registry);
        Ok(NoticeMetrics(register.known(("notices_total", help), ("fate", Fate::ALL), Fate::name)?))
    }
}

impl NoticeMetrics {
    /// Counts a notice that had this fate.
    pub fn record(&self, fate: Fate) {
        self.0.inc(fate);
    }
}
