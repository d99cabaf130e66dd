//! What is wrong with files for TLS, and what would be right. No message shows what is in a key.

use std::fmt;
use std::io;
use std::time::Duration;

use humantime::format_duration;
use tokio_rustls::rustls;

use super::pem::NamedFile;

/// What is wrong with one file.
#[derive(Debug)]
pub struct TlsError {
    /// Which.
    pub file: NamedFile,
    /// And why.
    pub reason: Reason,
}

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The system gives no access.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// Nobody writes certificates that long.
    #[error("has more than {0} bytes, which are no certificates")]
    TooLong(u64),
    /// Binary.
    #[error("is no PEM, and may be DER: write it as PEM, by openssl x509 -inform der (of a key: openssl pkey)")]
    Der,
    /// No certificate at all.
    #[error("has no certificate: it wants PEM with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// The wrong one of two files.
    #[error("has a private key, and no certificate: is it the file of the key?")]
    KeyOnly,
    /// PEM that is damaged.
    #[error("is damaged PEM: {0}")]
    Damaged(String),
    /// What is within is none.
    #[error("has no certificate that can be understood in place {0}")]
    BadCertificate(usize),
    /// No key at all.
    #[error("has no private key: it wants PEM with -----BEGIN PRIVATE KEY-----")]
    NoKey,
    /// Nobody is there to type it.
    #[error("has a key with a passphrase: write it without, by openssl pkey -in KEY -out NEW")]
    Encrypted,
    /// Of a kind that is not spoken.
    #[error("has a key that cannot be used: it wants RSA of 2048 bits at least, ECDSA P-256 or P-384, or Ed25519")]
    BadKey,
    /// Two files of two pairs.
    #[error("is not the key of the certificate that comes first in {0}")]
    Mismatch(NamedFile),
    /// Of no use any more.
    #[error("has a certificate that expired {} ago", format_duration(*.0))]
    Expired(Duration),
    /// Of no use yet.
    #[error("has a certificate that is not valid yet: it will be in {}", format_duration(*.0))]
    NotYetValid(Duration),
    /// What rustls says against it.
    #[error("cannot be used: {0}")]
    Unusable(rustls::Error),
    /// Of the machine itself.
    #[error("this machine has no authorities to trust: name a file of them")]
    NoAuthorities,
}

/// All that is wrong, in the order of the files.
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
    /// Both values, or what is wrong with either.
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
