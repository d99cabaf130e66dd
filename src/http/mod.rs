//! The HTTP port: health for orchestrators, metrics for Prometheus, and counters for administrators. Each has
//! a router of its own; this one is of the whole port.

mod connections;
mod counters;
mod health;
mod metrics;

use std::sync::Arc;

use axum::Router;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::store::Store;

pub use connections::serve;
pub use counters::Counters;
pub use health::Health;

/// What the port shows.
pub struct Port<S> {
    /// Whether the process answers requests by rules.
    pub health: watch::Receiver<Health>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// Where counters can be looked at. `None`: nobody may.
    pub counters: Option<Counters<S>>,
}

/// The paths of the port.
pub fn router<S: Store>(port: Port<S>) -> Router {
    let router = health::router(port.health).merge(metrics::router(port.metrics));
    match port.counters {
        Some(counters) => router.merge(counters::router(counters)),
        None => router,
    }
}
