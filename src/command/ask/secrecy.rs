//! TLS to a running service: the flags, and how a service on this machine is verified without them.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::{ArgAction, Args};
use tokio_rustls::rustls::pki_types::ServerName;

use crate::settings::switch;
use crate::tls::{ClientFiles, ClientTls, Expected, NamedFile, Protocol, Trusted};

/// TLS to a running service.
#[derive(Args)]
pub(crate) struct Secrecy {
    /// Use TLS with the service. --ca, --cert and --server-name imply it.
    #[arg(long, value_parser = switch(), ignore_case = true, action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", default_value = "false")]
    tls: bool,

    /// Certificate (PEM) of the only authority to trust for the service's certificate. Unset: the authorities of this
    /// machine.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Certificate (PEM) of this client.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Name in the service's certificate, if it differs from that of the address.
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,

    /// Like the variables below, a setting of the service on this machine: read if no address is given.
    #[arg(long, env = "GRPC_SERVER_USE_TLS", hide = true, value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, default_value = "false")]
    grpc_server_use_tls: bool,

    #[arg(long, env = "GRPC_SERVER_TLS_CERT", hide = true)]
    grpc_server_tls_cert: Option<PathBuf>,

    #[arg(long, env = "GRPC_SERVER_TLS_KEY", hide = true)]
    grpc_server_tls_key: Option<PathBuf>,
}

/// A TLS client, and the name of the server.
pub(crate) type Secret = (ClientTls, ServerName<'static>);

impl Secrecy {
    /// Returns the client that the flags describe; `None` without TLS. `is_secure` requires TLS without any flag.
    ///
    /// # Errors
    /// Fails if a file cannot be used, or if the name is invalid.
    pub(crate) fn named(&self, host: &str, is_secure: bool) -> anyhow::Result<Option<Secret>> {
        if !is_secure && !self.tls && self.ca.is_none() && self.cert.is_none() && self.server_name.is_none() {
            return Ok(None);
        }
        let trusted = match file("--ca", &self.ca) {
            Some(authorities) => Trusted::Only(authorities, Expected::Name),
            None => Trusted::Machine(Expected::Name),
        };
        let identity = file("--cert", &self.cert).zip(file("--key", &self.key));
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned());
        let name = name.map_err(|_| anyhow!("a certificate cannot have this name: write --server-name NAME"))?;
        secret(trusted, identity, name)
    }

    /// Returns the client that the flags describe, or else the one that the settings of the service on this machine
    /// describe. That service is verified by its own certificate, whatever its authority and name. If it asks for a
    /// certificate, it gets the same one.
    ///
    /// # Errors
    /// As those of [`named`](Self::named).
    pub(crate) fn of_this_machine(&self, host: &str) -> anyhow::Result<Option<Secret>> {
        let named = self.named(host, false)?;
        if named.is_some() || !self.grpc_server_use_tls {
            return Ok(named);
        }
        let chain = file("GRPC_SERVER_TLS_CERT", &self.grpc_server_tls_cert);
        let chain = chain.context("GRPC_SERVER_USE_TLS needs GRPC_SERVER_TLS_CERT, or write --tls and --ca FILE")?;
        let identity = file("GRPC_SERVER_TLS_KEY", &self.grpc_server_tls_key).map(|key| (chain.clone(), key));
        let name = ServerName::try_from("localhost")?;
        secret(Trusted::Itself(chain), identity, name)
    }
}

fn secret(
    trusted: Trusted,
    identity: Option<(NamedFile, NamedFile)>,
    name: ServerName<'static>,
) -> anyhow::Result<Option<Secret>> {
    let client = ClientFiles { trusted, identity, protocol: Protocol::Grpc }.load()?;
    Ok(Some((client, name)))
}

fn file(name: &'static str, path: &Option<PathBuf>) -> Option<NamedFile> {
    path.clone().map(|path| NamedFile { name, path })
}
