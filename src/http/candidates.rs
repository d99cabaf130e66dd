//! `/candidates`: decisions that candidate rules would change, over all instances, and their promotion, if the settings
//! permit it.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::admin::{Admin, Refusal, failed, refuse};
use super::client::{Change, Client};
use super::query::Query;
use crate::engine::adjustment::check_words;
use crate::observe::candidates::Report;
use crate::shared::adjustment::audit::{Action, Note};
use crate::sources::files::promote::{PromoteError, Promoted};
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
    let router = Router::new().route("/candidates", get(report::<S>));
    router.route("/candidates/promote", post(promote::<S>)).with_state(admin)
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

/// Handles `POST /candidates/promote?expect=VERSION&why=reason`: puts the candidates in place of the rules in the files
/// of this instance, which reads them as any change. `who` is optional for a token with a name.
async fn promote<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refusal> {
    client.may(Change::Promote)?;
    let none = || refuse(StatusCode::NOT_FOUND, "this instance promotes no rules: set PROMOTE_FOLDER");
    let promotion = Arc::clone(admin.promotion().ok_or_else(none)?);
    let query = Query::read(query.as_deref(), &["expect", "who", "why"])?;
    let bad = |said: &str| refuse(StatusCode::BAD_REQUEST, said);
    let version = || bad("expect: name the version of the candidates that you have seen, from GET /candidates");
    let expected = query.text("expect").ok_or_else(version)?.to_owned();
    let (who, why) = (client.who(query.text("who").unwrap_or_default()), query.owned("why"));
    check_words(&who, &why).map_err(|mistakes| bad(&mistakes.to_string()))?;
    let note = Note { who: Some(who), why: Some(why), ..admin.note(&client) };
    let audit = Arc::clone(admin.adjustments().audit());
    // Goes on if the client leaves, and is recorded.
    let promote = spawn_blocking(move || {
        let promoted = promotion.lock().run(Some(&expected))?;
        if let Some(kept) = &promoted.kept {
            let Note { who, why, role, .. } = &note;
            let (rules, version) = (promoted.rules.display(), &promoted.version);
            tracing::warn!(%rules, version, who, why, role, "an operator has promoted the candidate rules");
            let target = Some(format!("rules {rules}"));
            let reason = Some(format!("version {version}; the previous rules are in {}", kept.display()));
            audit.record(Action::Promoted, Note { target, reason, ..note });
        }
        Ok::<_, PromoteError>(promoted)
    });
    let Promoted { rules, kept, version, changes, .. } = promote.await.map_err(failed)??;
    Ok(Json(json!({ "rules": rules, "version": version, "kept": kept, "changes": changes })))
}

impl From<PromoteError> for Refusal {
    fn from(error: PromoteError) -> Refusal {
        let status = match error {
            PromoteError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::CONFLICT,
        };
        refuse(status, error)
    }
}
