//! `/console`: one page for people who administrate, and what it alone asks for. All else it takes from the paths that
//! commands take it from.
//!
//! The page itself holds nothing, and anybody may have it. It asks for the token, keeps it for as long as its tab is
//! open, and sends it in a header with each request: no other site can make a browser do that, and no link has it. The
//! page loads nothing from elsewhere, runs no script but its own, and cannot be framed.

mod live;

use std::fmt::Display;
use std::io::Write as _;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response, Sse};
use axum::routing::get;
use axum::{Json, Router};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;

use super::Health;
use super::admin::{Admin, Refusal, refuse};
use super::metrics::takes_gzip;
use crate::console::{Completion, History, Listing, RedisHistory, Wanted};
use crate::descriptor::Entry;
use crate::metrics::Metrics;
use crate::rules::FailureMode;
use crate::store::Store;
use crate::store::redis::{RedisConfig, examine};
use crate::telemetry::Events;

/// What the page is made of: its path, its type, and what is there.
const FILES: &[(&str, &str, &str)] = &[
    ("/console", "text/html; charset=utf-8", include_str!("page.html")),
    ("/console/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/console/page.js", SCRIPT, include_str!("page.js")),
    ("/console/parts.js", SCRIPT, include_str!("parts.js")),
    ("/console/service.js", SCRIPT, include_str!("service.js")),
    ("/console/entries.js", SCRIPT, include_str!("entries.js")),
    ("/console/try.js", SCRIPT, include_str!("try.js")),
    ("/console/candidates.js", SCRIPT, include_str!("candidates.js")),
    ("/console/what-if.js", SCRIPT, include_str!("what-if.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// With each of them.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// So many people may watch at once.
const WATCHERS: usize = 16;

/// What the console shows, and what else it needs.
pub struct Console {
    history: Arc<History>,
    events: Events,
    about: About,
}

/// What does not change while the process lives.
pub struct About {
    /// The store, as the log calls it.
    pub store: String,
    /// Where counters live, and how that has been. `None`: in memory.
    pub redis: Option<(RedisConfig, Arc<RedisHistory>)>,
    /// No request is denied.
    pub shadow_mode: bool,
    /// Where gRPC listens: `host:port`, or `unix:` and a path.
    pub grpc: String,
    /// It speaks TLS.
    pub grpc_tls: bool,
}

impl Console {
    /// The history is being followed, and the events are the process's own.
    pub fn new(history: Arc<History>, events: Events, about: About) -> Console {
        Console { history, events, about }
    }
}

/// What every path of the console has at hand.
struct Shown<S> {
    admin: Arc<Admin<S>>,
    console: Console,
    metrics: Arc<Metrics>,
    health: watch::Receiver<Health>,
    watchers: Arc<Semaphore>,
    /// To look at Redis opens connections, and to list rules is work for the processor: one at a time.
    looking: Arc<Semaphore>,
}

pub(super) fn router<S: Store>(
    admin: Arc<Admin<S>>,
    console: Console,
    (metrics, health): (Arc<Metrics>, watch::Receiver<Health>),
) -> Router {
    let (watchers, looking) = (Arc::new(Semaphore::new(WATCHERS)), Arc::new(Semaphore::new(1)));
    let shown = Arc::new(Shown { admin, console, metrics, health, watchers, looking });
    let router = Router::new()
        .route("/console/live", get(live::<S>))
        .route("/console/entries", get(entries::<S>))
        .route("/rules", get(rules::<S>))
        .route("/redis", get(redis::<S>))
        .route("/redis/history", get(redis_history::<S>))
        .with_state(shown);
    FILES.iter().fold(router, |router, &(path, kind, text)| {
        let small = compressed(text);
        let file = async move |headers: HeaderMap| {
            let kind = [(header::CONTENT_TYPE, kind), (header::VARY, "accept-encoding")];
            match small.clone().filter(|_| takes_gzip(&headers)) {
                Some(small) => (HEADERS, kind, [(header::CONTENT_ENCODING, "gzip")], small).into_response(),
                None => (HEADERS, kind, text).into_response(),
            }
        };
        router.route(path, get(file))
    })
}

/// The same in fewer bytes; `None` where that cannot be had.
fn compressed(text: &str) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// Tells every second what has happened, first of all that of the last fifteen minutes.
///
/// `GET /console/live?after=17,5` goes on behind the second 17 and the log line 5.
async fn live<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let role = shown.admin.admit(&headers)?;
    let Ok(permit) = Arc::clone(&shown.watchers).try_acquire_owned() else {
        return Err(refuse(StatusCode::TOO_MANY_REQUESTS, format!("{WATCHERS} people watch already: close a page")));
    };
    let after = query.and_then(|query| live::After::parse(query.strip_prefix("after=")?)).unwrap_or_default();
    Ok((HEADERS, Sse::new(live::ticks(shown, (permit, role), after))).into_response())
}

/// `GET /rules?domain=shop&search=user&failure_mode=open&sort=denials&offset=0&limit=100`; each may be left out.
async fn rules<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    shown.admin.admit(&headers)?;
    let wanted = wanted(&query.unwrap_or_default())?;
    // Who has asked may go away: the work goes on.
    let turn = Arc::clone(&shown.looking).acquire_owned().await.map_err(failed)?;
    let (snapshot, metrics) = (shown.admin.limiter().snapshot(), Arc::clone(&shown.metrics));
    let listing = spawn_blocking(move || {
        let _turn = turn;
        Listing::new(&snapshot.rules, &metrics, &wanted)
    });
    let listing = listing.await.map_err(failed)?;
    Ok((HEADERS, Json(listing)).into_response())
}

/// Which rules a query wants.
fn wanted(query: &str) -> Result<Wanted, Refusal> {
    let mut wanted = Wanted { limit: 100, ..Wanted::default() };
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong = |right: &str| {
            let reason = format!("{key}={value} in the query of /rules: {right}");
            refuse(StatusCode::BAD_REQUEST, reason)
        };
        let number = || value.parse().map_err(|_| wrong("write a whole number"));
        match &*key {
            "domain" => wanted.domain = Some(value.into_owned()),
            "search" => wanted.search = value.into_owned(),
            "failure_mode" if FailureMode::ALL.iter().any(|mode| mode.name() == value) => {
                wanted.failure_mode = Some(value.into_owned());
            }
            "failure_mode" => return Err(wrong("write open, closed, local or error")),
            "sort" if value == "denials" => wanted.by_denials = true,
            "sort" if value == "rules" => wanted.by_denials = false,
            "sort" => return Err(wrong("write rules or denials")),
            "offset" => wanted.offset = number()?,
            "limit" => wanted.limit = number()?,
            _ => return Err(wrong("write domain, search, failure_mode, sort, offset or limit")),
        }
    }
    Ok(wanted)
}

/// What may stand next in a descriptor, and where gRPC listens.
#[derive(Serialize)]
struct Next<'a> {
    #[serde(flatten)]
    completion: Completion,
    grpc: &'a str,
    grpc_tls: bool,
}

/// `GET /console/entries?domain=shop&entries=[{"key":"user","value":"ann"}]&begin=pa`; each may be left out.
async fn entries<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    shown.admin.admit(&headers)?;
    let (mut domain, mut before, mut begin) = (String::new(), Vec::<Entry>::new(), String::new());
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let wrong = |right: &dyn Display| refuse(StatusCode::BAD_REQUEST, format!("{key}={value}: {right}"));
        match &*key {
            "domain" => domain = value.into_owned(),
            "begin" => begin = value.into_owned(),
            "entries" => before = serde_json::from_str(&value).map_err(|error| wrong(&error))?,
            _ => return Err(wrong(&"write domain, entries or begin")),
        }
    }
    let turn = Arc::clone(&shown.looking).acquire_owned().await.map_err(failed)?;
    let snapshot = shown.admin.limiter().snapshot();
    let completion = spawn_blocking(move || {
        let _turn = turn;
        Completion::new(&snapshot.rules, &domain, (&before, &begin))
    });
    let completion = completion.await.map_err(failed)?;
    let About { grpc, grpc_tls, .. } = &shown.console.about;
    Ok((HEADERS, Json(Next { completion, grpc, grpc_tls: *grpc_tls })).into_response())
}

/// `GET /redis`: what `tollgate check --redis` says.
async fn redis<S: Store>(State(shown): State<Arc<Shown<S>>>, headers: HeaderMap) -> Result<Response, Refusal> {
    shown.admin.admit(&headers)?;
    let (config, _) = shown.redis()?;
    let _turn = shown.looking.acquire().await.map_err(failed)?;
    let found = examine(config.clone()).await.map_err(|error| refuse(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok((HEADERS, Json(found.to_json())).into_response())
}

/// `GET /redis/history`: how it has been for the last fifteen minutes.
async fn redis_history<S: Store>(State(shown): State<Arc<Shown<S>>>, headers: HeaderMap) -> Result<Response, Refusal> {
    shown.admin.admit(&headers)?;
    let (_, history) = shown.redis()?;
    Ok((HEADERS, Json(history.past())).into_response())
}

impl<S> Shown<S> {
    /// Where counters live, and how that has been.
    fn redis(&self) -> Result<&(RedisConfig, Arc<RedisHistory>), Refusal> {
        let in_memory = || refuse(StatusCode::NOT_FOUND, "counters live in the memory of this process: set REDIS_URL");
        self.console.about.redis.as_ref().ok_or_else(in_memory)
    }
}

fn failed(error: impl std::error::Error) -> Refusal {
    refuse(StatusCode::INTERNAL_SERVER_ERROR, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_names_nothing_that_is_elsewhere() {
        let bytes: usize = FILES.iter().map(|(.., text)| text.len()).sum();
        assert!(bytes < 150 * 1024, "{bytes}");
        for (path, _, text) in FILES {
            assert!(!text.contains("https:"), "{path}");
            // The name of SVG itself.
            let others = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!others.contains("http:"), "{path}");
        }
    }

    #[test]
    fn the_page_has_no_script_or_style_within_that_its_policy_would_stop() {
        let (.., page) = FILES[0];
        for inline in ["<script>", "<style", " style=", " onclick=", " onload=", "javascript:"] {
            assert!(!page.contains(inline), "{inline}");
        }
        for (path, _, script) in FILES.iter().filter(|(_, kind, _)| *kind == SCRIPT) {
            for unsafe_call in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!script.contains(unsafe_call), "{path}: {unsafe_call}");
            }
        }
    }
}
