//! `/counters`: reading and resetting counters by hand.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Json, Router};

use super::admin::{Admin, Question, Refusal, failed, refuse};
use super::client::{Change, Client};
use crate::inspect::running;
use crate::inspect::{Action, Counter, CounterError, CounterOf};
use crate::shared::adjustment::audit::{self, Note};
use crate::store::Store;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/counters", any(act)).with_state(admin)
}

/// Handles `GET /counters?domain=shop&user=ann`, which reads the counters of `(user=ann)`; `DELETE` resets them.
async fn act<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    Extension(client): Extension<Client>,
    question: Question,
) -> Result<Response, Refusal> {
    let action = match question.method {
        Method::GET => Action::Get,
        Method::DELETE => Action::Reset,
        _ => return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "use GET to read, DELETE to reset")),
    };
    let Question { domain, descriptors, limit, .. } = question;
    if action == Action::Reset {
        client.may(Change::Reset(Some(&domain)))?;
    }
    let Ok([entries]) = <[_; 1]>::try_from(descriptors) else {
        return Err(refuse(StatusCode::BAD_REQUEST, "name the entries of exactly one descriptor"));
    };
    let note = Note { domain: Some(domain.clone()), entries: entries.clone(), ..admin.note(&client) };
    let descriptor = CounterOf { domain, entries, limit };
    let (limiter, timeout) = (admin.limiter(), admin.store_timeout());
    let audit = Arc::clone(admin.adjustments().audit());
    // A reset and its record do not end with the client's connection.
    let act = async move {
        let acted = running::counters(&limiter, action, descriptor, timeout).await;
        if action == Action::Reset
            && let Some(effect) = effect(&acted)
        {
            audit.record(audit::Action::Reset, Note { effect: Some(effect), ..note });
        }
        acted
    };
    match admin.runtime().spawn(act).await {
        Ok(Ok(counters)) => Ok(Json(counters).into_response()),
        Ok(Err(error)) => {
            let status = match error {
                CounterError::NoLimit(_) => StatusCode::NOT_FOUND,
                CounterError::Entry(_) => StatusCode::BAD_REQUEST,
                CounterError::NoRules | CounterError::Store(_) | CounterError::Replica(_) => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
            };
            // The store's own message says what to do.
            match error {
                CounterError::Store(cause) => Err(refuse(status, format!("the store is unavailable: {cause}"))),
                error => Err(refuse(status, error)),
            }
        }
        Err(error) => Err(failed(error)),
    }
}

/// Returns the effect of a reset for the audit trail; `None` if it certainly had none.
fn effect(acted: &Result<Vec<Counter>, CounterError>) -> Option<String> {
    match acted {
        Ok(counters) => {
            let rules: Vec<&str> = counters.iter().map(|counter| counter.rule.as_str()).collect();
            Some(format!("counters of {}", rules.join(", ")))
        }
        // The store may have executed the reset before its reply was lost.
        Err(CounterError::Store(cause)) => Some(format!("counters may have been reset: {cause}")),
        Err(_) => None,
    }
}
