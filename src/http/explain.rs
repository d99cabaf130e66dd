//! `/explain`: why a request is limited, or is not. Reads only.
//!
//! It needs the token, as `/counters` does: rules tell a client how far it may go and what others may, and counters who
//! uses what. One door is easier to watch than two that show different things; who has the files at hand needs no
//! service: `tollgate explain --rules`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use tokio::task::spawn_blocking;

use super::admin::{Admin, Question, Refusal, refuse};
use crate::explain;
use crate::store::Store;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/explain", any(answer)).with_state(admin)
}

/// `GET /explain?domain=shop&user=ann`; the entries of another descriptor of the same request follow `&%2B=`.
async fn answer<S: Store>(State(admin): State<Arc<Admin<S>>>, question: Question) -> Result<Response, Refusal> {
    let Question { method, domain, descriptors, limit } = question;
    if method != Method::GET {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "GET explains"));
    }
    let request = explain::request(&domain, descriptors, limit);
    let failed = |error: &dyn std::error::Error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error);
    let _turn = admin.explaining().acquire().await.map_err(|error| failed(&error))?;
    let (limiter, snapshot) = (admin.limiter(), admin.limiter().snapshot());
    let explained = spawn_blocking(move || {
        let explanation = limiter.explain(&snapshot, &request);
        (explanation, snapshot, request)
    });
    let (explanation, snapshot, request) = explained.await.map_err(|error| failed(&error))?;
    let (limiter, timeout) = (admin.limiter(), admin.store_timeout());
    let answered = async move { limiter.add_state(explanation, (&snapshot, &request), timeout).await };
    let explanation = admin.runtime().spawn(answered).await.map_err(|error| failed(&error))?;
    Ok(Json(explanation).into_response())
}
