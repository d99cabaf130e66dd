//! Variables of `envoyproxy/ratelimit` that are not settings here. A process that gets one must not silently run
//! without its effect.

use std::collections::BTreeSet;

use super::Environment;
use super::given::on_one_line;

/// A variable that is set to a value that this process does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The variable, with its value unless that may be a secret.
    pub setting: String,
    /// What to do about it.
    pub advice: &'static str,
}

/// Variables with the same advice.
struct Row {
    names: &'static [&'static str],
    /// Values that ask for nothing.
    harmless: &'static [&'static str],
    /// The closest setting here: commands that read it report these variables.
    closest: &'static str,
    advice: &'static str,
}

/// Go's spellings of false.
const OFF: &[&str] = &["0", "f", "F", "false", "False", "FALSE"];
/// Go's spellings of true.
const ON: &[&str] = &["1", "t", "T", "true", "True", "TRUE"];
/// Both states of a switch are harmless: they do not change what Tollgate does.
const SWITCH: &[&str] = &["0", "f", "F", "false", "False", "FALSE", "1", "t", "T", "true", "True", "TRUE"];
/// No value is harmless.
const NONE: &[&str] = &[];

const SHARED: &str = "calls share connections; OVERLOAD sets what happens when too many calls are queued";
const NO_MEMCACHED: &str = "Memcached is not supported; unset it, and set REDIS_URL";
const NO_PIPELINE: &str = "calls that arrive at the same time are sent to Redis together, without waiting for more";

const ROWS: &[Row] = &[
    row(
        &["GOMAXPROCS"],
        NONE,
        "WORKER_THREADS",
        "only Go's runtime reads it; WORKER_THREADS defaults to the number of cores available to the process",
    ),
    row(
        &["GODEBUG", "GOGC", "GOMEMLIMIT", "GOTRACEBACK"],
        NONE,
        "WORKER_THREADS",
        "only Go's runtime reads it; Tollgate has no garbage collector",
    ),
    row(
        &["GRPC_GO_LOG_SEVERITY_LEVEL", "GRPC_GO_LOG_VERBOSITY_LEVEL"],
        NONE,
        "LOG_LEVEL",
        "only Go's gRPC reads it; set LOG_LEVEL, which can name a module",
    ),
    row(
        &["RUNTIME_IGNOREDOTFILES"],
        ON,
        "RULES",
        "files and folders whose names begin with a dot are never read; in a ConfigMap they would be a second copy of \
         all rules",
    ),
    row(
        &["RUNTIME_WATCH_ROOT"],
        SWITCH,
        "RULES",
        "every change below the folder of rules is detected, including swapped links",
    ),
    row(
        &["MAX_CONCURRENT_REQUESTS"],
        NONE,
        "GRPC_MAX_CONCURRENT_STREAMS",
        "the number of calls is limited by connection (GRPC_MAX_CONCURRENT_STREAMS) and by the queue for Redis \
         (REDIS_QUEUE_SIZE)",
    ),
    row(
        &["REQUEST_TIMEOUT"],
        &["0", "0s"],
        "REDIS_TIMEOUT",
        "REDIS_TIMEOUT and the gRPC deadline of the caller limit the time of a call",
    ),
    row(
        &["REDIS_OP_TIMEOUT", "REDIS_PERSECOND_OP_TIMEOUT"],
        &["0", "0s"],
        "REDIS_TIMEOUT",
        "REDIS_TIMEOUT limits every wait for Redis, including commands",
    ),
    row(
        &["LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED"],
        OFF,
        "LIMIT_RESPONSE_HEADERS_ENABLED",
        "LIMIT_RESPONSE_HEADERS_FORMAT=ietf lists every limit of a request",
    ),
    row(
        &["LIMIT_REQUEST_HEADERS_ENABLED"],
        OFF,
        "LIMIT_RESPONSE_HEADERS_ENABLED",
        "headers are added to responses, not to requests to an upstream",
    ),
    row(
        &["REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR"],
        SWITCH,
        "REDIS_URL",
        "Tollgate always leaves a Redis that has become a replica and looks for its primary",
    ),
    row(
        &["SOFT_BREACH_HEADER_RATIO"],
        &["0"],
        "NEAR_LIMIT_RATIO",
        "no header shows that a limit is nearly used up; tollgate_near_limit_hits_total counts it",
    ),
    row(
        &["REDIS_AWS_IAM_AUTH"],
        OFF,
        "REDIS_AUTH_FILE",
        "an AWS IAM token can be in the file that REDIS_AUTH_FILE names, which is reread when it changes",
    ),
    row(
        &["ENABLE_NEGATIVE_HITS"],
        ON,
        "RULES",
        "hits are refunded by is_negative_hits unless the limit says give_back: false",
    ),
    row(
        &[
            "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
            "REDIS_PERSECOND_PIPELINE_LIMIT",
            "REDIS_PERSECOND_PIPELINE_WINDOW",
        ],
        &["0", "0s"],
        "REDIS_PERSECOND_URL",
        NO_PIPELINE,
    ),
    row(&["REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR"], NONE, "REDIS_PERSECOND_URL", SHARED),
    row(
        &["REDIS_PERSECOND_TIMEOUT"],
        NONE,
        "REDIS_TIMEOUT",
        "REDIS_TIMEOUT applies to both Redis servers and to every wait",
    ),
    row(&["REDIS_CLUSTER_PIPELINE_PARALLELISM"], NONE, "REDIS_URL", NO_PIPELINE),
    row(&["REDIS_PIPELINE_LIMIT", "REDIS_PIPELINE_WINDOW"], &["0", "0s"], "REDIS_URL", NO_PIPELINE),
    row(&["REDIS_POOL_ON_EMPTY_BEHAVIOR"], NONE, "REDIS_URL", SHARED),
    row(
        &["REDIS_STARTUP_INITIAL_INTERVAL", "REDIS_STARTUP_MAX_ELAPSED_TIME", "REDIS_STARTUP_MAX_INTERVAL"],
        NONE,
        "REDIS_URL",
        "Tollgate also starts without Redis, and connects as soon as Redis is available",
    ),
    row(
        &[
            "MEMCACHE_HOST_PORT",
            "MEMCACHE_MAX_IDLE_CONNS",
            "MEMCACHE_SRV",
            "MEMCACHE_SRV_REFRESH",
            "MEMCACHE_TLS_CACERT",
            "MEMCACHE_TLS_CLIENT_CERT",
            "MEMCACHE_TLS_CLIENT_KEY",
        ],
        NONE,
        "BACKEND_TYPE",
        NO_MEMCACHED,
    ),
    row(&["MEMCACHE_TLS", "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION"], OFF, "BACKEND_TYPE", NO_MEMCACHED),
];

/// Prefix of the variables of mogrifiers that `USE_DOG_STATSD_MOGRIFIERS` lists.
const MOGRIFIER: &str = "DOG_STATSD_MOGRIFIER_";
const fn row(
    names: &'static [&'static str],
    harmless: &'static [&'static str],
    closest: &'static str,
    advice: &'static str,
) -> Row {
    Row { names, harmless, closest, advice }
}

/// Returns whether `envoyproxy/ratelimit` has this variable and Tollgate does not.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(MOGRIFIER) || names().any(|known| known == name)
}

/// Returns these variables, except those of mogrifiers: users choose their names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().flat_map(|row| row.names).copied()
}

/// Returns the closest setting here to one of these variables.
pub(super) fn closest(name: &str) -> Option<&'static str> {
    ROWS.iter().find(|row| row.names.contains(&name)).map(|row| row.closest)
}

/// Returns the variables in the environment that ask for something unsupported, if their closest setting is in
/// `settings`.
pub fn unsupported(environment: &Environment, settings: &BTreeSet<String>) -> Vec<Unsupported> {
    let of_row = |row: &'static Row| {
        let set = row.names.iter().filter_map(|name| Some((*name, environment.get(name)?)));
        let set = set.filter(|(_, value)| settings.contains(row.closest) && !row.harmless.contains(value));
        set.map(|(name, value)| Unsupported { setting: format!("{name}={}", on_one_line(value)), advice: row.advice })
    };
    ROWS.iter().flat_map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    fn found(variables: &[(&str, &str)]) -> Vec<String> {
        let environment = variables.iter().copied().collect();
        let found = unsupported(&environment, &settings::names());
        found.into_iter().map(|unsupported| unsupported.setting).collect()
    }

    #[test]
    fn what_asks_for_nothing_is_no_problem() {
        assert!(found(&[]).is_empty());
        for row in ROWS {
            for (name, value) in row.names.iter().flat_map(|name| row.harmless.iter().map(move |value| (name, value))) {
                assert!(found(&[(name, value)]).is_empty(), "{name}={value}");
            }
        }
    }

    #[test]
    fn memcached_is_told() {
        assert_eq!(found(&[("MEMCACHE_TLS", "true"), ("MEMCACHE_SRV", "x")]), ["MEMCACHE_SRV=x", "MEMCACHE_TLS=true"]);
    }

    #[test]
    fn what_tollgate_does_anyway_is_not_told_and_the_opposite_is() {
        // Envoy Gateway, Istio and Contour set these values.
        assert!(found(&[("RUNTIME_IGNOREDOTFILES", "true"), ("RUNTIME_WATCH_ROOT", "false")]).is_empty());
        assert_eq!(found(&[("RUNTIME_IGNOREDOTFILES", "false")]), ["RUNTIME_IGNOREDOTFILES=false"]);
    }

    /// All variables that its documentation, its code and its Go libraries name.
    const VARIABLES: &str = include_str!("../../tests/settings/envoyproxy-ratelimit.txt");

    #[test]
    fn every_variable_of_envoyproxy_ratelimit_is_a_setting_or_told() {
        let settings = settings::names();
        let variables: BTreeSet<&str> = VARIABLES.lines().collect();
        for name in &variables {
            let is_told = !found(&[(name, "x")]).is_empty();
            assert!(is_told != settings.contains(*name), "{name} is a setting, or it is told: one of the two");
        }
        let stale: Vec<_> = names().filter(|name| !variables.contains(name)).collect();
        assert!(stale.is_empty() && variables.len() > 100, "{stale:?}");
        let unknown: Vec<_> = ROWS.iter().map(|row| row.closest).filter(|name| !settings.contains(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} are no settings");
    }
}
