//! Variables of `envoyproxy/ratelimit` that are no settings here. A process that came with them must not silently run
//! without.

use std::collections::BTreeSet;

use super::Environment;
use super::given::on_one_line;

/// A variable that is set and that means something this process does not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The variable, and its value unless that may be a secret.
    pub setting: String,
    /// What to do about it.
    pub advice: &'static str,
}

/// Variables that are answered alike.
struct Row {
    names: &'static [&'static str],
    /// Values that ask for nothing.
    harmless: &'static [&'static str],
    /// The setting of ours that is nearest: who reads that is told.
    beside: &'static str,
    advice: &'static str,
}

/// Go's spellings of false.
const OFF: &[&str] = &["0", "f", "F", "false", "False", "FALSE"];
/// Every value asks for something.
const NONE: &[&str] = &[];

const SHARED: &str = "calls share connections, and OVERLOAD says what happens where too many wait";
const NO_MEMCACHED: &str = "Memcached is not supported; unset it, and set REDIS_URL";
const NO_PIPELINE: &str = "calls that come together go to Redis together, without waiting for others";

const ROWS: &[Row] = &[
    told(
        &["GOMAXPROCS"],
        NONE,
        "WORKER_THREADS",
        "Go's runtime reads it, and Tollgate has none; WORKER_THREADS is one for each core that the process may use",
    ),
    told(
        &["GODEBUG", "GOGC", "GOMEMLIMIT", "GOTRACEBACK"],
        NONE,
        "WORKER_THREADS",
        "Go's runtime reads it, and Tollgate has none; nor does it collect garbage",
    ),
    told(
        &["GRPC_GO_LOG_SEVERITY_LEVEL", "GRPC_GO_LOG_VERBOSITY_LEVEL"],
        NONE,
        "LOG_LEVEL",
        "Go's gRPC reads it; set LOG_LEVEL, which can name a module",
    ),
    told(&["RUNTIME_IGNOREDOTFILES"], NONE, "RULES", "files and folders that begin with a dot are never read"),
    told(
        &["RUNTIME_WATCH_ROOT"],
        NONE,
        "RULES",
        "whatever changes below the folder of rules is noticed, links that are swapped, too",
    ),
    told(
        &["STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"],
        OFF,
        "DEFAULT_ALGORITHM",
        "a denied request charges nothing; a limit that counts by fixed_window does so with count_denied: false",
    ),
    told(
        &[
            "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
            "REDIS_PERSECOND_PIPELINE_LIMIT",
            "REDIS_PERSECOND_PIPELINE_WINDOW",
        ],
        &["0", "0s"],
        "REDIS_PERSECOND_URL",
        NO_PIPELINE,
    ),
    told(&["REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR"], NONE, "REDIS_PERSECOND_URL", SHARED),
    told(&["REDIS_PERSECOND_TIMEOUT"], NONE, "REDIS_TIMEOUT", "that holds for both Redises, and for all waiting"),
    told(&["REDIS_CLUSTER_PIPELINE_PARALLELISM"], NONE, "REDIS_URL", NO_PIPELINE),
    told(&["REDIS_PIPELINE_LIMIT", "REDIS_PIPELINE_WINDOW"], &["0", "0s"], "REDIS_URL", NO_PIPELINE),
    told(&["REDIS_POOL_ON_EMPTY_BEHAVIOR"], NONE, "REDIS_URL", SHARED),
    told(
        &["REDIS_STARTUP_INITIAL_INTERVAL", "REDIS_STARTUP_MAX_ELAPSED_TIME", "REDIS_STARTUP_MAX_INTERVAL"],
        NONE,
        "REDIS_URL",
        "Tollgate starts without Redis, too, and connects as soon as Redis is there",
    ),
    told(
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
    told(&["MEMCACHE_TLS", "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION"], OFF, "BACKEND_TYPE", NO_MEMCACHED),
];

/// How the names begin that a list in `USE_DOG_STATSD_MOGRIFIERS` makes.
const MOGRIFIER: &str = "DOG_STATSD_MOGRIFIER_";
const fn told(
    names: &'static [&'static str],
    harmless: &'static [&'static str],
    beside: &'static str,
    advice: &'static str,
) -> Row {
    Row { names, harmless, beside, advice }
}

/// Whether `envoyproxy/ratelimit` has this variable and Tollgate has not.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(MOGRIFIER) || names().any(|known| known == name)
}

/// All of those but the mogrifiers', whose names are their users' own.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().flat_map(|row| row.names).copied()
}

/// The settings of ours that are nearest to one of those.
pub(super) fn beside(name: &str) -> Option<&'static str> {
    ROWS.iter().find(|row| row.names.contains(&name)).map(|row| row.beside)
}

/// What of the environment asks for something that is not here, where it is nearest to one of `settings`.
pub fn unsupported(environment: &Environment, settings: &BTreeSet<String>) -> Vec<Unsupported> {
    let of_row = |row: &'static Row| {
        let set = row.names.iter().filter_map(|name| Some((*name, environment.get(name)?)));
        let set = set.filter(|(_, value)| settings.contains(row.beside) && !row.harmless.contains(value));
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

    /// The variables that its documentation, its code and Go's libraries have, by name.
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
        let unknown: Vec<_> = ROWS.iter().map(|row| row.beside).filter(|name| !settings.contains(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} are no settings");
    }
}
