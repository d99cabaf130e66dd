//! `/healthcheck`: whether this process answers requests by rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;

pub(super) fn router(serving: Arc<AtomicBool>) -> Router {
    Router::new().route("/healthcheck", any(healthcheck)).with_state(serving)
}

async fn healthcheck(State(serving): State<Arc<AtomicBool>>) -> Response {
    if serving.load(Ordering::Relaxed) {
        "OK".into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "not serving: no rules are loaded, or the process is shutting down")
            .into_response()
    }
}
