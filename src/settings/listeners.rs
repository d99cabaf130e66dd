//! Settings of the ports, and of start and shutdown.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::duration;
use super::links::port;
use super::path::path;
use super::tolerated::{duration_or_never, streams};
use super::{MIN_TOKEN, SettingsError, named, positive_duration, switch, whole};
use crate::grpc::Transport;
use crate::http::{AdminTokens, Hosts};
use crate::sources::files::tokens::{self, Sha256, TokenOptions};

/// Settings of the ports, and of start and shutdown.
#[derive(Args, Clone, Debug)]
pub struct ListenerSettings {
    /// Address or host name for gRPC. 0.0.0.0 and :: both mean every address, of IPv6 and IPv4.
    #[arg(long, env = "GRPC_HOST", value_name = "ADDRESS", default_value = "0.0.0.0", help_heading = "Listeners",
        value_parser = host)]
    pub grpc_host: String,

    /// Port for gRPC; 0 chooses a free one.
    #[arg(long, env = "GRPC_PORT", value_name = "PORT", default_value = "8081", help_heading = "Listeners",
        value_parser = port("GRPC_PORT"))]
    pub grpc_port: u16,

    /// Path of a Unix socket for gRPC, in place of GRPC_HOST and GRPC_PORT. A socket left by a process that has ended
    /// is replaced. The socket is removed at shutdown.
    #[arg(long, env = "GRPC_UDS", value_name = "PATH", help_heading = "Listeners",
        value_parser = path)]
    pub grpc_uds: Option<PathBuf>,

    /// Permissions of the Unix socket, as the mode of a file: a client that may read and write can connect, as the
    /// owner (6__), a member of the group (_6_) or anyone else (__6).
    #[arg(long, env = "GRPC_UDS_MODE", value_name = "MODE", default_value = "660", help_heading = "Listeners",
        value_parser = mode)]
    pub grpc_uds_mode: u32,

    /// Address or host name for HTTP (health and metrics). 0.0.0.0 and :: both mean every address, of IPv6 and IPv4.
    #[arg(long, env = "HOST", value_name = "ADDRESS", default_value = "0.0.0.0", help_heading = "Listeners",
        value_parser = host)]
    pub host: String,

    /// Port for HTTP; 0 chooses a free one.
    #[arg(long, env = "PORT", value_name = "PORT", default_value = "8080", help_heading = "Listeners",
        value_parser = port("PORT"))]
    pub port: u16,

    /// Answer requests in JSON, at /json of the HTTP port, as gRPC does. Any client that can reach the port can then
    /// charge limits, as with gRPC.
    #[arg(long, env = "JSON_API", help_heading = "Listeners", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub json_api: bool,

    /// Address for the debug port. It lists the rules in force (/rlconfig) and the counts of metrics (/stats) to any
    /// client that can reach it.
    #[arg(long, env = "DEBUG_HOST", value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Listeners")]
    pub debug_host: String,

    /// Debug port; 0 chooses a free one. Unset: no debug port. envoyproxy/ratelimit uses 6070.
    #[arg(long, env = "DEBUG_PORT", value_name = "PORT", help_heading = "Listeners",
        value_parser = port("DEBUG_PORT"))]
    pub debug_port: Option<u16>,

    /// Serve the administrators' paths on the HTTP port, for clients that send the ADMIN_TOKEN: /counters shows and
    /// resets counters, /explain explains requests, /top shows the top keys, /usage the recorded usage, /replicas the
    /// instances that share the store, /candidates and /what-if the effect of candidate rules and of other numbers, and
    /// /adjustments lists and changes adjustments.
    #[arg(long, env = "ADMIN_API", help_heading = "Listeners", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub admin_api: bool,

    /// Token of administrators, sent as `Authorization: Bearer TOKEN`, of at least 16 characters.
    #[arg(long, env = "ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true, help_heading = "Listeners")]
    pub admin_token: Option<String>,

    /// Token of clients that may read all administrators' paths but change nothing, and /usage only with
    /// TOP_KEYS_VALUES=plain.
    /// Unset: no such clients. Without ADMIN_TOKEN and ADMIN_TOKENS_FILE, no client can change anything over HTTP.
    #[arg(long, env = "ADMIN_READ_TOKEN", value_name = "TOKEN", hide_env_values = true, help_heading = "Listeners")]
    pub admin_read_token: Option<String>,

    /// File of tokens with names, each with the hash of the token, its roles (read, adjust, reset, admin) and the
    /// domains that it may change. It is read again when it changes.
    #[arg(long, env = "ADMIN_TOKENS_FILE", value_name = "PATH", help_heading = "Listeners", value_parser = path)]
    pub admin_tokens_file: Option<PathBuf>,

    /// Host names that the administrators' paths and the console answer to, separated by commas. Requests to other
    /// names get 421; localhost and IP addresses are always valid. Unset: any name.
    #[arg(long, env = "ADMIN_HOSTS", value_name = "NAMES", help_heading = "Listeners",
        value_parser = str::parse::<Hosts>)]
    pub admin_hosts: Option<Hosts>,

    /// Serve the console, a page for people, at /console if ADMIN_API is on. It asks for a token, and shows nothing
    /// without one.
    #[arg(long, env = "CONSOLE", help_heading = "Listeners", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub console: bool,

    /// Most simultaneous connections for HTTP. At the bound, a new connection closes the oldest. Fewer if the limit on
    /// file descriptors requires it.
    #[arg(long, env = "MAX_CONNECTIONS", value_name = "NUMBER", default_value = "256", help_heading = "Listeners",
        value_parser = whole::<u32>(1..=1_000_000))]
    pub max_connections: u32,

    /// Most simultaneous connections for gRPC. At the bound, a new connection replaces the one idle for longest; if
    /// none is idle, the new one is closed. Fewer if the limit on file descriptors requires it.
    #[arg(long, env = "GRPC_MAX_CONNECTIONS", value_name = "NUMBER", default_value = "10000",
        help_heading = "Listeners",
        value_parser = whole::<u32>(1..=1_000_000))]
    pub grpc_max_connections: u32,

    /// Age at which a connection is closed once its calls are answered. Clients then spread over new instances. The age
    /// of each connection is randomized by up to a tenth, to keep clients from reconnecting all at once. 0 means never.
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", value_name = "DURATION", default_value = "24h",
        help_heading = "Listeners",
        value_parser = duration_or_never)]
    pub grpc_max_connection_age: Duration,

    /// Time after GRPC_MAX_CONNECTION_AGE at which a connection is closed even if calls are unanswered. 0 means never.
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", value_name = "DURATION", default_value = "1h",
        help_heading = "Listeners",
        value_parser = duration_or_never)]
    pub grpc_max_connection_age_grace: Duration,

    /// Number of threads that answer calls. Each connection belongs to one of them. Unset: one for each core that the
    /// process may use.
    #[arg(long, env = "WORKER_THREADS", value_name = "NUMBER", help_heading = "Listeners",
        value_parser = whole::<u16>(1..=1024))]
    pub worker_threads: Option<u16>,

    /// Most simultaneous calls on a connection. Envoy opens another connection for more. 0 means the maximum, 100000.
    #[arg(long, env = "GRPC_MAX_CONCURRENT_STREAMS", value_name = "NUMBER", default_value = "1024",
        help_heading = "Listeners",
        value_parser = streams)]
    pub grpc_max_concurrent_streams: u32,

    /// HTTP/2 server of the gRPC port. front is made for small calls and takes a fraction of the CPU time; hyper is a
    /// general server, for clients that have trouble with front.
    #[arg(long, env = "GRPC_TRANSPORT", value_name = "SERVER", default_value = "front", help_heading = "Listeners",
        value_parser = named(&Transport::ALL, Transport::name))]
    pub grpc_transport: Transport,

    /// Time after SIGTERM or SIGINT during which requests are still accepted. Health is NOT_SERVING meanwhile, which
    /// makes clients move to other instances.
    #[arg(long, env = "DRAIN_DELAY", value_name = "DURATION", default_value = "2s", help_heading = "Listeners",
        value_parser = duration)]
    pub drain_delay: Duration,

    /// Longest time after DRAIN_DELAY for requests in progress to finish. Shortly before its end, requests that are
    /// still delayed are released.
    #[arg(long, env = "SHUTDOWN_TIMEOUT", value_name = "DURATION", default_value = "10s", help_heading = "Listeners",
        value_parser = positive_duration)]
    pub shutdown_timeout: Duration,
}

impl ListenerSettings {
    /// Returns the tokens of administrators; `None` if ADMIN_API is off. Reads the file of ADMIN_TOKENS_FILE.
    ///
    /// # Errors
    /// Fails if all tokens are missing, if one is too short, if two are equal, or if the file has mistakes.
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
            (None, None) if self.admin_tokens_file.is_none() => return Err(SettingsError::NoAdminToken),
            (Some(admin), Some(reader)) if admin == reader => return Err(SettingsError::SameAdminTokens),
            _ => {}
        }
        let hash = |token: &String| Sha256::of(token.as_bytes());
        let others: Vec<_> = [("ADMIN_TOKEN", &admin), ("ADMIN_READ_TOKEN", &reader)]
            .into_iter()
            .filter_map(|(setting, token)| Some((setting, token.as_ref().map(hash)?)))
            .collect();
        let options = TokenOptions { least_characters: MIN_TOKEN, others: &others };
        let named = match &self.admin_tokens_file {
            Some(file) => tokens::load(file, &options).map_err(SettingsError::AdminTokensFile)?,
            None => Vec::new(),
        };
        Ok(Some(AdminTokens { admin, reader, named }))
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777 && text.len() >= 3);
    mode.ok_or_else(|| "must be three digits from 0 to 7, such as 660 or 666".into())
}

/// Parses an address or a name. An IPv6 address may be in brackets, as in front of a port.
fn host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let is_part_of_path = |char: char| char.is_whitespace() || char == '/';
    match bare.contains(is_part_of_path) {
        true => Err("an address or a name, such as 0.0.0.0, :: or localhost".into()),
        false => Ok(bare.to_owned()),
    }
}
