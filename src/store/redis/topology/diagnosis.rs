//! Diagnoses a Redis that no connection can be made to. Runs after the attempt has failed, over separate connections,
//! since the client library reports only that its first commands failed.

use std::io;

use deadpool_redis::redis::cmd;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Duration, timeout};

use super::access::{Access, handshake_failed};
use super::address::Place;
use super::dial::{DialError, connect};
use crate::probe::{CLIENT_HELLO, Found};
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::doctor::identity::Identity;
use crate::tls::HandshakeError;

/// The longest duration of a diagnosis, unless the timeout of Redis is shorter.
const MOST: Duration = Duration::from_secs(1);
/// The most bytes read of an answer.
const ANSWER: usize = 16 * 1024;
/// The possible first bytes of a reply of Redis.
const REPLIES: &[u8] = b"+-:$*_#,(!=%~>|";

/// Returns the problem, or `None` if none is found because it has passed or has another cause.
pub(crate) async fn diagnose(place: &Place, access: &Access, most: Duration) -> Option<Cause> {
    timeout(most.min(MOST), ask(place, access)).await.ok()?
}

/// Returns the problem of a server that does not answer a TLS handshake. Many servers take the handshake for an
/// incomplete command and wait for the rest.
pub(crate) async fn diagnose_silence(place: &Place, most: Duration) -> Option<Cause> {
    let speaks_plainly = async {
        let answer = exchange(&mut connect(place).await.ok()?, &cmd("PING").get_packed_command()).await.ok()?;
        answer.first().filter(|first| REPLIES.contains(first)).map(|_| Cause::NoTls)
    };
    timeout(most.min(MOST), speaks_plainly).await.ok()?
}

async fn ask(place: &Place, access: &Access) -> Option<Cause> {
    let stream = match access.open(place).await {
        Ok(stream) => stream,
        Err(DialError::Known(cause)) => return Some(cause),
        Err(DialError::Unclear(_)) => return None,
    };
    match (examine(stream, access).await, place) {
        (Ok(cause), _) => cause,
        // A server that requires a certificate may report this only after the handshake.
        (Err(error), _) if access.is_secure() => Some(handshake_failed(&HandshakeError::of(&error))),
        (Err(_), Place::Unix(_)) => None,
        // Closed without a word, as by a server that takes the request for damaged TLS.
        (Err(_), Place::Tcp(..)) => {
            let mut stream = connect(place).await.ok()?;
            let answer = exchange(&mut stream, CLIENT_HELLO).await.unwrap_or_default();
            Some(if Found::of(&answer) == Found::Tls { Cause::Tls } else { Cause::Mute })
        }
    }
}

/// Asks for what Redis answers to everyone, and then sends the password.
async fn examine(mut stream: impl AsyncRead + AsyncWrite + Unpin, access: &Access) -> io::Result<Option<Cause>> {
    let auth = access.auth();
    let answer = exchange(&mut stream, &cmd("PING").get_packed_command()).await?;
    if let Some(protocol) = other_protocol(&answer) {
        return Ok(Some(protocol));
    }
    if let Some(text) = error(&answer) {
        let cause = Cause::of_reply(text);
        if cause != Cause::NoPassword || auth.is_none() {
            return Ok(Some(cause));
        }
    }
    let denied = match auth {
        None => None,
        Some(auth) => {
            let answer = exchange(&mut stream, &auth.get_packed_command()).await?;
            // Other errors may repeat the password.
            error(&answer).map(|text| Cause::known(text).unwrap_or(Cause::WrongPassword))
        }
    };
    // Last, because not all of the answer need arrive at once. Most Sentinels require no password.
    let info = exchange(&mut stream, &cmd("INFO").get_packed_command()).await?;
    Ok(Identity::read(&String::from_utf8_lossy(&info)).refusal(access.is_cluster()).or(denied))
}

/// Sends a request and returns the first part of the answer.
///
/// # Errors
/// If the server closes the connection without an answer.
async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &[u8]) -> io::Result<Vec<u8>> {
    // The server may have answered and closed before.
    let _ = stream.write_all(request).await;
    let mut answer = vec![0; ANSWER];
    let read = stream.read(&mut answer).await?;
    answer.truncate(read);
    if answer.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
}

/// Returns the text of an error of Redis.
fn error(answer: &[u8]) -> Option<&str> {
    let line = answer.strip_prefix(b"-")?.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()
}

/// Returns the protocol of the answer if it is not that of Redis.
fn other_protocol(answer: &[u8]) -> Option<Cause> {
    match (Found::of(answer), answer) {
        (Found::Tls, _) => Some(Cause::Tls),
        (Found::Http | Found::Http2, _) | (_, [b'<', ..]) => Some(Cause::NotRedis("HTTP")),
        (_, [first, ..]) if REPLIES.contains(first) => None,
        _ => Some(Cause::NotRedis("another protocol")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_redis_is_named_by_its_first_bytes() {
        for (answer, cause) in [
            (&b"+PONG\r\n"[..], None),
            (b"-NOAUTH Authentication required.\r\n", None),
            (b"HTTP/1.1 400 Bad Request\r\n", Some(Cause::NotRedis("HTTP"))),
            (b"<!DOCTYPE HTML>", Some(Cause::NotRedis("HTTP"))),
            (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", Some(Cause::NotRedis("HTTP"))),
            (b"\x15\x03\x01\x00\x02\x02\x46", Some(Cause::Tls)),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Some(Cause::NotRedis("another protocol"))),
            (b"ERROR\r\n", Some(Cause::NotRedis("another protocol"))),
        ] {
            assert_eq!(other_protocol(answer), cause, "{}", answer.escape_ascii());
        }
    }
}
