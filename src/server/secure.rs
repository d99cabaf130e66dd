//! TLS with the servers that this process connects to.

use std::io;
use std::sync::Arc;

use anyhow::Context as _;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::connect::{Connection, Handshake};
use crate::files::blocking;
use crate::settings::PeerTls;
use crate::tls::HandshakeError;

/// Texts for errors, which name the settings concerned.
pub(super) struct Words {
    /// The connection that failed.
    pub(super) tls: &'static str,
    /// The setting with the server's name.
    pub(super) name: &'static str,
    /// Advice if the server does not use TLS.
    pub(super) plain_text: &'static str,
    /// Advice if no trusted authority signed the server's certificate.
    pub(super) untrusted: &'static str,
    /// Advice if the certificate has another name.
    pub(super) wrong_name: &'static str,
    /// Advice if the server rejects the client's certificate.
    pub(super) refused: &'static str,
}

/// Returns a handshake that adds TLS to a connection to the server.
///
/// # Errors
/// If the files cannot be used.
pub(super) fn secure(PeerTls { files, name }: PeerTls, words: &'static Words) -> anyhow::Result<Handshake> {
    files.load().context(words.tls)?;
    let server = ServerName::try_from(name.clone());
    let server = server.with_context(|| format!("{name:?} is not a host name: see {}", words.name))?;
    Ok(Arc::new(move |connection| {
        let (files, server) = (files.clone(), server.clone());
        Box::pin(async move {
            // Reads the files for each connection, as certificates are replaced while the process runs.
            let client = blocking(move || files.load()).await.map_err(io::Error::other)?;
            let connected = client.connect(server, connection).await;
            let connected = connected.map_err(|error| words.explain(&HandshakeError::of(&error)))?;
            Ok(Box::new(connected) as Box<dyn Connection>)
        })
    }))
}

impl Words {
    fn explain(&self, error: &HandshakeError) -> io::Error {
        let advice = match error {
            HandshakeError::PlainText => self.plain_text,
            HandshakeError::Untrusted(_) => self.untrusted,
            HandshakeError::WrongName(_) => self.wrong_name,
            HandshakeError::Expired(_) => "the server needs a valid certificate",
            HandshakeError::Refused(_) => self.refused,
            _ => return io::Error::other(error.to_string()),
        };
        io::Error::other(format!("{error}: {advice}"))
    }
}
