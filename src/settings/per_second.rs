//! A Redis of their own for limits of seconds.

use clap::{ArgAction, Args};

use super::store::{Given, redis_type};
use super::{RedisTlsSettings, SettingsError, SocketType, switch, whole};
use crate::store::redis::{RedisAddress, RedisType};

/// A Redis of their own for limits of seconds.
#[derive(Args, Clone, Debug)]
pub struct PerSecondSettings {
    /// Counters of limits whose period is shorter than a minute live in a Redis of their own, REDIS_PERSECOND_URL.
    #[arg(long, env = "REDIS_PERSECOND", help_heading = "Store", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub redis_persecond: bool,

    /// Where that is, as REDIS_URL says it.
    #[arg(long, env = "REDIS_PERSECOND_URL", value_name = "URL", hide_env_values = true, help_heading = "Store")]
    pub redis_persecond_url: Option<String>,

    /// What kind of Redis REDIS_PERSECOND_URL names, where it has no scheme that says so.
    #[arg(long, env = "REDIS_PERSECOND_TYPE", value_name = "KIND", ignore_case = true, help_heading = "Store",
        value_parser = redis_type())]
    pub redis_persecond_type: Option<RedisType>,

    /// What kind of address REDIS_PERSECOND_URL is, where it has no scheme. Unset: a path begins with a slash.
    #[arg(long, env = "REDIS_PERSECOND_SOCKET_TYPE", value_name = "TYPE", ignore_case = true, help_heading = "Store")]
    pub redis_persecond_socket_type: Option<SocketType>,

    /// The password of that Redis, or user:password.
    #[arg(long, env = "REDIS_PERSECOND_AUTH", value_name = "PASSWORD", hide_env_values = true, help_heading = "Store")]
    pub redis_persecond_auth: Option<String>,

    /// The password of its Sentinels, or user:password.
    #[arg(
        long,
        env = "REDIS_PERSECOND_SENTINEL_AUTH",
        value_name = "PASSWORD",
        hide_env_values = true,
        help_heading = "Store"
    )]
    pub redis_persecond_sentinel_auth: Option<String>,

    /// Speak TLS with it, by the files of REDIS_TLS_CACERT and its kin.
    #[arg(long, env = "REDIS_PERSECOND_TLS", help_heading = "Store", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub redis_persecond_tls: bool,

    /// Connections to it. Unset: as many as REDIS_POOL_SIZE says.
    #[arg(long, env = "REDIS_PERSECOND_POOL_SIZE", value_name = "NUMBER", help_heading = "Store",
        value_parser = whole::<u16>(1..=100))]
    pub redis_persecond_pool_size: Option<u16>,
}

impl PerSecondSettings {
    /// Where it is; `None` where there is none.
    ///
    /// # Errors
    /// Where the settings contradict each other.
    pub(super) fn address(&self, tls: &RedisTlsSettings) -> Result<Option<RedisAddress>, SettingsError> {
        if !self.redis_persecond {
            return Ok(None);
        }
        let url = self.redis_persecond_url.as_deref().filter(|url| !url.is_empty());
        let given = Given {
            url: url.ok_or(SettingsError::NoPerSecondUrl)?,
            kind: self.redis_persecond_type,
            socket_type: self.redis_persecond_socket_type,
            auth: self.redis_persecond_auth.as_deref(),
            auth_file: None,
            sentinel_auth: self.redis_persecond_sentinel_auth.as_deref(),
        };
        let address = given.address().and_then(|address| tls.secure(address, self.redis_persecond_tls));
        address.map(Some).map_err(|error| match error {
            SettingsError::RedisUrl(error) => SettingsError::PerSecond("REDIS_PERSECOND_URL", error.to_string()),
            SettingsError::SocketType => {
                SettingsError::PerSecond("REDIS_PERSECOND_SOCKET_TYPE", SettingsError::SocketType.to_string())
            }
            SettingsError::SocketTls => {
                SettingsError::PerSecond("REDIS_PERSECOND_TLS", SettingsError::SocketTls.to_string())
            }
            error => error,
        })
    }
}
