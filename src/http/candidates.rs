//! `/candidates`: decisions that candidate rules would change, over all instances. Read-only: promoting them means
//! writing files, and needs the permission to write them; see `tollgate promote`.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use super::admin::{Admin, Refusal, refuse};
use super::query::Query;
use crate::observe::candidates::Report;
use crate::store::Store;
use crate::survey::{self, CandidatesQuestion, Instances, Parts};

/// The results, and where they are from.
#[derive(Serialize)]
struct Answer {
    instances: Instances,
    #[serde(flatten)]
    report: Report,
}

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/candidates", get(report::<S>)).with_state(admin)
}

/// Handles `GET /candidates?instance=self`; the parameter is optional.
async fn report<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Answer>, Refusal> {
    let asked = Query::read(query.as_deref(), &["instance"])?.scope()?;
    let none = || refuse(StatusCode::NOT_FOUND, "there are no candidate rules: set CANDIDATE_RULES");
    let merge = |parts: Parts<Report>| {
        Some(Answer { instances: parts.instances.clone(), report: survey::merge_candidates(parts)? })
    };
    let answer = admin.survey().ask(CandidatesQuestion::default(), asked, merge).await;
    answer.flatten().map(Json).ok_or_else(none)
}
