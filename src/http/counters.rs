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
use crate::inspect::{Action, CounterError, CounterOf};
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
    let note = Note {
        who: Some(client.holder().to_owned()),
        role: Some(client.role().name().to_owned()),
        instance: admin.adjustments().instance().map(str::to_owned),
        domain: Some(domain.clone()),
        entries: entries.clone(),
        ..Note::default()
    };
    let descriptor = CounterOf { domain, entries, limit };
    let (limiter, timeout) = (admin.limiter(), admin.store_timeout());
    let acted =
        admin.runtime().spawn(async move { running::counters(&limiter, action, descriptor, timeout).await }).await;
    match acted {
        Ok(Ok(counters)) => {
            if action == Action::Reset {
                let rules: Vec<&str> = counters.iter().map(|counter| counter.rule.as_str()).collect();
                let effect = Some(format!("counters of {}", rules.join(", ")));
                admin.adjustments().audit().record(audit::Action::Reset, Note { effect, ..note });
            }
            Ok(Json(counters).into_response())
        }
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
