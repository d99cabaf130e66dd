//! Settings of a separate Redis for limits of seconds.

use clap::{ArgAction, Args};

use super::store::{Given, redis_type};
use super::tolerated::{POOL_SIZE, whole_or_nearest};
use super::{RedisTlsSettings, SettingsError, SocketType, switch};
use crate::store::redis::topology::address::{RedisAddress, RedisType};

/// Settings of a separate Redis for limits of seconds.
#[derive(Args, Clone, Debug)]
pub struct PerSecondSettings {
    /// Keep the counters of limits with a period below a minute in a separate Redis, REDIS_PERSECOND_URL.
    #[arg(long, env = "REDIS_PERSECOND", help_heading = "Store", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub redis_persecond: bool,

    /// Address of the Redis for limits of seconds, written as in REDIS_URL.
    #[arg(long, env = "REDIS_PERSECOND_URL", value_name = "URL", hide_env_values = true, help_heading = "Store")]
    pub redis_persecond_url: Option<String>,

    /// Kind of Redis at REDIS_PERSECOND_URL, if its scheme does not say.
    #[arg(long, env = "REDIS_PERSECOND_TYPE", value_name = "KIND", ignore_case = true, help_heading = "Store",
        value_parser = redis_type())]
    pub redis_persecond_type: Option<RedisType>,

    /// Kind of address in REDIS_PERSECOND_URL, if it has no scheme. Unset: a path begins with a slash.
    #[arg(long, env = "REDIS_PERSECOND_SOCKET_TYPE", value_name = "TYPE", ignore_case = true, help_heading = "Store")]
    pub redis_persecond_socket_type: Option<SocketType>,

    /// Password of the Redis for limits of seconds, or user:password.
    #[arg(long, env = "REDIS_PERSECOND_AUTH", value_name = "PASSWORD", hide_env_values = true, help_heading = "Store")]
    pub redis_persecond_auth: Option<String>,

    /// Password of the Sentinels in REDIS_PERSECOND_URL, or user:password.
    #[arg(
        long,
        env = "REDIS_PERSECOND_SENTINEL_AUTH",
        value_name = "PASSWORD",
        hide_env_values = true,
        help_heading = "Store"
    )]
    pub redis_persecond_sentinel_auth: Option<String>,

    /// Use TLS with the Redis for limits of seconds, with the files of REDIS_TLS_CACERT and the related settings.
    #[arg(long, env = "REDIS_PERSECOND_TLS", help_heading = "Store", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub redis_persecond_tls: bool,

    /// Number of connections to the Redis for limits of seconds. Unset: the value of REDIS_POOL_SIZE.
    #[arg(long, env = "REDIS_PERSECOND_POOL_SIZE", value_name = "NUMBER", help_heading = "Store",
        value_parser = whole_or_nearest(POOL_SIZE))]
    pub redis_persecond_pool_size: Option<u16>,
}

impl PerSecondSettings {
    /// Returns its address; `None` if it is off.
    ///
    /// # Errors
    /// Fails if the settings conflict.
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
