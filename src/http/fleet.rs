//! `/replicas`: the instances that share the store with this process, and the rules by which each decides.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use super::admin::{Admin, Refusal};
use crate::shared::fleet::FleetReport;
use crate::store::Store;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/replicas", get(report::<S>)).with_state(admin)
}

/// Handles `GET /replicas`.
async fn report<S: Store>(State(admin): State<Arc<Admin<S>>>) -> Result<Json<FleetReport>, Refusal> {
    Ok(Json(admin.fleet().report()))
}
