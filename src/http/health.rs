//! `/healthcheck`: whether this process answers requests by rules, and if not, why.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::watch;

/// State of the process: whether it answers requests by rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not yet: the first rules are being loaded.
    Loading {
        /// Bytes read so far.
        bytes_read: u64,
        /// Bytes in all; 0 while unknown.
        bytes: u64,
    },
    /// Not yet: the management server has sent no rules.
    Waiting,
    /// Not yet: the first rules are invalid, and the process waits for valid ones.
    Refused,
    /// No: the rules have no domain, and a setting requires one.
    NoDomains,
    /// No: the store is unavailable, and a setting requires it.
    NoStore,
    /// Yes.
    Serving,
    /// Not for long: the process is shutting down.
    Draining,
}

impl Default for Health {
    /// Returns the state of a process that starts.
    fn default() -> Health {
        Health::Loading { bytes_read: 0, bytes: 0 }
    }
}

pub(super) fn router(health: watch::Receiver<Health>) -> Router {
    Router::new().route("/healthcheck", any(healthcheck)).with_state(health)
}

async fn healthcheck(State(health): State<watch::Receiver<Health>>) -> Response {
    match health.borrow().reason() {
        None => "OK".into_response(),
        Some(reason) => (StatusCode::INTERNAL_SERVER_ERROR, format!("not serving: {reason}")).into_response(),
    }
}

impl Health {
    /// Returns why the process does not answer requests by rules; `None` if it does.
    pub(super) fn reason(self) -> Option<String> {
        let reason = match self {
            Health::Serving => return None,
            Health::Loading { bytes: 0, .. } => "the rules are being loaded".to_owned(),
            Health::Loading { bytes_read, bytes } => {
                format!("the rules are being loaded, {bytes_read} of {bytes} bytes")
            }
            Health::Waiting => "no rules have been received from the management server yet".to_owned(),
            Health::Refused => "the rules are rejected, see the log".to_owned(),
            Health::NoDomains => {
                "the rules have no domain, but HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED requires one".to_owned()
            }
            Health::NoStore => "Redis is unavailable, but REDIS_HEALTH_CHECK_ACTIVE_CONNECTION requires it".to_owned(),
            Health::Draining => "the process is shutting down".to_owned(),
        };
        Some(reason)
    }
}
