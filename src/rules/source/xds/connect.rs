//! The connection to a management server, and how its silent end is noticed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{HostPort, Options, StreamError};

/// The longest that it takes to be connected, name and TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// A machine that is gone answers no probe of TCP: the connection ends 45 seconds after its last word.
const PROBE_AFTER: Duration = Duration::from_secs(20);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 5;

/// How often a server has to answer a ping of HTTP/2: a process that hangs has a system that answers for it. A server
/// in Go closes connections that ping more often than every five minutes, unless it says otherwise.
pub const PING_INTERVAL: Duration = Duration::from_secs(5 * 60 + 10);
/// And how soon.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How much may be on its way of a response before it is taken: with gRPC's 64 KiB a large one takes a round trip for
/// each of these.
const WINDOW_BYTES: u32 = 1024 * 1024;

/// What bytes come and go by.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

/// Makes a connection a secure one.
pub type Handshake = Arc<dyn Fn(TcpStream) -> BoxFuture<'static, io::Result<Box<dyn Connection>>> + Send + Sync>;

/// Connects to the server that the options name.
pub(super) async fn connect(options: &Options) -> Result<Channel, StreamError> {
    let unreachable = |reason: String| StreamError::Unreachable(reason);
    let HostPort { host, port } = &options.server;
    let uri = format!("http://{}", options.server);
    let uri: Uri = uri.parse().map_err(|_| unreachable(format!("{host}:{port} is no address")))?;
    let endpoint = Endpoint::from(uri)
        .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .map_err(|error| unreachable(error.to_string()))?
        .http2_keep_alive_interval(options.ping_interval)
        .keep_alive_timeout(PING_TIMEOUT.min(options.ping_interval))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let connector = Connector { tcp: tcp(), handshake: options.handshake.clone() };
    match tokio::time::timeout(CONNECT, endpoint.connect_with_connector(connector)).await {
        Ok(connected) => connected.map_err(|error| unreachable(causes(&error))),
        Err(_) => Err(unreachable(format!("no connection within {CONNECT:?}"))),
    }
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(PROBE_AFTER));
    tcp.set_keepalive_interval(Some(PROBE_INTERVAL));
    tcp.set_keepalive_retries(Some(PROBES));
    tcp
}

/// An error with those that it comes from, each once.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut all: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        // Many repeat the words of their cause.
        if !all.iter().any(|known| known.contains(&text)) {
            all.push(text);
        }
        next = error.source();
    }
    // The outermost is always tonic's "transport error".
    let rest = if all.len() > 1 { &all[1..] } else { &all[..] };
    rest.join(": ")
}

#[derive(Clone)]
struct Connector {
    tcp: HttpConnector,
    handshake: Option<Handshake>,
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
            let connection = match handshake {
                Some(handshake) => handshake(connection).await?,
                None => Box::new(connection) as Box<dyn Connection>,
            };
            Ok(TokioIo::new(connection))
        })
    }
}
