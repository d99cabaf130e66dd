//! The services on the gRPC port, and the admission of connections to it.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::places::Place;
use super::port::Port;
use super::stream::{Accepted, Peer, Stream};
use super::tls::Tls;
use super::workers::{Stop, Workers};
use crate::grpc::{self, Activity, Begun, NotHttp2, Server};
use crate::store::Store;
use crate::telemetry::Throttle;
use crate::tls::Turns;
use crate::wire;

/// Largest request for health or reflection, which consists of a name.
const MAX_NAME_BYTES: usize = 4 * 1024;

/// Returns the services for health and reflection.
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

/// Admission of connections before they are served.
pub(super) struct Entrance {
    tls: Option<Arc<Tls>>,
    /// Limits log lines about clients that use TLS on a port without it.
    strangers: Throttle,
}

/// The parts of one worker.
struct Seat<S> {
    server: Server<S>,
    turns: Turns,
}

impl Entrance {
    /// Admits connections through TLS if there is a configuration for it.
    pub(super) fn new(tls: Option<Arc<Tls>>) -> Arc<Entrance> {
        Arc::new(Entrance { tls, strangers: Throttle::default() })
    }

    /// Admits a connection. Returns `None` if it does not begin with a valid handshake or preface.
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
                        "a client uses TLS at the gRPC port, which does not: set GRPC_SERVER_USE_TLS, or turn TLS off \
                         in the client"
                    );
                }
            });
        }
    }
}

impl<S: Store> Seat<S> {
    /// Serves a connection until it ends, must stop, or loses its place.
    async fn serve(&self, entrance: &Entrance, accepted: Accepted, mut place: Place, mut stop: Stop) {
        let begun = tokio::select! {
            begun = entrance.admit(accepted, &self.turns) => begun,
            _ = place.lost() => None,
            () = stop.requested() => None,
        };
        let activity = Activity::new();
        let Some(begun) = begun.filter(|_| place.begun(&activity)) else { return };
        let leaving = Notify::new();
        let stop = async {
            tokio::select! {
                () = stop.requested() => {}
                () = leaving.notified() => {}
            }
        };
        let mut serving = pin!(self.server.serve(begun, activity, stop));
        tokio::select! {
            () = &mut serving => {}
            leave = place.lost() => if let Some(_leave) = leave {
                leaving.notify_one();
                serving.await;
            }
        }
    }
}

/// Serves each connection on the worker with the fewest jobs, once the port is open. Each worker has one of the
/// servers.
pub(super) fn serve<S: Store>(
    port: oneshot::Receiver<Port>,
    entrance: Arc<Entrance>,
    workers: Arc<Workers>,
    servers: impl Iterator<Item = Server<S>>,
) -> JoinHandle<()> {
    let seats: Vec<_> = servers.map(|server| Arc::new(Seat { server, turns: Turns::new() })).collect();
    tokio::spawn(async move {
        // Without a port the process is ending, and reports the reason elsewhere.
        let Ok(port) = port.await else { return std::future::pending().await };
        let serve = move |accepted, place| {
            workers.run(|worker, stop| {
                let (seat, entrance) = (Arc::clone(&seats[worker]), Arc::clone(&entrance));
                async move { seat.serve(&entrance, accepted, place, stop).await }
            });
        };
        port.hand_on(serve).await;
    })
}
