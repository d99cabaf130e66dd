//! What answers on the gRPC port, and what a connection passes before it.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::beginnings::Beginning;
use super::port::Port;
use super::stream::{Accepted, Peer, Stream};
use super::tls::Tls;
use super::workers::{Stop, Workers};
use crate::grpc::{self, Begun, NotHttp2, Server};
use crate::store::Store;
use crate::telemetry::Throttle;
use crate::tls::Turns;
use crate::wire;

/// A request for health or reflection is a name, and no longer than this.
const MAX_NAME_BYTES: usize = 4 * 1024;

/// Health and reflection.
pub(super) fn others(health: HealthServer<impl Health>) -> anyhow::Result<Routes> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(wire::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(health.max_decoding_message_size(MAX_NAME_BYTES))
        .add_service(reflection().build_v1()?.max_decoding_message_size(MAX_NAME_BYTES))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(MAX_NAME_BYTES))
        .prepare())
}

/// What each connection passes before it is served.
pub(super) struct Entrance {
    tls: Option<Arc<Tls>>,
    /// Of clients that speak TLS where there is none.
    strangers: Throttle,
}

/// What one worker has.
struct Seat<S> {
    server: Server<S>,
    turns: Turns,
}

impl Entrance {
    /// By TLS, if it is there.
    pub(super) fn new(tls: Option<Arc<Tls>>) -> Arc<Entrance> {
        Arc::new(Entrance { tls, strangers: Throttle::default() })
    }

    /// Lets a connection in. `None`: it does not begin as it should.
    async fn admit(&self, accepted: Accepted, turns: &Turns) -> Option<Begun<Stream>> {
        let peer = accepted.peer;
        let plain = accepted.register().inspect_err(|error| tracing::debug!(%error, "a connection is lost")).ok()?;
        let stream = match &self.tls {
            None => Stream::Plain(plain),
            Some(tls) => tls.accept(plain, peer, turns).await?,
        };
        grpc::begin(stream).await.inspect_err(|wrong| self.tell(*wrong, peer)).ok()
    }

    fn tell(&self, wrong: NotHttp2, client: Peer) {
        if wrong == NotHttp2::Tls && self.tls.is_none() {
            self.strangers.log((), || {
                move |times| {
                    tracing::warn!(
                        %client,
                        times,
                        "a client speaks TLS at the gRPC port, which speaks none: set GRPC_SERVER_USE_TLS, or let \
                         the client do without"
                    );
                }
            });
        }
    }
}

impl<S: Store> Seat<S> {
    /// Serves a connection to its end, or until it stops.
    async fn serve(&self, entrance: &Entrance, accepted: Accepted, mut place: Beginning, mut stop: Stop) {
        let begun = tokio::select! {
            begun = entrance.admit(accepted, &self.turns) => begun,
            () = place.ended() => None,
            () = stop.requested() => None,
        };
        if let Some(begun) = begun
            && let Some(_permit) = place.begun()
        {
            self.server.serve(begun, stop.requested()).await;
        }
    }
}

/// Serves each connection on the worker that has the fewest; each worker has one of the servers.
pub(super) fn serve<S: Store>(
    port: Port,
    entrance: Arc<Entrance>,
    workers: Arc<Workers>,
    servers: impl Iterator<Item = Server<S>>,
) -> JoinHandle<()> {
    let seats: Vec<_> = servers.map(|server| Arc::new(Seat { server, turns: Turns::new() })).collect();
    tokio::spawn(async move {
        let serve = move |accepted, place| {
            workers.run(|worker, stop| {
                let (seat, entrance) = (Arc::clone(&seats[worker]), Arc::clone(&entrance));
                async move { seat.serve(&entrance, accepted, place, stop).await }
            });
        };
        port.hand_on(serve).await;
    })
}
