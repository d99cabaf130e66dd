//! TLS with Redis.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::path::path;
use super::{SettingsError, switch};
use crate::store::redis::topology::address::{RedisAddress, RedisTls};
use crate::tls::{ClientFiles, Expected, NamedFile, Protocol, Trusted};

/// TLS with Redis, and with the Sentinels that watch it.
#[derive(Args, Clone, Debug)]
pub struct RedisTlsSettings {
    /// Use TLS with Redis and with Sentinels. rediss:// in REDIS_URL does the same. The files are read again when they
    /// change.
    #[arg(long, env = "REDIS_TLS", help_heading = "Store", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub redis_tls: bool,

    /// File with the only authorities (PEM) to trust for Redis's certificate. Unset: public authorities and those of
    /// the machine.
    #[arg(long, env = "REDIS_TLS_CACERT", value_name = "FILE", help_heading = "Store",
        value_parser = path)]
    pub redis_tls_cacert: Option<PathBuf>,

    /// File with the certificate (PEM) to send if Redis asks for one, followed by any intermediate certificates.
    #[arg(long, env = "REDIS_TLS_CLIENT_CERT", value_name = "FILE", help_heading = "Store",
        value_parser = path)]
    pub redis_tls_client_cert: Option<PathBuf>,

    /// File with the private key (PEM) of REDIS_TLS_CLIENT_CERT, without a passphrase.
    #[arg(long, env = "REDIS_TLS_CLIENT_KEY", value_name = "FILE", help_heading = "Store",
        value_parser = path)]
    pub redis_tls_client_key: Option<PathBuf>,

    /// Name that Redis's certificate must have, and that is sent to Redis (SNI). Unset: the host of the connection. For
    /// a master this is the name that the Sentinels report, usually an address.
    #[arg(long, env = "REDIS_TLS_SERVER_NAME", value_name = "NAME", help_heading = "Store")]
    pub redis_tls_server_name: Option<String>,

    /// Accept any certificate that a trusted authority has signed, whatever its name.
    #[arg(long, env = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", help_heading = "Store", value_parser = switch(),
        ignore_case = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        default_value = "false")]
    pub redis_tls_skip_hostname_verification: bool,
}

impl RedisTlsSettings {
    /// Returns the address with these settings. It uses TLS if the address or `wanted` requires it.
    ///
    /// # Errors
    /// Fails if the address and the settings conflict.
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
}
