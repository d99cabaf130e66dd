//! Trust decisions beyond those of rustls: a client by its name, and a server by a name or by its certificate.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::certificate::{Certificate, PeerName, Standing};
use super::client::Expected;
use super::provider;

/// A server's check of client certificates, after `inner` has checked them.
#[derive(Debug)]
pub(super) struct OfClients {
    pub inner: Arc<dyn ClientCertVerifier>,
    pub admits: Admits,
}

/// The clients to admit.
#[derive(Debug)]
pub(super) enum Admits {
    /// All clients, with any certificate or none; the certificate is checked later.
    All,
    /// Clients with a certificate signed by one of the authorities.
    Signed,
    /// Of these, clients with one of the names.
    Named(Vec<PeerName>),
}

/// A certificate with none of the expected names.
#[derive(Debug, thiserror::Error)]
#[error("its names are {}, but it needs {}", list(.has), list(.wanted))]
pub struct WrongName {
    has: Vec<PeerName>,
    wanted: Vec<PeerName>,
}

fn list(names: &[PeerName]) -> String {
    match names {
        [] => "none".into(),
        names => names.iter().map(PeerName::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl ClientCertVerifier for OfClients {
    fn client_auth_mandatory(&self) -> bool {
        !matches!(self.admits, Admits::All)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let wanted = match &self.admits {
            Admits::All => return Ok(ClientCertVerified::assertion()),
            Admits::Signed => return self.inner.verify_client_cert(end_entity, intermediates, now),
            Admits::Named(wanted) => wanted,
        };
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let has = Certificate::of(end_entity).map(|certificate| certificate.names).unwrap_or_default();
        if has.iter().any(|name| wanted.contains(name)) {
            return Ok(verified);
        }
        let wrong = WrongName { has, wanted: wanted.clone() };
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(wrong)))))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// A check that also accepts the certificates in the file of authorities themselves, if a peer presents exactly one of
/// them. `openssl req -x509` makes such a certificate: it is marked as an authority, which webpki never accepts as that
/// of a peer, although only the owner of its key can present it.
#[derive(Debug)]
pub(super) struct OrNamed<V: ?Sized> {
    pub inner: Arc<V>,
    pub named: Vec<CertificateDer<'static>>,
    /// The names to accept of a server.
    pub expected: Expected,
}

impl<V: ?Sized> OrNamed<V> {
    /// Returns whether this is one of the named certificates, and valid at `now`.
    fn is_named(&self, end_entity: &CertificateDer<'_>, now: UnixTime) -> Result<bool, Error> {
        if !self.named.contains(end_entity) {
            return Ok(false);
        }
        let certificate = Certificate::of(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        match certificate.validity.standing(UNIX_EPOCH + Duration::from_secs(now.as_secs())) {
            Standing::NotYet(_) => Err(CertificateError::NotValidYet.into()),
            Standing::Expired(_) => Err(CertificateError::Expired.into()),
            Standing::Valid | Standing::Ending(_) => Ok(true),
        }
    }
}

impl ServerCertVerifier for OrNamed<dyn ServerCertVerifier> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.is_named(end_entity, now)? {
            return self.inner.verify_server_cert(end_entity, intermediates, name, ocsp, now);
        }
        if self.expected == Expected::Name {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

impl ClientCertVerifier for OrNamed<dyn ClientCertVerifier> {
    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.is_named(end_entity, now)? {
            true => Ok(ClientCertVerified::assertion()),
            false => self.inner.verify_client_cert(end_entity, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// A client's check of a server certificate, if the name does not matter.
pub(super) struct OfServers {
    trusts: Trusts,
    provider: Arc<CryptoProvider>,
}

/// The servers to trust.
pub(super) enum Trusts {
    /// Servers with a certificate signed by one of these authorities, under any name.
    Signed(RootCertStore),
    /// The server with this certificate.
    Pinned(CertificateDer<'static>),
}

impl OfServers {
    pub fn new(trusts: Trusts) -> Arc<OfServers> {
        Arc::new(OfServers { trusts, provider: provider() })
    }
}

impl fmt::Debug for OfServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfServers").finish_non_exhaustive()
    }
}

impl ServerCertVerifier for OfServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.trusts {
            Trusts::Signed(roots) => {
                let algorithms = self.provider.signature_verification_algorithms.all;
                let certificate = ParsedCertificate::try_from(end_entity)?;
                verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
            }
            Trusts::Pinned(pinned) if end_entity == pinned => {}
            Trusts::Pinned(_) => return Err(CertificateError::UnknownIssuer.into()),
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
