//! The listeners of all ports.

use anyhow::Context as _;
use tokio::net::TcpListener;

use super::descriptors::{self, Shares};
use super::options;
use super::port::{Listener, Port};
use super::unix;
use crate::settings::{Address, Settings};

/// The listeners, open before anything says so.
pub(super) struct Ports {
    pub(super) grpc: Port,
    pub(super) http: TcpListener,
    pub(super) debug: Option<TcpListener>,
    pub(super) statistics: Option<TcpListener>,
    /// So many connections HTTP may have at once.
    pub(super) http_connections: usize,
}

impl Ports {
    pub(super) async fn open(settings: &Settings, workers: usize, to_redis: usize) -> anyhow::Result<Ports> {
        let limit = descriptors::raise_limit();
        let wanted = options::connections(settings);
        let shares = Shares::of(limit, wanted, workers, to_redis);
        shares.report(wanted, limit);
        let bind = async |host: &str, port, settings: &str| {
            let listener = TcpListener::bind((host, port)).await;
            listener.with_context(|| format!("cannot listen on {host}:{port} ({settings})"))
        };
        let listeners = &settings.listeners;
        let grpc = match &listeners.grpc_uds {
            Some(path) => {
                let (file, listener) = unix::listen(path, listeners.grpc_uds_mode)
                    .with_context(|| format!("cannot listen on {} (GRPC_UDS)", path.display()))?;
                Listener::Unix(file, listener)
            }
            None => Listener::Tcp(bind(&listeners.grpc_host, listeners.grpc_port, "GRPC_HOST, GRPC_PORT").await?),
        };
        let http = bind(&listeners.host, listeners.port, "HOST, PORT").await?;
        let debug = match listeners.debug_port {
            Some(port) => Some(bind(&listeners.debug_host, port, "DEBUG_HOST, DEBUG_PORT").await?),
            None => None,
        };
        let statistics = match settings.statistics.prometheus() {
            Some(Address { host: Some(host), port }) => Some(bind(host, *port, "PROMETHEUS_ADDR").await?),
            // Every address of IPv6 and IPv4, or of IPv4 where there is no other.
            Some(Address { host: None, port }) => match TcpListener::bind(("::", *port)).await {
                Ok(listener) => Some(listener),
                Err(_) => Some(bind("0.0.0.0", *port, "PROMETHEUS_ADDR").await?),
            },
            None => None,
        };
        Ok(Ports { debug, statistics, grpc: Port::new(grpc, shares.grpc), http, http_connections: shares.http })
    }
}
