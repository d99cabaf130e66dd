//! The HTTP port: health for orchestrators, metrics for Prometheus, answers for clients without gRPC, and counters and
//! explanations for administrators. Each has a router of its own; this one is of the whole port. The debug port is
//! another one.

mod adjustments;
mod admin;
mod candidates;
mod connections;
mod console;
mod counters;
mod debug;
mod explain;
mod health;
mod json;
mod metrics;
mod replicas;
mod top;
mod usage;
mod what_if;

use std::sync::Arc;

use axum::Router;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::store::Store;

pub use admin::{Admin, AdminTokens};
pub use connections::serve;
pub use console::{About, Console};
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
    /// What shows all of it to people who administrate. `None`: nothing does.
    pub console: Option<Console>,
}

/// The paths of the port.
pub fn router<S: Store>(port: Port<S>) -> Router {
    let mut router = health::router(port.health.clone()).merge(metrics::router(Arc::clone(&port.metrics)));
    if let Some(json) = port.json {
        router = router.merge(json::router(json));
    }
    if let Some(admin) = port.admin {
        let admin = Arc::new(admin);
        if let Some(console) = port.console {
            router = router.merge(console::router(Arc::clone(&admin), console, (port.metrics, port.health)));
        }
        router = router.merge(admin::router(admin));
    }
    router
}
