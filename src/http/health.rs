//! `/healthcheck`: whether this process answers requests by rules, and if not, why.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::watch;

/// Whether this process answers requests by rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Not yet: the first rules are being loaded.
    #[default]
    Loading,
    /// Not yet: no rules have come from the management server.
    Waiting,
    /// Not yet: the first rules are wrong, and the process waits for right ones.
    Refused,
    /// It does.
    Serving,
    /// Not for long: the process is shutting down.
    Draining,
}

pub(super) fn router(health: watch::Receiver<Health>) -> Router {
    Router::new().route("/healthcheck", any(healthcheck)).with_state(health)
}

async fn healthcheck(State(health): State<watch::Receiver<Health>>) -> Response {
    let reason = match *health.borrow() {
        Health::Serving => return "OK".into_response(),
        Health::Loading => "the rules are being loaded",
        Health::Waiting => "no rules have come from the management server yet",
        Health::Refused => "the rules are refused, and the log says why",
        Health::Draining => "the process is shutting down",
    };
    (StatusCode::INTERNAL_SERVER_ERROR, format!("not serving: {reason}")).into_response()
}
