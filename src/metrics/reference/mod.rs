//! The statistics of `envoyproxy/ratelimit`, for existing dashboards and alerts: written for Prometheus, and pushed to
//! statsd. They are derived on demand from what this process counts anyway. Only the values of requests, for rules that
//! ask for them, need separate counters.

mod families;
mod push;

use super::declaration::Metrics;
use super::names::OfService;

pub use super::names::{Exposition, Mapping, MappingError, Name, Stat, StatPath, TimeUnit};
pub(crate) use super::names::{NO_LABEL, escaped, is_reserved};
pub use push::{Push, Pushed};

/// Returns a statistic of the process.
fn of_service(of_service: OfService, metrics: &Metrics) -> u64 {
    let requests = &metrics.calls.outcomes;
    match of_service {
        OfService::TotalRequests => metrics.calls.seconds.count(),
        OfService::RedisErrors => metrics.calls.without_store.get(),
        OfService::ServiceErrors => requests.invalid.get() + requests.no_rules.get() + requests.deadline_exceeded.get(),
        OfService::LoadSuccesses => metrics.rules.loads.get("success"),
        OfService::LoadErrors => metrics.rules.loads.get("error"),
        OfService::GlobalShadowMode => metrics.calls.only_shadow.get(),
    }
}
