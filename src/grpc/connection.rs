//! HTTP/2 over one connection. Nearly every call is for the rate limit service, so that stands right behind hyper; tonic's own server would
//! put a router and half a dozen layers in front, a tenth of the whole cost of a call. What is asked now and then, health and
//! reflection, goes through tonic's router all the same.
//!
//! What is more than a worker can answer in time has to be kept out, not refused: to read a call and to say no takes half as long as to
//! answer it, so that at twice the load nothing would be left for answers. Hence a connection has a share of the calls that its worker
//! can take on at once, and HTTP/2 tells the proxy: what is beyond it waits there, or fails there at once, and costs nothing here.

use std::convert::Infallible;
use std::net;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service as _, http};
use tonic::server::NamedService;
use tonic::service::Routes;

use super::Service;
use crate::store::Store;
use crate::wire::RateLimitServiceServer;
use crate::worker::Stop;

/// A client that has been silent so long is asked whether it is there, and has so long to say so.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

/// A connection may have at least so many calls at once, however many connections there are: a proxy's thread has bursts.
const LEAST_SHARE: u32 = 16;
/// So many calls that were given up before they were begun may come in one read. A proxy gives up all that is late in one go, and the
/// 20 that hyper bears by default would cost it the connection, just when there is most to do.
const GIVEN_UP: usize = 16_384;
/// So many bytes of messages may be unread, for one connection. It bounds their number, too: in half of it each counts as 256 bytes at
/// least, and what is beyond that costs the connection.
const WINDOW: u32 = 4 << 20;

/// What holds for every connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOptions {
    /// After this a client is asked to connect anew.
    pub max_age: Duration,
    /// And so much later the connection is closed, whatever is on its way.
    pub max_age_grace: Duration,
    /// The largest message that is read.
    pub max_message_bytes: usize,
    /// The calls that a worker has at once, if it has one connection. With more each has a share.
    pub max_calls: u32,
}

/// Serves connections, all of one worker.
pub struct Server<S> {
    http: http2::Builder<TokioExecutor>,
    calls: Calls<S>,
    options: ConnectionOptions,
    connections: Arc<()>,
}

impl<S: Store> Server<S> {
    /// Calls for the rate limit service go to `service`, all else to `others`.
    pub fn new(service: Service<S>, others: Routes, options: ConnectionOptions) -> Server<S> {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .initial_connection_window_size(WINDOW)
            .max_pending_accept_reset_streams(GIVEN_UP)
            .auto_date_header(false);
        let service = RateLimitServiceServer::new(service).max_decoding_message_size(options.max_message_bytes);
        Server { http, calls: Calls { service, others }, options, connections: Arc::default() }
    }

    /// Serves a connection to its end. One that is old, or told to stop, takes no new calls, and ends when those it has are answered.
    pub async fn serve(&self, connection: net::TcpStream, mut stop: Stop) {
        let connection = match TcpStream::from_std(connection) {
            Ok(connection) => connection,
            Err(error) => return tracing::error!(%error, "cannot serve a connection"),
        };
        let one_more = Arc::clone(&self.connections);
        let mut http = self.http.clone();
        http.max_concurrent_streams(share(self.options.max_calls, Arc::strong_count(&one_more) - 1));
        let mut serving = pin!(http.serve_connection(TokioIo::new(connection), self.calls.clone()));
        tokio::select! {
            // An error is a client that broke off.
            _ = serving.as_mut() => return,
            () = tokio::time::sleep(self.options.max_age) => {}
            () = stop.told() => {}
        }
        serving.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(self.options.max_age_grace, serving).await;
    }
}

/// How many calls a connection may have at once, where it is one of so many. HTTP/2 cannot take back what was granted, so that the first have
/// more than the last; all together they have `max_calls` times the logarithm of their number.
fn share(max_calls: u32, connections: usize) -> u32 {
    let connections = u32::try_from(connections).unwrap_or(u32::MAX).max(1);
    (max_calls / connections).max(LEAST_SHARE.min(max_calls))
}

/// Who answers a call.
struct Calls<S> {
    service: RateLimitServiceServer<Service<S>>,
    others: Routes,
}

impl<S> Clone for Calls<S> {
    fn clone(&self) -> Self {
        Calls { service: self.service.clone(), others: self.others.clone() }
    }
}

impl<S: Store> hyper::service::Service<http::Request<Incoming>> for Calls<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        if is_for::<RateLimitServiceServer<Service<S>>>(&request) {
            self.service.clone().call(request)
        } else {
            Box::pin(self.others.clone().call(request))
        }
    }
}

/// A call's path is `/service/method`.
fn is_for<T: NamedService>(request: &http::Request<Incoming>) -> bool {
    let path = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(T::NAME));
    path.is_some_and(|method| method.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_what_a_worker_can_answer_and_none_is_left_with_next_to_nothing() {
        let shares = |max_calls| [1, 2, 4, 32, 33, 5_000].map(|connections| share(max_calls, connections));
        assert_eq!(shares(512), [512, 256, 128, 16, 16, 16]);
        assert_eq!(shares(10), [10; 6]);
        assert_eq!(share(1, usize::MAX), 1);
    }
}
