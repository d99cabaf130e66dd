//! `/explain`: why a request is limited or not. Read-only.
//!
//! It needs a token, as `/counters` does: rules show how far each client may go, and counters show the use of each. One
//! permission for both is easier to watch than two. People who have the rules files need no service: `tollgate explain
//! --rules`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use tokio::task::spawn_blocking;

use super::admin::{Admin, Question, Refusal, failed, refuse};
use crate::engine::explain;
use crate::inspect::running;
use crate::store::Store;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/explain", any(answer)).with_state(admin)
}

/// Handles `GET /explain?domain=shop&user=ann`; `&%2B=` starts another descriptor of the same request.
async fn answer<S: Store>(State(admin): State<Arc<Admin<S>>>, question: Question) -> Result<Response, Refusal> {
    let Question { method, domain, descriptors, limit } = question;
    if method != Method::GET {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "GET explains"));
    }
    let request = explain::request(&domain, descriptors, limit);
    let _turn = admin.explaining().acquire().await.map_err(failed)?;
    let (limiter, snapshot) = (admin.limiter(), admin.limiter().snapshot());
    let explained = spawn_blocking(move || {
        let explanation = running::explain(&limiter, &snapshot, &request);
        (explanation, snapshot, request)
    });
    let (explanation, snapshot, request) = explained.await.map_err(failed)?;
    let (limiter, timeout) = (admin.limiter(), admin.store_timeout());
    let answered = async move { running::add_state(&limiter, explanation, (&snapshot, &request), timeout).await };
    let explanation = admin.runtime().spawn(answered).await.map_err(failed)?;
    Ok(Json(explanation).into_response())
}
