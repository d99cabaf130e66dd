//! The connections of a worker, from any two-way stream of bytes to the server of HTTP/2 that was chosen.
//!
//! The resources that one client can take are bounded: its calls, its half-received and unread bytes, its headers, and
//! the time to begin, to send a message, and to stay connected.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tonic::service::Routes;

use super::activity::Activity;
use super::incoming::Incoming;
use super::options::{ConnectionOptions, Transport};
use super::preface::{self, NotHttp2};
use super::{Service, by_hyper, front};
use crate::store::Store;

/// A connection with its preface already received.
pub struct Begun<C>(C);

/// Waits for the preface of a connection, for at most ten seconds.
///
/// # Errors
/// If the client does not send it.
pub async fn begin<C: AsyncRead + Unpin>(mut connection: C) -> Result<Begun<C>, NotHttp2> {
    preface::take(&mut connection).await.map(|()| Begun(connection))
}

/// Serves the connections of one worker.
pub struct Server<S> {
    service: Arc<Service<S>>,
    others: Routes,
    options: ConnectionOptions,
}

impl<S: Store> Server<S> {
    /// Creates a server. Calls for the rate limit service go to `service`, all others to `others`.
    pub fn new(service: Service<S>, others: Routes, options: ConnectionOptions) -> Server<S> {
        Server { service: Arc::new(service), others, options }
    }

    /// Serves a connection until it ends, and records its use in `activity`. An old connection accepts no new calls,
    /// and ends when its calls are answered. When `stop` completes, or the client leaves an answer unread for too long,
    /// only the requests being decided are awaited.
    pub async fn serve(
        &self,
        Begun(connection): Begun<impl AsyncRead + AsyncWrite + Incoming + Send + Unpin + 'static>,
        activity: Arc<Activity>,
        stop: impl Future<Output = ()>,
    ) {
        let parts = (Arc::clone(&self.service), self.others.clone(), &self.options);
        match self.options.transport {
            Transport::Front => front::serve(connection, parts, activity, stop).await,
            Transport::Hyper => by_hyper::serve(connection, parts, activity, stop).await,
        }
    }
}
