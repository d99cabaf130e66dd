//! `/overview`: the last fifteen minutes of all instances.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::data::{LimitLine, Sort, Wanted};
use super::{HEADERS, Shown};
use crate::http::admin::{Refusal, refuse};
use crate::http::query::Query;
use crate::store::Store;
use crate::survey::{self, Instances, LimitsQuestion, Overview, OverviewPart, OverviewQuestion, Parts};

/// Number of limits shown.
const LIMITS: usize = 8;

/// Number of limits that each instance counts: a limit may be among the first over all instances without being so at
/// each.
const BUSIEST: usize = 16 * LIMITS;

/// The last minutes, with the limits that deny the most.
#[derive(Serialize)]
struct Answer {
    instances: Instances,
    #[serde(flatten)]
    overview: Overview,
    limits: Vec<LimitLine>,
}

/// Handles `GET /overview?instance=self`; the parameter is optional.
pub(super) async fn answer<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let asked = Query::read(query.as_deref(), &["instance"])?.scope()?;
    let limits = LimitsQuestion { busiest: BUSIEST, ..LimitsQuestion::default() };
    let question = OverviewQuestion { limits, ..OverviewQuestion::default() };
    let merge = |mut parts: Parts<OverviewPart>| {
        let of_limits = |(id, part): &mut (String, OverviewPart)| (id.clone(), std::mem::take(&mut part.limits));
        let of_limits = parts.parts.iter_mut().map(of_limits).collect();
        let counts = survey::merge_limits(Parts { parts: of_limits, instances: Instances::default() });
        (survey::merge_overview(&parts), counts, parts.instances)
    };
    let Some((overview, counts, instances)) = shown.admin.survey().ask(question, asked, merge).await else {
        return Err(refuse(StatusCode::NOT_FOUND, "no history is recorded at this instance"));
    };
    let wanted = Wanted { sort: Sort::Denials, limit: LIMITS, ..Wanted::default() };
    let limits = shown.list(wanted, counts).await?.limits;
    Ok((HEADERS, Json(Answer { instances, overview, limits })).into_response())
}
