//! `/top`: the keys with the most hits of each limit, over all instances. Read-only.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};

use super::admin::{Admin, Refusal, failed, refuse, scope};
use crate::engine::adjustment::{Effect, LimitName};
use crate::engine::check::StoreError;
use crate::engine::descriptor::{Entry, Role};
use crate::inspect::running;
use crate::inspect::{Action, Counter, CounterError, CounterOf};
use crate::limiter::Snapshot;
use crate::observe::heavy_hitters::{By, HeavyKey, Pair};
use crate::store::Store;
use crate::survey::{self, Scope, TopQuestion};

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
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    if method != Method::GET {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "GET reads"));
    }
    let Wanted { question, keys, reads_counters, scope } = read(query.as_deref().unwrap_or_default())?;
    let (limiter, by) = (admin.limiter(), question.by);
    let Some(parts) = admin.survey().ask(question.for_keys(keys), scope).await else {
        return Err(refuse(StatusCode::NOT_FOUND, "the top keys are not counted: set TOP_KEYS=true"));
    };
    let mut top = survey::merge_top(by, parts, keys);
    let snapshot = limiter.snapshot();
    top.keys.iter_mut().for_each(|key| complete(&mut key.key, &snapshot));
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
fn complete(key: &mut HeavyKey, snapshot: &Snapshot) {
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
    let name = LimitName { path: &rule.path, label: &key.label };
    let adjusted = snapshot.adjustments().and_then(|all| all.of(&key.domain, Some(name), entries).role);
    key.role = Some(match adjusted.map(|adjustment| adjustment.content.effect) {
        Some(Effect::Shadow) => Role::Shadow.name().into(),
        Some(Effect::Enforce) => Role::Enforced.name().into(),
        _ => rule.role.name().into(),
    });
}

/// Parses the query.
fn read(query: &str) -> Result<Wanted, Refusal> {
    let mut read = TopQuestion::default();
    let (mut keys, mut reads_counters, mut asked) = (KEYS, false, Scope::Fleet);
    let wrong = |reason: String| refuse(StatusCode::BAD_REQUEST, reason);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "domain" => read.domain = Some(value.into_owned()),
            "rule" => read.rule = Some(value.into_owned()),
            "by" => {
                let by = By::ALL.into_iter().find(|by| by.name() == value);
                read.by = by.ok_or_else(|| wrong("by must be hits, denied or near".to_owned()))?;
            }
            "n" => {
                let number = value.parse().ok().filter(|number| (1..=MOST_KEYS).contains(number));
                keys = number.ok_or_else(|| wrong(format!("n must be a whole number from 1 to {MOST_KEYS}")))?;
            }
            "remaining" if value == "true" || value == "false" => reads_counters = value == "true",
            "remaining" => return Err(wrong("remaining must be true or false".to_owned())),
            "instance" => asked = scope(&value)?,
            _ => return Err(wrong("the parameters are domain, rule, by, n, remaining and instance".to_owned())),
        }
    }
    Ok(Wanted { question: read, keys, reads_counters, scope: asked })
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
