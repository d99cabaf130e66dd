//! TLS by rustls: certificate files, trust, and reloading of files that change.
//!
//! A server and a client trust only the authorities given to them; those of the machine count only on request. Sessions
//! are not resumed: connections are few and last long, and a resumed session would still admit a peer after its
//! authority has lost trust.

mod certificate;
mod client;
mod error;
mod handshake;
mod pem;
mod server;
mod verify;

use std::sync::Arc;

use tokio_rustls::rustls::SupportedProtocolVersion;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::version::{TLS12, TLS13};

pub use certificate::{Held, PeerName, Standing, Validity};
pub use client::{ClientFiles, ClientTls, Expected, Protocol, Trusted};
pub use error::{Reason, TlsError, TlsErrors};
pub use handshake::{HandshakeError, Turns, accept};
pub use pem::NamedFile;
pub use server::{Clients, ServerFiles, ServerTls, Shown};
pub use verify::WrongName;

/// Name of gRPC's protocol in ALPN.
const H2: &[u8] = b"h2";

/// Older versions are insecure.
const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
