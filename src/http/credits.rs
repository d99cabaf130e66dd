//! `/credits`: top-ups and refunds of budgets.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Json, Router};

use super::admin::{Admin, Question, Refusal, failed, question, refuse};
use super::client::{Change, Client};
use super::json::whole;
use crate::inspect::credit::{CreditError, Written};
use crate::inspect::running;
use crate::inspect::{CounterError, CounterOf};
use crate::shared::adjustment::audit::{self, Note};
use crate::store::Store;

/// Largest body of a request in bytes. No credit is longer.
const MOST_BYTES: usize = 16 * 1024;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/credits", any(credit)).with_state(admin)
}

/// Handles `POST /credits?domain=llm&tenant=acme` with a body such as `{"kind": "top-up", "hits": 500000, "id":
/// "invoice-17"}`: credits the budget of `(tenant=acme)`.
async fn credit<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Refusal> {
    if method != Method::POST {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "use POST to credit, and GET /counters to see a budget"));
    }
    let Question { domain, descriptors, limit, .. } = question(method, query.as_deref().unwrap_or_default())?;
    client.may(Change::Credit(&domain))?;
    let Ok([entries]) = <[_; 1]>::try_from(descriptors) else {
        return Err(refuse(StatusCode::BAD_REQUEST, "name the entries of exactly one descriptor"));
    };
    let written: Written = serde_json::from_slice(&whole(body, (MOST_BYTES, "a credit")).await?).map_err(|error| {
        let reason = format!(
            "the body is no credit: {error}; write for example {{\"kind\": \"top-up\", \"hits\": 500000, \"id\": \
             \"invoice-17\"}}"
        );
        refuse(StatusCode::BAD_REQUEST, reason)
    })?;
    let note = Note {
        domain: Some(domain.clone()),
        entries: entries.clone(),
        why: written.why.clone(),
        ..admin.note(&client)
    };
    let descriptor = CounterOf { domain, entries, limit };
    let (limiter, timeout) = (admin.limiter(), admin.store_timeout());
    let audit = Arc::clone(admin.adjustments().audit());
    // A credit and its record do not end with the client's connection.
    let act = async move {
        let credited = running::credit(&limiter, &written, descriptor, timeout).await;
        if let Some(effect) = written.effect(&credited) {
            audit.record(audit::Action::Credited, Note { effect: Some(effect), ..note });
        }
        credited
    };
    match admin.runtime().spawn(act).await {
        Ok(Ok(credited)) => Ok(Json(credited).into_response()),
        Ok(Err(error)) => {
            let status = match &error {
                CreditError::Unreadable(_) => StatusCode::BAD_REQUEST,
                CreditError::NoBudget(_) | CreditError::Counter(CounterError::NoLimit(_)) => StatusCode::NOT_FOUND,
                CreditError::Counter(CounterError::Entry(_)) => StatusCode::BAD_REQUEST,
                CreditError::Counter(_) => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::CONFLICT,
            };
            match error {
                CreditError::Counter(CounterError::Store(cause)) => {
                    let reason = format!("the store is unavailable: {cause}; repeat the credit with the same ID");
                    Err(refuse(status, reason))
                }
                error => Err(refuse(status, error)),
            }
        }
        Err(error) => Err(failed(error)),
    }
}
