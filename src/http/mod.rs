//! The HTTP port: health for orchestrators, metrics for Prometheus, and counters and explanations for administrators.
//! Each has a router of its own; this one is of the whole port.

mod admin;
mod connections;
mod counters;
mod explain;
mod health;
mod metrics;

use std::sync::Arc;

use axum::Router;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::store::Store;

pub use admin::Admin;
pub use connections::serve;
pub use health::Health;

/// What the port shows.
pub struct Port<S> {
    /// Whether the process answers requests by rules.
    pub health: watch::Receiver<Health>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// What administrators may do. `None`: there are none.
    pub admin: Option<Admin<S>>,
}

/// The paths of the port.
pub fn router<S: Store>(port: Port<S>) -> Router {
    let router = health::router(port.health).merge(metrics::router(port.metrics));
    match port.admin {
        Some(admin) => router.merge(admin::router(admin)),
        None => router,
    }
}
