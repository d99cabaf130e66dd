//! `/counters`: looking at counters and resetting them by hand.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use serde_json::json;
use tokio::runtime::Handle;

use crate::counters::{Action, CounterError};
use crate::descriptor::Entry;
use crate::limiter::Limiter;
use crate::store::Store;

/// Where counters can be looked at, and by whom.
pub struct Counters<S> {
    /// The rules in force, and a worker's way to the counters.
    pub limiter: Arc<Limiter<S>>,
    /// That of the worker: what the limiter does, it does there, and not on the thread that takes connections.
    pub runtime: Handle,
    /// A client that knows it may.
    pub token: String,
    /// How long the store may take.
    pub store_timeout: Duration,
}

pub(super) fn router<S: Store>(counters: Counters<S>) -> Router {
    Router::new().route("/counters", any(act)).with_state(Arc::new(counters))
}

/// `GET /counters?domain=shop&user=ann` reads the counters of `(user=ann)`; `DELETE` resets them.
async fn act<S: Store>(
    State(counters): State<Arc<Counters<S>>>,
    method: Method,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let refuse = |status, reason: String| (status, Json(json!({ "error": reason }))).into_response();
    if !counters.admits(&headers) {
        return refuse(StatusCode::UNAUTHORIZED, "send Authorization: Bearer and the ADMIN_TOKEN".into());
    }
    let action = match method {
        Method::GET => Action::Get,
        Method::DELETE => Action::Reset,
        _ => return refuse(StatusCode::METHOD_NOT_ALLOWED, "GET reads and DELETE resets".into()),
    };
    let Some((domain, entries)) = descriptor(query.as_deref().unwrap_or_default()) else {
        let reason = "say which: ?domain=shop&user=ann, the domain first and then the entries in order";
        return refuse(StatusCode::BAD_REQUEST, reason.into());
    };
    let (limiter, timeout) = (Arc::clone(&counters.limiter), counters.store_timeout);
    let acted =
        counters.runtime.spawn(async move { limiter.counters(action, (&domain, entries), timeout).await }).await;
    match acted {
        Ok(Ok(counters)) => Json(counters).into_response(),
        Ok(Err(error @ (CounterError::NoDomain(_) | CounterError::NoLimit))) => {
            refuse(StatusCode::NOT_FOUND, error.to_string())
        }
        Ok(Err(error @ CounterError::Entry(_))) => refuse(StatusCode::BAD_REQUEST, error.to_string()),
        Ok(Err(error @ (CounterError::NoRules | CounterError::Store(_)))) => {
            refuse(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
        }
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// The domain and the entries of a query, in its order.
fn descriptor(query: &str) -> Option<(String, Vec<Entry>)> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let (first, domain) = pairs.next()?;
    let entries: Vec<Entry> =
        pairs.map(|(key, value)| Entry { key: key.into_owned(), value: value.into_owned() }).collect();
    (first == "domain" && !entries.is_empty()).then(|| (domain.into_owned(), entries))
}

impl<S> Counters<S> {
    /// Compares hashes, so that the time it takes reveals nothing of the token.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        blake3::hash(given) == blake3::hash(format!("Bearer {}", self.token).as_bytes())
    }
}
