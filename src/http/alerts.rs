//! `POST /adjustments/alerts`: alerts that begin and end adjustments, as Alertmanager's webhook tells of them.
//!
//! An alert asks for an adjustment by its annotation `tollgate`, which has the body of `POST /adjustments`. The
//! adjustment's ID derives from the alert, so an alert that is told again, or by several Alertmanagers, begins one.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::adjustments::{begin, end, written};
use super::admin::{Admin, Reason, Refusal, refuse};
use super::client::{Change, Client};
use super::json::whole;
use crate::engine::adjustment::{Id, Shown, Written};
use crate::engine::printable::printable;
use crate::store::Store;

/// Largest message in bytes.
const MOST_BYTES: usize = 1024 * 1024;
/// Most alerts of a message that ask for an adjustment: each is a call to Redis.
const MOST: usize = 100;
/// The annotation with the adjustment.
const ANNOTATION: &str = "tollgate";
/// The duration of an adjustment that names none.
const LASTS: &str = "30m";
/// The author, if the token has no name.
const WHO: &str = "alertmanager";
/// The longest reason in characters, as for all adjustments.
const WHY: usize = 500;

/// The message of Alertmanager's webhook, version 4, as far as it matters here. Grafana sends the same fields.
#[derive(Deserialize)]
struct Message {
    alerts: Vec<Alert>,
}

#[derive(Deserialize)]
struct Alert {
    status: Status,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    /// A hash of the labels.
    #[serde(default)]
    fingerprint: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Firing,
    Resolved,
}

/// What the alerts of a message have done: the IDs of adjustments.
#[derive(Default, Serialize)]
struct Told {
    begun: Vec<String>,
    /// Those that were in force before, and stay as they are.
    in_force: Vec<String>,
    ended: Vec<String>,
    /// Those of resolved alerts that were not in force any more.
    gone: Vec<String>,
    /// Number of alerts that ask for no adjustment.
    ignored: usize,
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    alert: String,
    error: String,
    #[serde(skip)]
    status: StatusCode,
}

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/adjustments/alerts", post(told)).with_state(admin)
}

/// Handles the message. If an alert fails, the others take effect all the same, and the status is that of the failure:
/// Alertmanager repeats a message that is answered with a 5xx.
async fn told<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    Extension(client): Extension<Client>,
    body: Body,
) -> Result<Response, Refusal> {
    client.may(Change::Adjust(None))?;
    let body = whole(body, (MOST_BYTES, "a message of alerts")).await?;
    let Message { alerts } = serde_json::from_slice(&body).map_err(|error| {
        let example = json!({"alerts": [{
            "status": "firing", "fingerprint": "a1b2", "labels": {"alertname": "Flood"},
            "annotations": {"summary": "a flood", ANNOTATION: r#"{"effect": "block", "domain": "shop"}"#},
        }]});
        let reason = format!("not a message of Alertmanager's webhook ({error}): it is such as {example}");
        refuse(StatusCode::BAD_REQUEST, reason)
    })?;
    let (wanted, others): (Vec<Alert>, Vec<Alert>) =
        alerts.into_iter().partition(|alert| alert.annotations.contains_key(ANNOTATION));
    if wanted.len() > MOST {
        let reason = format!(
            "{} alerts ask for an adjustment, and a message may have {MOST}: group fewer of them (group_by), or set \
             max_alerts for this receiver",
            wanted.len()
        );
        return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, reason));
    }
    let mut told = Told { ignored: others.len(), ..Told::default() };
    // What this instance knows may be half a second old. If the store is down, it counts all the same.
    let _ = admin.adjustments().read().await;
    for alert in &wanted {
        if let Err(refusal) = alert.take(&admin, &client, &mut told).await {
            let (alert, reason) = (printable(alert.name()).to_string(), refusal.reason());
            tracing::warn!(alert, reason, "an alert has not changed limits as it asks");
            told.failed.push(Failed { alert, error: reason.to_owned(), status: refusal.status() });
        }
    }
    Ok(answer(&told))
}

/// Answers with the gravest status of the failures.
fn answer(told: &Told) -> Response {
    let Some(status) = told.failed.iter().map(|failed| failed.status).max() else {
        return Json(told).into_response();
    };
    let errors = told.failed.iter().map(|Failed { alert, error, .. }| format!("{alert}: {error}"));
    let error = errors.collect::<Vec<_>>().join("; ");
    let Told { begun, in_force, ended, gone, ignored, failed } = told;
    let body = json!({
        "error": error, "begun": begun, "in_force": in_force, "ended": ended, "gone": gone, "ignored": ignored,
        "failed": failed,
    });
    (status, Extension(Reason(error.into())), Json(body)).into_response()
}

impl Alert {
    fn name(&self) -> &str {
        self.labels.get("alertname").map_or("an alert", String::as_str)
    }

    fn id(&self) -> Result<Id, Refusal> {
        let Alert { fingerprint, .. } = self;
        let id = Some(format!("alert-{fingerprint}")).filter(|_| !fingerprint.is_empty());
        id.and_then(|id| Id::parse(&id)).ok_or_else(|| {
            refuse(
                StatusCode::BAD_REQUEST,
                "the alert needs a fingerprint of letters and digits, as Alertmanager sends",
            )
        })
    }

    /// Returns why, in one line: the summary, or what the alert is called.
    fn why(&self) -> String {
        let words = ["summary", "description"].iter().find_map(|name| self.annotations.get(*name));
        let words = words.map_or(self.name(), String::as_str);
        let line: String = words.chars().map(|char| if char.is_control() { ' ' } else { char }).take(WHY).collect();
        if line.trim().is_empty() { "an alert".to_owned() } else { line }
    }

    fn written(&self, id: &Id) -> Result<Written, Refusal> {
        let text = self.annotations.get(ANNOTATION).map_or("", String::as_str);
        let written = written(text.as_bytes())
            .map_err(|refusal| refuse(refusal.status(), format!("annotation {ANNOTATION}: {}", refusal.reason())))?;
        let given = |field: String, otherwise: String| if field.is_empty() { otherwise } else { field };
        let (who, why) = (given(written.who.clone(), WHO.to_owned()), given(written.why.clone(), self.why()));
        let lasts = written.lasts.clone().or_else(|| Some(LASTS.to_owned()));
        Ok(Written { id: Some(id.to_string()), who, why, lasts, ..written })
    }

    /// Begins the adjustment of an alert that fires, or ends that of one that is resolved.
    async fn take<S: Store>(&self, admin: &Admin<S>, client: &Client, told: &mut Told) -> Result<(), Refusal> {
        let id = self.id()?;
        let is_in_force = || {
            let list = admin.adjustments().list();
            let ends = |one: &Shown| one.only_here.as_ref().is_some_and(|here| here.ended);
            list.iter().any(|one| one.written.id.as_deref() == Some(id.as_str()) && !ends(one))
        };
        match self.status {
            Status::Firing if is_in_force() => told.in_force.push(id.to_string()),
            Status::Firing => match begin(admin, client, self.written(&id)?, true).await {
                Ok(_) => told.begun.push(id.to_string()),
                // Another instance was told at the same time, in other words.
                Err(_) if is_in_force() => told.in_force.push(id.to_string()),
                Err(refusal) => return Err(refusal),
            },
            Status::Resolved => match end(admin, client, &id, (WHO, "the alert is resolved"), true).await {
                Ok(_) => told.ended.push(id.to_string()),
                Err(refusal) if refusal.status() == StatusCode::NOT_FOUND => told.gone.push(id.to_string()),
                Err(refusal) => return Err(refusal),
            },
        }
        Ok(())
    }
}
