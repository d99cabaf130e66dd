//! Connections that tonic does not make by itself: over a Unix socket, and in TLS.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::rustls;
use tonic::codegen::Service;
use tonic::transport::Uri;

use super::secrecy::Secret;
use crate::tls::HandshakeError;

/// In front of a path.
pub(super) const UNIX: &str = "unix:";

/// Where a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// `host:port`.
    Tcp(String),
    /// A path.
    Unix(String),
}

/// Makes them.
pub(super) struct Connector {
    target: Target,
    tls: Option<Secret>,
}

pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

type Connected = TokioIo<Box<dyn Connection>>;

impl Target {
    pub(super) fn of(address: &str) -> Target {
        match address.strip_prefix(UNIX) {
            Some(path) => Target::Unix(path.to_owned()),
            None => Target::Tcp(address.to_owned()),
        }
    }

    /// What HTTP/2 calls it.
    pub(super) fn authority(&self) -> &str {
        match self {
            Target::Tcp(address) => address,
            Target::Unix(_) => "localhost",
        }
    }

    /// The name that its certificate has, if it is for it.
    pub(super) fn host(&self) -> &str {
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
    pub(super) fn new(target: Target, tls: Option<Secret>) -> Connector {
        Connector { target, tls }
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
        let (target, tls) = (self.target.clone(), self.tls.clone());
        Box::pin(async move {
            let connection = target.connect().await?;
            let connection = match tls {
                None => connection,
                Some((client, name)) => Box::new(client.connect(name, connection).await?),
            };
            Ok(TokioIo::new(connection))
        })
    }
}

/// What of TLS there is behind an error.
pub(super) fn handshake_error(error: &(dyn Error + 'static)) -> Option<HandshakeError> {
    let of_tls = |error: &(dyn Error + 'static)| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref()).or_else(|| error.downcast_ref::<rustls::Error>());
        inner.map(HandshakeError::of_rustls)
    };
    causes(error).find_map(of_tls)
}

/// Where an error comes from in the end.
pub(super) fn root(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}
