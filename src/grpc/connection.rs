//! HTTP/2 over one connection. Nearly every call is for the rate limit service, so that stands right behind hyper; tonic's own server would
//! put a router and half a dozen layers in front, a tenth of the whole cost of a call. What is asked now and then, health and
//! reflection, goes through tonic's router all the same.

use std::convert::Infallible;
use std::net;
use std::pin::pin;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service as _, http};
use tonic::server::NamedService;
use tonic::service::Routes;

use super::Service;
use super::executor::{self, Intake, Rounds};
use crate::server::workers::Stop;
use crate::store::Store;
use crate::wire::RateLimitServiceServer;

/// A client that has been silent so long is asked whether it is there, and has so long to say so.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

/// A client that is told to go says at once that it has heard it. Who has no call, and has not said so by then, is not waited for.
const FAREWELL: Duration = Duration::from_secs(2);

/// So many calls may be given up before they are begun: a proxy gives up all that is late in one go, and the 20 that hyper bears by default
/// would cost it the connection, just when there is most to do. More than these do not come in one round, whose last read may go beyond it
/// by a frame: a call that is given up has a frame for its headers, and one of four bytes.
const GIVEN_UP: usize = (executor::BYTES + MAX_FRAME) / (FRAME_HEADER + FRAME_HEADER + 4);
const MAX_FRAME: usize = 16 * 1024;
const FRAME_HEADER: usize = 9;

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

/// Serves connections, all of one worker.
pub struct Server<S> {
    calls: Calls<S>,
    options: ConnectionOptions,
}

impl<S: Store> Server<S> {
    /// Calls for the rate limit service go to `service`, all else to `others`.
    pub fn new(service: Service<S>, others: Routes, options: ConnectionOptions) -> Server<S> {
        let service = RateLimitServiceServer::new(service).max_decoding_message_size(options.max_message_bytes);
        Server { calls: Calls { service, others }, options }
    }

    /// Serves a connection to its end. One that is old, or told to stop, takes no new calls, and ends when those it has are answered; told
    /// to stop, whether its client is still there or not.
    pub async fn serve(&self, connection: net::TcpStream, mut stop: Stop) {
        let connection = match TcpStream::from_std(connection) {
            Ok(connection) => connection,
            Err(error) => return tracing::error!(%error, "cannot serve a connection"),
        };
        let mut rounds = Rounds::default();
        let connection = TokioIo::new(rounds.of(connection));
        let mut serving = pin!(self.http(rounds.intake()).serve_connection(connection, self.calls.clone()));
        tokio::select! {
            // An error is a client that broke off.
            _ = rounds.drive(serving.as_mut()) => return,
            () = tokio::time::sleep(self.options.max_age) => {}
            () = stop.told() => {}
        }
        serving.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(self.options.max_age_grace, async {
            tokio::select! {
                _ = rounds.drive(serving.as_mut()) => return,
                () = stop.told() => {}
            }
            while tokio::time::timeout(FAREWELL, rounds.drive(serving.as_mut())).await.is_err() && rounds.has_calls() {}
        })
        .await;
    }

    fn http(&self, intake: Intake) -> http2::Builder<Intake> {
        let mut http = http2::Builder::new(intake);
        http.timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .max_concurrent_streams(self.options.max_concurrent_streams)
            .max_pending_accept_reset_streams(GIVEN_UP)
            .auto_date_header(false);
        http
    }
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
