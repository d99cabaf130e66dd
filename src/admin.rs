//! The HTTP port: health for orchestrators, metrics for Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;

use crate::metrics::Metrics;

/// What the port tells of.
#[derive(Clone)]
pub struct Admin {
    /// The process answers requests, by rules.
    pub serving: Arc<AtomicBool>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
}

/// The paths of the port.
pub fn router(admin: Admin) -> Router {
    Router::new().route("/healthcheck", any(healthcheck)).route("/metrics", any(metrics)).with_state(admin)
}

async fn healthcheck(State(admin): State<Admin>) -> Response {
    if admin.serving.load(Ordering::Relaxed) {
        "OK".into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "not serving: no rules are loaded, or the process is shutting down")
            .into_response()
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match admin.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
