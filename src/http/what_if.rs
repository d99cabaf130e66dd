//! `/what-if`: the effect of another number on recorded requests. Read-only: rules change in their files.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::admin::{Admin, Refusal, failed, refuse};
use crate::engine::algorithm::Algorithm;
use crate::observe::what_if::{Question, WhatIf, WhatIfError};
use crate::store::Store;

/// Shared state of both paths.
struct Asked<S> {
    admin: Arc<Admin<S>>,
    /// Admits one replay at a time, even after its client has left: a replay takes a core for a while.
    replaying: Arc<Semaphore>,
    /// Limits readers of the log: a log that is being read keeps all requests of the moment when it was requested.
    reading: Arc<Semaphore>,
}

/// Most logs that may be read at once.
const READERS: usize = 2;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    let [replaying, reading] = [1, READERS].map(|permits| Arc::new(Semaphore::new(permits)));
    let asked = Arc::new(Asked { admin, replaying, reading });
    Router::new().route("/what-if", get(answer::<S>)).route("/what-if/log", get(log::<S>)).with_state(asked)
}

impl<S: Store> Asked<S> {
    fn what_if(&self) -> Result<Arc<WhatIf>, Refusal> {
        let none = || refuse(StatusCode::NOT_FOUND, "no requests are recorded: set WHAT_IF_REQUESTS");
        self.admin.observed().what_if.clone().ok_or_else(none)
    }
}

/// Handles `GET /what-if?domain=shop&rule=per-user&number=7&algorithm=token_bucket&period_ms=60000&suggest=…`. Without
/// a rule it lists the rules to ask about. With one, all parameters but the domain and the rule are optional.
async fn answer<S: Store>(State(asked): State<Arc<Asked<S>>>, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let what_if = asked.what_if()?;
    let question = question(query.as_deref().unwrap_or_default())?;
    let turn = Arc::clone(&asked.replaying).acquire_owned().await.map_err(failed)?;
    let told = spawn_blocking(move || {
        let _turn = turn;
        match question {
            Some(question) => what_if.ask(&question).map(|told| Json(told).into_response()),
            None => what_if.overview().map(|told| Json(told).into_response()),
        }
    });
    told.await.map_err(failed)?.map_err(|error| {
        let status = match &error {
            WhatIfError::NoLimit(..) => StatusCode::NOT_FOUND,
            WhatIfError::Limit(_) | WhatIfError::Concurrency => StatusCode::BAD_REQUEST,
            WhatIfError::NoRules | WhatIfError::NoRoom | WhatIfError::TooLong => StatusCode::SERVICE_UNAVAILABLE,
        };
        refuse(status, error)
    })
}

/// Handles `GET /what-if/log`: the recorded requests, as lines that `tollgate replay` reads.
async fn log<S: Store>(State(asked): State<Arc<Asked<S>>>) -> Result<Response, Refusal> {
    let what_if = asked.what_if()?;
    let Ok(turn) = Arc::clone(&asked.reading).try_acquire_owned() else {
        return Err(refuse(
            StatusCode::TOO_MANY_REQUESTS,
            format!("{READERS} clients are reading the log: try again later"),
        ));
    };
    let lines = what_if.log().map(move |lines| {
        let _turn = &turn;
        Ok::<_, Infallible>(lines)
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
    Ok((kind, Body::from_stream(stream::iter(lines))).into_response())
}

/// Parses the question of a query; `None` if it names no rule.
fn question(query: &str) -> Result<Option<Question>, Refusal> {
    if query.is_empty() {
        return Ok(None);
    }
    let mut question = Question::default();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong = |right: &dyn std::fmt::Display| {
            refuse(StatusCode::BAD_REQUEST, format!("{key}={value} in the query of /what-if: {right}"))
        };
        match &*key {
            "domain" => question.domain = value.into_owned(),
            "rule" => question.rule = value.into_owned(),
            "number" => question.number = Some(value.parse().map_err(|_| wrong(&"write a whole number"))?),
            "period_ms" => question.period_ms = Some(value.parse().map_err(|_| wrong(&"write milliseconds"))?),
            "algorithm" => {
                let algorithm = Algorithm::ALL.iter().find(|algorithm| algorithm.name() == value);
                question.algorithm = Some(*algorithm.ok_or_else(|| wrong(&"unknown algorithm"))?);
            }
            "suggest" => question.goal = Some(value.parse().map_err(|error| wrong(&error))?),
            _ => return Err(wrong(&"write domain, rule, number, algorithm, period_ms or suggest")),
        }
    }
    match question.domain.is_empty() || question.rule.is_empty() {
        true => Err(refuse(StatusCode::BAD_REQUEST, "name a limit: its domain and rule, as in metrics")),
        false => Ok(Some(question)),
    }
}
