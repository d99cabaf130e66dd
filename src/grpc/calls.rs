//! A call, from its headers to the service that answers it. Nearly every call is for the rate limit service, so that
//! stands right behind hyper; what is asked now and then, health and reflection, goes through tonic's router.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use tonic::codegen::http::{Method, StatusCode};
use tonic::codegen::{Service as _, http};
use tonic::server::NamedService;
use tonic::service::Routes;

use super::Service;
use super::message::{self, Counted};
use super::session::Session;
use crate::store::Store;
use crate::wire::RateLimitServiceServer;

/// The calls of one connection.
pub(super) struct Calls<S> {
    pub(super) service: RateLimitServiceServer<Service<S>>,
    pub(super) others: Routes,
    pub(super) session: Arc<Session>,
    pub(super) max_message_bytes: usize,
}

impl<S: Store> Calls<S> {
    /// The answer to one.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: http::Request<Incoming>,
    ) -> Result<http::Response<Body>, Infallible> {
        if let Some(status) = refusal(&request) {
            // A client that is still sending would meet a stream that has ended.
            let _ = message::receive(request, &self.session, self.max_message_bytes).await;
            return Ok(refused(status));
        }
        if !is_for(<RateLimitServiceServer<Service<S>>>::NAME, &request) {
            return Ok(Box::pin(self.other(request)).await.unwrap_or_else(Status::into_http));
        }
        match message::receive(request, &self.session, self.max_message_bytes).await {
            Ok(request) => {
                let _deciding = self.session.decide();
                self.service.clone().call(request).await
            }
            Err(status) => Ok(status.into_http()),
        }
    }

    /// The answer to a call for health or reflection. When the process drains it ends, whether its client is done or
    /// not.
    async fn other(&self, request: http::Request<Incoming>) -> Result<http::Response<Body>, Status> {
        let mut others = self.others.clone();
        let answer = if is_stream(&request) {
            let (mut parts, body) = request.into_parts();
            let headers = message::detach(&mut parts);
            let body = Counted::new(body, headers, &self.session)?;
            others.call(http::Request::from_parts(parts, body))
        } else {
            others.call(message::receive(request, &self.session, self.max_message_bytes).await?)
        };
        tokio::select! {
            biased;
            answer = answer => {
                let Ok(answer) = answer;
                Ok(answer.map(|body| Body::new(UntilDrained::new(body, &self.session))))
            }
            () = self.session.drained() => Err(message::draining()),
        }
    }
}

/// The status for what is no call of gRPC: its method, or the type of its content.
fn refusal<B>(request: &http::Request<B>) -> Option<StatusCode> {
    if request.method() != Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let content_type = request.headers().get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    let suffix = content_type.strip_prefix(b"application/grpc");
    let is_grpc = suffix.is_some_and(|suffix| {
        let suffix = suffix.strip_prefix(b"+proto").unwrap_or(suffix);
        matches!(suffix.first(), None | Some(b';' | b' '))
    });
    if is_grpc { None } else { Some(StatusCode::UNSUPPORTED_MEDIA_TYPE) }
}

fn refused(status: StatusCode) -> http::Response<Body> {
    // For people: gRPC's clients look at nothing but the status.
    let reason = match status {
        StatusCode::METHOD_NOT_ALLOWED => "gRPC is called by POST\n",
        _ => "gRPC has content of the type application/grpc\n",
    };
    let mut response = http::Response::new(Body::new(Full::<Bytes>::from(reason)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    response
}

/// A call's path is `/service/method`.
fn is_for<B>(service: &str, request: &http::Request<B>) -> bool {
    let path = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(service));
    path.is_some_and(|method| method.starts_with('/'))
}

/// Reflection takes any number of messages in a call; all else takes one.
fn is_stream<B>(request: &http::Request<B>) -> bool {
    request.uri().path().starts_with("/grpc.reflection.")
}

/// An answer that ends when the process drains, if not before.
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
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(message::draining().add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_a_post_of_grpc_in_protobuf() {
        let refusal = |method: &str, content_type: Option<&str>| {
            let mut request = http::Request::builder().method(method);
            if let Some(content_type) = content_type {
                request = request.header(CONTENT_TYPE, content_type);
            }
            refusal(&request.body(()).unwrap()).map(|status| status.as_u16())
        };
        for content_type in ["application/grpc", "application/grpc+proto", "application/grpc; charset=utf-8"] {
            assert_eq!(refusal("POST", Some(content_type)), None, "{content_type}");
            assert_eq!(refusal("GET", Some(content_type)), Some(405));
        }
        for content_type in
            ["", "application/json", "application/grpc-web", "application/grpc+json", "application/grpcx"]
        {
            assert_eq!(refusal("POST", Some(content_type)), Some(415), "{content_type}");
        }
        assert_eq!(refusal("POST", None), Some(415));
    }
}
