//! Authorities, and certificates that they sign.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A certificate authority, with a folder for its certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

/// The files of a certificate and of its key.
#[derive(Clone)]
pub struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// A new one, of this name.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), folder }
    }

    /// Returns its own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// The folder of all its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Signs a certificate for these names, in files that are called so.
    pub fn sign(&self, file: &str, names: &[&str]) -> Pair {
        self.sign_between(file, names, (-1, 365))
    }

    /// The same, valid between these days from now.
    pub fn sign_between(&self, file: &str, names: &[&str], (from, until): (i64, i64)) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, file);
        params.subject_alt_names = names.iter().map(|name| san(name)).collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (in_days(from).into(), in_days(until).into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.folder.path().join(format!("{file}.{end}"));
        let pair = Pair { cert: path("crt"), key: path("key") };
        fs::write(&pair.cert, certificate.pem()).unwrap();
        fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }
}

fn in_days(days: i64) -> SystemTime {
    let distance = Duration::from_secs(days.unsigned_abs() * 24 * 60 * 60);
    if days < 0 { SystemTime::now() - distance } else { SystemTime::now() + distance }
}

fn san(name: &str) -> SanType {
    if let Ok(address) = name.parse() {
        return SanType::IpAddress(address);
    }
    let text = name.try_into().unwrap();
    if name.contains("://") { SanType::URI(text) } else { SanType::DnsName(text) }
}

impl Pair {
    /// A client that shows it, and believes this authority.
    pub fn client(&self, authority: &Authority) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_file(&self.cert).unwrap()];
        let key = PrivateKeyDer::from_pem_file(&self.key).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let mut config = builder.with_client_auth_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }

    /// A server that has it, and lets in only clients that this authority has signed.
    pub fn server(&self, clients: &Authority) -> Arc<ServerConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(clients.file()).unwrap()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let chain = vec![CertificateDer::from_pem_file(&self.cert).unwrap()];
        let key = PrivateKeyDer::from_pem_file(&self.key).unwrap();
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_client_cert_verifier(verifier.build().unwrap());
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// The settings of a server that has it.
    pub fn settings(&self) -> Vec<String> {
        vec![
            "GRPC_SERVER_USE_TLS=true".into(),
            format!("GRPC_SERVER_TLS_CERT={}", self.cert.display()),
            format!("GRPC_SERVER_TLS_KEY={}", self.key.display()),
        ]
    }

    /// The flags of a client that shows it.
    pub fn flags(&self) -> [String; 4] {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        ["--cert".into(), text(&self.cert), "--key".into(), text(&self.key)]
    }
}
