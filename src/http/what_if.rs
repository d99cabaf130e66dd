//! `/what-if`: the effect of another number, or of other rules, on recorded requests. Read-only: rules change in their
//! files. So a client that may only read may send rules, too.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::admin::{Admin, Refusal, failed, refuse};
use super::client::Client;
use super::json::whole;
use super::query::Query;
use super::replays::{Places, Turn};
use crate::engine::algorithm::{Algorithm, MAX_NUMBER};
use crate::engine::rules::Rules;
use crate::evaluate::RuleDifferences;
use crate::observe::redaction::Values;
use crate::observe::what_if::{Compared, Others, Question, Recorded, WhatIf, WhatIfError};
use crate::proposal::{Changes, Invalid, Proposal, Reading, Valid};
use crate::store::Store;
use crate::survey::{self, Instances, Parts, RecordedQuestion, Scope};

/// Shared state of both paths.
struct Asked<S> {
    admin: Arc<Admin<S>>,
    /// Limits clients that send rules: each text is in memory until its turn has come.
    sending: Places,
    /// Limits readers of the log: a log that is being read keeps all requests of the moment when it was requested.
    reading: Arc<Semaphore>,
}

/// Most logs that may be read at once.
const READERS: usize = 2;
/// Most texts of rules that may wait at once. One of these places is kept for clients that may change something.
const SENDERS: usize = 4;
/// Largest text of rules in bytes.
const MOST_BYTES: usize = 1 << 20;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    let (sending, reading) = (Places::new(SENDERS), Arc::new(Semaphore::new(READERS)));
    let asked = Arc::new(Asked { admin, sending, reading });
    let router = Router::new().route("/what-if", get(answer::<S>)).route("/what-if/log", get(log::<S>));
    router.route("/what-if/rules", post(rules::<S>)).with_state(asked)
}

impl<S: Store> Asked<S> {
    fn what_if(&self) -> Result<Arc<WhatIf>, Refusal> {
        let none = || refuse(StatusCode::NOT_FOUND, "no requests are recorded: set WHAT_IF_REQUESTS");
        self.admin.observed().what_if.clone().ok_or_else(none)
    }
}

/// Handles `GET /what-if?domain=shop&rule=per-user&number=7&algorithm=token_bucket&period_ms=60000&suggest=…`. Without
/// a rule it lists the rules to ask about. With one, all parameters but the domain and the rule are optional.
async fn answer<S: Store>(
    State(asked): State<Arc<Asked<S>>>,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let what_if = asked.what_if()?;
    let (question, scope) = question(query.as_deref())?;
    let turn = asked.admin.replays().turn(&client).await?;
    let (others, instances) = others(&asked.admin, scope).await;
    let told = replay(turn, move || match question {
        Some(question) => {
            what_if.ask(&question, &others).map(|answer| Json(OfInstances { instances, answer }).into_response())
        }
        None => what_if.overview(&others).map(|answer| Json(OfInstances { instances, answer }).into_response()),
    });
    Ok(told.await??)
}

/// Runs a replay on another thread. Its turn lasts until it is done, even after its client has left.
pub(super) async fn replay<T: Send + 'static>(
    turn: Turn,
    replay: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let replay = move || {
        let _turn = turn;
        replay()
    };
    spawn_blocking(replay).await.map_err(failed)
}

impl From<WhatIfError> for Refusal {
    fn from(error: WhatIfError) -> Refusal {
        let status = match &error {
            WhatIfError::NoLimit(..) => StatusCode::NOT_FOUND,
            WhatIfError::Limit(_) | WhatIfError::Concurrency => StatusCode::BAD_REQUEST,
            WhatIfError::NoRules | WhatIfError::NoRoom | WhatIfError::TooLong => StatusCode::SERVICE_UNAVAILABLE,
        };
        refuse(status, error)
    }
}

/// The instances whose requests are in an answer, and the answer.
#[derive(Serialize)]
pub(super) struct OfInstances<T> {
    pub(super) instances: Instances,
    #[serde(flatten)]
    pub(super) answer: T,
}

/// Returns the recorded requests of the other instances in a scope, and which instances answered. Without a recorder
/// here, there are none.
pub(super) async fn others<S: Store>(admin: &Admin<S>, scope: Scope) -> (Others, Instances) {
    let merge = move |parts: Parts<Recorded>| match scope {
        // The asked instance alone has its share of each limit.
        Scope::Own => (Others::default(), parts.instances),
        Scope::Fleet => survey::merge_recorded(parts),
    };
    match admin.survey().ask(RecordedQuestion::default(), scope, merge).await {
        Some(merged) => merged,
        None => (Others::default(), Instances { answered: 1, of: 1, ..Instances::default() }),
    }
}

/// The report on a text of rules.
#[derive(Default, Serialize)]
struct Report {
    ok: bool,
    /// Its mistakes, as `tollgate check` prints them.
    mistakes: Option<String>,
    #[serde(flatten)]
    changes: Changes,
    /// Number of recorded requests that were decided by both; `None` if no requests are recorded.
    requests: Option<u64>,
    keys: Option<u64>,
    newly_denied: Option<u64>,
    newly_allowed: Option<u64>,
    rules: Vec<RuleDifferences>,
    more_rules: usize,
    /// Number of seconds that the requests cover.
    seconds: u64,
    sample: f64,
}

/// Handles `POST /what-if/rules?file=PATH` with the text of a rules file: checks it, and compares it with the rules in
/// force. Without a file, the text stands for the file of its domain.
async fn rules<S: Store>(
    State(asked): State<Arc<Asked<S>>>,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Refusal> {
    let query = Query::read(query.as_deref(), &["file", "instance"])?;
    let (file, asked_of) = (query.text("file").map(PathBuf::from), query.scope()?);
    let Some(place) = asked.sending.take(&client) else {
        return Err(refuse(StatusCode::TOO_MANY_REQUESTS, format!("{SENDERS} clients send rules: try again later")));
    };
    let text = whole(body, (MOST_BYTES, "a rules file")).await?;
    let text =
        String::from_utf8(text.to_vec()).map_err(|_| refuse(StatusCode::BAD_REQUEST, "the rules are not UTF-8"))?;
    let snapshot = asked.admin.limiter().snapshot();
    if !snapshot.is_in_force() {
        return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, WhatIfError::NoRules));
    }
    let (in_force, reading) = (Arc::clone(&snapshot.rules), asked.admin.rules_reading().clone());
    let what_if = asked.admin.observed().what_if.clone();
    // Before the other instances answer: only one request at a time keeps their recorded requests in memory.
    let turn = asked.admin.replays().turn(&client).await?;
    let (others, instances) = others(&asked.admin, asked_of).await;
    let report = replay(turn, move || {
        let _place = place;
        report(&Proposal { text, file }, (&in_force, &reading), what_if.as_deref(), &others)
    });
    let mut answer = report.await??;
    // The file in force has values of descriptors as they are.
    if !matches!(asked.admin.values(&client), Values::Plain) {
        answer.changes.hide();
    }
    Ok(Json(OfInstances { instances, answer }).into_response())
}

fn report(
    proposal: &Proposal,
    (in_force, reading): (&Rules, &Reading),
    what_if: Option<&WhatIf>,
    others: &Others,
) -> Result<Report, WhatIfError> {
    let Valid { rules, domain, changes } = match proposal.examine(in_force, reading) {
        Ok(valid) => valid,
        Err(Invalid(mistakes)) => return Ok(Report { mistakes: Some(mistakes), ..Report::default() }),
    };
    let report = Report { ok: true, changes, ..Report::default() };
    let Some(what_if) = what_if else { return Ok(report) };
    let Compared { kept, keys, differences } = what_if.compare(&domain, (in_force, &rules), others)?;
    Ok(Report {
        requests: Some(differences.compared),
        keys: Some(keys),
        newly_denied: Some(differences.newly_denied),
        newly_allowed: Some(differences.newly_allowed),
        rules: differences.rules,
        more_rules: differences.more_rules,
        seconds: kept.seconds,
        sample: kept.sample_now,
        ..report
    })
}

/// Handles `GET /what-if/log?instance=self`: the recorded requests of all instances, or of the asked one, as lines that
/// `tollgate replay` reads.
async fn log<S: Store>(State(asked): State<Arc<Asked<S>>>, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let what_if = asked.what_if()?;
    let scope = Query::read(query.as_deref(), &["instance"])?.scope()?;
    let Ok(turn) = Arc::clone(&asked.reading).try_acquire_owned() else {
        return Err(refuse(
            StatusCode::TOO_MANY_REQUESTS,
            format!("{READERS} clients are reading the log: try again later"),
        ));
    };
    let (others, _) = others(&asked.admin, scope).await;
    let log = spawn_blocking(move || what_if.log(&others)).await.map_err(failed)?;
    let lines = log.map(move |lines| {
        let _turn = &turn;
        Ok::<_, Infallible>(lines)
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
    Ok((kind, Body::from_stream(stream::iter(lines))).into_response())
}

/// Parses the question of a query, `None` if it names no rule, and whom to ask.
fn question(query: Option<&str>) -> Result<(Option<Question>, Scope), Refusal> {
    let names = ["domain", "rule", "number", "algorithm", "period_ms", "suggest", "instance"];
    let query = Query::read(query, &names)?;
    let question = Question {
        domain: query.owned("domain"),
        rule: query.owned("rule"),
        number: query.number("number", 0..=MAX_NUMBER)?,
        period_ms: query.number("period_ms", 0..=u64::MAX)?,
        algorithm: query.one_of("algorithm", Algorithm::ALL, Algorithm::name)?,
        goal: query.parsed("suggest")?,
    };
    let asked = query.scope()?;
    if question == Question::default() {
        return Ok((None, asked));
    }
    match question.domain.is_empty() || question.rule.is_empty() {
        true => Err(refuse(StatusCode::BAD_REQUEST, "name a limit: its domain and rule, as in metrics")),
        false => Ok((Some(question), asked)),
    }
}
