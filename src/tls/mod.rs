//! TLS, by rustls: what files hold, whom it trusts, and that both are read again when they change.
//!
//! A server and a client trust the authorities that they are given and no others; those of the machine only where that
//! is asked for. Nothing is resumed: connections are few and last for long, and a session that is resumed would carry
//! on what an authority has said that is no longer trusted.

mod certificate;
mod client;
mod error;
mod handshake;
mod pem;
mod server;
mod verify;
mod watch;

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
pub use watch::{Watched, watch};

/// gRPC's protocol, by ALPN.
const H2: &[u8] = b"h2";

/// Everything older is broken.
const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
