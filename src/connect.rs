//! Connections to the servers that this process is a client of: TCP that detects a dead peer, and optional TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::{self as pooled, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// Timeout of connecting, including name lookup and TLS.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A machine that is gone answers no TCP probes, so the connection ends 45 seconds after its last data.
const PROBE_AFTER: Duration = Duration::from_secs(20);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 5;

/// A connection as a stream of bytes.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

/// Tells a connection pool that the connection has no special properties.
impl pooled::Connection for Box<dyn Connection> {
    fn connected(&self) -> pooled::Connected {
        pooled::Connected::new()
    }
}

/// Adds TLS to a connection.
pub type Handshake = Arc<dyn Fn(TcpStream) -> BoxFuture<'static, io::Result<Box<dyn Connection>>> + Send + Sync>;

/// Connects to the host and port of a URL. The scheme only sets the default port: TLS is used if there is a handshake,
/// and not without one.
#[derive(Clone)]
pub struct Connector {
    tcp: HttpConnector,
    handshake: Option<Handshake>,
}

impl Connector {
    /// Creates a connector with an optional handshake.
    pub fn new(handshake: Option<Handshake>) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(TIMEOUT));
        tcp.set_keepalive(Some(PROBE_AFTER));
        tcp.set_keepalive_interval(Some(PROBE_INTERVAL));
        tcp.set_keepalive_retries(Some(PROBES));
        Connector { tcp, handshake }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Connection>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, handshake) = (self.tcp.call(uri), self.handshake.clone());
        Box::pin(async move {
            let connection = connecting.await?.into_inner();
            Ok(TokioIo::new(match handshake {
                Some(handshake) => handshake(connection).await?,
                None => Box::new(connection) as Box<dyn Connection>,
            }))
        })
    }
}

/// Joins an error's causes, each once, without the outermost error.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut all: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        // Many errors repeat the text of their cause.
        if !all.iter().any(|known| known.contains(&text)) {
            all.push(text);
        }
        next = error.source();
    }
    // The outermost error only says that the connection failed: tonic's "transport error", hyper's "tcp connect error".
    let rest = if all.len() > 1 { &all[1..] } else { &all[..] };
    rest.join(": ")
}
