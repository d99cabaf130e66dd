//! `/overview`: the last fifteen minutes of all instances.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::data::{LimitLine, Sort, Wanted};
use super::{HEADERS, Shown};
use crate::http::admin::{Refusal, refuse, scope};
use crate::store::Store;
use crate::survey::{self, Instances, Overview, OverviewQuestion, Scope};

/// Number of limits shown.
const LIMITS: usize = 8;

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
    let mut asked = Scope::Fleet;
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match &*key {
            "instance" => asked = scope(&value)?,
            _ => return Err(refuse(StatusCode::BAD_REQUEST, "the parameter is instance")),
        }
    }
    let wanted = Wanted { sort: Sort::Denials, limit: LIMITS, ..Wanted::default() };
    let overview = shown.admin.survey().ask(OverviewQuestion::default(), asked);
    let (overview, listing) = tokio::join!(overview, shown.listing(wanted, asked));
    let (limits, parts) = (listing?.0.limits, overview);
    let Some(parts) = parts else {
        return Err(refuse(StatusCode::NOT_FOUND, "no history is recorded at this instance"));
    };
    let overview = survey::merge_overview(&parts);
    Ok((HEADERS, Json(Answer { instances: parts.instances, overview, limits })).into_response())
}
