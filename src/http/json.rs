//! `/json`: the rate limit service for clients that speak no gRPC. A request and its answer are what they are on the
//! gRPC port, as JSON; a worker decides it, by the same checks.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::admin::{Refusal, refuse};
use crate::grpc::{CallError, Caller, Service};
use crate::store::Store;
use crate::wire::json::Mapping;
use crate::wire::rate_limit_response::Code;
use crate::wire::{RateLimitRequest, RateLimitResponse};

/// A request must have come so long after its head.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// And has its answer so long after that: what would be delayed for longer is denied.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Answers requests that are JSON.
pub struct JsonApi<S> {
    service: Arc<Service<S>>,
    runtime: Handle,
    max_bytes: usize,
    mapping: Mapping,
}

impl<S: Store> JsonApi<S> {
    /// `service` is a worker's, with its way to the counters, and does its work on that worker's `runtime`. A request
    /// has so many bytes at most.
    pub fn new(service: Service<S>, runtime: Handle, max_bytes: usize, mapping: Mapping) -> JsonApi<S> {
        JsonApi { service: Arc::new(service), runtime, max_bytes, mapping }
    }

    fn read(&self, body: &Bytes) -> Result<RateLimitRequest, Refusal> {
        if body.is_empty() {
            let example = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]});
            return Err(refuse(StatusCode::BAD_REQUEST, format!("send a request, such as {example}")));
        }
        self.mapping.request(body).map_err(|error| {
            tracing::debug!(%error, "no request in JSON");
            refuse(StatusCode::BAD_REQUEST, format!("not a request: {error}"))
        })
    }

    /// The worker's answer. Where the client goes away, the worker stops.
    async fn answer(&self, request: RateLimitRequest, caller: Caller) -> Result<RateLimitResponse, Refusal> {
        let service = Arc::clone(&self.service);
        let mut deciding = JoinSet::new();
        deciding.spawn_on(async move { service.call(request, caller).await }, &self.runtime);
        match deciding.join_next().await {
            Some(Ok(answer)) => answer.map_err(refusal),
            Some(Err(error)) => Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, error)),
            // It holds one.
            None => Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, "nobody has decided")),
        }
    }
}

/// All of a body that has so many bytes at most, which something allows.
pub(super) async fn whole(body: Body, (max_bytes, allowed_by): (usize, &str)) -> Result<Bytes, Refusal> {
    match timeout(BODY_TIMEOUT, Limited::new(body, max_bytes).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if is_too_long(&*error) => {
            let reason = format!("the request has more than the {max_bytes} bytes that {allowed_by} allows");
            Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, reason))
        }
        Ok(Err(error)) => Err(refuse(StatusCode::BAD_REQUEST, error)),
        Err(_) => {
            let reason = format!("the request has not come within {BODY_TIMEOUT:?}");
            Err(refuse(StatusCode::REQUEST_TIMEOUT, reason))
        }
    }
}

fn is_too_long(error: &(dyn Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_too_long)
}

/// 429 is for what is over its limit, and for nothing else.
fn refusal(error: CallError) -> Refusal {
    let status = match &error {
        CallError::Invalid(_) => StatusCode::BAD_REQUEST,
        CallError::Unavailable(_) | CallError::Overloaded(_) => StatusCode::SERVICE_UNAVAILABLE,
        CallError::DeadlineExceeded(_) => StatusCode::GATEWAY_TIMEOUT,
    };
    refuse(status, error)
}

/// Refuses what a page of another site has made a browser send: whoever looks at it may reach a port that its maker
/// does not. Clients other than browsers send no origin.
fn from_elsewhere(headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let site = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    match site.is_some() && site == text(header::HOST) {
        true => Ok(()),
        false => Err(refuse(StatusCode::FORBIDDEN, "a page of another site has sent this, by its Origin")),
    }
}

pub(super) fn router<S: Store>(api: JsonApi<S>) -> Router {
    Router::new().route("/json", any(decide)).with_state(Arc::new(api))
}

async fn decide<S: Store>(
    State(api): State<Arc<JsonApi<S>>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    from_elsewhere(&headers)?;
    let request = api.read(&whole(body, (api.max_bytes, "MAX_MESSAGE_BYTES")).await?)?;
    let response = api.answer(request, api.service.caller(&headers).within(ANSWER_TIMEOUT)).await?;
    let status = match response.overall_code() {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let text = api.mapping.response(&response).map_err(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error))?;
    Ok((status, [(header::CONTENT_TYPE, "application/json")], text).into_response())
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::stream::{self, StreamExt as _};

    use super::*;

    /// The status of a body of these chunks, which has ten bytes at most.
    async fn refused(chunks: impl stream::Stream<Item = io::Result<&'static str>> + Send + 'static) -> StatusCode {
        whole(Body::from_stream(chunks), (10, "a test")).await.err().unwrap().into_response().status()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_too_long_too_slow_or_cut_off_is_refused() {
        let whole =
            whole(Body::from_stream(stream::iter([Ok::<_, io::Error>("hello"), Ok("hello")])), (10, "a test")).await;
        assert_eq!(whole.ok().unwrap(), "hellohello");
        assert_eq!(refused(stream::repeat_with(|| Ok("hello"))).await, StatusCode::PAYLOAD_TOO_LARGE);
        let half = stream::iter([Ok("hello")]);
        assert_eq!(refused(half.chain(stream::pending())).await, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(refused(stream::iter([Ok("a"), Err(io::Error::other("gone"))])).await, StatusCode::BAD_REQUEST);
    }
}
