//! `/log`: the latest log lines of all instances.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{HEADERS, Shown};
use crate::http::admin::{Refusal, refuse};
use crate::http::query::Query;
use crate::store::Store;
use crate::survey::{self, Instances, LogLine, LogPart, LogQuestion, Parts};

/// Default number of lines, and the most.
const LINES: usize = 200;
const MOST_LINES: usize = 2_000;

/// The least levels that a client may ask for; empty for all lines.
const LEVELS: [&str; 4] = ["ERROR", "WARN", "INFO", ""];

/// Log lines, the newest first.
#[derive(Serialize)]
struct Answer {
    instances: Instances,
    lines: Vec<LogLine>,
}

/// Handles `GET /log?level=WARN&search=redis&limit=200`; each parameter is optional.
pub(super) async fn answer<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = Query::read(query.as_deref(), &["level", "search", "limit", "instance"])?;
    let question = LogQuestion {
        level: query.one_of("level", &LEVELS, |level| level)?.unwrap_or_default().to_owned(),
        search: query.owned("search"),
        most: query.number("limit", 1..=MOST_LINES)?.unwrap_or(LINES),
    };
    let asked = query.scope()?;
    let most = question.most;
    let merge = move |parts: Parts<LogPart>| Answer {
        instances: parts.instances.clone(),
        lines: survey::merge_log(parts, most),
    };
    match shown.admin.survey().ask(question, asked, merge).await {
        Some(answer) => Ok((HEADERS, Json(answer)).into_response()),
        None => Err(refuse(StatusCode::NOT_FOUND, "this instance keeps no log lines")),
    }
}
