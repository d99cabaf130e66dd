//! What a client needs of TLS, made from files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::certificate::{Held, Validity};
use super::error::{Reason, TlsErrors};
use super::pem::{self, Authorities, NamedFile};
use super::verify::{OfServers, Trusts};
use super::{H2, VERSIONS, provider};

/// What a client is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// Which servers it believes.
    pub trusted: Trusted,
    /// What it shows of itself: a chain, and the key of its first certificate.
    pub identity: Option<(NamedFile, NamedFile)>,
    /// What it speaks.
    pub protocol: Protocol,
}

/// Which servers a client believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trusted {
    /// Those that these authorities have signed, and no others.
    Only(NamedFile, Expected),
    /// Those that an authority of this machine has signed.
    Machine(Expected),
    /// The one that has the first certificate in this file: this machine's own.
    Itself(NamedFile),
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The one of the name that is connected to.
    Name,
    /// Any of them.
    AnyName,
}

/// What a client speaks, as ALPN says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2.
    Grpc,
    /// What has no name there, such as Redis.
    Unnamed,
}

/// A client, ready to connect.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// The certificates that it has.
    pub held: Vec<Held>,
}

impl ClientFiles {
    /// Reads them.
    ///
    /// # Errors
    /// Where they make no client: all that is wrong with each of them.
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

    /// Where they are.
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
                let Authorities { roots, validity } = file.authorities()?;
                Ok(Verifier { verifier: of(expected, roots, file)?, authorities: Some((file.clone(), validity)) })
            }
            Trusted::Machine(expected) => {
                let file = NamedFile { name: "SSL_CERT_FILE", path: PathBuf::new() };
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
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

impl ClientTls {
    /// Connects over this to a server of this name.
    ///
    /// # Errors
    /// Where no connection comes about; [`HandshakeError`](super::HandshakeError) understands them.
    pub async fn connect<C>(&self, name: ServerName<'static>, connection: C) -> io::Result<TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        TlsConnector::from(Arc::clone(&self.config)).connect(name, connection).await
    }
}

impl Held {
    /// What a client shows.
    pub const CLIENT: &str = "client";
    /// Those that have to have signed what a server shows.
    pub const SERVER_CA: &str = "server_ca";
}
