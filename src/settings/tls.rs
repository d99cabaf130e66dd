//! TLS at the gRPC port.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{SettingsError, switch};
use crate::tls::{ClientFiles, Clients, NamedFile, PeerName, ServerFiles};

/// TLS at the gRPC port.
#[derive(Args, Clone, Debug)]
pub struct TlsSettings {
    /// Speak TLS at the gRPC port, and nothing else. Its files are read again when they change.
    #[arg(long, env = "GRPC_SERVER_USE_TLS", help_heading = "TLS", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub grpc_server_use_tls: bool,

    /// The server's certificate (PEM), and behind it those between it and its authority.
    #[arg(long, env = "GRPC_SERVER_TLS_CERT", value_name = "FILE", help_heading = "TLS")]
    pub grpc_server_tls_cert: Option<PathBuf>,

    /// The certificate's private key (PEM), without a passphrase.
    #[arg(long, env = "GRPC_SERVER_TLS_KEY", value_name = "FILE", help_heading = "TLS")]
    pub grpc_server_tls_key: Option<PathBuf>,

    /// Only clients get in that show a certificate which an authority in this file (PEM) has signed. No authority of
    /// the machine is trusted.
    #[arg(long, env = "GRPC_CLIENT_TLS_CACERT", value_name = "FILE", help_heading = "TLS")]
    pub grpc_client_tls_cacert: Option<PathBuf>,

    /// And whose certificate has this name among its subject alternative names, or one of these, separated by commas:
    /// a DNS name, a URI such as spiffe://cluster.local/ns/default/sa/envoy, or an address. The whole name has to be
    /// the same.
    #[arg(long, env = "GRPC_CLIENT_TLS_SAN", value_name = "NAME", value_delimiter = ',', help_heading = "TLS")]
    pub grpc_client_tls_san: Vec<PeerName>,

    /// Clients are asked for a certificate that an authority in this file has signed, and get in without one, too:
    /// metrics and the log tell which would not with GRPC_CLIENT_TLS_CACERT. Envoy Gateway sets it.
    #[arg(long, env = "GRPC_SERVER_TLS_CA_CERT", value_name = "FILE", help_heading = "TLS")]
    pub grpc_server_tls_ca_cert: Option<PathBuf>,
}

/// What TLS with a server needs that this process is a client of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTls {
    /// Whom it trusts, and what it shows.
    pub files: ClientFiles,
    /// The name that the server must have.
    pub name: String,
}

impl TlsSettings {
    /// What the gRPC port needs for TLS; `None`: it speaks none.
    ///
    /// # Errors
    /// Where a file is not named that is needed.
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

    /// The settings that mean nothing without the others.
    pub fn without_effect(&self) -> Vec<&'static str> {
        if self.grpc_server_use_tls {
            return Vec::new();
        }
        vec![
            "GRPC_SERVER_TLS_CERT",
            "GRPC_SERVER_TLS_KEY",
            "GRPC_CLIENT_TLS_CACERT",
            "GRPC_CLIENT_TLS_SAN",
            "GRPC_SERVER_TLS_CA_CERT",
        ]
    }
}
