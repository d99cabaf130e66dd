//! Connections that tonic does not make itself: over a Unix socket, and over TLS.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tonic::codegen::Service;
use tonic::transport::Uri;

use super::secrecy::Secret;
use crate::connect::Connection;
use crate::tls::HandshakeError;

/// Prefix of a path.
pub(crate) const UNIX: &str = "unix:";

/// Address of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `host:port`.
    Tcp(String),
    /// A path.
    Unix(String),
}

/// Makes the connections.
pub(crate) struct Connector {
    target: Target,
    tls: Option<Secret>,
    heard: Heard,
}

/// Last error of TLS on a connection. tonic and h2 keep only its text. A server may reject this client's certificate
/// after the handshake, with the first bytes.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Option<HandshakeError>>>);

/// A connection that records errors of TLS.
struct Overheard<C> {
    connection: C,
    heard: Heard,
}

type Connected = TokioIo<Box<dyn Connection>>;

impl Target {
    pub(crate) fn of(address: &str) -> Target {
        match address.strip_prefix(UNIX) {
            Some(path) => Target::Unix(path.to_owned()),
            None => Target::Tcp(address.to_owned()),
        }
    }

    /// Returns the name of the service in HTTP/2.
    pub(crate) fn authority(&self) -> &str {
        match self {
            Target::Tcp(address) => address,
            Target::Unix(_) => "localhost",
        }
    }

    /// Returns the name that its certificate must have.
    pub(crate) fn host(&self) -> &str {
        let host = self.authority().rsplit_once(':').map_or(self.authority(), |(host, _)| host);
        host.trim_matches(['[', ']'])
    }

    async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Target::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

impl Connector {
    pub(crate) fn new(target: Target, tls: Option<Secret>, heard: Heard) -> Connector {
        Connector { target, tls, heard }
    }
}

impl Heard {
    fn note(&self, error: &io::Error) {
        match HandshakeError::of(error) {
            // A closed connection is not an error of TLS.
            HandshakeError::Closed => {}
            said => *self.0.lock() = Some(said),
        }
    }

    pub(crate) fn take(&self) -> Option<HandshakeError> {
        self.0.lock().take()
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Overheard<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.connection).poll_read(cx, buffer);
        read.map_err(|error| {
            self.heard.note(&error);
            error
        })
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Overheard<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

impl Service<Uri> for Connector {
    type Response = Connected;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Connected>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (target, tls, heard) = (self.target.clone(), self.tls.clone(), self.heard.clone());
        Box::pin(async move {
            let connection = target.connect().await?;
            let connection = match tls {
                None => connection,
                Some((client, name)) => {
                    let connected = client.connect(name, connection).await;
                    let connection = connected.inspect_err(|error| heard.note(error))?;
                    Box::new(Overheard { connection, heard })
                }
            };
            Ok(TokioIo::new(connection))
        })
    }
}

/// Returns the root cause of an error.
pub(crate) fn root(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}
