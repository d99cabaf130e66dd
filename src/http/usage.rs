//! `/usage`: the recorded usage of limits, a few pages at a time. Read-only.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Json, Router};

use super::admin::{Admin, Refusal, refuse};
use super::client::Client;
use super::query::Query;
use crate::engine::clock::Clock as _;
use crate::engine::descriptor::Entry;
use crate::engine::explain;
use crate::engine::rules::Budget;
use crate::engine::usage::Time;
use crate::engine::usage::page::{Owner, Part, Scope};
use crate::inspect::running;
use crate::ledger::answer::{UsageAnswer, Wanted};
use crate::limiter::Limiter;
use crate::observe::redaction::Values;
use crate::shared::usage::{Batch, Named, UsageReadError};
use crate::store::Store;
use crate::store::memory::SystemClock;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/usage", any(answer)).with_state(admin)
}

/// Handles `GET /usage?domain=shop&from=2026-11-01&to=2026-12-01&rule=per-user&key=user=ann&exact=true&cursor=…`; each
/// parameter is optional.
async fn answer<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    if !matches!(admin.values(&client), Values::Plain) {
        return Err(refuse(
            StatusCode::FORBIDDEN,
            "usage contains values of descriptors, which TOP_KEYS_VALUES hides from this token: use the ADMIN_TOKEN",
        ));
    }
    if method != Method::GET {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "GET reads"));
    }
    let (wanted, cursor) = read(query.as_deref())?;
    let (limiter, cursor) = (admin.limiter(), cursor.as_deref());
    let mut missed = missed(&limiter, wanted.domain.as_deref(), wanted.rule.as_deref());
    let batch = if wanted.is_exact {
        let named = named(&limiter, &wanted);
        if named.is_empty() && missed.is_none() {
            missed = Some("no limit with usage applies to this descriptor by the rules in force".to_owned());
        }
        admin.usage().read_named(&named, cursor).await?
    } else {
        let scope = Scope { domain: wanted.domain.as_deref(), from: wanted.from, to: wanted.to };
        admin.usage().read(&scope, cursor).await?
    };
    let Batch { pages, store, now, cursor } = batch;
    let mut answer = UsageAnswer::new(now, store, cursor);
    answer.missed = missed;
    for page in pages {
        answer.add(page, &wanted, |owner, name| rule(&limiter, owner, name));
    }
    Ok(Json(answer).into_response())
}

/// Names the pages of the counters of a descriptor.
fn named<S: Store>(limiter: &Limiter<S>, wanted: &Wanted) -> Named {
    let entry = |(key, value): &(String, String)| Entry { key: key.into(), value: value.into() };
    let entries = wanted.entries.iter().map(entry).collect();
    let request = explain::request(wanted.domain.as_deref().unwrap_or_default(), vec![entries], None);
    let now = Time(SystemClock.now());
    Named::new(running::recorded(limiter, &request), (wanted.from, wanted.to), now)
}

/// Returns how a filter misses the rules in force.
pub(super) fn missed<S: Store>(limiter: &Limiter<S>, domain: Option<&str>, rule: Option<&str>) -> Option<String> {
    limiter.snapshot().rules.missed_filter(domain, rule, &mut Budget::new(Budget::PERSON))
}

/// Returns the name of the limit of a page by the rules in force.
fn rule<S: Store>(limiter: &Limiter<S>, owner: &Owner, page: &str) -> Option<String> {
    let entry = |Part { key, value, .. }: &Part| Entry { key: key.into(), value: value.into() };
    let request = explain::request(&owner.domain, vec![owner.parts.iter().map(entry).collect()], None);
    let behind = |counter: &str| page.strip_prefix(counter).is_some_and(|rest| rest.starts_with('|'));
    // The counter of the penalty has a longer name.
    running::label_of(limiter, &limiter.snapshot(), &request, behind)
}

/// Parses the filter of a query and the position to continue from.
fn read(query: Option<&str>) -> Result<(Wanted, Option<String>), Refusal> {
    let query = Query::read(query, &["domain", "rule", "key", "exact", "from", "to", "cursor"])?;
    let wrong = |reason: String| refuse(StatusCode::BAD_REQUEST, reason);
    let entry = |text: &str| {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| wrong("key must be an entry: write key=user%3Dann for user=ann".to_owned()))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    let wanted = Wanted {
        domain: query.text("domain").map(str::to_owned),
        rule: query.text("rule").map(str::to_owned),
        entries: query.all("key").map(entry).collect::<Result<_, Refusal>>()?,
        is_exact: query.parsed("exact")?.unwrap_or(false),
        ..Wanted::within(query.parsed("from")?.unwrap_or(Time(0)), query.parsed("to")?.unwrap_or(Time::END))
    };
    if wanted.from >= wanted.to {
        return Err(wrong(format!("{} to {} is not a time range: to must be later than from", wanted.from, wanted.to)));
    }
    if wanted.is_exact && (wanted.domain.is_none() || wanted.entries.is_empty()) {
        return Err(wrong("exact needs a domain, and each entry of the descriptor in its order as key".to_owned()));
    }
    Ok((wanted, query.text("cursor").map(str::to_owned)))
}

impl From<UsageReadError> for Refusal {
    fn from(error: UsageReadError) -> Refusal {
        let status = match error {
            UsageReadError::Cursor => StatusCode::BAD_REQUEST,
            UsageReadError::Changed => StatusCode::CONFLICT,
            UsageReadError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        refuse(status, error)
    }
}
