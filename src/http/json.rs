//! `/json`: the rate limit service for clients without gRPC. A request and its answer are the messages of the gRPC port
//! as JSON. A worker decides it, with the same checks.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{BoxError, Router};
use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::admin::{Refusal, failed, refuse};
use crate::grpc::{CallError, Caller, Service};
use crate::store::Store;
use crate::wire::json::Mapping;
use crate::wire::rate_limit_response::Code;
use crate::wire::{RateLimitRequest, RateLimitResponse};

/// Time within which a body must arrive after its head.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for an answer. A request that would be delayed for longer is denied.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The handler of JSON requests.
pub struct JsonApi<S> {
    service: Arc<Service<S>>,
    runtime: Handle,
    max_bytes: usize,
    /// One permit for each byte of requests that are still being received.
    room: Arc<Semaphore>,
    mapping: Mapping,
}

/// Bytes that half-received requests may have together, unless the limit of a single request is higher.
const HALF_RECEIVED: usize = 16 * 1024 * 1024;

impl<S: Store> JsonApi<S> {
    /// Creates the handler. `service` is a worker's, with its connection to the counters. Its work runs on that
    /// worker's `runtime`. A request has at most `max_bytes`.
    pub fn new(service: Service<S>, runtime: Handle, max_bytes: usize, mapping: Mapping) -> JsonApi<S> {
        let room = Arc::new(Semaphore::new(HALF_RECEIVED.max(max_bytes)));
        JsonApi { service: Arc::new(service), runtime, max_bytes, room, mapping }
    }

    fn read(&self, body: &Bytes) -> Result<RateLimitRequest, Refusal> {
        if body.is_empty() {
            let example = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]});
            return Err(refuse(StatusCode::BAD_REQUEST, format!("send a request, such as {example}")));
        }
        self.mapping.request(body).map_err(|error| {
            tracing::debug!(%error, "the body is not a request in JSON");
            refuse(StatusCode::BAD_REQUEST, format!("not a request: {error}"))
        })
    }

    /// Returns the worker's answer. If the client leaves, the worker stops.
    async fn answer(&self, request: RateLimitRequest, caller: Caller) -> Result<RateLimitResponse, Refusal> {
        let service = Arc::clone(&self.service);
        let mut deciding = JoinSet::new();
        deciding.spawn_on(async move { service.call(request, caller).await }, &self.runtime);
        match deciding.join_next().await {
            Some(Ok(answer)) => answer.map_err(refusal),
            Some(Err(error)) => Err(failed(error)),
            // The set holds one task.
            None => Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, "no worker is left to decide")),
        }
    }
}

/// Error: half-received requests have reached the bytes that they may have together.
#[derive(Debug, thiserror::Error)]
#[error("too many incomplete requests: try again")]
struct NoRoom;

/// Makes each byte of the body hold a permit until the body is dropped. If there are no permits left, the body ends
/// with [`NoRoom`].
fn counted(body: Body, room: &Arc<Semaphore>) -> Body {
    let (room, mut held) = (Arc::clone(room), None::<OwnedSemaphorePermit>);
    Body::from_stream(body.into_data_stream().map(move |chunk| {
        let chunk = chunk.map_err(BoxError::from)?;
        let bytes = u32::try_from(chunk.len()).map_err(|_| NoRoom)?;
        let more = Arc::clone(&room).try_acquire_many_owned(bytes).map_err(|_| NoRoom)?;
        match &mut held {
            Some(held) => held.merge(more),
            None => held = Some(more),
        }
        Ok::<_, BoxError>(chunk)
    }))
}

/// Reads a whole body of at most `max_bytes`; `allowed_by` names the setting in the error.
pub(super) async fn whole(body: Body, (max_bytes, allowed_by): (usize, &str)) -> Result<Bytes, Refusal> {
    match timeout(BODY_TIMEOUT, Limited::new(body, max_bytes).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if is_caused_by::<LengthLimitError>(&*error) => {
            let reason = format!("the request is larger than the {max_bytes} bytes that {allowed_by} allows");
            Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, reason))
        }
        Ok(Err(error)) if is_caused_by::<NoRoom>(&*error) => Err(refuse(StatusCode::SERVICE_UNAVAILABLE, NoRoom)),
        Ok(Err(error)) => Err(refuse(StatusCode::BAD_REQUEST, error)),
        Err(_) => {
            let reason = format!("the request did not arrive within {BODY_TIMEOUT:?}");
            Err(refuse(StatusCode::REQUEST_TIMEOUT, reason))
        }
    }
}

fn is_caused_by<E: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    error.is::<E>() || error.source().is_some_and(is_caused_by::<E>)
}

/// Returns the error as HTTP. Only requests over the limit get status 429.
fn refusal(error: CallError) -> Refusal {
    let status = match &error {
        CallError::Invalid(_) => StatusCode::BAD_REQUEST,
        CallError::Unavailable(_) | CallError::Overloaded(_) => StatusCode::SERVICE_UNAVAILABLE,
        CallError::DeadlineExceeded(_) => StatusCode::GATEWAY_TIMEOUT,
    };
    refuse(status, error)
}

/// Refuses requests that a page of another site has made a browser send: the browser may reach a port that the page's
/// author cannot. Only a page at an IP address or at localhost can belong to this site. A page at any other name may
/// come from another server, because its author can have the name resolve to this address (DNS rebinding). Clients
/// other than browsers send no origin.
fn from_elsewhere(headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let site = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    match site {
        Some(site) if text(header::HOST) == Some(site) && is_local(site) => Ok(()),
        _ => Err(refuse(StatusCode::FORBIDDEN, "rejected: the Origin header names another site")),
    }
}

/// Returns whether a host, with its port, is an IP address or localhost, which no DNS server controls.
fn is_local(host: &str) -> bool {
    let port = host.rfind(':').filter(|colon| !host[*colon..].contains(']'));
    let name = &host[..port.unwrap_or(host.len())];
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
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
    let body = counted(body, &api.room);
    let request = api.read(&whole(body, (api.max_bytes, "MAX_MESSAGE_BYTES")).await?)?;
    let response = api.answer(request, api.service.caller(&headers).within(ANSWER_TIMEOUT)).await?;
    let status = match response.overall_code() {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let text = api.mapping.response(&response).map_err(failed)?;
    Ok((status, [(header::CONTENT_TYPE, "application/json")], text).into_response())
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::stream;

    use super::*;

    /// Returns the status of a body of these chunks with a limit of ten bytes.
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

    #[test]
    fn a_page_is_of_this_site_only_at_an_address_or_at_localhost() {
        let answered = |origin: &str, host: &str| {
            let headers = [(header::ORIGIN, origin), (header::HOST, host)];
            let headers = headers.map(|(name, value)| (name, value.parse().unwrap()));
            from_elsewhere(&HeaderMap::from_iter(headers)).is_ok()
        };
        for host in ["127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "[fd00::1]", "localhost:8080", "LocalHost"] {
            assert!(answered(&format!("http://{host}"), host), "{host}");
        }
        for host in ["evil.com", "evil.com:8080", "127.0.0.1.evil.com", "localhost.evil.com:80", "[evil]:80", ""] {
            assert!(!answered(&format!("http://{host}"), host), "{host}");
        }
        assert!(!answered("http://10.1.2.3", "10.1.2.4") && !answered("null", "10.1.2.3"));
        assert!(from_elsewhere(&HeaderMap::new()).is_ok(), "no browser");
    }

    #[tokio::test]
    async fn half_received_bodies_share_a_bound_and_give_it_back() {
        let room = Arc::new(Semaphore::new(8));
        let body = |chunks: &'static [&'static str]| {
            counted(Body::from_stream(stream::iter(chunks.iter().map(|chunk| Ok::<_, io::Error>(*chunk)))), &room)
        };
        let mut half = body(&["hello"]).into_data_stream();
        assert_eq!(half.next().await.unwrap().unwrap(), "hello");
        let refused = whole(body(&["hello"]), (10, "a test")).await.err().unwrap();
        assert_eq!(refused.into_response().status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(half);
        assert_eq!(whole(body(&["hello", "you"]), (10, "a test")).await.ok().unwrap(), "helloyou");
        assert_eq!(room.available_permits(), 8);
    }
}
