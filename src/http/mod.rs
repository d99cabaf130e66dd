//! The HTTP port: health for orchestrators, metrics for Prometheus, answers for clients without gRPC, and counters and
//! explanations for administrators. Each has a router of its own; this one is of the whole port. The debug port is
//! another one.

mod admin;
mod connections;
mod counters;
mod debug;
mod explain;
mod health;
mod json;
mod metrics;

use std::sync::Arc;

use axum::Router;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::store::Store;

pub use admin::Admin;
pub use connections::serve;
pub use debug::debug_router;
pub use health::Health;
pub use json::JsonApi;
pub use metrics::statistics_router;

/// What the port shows.
pub struct Port<S> {
    /// Whether the process answers requests by rules.
    pub health: watch::Receiver<Health>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// What answers requests in JSON. `None`: nobody does.
    pub json: Option<JsonApi<S>>,
    /// What administrators may do. `None`: there are none.
    pub admin: Option<Admin<S>>,
}

/// The paths of the port.
pub fn router<S: Store>(port: Port<S>) -> Router {
    let mut router = health::router(port.health).merge(metrics::router(port.metrics));
    if let Some(json) = port.json {
        router = router.merge(json::router(json));
    }
    if let Some(admin) = port.admin {
        router = router.merge(admin::router(admin));
    }
    router
}
