//! How the command speaks to a running service.

use std::time::Duration;

use anyhow::Context as _;
use tonic::transport::{Channel, Endpoint};

/// A connection to `host:port`, on which every call is answered within `timeout` or fails.
///
/// # Errors
/// Where the address is none, or nobody listens there.
pub async fn connect(address: &str, timeout: Duration) -> anyhow::Result<Channel> {
    Endpoint::from_shared(format!("http://{address}"))
        .with_context(|| format!("{address:?} is not host:port"))?
        .connect_timeout(timeout)
        .timeout(timeout)
        .connect()
        .await
        .with_context(|| format!("nobody listens on {address}: is the service running? see --address"))
}

/// What a service says when it does not answer.
pub fn refusal(status: &tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", status.code(), status.message())
}
