//! Metrics of the administrators' paths, if a token opens them.

use super::declaration::Metrics;
use super::register::{Known, Register};

/// Each role with the results that its requests can have.
const SERIES: [(&str, &str); 9] = [
    ("admin", "ok"),
    ("admin", "invalid"),
    ("admin", "failed"),
    ("reader", "ok"),
    ("reader", "forbidden"),
    ("reader", "invalid"),
    ("reader", "failed"),
    ("none", "unauthorized"),
    ("none", "throttled"),
];

/// Metrics of the administrators' paths.
#[derive(Debug)]
pub struct AdminMetrics(Known<(&'static str, &'static str), { SERIES.len() }>);

impl Metrics {
    /// Registers the metrics of the administrators' paths.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn admin(&self) -> prometheus::Result<AdminMetrics> {
        let requests = Register(&self.registry).counters(
            "admin_requests_total",
            "Requests to the administrators' paths, by the role that the token gives (none without a valid token) and \
             by result. A reader is forbidden to change anything; too many wrong tokens at once are throttled.",
            &["role", "result"],
        )?;
        Ok(AdminMetrics(Known(
            SERIES.map(|(role, result)| ((role, result), requests.with_label_values(&[role, result]))),
        )))
    }
}

impl AdminMetrics {
    /// Records a request of a client with this role.
    pub fn record(&self, role: &'static str, result: &'static str) {
        self.0.inc((role, result));
    }
}
