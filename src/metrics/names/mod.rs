//! Names of the statistics that `envoyproxy/ratelimit` counts. They know no counters: those of rules and of requests'
//! values keep the paths under which they are shown, and `reference` reads both.

mod departed;
mod exposition;
mod mapping;
mod path;

use std::fmt;

pub(super) use departed::{Departed, Left, Places};
pub use exposition::{Exposition, TimeUnit};
pub(super) use exposition::{Labels, MILLISECONDS, NO_GARBAGE, Shown};
pub(crate) use exposition::{NO_LABEL, escaped, is_reserved};
pub(super) use mapping::is_same;
pub use mapping::{Mapping, MappingError};
pub use path::StatPath;

/// The only method whose calls are counted.
const METHOD: &str = "ShouldRateLimit";

/// Statistics of hits, kept for each path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// All hits.
    TotalHits,
    /// Hits over the limit.
    OverLimit,
    /// Hits beyond the share of the limit that counts as near.
    NearLimit,
    /// Hits within the limit.
    WithinLimit,
    /// Hits over the limit of a rule in shadow mode.
    ShadowMode,
    /// Hits over the limit that were denied without asking the store.
    OverLimitWithLocalCache,
    /// Hits that requests asked to refund.
    TotalNegativeHits,
}

impl Stat {
    /// All statistics.
    pub const ALL: [Stat; Stat::NUMBER] = [
        Stat::TotalHits,
        Stat::OverLimit,
        Stat::NearLimit,
        Stat::WithinLimit,
        Stat::ShadowMode,
        Stat::OverLimitWithLocalCache,
        Stat::TotalNegativeHits,
    ];
    pub(super) const NUMBER: usize = 7;

    /// Returns the last part of its name.
    pub const fn name(self) -> &'static str {
        match self {
            Stat::TotalHits => "total_hits",
            Stat::OverLimit => "over_limit",
            Stat::NearLimit => "near_limit",
            Stat::WithinLimit => "within_limit",
            Stat::ShadowMode => "shadow_mode",
            Stat::OverLimitWithLocalCache => "over_limit_with_local_cache",
            Stat::TotalNegativeHits => "total_negative_hits",
        }
    }
}

/// Statistics of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfService {
    /// Calls.
    TotalRequests,
    /// Calls that the store could not decide, regardless of the answer.
    RedisErrors,
    /// Calls that failed for another reason.
    ServiceErrors,
    /// Successful loads of rules.
    LoadSuccesses,
    /// Rejected loads of rules.
    LoadErrors,
    /// Calls allowed only because of `SHADOW_MODE`.
    GlobalShadowMode,
}

impl OfService {
    pub(super) const NUMBER: usize = 6;
    /// All statistics.
    pub const ALL: [OfService; OfService::NUMBER] = [
        OfService::TotalRequests,
        OfService::RedisErrors,
        OfService::ServiceErrors,
        OfService::LoadSuccesses,
        OfService::LoadErrors,
        OfService::GlobalShadowMode,
    ];
}

/// The name of a series as in statsd: parts separated by dots.
#[derive(Clone, Copy, Debug)]
pub enum Name<'p> {
    /// A statistic of a path's hits.
    OfPath(&'p StatPath, Stat),
    /// Descriptors with a domain that the rules do not have.
    DomainNotFound(&'p StatPath),
    /// A statistic of the process.
    OfService(OfService),
    /// Durations of calls.
    ResponseTime,
}

impl OfService {
    /// Returns the name used in statsd.
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

/// Prefix of the names of all paths.
const OF_PATHS: &str = "ratelimit.service.rate_limit";
const RESPONSE_TIME: &str = "ratelimit_server.ShouldRateLimit.response_time";

impl<'p> Name<'p> {
    /// Returns its parts. A domain and a level are one part each, even if they contain dots.
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
