//! The listeners of both ports.

use anyhow::Context as _;
use tokio::net::TcpListener;

use super::descriptors::{self, Shares};
use super::options;
use super::port::Port;
use crate::settings::Settings;

/// The listeners, open before anything says so.
pub(super) struct Ports {
    pub(super) grpc: Port,
    /// And how many connections it may have.
    pub(super) http: (TcpListener, usize),
}

impl Ports {
    pub(super) async fn open(settings: &Settings, workers: usize, to_redis: usize) -> anyhow::Result<Ports> {
        let limit = descriptors::raise_limit();
        let wanted = options::connections(settings);
        let shares = Shares::of(limit, wanted, workers, to_redis);
        shares.tell(wanted, limit);
        let bind = async |host: &str, port, settings: &str| {
            let listener = TcpListener::bind((host, port)).await;
            listener.with_context(|| format!("cannot listen on {host}:{port} ({settings})"))
        };
        let grpc = bind(&settings.grpc_host, settings.grpc_port, "GRPC_HOST, GRPC_PORT").await?;
        let http = bind(&settings.host, settings.port, "HOST, PORT").await?;
        Ok(Ports { grpc: Port::new(grpc, "gRPC", shares.grpc), http: (http, shares.http) })
    }
}
