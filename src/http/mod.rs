//! The HTTP port: health for orchestrators, metrics for Prometheus, and counters for those who may mend them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use serde_json::json;

use crate::counters::{Action, CounterError};
use crate::descriptor::Entry;
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::store::Store;

/// What the port tells of.
pub struct Admin<S> {
    /// The process answers requests, by rules.
    pub serving: Arc<AtomicBool>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// Where counters can be looked at.
    pub limiter: Arc<Limiter<S>>,
    /// Who may: whoever knows this token. `None`: nobody.
    pub token: Option<String>,
    /// How long the store may take.
    pub store_timeout: Duration,
}

/// The paths of the port.
pub fn router<S: Store>(admin: Admin<S>) -> Router {
    let routes = Router::new().route("/healthcheck", any(healthcheck)).route("/metrics", any(metrics));
    let routes = if admin.token.is_some() { routes.route("/counters", any(counters)) } else { routes };
    routes.with_state(Arc::new(admin))
}

async fn healthcheck<S: Store>(State(admin): State<Arc<Admin<S>>>) -> Response {
    if admin.serving.load(Ordering::Relaxed) {
        "OK".into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "not serving: no rules are loaded, or the process is shutting down")
            .into_response()
    }
}

async fn metrics<S: Store>(State(admin): State<Arc<Admin<S>>>) -> Response {
    match admin.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// `GET /counters?domain=shop&user=ann` looks at the counters of `(user=ann)`; `DELETE` resets them.
async fn counters<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let refuse = |status, reason: String| (status, Json(json!({ "error": reason }))).into_response();
    if !admin.knows(&headers) {
        return refuse(StatusCode::UNAUTHORIZED, "send Authorization: Bearer and the ADMIN_TOKEN".into());
    }
    let action = match method {
        Method::GET => Action::Get,
        Method::DELETE => Action::Reset,
        _ => return refuse(StatusCode::METHOD_NOT_ALLOWED, "GET looks and DELETE resets".into()),
    };
    let Some((domain, entries)) = descriptor(query.as_deref().unwrap_or_default()) else {
        let reason = "say which: ?domain=shop&user=ann, the domain first and then the entries in order";
        return refuse(StatusCode::BAD_REQUEST, reason.into());
    };
    match admin.limiter.counters(action, (&domain, entries), admin.store_timeout).await {
        Ok(counters) => Json(counters).into_response(),
        Err(error @ (CounterError::NoDomain(_) | CounterError::NoLimit)) => {
            refuse(StatusCode::NOT_FOUND, error.to_string())
        }
        Err(error @ CounterError::Entry(_)) => refuse(StatusCode::BAD_REQUEST, error.to_string()),
        Err(error @ CounterError::Store(_)) => refuse(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
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

impl<S> Admin<S> {
    /// Compares hashes, so that the time it takes tells nothing of the token.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        let expected = self.token.as_ref().map(|token| blake3::hash(format!("Bearer {token}").as_bytes()));
        expected.is_some_and(|expected| blake3::hash(given) == expected)
    }
}
