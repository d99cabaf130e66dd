//! Certificates and keys in PEM files.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::certificate::{Certificate, Validity};
use super::error::{Reason, TlsError, TlsErrors};
use super::provider;
use crate::files::refuse_pipe;

/// Largest size of a file: five times a bundle of all public authorities.
const MOST_BYTES: u64 = 1024 * 1024;

/// A file, and the name of the setting or flag that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Name of the setting or flag, such as `GRPC_SERVER_TLS_KEY`.
    pub name: &'static str,
    /// Path of the file.
    pub path: PathBuf,
}

impl fmt::Display for NamedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.path.display())
    }
}

/// A chain of certificates with the key of the first.
pub(super) struct Identity {
    pub key: CertifiedKey,
    pub validity: Option<Validity>,
}

/// Trusted authorities.
pub(super) struct Authorities {
    pub roots: RootCertStore,
    /// The same certificates as they are in the file.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Validity of the certificate that lasts longest: during a rotation, old and new authorities are in one file.
    pub validity: Option<Validity>,
}

impl NamedFile {
    /// Builds an error about this file.
    pub(super) fn error(&self, reason: Reason) -> TlsError {
        TlsError { file: self.clone(), reason }
    }

    fn read(&self) -> Result<Vec<u8>, TlsError> {
        let mut bytes = Vec::new();
        let unreadable = |error| self.error(Reason::Unreadable(error));
        refuse_pipe(&self.path)
            .and_then(|()| File::open(&self.path))
            .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
            .map_err(unreadable)?;
        match &bytes[..] {
            long if long.len() as u64 > MOST_BYTES => Err(self.error(Reason::TooLong(MOST_BYTES))),
            // DER rather than PEM: a sequence longer than 255 bytes, as in every certificate and nearly every key.
            [0x30, 0x82, ..] => Err(self.error(Reason::Der)),
            _ => Ok(bytes),
        }
    }

    /// Reads all certificates in the file, at least one.
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let bytes = self.read()?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let found = found.map_err(|error| self.error(Reason::Damaged(error.to_string())))?;
        match (found.is_empty(), PrivateKeyDer::from_pem_slice(&bytes)) {
            (false, _) => Ok(found),
            (true, Ok(_)) => Err(self.error(Reason::KeyOnly)),
            (true, Err(_)) => Err(self.error(Reason::NoCertificate)),
        }
    }

    /// Reads the first certificate.
    pub(super) fn first_certificate(&self) -> Result<CertificateDer<'static>, TlsError> {
        self.certificates()?.into_iter().next().ok_or_else(|| self.error(Reason::NoCertificate))
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let bytes = self.read()?;
        PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
            let is_encrypted = String::from_utf8_lossy(&bytes).contains("ENCRYPTED");
            self.error(if is_encrypted { Reason::Encrypted } else { Reason::NoKey })
        })
    }

    /// Reads the authorities in the file; trusts no others.
    pub(super) fn authorities(&self) -> Result<Authorities, TlsErrors> {
        let certificates = self.certificates()?;
        let validity = certificates.iter().filter_map(|der| Certificate::of(der).ok());
        let validity = validity.map(|certificate| certificate.validity).max_by_key(|validity| validity.until);
        let mut roots = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            roots.add(certificate.clone()).map_err(|_| self.error(Reason::BadCertificate(index + 1)))?;
        }
        Ok(Authorities { roots, certificates, validity })
    }
}

/// Reads a chain and the key of its first certificate.
pub(super) fn identity(chain: &NamedFile, key: &NamedFile) -> Result<Identity, TlsErrors> {
    let read = |file: &NamedFile| file.private_key().map_err(TlsErrors::from);
    let (certificates, private) = TlsErrors::both(chain.certificates().map_err(TlsErrors::from), read(key))?;
    let provider = provider();
    let private = provider.key_provider.load_private_key(private).map_err(|_| key.error(Reason::BadKey))?;
    // Certificates after the first may have expired, and be there for clients that still trust another authority.
    let own = certificates.first().and_then(|der| Certificate::of(der).ok());
    let validity = own.map(|certificate| certificate.validity);
    let pair = CertifiedKey::new(certificates, private);
    match pair.keys_match() {
        Ok(()) => Ok(Identity { key: pair, validity }),
        Err(tokio_rustls::rustls::Error::InvalidCertificate(_)) => Err(chain.error(Reason::BadCertificate(1)).into()),
        Err(_) => Err(key.error(Reason::Mismatch(chain.clone())).into()),
    }
}
