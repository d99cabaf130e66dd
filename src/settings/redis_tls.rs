//! TLS with Redis.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{SettingsError, switch};
use crate::store::redis::{RedisAddress, RedisTls};
use crate::tls::{ClientFiles, Expected, NamedFile, Protocol, Trusted};

/// TLS with Redis, and with the Sentinels that watch it.
#[derive(Args, Clone, Debug)]
pub struct RedisTlsSettings {
    /// Speak TLS with Redis and with Sentinels, as rediss:// in REDIS_URL says, too. The files are read again when they
    /// change.
    #[arg(long, env = "REDIS_TLS", help_heading = "Store", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub redis_tls: bool,

    /// The authorities (PEM) that may have signed Redis's certificate, and no others. Unset: those of the machine.
    #[arg(long, env = "REDIS_TLS_CACERT", value_name = "FILE", help_heading = "Store")]
    pub redis_tls_cacert: Option<PathBuf>,

    /// What is shown to a Redis that asks for a certificate (PEM), and behind it those between it and its authority.
    #[arg(long, env = "REDIS_TLS_CLIENT_CERT", value_name = "FILE", help_heading = "Store")]
    pub redis_tls_client_cert: Option<PathBuf>,

    /// That certificate's private key (PEM), without a passphrase.
    #[arg(long, env = "REDIS_TLS_CLIENT_KEY", value_name = "FILE", help_heading = "Store")]
    pub redis_tls_client_key: Option<PathBuf>,

    /// The name that Redis's certificate must have, and that is asked for (SNI). Unset: the host that is connected to,
    /// which for a master is what the Sentinels call it, mostly an address.
    #[arg(long, env = "REDIS_TLS_SERVER_NAME", value_name = "NAME", help_heading = "Store")]
    pub redis_tls_server_name: Option<String>,

    /// Take any server that an authority has signed, whatever its name.
    #[arg(long, env = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", help_heading = "Store", value_parser = switch(),
        ignore_case = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        default_value = "false")]
    pub redis_tls_skip_hostname_verification: bool,
}

impl RedisTlsSettings {
    /// The same address as these settings have it reached, over TLS where it or `wanted` says so.
    ///
    /// # Errors
    /// Where they contradict each other.
    pub(super) fn secure(&self, address: RedisAddress, wanted: bool) -> Result<RedisAddress, SettingsError> {
        match (address.is_socket(), wanted || address.is_secure()) {
            (_, false) => Ok(address),
            (true, true) => Err(SettingsError::SocketTls),
            (false, true) => Ok(address.with_tls(self.tls()?)),
        }
    }

    fn tls(&self) -> Result<RedisTls, SettingsError> {
        let file = |name, path: &Option<PathBuf>| path.clone().map(|path| NamedFile { name, path });
        let chain = file("REDIS_TLS_CLIENT_CERT", &self.redis_tls_client_cert);
        let key = file("REDIS_TLS_CLIENT_KEY", &self.redis_tls_client_key);
        let identity = match (chain, key) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            (Some(_), None) => return Err(SettingsError::HalfRedisIdentity("REDIS_TLS_CLIENT_CERT")),
            (None, Some(_)) => return Err(SettingsError::HalfRedisIdentity("REDIS_TLS_CLIENT_KEY")),
        };
        let expected = if self.redis_tls_skip_hostname_verification { Expected::AnyName } else { Expected::Name };
        let trusted = match file("REDIS_TLS_CACERT", &self.redis_tls_cacert) {
            Some(authorities) => Trusted::Only(authorities, expected),
            None => Trusted::Machine(expected),
        };
        let files = ClientFiles { trusted, identity, protocol: Protocol::Unnamed };
        Ok(RedisTls { files, server_name: self.redis_tls_server_name.clone() })
    }

    /// The settings that mean nothing without TLS.
    pub const FILES: [&str; 5] = [
        "REDIS_TLS_CACERT",
        "REDIS_TLS_CLIENT_CERT",
        "REDIS_TLS_CLIENT_KEY",
        "REDIS_TLS_SERVER_NAME",
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
    ];
}
