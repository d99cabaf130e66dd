//! HTTP/2 over one connection. hyper passes calls to the rate limit service directly; tonic's server would add a router
//! and half a dozen layers, a tenth of the whole cost of a call.
//!
//! A connection is any two-way stream of bytes. The resources that one client can take are bounded: its calls, its
//! half-received and unread bytes, its headers, and the time to begin, to send a message, and to stay connected.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::service::Routes;

use super::Service;
use super::activity::Activity;
use super::calls::Calls;
use super::executor::{self, CallExecutor, Handle};
use super::front;
use super::options::{ConnectionOptions, FAREWELL, Transport, half_received, spread};
use super::preface;
use super::preface::NotHttp2;
use super::session::Session;
use super::unsent;
use crate::store::Store;
use crate::wire::RateLimitServiceServer;

/// Silence after which a client is pinged, and the time limit for its answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

/// Number of calls that a client may cancel before they begin. A proxy cancels all late calls at once, and hyper's
/// default of 20 would end its connection just when the load is highest. One poll cannot read more than these: its last
/// read may exceed the budget by one frame, and a cancelled call takes one frame for its headers and one of four bytes.
const GIVEN_UP: usize = (executor::BYTES + MAX_FRAME) / (FRAME_HEADER + FRAME_HEADER + 4);
const MAX_FRAME: usize = 16 * 1024;
const FRAME_HEADER: usize = 9;

/// Bytes that a client may send before they are read: of one call, the default of HTTP/2, and of all calls together.
/// Reading them makes room for more.
const STREAM_WINDOW: u32 = 65_535;
const CONNECTION_WINDOW: u32 = 256 * 1024;
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
        Begun(connection): Begun<impl AsyncRead + AsyncWrite + Send + Unpin + 'static>,
        activity: Arc<Activity>,
        stop: impl Future<Output = ()>,
    ) {
        match self.options.transport {
            Transport::Front => {
                let parts = (Arc::clone(&self.service), self.others.clone(), &self.options);
                front::serve(connection, parts, activity, stop).await;
            }
            Transport::Hyper => self.serve_by_hyper(connection, activity, stop).await,
        }
    }

    async fn serve_by_hyper(
        &self,
        connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        activity: Arc<Activity>,
        stop: impl Future<Output = ()>,
    ) {
        let session = Session::new(half_received(&self.options), activity);
        let stop = async {
            tokio::select! {
                () = stop => {}
                () = session.unsent.overdue() => tracing::debug!("a client does not read its responses"),
            }
        };
        let mut stop = pin!(stop.fuse());
        let calls = Arc::new(Calls {
            service: RateLimitServiceServer::from_arc(Arc::clone(&self.service))
                .max_decoding_message_size(self.options.max_message_bytes),
            others: self.others.clone(),
            session: Arc::clone(&session),
            max_message_bytes: self.options.max_message_bytes,
        });
        let mut executor = CallExecutor::default();
        let connection = TokioIo::new(executor.budgeted(connection, preface::PREFACE));
        let answer = service_fn(move |request| Arc::clone(&calls).answer(request));
        let mut serving = pin!(self.http(executor.handle()).serve_connection(connection, answer));
        tokio::select! {
            // Polled before the others, since polling it determines whether answers are unsent.
            biased;
            () = drive(&mut executor, serving.as_mut(), &session) => return,
            () = tokio::time::sleep(spread(self.options.max_age, fastrand::f64())) => {}
            () = &mut stop => {}
        }
        serving.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(self.options.max_age_grace, async {
            if !stop.is_terminated() {
                tokio::select! {
                    biased;
                    () = drive(&mut executor, serving.as_mut(), &session) => return,
                    () = stop => {}
                }
            }
            session.drain();
            while tokio::time::timeout(FAREWELL, drive(&mut executor, serving.as_mut(), &session)).await.is_err()
                && session.is_deciding()
            {}
        })
        .await;
    }

    fn http(&self, executor: Handle) -> http2::Builder<Handle> {
        let mut http = http2::Builder::new(executor);
        http.timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .max_concurrent_streams(self.options.max_concurrent_streams)
            .max_pending_accept_reset_streams(GIVEN_UP)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(unsent::MAX_UNSENT)
            .auto_date_header(false);
        http
    }
}

/// Polls a connection and its calls until it ends. Its error is ignored: the client disconnected.
async fn drive<C: Future>(executor: &mut CallExecutor, connection: Pin<&mut C>, session: &Session) {
    let mut driven = pin!(executor.drive(connection));
    poll_fn(|cx| {
        let polled = driven.as_mut().poll(cx);
        session.polled();
        polled.map(drop)
    })
    .await;
}
