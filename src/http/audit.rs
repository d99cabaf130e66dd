//! `/audit`: who changed what in the last thirty days, and whom it was refused. Read-only.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Json, Router};
use serde_json::json;
use tokio::time::timeout;

use super::admin::{Admin, Refusal, failed, refuse};
use super::client::Client;
use super::query::Query;
use crate::shared::adjustment::audit::{DAY, KEPT, KEPT_DAYS, MOST_CHANGES};
use crate::store::Store;

/// Longest wait for other readers. A read takes milliseconds unless the store is slow.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Default number of records.
const RECORDS: usize = 200;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/audit", any(answer)).with_state(admin)
}

/// Handles `GET /audit?days=30&limit=200`; each parameter is optional.
async fn answer<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    if method != Method::GET {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "GET reads"));
    }
    let (age, most) = read(query.as_deref())?;
    let turn = timeout(LONGEST_WAIT, Arc::clone(admin.reading_trail()).acquire_owned()).await;
    let turn = turn.map_err(|_| {
        refuse(StatusCode::TOO_MANY_REQUESTS, "other clients are reading the audit trail: try again later")
    })?;
    let turn = turn.map_err(failed)?;
    let audit = Arc::clone(admin.adjustments().audit());
    // The store's work goes on if the client leaves.
    let read = async move {
        let _turn = turn;
        audit.read(age, most).await
    };
    let (records, unavailable) = match admin.runtime().spawn(read).await.map_err(failed)? {
        Ok(records) => (records, None),
        Err(error) => (Vec::new(), Some(format!("the store is unavailable: {error}"))),
    };
    let values = admin.values(&client);
    let entries: Vec<_> = records.iter().map(|record| record.shown(|value| values.shown(value))).collect();
    Ok(Json(json!({ "entries": entries, "unavailable": unavailable })).into_response())
}

/// Parses the age and the number of records.
fn read(query: Option<&str>) -> Result<(Duration, usize), Refusal> {
    let query = Query::read(query, &["days", "limit"])?;
    let age = query.number("days", 1..=KEPT_DAYS)?.map_or(KEPT, |days| DAY * days);
    let most = query.number("limit", 1..=MOST_CHANGES)?.unwrap_or(RECORDS);
    Ok((age, most))
}
