//! TLS with the servers that this process is a client of.

use std::io;
use std::sync::Arc;

use anyhow::Context as _;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::connect::{Connection, Handshake};
use crate::files::blocking;
use crate::settings::PeerTls;
use crate::tls::HandshakeError;

/// What is said to whom it fails, by the names of the settings.
pub(super) struct Words {
    /// What fails.
    pub(super) tls: &'static str,
    /// The setting that has the server's name.
    pub(super) name: &'static str,
    /// What to do where the server speaks no TLS.
    pub(super) plain_text: &'static str,
    /// Where its certificate is signed by somebody else.
    pub(super) untrusted: &'static str,
    /// Where it has another name.
    pub(super) wrong_name: &'static str,
    /// Where it does not take what it is shown.
    pub(super) refused: &'static str,
}

/// What makes a connection to the server one of TLS.
///
/// # Errors
/// Where the files cannot be used.
pub(super) fn secure(PeerTls { files, name }: PeerTls, words: &'static Words) -> anyhow::Result<Handshake> {
    files.load().context(words.tls)?;
    let server = ServerName::try_from(name.clone());
    let server = server.with_context(|| format!("{name:?} is no name: see {}", words.name))?;
    Ok(Arc::new(move |connection| {
        let (files, server) = (files.clone(), server.clone());
        Box::pin(async move {
            // Read again: certificates are exchanged while the process lives.
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
            HandshakeError::Expired(_) => "the server needs another",
            HandshakeError::Refused(_) => self.refused,
            _ => return io::Error::other(error.to_string()),
        };
        io::Error::other(format!("{error}: {advice}"))
    }
}
