//! TLS handshakes: with a timeout, without delaying other work on the thread, and with a reason on failure.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage, OtherError};
use tokio_rustls::server::TlsStream;

use super::server::ServerTls;
use super::verify::WrongName;

/// Timeout of a handshake.
const TIME: Duration = Duration::from_secs(10);
/// Timeout for a rejected client to close the connection.
const FAREWELL: Duration = Duration::from_secs(1);

/// Lets the handshakes of one thread proceed in turns. A step of a handshake takes up to a millisecond of computing, so
/// many clients that connect at once would delay all other answers. After each step, all other tasks that are ready run
/// first.
#[derive(Debug)]
pub struct Turns(Arc<Semaphore>);

/// Failure of a handshake.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer does not use TLS.
    PlainText,
    /// The handshake timed out.
    Timeout,
    /// The peer closed the connection.
    Closed,
    /// The client must present a certificate, and presents none.
    NoCertificate,
    /// The certificate is not signed by a trusted authority.
    Untrusted(CertificateError),
    /// The certificate has expired, or is not valid yet.
    Expired(CertificateError),
    /// The certificate has another name.
    WrongName(String),
    /// The certificate has no names at all.
    Nameless(String),
    /// The peer rejects our certificate, or requires something that we do not offer.
    Refused(AlertDescription),
    /// Both sides have no version, cipher suite or protocol in common.
    NothingInCommon(Error),
    /// Another error.
    Broken(Error),
}

impl Turns {
    /// Creates the turns of a thread.
    pub fn new() -> Turns {
        Turns(Arc::new(Semaphore::new(1)))
    }

    /// Polls a future, one turn per poll.
    async fn take<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            // An error would mean that the semaphore is closed, which never happens.
            let turn = Arc::clone(&self.0).acquire_owned().await;
            let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
            // Releases the turn in a new task at the end of the thread's queue: all tasks queued before run first.
            tokio::spawn(async move { drop(turn) });
            if let Poll::Ready(output) = polled {
                return output;
            }
            // The polled future has registered this task's waker, so wait for one wake-up.
            let mut is_woken = false;
            poll_fn(|_| if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        }
    }
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::new()
    }
}

/// Performs the handshake on a connection.
///
/// # Errors
/// If it fails or times out.
pub async fn accept<C>(server: &ServerTls, turns: &Turns, connection: C) -> Result<TlsStream<C>, HandshakeError>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = TlsAcceptor::from(Arc::clone(&server.config)).accept(connection).into_fallible();
    match timeout(TIME, turns.take(handshake)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err((error, connection))) => {
            part(connection).await;
            Err(HandshakeError::of(&error))
        }
        Err(_) => Err(HandshakeError::Timeout),
    }
}

/// Closes a connection so that the client receives the reason. The client keeps sending until it reads the alert;
/// closing with its data unread would reset the connection and discard the alert.
async fn part(mut connection: impl AsyncRead + AsyncWrite + Unpin) {
    // If this fails, the client has gone.
    let _ = connection.shutdown().await;
    let mut rest = [0; 1024];
    let heard = async { while connection.read(&mut rest).await.is_ok_and(|length| length > 0) {} };
    let _ = timeout(FAREWELL, heard).await;
}

impl HandshakeError {
    /// Name of a completed handshake in metrics.
    pub const DONE: &'static str = "done";

    /// Names of all outcomes in metrics.
    pub const OUTCOMES: [&'static str; 11] = [
        HandshakeError::DONE,
        "plain_text",
        "timeout",
        "closed",
        "no_certificate",
        "untrusted",
        "expired",
        "wrong_name",
        "refused",
        "nothing_in_common",
        "broken",
    ];

    /// Returns the name of this failure in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            HandshakeError::PlainText => "plain_text",
            HandshakeError::Timeout => "timeout",
            HandshakeError::Closed => "closed",
            HandshakeError::NoCertificate => "no_certificate",
            HandshakeError::Untrusted(_) => "untrusted",
            HandshakeError::Expired(_) => "expired",
            HandshakeError::WrongName(_) | HandshakeError::Nameless(_) => "wrong_name",
            HandshakeError::Refused(_) => "refused",
            HandshakeError::NothingInCommon(_) => "nothing_in_common",
            HandshakeError::Broken(_) => "broken",
        }
    }

    /// Returns the TLS error inside an error of a connection; any other error means that the connection is closed.
    pub fn of(error: &io::Error) -> HandshakeError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(error) => HandshakeError::of_rustls(error),
            None => HandshakeError::Closed,
        }
    }

    /// Classifies an error of rustls.
    pub fn of_rustls(error: &Error) -> HandshakeError {
        match error {
            Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
                HandshakeError::PlainText
            }
            Error::NoCertificatesPresented => HandshakeError::NoCertificate,
            Error::InvalidCertificate(wrong) => HandshakeError::of_certificate(wrong),
            Error::AlertReceived(alert) => HandshakeError::Refused(*alert),
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => HandshakeError::NothingInCommon(error.clone()),
            other => HandshakeError::Broken(other.clone()),
        }
    }

    fn of_certificate(error: &CertificateError) -> HandshakeError {
        use CertificateError::{
            Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext, Other,
        };
        match error {
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. } => {
                HandshakeError::Expired(error.clone())
            }
            NotValidForNameContext { expected, presented } if presented.is_empty() => {
                let kind = if matches!(expected, ServerName::IpAddress(_)) { "IP" } else { "DNS" };
                HandshakeError::Nameless(format!(
                    "openssl req -x509 -addext 'subjectAltName={kind}:{}' makes one that has this name",
                    expected.to_str()
                ))
            }
            NotValidForName | NotValidForNameContext { .. } => HandshakeError::WrongName(error.to_string()),
            Other(OtherError(other)) if other.is::<WrongName>() => HandshakeError::WrongName(other.to_string()),
            other => HandshakeError::Untrusted(other.clone()),
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::PlainText => f.write_str("the peer does not use TLS"),
            HandshakeError::Timeout => write!(f, "no TLS handshake within {TIME:?}"),
            HandshakeError::Closed => f.write_str("the peer closed the connection during the TLS handshake"),
            HandshakeError::NoCertificate => f.write_str("the peer sent no certificate"),
            HandshakeError::Untrusted(error) => write!(f, "its certificate is not trusted: {}", untrusted(error)),
            HandshakeError::Expired(error) => write!(f, "its certificate has expired or is not valid yet: {error}"),
            HandshakeError::WrongName(error) => write!(f, "its certificate has another name: {error}"),
            HandshakeError::Nameless(advice) => write!(f, "its certificate has no name (no subjectAltName): {advice}"),
            HandshakeError::Refused(alert) => write!(f, "the peer rejected the handshake: {alert:?}"),
            HandshakeError::NothingInCommon(error) => {
                write!(f, "no TLS version, cipher or protocol in common: {error}")
            }
            HandshakeError::Broken(error) => write!(f, "the TLS handshake failed: {error}"),
        }
    }
}

/// Returns why a certificate is not trusted, in words and not in the names of rustls.
fn untrusted(error: &CertificateError) -> String {
    let named = match error {
        CertificateError::UnknownIssuer => return "no trusted authority has signed it".to_owned(),
        CertificateError::BadEncoding => return "it is not an X.509 certificate of version 3".to_owned(),
        CertificateError::Other(OtherError(other)) => other.to_string(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            return "its extendedKeyUsage does not permit this use".to_owned();
        }
        other => other.to_string(),
    };
    if named == "CaUsedAsEndEntity" {
        return "it is marked as an authority (CA:TRUE), as openssl req -x509 makes it, and can only be trusted by \
                naming exactly this certificate"
            .to_owned();
    }
    // The rest are names of variants, such as UnsupportedNameType.
    let name: String = named.chars().take_while(|char| char.is_ascii_alphanumeric() || *char == ' ').collect();
    let separate =
        |char: char| if char.is_ascii_uppercase() { vec![' ', char.to_ascii_lowercase()] } else { vec![char] };
    name.chars().flat_map(separate).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Waits for one round of the thread's queue, in which all other ready tasks run.
    async fn next_round() {
        let mut is_over = false;
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    #[test]
    fn no_name_of_a_variant_is_shown() {
        let other = |text: &str| CertificateError::Other(OtherError(Arc::from(Box::from(text))));
        for (error, words) in [
            (CertificateError::UnknownIssuer, "no trusted authority has signed it"),
            (CertificateError::BadSignature, "bad signature"),
            (other("PathLenConstraintViolated"), "path len constraint violated"),
        ] {
            assert_eq!(untrusted(&error), words);
        }
        assert!(untrusted(&other("CaUsedAsEndEntity")).contains("naming exactly this certificate"));
    }

    #[tokio::test]
    async fn between_two_steps_of_handshakes_others_have_their_turn() {
        const CROWD: u32 = 100;
        let (turns, steps) = (Arc::new(Turns::new()), Arc::new(AtomicU32::new(0)));
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let (turns, steps) = (Arc::clone(&turns), Arc::clone(&steps));
                let handshake = async move {
                    for _ in 0..2 {
                        steps.fetch_add(1, Ordering::Relaxed);
                        next_round().await;
                    }
                };
                tokio::spawn(async move { turns.take(handshake).await })
            })
            .collect();
        let other = tokio::spawn(async move {
            let (mut before, mut longest) = (0, 0);
            while before < 2 * CROWD {
                next_round().await;
                let now = steps.load(Ordering::Relaxed);
                (longest, before) = (longest.max(now - before), now);
            }
            longest
        });
        let longest = other.await.unwrap();
        assert!(longest <= 2, "{longest} steps at a stretch");
        for handshake in crowd {
            handshake.await.unwrap();
        }
    }
}
