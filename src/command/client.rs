//! How the command speaks to a running service.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tonic::transport::{Channel, Endpoint};

/// Where a running service is.
#[derive(Args)]
pub(super) struct ServiceAddress {
    /// Where the service listens for gRPC. Unset: this machine, on the port that GRPC_PORT names or on 8081.
    #[arg(long, short, value_name = "HOST:PORT")]
    address: Option<String>,

    /// For the default above: inside a container, the variable that moved the service moves its clients too.
    #[arg(long, env = "GRPC_PORT", default_value = "8081", hide = true)]
    grpc_port: u16,
}

/// A connection on which every call is answered within `timeout` or fails.
///
/// # Errors
/// Where the address is none, or nobody answers there.
pub(super) async fn connect(service: &ServiceAddress, timeout: Duration) -> anyhow::Result<Channel> {
    let address = match &service.address {
        Some(address) => address.clone(),
        None => format!("localhost:{}", service.grpc_port),
    };
    Endpoint::from_shared(format!("http://{address}"))
        .with_context(|| format!("{address:?} is not host:port"))?
        .connect_timeout(timeout)
        .timeout(timeout)
        .connect()
        .await
        .with_context(|| format!("cannot reach {address}: is the service running? see --address"))
}

/// What a service says when it does not answer.
pub(super) fn refusal(status: &tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", status.code(), status.message())
}
