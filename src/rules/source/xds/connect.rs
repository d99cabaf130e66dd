//! The connection to a management server, and how its silent end is noticed.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Uri};

use super::{HostPort, Options, StreamError};
use crate::connect::{self, Connector, causes};

/// How often a server has to answer a ping of HTTP/2: a process that hangs has a system that answers for it. A server
/// in Go closes connections that ping more often than every five minutes, unless it says otherwise.
pub const PING_INTERVAL: Duration = Duration::from_secs(5 * 60 + 10);
/// And how soon.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How much may be on its way of a response before it is taken: with gRPC's 64 KiB a large one takes a round trip for
/// each of these.
const WINDOW_BYTES: u32 = 1024 * 1024;

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
    let connector = Connector::new(options.handshake.clone());
    match tokio::time::timeout(connect::TIMEOUT, endpoint.connect_with_connector(connector)).await {
        Ok(connected) => connected.map_err(|error| unreachable(causes(&error))),
        Err(_) => Err(unreachable(format!("no connection within {:?}", connect::TIMEOUT))),
    }
}
