//! TLS of a server, loaded from files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{Error, ServerConfig, ServerConnection};

use super::certificate::{Held, PeerName, Standing};
use super::client::Expected;
use super::error::{Reason, TlsError, TlsErrors};
use super::pem::{self, Authorities, NamedFile};
use super::verify::{Admits, OfClients, OrNamed};
use super::{H2, VERSIONS, provider};

/// Files and options of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The server's certificate, followed by those of its issuers.
    pub chain: NamedFile,
    /// Key of the first certificate.
    pub key: NamedFile,
    /// Requirements for clients.
    pub clients: Clients,
}

/// Requirements for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Clients are not asked for certificates.
    Unasked,
    /// Clients are asked for a certificate signed by these authorities, but admitted with any other, or none.
    Observed(NamedFile),
    /// Clients are admitted only with a certificate signed by these authorities.
    Required {
        /// The trusted authorities, without those of the machine.
        authorities: NamedFile,
        /// The accepted names; empty accepts any name.
        names: Vec<PeerName>,
    },
}

/// A configured server.
#[derive(Debug)]
pub struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    observer: Option<Arc<dyn ClientCertVerifier>>,
    /// Certificates in use.
    pub held: Vec<Held>,
    /// Mistakes that do not prevent the server from running or clients from connecting.
    pub warnings: Vec<TlsError>,
}

/// The certificate check of an admitted client.
#[derive(Debug)]
pub enum Shown {
    /// The certificate is valid, or none was asked for.
    Enough,
    /// The client presented no certificate.
    Nothing,
    /// The client presented a certificate that would be rejected if one were required.
    Wrong(Error),
}

impl ServerFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// If the files cannot be used; lists every mistake in each of them.
    pub fn load(&self) -> Result<ServerTls, TlsErrors> {
        let identity = pem::identity(&self.chain, &self.key);
        let (clients, warnings) = match (&self.clients, self.authorities().transpose()) {
            // Bad authorities do not lock out clients that would be admitted without a certificate.
            (Clients::Observed(_), Err(errors)) => (Ok(None), errors.0),
            (_, authorities) => (authorities, Vec::new()),
        };
        let (identity, authorities) = TlsErrors::both(identity, clients)?;
        let mut held = vec![Held { role: Held::SERVER, file: self.chain.clone(), validity: identity.validity }];
        let unusable = |error| TlsErrors::from(self.chain.error(Reason::Unusable(error)));
        let builder =
            ServerConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS).map_err(unusable)?;
        let mut observer = None;
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some((file, Authorities { roots, certificates, validity })) => {
                held.push(Held { role: Held::CLIENT_CA, file: file.clone(), validity });
                let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
                let inner: Arc<dyn ClientCertVerifier> = inner.map_err(|_| file.error(Reason::NoCertificate))?;
                // Names of clients are checked afterwards.
                let or_named = OrNamed { inner, named: certificates, expected: Expected::AnyName };
                let inner: Arc<dyn ClientCertVerifier> = Arc::new(or_named);
                let admits = match &self.clients {
                    Clients::Required { names, .. } if names.is_empty() => Admits::Signed,
                    Clients::Required { names, .. } => Admits::Named(names.clone()),
                    Clients::Observed(_) | Clients::Unasked => {
                        observer = Some(Arc::clone(&inner));
                        Admits::All
                    }
                };
                builder.with_client_cert_verifier(Arc::new(OfClients { inner, admits }))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.key)));
        config.alpn_protocols = vec![H2.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ServerTls { config: Arc::new(config), observer, held, warnings })
    }

    /// Reads the files as replacements for working ones.
    ///
    /// # Errors
    /// As [`load`](Self::load), and if no client would accept the certificate, since the previous one may be better.
    pub fn reload(&self, now: SystemTime) -> Result<ServerTls, TlsErrors> {
        let loaded = self.load()?;
        let own = loaded.held.iter().find(|held| held.role == Held::SERVER).and_then(|held| held.validity);
        match own.map(|validity| validity.standing(now)) {
            Some(Standing::Expired(ago)) => Err(self.chain.error(Reason::Expired(ago)).into()),
            Some(Standing::NotYet(after)) => Err(self.chain.error(Reason::NotYetValid(after)).into()),
            _ => Ok(loaded),
        }
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let files = [Some(&self.chain), Some(&self.key), self.clients.authorities()];
        files.into_iter().flatten().map(|file| file.path.clone()).collect()
    }

    fn authorities(&self) -> Option<Result<(NamedFile, Authorities), TlsErrors>> {
        let file = self.clients.authorities()?;
        Some(file.authorities().map(|authorities| (file.clone(), authorities)))
    }
}

impl Clients {
    fn authorities(&self) -> Option<&NamedFile> {
        match self {
            Clients::Unasked => None,
            Clients::Observed(authorities) | Clients::Required { authorities, .. } => Some(authorities),
        }
    }
}

impl ServerTls {
    /// Checks the certificate that a client presented.
    pub fn shown(&self, session: &ServerConnection) -> Shown {
        let Some(observer) = &self.observer else { return Shown::Enough };
        let Some([end_entity, intermediates @ ..]) = session.peer_certificates() else { return Shown::Nothing };
        match observer.verify_client_cert(end_entity, intermediates, UnixTime::now()) {
            Ok(_) => Shown::Enough,
            Err(error) => Shown::Wrong(error),
        }
    }
}

impl Held {
    /// Role of the server's certificate.
    pub const SERVER: &str = "server";
    /// Role of the authorities that must have signed a client's certificate.
    pub const CLIENT_CA: &str = "client_ca";
}
