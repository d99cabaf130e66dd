//! Finds out what is listening at an address where a gRPC connection failed, by sending the first bytes of HTTP/2,
//! HTTP/1 and TLS.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// The result of a probe.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The name has no address.
    UnknownHost,
    /// The port is closed.
    Nobody,
    /// The connection fails.
    Unreachable(String),
    /// An HTTP/1 server.
    Http,
    /// An HTTP/2 server, as gRPC needs.
    Http2,
    /// A TLS server.
    Tls,
    /// Redis, or a server with its protocol.
    Redis,
    /// Another protocol, with the first line of its answer.
    Other(String),
    /// A server that accepts the connection and sends nothing.
    Silent,
    /// A server that accepts the connection and closes it.
    Closes,
}

impl Found {
    /// Recognizes the server by the first bytes of its answer; by no bytes, that it closes the connection.
    pub fn of(said: &[u8]) -> Found {
        let is_of_redis =
            || [&b"-ERR"[..], b"-NOAUTH", b"-DENIED", b"-LOADING"].iter().any(|word| said.starts_with(word));
        match said {
            [] => Found::Closes,
            // A SETTINGS frame (RFC 9113, section 6.5) on stream 0, which a server sends first.
            [0, _, _, 4, 0, 0, 0, 0, 0, ..] => Found::Http2,
            // A TLS record with an alert or a handshake.
            [21 | 22, 3, ..] => Found::Tls,
            [b'H', b'T', b'T', b'P', b'/', ..] => Found::Http,
            _ if is_of_redis() => Found::Redis,
            _ => Found::Other(String::from_utf8_lossy(said).lines().next().unwrap_or_default().to_owned()),
        }
    }
}

/// The connection preface of HTTP/2 (RFC 9113, section 3.4), with empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// HTTP/1.0 rather than 1.1, as Redis takes the header `Host:` for an attack.
const HTTP: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// A ClientHello of TLS 1.2 (RFC 5246, section 7.4.1.2) with two cipher suites and no extensions. A server of any TLS
/// version answers it in TLS, at least with an alert.
pub const CLIENT_HELLO: &[u8] = &[
    22, 3, 1, 0, 47, // a handshake of 47 bytes
    1, 0, 0, 43, 3, 3, // a ClientHello of 43
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 0, // no session
    0, 4, 0xc0, 0x2f, 0, 0x9c, // ECDHE with RSA, and RSA alone
    1, 0, // no compression
];

/// Probes the address, with this deadline for each attempt.
pub async fn probe(address: &str, deadline: Duration) -> Found {
    if !matches!(timeout(deadline, lookup_host(address)).await, Ok(Ok(_))) {
        return Found::UnknownHost;
    }
    let mut found = Found::Silent;
    for words in [PREFACE, HTTP, CLIENT_HELLO] {
        let said = match ask(address, words, deadline).await {
            Ok(said) => said,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Found::Nobody,
            Err(error) => return Found::Unreachable(error.to_string()),
        };
        match said.as_deref().map_or(Found::Silent, Found::of) {
            // Many TLS servers answer plain text with HTTP, by closing the connection, or not at all.
            Found::Http => found = Found::Http,
            Found::Closes if found == Found::Silent => found = Found::Closes,
            Found::Closes | Found::Silent => {}
            other if found != Found::Http || other == Found::Tls => return other,
            _ => {}
        }
    }
    found
}

/// Sends these bytes, and returns the first bytes of the answer: `None` if nothing arrives in time, and no bytes if the
/// connection is closed.
async fn ask(address: &str, words: &[u8], deadline: Duration) -> io::Result<Option<Vec<u8>>> {
    let connected = timeout(deadline, TcpStream::connect(address)).await;
    let mut connection = connected.map_err(|_| io::Error::new(ErrorKind::TimedOut, "it does not answer"))??;
    let mut said = vec![0; 64];
    let asked = async {
        connection.write_all(words).await?;
        connection.read(&mut said).await
    };
    match timeout(deadline, asked).await {
        Ok(length) => {
            // A reset counts as closed.
            said.truncate(length.unwrap_or(0));
            Ok(Some(said))
        }
        Err(_) => Ok(None),
    }
}
