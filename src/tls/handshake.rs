//! The handshake: within its time, without keeping others from theirs, and with a reason where it fails.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage, OtherError};
use tokio_rustls::server::TlsStream;

use super::server::ServerTls;
use super::verify::WrongName;

/// How long a client may take for all of it.
const TIME: Duration = Duration::from_secs(10);

/// The turns of one thread. A step of a handshake takes up to a millisecond of computing, so that a crowd of clients
/// that come at once would hold up the answers of all others. After each step whoever else is ready has its turn first.
#[derive(Debug)]
pub struct Turns(Semaphore);

/// Why no connection came about.
#[derive(Debug)]
pub enum HandshakeError {
    /// What came is no TLS.
    PlainText,
    /// It did not come to an end in its time.
    Timeout,
    /// The other side went, or broke off without a word.
    Closed,
    /// A client that has to show a certificate shows none.
    NoCertificate,
    /// A certificate that nobody signed who is trusted.
    Untrusted(CertificateError),
    /// A certificate that is over, or not valid yet.
    Expired(CertificateError),
    /// A certificate of somebody else.
    WrongName(String),
    /// The other side does not take what it is shown, or misses something.
    Refused(AlertDescription),
    /// No version, suite or protocol that both have.
    NothingInCommon(Error),
    /// Anything else.
    Broken(Error),
}

impl Turns {
    /// Of a thread that has none yet.
    pub fn new() -> Turns {
        Turns(Semaphore::new(1))
    }

    /// Polls it in turns.
    async fn take<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            // An error would mean that it is closed, which it never is.
            let turn = self.0.acquire().await;
            if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
                return output;
            }
            drop(turn);
            // What was polled has left word where this task is to be woken.
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

/// Makes a connection one of TLS.
///
/// # Errors
/// Where that fails, or takes too long.
pub async fn accept<C>(server: &ServerTls, turns: &Turns, connection: C) -> Result<TlsStream<C>, HandshakeError>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = TlsAcceptor::from(Arc::clone(&server.config)).accept(connection);
    match timeout(TIME, turns.take(handshake)).await {
        Ok(done) => done.map_err(|error| HandshakeError::of(&error)),
        Err(_) => Err(HandshakeError::Timeout),
    }
}

impl HandshakeError {
    /// The word that metrics have for a handshake that came about.
    pub const DONE: &'static str = "done";

    /// The words that metrics have for how a handshake ends.
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

    /// The one that this is about.
    pub fn kind(&self) -> &'static str {
        match self {
            HandshakeError::PlainText => "plain_text",
            HandshakeError::Timeout => "timeout",
            HandshakeError::Closed => "closed",
            HandshakeError::NoCertificate => "no_certificate",
            HandshakeError::Untrusted(_) => "untrusted",
            HandshakeError::Expired(_) => "expired",
            HandshakeError::WrongName(_) => "wrong_name",
            HandshakeError::Refused(_) => "refused",
            HandshakeError::NothingInCommon(_) => "nothing_in_common",
            HandshakeError::Broken(_) => "broken",
        }
    }

    /// What an error of a connection says, where it is one of TLS.
    pub fn of(error: &io::Error) -> HandshakeError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(error) => HandshakeError::of_rustls(error),
            None => HandshakeError::Closed,
        }
    }

    /// The same of what rustls says.
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
            NotValidForName | NotValidForNameContext { .. } => HandshakeError::WrongName(error.to_string()),
            Other(OtherError(other)) if other.is::<WrongName>() => HandshakeError::WrongName(other.to_string()),
            other => HandshakeError::Untrusted(other.clone()),
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::PlainText => f.write_str("it speaks no TLS"),
            HandshakeError::Timeout => write!(f, "no TLS handshake within {TIME:?}"),
            HandshakeError::Closed => f.write_str("it goes within the TLS handshake"),
            HandshakeError::NoCertificate => f.write_str("it shows no certificate"),
            HandshakeError::Untrusted(error) => write!(f, "its certificate is not trusted: {error}"),
            HandshakeError::Expired(error) => write!(f, "its certificate is not valid now: {error}"),
            HandshakeError::WrongName(error) => write!(f, "its certificate is of somebody else: {error}"),
            HandshakeError::Refused(alert) => write!(f, "it refuses: {alert:?}"),
            HandshakeError::NothingInCommon(error) => write!(f, "it has nothing in common: {error}"),
            HandshakeError::Broken(error) => write!(f, "the TLS handshake fails: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    #[tokio::test]
    async fn between_two_steps_of_handshakes_others_have_their_turn() {
        const CROWD: u32 = 100;
        let (turns, steps) = (Rc::new(Turns::new()), Rc::new(Cell::new(0)));
        let local = LocalSet::new();
        for _ in 0..CROWD {
            let (turns, steps) = (Rc::clone(&turns), Rc::clone(&steps));
            local.spawn_local(async move {
                turns
                    .take(async {
                        for _ in 0..2 {
                            steps.set(steps.get() + 1);
                            yield_now().await;
                        }
                    })
                    .await;
            });
        }
        let longest = local.run_until(async {
            let (mut before, mut longest) = (0, 0);
            while steps.get() < 2 * CROWD {
                spawn_local(async {}).await.unwrap();
                longest = longest.max(steps.get() - before);
                before = steps.get();
            }
            longest
        });
        let longest = longest.await;
        assert!(longest <= 3, "{longest} steps at a stretch");
    }
}
