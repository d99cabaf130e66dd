//! A call, from its headers to the service that answers it. Nearly every call is for the rate limit service, so hyper
//! passes it to that service directly; the rare calls for health and reflection go through tonic's router.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Method;
use tonic::codegen::http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use tonic::codegen::{Service as _, http};
use tonic::server::NamedService;
use tonic::service::Routes;

use super::message;
use super::session::Session;
use super::unsent::Counted;
use crate::grpc::protocol::{self, NoCall};
use crate::grpc::{Service, bounds};
use crate::store::Store;
use crate::wire::RateLimitServiceServer;

/// Answers the calls of one connection.
pub(super) struct Calls<S> {
    pub(super) service: RateLimitServiceServer<Service<S>>,
    pub(super) others: Routes,
    pub(super) session: Arc<Session>,
    pub(super) max_message_bytes: usize,
}

impl<S: Store> Calls<S> {
    /// Answers a call.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: http::Request<Incoming>,
    ) -> Result<http::Response<Counted<Body>>, Infallible> {
        let response = self.respond(request).await;
        Ok(response.map(|body| Counted::new(body, &self.session.unsent)))
    }

    async fn respond(&self, request: http::Request<Incoming>) -> http::Response<Body> {
        if let Some(no_call) = no_call(&request) {
            // Receives the rest first: a client that is still sending would find its stream closed.
            let _ = message::receive(request, &self.session, self.max_message_bytes).await;
            return refused(no_call);
        }
        if !is_for(<RateLimitServiceServer<Service<S>>>::NAME, &request) {
            return Box::pin(self.other(request)).await.unwrap_or_else(Status::into_http);
        }
        match message::receive(request, &self.session, self.max_message_bytes).await {
            // The client does not read the answers it has, so decide no more for it.
            Ok(_) if self.session.unsent.is_full() => bounds::too_much_unread().into_http(),
            Ok(request) => {
                let _deciding = self.session.decide();
                let Ok(response) = self.service.clone().call(request).await;
                response
            }
            Err(status) => status.into_http(),
        }
    }

    /// Answers a call for health or reflection. The answer ends when the process drains, even if its client has not
    /// finished.
    async fn other(&self, request: http::Request<Incoming>) -> Result<http::Response<Body>, Status> {
        if self.session.unsent.is_full() {
            return Err(bounds::too_much_unread());
        }
        let mut others = self.others.clone();
        let answer = if protocol::is_stream(request.uri().path()) {
            let (mut parts, body) = request.into_parts();
            let headers = message::detach(&mut parts);
            let body = message::Counted::new(body, headers, &self.session)?;
            others.call(http::Request::from_parts(parts, body))
        } else {
            let request = message::receive(request, &self.session, self.max_message_bytes).await?;
            // The call counts as activity when it begins, but not while its answer lasts.
            drop(self.session.decide());
            others.call(request)
        };
        tokio::select! {
            biased;
            answer = answer => {
                let Ok(answer) = answer;
                Ok(answer.map(|body| Body::new(UntilDrained::new(body, &self.session))))
            }
            () = self.session.drained() => Err(bounds::draining()),
        }
    }
}

/// Returns why a request is not a gRPC call, or `None` if it is one.
fn no_call<B>(request: &http::Request<B>) -> Option<NoCall> {
    let content_type = request.headers().get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    match *request.method() {
        Method::POST if protocol::is_grpc(content_type) => None,
        Method::POST => Some(NoCall::ContentType),
        _ => Some(NoCall::Method),
    }
}

fn refused(no_call: NoCall) -> http::Response<Body> {
    let mut response = http::Response::new(Body::new(Full::<Bytes>::from(no_call.text())));
    *response.status_mut() = no_call.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    if no_call == NoCall::Method {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    response
}

/// Returns whether a call is for this service. Its path is `/service/method`.
fn is_for<B>(service: &str, request: &http::Request<B>) -> bool {
    let path = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(service));
    path.is_some_and(|method| method.starts_with('/'))
}

/// An answer that ends when the process drains, if not earlier.
struct UntilDrained {
    body: Body,
    drained: Pin<Box<dyn Future<Output = ()> + Send>>,
    ended: bool,
}

impl UntilDrained {
    fn new(body: Body, session: &Session) -> UntilDrained {
        UntilDrained { body, drained: Box::pin(session.drained()), ended: false }
    }
}

impl hyper::body::Body for UntilDrained {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() || self.drained.as_mut().poll(cx).is_pending() {
            return polled;
        }
        self.ended = true;
        Poll::Ready(Some(message::trailers(&bounds::draining())))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
