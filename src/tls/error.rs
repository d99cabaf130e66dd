//! Errors in TLS files, with advice. No message shows the contents of a key.

use std::fmt;
use std::io;
use std::time::Duration;

use humantime::format_duration;
use tokio_rustls::rustls;

use super::pem::NamedFile;

/// An error in one file.
#[derive(Debug)]
pub struct TlsError {
    /// The file.
    pub file: NamedFile,
    /// The error.
    pub reason: Reason,
}

/// Reasons to reject a file.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file is larger than any real certificates.
    #[error("has more than {0} bytes, too many for certificates")]
    TooLong(u64),
    /// The file has a binary format.
    #[error("is not PEM, perhaps DER: convert it with openssl x509 -inform der (for a key: openssl pkey)")]
    Der,
    /// The file has no certificate.
    #[error("has no certificate: PEM with -----BEGIN CERTIFICATE----- is required")]
    NoCertificate,
    /// The file is the key, not the certificate.
    #[error("has a private key, and no certificate: is it the file of the key?")]
    KeyOnly,
    /// The PEM is damaged.
    #[error("is damaged PEM: {0}")]
    Damaged(String),
    /// A block in the file is not a valid certificate.
    #[error("has an invalid certificate at position {0}")]
    BadCertificate(usize),
    /// The file has no key.
    #[error("has no private key: PEM with -----BEGIN PRIVATE KEY----- is required")]
    NoKey,
    /// The key needs a passphrase, which a service cannot ask for.
    #[error("has a key with a passphrase: remove it with openssl pkey -in KEY -out NEW")]
    Encrypted,
    /// The kind of key is not supported.
    #[error("has an unsupported key: use RSA with at least 2048 bits, ECDSA P-256 or P-384, or Ed25519")]
    BadKey,
    /// The key belongs to another certificate.
    #[error("is not the key of the first certificate in {0}")]
    Mismatch(NamedFile),
    /// The certificate has expired.
    #[error("has a certificate that expired {} ago", format_duration(*.0))]
    Expired(Duration),
    /// The certificate is not valid yet.
    #[error("has a certificate that is not valid yet: it becomes valid in {}", format_duration(*.0))]
    NotYetValid(Duration),
    /// rustls rejects it.
    #[error("cannot be used: {0}")]
    Unusable(rustls::Error),
    /// The machine has no authorities.
    #[error("this machine has no trusted authorities: name a file with authorities")]
    NoAuthorities,
}

/// All errors, in the order of the files.
#[derive(Debug, thiserror::Error)]
pub struct TlsErrors(pub Vec<TlsError>);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file, self.reason)
    }
}

impl fmt::Display for TlsErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(TlsError::to_string).collect();
        f.write_str(&lines.join("; "))
    }
}

impl TlsErrors {
    /// Returns both values, or the errors of both.
    pub(super) fn both<A, B>(one: Result<A, TlsErrors>, other: Result<B, TlsErrors>) -> Result<(A, B), TlsErrors> {
        match (one, other) {
            (Ok(one), Ok(other)) => Ok((one, other)),
            (Err(one), Err(other)) => Err(TlsErrors(one.0.into_iter().chain(other.0).collect())),
            (Err(errors), _) | (_, Err(errors)) => Err(errors),
        }
    }
}

impl From<TlsError> for TlsErrors {
    fn from(error: TlsError) -> TlsErrors {
        TlsErrors(vec![error])
    }
}
