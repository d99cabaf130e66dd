//! Where the process listens, and how it comes and goes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::links::port;
use super::{MIN_TOKEN, SettingsError, duration, positive_duration, switch, whole};
use crate::http::AdminTokens;

/// Where the process listens, and how it comes and goes.
#[derive(Args, Clone, Debug)]
pub struct ListenerSettings {
    /// Where gRPC listens: an address or a name; :: is every address of IPv6 and IPv4.
    #[arg(long, env = "GRPC_HOST", value_name = "ADDRESS", default_value = "0.0.0.0", help_heading = "Listeners",
        value_parser = host)]
    pub grpc_host: String,

    /// And its port; 0 takes any that is free.
    #[arg(long, env = "GRPC_PORT", value_name = "PORT", default_value = "8081", help_heading = "Listeners",
        value_parser = port("GRPC_PORT"))]
    pub grpc_port: u16,

    /// The path of a Unix socket on which gRPC listens instead. A file of that name where nobody listens any more is
    /// replaced, and removed at the end.
    #[arg(long, env = "GRPC_UDS", value_name = "PATH", help_heading = "Listeners")]
    pub grpc_uds: Option<PathBuf>,

    /// Who may connect to it, as the mode of a file: read and write for the owner (6__), its group (_6_) and others
    /// (__6).
    #[arg(long, env = "GRPC_UDS_MODE", value_name = "MODE", default_value = "660", help_heading = "Listeners",
        value_parser = mode)]
    pub grpc_uds_mode: u32,

    /// Where HTTP (health and metrics) listens.
    #[arg(long, env = "HOST", value_name = "ADDRESS", default_value = "0.0.0.0", help_heading = "Listeners",
        value_parser = host)]
    pub host: String,

    /// And its port; 0 takes any that is free.
    #[arg(long, env = "PORT", value_name = "PORT", default_value = "8080", help_heading = "Listeners",
        value_parser = port("PORT"))]
    pub port: u16,

    /// Answer requests that are JSON, at /json of HTTP, as gRPC answers them. Whoever reaches the port can then charge
    /// limits, as whoever reaches gRPC.
    #[arg(long, env = "JSON_API", help_heading = "Listeners", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub json_api: bool,

    /// Where the debug port listens, which lists the rules in force (/rlconfig) and what has been counted (/stats) to
    /// whoever reaches it.
    #[arg(long, env = "DEBUG_HOST", value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Listeners")]
    pub debug_host: String,

    /// And its port; 0 takes any that is free. Unset: there is no debug port. envoyproxy/ratelimit has it at 6070.
    #[arg(long, env = "DEBUG_PORT", value_name = "PORT", help_heading = "Listeners",
        value_parser = port("DEBUG_PORT"))]
    pub debug_port: Option<u16>,

    /// Show and reset counters over HTTP, at /counters, explain requests, at /explain, tell the heaviest keys, at /top,
    /// what was used, at /usage, and who shares the store, at /replicas, compare candidate rules and other numbers, at
    /// /candidates and /what-if, and list and change adjustments, at /adjustments, for clients that know ADMIN_TOKEN.
    #[arg(long, env = "ADMIN_API", help_heading = "Listeners", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub admin_api: bool,

    /// What they must send, as `Authorization: Bearer TOKEN`.
    #[arg(long, env = "ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true, help_heading = "Listeners")]
    pub admin_token: Option<String>,

    /// What clients send that may read all of that and change nothing; /usage shows them values as they are. Unset:
    /// there are none. Without ADMIN_TOKEN, nobody changes anything over HTTP.
    #[arg(long, env = "ADMIN_READ_TOKEN", value_name = "TOKEN", hide_env_values = true, help_heading = "Listeners")]
    pub admin_read_token: Option<String>,

    /// Where ADMIN_API is on: show the console, a page for people, at /console. It asks for a token, and holds nothing
    /// without one.
    #[arg(long, env = "CONSOLE", help_heading = "Listeners", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub console: bool,

    /// How many connections HTTP may have at once; at the bound the oldest goes for a new one. Fewer where the limit on
    /// descriptors leaves less.
    #[arg(long, env = "MAX_CONNECTIONS", value_name = "NUMBER", default_value = "256", help_heading = "Listeners",
        value_parser = whole::<u32>(1..=1_000_000))]
    pub max_connections: u32,

    /// How many connections gRPC may have at once; what is beyond is closed. Fewer where the limit on descriptors
    /// leaves less.
    #[arg(long, env = "GRPC_MAX_CONNECTIONS", value_name = "NUMBER", default_value = "10000",
        help_heading = "Listeners",
        value_parser = whole::<u32>(1..=1_000_000))]
    pub grpc_max_connections: u32,

    /// A connection older than this is closed once its calls are answered, so that clients spread over new replicas.
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", value_name = "DURATION", default_value = "24h",
        help_heading = "Listeners",
        value_parser = positive_duration)]
    pub grpc_max_connection_age: Duration,

    /// And after this much longer it is closed in any case.
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", value_name = "DURATION", default_value = "1h",
        help_heading = "Listeners",
        value_parser = positive_duration)]
    pub grpc_max_connection_age_grace: Duration,

    /// Threads that answer calls; every connection belongs to one of them. Unset: one for each core that the process
    /// may use.
    #[arg(long, env = "WORKER_THREADS", value_name = "NUMBER", help_heading = "Listeners",
        value_parser = whole::<u16>(1..=1024))]
    pub worker_threads: Option<u16>,

    /// How many calls a connection may have at once. Envoy opens one more connection for what is beyond it.
    #[arg(long, env = "GRPC_MAX_CONCURRENT_STREAMS", value_name = "NUMBER", default_value = "1024",
        help_heading = "Listeners",
        value_parser = whole::<u32>(1..=100_000))]
    pub grpc_max_concurrent_streams: u32,

    /// On SIGTERM or SIGINT: how long requests are still taken after health has turned NOT_SERVING, for clients to go
    /// elsewhere.
    #[arg(long, env = "DRAIN_DELAY", value_name = "DURATION", default_value = "2s", help_heading = "Listeners",
        value_parser = duration)]
    pub drain_delay: Duration,

    /// After that: the longest that requests on their way may take to finish. Those that are still delayed shortly
    /// before its end pass then.
    #[arg(long, env = "SHUTDOWN_TIMEOUT", value_name = "DURATION", default_value = "10s", help_heading = "Listeners",
        value_parser = positive_duration)]
    pub shutdown_timeout: Duration,
}

impl ListenerSettings {
    /// What administrators must send; `None`: there are none.
    ///
    /// # Errors
    /// Where both tokens are missing, or one is too easy to guess, or they are the same.
    pub fn admin_tokens(&self) -> Result<Option<AdminTokens>, SettingsError> {
        if !self.admin_api {
            return Ok(None);
        }
        let long_enough = |setting, token: &Option<String>| match token.as_ref().map(|token| token.chars().count()) {
            Some(length) if length < MIN_TOKEN => Err(SettingsError::ShortAdminToken(setting, length)),
            Some(_) | None => Ok(()),
        };
        let (admin, reader) = (self.admin_token.clone(), self.admin_read_token.clone());
        long_enough("ADMIN_TOKEN", &admin)?;
        long_enough("ADMIN_READ_TOKEN", &reader)?;
        match (&admin, &reader) {
            (None, None) => Err(SettingsError::NoAdminToken),
            (Some(admin), Some(reader)) if admin == reader => Err(SettingsError::SameAdminTokens),
            _ => Ok(Some(AdminTokens { admin, reader })),
        }
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777 && text.len() >= 3);
    mode.ok_or_else(|| "must be three digits from 0 to 7, such as 660 or 666".into())
}

/// IPv6 may stand in the brackets that it has in front of a port.
fn host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let is_part_of_path = |char: char| char.is_whitespace() || char == '/';
    match bare.contains(is_part_of_path) {
        true => Err("an address or a name, such as 0.0.0.0, :: or localhost".into()),
        false => Ok(bare.to_owned()),
    }
}
