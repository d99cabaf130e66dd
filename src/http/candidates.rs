//! `/candidates`: decisions that candidate rules would change. Read-only: promoting candidates means writing files, and
//! needs the permission to write them; see `tollgate promote`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use tokio::task::spawn_blocking;

use super::admin::{Admin, Refusal, failed, refuse};
use crate::observe::candidates::Report;
use crate::store::Store;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/candidates", get(report::<S>)).with_state(admin)
}

/// Handles `GET /candidates`.
async fn report<S: Store>(State(admin): State<Arc<Admin<S>>>) -> Result<Json<Report>, Refusal> {
    let Some(candidates) = admin.observed().candidates.clone() else {
        return Err(refuse(StatusCode::NOT_FOUND, "there are no candidate rules: set CANDIDATE_RULES"));
    };
    spawn_blocking(move || candidates.report()).await.map(Json).map_err(failed)
}
