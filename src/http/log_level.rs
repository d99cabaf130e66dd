//! `/log-level`: the levels of the log, which change without a restart.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Json, Router};
use serde_json::json;

use super::admin::{Admin, Refusal, refuse};
use super::client::{Change, Client};
use super::json::whole;
use super::query::Query;
use crate::shared::adjustment::audit::{Action, Note};
use crate::store::Store;
use crate::telemetry::{LevelControl, LogLevels};

/// Largest body of a request in bytes.
const MOST_BYTES: usize = 1024;

/// Longest time after which the level of the settings returns. Who wants it for longer sets `LOG_LEVEL`.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/log-level", any(all::<S>)).with_state(admin)
}

/// Handles `/log-level`: `GET` shows the levels, `PUT ?for=10m` with levels as the body changes them, for this time or
/// until the process ends, and `DELETE` puts those of the settings in force.
async fn all<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    uri: Uri,
    Extension(client): Extension<Client>,
    body: Body,
) -> Result<Response, Refusal> {
    if !method.is_safe() {
        client.may(Change::LogLevel)?;
    }
    let control = admin.levels().ok_or_else(|| refuse(StatusCode::NOT_FOUND, "this process writes no log"))?;
    match method {
        Method::GET | Method::HEAD => {}
        Method::PUT => {
            let time = time(&uri)?;
            let body = whole(body, (MOST_BYTES, "levels")).await?;
            let levels: LogLevels = match std::str::from_utf8(&body).map(str::trim) {
                Ok(text) => text.parse().map_err(|error| refuse(StatusCode::BAD_REQUEST, error))?,
                Err(_) => return Err(refuse(StatusCode::BAD_REQUEST, "send levels as LOG_LEVEL has them, as text")),
            };
            let change = control.set(levels.clone(), time, client.role().name());
            let lasts = time.map(|time| format!(" for {}", humantime::format_duration(time))).unwrap_or_default();
            note(&admin, &client, format!("{levels}{lasts}"));
            if let Some(time) = time {
                let control = control.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    control.end(change);
                });
            }
        }
        Method::DELETE => {
            control.set(control.configured().clone(), None, client.role().name());
            note(&admin, &client, format!("{}, as LOG_LEVEL says", control.configured()));
        }
        _ => {
            let ways = "use GET to read it, PUT to change it, DELETE to return to LOG_LEVEL";
            return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, ways));
        }
    }
    Ok(Json(shown(control)).into_response())
}

/// Records the change in the audit trail.
fn note<S>(admin: &Admin<S>, client: &Client, effect: String) {
    let note = Note { target: Some("log".to_owned()), effect: Some(effect), ..admin.note(client) };
    admin.adjustments().audit().record(Action::LogLevel, note);
}

fn shown(control: &LevelControl) -> serde_json::Value {
    let (level, left) = control.current();
    json!({
        "level": level.to_string(),
        "configured": control.configured().to_string(),
        "ends_in_ms": left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
    })
}

fn time(uri: &Uri) -> Result<Option<Duration>, Refusal> {
    let query = Query::read(uri.query(), &["for"])?;
    let Some(value) = query.text("for") else { return Ok(None) };
    let time = humantime::parse_duration(value).ok().filter(|time| !time.is_zero() && *time <= LONGEST);
    let wrong = || refuse(StatusCode::BAD_REQUEST, format!("for={value}: write a time such as for=10m, up to 7d"));
    time.map(Some).ok_or_else(wrong)
}
