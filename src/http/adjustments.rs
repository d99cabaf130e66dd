//! `/adjustments`: temporary changes to limits.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use super::admin::{Admin, Refusal, failed, refuse};
use super::client::{Change, Client};
use super::json::whole;
use super::query::Query;
use super::what_if::{OfInstances, others, replay};
use crate::engine::adjustment::{Id, Shown, Written};
use crate::observe::redaction::Values;
use crate::observe::what_if::{Adjusted, Previewable, WhatIfError};
use crate::shared::adjustment::{AdjustmentError, By, EndHolds, Previewed};
use crate::store::Store;

/// Largest body of a request in bytes. No adjustment is longer.
const MOST_BYTES: usize = 64 * 1024;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    let router = Router::new().route("/adjustments", any(all)).route("/adjustments/{id}", any(one));
    router.route("/adjustments/preview", post(preview)).with_state(admin)
}

/// Handles `/adjustments`: `GET` lists the adjustments in force, `POST` starts one.
async fn all<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Refusal> {
    match method {
        Method::GET => {
            let list = serde_json::to_value(admin.adjustments().list()).map_err(failed)?;
            Ok(Json(showing(admin.values(&client), list)).into_response())
        }
        Method::POST => {
            client.may(Change::Adjust(None))?;
            let fleet = Query::read(query.as_deref(), &["fleet"])?.flag("fleet")?;
            let written = written(&whole(body, (MOST_BYTES, "an adjustment")).await?)?;
            let shown = begin(&admin, &client, written, fleet).await?;
            Ok((StatusCode::CREATED, Json(shown)).into_response())
        }
        _ => Err(refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "use GET to list, POST to create, and DELETE /adjustments/ID to end",
        )),
    }
}

/// Begins an adjustment if the client may.
pub(super) async fn begin<S: Store>(
    admin: &Admin<S>,
    client: &Client,
    written: Written,
    fleet: bool,
) -> Result<Shown, Refusal> {
    client.may(change(written.everything, written.domain.as_deref()))?;
    let written = Written { who: client.who(&written.who), ..written };
    Ok(admin.adjustments().begin(&written, client.role().name(), fleet).await?)
}

/// Handles `POST /adjustments/preview`, with the body of `POST /adjustments`: what the adjustment would have done to
/// the recorded requests. It changes nothing, so clients that may only read may ask.
async fn preview<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Refusal> {
    let asked = Query::read(query.as_deref(), &["instance"])?.scope()?;
    let written = written(&whole(body, (MOST_BYTES, "an adjustment")).await?)?;
    let previewed = admin.adjustments().preview(&written).await?;
    let what_if = admin.observed().what_if.clone();
    let turn = admin.replays().turn(&client).await?;
    let (others, instances) = others(&admin, asked).await;
    let shown = replay(turn, move || {
        let Previewed { id, rules, before, after, note } = &previewed;
        let adjusted = Adjusted { rules, before: before.as_deref(), after, id };
        let preview = what_if.map(|what_if| what_if.preview(adjusted, &others)).transpose()?.unwrap_or_default();
        Ok::<_, WhatIfError>(Previewable { limits: adjusted.limits(), note: note.clone(), preview })
    });
    Ok(Json(OfInstances { instances, answer: shown.await?? }).into_response())
}

/// Handles `/adjustments/ID`: `DELETE ?who=ann&why=over` ends the adjustment.
async fn one<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    Path(id): Path<String>,
    method: Method,
    uri: Uri,
    Extension(client): Extension<Client>,
) -> Result<Response, Refusal> {
    if method != Method::DELETE {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "use DELETE to end it, GET /adjustments to list all"));
    }
    client.may(Change::Adjust(None))?;
    let query = Query::read(uri.query(), &["who", "why", "fleet"])?;
    let (who, why) = (query.text("who").unwrap_or_default(), query.owned("why"));
    let id = Id::parse(&id).ok_or_else(|| refuse(StatusCode::NOT_FOUND, "no adjustment has this id"))?;
    let ended = match end(&admin, &client, &id, (who, &why), query.flag("fleet")?).await? {
        EndHolds::Everywhere => json!({ "ended": id.as_str() }),
        EndHolds::Here(only_here) => json!({ "ended": id.as_str(), "only_here": only_here }),
    };
    Ok(Json(ended).into_response())
}

/// Ends an adjustment if the client may.
pub(super) async fn end<S: Store>(
    admin: &Admin<S>,
    client: &Client,
    id: &Id,
    (who, why): (&str, &str),
    fleet: bool,
) -> Result<EndHolds, Refusal> {
    if client.domains().is_some() {
        // What this instance knows may be half a second old.
        let read = admin.adjustments().read().await;
        let mut list = admin.adjustments().list();
        // One of the store and one of this instance alone may have the same ID.
        list.retain(|one| one.written.id.as_deref() == Some(id.as_str()));
        if list.is_empty() {
            read.map_err(|cause| AdjustmentError::unavailable(id, cause))?;
            return Err(AdjustmentError::Unknown(id.clone()).into());
        }
        for Shown { written: Written { everything, domain, .. }, .. } in &list {
            client.may(change(*everything, domain.as_deref()))?;
        }
    }
    let by = By { who: &client.who(who), why, role: client.role().name() };
    Ok(admin.adjustments().end(id, by, fleet).await?)
}

/// Returns the change to limits of this domain. An adjustment that names no target is refused for that.
fn change(everything: bool, domain: Option<&str>) -> Change<'_> {
    if everything { Change::AdjustEverything } else { Change::Adjust(domain) }
}

/// Returns the list with the values and patterns of descriptors shown as `values` says.
pub(super) fn showing(values: &Values, mut list: Value) -> Value {
    for one in list.as_array_mut().into_iter().flatten() {
        let Some(one) = one.as_object_mut() else { continue };
        let several = one.get_mut("descriptors").and_then(Value::as_array_mut).into_iter().flatten();
        several.for_each(|entries| show(values, entries));
        one.get_mut("entries").into_iter().for_each(|entries| show(values, entries));
    }
    list
}

/// Shows the values and patterns of a descriptor as `values` says.
fn show(values: &Values, entries: &mut Value) {
    for entry in entries.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        for field in ["value", "pattern"] {
            let Some(Value::String(value)) = entry.remove(field) else { continue };
            entry.extend(values.shown(&value).map(|shown| (field.to_owned(), Value::from(&*shown))));
        }
    }
}

pub(super) fn written(body: &[u8]) -> Result<Written, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        let example = json!({
            "effect": "scale", "share": "10%", "domain": "shop", "who": "ann", "why": "an incident", "for": "30m"
        });
        refuse(StatusCode::BAD_REQUEST, format!("not an adjustment ({error}): send one such as {example}"))
    })
}

impl From<AdjustmentError> for Refusal {
    fn from(error: AdjustmentError) -> Refusal {
        let status = match error {
            AdjustmentError::Mistakes(_) => StatusCode::BAD_REQUEST,
            AdjustmentError::Unmatched(_) | AdjustmentError::Unknown(_) => StatusCode::NOT_FOUND,
            AdjustmentError::Taken(_) | AdjustmentError::Full => StatusCode::CONFLICT,
            AdjustmentError::NoRules | AdjustmentError::Unreached(_) | AdjustmentError::Store { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        refuse(status, error)
    }
}
