//! `/console`: the page for administrators, and the paths that only this page uses. It takes all other data from the
//! paths that the commands use.
//!
//! The page itself contains no data, and anyone may load it. It asks for the token, keeps it as long as its tab is
//! open, and sends it in a header with each request. So no other site can make a browser send the token. A link may end
//! with `#token=TOKEN`, as that of `tollgate demo`: the browser sends this part to no server, and the page removes it
//! from the address. The page loads nothing from other sites, runs no script but its own, and cannot be framed.

pub mod data;
mod limits;
mod live;
mod log;
mod overview;

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response, Sse};
use axum::routing::get;
use axum::{Extension, Json, Router};
use flate2::read::GzDecoder;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_blocking;

use super::Health;
use super::admin::{Admin, Refusal, failed, refuse};
use super::client::{Client, Standing};
use super::gate::{Gate, pass};
use super::metrics::takes_gzip;
use super::query::Query;
use crate::engine::descriptor::Entry;
use crate::http::console::data::{Completion, RedisHistory};
use crate::metrics::Metrics;
use crate::observe::history::History;
use crate::sources::files::tokens::Role;
use crate::store::Store;
use crate::store::redis::examination::examine;
use crate::store::redis::topology::config::RedisConfig;
use crate::telemetry::Events;

/// A file of the page.
struct PageFile {
    path: &'static str,
    kind: &'static str,
    /// The content, compressed with gzip by `build.rs`.
    small: &'static [u8],
}

/// Declares a file by its path, content type and name in `assets`.
macro_rules! page_file {
    ($path:expr, $kind:expr, $name:literal) => {
        PageFile {
            path: $path,
            kind: $kind,
            small: include_bytes!(concat!(env!("OUT_DIR"), "/console/", $name, ".gz")),
        }
    };
    ($name:literal) => {
        page_file!(concat!("/console/", $name), SCRIPT, $name)
    };
}

/// Files of the page.
const FILES: &[PageFile] = &[
    page_file!("/console", "text/html; charset=utf-8", "page.html"),
    page_file!("/console/page.css", "text/css; charset=utf-8", "page.css"),
    page_file!("address.js"),
    page_file!("adjust.js"),
    page_file!("adjusting.js"),
    page_file!("banners.js"),
    page_file!("chart.js"),
    page_file!("compare.js"),
    page_file!("complete.js"),
    page_file!("entries.js"),
    page_file!("explain.js"),
    page_file!("find.js"),
    page_file!("health.js"),
    page_file!("keys.js"),
    page_file!("limits.js"),
    page_file!("overview.js"),
    page_file!("page.js"),
    page_file!("panel.js"),
    page_file!("parts.js"),
    page_file!("rows.js"),
    page_file!("search.js"),
    page_file!("service.js"),
    page_file!("sheet.js"),
    page_file!("try.js"),
    page_file!("tune.js"),
    page_file!("views.js"),
    page_file!("words.js"),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Headers sent with each of them.
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

/// Number of pages that may watch at once. One of them is kept for clients that may change something.
const WATCHERS: usize = 16;

/// Number of pages that may watch at once with one token, unless it permits everything. So no token takes all places.
const WATCHERS_OF_ONE: usize = 12;

/// Data that the console shows, and the facts that it needs.
pub struct Console {
    history: Arc<History>,
    events: Events,
    about: About,
}

/// Facts that do not change while the process lives.
pub struct About {
    /// The store's name in the log.
    pub store: String,
    /// Redis with its history. `None` if counters live in memory.
    pub redis: Option<(RedisConfig, Arc<RedisHistory>)>,
    /// Whether global shadow mode is on: no request is denied.
    pub shadow_mode: bool,
    /// Address of gRPC: `host:port`, or `unix:` and a path.
    pub grpc: String,
    /// Whether gRPC uses TLS.
    pub grpc_tls: bool,
}

impl Console {
    /// Creates the console. Another task must record `history`; `events` are those of the process.
    pub fn new(history: Arc<History>, events: Events, about: About) -> Console {
        Console { history, events, about }
    }

    /// Returns whether counters are in Redis.
    pub(super) fn has_redis(&self) -> bool {
        self.about.redis.is_some()
    }
}

/// Shared state of the console's paths.
struct Shown<S> {
    admin: Arc<Admin<S>>,
    console: Console,
    metrics: Arc<Metrics>,
    health: watch::Receiver<Health>,
    watchers: Watchers,
    /// Admits one list of rules at a time, which takes CPU time.
    listing: Arc<Semaphore>,
    /// Admits one inspection of Redis at a time, which opens connections and may wait for each.
    inspecting: Semaphore,
}

pub(super) fn router<S: Store>(
    admin: Arc<Admin<S>>,
    gate: Arc<Gate>,
    console: Console,
    (metrics, health): (Arc<Metrics>, watch::Receiver<Health>),
) -> Router {
    let (watchers, listing, inspecting) = (Watchers::new(), Arc::new(Semaphore::new(1)), Semaphore::new(1));
    let shown = Arc::new(Shown { admin, console, metrics, health, watchers, listing, inspecting });
    let router = Router::new()
        .route("/console/live", get(live::<S>))
        .route("/console/entries", get(entries::<S>))
        .route("/overview", get(overview::answer::<S>))
        .route("/rules", get(limits::answer::<S>))
        .route("/rules/one", get(limits::one::<S>))
        .route("/log", get(log::answer::<S>))
        .route("/redis", get(redis::<S>))
        .route("/redis/history", get(redis_history::<S>))
        .with_state(shown)
        .route_layer(from_fn_with_state(gate, pass));
    FILES.iter().fold(router, |router, file| {
        let content = async move |headers: HeaderMap| {
            let kind = [(header::CONTENT_TYPE, file.kind), (header::VARY, "accept-encoding")];
            match takes_gzip(&headers) {
                true => (HEADERS, kind, [(header::CONTENT_ENCODING, "gzip")], file.small).into_response(),
                false => (HEADERS, kind, file.text()).into_response(),
            }
        };
        router.route(file.path, get(content))
    })
}

impl PageFile {
    /// Returns the content for a client that does not take gzip.
    fn text(&self) -> String {
        let mut text = String::new();
        GzDecoder::new(self.small).read_to_string(&mut text).expect("build.rs has compressed text");
        text
    }
}

/// Streams events every second, starting with those of the last fifteen minutes.
///
/// `GET /console/live?after=17,5` continues after second 17 and log line 5.
async fn live<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    Extension(client): Extension<Client>,
    Extension(standing): Extension<Arc<Standing>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let place = shown.watchers.take(&client)?;
    let after = query.and_then(|query| live::After::parse(query.strip_prefix("after=")?)).unwrap_or_default();
    Ok((HEADERS, Sse::new(live::ticks(shown, (place, standing), after))).into_response())
}

/// Entries that may come next in a descriptor, and the address of gRPC.
#[derive(Serialize)]
struct Next<'a> {
    #[serde(flatten)]
    completion: Completion,
    grpc: &'a str,
    grpc_tls: bool,
}

/// Handles `GET /console/entries?domain=shop&entries=[{"key":"user","value":"ann"}]&begin=pa`; each parameter is
/// optional.
async fn entries<S: Store>(State(shown): State<Arc<Shown<S>>>, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let query = Query::read(query.as_deref(), &["domain", "entries", "begin"])?;
    let wrong = |error: serde_json::Error| refuse(StatusCode::BAD_REQUEST, format!("entries: {error}"));
    let before: Vec<Entry> = query.text("entries").map_or(Ok(Vec::new()), serde_json::from_str).map_err(wrong)?;
    let (domain, begin) = (query.owned("domain"), query.owned("begin"));
    let turn = Arc::clone(&shown.listing).acquire_owned().await.map_err(failed)?;
    let snapshot = shown.admin.limiter().snapshot();
    let completion = spawn_blocking(move || {
        let _turn = turn;
        Completion::new(&snapshot.rules, &domain, (&before, &begin))
    });
    let completion = completion.await.map_err(failed)?;
    let About { grpc, grpc_tls, .. } = &shown.console.about;
    Ok((HEADERS, Json(Next { completion, grpc, grpc_tls: *grpc_tls })).into_response())
}

/// Handles `GET /redis`: the report of `tollgate check --redis`.
async fn redis<S: Store>(State(shown): State<Arc<Shown<S>>>) -> Result<Response, Refusal> {
    let (config, _) = shown.redis()?;
    let _turn = shown.inspecting.acquire().await.map_err(failed)?;
    let found = examine(config.clone()).await.map_err(|error| refuse(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok((HEADERS, Json(found.to_json())).into_response())
}

/// Handles `GET /redis/history`: the state of Redis over the last fifteen minutes.
async fn redis_history<S: Store>(State(shown): State<Arc<Shown<S>>>) -> Result<Response, Refusal> {
    let (_, history) = shown.redis()?;
    Ok((HEADERS, Json(history.past())).into_response())
}

/// The places of pages that watch.
struct Watchers {
    all: Arc<Semaphore>,
    /// A place for a client that may change something, when all others are taken: it may have to end what goes wrong.
    kept: Arc<Semaphore>,
    /// Number of places that each holder of a token has.
    of_one: Arc<Mutex<HashMap<String, usize>>>,
}

/// A place, which is free again when this is dropped.
struct Place {
    _permit: OwnedSemaphorePermit,
    holder: String,
    of_one: Arc<Mutex<HashMap<String, usize>>>,
}

impl Watchers {
    fn new() -> Watchers {
        let (all, kept) = (Arc::new(Semaphore::new(WATCHERS - 1)), Arc::new(Semaphore::new(1)));
        Watchers { all, kept, of_one: Arc::default() }
    }

    /// Takes a place, or refuses if there is none.
    fn take(&self, client: &Client) -> Result<Place, Refusal> {
        let full = |pages: String| refuse(StatusCode::TOO_MANY_REQUESTS, format!("{pages}: close one"));
        let mut of_one = self.of_one.lock();
        let own = of_one.get(client.holder()).copied().unwrap_or(0);
        if own >= WATCHERS_OF_ONE && !client.has(Role::Admin) {
            return Err(full(format!("{own} console pages are open with this token already")));
        }
        let permit = Arc::clone(&self.all).try_acquire_owned();
        let permit = match permit {
            Err(_) if client.may_change() => Arc::clone(&self.kept).try_acquire_owned(),
            permit => permit,
        };
        let permit = permit.map_err(|_| full(format!("{WATCHERS} console pages are open already")))?;
        of_one.insert(client.holder().to_owned(), own + 1);
        Ok(Place { _permit: permit, holder: client.holder().to_owned(), of_one: Arc::clone(&self.of_one) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut of_one = self.of_one.lock();
        match of_one.get_mut(&self.holder) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(of_one.remove(&self.holder)),
        }
    }
}

impl<S> Shown<S> {
    /// Returns Redis with its history. Refuses if counters live in memory.
    fn redis(&self) -> Result<&(RedisConfig, Arc<RedisHistory>), Refusal> {
        let in_memory = || refuse(StatusCode::NOT_FOUND, "counters are in the memory of this process: set REDIS_URL");
        self.console.about.redis.as_ref().ok_or_else(in_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_names_nothing_that_is_elsewhere() {
        let (mut small, mut whole) = (0, 0);
        for file in FILES {
            let text = file.text();
            assert!(!text.contains("https:"), "{}", file.path);
            // SVG requires this name.
            let others = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!others.contains("http:"), "{}", file.path);
            (small, whole) = (small + file.small.len(), whole + text.len());
        }
        assert!(small < 75 * 1024, "{small} bytes in the binary");
        assert!(whole < 175 * 1024, "{whole} bytes in the browser");
    }

    #[test]
    fn the_page_has_no_script_or_style_within_that_its_policy_would_stop() {
        let page = FILES[0].text();
        for inline in ["<script>", "<style", " style=", " onclick=", " onload=", "javascript:"] {
            assert!(!page.contains(inline), "{inline}");
        }
        for file in FILES.iter().filter(|file| file.kind == SCRIPT) {
            let script = file.text();
            for unsafe_call in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!script.contains(unsafe_call), "{}: {unsafe_call}", file.path);
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/console/assets");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = if name == "page.html" { "/console".to_owned() } else { format!("/console/{name}") };
            assert!(FILES.iter().any(|file| file.path == path), "{path}");
        }
    }
}
