//! A connection from its preface to its end.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::service::Routes;

use super::calls::Calls;
use super::executor::{self, CallExecutor, Handle};
use super::session::Session;
use crate::grpc::Service;
use crate::grpc::activity::Activity;
use crate::grpc::bounds::{
    CONNECTION_WINDOW, FAREWELL, MAX_UNREAD_ANSWER, PONG, SILENCE, STREAM_WINDOW, half_received, spread,
};
use crate::grpc::options::ConnectionOptions;
use crate::grpc::preface;
use crate::store::Store;
use crate::wire::RateLimitServiceServer;

/// Number of calls that a client may cancel before they begin. A proxy cancels all late calls at once, and hyper's
/// default of 20 would end its connection just when the load is highest. One poll cannot read more than these: its last
/// read may exceed the budget by one frame, and a cancelled call takes one frame for its headers and one of four bytes.
const GIVEN_UP: usize = (executor::BYTES + MAX_FRAME) / (FRAME_HEADER + FRAME_HEADER + 4);
const MAX_FRAME: usize = 16 * 1024;
const FRAME_HEADER: usize = 9;

/// Serves a connection whose preface has been read, until it ends. An old connection accepts no new calls, and ends
/// when its calls are answered. When `stop` completes, or the client leaves an answer unread for too long, only the
/// requests being decided are awaited.
pub(in crate::grpc) async fn serve<S: Store>(
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    (service, others, options): (Arc<Service<S>>, Routes, &ConnectionOptions),
    activity: Arc<Activity>,
    stop: impl Future<Output = ()>,
) {
    let session = Session::new(half_received(options), activity);
    let stop = async {
        tokio::select! {
            () = stop => {}
            () = session.unsent.overdue() => tracing::debug!("a client does not read its responses"),
        }
    };
    let mut stop = pin!(stop.fuse());
    let calls = Arc::new(Calls {
        service: RateLimitServiceServer::from_arc(service).max_decoding_message_size(options.max_message_bytes),
        others,
        session: Arc::clone(&session),
        max_message_bytes: options.max_message_bytes,
    });
    let mut executor = CallExecutor::default();
    let connection = TokioIo::new(executor.budgeted(connection, preface::PREFACE));
    let answer = service_fn(move |request| Arc::clone(&calls).answer(request));
    let mut serving = pin!(http(executor.handle(), options).serve_connection(connection, answer));
    tokio::select! {
        // Polled before the others, since polling it determines whether answers are unsent.
        biased;
        () = drive(&mut executor, serving.as_mut(), &session) => return,
        () = tokio::time::sleep(spread(options.max_age, fastrand::f64())) => {}
        () = &mut stop => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(options.max_age_grace, async {
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

fn http(executor: Handle, options: &ConnectionOptions) -> http2::Builder<Handle> {
    let mut http = http2::Builder::new(executor);
    http.timer(TokioTimer::new())
        .keep_alive_interval(SILENCE)
        .keep_alive_timeout(PONG)
        .max_concurrent_streams(options.max_concurrent_streams)
        .max_pending_accept_reset_streams(GIVEN_UP)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(MAX_UNREAD_ANSWER)
        .auto_date_header(false);
    http
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
