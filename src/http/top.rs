//! `/top`: the keys with the most hits of each limit, over all instances. Read-only.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Json, Router};

use super::admin::{Admin, Refusal, failed, refuse};
use super::client::Client;
use super::query::Query;
use super::usage::missed;
use crate::engine::adjustment::LimitName;
use crate::engine::check::StoreError;
use crate::engine::descriptor::Entry;
use crate::engine::plan::PlanOptions;
use crate::inspect::running;
use crate::inspect::{Action, Counter, CounterError, CounterOf};
use crate::limiter::Snapshot;
use crate::observe::heavy_hitters::{By, HeavyKey, Pair};
use crate::observe::redaction::Values;
use crate::store::Store;
use crate::survey::{self, MergedTop, Scope, TopQuestion};

/// Default number of keys.
const KEYS: usize = 25;

/// Most keys that a query may ask for.
const MOST_KEYS: usize = 1_000;

/// Most keys whose counters are read.
const MOST_COUNTERS: usize = 100;

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    Router::new().route("/top", any(answer)).with_state(admin)
}

/// Handles `GET /top?domain=shop&rule=per-user&by=denied&n=10&remaining=true&instance=self`; each parameter is
/// optional.
async fn answer<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    method: Method,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    if method != Method::GET {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "GET reads"));
    }
    let Wanted { question, keys, reads_counters, scope } = read(query.as_deref())?;
    let (limiter, by) = (admin.limiter(), question.by);
    // Labels may contain values of descriptors.
    let is_shown = matches!(admin.values(&client), Values::Plain);
    let missed = missed(&limiter, question.domain.as_deref(), question.rule.as_deref()).filter(|_| is_shown);
    let merge = move |parts| MergedTop { missed, ..survey::merge_top(by, parts, keys) };
    let Some(mut top) = admin.survey().ask(question.for_keys(keys), scope, merge).await else {
        return Err(refuse(StatusCode::NOT_FOUND, "the top keys are not counted: set TOP_KEYS=true"));
    };
    let snapshot = limiter.snapshot();
    top.keys.iter_mut().for_each(|key| complete(&mut key.key, &snapshot, limiter.plan_options()));
    if reads_counters {
        let timeout = admin.store_timeout();
        // One client's counters at a time. The work goes on if the client leaves.
        let turn = Arc::clone(admin.reading_counters()).acquire_owned().await.map_err(failed)?;
        let read = async move {
            let _turn = turn;
            let read = |of| {
                let limiter = Arc::clone(&limiter);
                async move { running::counters(&limiter, Action::Get, of, timeout).await }
            };
            top.unavailable = add_counters(top.keys.iter_mut().map(|key| &mut key.key), read).await;
            top
        };
        top = admin.runtime().spawn(read).await.map_err(failed)?;
    }
    Ok(Json(top).into_response())
}

/// A parsed query.
#[derive(Debug)]
struct Wanted {
    question: TopQuestion,
    /// Number of keys.
    keys: usize,
    reads_counters: bool,
    scope: Scope,
}

/// Adds what the asked instance knows by its rules: the effect of a denial, and the entries of a key that another
/// instance has counted.
fn complete(key: &mut HeavyKey, snapshot: &Snapshot, options: &PlanOptions) {
    if key.label.is_empty() {
        key.label.clone_from(&key.rule);
    }
    // Otherwise the shown values may be hashes, which no counter has.
    if key.entries.is_none()
        && key.exact
        && let Some(pairs) = &key.descriptor
    {
        let entry = |pair: &Pair| Some(Entry { key: (*pair.key).into(), value: pair.value.as_deref()?.into() });
        key.entries = pairs.iter().map(entry).collect();
    }
    let rules = &snapshot.rules;
    let Some(entries) = &key.entries else { return };
    let Some(rule) = rules.domain(&key.domain).and_then(|domain| rules.find(domain, entries)) else { return };
    let Some(limit) = rule.limits.iter().find(|limit| *limit.label == *key.label) else { return };
    let name = LimitName { path: &rule.path, label: &key.label };
    let adjusted = snapshot.adjustments().map(|all| all.of(&key.domain, Some(name), entries)).unwrap_or_default();
    let role = options.role_in_force((rule, limit), Some((&key.domain, entries)), adjusted);
    key.role = Some(role.name().into());
}

/// Parses the query.
fn read(query: Option<&str>) -> Result<Wanted, Refusal> {
    let query = Query::read(query, &["domain", "rule", "by", "n", "remaining", "instance"])?;
    let question = TopQuestion {
        domain: query.text("domain").map(str::to_owned),
        rule: query.text("rule").map(str::to_owned),
        by: query.one_of("by", &By::ALL, By::name)?.unwrap_or_default(),
        ..TopQuestion::default()
    };
    Ok(Wanted {
        question,
        keys: query.number("n", 1..=MOST_KEYS)?.unwrap_or(KEYS),
        reads_counters: query.flag("remaining")?,
        scope: query.scope()?,
    })
}

/// Adds the current values of the keys' counters. Ends when the store does not answer: it would not answer the next
/// question either, and each would take the store's timeout. Returns why it ended. Limits that requests bring along are
/// left out: their numbers are unknown here.
async fn add_counters<'k, F: Future<Output = Result<Vec<Counter>, CounterError>>>(
    keys: impl Iterator<Item = &'k mut HeavyKey>,
    read: impl Fn(CounterOf) -> F,
) -> Option<String> {
    for key in keys.take(MOST_COUNTERS) {
        let Some(entries) = key.entries.clone() else { continue };
        let counters = match read(CounterOf { domain: key.domain.clone(), entries, limit: None }).await {
            Ok(counters) => counters,
            Err(CounterError::Store(StoreError::Counter(_)) | CounterError::NoLimit(_) | CounterError::Entry(_)) => {
                continue;
            }
            Err(CounterError::Store(StoreError::Down(cause))) => return Some(format!("the store is down, {cause}")),
            Err(CounterError::Store(error)) => return Some(format!("the store does not answer: {error}")),
            Err(error) => return Some(error.to_string()),
        };
        let own = counters.into_iter().find(|of| of.rule == key.label);
        if let Some(Counter { remaining, capacity, banned_ms, reset_after_ms, .. }) = own {
            (key.remaining, key.capacity, key.banned_ms) = (Some(remaining), Some(capacity), banned_ms);
            key.reset_after_ms = Some(reset_after_ms);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_store_that_does_not_answer_is_asked_for_one_counter() {
        let key = json!({
            "domain": "shop", "rule": "user", "descriptor": null, "exact": true, "hits": 1, "denied": null,
            "near": null, "at_least": 1, "share": 1.0, "window_ms": 1
        });
        let mut keys: Vec<HeavyKey> = (0..10).map(|_| serde_json::from_value(key.clone()).unwrap()).collect();
        for key in &mut keys {
            key.entries = Some(vec![Entry { key: "user".into(), value: "ann".into() }]);
        }
        let asked = Cell::new(0);
        for (error, times) in [(StoreError::Counter("user".into()), 10), (StoreError::Timeout, 1)] {
            asked.set(0);
            let read = |_| {
                asked.set(asked.get() + 1);
                std::future::ready(Err(CounterError::Store(error.clone())))
            };
            let unavailable = add_counters(keys.iter_mut(), read).await;
            assert_eq!((asked.get(), unavailable.is_some()), (times, times == 1), "{error}");
        }
    }
}
