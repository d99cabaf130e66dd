//! Where counters live.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};

use super::per_second::PerSecondSettings;
use super::redis_tls::RedisTlsSettings;
use super::{SettingsError, named, positive_duration, switch, whole};
use crate::limiter::Overload;
use crate::plan::CounterKeys;
use crate::store::redis::{OnCall, RedisAddress, RedisConfig, RedisType};
use crate::tls::NamedFile;

/// Where counters live.
#[derive(Args, Clone, Debug)]
pub struct StoreSettings {
    /// Where counters live. Unset: redis if REDIS_URL is set, and memory otherwise.
    #[arg(long, env = "BACKEND_TYPE", value_name = "STORE", ignore_case = true, help_heading = "Store",
        value_parser = backend())]
    pub backend_type: Option<Backend>,

    /// In front of every counter's name, to share a Redis with others. Without braces, which mean a slot to a Redis
    /// Cluster.
    #[arg(long, env = "CACHE_KEY_PREFIX", value_name = "TEXT", default_value = "", help_heading = "Store",
        value_parser = key_prefix)]
    pub cache_key_prefix: String,

    /// Whose names counters have in Redis. reference: those of envoyproxy/ratelimit, for fixed windows of its units, so
    /// that both count together while one takes the other's place; its names can collide, see Migrating.
    #[arg(
        long,
        env = "COUNTER_KEYS",
        value_name = "WHOSE",
        default_value = "tollgate",
        ignore_case = true,
        help_heading = "Store"
    )]
    pub counter_keys: KeyNames,

    /// With COUNTER_KEYS=reference, a counter expires less than so many seconds later than a window lasts, not all at
    /// once.
    #[arg(long, env = "EXPIRATION_JITTER_MAX_SECONDS", value_name = "SECONDS", default_value = "300",
        help_heading = "Store", value_parser = whole(0..=u32::MAX))]
    pub expiration_jitter_max_seconds: u32,

    /// Where Redis is: host:port, redis://user:password@host:port/database or unix:///path; with Sentinels
    /// MASTER,host:port,host:port or redis+sentinel://user:password@host:port,host:port/MASTER/database; of a cluster
    /// some nodes, host:port,host:port or redis-cluster://user:password@host:port,host:port. With rediss for redis,
    /// over TLS.
    #[arg(long, env = "REDIS_URL", value_name = "URL", hide_env_values = true, help_heading = "Store")]
    pub redis_url: Option<String>,

    /// What kind of Redis REDIS_URL names, where it has no scheme that says so.
    #[arg(long, env = "REDIS_TYPE", value_name = "KIND", ignore_case = true, help_heading = "Store",
        value_parser = redis_type())]
    pub redis_type: Option<RedisType>,

    /// What kind of address REDIS_URL is, where it has no scheme. Unset: a path begins with a slash.
    #[arg(long, env = "REDIS_SOCKET_TYPE", value_name = "TYPE", ignore_case = true, help_heading = "Store")]
    pub redis_socket_type: Option<SocketType>,

    /// Redis's password, or user:password; it goes before what REDIS_URL says.
    #[arg(long, env = "REDIS_AUTH", value_name = "PASSWORD", hide_env_values = true, help_heading = "Store")]
    pub redis_auth: Option<String>,

    /// A file with Redis's password, or user:password, which is read again when it changes, as tokens do. It goes
    /// before REDIS_AUTH and what REDIS_URL says; a password alone is for the user that REDIS_URL names.
    #[arg(long, env = "REDIS_AUTH_FILE", value_name = "FILE", help_heading = "Store")]
    pub redis_auth_file: Option<PathBuf>,

    /// The password of the Sentinels, or user:password. REDIS_AUTH is not shown to them.
    #[arg(long, env = "REDIS_SENTINEL_AUTH", value_name = "PASSWORD", hide_env_values = true, help_heading = "Store")]
    pub redis_sentinel_auth: Option<String>,

    /// How TLS with Redis goes.
    #[command(flatten)]
    pub redis_tls: RedisTlsSettings,

    /// A Redis of their own for limits of seconds.
    #[command(flatten)]
    pub per_second: PerSecondSettings,

    /// Connections to Redis, in equal parts for the worker threads, one for each at least. One of them carries all
    /// calls of a thread, so that they keep their order; the others take over at once when it is lost. Beside them, one
    /// reads adjustments.
    #[arg(long, env = "REDIS_POOL_SIZE", value_name = "NUMBER", default_value = "2", help_heading = "Store",
        value_parser = whole::<u16>(1..=100))]
    pub redis_pool_size: u16,

    /// How much memory the denials of Redis may take. Until Redis would let a request pass, this process denies it: for
    /// a second at most without asking Redis again, and for as long as Redis is unavailable. 0: Redis is always asked,
    /// and while it is unavailable each limit answers by its failure mode.
    #[arg(
        long,
        env = "LOCAL_CACHE_SIZE_IN_BYTES",
        value_name = "BYTES",
        default_value = "16777216",
        help_heading = "Store",
        value_parser = whole(0..=u64::MAX)
    )]
    pub local_cache_size_in_bytes: u64,

    /// How many decisions may wait for Redis, for each worker thread. Those beyond it are answered at once, as OVERLOAD
    /// says, and so is what has waited for half of its time.
    #[arg(long, env = "REDIS_QUEUE_SIZE", value_name = "NUMBER", default_value = "4096", help_heading = "Store",
        value_parser = whole::<u32>(1..=1_000_000))]
    pub redis_queue_size: u32,

    /// What a call meets that finds the queue for Redis full or too slow: failure-mode lets each limit answer by its
    /// failure mode, refuse fails the call with RESOURCE_EXHAUSTED, unless all of its limits are in shadow mode or one
    /// is known to deny it.
    #[arg(long, env = "OVERLOAD", value_name = "MODE", default_value = "failure-mode", help_heading = "Store",
        value_parser = named(&Overload::ALL, Overload::name))]
    pub overload: Overload,

    /// The longest that anything waits for Redis, connecting too. A call whose gRPC deadline is nearer waits for three
    /// quarters of that at most, so that the failure mode answers in time.
    #[arg(long, env = "REDIS_TIMEOUT", value_name = "DURATION", default_value = "100ms", help_heading = "Store",
        value_parser = positive_duration)]
    pub redis_timeout: Duration,

    /// While Redis is unavailable, health says NOT_SERVING, too. Where all replicas ask the same Redis, none is left
    /// then to answer by failure modes.
    #[arg(long, env = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", help_heading = "Store", value_parser = switch(),
        ignore_case = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        default_value = "false")]
    pub redis_health_check_active_connection: bool,
}

/// Where counters live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In this process, for it alone, until it ends.
    Memory,
    /// In Redis, shared by all that ask the same one.
    Redis,
}

/// Whose names counters have in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyNames {
    /// Tollgate's own, which no two different counters share.
    Tollgate,
    /// Those of envoyproxy/ratelimit.
    Reference,
}

/// Kinds of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SocketType {
    /// Host and port.
    Tcp,
    /// A path.
    Unix,
}

impl StoreSettings {
    /// The Redis that counters live in; `None` where they live in memory.
    ///
    /// # Errors
    /// Where the settings contradict each other.
    pub fn redis(&self) -> Result<Option<RedisConfig>, SettingsError> {
        let url = self.redis_url.as_deref().filter(|url| !url.is_empty());
        match (self.backend_type, url) {
            (Some(Backend::Memory), _) | (None, None) => Ok(None),
            (Some(Backend::Redis), None) => Err(SettingsError::NoRedisUrl),
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

    /// The names of counters. Nobody shares those in memory.
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

/// What is said of one Redis.
pub(super) struct Given<'a> {
    pub url: &'a str,
    pub kind: Option<RedisType>,
    pub socket_type: Option<SocketType>,
    pub auth: Option<&'a str>,
    pub auth_file: Option<NamedFile>,
    pub sentinel_auth: Option<&'a str>,
}

impl Given<'_> {
    /// Where it is, and who asks there.
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

/// The kinds of Redis.
pub(super) fn redis_type() -> impl TypedValueParser<Value = RedisType> {
    use RedisType::{Cluster, Sentinel, Single};
    named(&[Single, Sentinel, Cluster], |kind| match kind {
        Single => "SINGLE",
        Sentinel => "SENTINEL",
        Cluster => "CLUSTER",
    })
}

/// The backends; and the one that `envoyproxy/ratelimit` has, too, to say what to use instead.
fn backend() -> impl TypedValueParser<Value = Backend> {
    let memcached = PossibleValue::new("memcache").alias("memcached").hide(true);
    let ours = Backend::value_variants().iter().filter_map(Backend::to_possible_value);
    PossibleValuesParser::new(ours.chain([memcached])).try_map(|given| {
        let message = "there is no Memcached: use redis, with REDIS_URL, or memory, where there is one replica";
        Backend::from_str(&given, true).map_err(|_| message)
    })
}

/// The first braces of a counter's name are those around its descriptor.
fn key_prefix(text: &str) -> Result<String, String> {
    if text.contains(['{', '}']) {
        return Err("must have no braces: they mean a slot to a Redis Cluster".into());
    }
    Ok(text.to_owned())
}
