//! What there is at an address where no gRPC could be spoken: looked at by asking, as HTTP/1 and as TLS do.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// What is there.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The name has no address.
    UnknownHost,
    /// The port is closed.
    Nobody,
    /// No connection comes about.
    Unreachable(String),
    /// HTTP/1.
    Http,
    /// As gRPC does.
    Http2,
    /// A secure something.
    Tls,
    /// Redis, or what speaks like it.
    Redis,
    /// It says something else, the beginning of which this is.
    Other(String),
    /// It takes a connection, and nothing comes.
    Silent,
    /// It takes a connection, and closes it.
    Closes,
}

/// How a client of HTTP/2 begins (RFC 9113, section 3.4), with empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Not of HTTP/1.1, which has a `Host:`: Redis takes that for an attack.
const HTTP: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// The beginning of TLS 1.2 (RFC 5246, section 7.4.1.2) with two suites and no extensions. Whoever speaks any TLS says
/// something to it in TLS, be it that this will not do.
const CLIENT_HELLO: &[u8] = &[
    22, 3, 1, 0, 47, // a handshake of 47 bytes
    1, 0, 0, 43, 3, 3, // a ClientHello of 43
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 0, // no session
    0, 4, 0xc0, 0x2f, 0, 0x9c, // ECDHE with RSA, and RSA alone
    1, 0, // no compression
];

/// Looks, for so long with each question.
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
        match told(said.as_deref()) {
            // Many that speak TLS answer what is not TLS in HTTP, or by closing, or not at all.
            Found::Http => found = Found::Http,
            Found::Closes if found == Found::Silent => found = Found::Closes,
            Found::Closes | Found::Silent => {}
            other if found != Found::Http || other == Found::Tls => return other,
            _ => {}
        }
    }
    found
}

/// What is said first to these words: `None` if nothing is in time, and nothing at all if the connection is closed.
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
            // Reset or closed, it is the same.
            said.truncate(length.unwrap_or(0));
            Ok(Some(said))
        }
        Err(_) => Ok(None),
    }
}

fn told(said: Option<&[u8]>) -> Found {
    /// A frame of SETTINGS (RFC 9113, section 6.5), which comes first, on no stream.
    fn is_settings(said: &[u8]) -> bool {
        matches!(said, [0, _, _, 4, 0, 0, 0, 0, 0, ..])
    }
    match said {
        None => Found::Silent,
        Some([]) => Found::Closes,
        Some(said) if is_settings(said) => Found::Http2,
        // A record of an alert or of a handshake.
        Some([21 | 22, 3, ..]) => Found::Tls,
        Some(said) if said.starts_with(b"HTTP/") => Found::Http,
        Some(said) if [&b"-ERR"[..], b"-NOAUTH", b"-DENIED", b"-LOADING"].iter().any(|word| said.starts_with(word)) => {
            Found::Redis
        }
        Some(said) => Found::Other(String::from_utf8_lossy(said).lines().next().unwrap_or_default().to_owned()),
    }
}
