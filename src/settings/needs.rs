//! What each setting needs to have an effect. A value that has none is reported at the start and by `check --env`:
//! people set `ADMIN_TOKEN` or `OTEL_EXPORTER_OTLP_ENDPOINT` and expect that this switches something on.
//!
//! Every setting is in exactly one of the two tables below, which a test checks.

use clap::{Args as _, Command};

use super::decisions::LogPlace;
use super::{Backend, ConfigType, Given, KeyNames, Settings};
use crate::engine::plan::CounterKeys;
use crate::grpc::HeaderFormat;
use crate::observe::redaction::Shown;
use crate::store::redis::topology::address::RedisAddress;

/// Settings with the same need.
struct Row {
    names: &'static [&'static str],
    /// Returns why these settings have no effect; `None` if they have one.
    unmet: fn(&Settings) -> Option<&'static str>,
}

const fn row(names: &'static [&'static str], unmet: fn(&Settings) -> Option<&'static str>) -> Row {
    Row { names, unmet }
}

const ROWS: &[Row] = &[
    // Deployments of envoyproxy/ratelimit set its folders (RUNTIME_*) in any case, so those cause no warning.
    row(&["RULES"], |settings| {
        (settings.rules.config_type == ConfigType::GrpcXdsSotw).then_some("CONFIG_TYPE is GRPC_XDS_SOTW")
    }),
    row(&["CANDIDATE_SAMPLE", "CANDIDATE_STORE_SIZE_IN_BYTES", "PROMOTE_FOLDER"], |settings| {
        settings.candidates.files.sources().is_none().then_some("CANDIDATE_RULES is not set")
    }),
    row(
        &[
            "CONFIG_GRPC_XDS_SERVER_URL",
            "CONFIG_GRPC_XDS_NODE_ID",
            "CONFIG_GRPC_XDS_NODE_METADATA",
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
            "XDS_CLIENT_BACKOFF_JITTER",
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
            "CONFIG_GRPC_XDS_REMOVAL_DELAY",
            "CONFIG_GRPC_XDS_SERVER_USE_TLS",
        ],
        without_management_server,
    ),
    row(&["XDS_CLIENT_BACKOFF_RANDOM_FACTOR"], |settings| {
        let jitter = settings.management.xds_client_backoff_jitter;
        without_management_server(settings).or((!jitter).then_some("XDS_CLIENT_BACKOFF_JITTER is off"))
    }),
    row(
        &[
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
            "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
        ],
        |settings| {
            let tls = settings.management.config_grpc_xds_server_use_tls;
            without_management_server(settings).or((!tls).then_some("CONFIG_GRPC_XDS_SERVER_USE_TLS is off"))
        },
    ),
    row(&["REDIS_URL"], |settings| {
        let is_memory = settings.store.backend_type == Some(Backend::Memory);
        is_memory.then_some("BACKEND_TYPE is memory, so each instance counts on its own")
    }),
    row(
        &[
            "CACHE_KEY_PREFIX",
            "REDIS_TYPE",
            "REDIS_SOCKET_TYPE",
            "REDIS_AUTH",
            "REDIS_AUTH_FILE",
            "REDIS_TLS",
            "REDIS_PERSECOND",
            "REDIS_POOL_SIZE",
            "LOCAL_CACHE_SIZE_IN_BYTES",
            "REDIS_QUEUE_SIZE",
            "OVERLOAD",
            "REDIS_TIMEOUT",
            "SHARE_TIMEOUT",
            "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        ],
        without_redis,
    ),
    row(&["COUNTER_KEYS"], |settings| {
        let (named, used) = (settings.store.counter_keys, settings.store.counter_keys());
        let is_idle = named == KeyNames::Reference && used == CounterKeys::Tollgate;
        is_idle.then_some("envoyproxy/ratelimit cannot share counters in the memory of this process")
    }),
    row(&["EXPIRATION_JITTER_MAX_SECONDS"], |settings| {
        let is_asked = settings.store.expiration_jitter_max_seconds > 0;
        let is_idle = is_asked && settings.store.counter_keys() == CounterKeys::Tollgate;
        is_idle.then_some("without COUNTER_KEYS=reference each counter expires soon after its own window")
    }),
    row(&["REDIS_SENTINEL_AUTH"], |settings| {
        let other = |address: &RedisAddress| (!address.has_sentinels()).then_some("REDIS_URL names no Sentinels");
        without_redis(settings).or_else(|| of_redis(settings, other))
    }),
    row(
        &[
            "REDIS_TLS_CACERT",
            "REDIS_TLS_CLIENT_CERT",
            "REDIS_TLS_CLIENT_KEY",
            "REDIS_TLS_SERVER_NAME",
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        ],
        |settings| {
            let Ok(Some(redis)) = settings.store.redis() else { return without_redis(settings) };
            let second = redis.per_second.as_ref().is_some_and(|second| second.address.is_secure());
            (!redis.address.is_secure() && !second).then_some("neither REDIS_TLS nor REDIS_URL says TLS")
        },
    ),
    row(
        &[
            "REDIS_PERSECOND_URL",
            "REDIS_PERSECOND_TYPE",
            "REDIS_PERSECOND_SOCKET_TYPE",
            "REDIS_PERSECOND_AUTH",
            "REDIS_PERSECOND_TLS",
            "REDIS_PERSECOND_POOL_SIZE",
        ],
        without_second_redis,
    ),
    row(&["REDIS_PERSECOND_SENTINEL_AUTH"], |settings| {
        let second = |redis: crate::store::redis::topology::config::RedisConfig| redis.per_second;
        let second = settings.store.redis().ok().flatten().and_then(second);
        let names_none = second.is_some_and(|second| !second.address.has_sentinels());
        without_second_redis(settings).or(names_none.then_some("REDIS_PERSECOND_URL names no Sentinels"))
    }),
    row(&["GRPC_UDS_MODE"], |settings| settings.listeners.grpc_uds.is_none().then_some("GRPC_UDS is not set")),
    row(&["DEBUG_HOST"], |settings| settings.listeners.debug_port.is_none().then_some("DEBUG_PORT is not set")),
    row(
        &[
            "ADMIN_TOKEN",
            "ADMIN_READ_TOKEN",
            "ADMIN_TOKENS_FILE",
            "ADMIN_HOSTS",
            "CONSOLE",
            "TOP_KEYS_VALUES",
            "WHAT_IF_REQUESTS",
        ],
        without_admin_api,
    ),
    row(&["GRPC_MAX_CONNECTION_AGE_GRACE"], |settings| {
        let is_idle = settings.listeners.grpc_max_connection_age == std::time::Duration::MAX;
        is_idle.then_some("GRPC_MAX_CONNECTION_AGE is 0, so connections are not closed for their age")
    }),
    row(
        &[
            "GRPC_SERVER_TLS_CERT",
            "GRPC_SERVER_TLS_KEY",
            "GRPC_CLIENT_TLS_CACERT",
            "GRPC_CLIENT_TLS_SAN",
            "GRPC_SERVER_TLS_CA_CERT",
        ],
        |settings| (!settings.tls.grpc_server_use_tls).then_some("GRPC_SERVER_USE_TLS is off"),
    ),
    row(&["LIMIT_RESPONSE_HEADERS_FORMAT"], without_headers),
    row(&["LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"], |settings| {
        let is_ietf = settings.answers.limit_response_headers_format == HeaderFormat::Ietf;
        without_headers(settings).or(is_ietf.then_some("LIMIT_RESPONSE_HEADERS_FORMAT is ietf"))
    }),
    row(&["LIMIT_RESPONSE_HEADERS_PARTITION_KEY"], |settings| {
        let is_ietf = settings.answers.limit_response_headers_format == HeaderFormat::Ietf;
        without_headers(settings).or((!is_ietf).then_some("LIMIT_RESPONSE_HEADERS_FORMAT is separate"))
    }),
    row(&["SOFT_LIMIT"], |settings| {
        let is_off = !settings.answers.upstream_headers_enabled;
        is_off.then_some("UPSTREAM_HEADERS_ENABLED is off, and limits with soft have a share of their own")
    }),
    row(&["USE_PROMETHEUS", "USE_STATSD", "USE_DOG_STATSD"], without_statistics),
    row(
        &["PROMETHEUS_ADDR", "PROMETHEUS_PATH", "PROMETHEUS_MAPPER_YAML", "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"],
        |settings| {
            let is_off = !settings.statistics.use_prometheus;
            without_statistics(settings).or(is_off.then_some("USE_PROMETHEUS is off"))
        },
    ),
    row(&["STATSD_HOST", "STATSD_PORT", "STATS_FLUSH_INTERVAL"], without_statsd),
    row(&["STATSD_PROTOCOL"], |settings| {
        let is_dog = settings.statistics.use_dog_statsd;
        without_statsd(settings).or(is_dog.then_some("USE_DOG_STATSD is on, and DogStatsD always uses udp"))
    }),
    row(&["USE_DOG_STATSD_MOGRIFIERS"], |settings| {
        let is_dog = settings.statistics.use_dog_statsd;
        without_statistics(settings).or((!is_dog).then_some("USE_DOG_STATSD is off"))
    }),
    row(&["EXTRA_TAGS", "MAX_VALUE_SERIES"], |settings| {
        let statistics = &settings.statistics;
        let is_exported = statistics.use_prometheus || statistics.sends_to_statsd();
        let why = "no statistics are exported: USE_PROMETHEUS, USE_STATSD and USE_DOG_STATSD are off";
        without_statistics(settings).or((!is_exported).then_some(why))
    }),
    row(&["DECISION_LOG_SAMPLE", "DECISION_LOG_VALUES", "DECISION_LOG_LINES_PER_SECOND"], |settings| {
        (settings.decisions.decision_log == LogPlace::Off).then_some("DECISION_LOG is off")
    }),
    row(&["DECISION_LOG_FILE_BYTES", "DECISION_LOG_FILES"], |settings| {
        settings.decisions.file().is_none().then_some("DECISION_LOG is not a file")
    }),
    row(&["WHAT_IF_SAMPLE"], |settings| {
        let keeps_none = settings.decisions.what_if_requests == 0;
        keeps_none.then_some("WHAT_IF_REQUESTS is 0").or_else(|| without_admin_api(settings))
    }),
    row(&["VALUES_KEY", "VALUES_KEY_FILE"], |settings| {
        let decisions = &settings.decisions;
        let in_log = decisions.decision_log != LogPlace::Off && decisions.decision_log_values == Shown::Hashed;
        let others = [decisions.top_keys_values, settings.notify.notify_values];
        (!in_log && !others.contains(&Shown::Hashed)).then_some("nothing is hashed")
    }),
    row(&["NOTIFY_WEBHOOK_SECRET", "NOTIFY_WEBHOOK_SECRET_FILE"], |settings| {
        settings.notify.notify_webhook_url.is_none().then_some("NOTIFY_WEBHOOK_URL is not set")
    }),
    row(&["NOTIFY_WEBHOOK_TLS_CACERT"], |settings| {
        (!settings.notify.is_secure()).then_some("NOTIFY_WEBHOOK_URL does not begin with https://")
    }),
    row(&["TRACING_ENABLED"], |settings| {
        settings.tracing.otel_sdk_disabled.then_some("OTEL_SDK_DISABLED is on, so no traces are exported")
    }),
    row(
        &[
            "TRACING_EXPORTER_PROTOCOL",
            "TRACING_SAMPLING_RATE",
            "TRACING_SERVICE_NAME",
            "TRACING_SERVICE_NAMESPACE",
            "TRACING_SERVICE_INSTANCE_ID",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
            "OTEL_EXPORTER_OTLP_COMPRESSION",
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
            "OTEL_SERVICE_NAME",
            "OTEL_RESOURCE_ATTRIBUTES",
            "OTEL_TRACES_SAMPLER",
            "OTEL_TRACES_SAMPLER_ARG",
            "OTEL_PROPAGATORS",
            "OTEL_BSP_SCHEDULE_DELAY",
            "OTEL_BSP_MAX_QUEUE_SIZE",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        ],
        |settings| match (settings.tracing.tracing_enabled, settings.tracing.otel_sdk_disabled) {
            (false, _) => Some("TRACING_ENABLED is off"),
            (true, true) => Some("OTEL_SDK_DISABLED is on, so no traces are exported"),
            (true, false) => None,
        },
    ),
];

fn without_management_server(settings: &Settings) -> Option<&'static str> {
    (settings.rules.config_type == ConfigType::File).then_some("CONFIG_TYPE is FILE")
}

fn without_redis(settings: &Settings) -> Option<&'static str> {
    // Settings that conflict are reported by themselves.
    let is_memory = matches!(settings.store.redis(), Ok(None));
    is_memory.then_some(match settings.store.backend_type {
        Some(Backend::Memory) => "BACKEND_TYPE is memory",
        _ => "REDIS_URL is not set, so counters are in the memory of this process",
    })
}

fn of_redis(settings: &Settings, why: impl Fn(&RedisAddress) -> Option<&'static str>) -> Option<&'static str> {
    settings.store.redis().ok().flatten().and_then(|redis| why(&redis.address))
}

fn without_second_redis(settings: &Settings) -> Option<&'static str> {
    let is_off = !settings.store.per_second.redis_persecond;
    is_off.then_some("REDIS_PERSECOND is off").or_else(|| without_redis(settings))
}

fn without_admin_api(settings: &Settings) -> Option<&'static str> {
    (!settings.listeners.admin_api).then_some("ADMIN_API is off")
}

fn without_headers(settings: &Settings) -> Option<&'static str> {
    (!settings.answers.limit_response_headers_enabled).then_some("LIMIT_RESPONSE_HEADERS_ENABLED is off")
}

fn without_statistics(settings: &Settings) -> Option<&'static str> {
    settings.statistics.disable_stats.then_some("DISABLE_STATS is on")
}

fn without_statsd(settings: &Settings) -> Option<&'static str> {
    let statistics = &settings.statistics;
    let is_off = !statistics.sends_to_statsd();
    without_statistics(settings).or(is_off.then_some(match statistics.use_statsd {
        Some(false) => "USE_STATSD is off",
        _ => "neither STATSD_HOST, USE_STATSD nor USE_DOG_STATSD is set",
    }))
}

/// Returns the given settings that have no effect, with the reason. A switch that is set to off asks for nothing.
pub fn without_effect<'g>(settings: &Settings, given: &'g [Given]) -> Vec<(&'g Given, &'static str)> {
    let command = Settings::augment_args(Command::new("tollgate"));
    let is_off = |given: &Given| {
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(&given.flag));
        let is_switch = arg.is_some_and(|arg| arg.get_possible_values().iter().any(|value| value.matches("on", true)));
        let off = ["false", "f", "0", "no", "n", "off"];
        is_switch && off.contains(&given.value().to_ascii_lowercase().as_str())
    };
    let why = |given: &Given| {
        let variable = given.variable.as_deref()?;
        let row = ROWS.iter().find(|row| row.names.contains(&variable))?;
        (row.unmet)(settings)
    };
    let idle = given.iter().filter_map(|given| Some((given, why(given)?)));
    idle.filter(|(given, _)| !is_off(given)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;
    use crate::settings::{self, Origin};

    /// Settings that have an effect whatever the others are.
    const ALONE: &[&str] = &[
        "ADMIN_API",
        "BACKEND_TYPE",
        "CANDIDATE_RULES",
        "CONFIG_TYPE",
        "DEBUG_PORT",
        "DECISION_LOG",
        "DEFAULT_ALGORITHM",
        "DENIED_BODY",
        "DISABLE_STATS",
        "DRAIN_DELAY",
        "EXPECTED_REPLICAS",
        "FAILURE_MODE",
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "GRPC_HOST",
        "GRPC_MAX_CONCURRENT_STREAMS",
        "GRPC_MAX_CONNECTIONS",
        "GRPC_MAX_CONNECTION_AGE",
        "GRPC_PORT",
        "GRPC_SERVER_USE_TLS",
        "GRPC_TRANSPORT",
        "GRPC_UDS",
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "HOST",
        "JSON_API",
        "LIMIT_DECIDED_BY_HEADER",
        "LIMIT_RESPONSE_HEADERS_ENABLED",
        "LOG_FORMAT",
        "LOG_LEVEL",
        "MAX_CONNECTIONS",
        "MAX_DELAYED_REQUESTS",
        "MAX_DESCRIPTORS",
        "MAX_ENTRIES",
        "MAX_KEY_BYTES",
        "MAX_MESSAGE_BYTES",
        "MAX_RULES_FILE_BYTES",
        "MAX_VALUE_BYTES",
        "MEMORY_STORE_SIZE_IN_BYTES",
        "MERGE_DOMAIN_CONFIG",
        "NEAR_LIMIT_RATIO",
        "NOTIFY_VALUES",
        "NOTIFY_WEBHOOK_URL",
        "OTEL_SDK_DISABLED",
        "PORT",
        "QUOTA_MODE",
        "RESPONSE_DYNAMIC_METADATA",
        "RUNTIME_APPDIRECTORY",
        "RUNTIME_ROOT",
        "RUNTIME_SUBDIRECTORY",
        "SHADOW_MODE",
        "SHUTDOWN_TIMEOUT",
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "TOP_KEYS",
        "UNKNOWN_DESCRIPTOR",
        "UNKNOWN_DOMAIN",
        "UPSTREAM_HEADERS_ENABLED",
        "UPSTREAM_REMAINING_HEADER",
        "UPSTREAM_SOFT_HEADER",
        "USE_CALENDAR_MONTH_RATE_LIMIT",
        "WORKER_THREADS",
    ];

    #[derive(Parser)]
    struct Process {
        #[command(flatten)]
        settings: Settings,
    }

    fn settings(flags: &[&str]) -> Settings {
        Process::parse_from(["tollgate"].iter().chain(flags)).settings
    }

    fn given(variable: &str, value: &str) -> Given {
        Given {
            flag: variable.to_lowercase().replace('_', "-"),
            variable: Some(variable.to_owned()),
            origin: Origin::Environment,
            values: vec![value.into()],
            is_secret: false,
        }
    }

    fn is_told(variable: &str, value: &str, flags: &[&str]) -> bool {
        !without_effect(&settings(flags), &[given(variable, value)]).is_empty()
    }

    #[test]
    fn every_setting_says_what_it_needs_or_that_it_needs_nothing() {
        let rows = ROWS.iter().flat_map(|row| row.names).copied();
        let in_rows: BTreeSet<_> = rows.clone().map(str::to_owned).collect();
        let alone = ALONE.iter().map(|name| (*name).to_owned());
        let all: BTreeSet<_> = in_rows.iter().cloned().chain(alone.clone()).collect();
        assert_eq!(all, settings::names());
        assert_eq!(in_rows.len(), rows.count(), "a setting is in one row");
        assert_eq!(alone.filter(|name| in_rows.contains(name)).collect::<Vec<_>>(), [""; 0]);
    }

    /// For each row, by its first setting: flags without which it has no effect, or with which it has none.
    type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

    #[test]
    fn each_setting_is_told_without_its_switch_and_not_with_it() {
        const XDS: &str = "--config-type=GRPC_XDS_SOTW";
        const REDIS: &str = "--redis-url=localhost:1";
        let cases: &[Case] = &[
            ("RULES", &[XDS], &[]),
            ("CANDIDATE_SAMPLE", &[], &["--candidate-rules=x"]),
            ("CONFIG_GRPC_XDS_SERVER_URL", &[], &[XDS]),
            ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", &[XDS, "--xds-client-backoff-jitter=false"], &[XDS]),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &[XDS], &[XDS, "--config-grpc-xds-server-use-tls"]),
            ("REDIS_URL", &[REDIS, "--backend-type=memory"], &[REDIS]),
            ("CACHE_KEY_PREFIX", &[], &[REDIS]),
            ("COUNTER_KEYS", &["--counter-keys=reference"], &[REDIS, "--counter-keys=reference"]),
            ("EXPIRATION_JITTER_MAX_SECONDS", &[REDIS], &[REDIS, "--counter-keys=reference"]),
            ("REDIS_SENTINEL_AUTH", &[REDIS], &["--redis-url=m,a:1,b:2", "--redis-type=SENTINEL"]),
            ("REDIS_TLS_CACERT", &[REDIS], &[REDIS, "--redis-tls"]),
            ("REDIS_PERSECOND_URL", &[REDIS], &[REDIS, "--redis-persecond", "--redis-persecond-url=localhost:2"]),
            (
                "REDIS_PERSECOND_SENTINEL_AUTH",
                &[REDIS, "--redis-persecond", "--redis-persecond-url=localhost:2"],
                &[REDIS, "--redis-persecond", "--redis-persecond-url=m,a:1", "--redis-persecond-type=SENTINEL"],
            ),
            ("GRPC_UDS_MODE", &[], &["--grpc-uds=x"]),
            ("DEBUG_HOST", &[], &["--debug-port=1"]),
            ("ADMIN_TOKEN", &[], &["--admin-api"]),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", &["--grpc-max-connection-age=0"], &[]),
            ("GRPC_SERVER_TLS_CERT", &[], &["--grpc-server-use-tls"]),
            ("LIMIT_RESPONSE_HEADERS_FORMAT", &[], &["--limit-response-headers-enabled"]),
            ("LIMIT_LIMIT_HEADER", &[], &["--limit-response-headers-enabled"]),
            (
                "LIMIT_RESPONSE_HEADERS_PARTITION_KEY",
                &["--limit-response-headers-enabled"],
                &["--limit-response-headers-enabled", "--limit-response-headers-format=ietf"],
            ),
            ("SOFT_LIMIT", &[], &["--upstream-headers-enabled"]),
            ("USE_PROMETHEUS", &["--disable-stats"], &[]),
            ("PROMETHEUS_ADDR", &[], &["--use-prometheus"]),
            ("STATSD_HOST", &["--use-statsd=false"], &["--statsd-host=x"]),
            ("STATSD_PROTOCOL", &["--use-dog-statsd"], &["--use-statsd"]),
            ("USE_DOG_STATSD_MOGRIFIERS", &["--use-statsd"], &["--use-dog-statsd"]),
            ("EXTRA_TAGS", &[], &["--use-prometheus"]),
            ("DECISION_LOG_SAMPLE", &[], &["--decision-log=stdout"]),
            ("DECISION_LOG_FILE_BYTES", &["--decision-log=stdout"], &["--decision-log=x"]),
            ("WHAT_IF_SAMPLE", &["--admin-api", "--what-if-requests=0"], &["--admin-api"]),
            ("VALUES_KEY", &[], &["--top-keys-values=hashed"]),
            ("NOTIFY_WEBHOOK_SECRET", &[], &["--notify-webhook-url=http://x"]),
            ("NOTIFY_WEBHOOK_TLS_CACERT", &["--notify-webhook-url=http://x"], &["--notify-webhook-url=https://x"]),
            ("TRACING_ENABLED", &["--otel-sdk-disabled"], &[]),
            ("TRACING_EXPORTER_PROTOCOL", &[], &["--tracing-enabled"]),
        ];
        let firsts: Vec<_> = ROWS.iter().map(|row| row.names[0]).collect();
        assert_eq!(cases.iter().map(|(first, ..)| *first).collect::<Vec<_>>(), firsts);
        for (row, (_, without, with)) in ROWS.iter().zip(cases) {
            for name in row.names {
                assert!(is_told(name, "1", without), "{name} with {without:?}");
                assert!(!is_told(name, "1", with), "{name} with {with:?}");
            }
        }
    }

    #[test]
    fn a_switch_that_is_off_asks_for_nothing_and_a_number_of_zero_is_no_switch() {
        assert!(!is_told("CONSOLE", "false", &[]) && is_told("CONSOLE", "true", &[]));
        assert!(!is_told("REDIS_TLS", "Off", &[]) && is_told("REDIS_TLS", "T", &[]));
        assert!(is_told("DECISION_LOG_FILES", "0", &[]));
    }
}
