//! The listeners of all ports.

use anyhow::Context as _;
use tokio::net::TcpListener;

use super::descriptors::{self, Shares};
use super::options;
use super::port::Closed;
use super::{socket, unix};
use crate::settings::{Address, Settings};

/// The ports of the process. HTTP listens from the beginning; gRPC listens once there are rules to answer by, or a
/// management server that may send them.
pub(super) struct Ports {
    pub(super) grpc: Closed,
    pub(super) http: TcpListener,
    pub(super) debug: Option<TcpListener>,
    pub(super) statistics: Option<TcpListener>,
    /// Largest number of open HTTP connections.
    pub(super) http_connections: usize,
}

impl Ports {
    pub(super) async fn open(settings: &Settings, workers: usize, to_redis: usize) -> anyhow::Result<Ports> {
        let limit = descriptors::raise_limit();
        let wanted = options::connections(settings);
        let shares = Shares::of(limit, wanted, workers, to_redis);
        shares.report(wanted, limit);
        let bind = async |host: &str, port, settings: &str| {
            let bound = socket::bind(host, port).await;
            bound.with_context(|| format!("cannot listen on {host}:{port} ({settings})"))
        };
        let listen = async |host: &str, port, settings: &str| -> anyhow::Result<TcpListener> {
            let listener = bind(host, port, settings).await?.listen();
            listener.with_context(|| format!("cannot listen on {host}:{port} ({settings})"))
        };
        let listeners = &settings.listeners;
        let grpc = match &listeners.grpc_uds {
            Some(path) => {
                unix::vacate(path).with_context(|| format!("cannot listen on {} (GRPC_UDS)", path.display()))?;
                Closed::unix(path.clone(), listeners.grpc_uds_mode, shares.grpc)
            }
            None => {
                let bound = bind(&listeners.grpc_host, listeners.grpc_port, "GRPC_HOST, GRPC_PORT").await?;
                Closed::tcp(bound, shares.grpc)
            }
        };
        let http = listen(&listeners.host, listeners.port, "HOST, PORT").await?;
        let debug = match listeners.debug_port {
            Some(port) => Some(listen(&listeners.debug_host, port, "DEBUG_HOST, DEBUG_PORT").await?),
            None => None,
        };
        let statistics = match settings.statistics.prometheus() {
            Some(Address { host, port }) => {
                let host = host.as_deref().unwrap_or("::");
                Some(listen(host, *port, "PROMETHEUS_ADDR").await?)
            }
            None => None,
        };
        Ok(Ports { debug, statistics, grpc, http, http_connections: shares.http })
    }
}
