//! What answers on the gRPC port, and where.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::port::Port;
use super::workers::Workers;
use crate::grpc::Server;
use crate::store::Store;
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

/// Serves each connection on the worker that has the fewest.
pub(super) fn serve<S: Store>(port: Port, workers: Arc<Workers>, servers: Vec<Arc<Server<S>>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let serve = move |connection, permit| {
            workers.run(|worker, mut stop| {
                let server = Arc::clone(&servers[worker]);
                async move {
                    let _permit = permit;
                    match TcpStream::from_std(connection) {
                        Ok(connection) => server.serve(connection, stop.requested()).await,
                        Err(error) => tracing::debug!(%error, "a connection is lost"),
                    }
                }
            });
        };
        port.hand_on(serve).await;
    })
}
