//! The HTTP port: health for orchestrators, metrics for Prometheus, answers for clients without gRPC, and counters and
//! explanations for administrators. Each has its own router, and [`router`] joins them. The debug port is separate.

mod adjustments;
mod admin;
mod alerts;
mod audit;
mod candidates;
mod client;
mod connections;
pub mod console;
mod counters;
mod credits;
mod debug;
mod explain;
mod fleet;
mod gate;
mod health;
mod hosts;
mod index;
mod json;
mod log_level;
mod metrics;
mod query;
mod replays;
mod top;
mod usage;
mod what_if;

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::Response;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::store::Store;

pub use admin::Admin;
pub use client::{AdminTokens, KnownClients};
pub use connections::serve;
pub use console::{About, Console};
pub use debug::debug_router;
pub use health::Health;
pub use hosts::Hosts;
pub use index::Availability;
pub use json::JsonApi;
pub use metrics::statistics_router;

/// The parts of the HTTP port.
pub struct Port<S> {
    /// Whether the process answers requests by rules.
    pub health: watch::Receiver<Health>,
    /// The metrics to show.
    pub metrics: Arc<Metrics>,
    /// Handler of JSON requests. `None` if they are not answered.
    pub json: Option<JsonApi<S>>,
    /// Shared state of the administrators' paths. `None` if there are no administrators.
    pub admin: Option<Admin<S>>,
    /// The console. `None` if it is off.
    pub console: Option<Console>,
}

/// Returns the paths of the port.
pub fn router<S: Store>(port: Port<S>) -> Router {
    let console = match (&port.admin, &port.console) {
        (None, _) => Availability::NO_ADMIN_API,
        (Some(_), None) => Availability::NO_CONSOLE,
        (Some(_), Some(_)) => Availability::On,
    };
    let redis = port.console.as_ref().is_some_and(Console::has_redis);
    let observing = port.admin.as_ref().map(|admin| admin.observed().clone());
    let index = index::router(index::Parts { json: port.json.is_some(), observing, console, redis });
    let mut router = index.merge(health::router(port.health.clone())).merge(metrics::router(Arc::clone(&port.metrics)));
    if let Some(admin) = port.admin {
        let gate = Arc::new(admin.gate());
        let admin = Arc::new(admin);
        let mut guarded = admin::router(Arc::clone(&admin), Arc::clone(&gate));
        if let Some(console) = port.console {
            let metrics = (port.metrics, port.health);
            guarded = guarded.merge(console::router(Arc::clone(&admin), gate, console, metrics));
        }
        router = router.merge(admin.guard(guarded));
    }
    // Answers contain user names and counts of now: no proxy or browser may cache them, nor that a path is missing.
    // Explicit, because joining another router below would replace the one that axum has.
    let router = router.fallback(async || StatusCode::NOT_FOUND);
    let router = router.layer(map_response(async |mut response: Response| {
        response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }));
    match port.json {
        Some(json) => router.merge(json::router(json)),
        None => router,
    }
}
