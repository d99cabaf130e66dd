//! `/counters`: looking at counters and resetting them by hand.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};

use super::admin::{Admin, Refusal, question, refuse};
use crate::counters::{Action, CounterError};
use crate::store::Store;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/counters", any(act)).with_state(admin)
}

/// `GET /counters?domain=shop&user=ann` reads the counters of `(user=ann)`; `DELETE` resets them.
async fn act<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    admin.admit(&headers)?;
    let action = match method {
        Method::GET => Action::Get,
        Method::DELETE => Action::Reset,
        _ => return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "GET reads and DELETE resets")),
    };
    let (domain, descriptors) = question(query.as_deref())?;
    let Ok([entries]) = <[_; 1]>::try_from(descriptors) else {
        return Err(refuse(StatusCode::BAD_REQUEST, "name the entries of one descriptor"));
    };
    let (limiter, timeout) = (admin.limiter(), admin.store_timeout());
    let acted = admin.runtime().spawn(async move { limiter.counters(action, (&domain, entries), timeout).await }).await;
    match acted {
        Ok(Ok(counters)) => Ok(Json(counters).into_response()),
        Ok(Err(error)) => {
            let status = match error {
                CounterError::NoDomain(_) | CounterError::NoLimit => StatusCode::NOT_FOUND,
                CounterError::Entry(_) => StatusCode::BAD_REQUEST,
                CounterError::NoRules | CounterError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            // What the store says tells what to do.
            match error {
                CounterError::Store(cause) => Err(refuse(status, format!("the store is unavailable: {cause}"))),
                error => Err(refuse(status, error)),
            }
        }
        Err(error) => Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, error)),
    }
}
