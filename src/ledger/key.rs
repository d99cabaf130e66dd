//! Keys that sign and verify a ledger: Ed25519 keys in the format of `openssl genpkey`.

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

/// Prefix of every signed text. It keeps signatures made for other purposes from being valid in a ledger.
const CONTEXT: &str = "tollgate usage ledger 1\n";

/// Prefix of the 32 bytes of a public key (RFC 8410).
const OF_ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A private key that signs lines.
pub struct SigningKey(Ed25519KeyPair);

/// A public key that verifies lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

/// The reason why a key cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not a private key, or of another algorithm.
    #[error("is not a private Ed25519 key in PEM: create one with `openssl genpkey -algorithm ed25519`")]
    Private,
    /// The key is encrypted.
    #[error("is encrypted, which is not supported: remove the password with `openssl pkey -in FILE`")]
    Encrypted,
    /// Not a public key, or of another algorithm.
    #[error(
        "is not a public Ed25519 key in PEM: derive it from the private one with `openssl pkey -in KEY.pem -pubout`"
    )]
    Public,
    /// A private key where the public key is needed.
    #[error("is a private key, but checking needs only the public one: derive it with `openssl pkey -pubout`")]
    NotPublic,
}

impl SigningKey {
    /// Reads a key in PEM format.
    ///
    /// # Errors
    /// Fails if the text contains no such key.
    pub fn read(pem: &[u8]) -> Result<SigningKey, KeyError> {
        if String::from_utf8_lossy(pem).contains("ENCRYPTED PRIVATE KEY") {
            return Err(KeyError::Encrypted);
        }
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| KeyError::Private)?;
        // Unchecked, because OpenSSL omits the public key that the private key would be compared with.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der());
        pair.map(SigningKey).map_err(|_| KeyError::Private)
    }

    /// Returns the public key for its signatures.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }

    pub(super) fn sign(&self, text: &str) -> Vec<u8> {
        self.0.sign(signed(text).as_bytes()).as_ref().to_vec()
    }
}

impl PublicKey {
    /// Reads a key in PEM format.
    ///
    /// # Errors
    /// Fails if the text contains no such key.
    pub fn read(pem: &[u8]) -> Result<PublicKey, KeyError> {
        let Ok(der) = SubjectPublicKeyInfoDer::from_pem_slice(pem) else {
            let is_private = String::from_utf8_lossy(pem).contains("PRIVATE KEY");
            return Err(if is_private { KeyError::NotPublic } else { KeyError::Public });
        };
        let key = der.strip_prefix(&OF_ED25519).and_then(|key| key.try_into().ok());
        key.map(PublicKey).ok_or(KeyError::Public)
    }

    /// Returns the ID by which lines name their key.
    pub fn id(&self) -> String {
        blake3::hash(&self.0).to_hex()[..16].to_owned()
    }

    pub(super) fn has_signed(&self, text: &str, signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(signed(text).as_bytes(), signature).is_ok()
    }
}

fn signed(text: &str) -> String {
    [CONTEXT, text].concat()
}
