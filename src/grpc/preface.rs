//! The preface of HTTP/2. A client that does not send it in time is disconnected: until it arrives, hyper sends no
//! keepalive pings and cannot shut down, so clients that send nothing, or only a part, would use up connections and
//! delay a shutdown.

use std::io;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The bytes that a client sends first (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest time for a client to send the preface.
const PREFACE_TIME: Duration = Duration::from_secs(10);

/// First byte of a TLS record with a handshake (RFC 8446, section 5.1).
const TLS: u8 = 22;

/// A connection that does not begin with the preface of HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotHttp2 {
    /// It begins with a TLS handshake.
    Tls,
    /// The client sent something else, closed the connection, or took too long.
    Other,
}

/// Reads the preface from the connection.
pub(super) async fn take(connection: &mut (impl AsyncRead + Unpin)) -> Result<(), NotHttp2> {
    let begun = tokio::time::timeout(PREFACE_TIME, begins_with_preface(connection)).await;
    let begun = begun.unwrap_or(Ok(Err(NotHttp2::Other))).unwrap_or(Err(NotHttp2::Other));
    if begun.is_err() {
        // Closing with unread data would reset the connection, and hide the reason from the client.
        let _ = connection.read(&mut [0; 1024]).now_or_never();
    }
    begun
}

async fn begins_with_preface(connection: &mut (impl AsyncRead + Unpin)) -> io::Result<Result<(), NotHttp2>> {
    let mut buffer = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() {
        let read = connection.read(&mut buffer[length..]).await?;
        length += read;
        if read == 0 || !PREFACE.starts_with(&buffer[..length]) {
            return Ok(Err(if buffer[0] == TLS { NotHttp2::Tls } else { NotHttp2::Other }));
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::Instant;

    use super::*;

    /// Sends these pieces and then waits. Returns whether the client is accepted, and after how long.
    async fn taken(pieces: &[&[u8]]) -> (Result<(), NotHttp2>, Duration) {
        let (mut client, mut server) = tokio::io::duplex(64);
        let start = Instant::now();
        let send = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (taken, ()) = tokio::join!(take(&mut server), send);
        (taken, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn the_preface_may_come_in_pieces_and_nothing_after_it_is_read() {
        for size in [1, 5, 24] {
            assert_eq!(taken(&PREFACE.chunks(size).collect::<Vec<_>>()).await, (Ok(()), Duration::ZERO));
        }
        let (mut client, mut server) = tokio::io::duplex(64);
        client.write_all(&[&PREFACE[..], b"more"].concat()).await.unwrap();
        assert_eq!(take(&mut server).await, Ok(()));
        let mut more = [0; 4];
        server.read_exact(&mut more).await.unwrap();
        assert_eq!(&more, b"more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_falls_silent_is_let_go_in_time_and_one_that_sends_something_else_at_once() {
        for words in [&b""[..], b"P", &PREFACE[..23]] {
            let (taken, after) = taken(&[words]).await;
            assert_eq!(taken, Err(NotHttp2::Other));
            assert!(after >= PREFACE_TIME && after < 2 * PREFACE_TIME, "{words:?}: {after:?}");
        }
        for (words, what) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], NotHttp2::Other),
            (b"PRINT", NotHttp2::Other),
            (b"\x16\x03\x01", NotHttp2::Tls),
        ] {
            assert_eq!(taken(&[words]).await, (Err(what), Duration::ZERO), "{words:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_within_the_preface_is_let_go_at_once() {
        let (mut client, mut server) = tokio::io::duplex(64);
        client.write_all(b"PRI").await.unwrap();
        drop(client);
        let start = Instant::now();
        assert_eq!(take(&mut server).await, Err(NotHttp2::Other));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
