//! `/replicas`: the instances that share the store with this process, and the rules by which each decides.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::routing::get;
use axum::{Json, Router};

use super::admin::{Admin, Refusal};
use super::query::Query;
use crate::shared::fleet::FleetReport;
use crate::store::Store;
use crate::survey::{self, RatesQuestion, Scope};

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/replicas", get(report::<S>)).with_state(admin)
}

/// Handles `GET /replicas?rates=true`; the parameter is optional. With it, each instance is asked for its decisions a
/// second.
async fn report<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    RawQuery(query): RawQuery,
) -> Result<Json<FleetReport>, Refusal> {
    let with_rates = Query::read(query.as_deref(), &["rates"])?.flag("rates")?;
    let rates = match with_rates {
        true => admin.survey().ask(RatesQuestion::default(), Scope::Fleet, survey::merge_rates).await,
        false => None,
    };
    let mut report = admin.fleet().report();
    if let Some(rates) = rates {
        report.add_rates(&rates);
    }
    Ok(Json(report))
}
