//! `/top`: the keys with the most hits of each limit. Read-only.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use tokio::task::spawn_blocking;

use super::admin::{Admin, Refusal, refuse};
use crate::inspect::running;
use crate::inspect::{Action, Counter, CounterOf};
use crate::limiter::Limiter;
use crate::observe::heavy_hitters::{By, HeavyKey, Query};
use crate::store::Store;

/// Default number of keys.
const KEYS: usize = 25;

/// Most keys that a query may ask for.
const MOST_KEYS: usize = 1_000;

/// Most keys whose counters are read.
const MOST_COUNTERS: usize = 100;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/top", any(answer)).with_state(admin)
}

/// Handles `GET /top?domain=shop&rule=per-user&by=denied&n=10&remaining=true`; each parameter is optional.
async fn answer<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    admin.admit(&headers)?;
    if method != Method::GET {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "GET reads"));
    }
    let (query, reads_counters) = read(query.as_deref().unwrap_or_default())?;
    let limiter = admin.limiter();
    let Some(heavy_hitters) = admin.observed().heavy_hitters.clone() else {
        return Err(refuse(StatusCode::NOT_FOUND, "nobody counts the heaviest keys: set TOP_KEYS=true"));
    };
    let failed = |error: &dyn std::error::Error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error);
    // This copies the names of thousands of keys.
    let mut top = spawn_blocking(move || heavy_hitters.top(&query)).await.map_err(|error| failed(&error))?;
    if reads_counters {
        let timeout = admin.store_timeout();
        let read = async move {
            for key in top.keys.iter_mut().take(MOST_COUNTERS) {
                add_counter(&limiter, key, timeout).await;
            }
            top
        };
        top = admin.runtime().spawn(read).await.map_err(|error| failed(&error))?;
    }
    Ok(Json(top).into_response())
}

/// Parses the query and whether to read counters.
fn read(query: &str) -> Result<(Query, bool), Refusal> {
    let (mut read, mut reads_counters) = (Query { most: KEYS, ..Query::default() }, false);
    let wrong = |reason: String| refuse(StatusCode::BAD_REQUEST, reason);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "domain" => read.domain = Some(value.into_owned()),
            "rule" => read.rule = Some(value.into_owned()),
            "by" => {
                let by = By::ALL.into_iter().find(|by| by.name() == value);
                read.by = by.ok_or_else(|| wrong("by is one of hits, denied, near".to_owned()))?;
            }
            "n" => {
                let number = value.parse().ok().filter(|number| (1..=MOST_KEYS).contains(number));
                read.most = number.ok_or_else(|| wrong(format!("n is a whole number from 1 to {MOST_KEYS}")))?;
            }
            "remaining" if value == "true" || value == "false" => reads_counters = value == "true",
            "remaining" => return Err(wrong("remaining is true or false".to_owned())),
            _ => return Err(wrong("it takes domain, rule, by, n and remaining".to_owned())),
        }
    }
    Ok((read, reads_counters))
}

/// Adds the current value of the key's counter if the store answers. Limits that requests bring along are left out:
/// their numbers are unknown here.
async fn add_counter<S: Store>(limiter: &Limiter<S>, key: &mut HeavyKey, timeout: Duration) {
    let Some(entries) = key.entries.clone() else { return };
    let descriptor = CounterOf { domain: key.domain.clone(), entries, limit: None };
    let counters = running::counters(limiter, Action::Get, descriptor, timeout).await.unwrap_or_default();
    if let Some(Counter { remaining, capacity, banned_ms, .. }) = counters.into_iter().find(|of| of.rule == key.label) {
        (key.remaining, key.capacity, key.banned_ms) = (Some(remaining), Some(capacity), banned_ms);
    }
}
