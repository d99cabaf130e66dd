//! Settings of the store of counters.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};

use super::path::path;
use super::per_second::PerSecondSettings;
use super::redis_tls::RedisTlsSettings;
use super::tolerated::{POOL_SIZE, positive_or_default, whole_or_nearest};
use super::{SettingsError, named, positive_duration, switch, whole};
use crate::engine::plan::CounterKeys;
use crate::limiter::Overload;
use crate::store::redis::topology::address::{RedisAddress, RedisType};
use crate::store::redis::topology::config::{OnCall, RedisConfig};
use crate::tls::NamedFile;

/// The shortest and the longest `SHARE_TIMEOUT`: several beats, and not too long until a lost share is used again.
const SHARE_TIMEOUT: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60 * 60));

/// Settings of the store of counters.
#[derive(Args, Clone, Debug)]
pub struct StoreSettings {
    /// Store of counters. Unset: redis if REDIS_URL is set, memory if not.
    #[arg(long, env = "BACKEND_TYPE", value_name = "STORE", ignore_case = true, help_heading = "Store",
        value_parser = backend())]
    pub backend_type: Option<Backend>,

    /// Prefix of every counter's name, to share a Redis with others. Must not contain braces, which choose the slot in
    /// a Redis Cluster.
    #[arg(long, env = "CACHE_KEY_PREFIX", value_name = "TEXT", default_value = "", help_heading = "Store",
        value_parser = key_prefix)]
    pub cache_key_prefix: String,

    /// Names of counters in Redis. reference uses those of envoyproxy/ratelimit for fixed windows of its units: both
    /// then count together while one replaces the other. These names can collide, see Migrating.
    #[arg(
        long,
        env = "COUNTER_KEYS",
        value_name = "NAMES",
        default_value = "tollgate",
        ignore_case = true,
        help_heading = "Store"
    )]
    pub counter_keys: KeyNames,

    /// Seconds over which the TTLs of counters are spread, to keep them from expiring all at once: each TTL is the
    /// length of the window plus less than this number. Only with COUNTER_KEYS=reference.
    #[arg(long, env = "EXPIRATION_JITTER_MAX_SECONDS", value_name = "SECONDS", default_value = "300",
        help_heading = "Store", value_parser = whole_or_nearest(0..=u32::MAX))]
    pub expiration_jitter_max_seconds: u32,

    /// Address of Redis: host:port, redis://user:password@host:port/database or unix:///path. With Sentinels:
    /// MASTER,host:port,host:port or redis+sentinel://user:password@host:port,host:port/MASTER/database. For a cluster,
    /// some of its nodes: host:port,host:port or redis-cluster://user:password@host:port,host:port. With rediss in
    /// place of redis, over TLS.
    #[arg(long, env = "REDIS_URL", value_name = "URL", hide_env_values = true, help_heading = "Store")]
    pub redis_url: Option<String>,

    /// Kind of Redis at REDIS_URL, if its scheme does not say.
    #[arg(long, env = "REDIS_TYPE", value_name = "KIND", ignore_case = true, help_heading = "Store",
        value_parser = redis_type())]
    pub redis_type: Option<RedisType>,

    /// Kind of address in REDIS_URL, if it has no scheme. Unset: a path begins with a slash.
    #[arg(long, env = "REDIS_SOCKET_TYPE", value_name = "TYPE", ignore_case = true, help_heading = "Store")]
    pub redis_socket_type: Option<SocketType>,

    /// Password of Redis, or user:password. It takes precedence over REDIS_URL.
    #[arg(long, env = "REDIS_AUTH", value_name = "PASSWORD", hide_env_values = true, help_heading = "Store")]
    pub redis_auth: Option<String>,

    /// File with the password of Redis, or user:password. It is read again when it changes, for tokens that are
    /// renewed. It takes precedence over REDIS_AUTH and REDIS_URL; a password alone is for the user in REDIS_URL.
    #[arg(long, env = "REDIS_AUTH_FILE", value_name = "FILE", help_heading = "Store",
        value_parser = path)]
    pub redis_auth_file: Option<PathBuf>,

    /// Password of the Sentinels, or user:password. REDIS_AUTH is not sent to them.
    #[arg(long, env = "REDIS_SENTINEL_AUTH", value_name = "PASSWORD", hide_env_values = true, help_heading = "Store")]
    pub redis_sentinel_auth: Option<String>,

    /// TLS with Redis.
    #[command(flatten)]
    pub redis_tls: RedisTlsSettings,

    /// A separate Redis for limits of seconds.
    #[command(flatten)]
    pub per_second: PerSecondSettings,

    /// Number of connections to Redis, divided equally among the worker threads, with at least one for each. One
    /// connection carries all calls of a thread and keeps their order; the others take over at once if it is lost. Four
    /// more serve adjustments, the list of instances, their questions and their seats; reading usage opens another one.
    #[arg(long, env = "REDIS_POOL_SIZE", value_name = "NUMBER", default_value = "2", help_heading = "Store",
        value_parser = whole_or_nearest(POOL_SIZE))]
    pub redis_pool_size: u16,

    /// Most bytes of memory for known denials of Redis. Until Redis would let a request pass, this process denies it:
    /// for at most a second without asking Redis again, and for as long as Redis is unavailable. 0: always ask Redis,
    /// and while it is unavailable, each limit answers by its failure mode.
    #[arg(
        long,
        env = "LOCAL_CACHE_SIZE_IN_BYTES",
        value_name = "BYTES",
        default_value = "16777216",
        help_heading = "Store",
        value_parser = whole_or_nearest(0..=u64::MAX)
    )]
    pub local_cache_size_in_bytes: u64,

    /// Most decisions that may wait for Redis, for each worker thread. Further decisions, and those that have waited
    /// for half of their time, are answered at once as OVERLOAD says.
    #[arg(long, env = "REDIS_QUEUE_SIZE", value_name = "NUMBER", default_value = "4096", help_heading = "Store",
        value_parser = whole::<u32>(1..=1_000_000))]
    pub redis_queue_size: u32,

    /// Answer to calls when the queue for Redis is full or too slow. failure-mode lets each limit answer by its failure
    /// mode; refuse fails the call with RESOURCE_EXHAUSTED, unless all of its limits are in shadow mode or one is known
    /// to deny it.
    #[arg(long, env = "OVERLOAD", value_name = "MODE", default_value = "failure-mode", help_heading = "Store",
        value_parser = named(&Overload::ALL, Overload::name))]
    pub overload: Overload,

    /// Longest wait for Redis, including the connection. A call with a shorter gRPC deadline waits for at most three
    /// quarters of it, which leaves time for an answer by the failure mode.
    #[arg(long, env = "REDIS_TIMEOUT", value_name = "DURATION", default_value = "100ms", help_heading = "Store",
        value_parser = positive_or_default("REDIS_TIMEOUT"))]
    pub redis_timeout: Duration,

    /// Time for which an instance uses its own shares of limits (own_share in rules) while Redis does not answer. Other
    /// instances do not get the share of one that ended without notice before this time, and a tenth more, has passed.
    /// From 10s to 1h; all instances must have the same.
    #[arg(long, env = "SHARE_TIMEOUT", value_name = "DURATION", default_value = "10m", help_heading = "Store",
        value_parser = positive_duration)]
    pub share_timeout: Duration,

    /// Report NOT_SERVING also while Redis is unavailable. If all instances share one Redis, none is then left to
    /// answer by failure modes.
    #[arg(long, env = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", help_heading = "Store", value_parser = switch(),
        ignore_case = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        default_value = "false")]
    pub redis_health_check_active_connection: bool,
}

/// Store of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In the memory of this process, until it ends.
    Memory,
    /// In Redis, shared by all processes that use it.
    Redis,
}

/// Names of counters in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyNames {
    /// Tollgate's own names, which never collide.
    Tollgate,
    /// The names of envoyproxy/ratelimit.
    Reference,
}

/// Kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SocketType {
    /// Host and port.
    Tcp,
    /// A path.
    Unix,
}

impl StoreSettings {
    /// Returns the Redis of the counters; `None` if they live in memory.
    ///
    /// # Errors
    /// Fails if the settings conflict.
    pub fn redis(&self) -> Result<Option<RedisConfig>, SettingsError> {
        let url = self.redis_url.as_deref().filter(|url| !url.is_empty());
        match (self.backend_type, url) {
            (Some(Backend::Memory), _) | (None, None) => Ok(None),
            (Some(Backend::Redis), None) => Err(SettingsError::NoRedisUrl),
            (_, Some(_)) if !(SHARE_TIMEOUT.0..=SHARE_TIMEOUT.1).contains(&self.share_timeout) => {
                Err(SettingsError::ShareTimeout)
            }
            (_, Some(url)) => {
                let main = RedisConfig {
                    address: self.redis_address(url)?,
                    connections: self.redis_pool_size.into(),
                    timeout: self.redis_timeout,
                    queue: self.redis_queue_size as usize,
                    key_prefix: self.cache_key_prefix.clone(),
                    per_second: None,
                    on_call: OnCall::default(),
                };
                let connections = self.per_second.redis_persecond_pool_size.unwrap_or(self.redis_pool_size).into();
                let per_second = self.per_second.address(&self.redis_tls)?;
                let per_second = per_second.map(|address| RedisConfig { address, connections, ..main.clone() });
                Ok(Some(RedisConfig { per_second: per_second.map(Box::new), ..main }))
            }
        }
    }

    /// Returns the kind of names of counters. Counters in memory always have Tollgate's own names.
    pub fn counter_keys(&self) -> CounterKeys {
        match self.counter_keys {
            KeyNames::Reference if !matches!(self.redis(), Ok(None)) => {
                CounterKeys::Reference { jitter_s: self.expiration_jitter_max_seconds }
            }
            KeyNames::Reference | KeyNames::Tollgate => CounterKeys::Tollgate,
        }
    }

    fn redis_address(&self, url: &str) -> Result<RedisAddress, SettingsError> {
        let given = Given {
            url,
            kind: self.redis_type,
            socket_type: self.redis_socket_type,
            auth: self.redis_auth.as_deref(),
            auth_file: self.redis_auth_file.clone().map(|path| NamedFile { name: "REDIS_AUTH_FILE", path }),
            sentinel_auth: self.redis_sentinel_auth.as_deref(),
        };
        self.redis_tls.secure(given.address()?, self.redis_tls.redis_tls)
    }
}

/// The settings of one Redis.
pub(super) struct Given<'a> {
    pub url: &'a str,
    pub kind: Option<RedisType>,
    pub socket_type: Option<SocketType>,
    pub auth: Option<&'a str>,
    pub auth_file: Option<NamedFile>,
    pub sentinel_auth: Option<&'a str>,
}

impl Given<'_> {
    /// Returns the address, with the credentials.
    pub(super) fn address(self) -> Result<RedisAddress, SettingsError> {
        let Given { url, kind, socket_type, .. } = self;
        let address = match socket_type {
            Some(SocketType::Tcp) if url.starts_with('/') => return Err(SettingsError::SocketType),
            Some(SocketType::Unix) if !url.contains("://") => RedisAddress::read(&format!("unix://{url}"), kind),
            _ => RedisAddress::read(url, kind),
        };
        let mut address = address.map_err(SettingsError::RedisUrl)?;
        if let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) {
            address = address.with_auth(auth);
        }
        if let Some(file) = self.auth_file {
            address = address.with_auth_file(file);
        }
        if let Some(auth) = self.sentinel_auth.filter(|auth| !auth.is_empty()) {
            address = address.with_sentinel_auth(auth);
        }
        Ok(address)
    }
}

/// Returns the parser of the kind of Redis.
pub(super) fn redis_type() -> impl TypedValueParser<Value = RedisType> {
    use RedisType::{Cluster, Sentinel, Single};
    named(&[Single, Sentinel, Cluster], |kind| match kind {
        Single => "SINGLE",
        Sentinel => "SENTINEL",
        Cluster => "CLUSTER",
    })
}

/// Returns the parser of the store. It also knows that of `envoyproxy/ratelimit`, to say what to use instead.
fn backend() -> impl TypedValueParser<Value = Backend> {
    let memcached = PossibleValue::new("memcache").alias("memcached").hide(true);
    let ours = Backend::value_variants().iter().filter_map(Backend::to_possible_value);
    PossibleValuesParser::new(ours.chain([memcached])).try_map(|given| {
        let message = "Memcached is not supported: use redis, with REDIS_URL, or memory for a single instance";
        Backend::from_str(&given, true).map_err(|_| message)
    })
}

/// Parses a prefix without braces: the first braces of a counter's name must be those around its descriptor.
fn key_prefix(text: &str) -> Result<String, String> {
    if text.contains(['{', '}']) {
        return Err("must not contain braces, which select a slot in a Redis Cluster".into());
    }
    Ok(text.to_owned())
}
