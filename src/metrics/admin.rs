//! Metrics of the administrators' paths, if a token opens them.

use std::sync::Arc;

use super::declaration::Metrics;
use super::register::{Known, Register, itself};

/// Each role with the results that its requests can have.
const SERIES: [(&str, &str); 17] = [
    ("admin", "ok"),
    ("admin", "invalid"),
    ("admin", "failed"),
    ("adjust", "ok"),
    ("adjust", "forbidden"),
    ("adjust", "invalid"),
    ("adjust", "failed"),
    ("reset", "ok"),
    ("reset", "forbidden"),
    ("reset", "invalid"),
    ("reset", "failed"),
    ("reader", "ok"),
    ("reader", "forbidden"),
    ("reader", "invalid"),
    ("reader", "failed"),
    ("none", "unauthorized"),
    ("none", "throttled"),
];

/// Metrics of the administrators' paths.
#[derive(Clone, Debug)]
pub struct AdminMetrics {
    requests: Arc<Known<(&'static str, &'static str), { SERIES.len() }>>,
    reloads: Arc<Known<&'static str, 2>>,
}

impl Metrics {
    /// Registers the metrics of the administrators' paths.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn admin(&self) -> prometheus::Result<AdminMetrics> {
        let requests = Register(&self.registry).counters(
            "admin_requests_total",
            "Requests to the administrators' paths, by the most powerful role that the token gives (none without a \
             valid token) and by result. What the token does not permit is forbidden; too many wrong tokens at once \
             are throttled.",
            &["role", "result"],
        )?;
        let reloads = Register(&self.registry).known(
            ("admin_token_reloads_total", "Attempts to reload the file of ADMIN_TOKENS_FILE after it changed."),
            ("result", ["success", "error"]),
            itself,
        )?;
        let series = SERIES.map(|(role, result)| ((role, result), requests.with_label_values(&[role, result])));
        Ok(AdminMetrics { requests: Arc::new(Known(series)), reloads: Arc::new(reloads) })
    }
}

impl AdminMetrics {
    /// Records a request of a client with this role.
    pub fn record(&self, role: &'static str, result: &'static str) {
        self.requests.inc((role, result));
    }

    /// Records that the tokens were replaced, or that the new ones were rejected.
    pub fn record_token_reload(&self, is_replaced: bool) {
        self.reloads.inc(if is_replaced { "success" } else { "error" });
    }
}
