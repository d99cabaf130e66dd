//! `/log`: the latest log lines of all instances.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{HEADERS, Shown};
use crate::http::admin::{Refusal, refuse, scope};
use crate::store::Store;
use crate::survey::{self, Instances, LogLine, LogQuestion, Scope};

/// Default number of lines, and the most.
const LINES: usize = 200;
const MOST_LINES: usize = 2_000;

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
    let (mut question, mut asked) = (LogQuestion { most: LINES, ..LogQuestion::default() }, Scope::Fleet);
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let wrong =
            |right: &str| refuse(StatusCode::BAD_REQUEST, format!("{key}={value} in the query of /log: {right}"));
        match &*key {
            "level" if ["ERROR", "WARN", "INFO", ""].contains(&&*value) => question.level = value.into_owned(),
            "level" => return Err(wrong("write ERROR, WARN or INFO")),
            "search" => question.search = value.into_owned(),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=MOST_LINES).contains(limit));
                question.most = limit.ok_or_else(|| wrong("write a whole number from 1 to 2000"))?;
            }
            "instance" => asked = scope(&value)?,
            _ => return Err(wrong("write level, search, limit or instance")),
        }
    }
    let most = question.most;
    let Some(parts) = shown.admin.survey().ask(question, asked).await else {
        return Err(refuse(StatusCode::NOT_FOUND, "this instance keeps no log lines"));
    };
    let instances = parts.instances.clone();
    Ok((HEADERS, Json(Answer { instances, lines: survey::merge_log(parts, most) })).into_response())
}
