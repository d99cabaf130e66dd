//! What a server needs of TLS, made from files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{Error, ServerConfig, ServerConnection};

use super::certificate::{Held, PeerName, Standing};
use super::error::{Reason, TlsError, TlsErrors};
use super::pem::{self, Authorities, NamedFile};
use super::verify::{Admits, OfClients};
use super::{H2, VERSIONS, provider};

/// What a server is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate first, and then those of who signed it.
    pub chain: NamedFile,
    /// Of the first certificate.
    pub key: NamedFile,
    /// What clients have to show.
    pub clients: Clients,
}

/// What clients have to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// They are not asked.
    Unasked,
    /// They are asked for a certificate that these have signed, and get in with another, too, and with none.
    Observed(NamedFile),
    /// They get in only by a certificate that these authorities have signed.
    Required {
        /// These alone, and none of the machine.
        authorities: NamedFile,
        /// It has one of these names, where there are any.
        names: Vec<PeerName>,
    },
}

/// A server, ready for clients.
#[derive(Debug)]
pub struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    observer: Option<Arc<dyn ClientCertVerifier>>,
    /// The certificates that it has.
    pub held: Vec<Held>,
    /// What is wrong, and keeps nobody out.
    pub warnings: Vec<TlsError>,
}

/// What a client that is in has shown of itself.
#[derive(Debug)]
pub enum Shown {
    /// A certificate, which was right; or nobody has asked.
    Enough,
    /// None.
    Nothing,
    /// One for which it would not get in, if it had to show one.
    Wrong(Error),
}

impl ServerFiles {
    /// Reads them.
    ///
    /// # Errors
    /// Where they make no server: all that is wrong with each of them.
    pub fn load(&self) -> Result<ServerTls, TlsErrors> {
        let identity = pem::identity(&self.chain, &self.key);
        let (clients, warnings) = match (&self.clients, self.authorities().transpose()) {
            // Who gets in anyhow is not locked out by this.
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
            Some((file, Authorities { roots, validity })) => {
                held.push(Held { role: Held::CLIENT_CA, file: file.clone(), validity });
                let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
                let inner = inner.map_err(|_| file.error(Reason::NoCertificate))?;
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

    /// Reads them in place of others that work.
    ///
    /// # Errors
    /// As [`load`](Self::load), and where no client would take the certificate: the one before may be better.
    pub fn reload(&self, now: SystemTime) -> Result<ServerTls, TlsErrors> {
        let loaded = self.load()?;
        let own = loaded.held.iter().find(|held| held.role == Held::SERVER).and_then(|held| held.validity);
        match own.map(|validity| validity.standing(now)) {
            Some(Standing::Expired(ago)) => Err(self.chain.error(Reason::Expired(ago)).into()),
            Some(Standing::NotYet(after)) => Err(self.chain.error(Reason::NotYetValid(after)).into()),
            _ => Ok(loaded),
        }
    }

    /// Where they are.
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
    /// What a client has shown.
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
    /// The certificate that a server shows.
    pub const SERVER: &str = "server";
    /// Those that have to have signed what clients show.
    pub const CLIENT_CA: &str = "client_ca";
}
