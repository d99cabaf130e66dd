//! TLS of a client, loaded from files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::certificate::{Held, Validity};
use super::error::{Reason, TlsErrors};
use super::pem::{self, Authorities, NamedFile};
use super::verify::{OfServers, OrNamed, Trusts};
use super::{H2, VERSIONS, provider};

/// Files and options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The servers to trust.
    pub trusted: Trusted,
    /// The client's certificate chain, and the key of its first certificate.
    pub identity: Option<(NamedFile, NamedFile)>,
    /// The protocol to negotiate.
    pub protocol: Protocol,
}

/// The servers that a client trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trusted {
    /// Servers with a certificate signed by these authorities only, or with exactly one of these certificates.
    Only(NamedFile, Expected),
    /// Servers with a certificate signed by an authority of this machine or by a public one.
    Machine(Expected),
    /// The server with the first certificate in this file, which belongs to this machine.
    Itself(NamedFile),
}

/// The names that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Only the name that the client connects to.
    Name,
    /// Any name.
    AnyName,
}

/// The protocol that a client negotiates by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2.
    Grpc,
    /// A protocol without ALPN, such as Redis'.
    Unnamed,
}

/// A configured client.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// Certificates in use.
    pub held: Vec<Held>,
}

impl ClientFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// If the files cannot be used; lists every mistake in each of them.
    pub fn load(&self) -> Result<ClientTls, TlsErrors> {
        let identity = self.identity.as_ref().map(|(chain, key)| pem::identity(chain, key)).transpose();
        let (verifier, identity) = TlsErrors::both(self.trusted.verifier(), identity)?;
        let mut held = Vec::new();
        let hold = |role, file: &NamedFile, validity: Option<Validity>| Held { role, file: file.clone(), validity };
        let Verifier { verifier, authorities } = verifier;
        held.extend(authorities.map(|(file, validity)| hold(Held::SERVER_CA, &file, validity)));
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(VERSIONS).expect("ring has suites for both versions");
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match (identity, &self.identity) {
            (Some(identity), Some((chain, _))) => {
                held.push(hold(Held::CLIENT, chain, identity.validity));
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.key)))
            }
            _ => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        if self.protocol == Protocol::Grpc {
            config.alpn_protocols = vec![H2.to_vec()];
        }
        Ok(ClientTls { config: Arc::new(config), held })
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let trusted = match &self.trusted {
            Trusted::Only(file, _) | Trusted::Itself(file) => Some(file),
            Trusted::Machine(_) => None,
        };
        let identity = self.identity.iter().flat_map(|(chain, key)| [chain, key]);
        trusted.into_iter().chain(identity).map(|file| file.path.clone()).collect()
    }
}

struct Verifier {
    verifier: Arc<dyn ServerCertVerifier>,
    authorities: Option<(NamedFile, Option<Validity>)>,
}

impl Trusted {
    fn verifier(&self) -> Result<Verifier, TlsErrors> {
        let of = |expected: &Expected, roots: RootCertStore, file: &NamedFile| match expected {
            Expected::AnyName => Ok(OfServers::new(Trusts::Signed(roots)) as Arc<dyn ServerCertVerifier>),
            Expected::Name => {
                let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
                built.map(|built| built as _).map_err(|_| TlsErrors::from(file.error(Reason::NoCertificate)))
            }
        };
        match self {
            Trusted::Only(file, expected) => {
                let Authorities { roots, certificates, validity } = file.authorities()?;
                let inner = of(expected, roots, file)?;
                let verifier = Arc::new(OrNamed { inner, named: certificates, expected: *expected });
                Ok(Verifier { verifier, authorities: Some((file.clone(), validity)) })
            }
            Trusted::Machine(expected) => {
                let file = NamedFile { name: "SSL_CERT_FILE", path: PathBuf::new() };
                let is_chosen = ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().any(|name| std::env::var_os(name).is_some());
                let roots = public_authorities(rustls_native_certs::load_native_certs().certs, is_chosen);
                match roots.is_empty() {
                    true => Err(file.error(Reason::NoAuthorities).into()),
                    false => Ok(Verifier { verifier: of(expected, roots, &file)?, authorities: None }),
                }
            }
            Trusted::Itself(file) => {
                let first = file.first_certificate()?;
                Ok(Verifier { verifier: OfServers::new(Trusts::Pinned(first)), authorities: None })
            }
        }
    }
}

/// Returns the authorities of this machine and, unless SSL_CERT_FILE or SSL_CERT_DIR selects them, the public ones that
/// browsers trust: the image has no file of authorities, and a Redis or a collector in a cloud needs public ones.
fn public_authorities(of_machine: Vec<CertificateDer<'static>>, is_chosen: bool) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(of_machine);
    if !is_chosen {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

impl ClientTls {
    /// Connects to a server of this name over an existing connection.
    ///
    /// # Errors
    /// If the handshake fails; [`HandshakeError`](super::HandshakeError) classifies these errors.
    pub async fn connect<C>(&self, name: ServerName<'static>, connection: C) -> io::Result<TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        TlsConnector::from(Arc::clone(&self.config)).connect(name, connection).await
    }
}

impl Held {
    /// Role of the client's certificate.
    pub const CLIENT: &str = "client";
    /// Role of the authorities that must have signed a server's certificate.
    pub const SERVER_CA: &str = "server_ca";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_authorities_are_trusted_without_a_file_unless_other_ones_were_chosen() {
        let none = Vec::new();
        assert!(public_authorities(none.clone(), false).len() > 100);
        assert!(public_authorities(none, true).is_empty());
        let machine = Trusted::Machine(Expected::Name);
        assert!(machine.verifier().is_ok());
    }
}
