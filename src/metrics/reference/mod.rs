//! What `envoyproxy/ratelimit` counts, under its names, for dashboards and alerts that were made for it. It derives
//! from what this process counts anyway, when somebody asks for it. Counted apart is only what a rule tells apart by
//! values of requests.

mod by_value;
mod departed;
mod exposition;
mod mapping;
mod path;
mod push;

use std::fmt;

use super::declaration::Metrics;
use super::tally::OfRule;

pub(super) use by_value::Values;
pub(super) use departed::{Departed, Places};
pub use exposition::{Exposition, TimeUnit};
pub(crate) use exposition::{NO_LABEL, escaped, is_reserved};
pub use mapping::{Mapping, MappingError};
pub use path::StatPath;
pub use push::{Push, Pushed};

/// The one method whose calls are counted.
const METHOD: &str = "ShouldRateLimit";

/// What is counted of hits, at each path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// All of them.
    TotalHits,
    /// Those over the limit.
    OverLimit,
    /// Those beyond the share of it that is near the limit.
    NearLimit,
    /// Those within it.
    WithinLimit,
    /// Those over the limit of a rule in shadow mode.
    ShadowMode,
    /// Those over the limit that the store was not asked about.
    OverLimitWithLocalCache,
}

impl Stat {
    /// Every one.
    pub const ALL: [Stat; Stat::NUMBER] = [
        Stat::TotalHits,
        Stat::OverLimit,
        Stat::NearLimit,
        Stat::WithinLimit,
        Stat::ShadowMode,
        Stat::OverLimitWithLocalCache,
    ];
    pub(super) const NUMBER: usize = 6;

    /// Where it is counted.
    pub(super) const fn counted_as(self) -> OfRule {
        match self {
            Stat::TotalHits => OfRule::Hits,
            Stat::OverLimit => OfRule::OverLimit,
            Stat::NearLimit => OfRule::NearLimit,
            Stat::WithinLimit => OfRule::WithinLimit,
            Stat::ShadowMode => OfRule::Shadow,
            Stat::OverLimitWithLocalCache => OfRule::KnownDenied,
        }
    }

    /// The last part of its name.
    pub const fn name(self) -> &'static str {
        match self {
            Stat::TotalHits => "total_hits",
            Stat::OverLimit => "over_limit",
            Stat::NearLimit => "near_limit",
            Stat::WithinLimit => "within_limit",
            Stat::ShadowMode => "shadow_mode",
            Stat::OverLimitWithLocalCache => "over_limit_with_local_cache",
        }
    }
}

/// What is counted of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfService {
    /// Calls.
    TotalRequests,
    /// Calls that the store could not decide, whatever they were answered.
    RedisErrors,
    /// Calls that failed for another reason.
    ServiceErrors,
    /// Loads of rules.
    LoadSuccesses,
    /// And those that were refused.
    LoadErrors,
    /// Calls that only `SHADOW_MODE` let pass.
    GlobalShadowMode,
}

impl OfService {
    const NUMBER: usize = 6;
    /// Every one.
    pub const ALL: [OfService; OfService::NUMBER] = [
        OfService::TotalRequests,
        OfService::RedisErrors,
        OfService::ServiceErrors,
        OfService::LoadSuccesses,
        OfService::LoadErrors,
        OfService::GlobalShadowMode,
    ];

    fn get(self, metrics: &Metrics) -> u64 {
        let requests = &metrics.requests;
        match self {
            OfService::TotalRequests => metrics.request_seconds.count(),
            OfService::RedisErrors => metrics.calls_without_store.get(),
            OfService::ServiceErrors => {
                requests.invalid.get() + requests.no_rules.get() + requests.deadline_exceeded.get()
            }
            OfService::LoadSuccesses => metrics.loads.get("success"),
            OfService::LoadErrors => metrics.loads.get("error"),
            OfService::GlobalShadowMode => metrics.only_shadow.get(),
        }
    }
}

/// The name of a series, as statsd has it: parts with dots between them.
#[derive(Clone, Copy, Debug)]
pub enum Name<'p> {
    /// Of hits.
    OfPath(&'p StatPath, Stat),
    /// Descriptors of a domain that the rules do not have.
    DomainNotFound(&'p StatPath),
    /// Of the process.
    OfService(OfService),
    /// How long calls took.
    ResponseTime,
}

impl OfService {
    /// Its name, as statsd has it.
    const fn name(self) -> &'static str {
        match self {
            OfService::TotalRequests => "ratelimit_server.ShouldRateLimit.total_requests",
            OfService::RedisErrors => "ratelimit.service.call.should_rate_limit.redis_error",
            OfService::ServiceErrors => "ratelimit.service.call.should_rate_limit.service_error",
            OfService::LoadSuccesses => "ratelimit.service.config_load_success",
            OfService::LoadErrors => "ratelimit.service.config_load_error",
            OfService::GlobalShadowMode => "ratelimit.service.global_shadow_mode",
        }
    }
}

/// What the names of all paths begin with.
const OF_PATHS: &str = "ratelimit.service.rate_limit";
const RESPONSE_TIME: &str = "ratelimit_server.ShouldRateLimit.response_time";

impl<'p> Name<'p> {
    /// Its parts; a domain and a level are one each, whatever dots they have.
    fn parts(&self) -> Vec<&'p str> {
        let of_path = |path: &'p StatPath, end| OF_PATHS.split('.').chain(path.parts()).chain([end]).collect();
        match *self {
            Name::OfPath(path, stat) => of_path(path, stat.name()),
            Name::DomainNotFound(path) => of_path(path, "domain_not_found"),
            Name::OfService(of_service) => of_service.name().split('.').collect(),
            Name::ResponseTime => RESPONSE_TIME.split('.').collect(),
        }
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::OfPath(path, stat) => write!(f, "{OF_PATHS}.{}.{}", path.as_str(), stat.name()),
            Name::DomainNotFound(path) => write!(f, "{OF_PATHS}.{}.domain_not_found", path.as_str()),
            Name::OfService(of_service) => f.write_str(of_service.name()),
            Name::ResponseTime => f.write_str(RESPONSE_TIME),
        }
    }
}
