//! Every knob of the process, once: its flag, environment variable, default and meaning.
//!
//! The help text and the reference page (`config/settings.md`, made by `tollgate settings`) derive from this declaration.
//! Where `envoyproxy/ratelimit` has the same thing, its variable names it here.

mod page;
mod reference;
mod rules;
mod store;

use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};

use crate::grpc::HeaderFormat;
use crate::store::redis::RedisAddressError;
use crate::telemetry::{LogFormat, LogLevels};

pub use page::page;
pub use reference::{Unsupported, unsupported};
pub use rules::{Reading, RulesSettings};
pub use store::{Backend, SocketType, StoreSettings};

/// How the process runs. Durations read like 150us, 20ms, 1h30m.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Where the rules are.
    #[command(flatten)]
    pub rules: RulesSettings,

    /// How they are read.
    #[command(flatten)]
    pub reading: Reading,

    /// Start even where the rules are wrong or missing: the health check says NOT_SERVING until they are right.
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", help_heading = "Rules", value_parser = BoolishValueParser::new(),
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub force_start_without_initial_config: bool,

    /// How many copies of this process share the traffic: failure mode local gives each its part of a limit.
    #[arg(long, env = "EXPECTED_REPLICAS", value_name = "NUMBER", default_value = "1", help_heading = "Rules",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub expected_replicas: u32,

    /// Deny nothing: what would have been denied is counted and reported in the statuses.
    #[arg(long, env = "SHADOW_MODE", help_heading = "Rules", value_parser = BoolishValueParser::new(),
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub shadow_mode: bool,

    /// Where counters live.
    #[command(flatten)]
    pub store: StoreSettings,

    /// Where gRPC listens.
    #[arg(long, env = "GRPC_HOST", value_name = "ADDRESS", default_value = "0.0.0.0", help_heading = "Listeners")]
    pub grpc_host: String,

    /// And its port; 0 takes any that is free.
    #[arg(long, env = "GRPC_PORT", value_name = "PORT", default_value = "8081", help_heading = "Listeners")]
    pub grpc_port: u16,

    /// Where HTTP (health and metrics) listens.
    #[arg(long, env = "HOST", value_name = "ADDRESS", default_value = "0.0.0.0", help_heading = "Listeners")]
    pub host: String,

    /// And its port; 0 takes any that is free.
    #[arg(long, env = "PORT", value_name = "PORT", default_value = "8080", help_heading = "Listeners")]
    pub port: u16,

    /// Let those who know ADMIN_TOKEN look at counters and reset them over HTTP, at /counters.
    #[arg(long, env = "ADMIN_API", help_heading = "Listeners", value_parser = BoolishValueParser::new(),
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub admin_api: bool,

    /// What they must send, as `Authorization: Bearer TOKEN`.
    #[arg(long, env = "ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true, help_heading = "Listeners")]
    pub admin_token: Option<String>,

    /// How many connections HTTP may have at once; the oldest goes for one more. Fewer where the limit on descriptors leaves less.
    #[arg(long, env = "MAX_CONNECTIONS", value_name = "NUMBER", default_value = "256", help_heading = "Listeners",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,

    /// How many connections gRPC may have at once; what is beyond is closed. Fewer where the limit on descriptors leaves less.
    #[arg(long, env = "GRPC_MAX_CONNECTIONS", value_name = "NUMBER", default_value = "10000", help_heading = "Listeners",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub grpc_max_connections: u32,

    /// A connection older than this is closed once its calls are answered, so that clients spread over new replicas.
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", value_name = "DURATION", default_value = "24h", help_heading = "Listeners",
        value_parser = positive_duration)]
    pub grpc_max_connection_age: Duration,

    /// And after this much longer it is closed in any case.
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", value_name = "DURATION", default_value = "1h", help_heading = "Listeners",
        value_parser = positive_duration)]
    pub grpc_max_connection_age_grace: Duration,

    /// Threads that answer calls; every connection belongs to one of them. Unset: one for each core that the process may use.
    #[arg(long, env = "WORKER_THREADS", value_name = "NUMBER", help_heading = "Listeners",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub worker_threads: Option<u16>,

    /// How many calls a connection may have at once. Envoy opens one more connection for what is beyond it.
    #[arg(long, env = "GRPC_MAX_CONCURRENT_STREAMS", value_name = "NUMBER", default_value = "1024", help_heading = "Listeners",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub grpc_max_concurrent_streams: u32,

    /// On SIGTERM or SIGINT: how long requests are still taken after health has turned NOT_SERVING, for clients to go elsewhere.
    #[arg(long, env = "DRAIN_DELAY", value_name = "DURATION", default_value = "2s", help_heading = "Listeners",
        value_parser = duration)]
    pub drain_delay: Duration,

    /// After that: the longest that requests on their way may take to finish. Those still held shortly before its end pass then.
    #[arg(long, env = "SHUTDOWN_TIMEOUT", value_name = "DURATION", default_value = "10s", help_heading = "Listeners",
        value_parser = positive_duration)]
    pub shutdown_timeout: Duration,

    /// The largest request in bytes. What a connection's half-received requests take together is bounded by a megabyte, or by this.
    #[arg(long, env = "MAX_MESSAGE_BYTES", value_name = "BYTES", default_value = "65536", help_heading = "Requests",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub max_message_bytes: u32,

    /// The most descriptors in a request.
    #[arg(long, env = "MAX_DESCRIPTORS", value_name = "NUMBER", default_value = "100", help_heading = "Requests",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub max_descriptors: u32,

    /// The most entries in a descriptor.
    #[arg(long, env = "MAX_ENTRIES", value_name = "NUMBER", default_value = "100", help_heading = "Requests",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub max_entries: u32,

    /// The longest key or domain in bytes.
    #[arg(long, env = "MAX_KEY_BYTES", value_name = "BYTES", default_value = "4096", help_heading = "Requests",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub max_key_bytes: u32,

    /// The longest value in bytes.
    #[arg(long, env = "MAX_VALUE_BYTES", value_name = "BYTES", default_value = "1048576", help_heading = "Requests",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub max_value_bytes: u32,

    /// The most that counters in this process's memory may take, without Redis or in failure mode `local`. Unset: half of the memory that the
    /// process may use. At the bound the counters that are there go on, and a limit that needs a new one answers by its failure mode.
    #[arg(long, env = "MEMORY_STORE_SIZE_IN_BYTES", value_name = "BYTES", help_heading = "Requests",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub memory_store_size_in_bytes: Option<u64>,

    /// The most requests that are held at once until their turn (`leaky_bucket` with `max_delay`); what would be one more is denied.
    #[arg(long, env = "MAX_HELD_REQUESTS", value_name = "NUMBER", default_value = "10000", help_heading = "Requests",
        value_parser = clap::value_parser!(u32))]
    pub max_held_requests: u32,

    /// Tell clients about their limit in response headers.
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED", help_heading = "Answers", value_parser = BoolishValueParser::new(),
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub limit_response_headers_enabled: bool,

    /// In which form.
    #[arg(
        long,
        env = "LIMIT_RESPONSE_HEADERS_FORMAT",
        value_name = "FORMAT",
        default_value = "separate",
        help_heading = "Answers"
    )]
    pub limit_response_headers_format: HeaderFormat,

    /// The header for the limit.
    #[arg(
        long,
        env = "LIMIT_LIMIT_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Limit",
        help_heading = "Answers"
    )]
    pub limit_limit_header: String,

    /// The header for what remains.
    #[arg(
        long,
        env = "LIMIT_REMAINING_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Remaining",
        help_heading = "Answers"
    )]
    pub limit_remaining_header: String,

    /// The header for the seconds until nothing is used any more.
    #[arg(
        long,
        env = "LIMIT_RESET_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Reset",
        help_heading = "Answers"
    )]
    pub limit_reset_header: String,

    /// A hit beyond this share of its limit counts as near the limit in the metrics.
    #[arg(long, env = "NEAR_LIMIT_RATIO", value_name = "SHARE", default_value = "0.8", help_heading = "Answers",
        value_parser = share)]
    pub near_limit_ratio: f64,

    /// The least important log lines to write: error, warn, info, debug (tells of every request, with its values) or
    /// trace. Libraries are silent unless they are named, each with its level: info,h2=warn,hyper=debug.
    #[arg(long, env = "LOG_LEVEL", value_name = "LEVELS", default_value = "info", help_heading = "Logs")]
    pub log_level: LogLevels,

    /// What log lines look like.
    #[arg(
        long,
        env = "LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text",
        ignore_case = true,
        help_heading = "Logs"
    )]
    pub log_format: LogFormat,
}

/// Settings that do not go together.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// No place is named.
    #[error(
        "no rules: name a file or folder with --rules PATH (or RULES), or the reference's layout with RUNTIME_SUBDIRECTORY"
    )]
    NoRules,
    /// Redis without a place.
    #[error("BACKEND_TYPE=redis needs REDIS_URL, for example REDIS_URL=localhost:6379")]
    NoRedisUrl,
    /// A place that cannot be understood.
    #[error("REDIS_URL")]
    RedisUrl(#[source] RedisAddressError),
    /// One says tcp and the other means a path.
    #[error(
        "REDIS_SOCKET_TYPE=tcp, but REDIS_URL is the path of a Unix socket: write host:port, or REDIS_SOCKET_TYPE=unix"
    )]
    SocketType,
    /// Anybody could reset counters.
    #[error("ADMIN_API=true needs an ADMIN_TOKEN of at least 16 characters")]
    AdminToken,
    /// A header that HTTP cannot carry.
    #[error("{0}={1:?} is not the name of a header: use letters, digits and dashes")]
    HeaderName(&'static str, String),
}

impl Settings {
    /// What those must send who may reset counters; `None`: nobody may.
    ///
    /// # Errors
    /// Where the token is missing or too easy to guess.
    pub fn admin_token(&self) -> Result<Option<String>, SettingsError> {
        match &self.admin_token {
            _ if !self.admin_api => Ok(None),
            Some(token) if token.len() >= 16 => Ok(Some(token.clone())),
            _ => Err(SettingsError::AdminToken),
        }
    }

    /// Whether the names of headers can be used.
    ///
    /// # Errors
    /// Where one cannot.
    pub fn check_headers(&self) -> Result<(), SettingsError> {
        for (setting, name) in [
            ("LIMIT_LIMIT_HEADER", &self.limit_limit_header),
            ("LIMIT_REMAINING_HEADER", &self.limit_remaining_header),
            ("LIMIT_RESET_HEADER", &self.limit_reset_header),
        ] {
            if axum::http::HeaderName::try_from(name.as_str()).is_err() {
                return Err(SettingsError::HeaderName(setting, name.clone()));
            }
        }
        Ok(())
    }
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than zero".into()),
        duration => Ok(duration),
    }
}

/// Up to a year: what is longer is a mistake, and the clock could not count it.
fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration > Duration::from_secs(366 * 24 * 60 * 60) => Err("must be at most 366d".into()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}: a duration has units, such as 150us, 20ms, 1h30m")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a number from 0 to 1".into()),
    }
}
