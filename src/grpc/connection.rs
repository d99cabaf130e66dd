//! HTTP/2 over one connection. The rate limit service stands right behind hyper; tonic's own server would put a router
//! and half a dozen layers in front, a tenth of the whole cost of a call.
//!
//! A connection is any pair of streams of bytes. What one client can make it take has a bound: its calls, its
//! half-received and unread bytes, its headers, and the time to begin, to send a message, and to live.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::service::Routes;

use super::calls::Calls;
use super::executor::{self, CallExecutor, Handle};
use super::preface::NotHttp2;
use super::session::Session;
use super::{Service, preface};
use crate::store::Store;
use crate::wire::RateLimitServiceServer;

/// A client that has been silent so long is asked whether it is there, and has so long to say so.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

/// A client answers a GOAWAY at once. After this time the connection waits for it only while its requests are decided.
const FAREWELL: Duration = Duration::from_secs(2);

/// So many calls may be given up before they are begun: a proxy gives up all that is late in one go, and the 20 that
/// hyper bears by default would cost it the connection, just when there is most to do. More than these do not come in
/// one poll, whose last read may go beyond it by a frame: a call that is given up has a frame for its headers, and one
/// of four bytes.
const GIVEN_UP: usize = (executor::BYTES + MAX_FRAME) / (FRAME_HEADER + FRAME_HEADER + 4);
const MAX_FRAME: usize = 16 * 1024;
const FRAME_HEADER: usize = 9;

/// What a client may send of one call before it is read, HTTP/2's own default, and of all calls: what is read makes
/// room for more.
const STREAM_WINDOW: u32 = 65_535;
const CONNECTION_WINDOW: u32 = 256 * 1024;
/// So much of an answer waits for a client that does not read it; another message is made when it does.
const MAX_UNSENT: usize = 64 * 1024;
/// What a connection's half-received messages may take together, unless one message may be larger.
const HALF_RECEIVED: usize = 1024 * 1024;

/// What holds for every connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOptions {
    /// After this a client is asked to connect anew.
    pub max_age: Duration,
    /// And so much later the connection is closed, whatever is on its way.
    pub max_age_grace: Duration,
    /// The largest message that is read.
    pub max_message_bytes: usize,
    /// How many calls it has at once: what a client costs that asks and does not listen.
    pub max_concurrent_streams: u32,
}

/// A connection that has begun as HTTP/2 does.
pub struct Begun<C>(C);

/// Waits until a connection begins, for ten seconds at most.
///
/// # Errors
/// Where it does not, or not as HTTP/2 does.
pub async fn begin<C: AsyncRead + Unpin>(mut connection: C) -> Result<Begun<C>, NotHttp2> {
    preface::take(&mut connection).await.map(|()| Begun(connection))
}

/// Serves connections, all of one worker.
pub struct Server<S> {
    service: RateLimitServiceServer<Service<S>>,
    others: Routes,
    options: ConnectionOptions,
}

impl<S: Store> Server<S> {
    /// Calls for the rate limit service go to `service`, all else to `others`.
    pub fn new(service: Service<S>, others: Routes, options: ConnectionOptions) -> Server<S> {
        let service = RateLimitServiceServer::new(service).max_decoding_message_size(options.max_message_bytes);
        Server { service, others, options }
    }

    /// Serves a connection to its end. One that is old takes no new calls, and ends when those it has are answered.
    /// When `stop` comes it waits for no more than the requests that are being decided.
    pub async fn serve(
        &self,
        Begun(connection): Begun<impl AsyncRead + AsyncWrite + Send + Unpin + 'static>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = pin!(stop.fuse());
        let session = Session::new(HALF_RECEIVED.max(self.options.max_message_bytes));
        let calls = Arc::new(Calls {
            service: self.service.clone(),
            others: self.others.clone(),
            session: Arc::clone(&session),
            max_message_bytes: self.options.max_message_bytes,
        });
        let mut executor = CallExecutor::default();
        let connection = TokioIo::new(executor.budgeted(connection, preface::PREFACE));
        let answer = service_fn(move |request| Arc::clone(&calls).answer(request));
        let mut serving = pin!(self.http(executor.handle()).serve_connection(connection, answer));
        tokio::select! {
            // An error is a client that broke off.
            _ = executor.drive(serving.as_mut()) => return,
            () = tokio::time::sleep(self.options.max_age) => {}
            () = &mut stop => {}
        }
        serving.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(self.options.max_age_grace, async {
            if !stop.is_terminated() {
                tokio::select! {
                    _ = executor.drive(serving.as_mut()) => return,
                    () = stop => {}
                }
            }
            session.drain();
            while tokio::time::timeout(FAREWELL, executor.drive(serving.as_mut())).await.is_err()
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
            .max_send_buf_size(MAX_UNSENT)
            .auto_date_header(false);
        http
    }
}
