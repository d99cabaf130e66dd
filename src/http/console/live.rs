//! The updates that the page receives every second.

use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::{Stream, stream};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::Shown;
use crate::http::admin::AdminRole;
use crate::observe::history::{Second, StoreNow};
use crate::store::Store;
use crate::telemetry;
use crate::version;

/// Lifetime of the stream. It is shorter than that of a connection, which would cut the stream off.
const LASTS: Duration = Duration::from_secs(50);

/// Events since the previous tick.
#[derive(Serialize)]
struct Tick<'a> {
    version: &'a str,
    commit: &'a str,
    /// Role of the client.
    role: &'a str,
    /// Why requests are not answered by rules; `null` if they are.
    not_serving: Option<String>,
    /// Whether the last rules were rejected.
    rules_refused: bool,
    store: Named<'a>,
    rules: usize,
    domains: usize,
    shadow_mode: bool,
    /// Number of adjustments in force.
    adjustments: usize,
    /// Least time for which instances have had different rules; `null` if their rules are the same.
    rules_differ_ms: Option<u64>,
    seconds: Vec<Second>,
    events: Vec<telemetry::Event>,
}

/// Name and state of the store.
#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    #[serde(flatten)]
    now: StoreNow,
}

/// Position in the stream: the last second and the last log line that were sent.
#[derive(Clone, Copy, Default)]
pub(super) struct After {
    second: u64,
    event: u64,
}

impl After {
    /// Parses `17,5`: second 17 and log line 5.
    pub(super) fn parse(text: &str) -> Option<After> {
        let (second, event) = text.split_once(',')?;
        Some(After { second: second.parse().ok()?, event: event.parse().ok()? })
    }
}

/// Sends a tick at once and then one per second, until the client leaves or [`LASTS`] is over. The client then sends
/// another request to read on.
pub(super) fn ticks<S: Store>(
    shown: Arc<Shown<S>>,
    (permit, role): (OwnedSemaphorePermit, AdminRole),
    after: After,
) -> impl Stream<Item = Result<Event, axum::Error>> + use<S> {
    let (changes, end) = (shown.console.history.changes(), Instant::now() + LASTS);
    let first = (shown, changes, permit, after, false);
    stream::unfold(first, move |(shown, mut changes, permit, after, has_begun)| async move {
        if has_begun {
            timeout_at(end, changes.changed()).await.ok()?.ok()?;
        }
        changes.mark_unchanged();
        let seconds = shown.console.history.after(after.second);
        let events = shown.console.events.after(after.event);
        let told = After {
            second: seconds.last().map_or(after.second, |last| last.number),
            event: events.last().map_or(after.event, |last| last.number),
        };
        let tick = Event::default().json_data(tick(&shown, role, seconds, events));
        Some((tick, (shown, changes, permit, told, true)))
    })
}

fn tick<S: Store>(shown: &Shown<S>, role: AdminRole, seconds: Vec<Second>, events: Vec<telemetry::Event>) -> Tick<'_> {
    let snapshot = shown.admin.limiter().snapshot();
    let about = &shown.console.about;
    Tick {
        version: version::VERSION,
        commit: version::COMMIT,
        role: role.name(),
        not_serving: shown.health.borrow().reason(),
        rules_refused: shown.metrics.are_rules_refused(),
        store: Named { name: &about.store, now: shown.console.history.store() },
        rules: snapshot.rules.rules().len(),
        domains: snapshot.rules.domains(),
        shadow_mode: about.shadow_mode,
        adjustments: shown.admin.adjustments().count(),
        rules_differ_ms: shown.admin.fleet().report().rules_differ_ms,
        seconds,
        events,
    }
}
