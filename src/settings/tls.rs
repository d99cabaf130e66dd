//! TLS at the gRPC port.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::path::path;
use super::{SettingsError, switch};
use crate::tls::{ClientFiles, Clients, NamedFile, PeerName, ServerFiles};

/// TLS at the gRPC port.
#[derive(Args, Clone, Debug)]
pub struct TlsSettings {
    /// Use TLS at the gRPC port, and accept nothing else. The files are read again when they change.
    #[arg(long, env = "GRPC_SERVER_USE_TLS", help_heading = "TLS", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub grpc_server_use_tls: bool,

    /// File with the server's certificate (PEM), followed by any intermediate certificates.
    #[arg(long, env = "GRPC_SERVER_TLS_CERT", value_name = "FILE", help_heading = "TLS",
        value_parser = path)]
    pub grpc_server_tls_cert: Option<PathBuf>,

    /// File with the private key (PEM) of GRPC_SERVER_TLS_CERT, without a passphrase.
    #[arg(long, env = "GRPC_SERVER_TLS_KEY", value_name = "FILE", help_heading = "TLS",
        value_parser = path)]
    pub grpc_server_tls_key: Option<PathBuf>,

    /// File with authorities (PEM). Only clients with a certificate that one of them has signed are accepted. The
    /// authorities of the machine are not trusted.
    #[arg(long, env = "GRPC_CLIENT_TLS_CACERT", value_name = "FILE", help_heading = "TLS",
        value_parser = path)]
    pub grpc_client_tls_cacert: Option<PathBuf>,

    /// Names, separated by commas: DNS names, URIs such as spiffe://cluster.local/ns/default/sa/envoy, or addresses.
    /// Only clients with one of them as a subject alternative name in their certificate are accepted. The whole name
    /// must match. Needs GRPC_CLIENT_TLS_CACERT.
    #[arg(long, env = "GRPC_CLIENT_TLS_SAN", value_name = "NAME", value_delimiter = ',', help_heading = "TLS")]
    pub grpc_client_tls_san: Vec<PeerName>,

    /// File with authorities (PEM). Clients are asked for a certificate that one of them has signed, but are also
    /// accepted without one. Metrics and the log show which clients GRPC_CLIENT_TLS_CACERT would reject. Envoy Gateway
    /// sets this.
    #[arg(long, env = "GRPC_SERVER_TLS_CA_CERT", value_name = "FILE", help_heading = "TLS",
        value_parser = path)]
    pub grpc_server_tls_ca_cert: Option<PathBuf>,
}

/// Files and name for TLS with a server to which this process connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTls {
    /// Authorities to trust, and the certificate to send.
    pub files: ClientFiles,
    /// Name that the server's certificate must have.
    pub name: String,
}

impl TlsSettings {
    /// Returns the files for TLS at the gRPC port; `None` without TLS.
    ///
    /// # Errors
    /// Fails if a required file is not set.
    pub fn server(&self) -> Result<Option<ServerFiles>, SettingsError> {
        if !self.grpc_server_use_tls {
            return Ok(None);
        }
        if !self.grpc_client_tls_san.is_empty() && self.grpc_client_tls_cacert.is_none() {
            return Err(SettingsError::NoClientAuthority);
        }
        let file = |name, path: &Option<PathBuf>| path.clone().map(|path| NamedFile { name, path });
        let chain = file("GRPC_SERVER_TLS_CERT", &self.grpc_server_tls_cert).ok_or(SettingsError::NoTlsCertificate)?;
        let key = file("GRPC_SERVER_TLS_KEY", &self.grpc_server_tls_key).ok_or(SettingsError::NoTlsKey)?;
        let required = file("GRPC_CLIENT_TLS_CACERT", &self.grpc_client_tls_cacert);
        let observed = file("GRPC_SERVER_TLS_CA_CERT", &self.grpc_server_tls_ca_cert);
        let clients = match (required, observed) {
            (Some(authorities), _) => Clients::Required { authorities, names: self.grpc_client_tls_san.clone() },
            (None, Some(authorities)) => Clients::Observed(authorities),
            (None, None) => Clients::Unasked,
        };
        Ok(Some(ServerFiles { chain, key, clients }))
    }
}
