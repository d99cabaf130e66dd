//! The connection to a management server, and the detection of a dead one.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Uri};

use super::{HostPort, Options, StreamError};
use crate::connect::{self, Connector, causes};

/// Interval of HTTP/2 pings to the server. They detect a process that hangs while its kernel keeps the TCP connection
/// alive. By default, a server in Go closes connections that ping more often than every five minutes.
pub const PING_INTERVAL: Duration = Duration::from_secs(5 * 60 + 10);
/// Longest time for a ping's answer.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of a response that may be in flight. With gRPC's default of 64 KiB, a large response takes one round trip for
/// every 64 KiB.
const WINDOW_BYTES: u32 = 1024 * 1024;

/// Connects to the server that the options name.
pub(super) async fn connect(options: &Options) -> Result<Channel, StreamError> {
    let unreachable = |reason: String| StreamError::Unreachable(reason);
    let HostPort { host, port } = &options.server;
    let uri = format!("http://{}", options.server);
    let uri: Uri = uri.parse().map_err(|_| unreachable(format!("{host}:{port} is not an address")))?;
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
