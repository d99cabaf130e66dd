//! The updates that the page receives every second.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::{Stream, stream};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{Place, Shown};
use crate::engine;
use crate::http::adjustments::showing;
use crate::http::client::{Client, Standing};
use crate::observe::history::{Second, StoreNow};
use crate::shared::fleet::heartbeats::ReplicaState;
use crate::sources::files::tokens::Role;
use crate::store::Store;
use crate::telemetry;
use crate::version;

/// Lifetime of the stream. It is shorter than that of a connection, which would cut the stream off.
const LASTS: Duration = Duration::from_secs(50);

/// The most adjustments in a tick.
const ADJUSTED: usize = 5;

/// Events since the previous tick.
#[derive(Serialize)]
struct Tick<'a> {
    version: &'a str,
    commit: &'a str,
    /// Most powerful role of the client.
    role: &'a str,
    /// Name of the client's token; `null` for a token without one.
    name: Option<&'a str>,
    may: May<'a>,
    /// Why requests are not answered by rules; `null` if they are.
    not_serving: Option<String>,
    /// Whether the last rules were rejected.
    rules_refused: bool,
    store: Named<'a>,
    rules: usize,
    domains: usize,
    shadow_mode: bool,
    /// Number of adjustments that take effect now.
    adjustments: usize,
    /// Those of them that change the most limits, at most [`ADJUSTED`].
    adjusted: serde_json::Value,
    instances: Instances,
    /// Median duration of calls to the store in the last second, in microseconds.
    store_p50_us: Option<u64>,
    /// Least time for which instances have had different rules; `null` if their rules are the same.
    rules_differ_ms: Option<u64>,
    seconds: Vec<Second>,
    events: Vec<telemetry::Event>,
}

/// Instances that share the store.
#[derive(Serialize)]
struct Instances {
    known: usize,
    ready: usize,
}

/// What the client may change.
#[derive(Serialize)]
struct May<'a> {
    adjust: bool,
    reset: bool,
    /// The domains that it may change; `null` for all.
    domains: Option<&'a BTreeSet<String>>,
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

/// Sends a tick at once and then one per second, until the client leaves, its token loses rights, or [`LASTS`] is over.
/// The client then sends another request to read on.
pub(super) fn ticks<S: Store>(
    shown: Arc<Shown<S>>,
    (place, standing): (Place, Arc<Standing>),
    after: After,
) -> impl Stream<Item = Result<Event, axum::Error>> + use<S> {
    let (changes, end) = (shown.console.history.changes(), Instant::now() + LASTS);
    let first = (shown, changes, (place, standing), after, false);
    stream::unfold(first, move |(shown, mut changes, held, after, has_begun)| async move {
        if has_begun {
            tokio::select! {
                biased;
                () = held.1.lost() => return None,
                changed = timeout_at(end, changes.changed()) => changed.ok()?.ok()?,
            }
        }
        changes.mark_unchanged();
        let seconds = shown.console.history.after(after.second);
        let events = shown.console.events.after(after.event);
        let told = After {
            second: seconds.last().map_or(after.second, |last| last.number),
            event: events.last().map_or(after.event, |last| last.number),
        };
        let tick = Event::default().json_data(tick(&shown, held.1.client(), seconds, events));
        Some((tick, (shown, changes, held, told, true)))
    })
}

/// Returns the adjustments that change the most limits now: first those of everything, then of domains, of rules, of
/// keys.
fn adjusted<S: Store>(shown: &Shown<S>, client: &Client) -> serde_json::Value {
    let mut list = shown.admin.adjustments().list();
    list.retain(|one| one.paused_until.is_none());
    let narrowness = |one: &engine::adjustment::Shown| {
        let written = &one.written;
        let has_descriptors = !written.entries.is_empty() || !written.descriptors.is_empty();
        [written.domain.is_some(), written.rule.is_some(), has_descriptors]
    };
    list.sort_by_key(|one| narrowness(one).map(u8::from).into_iter().rev().collect::<Vec<_>>());
    list.truncate(ADJUSTED);
    showing(shown.admin.values(client), serde_json::to_value(list).unwrap_or_default())
}

fn tick<'t, S: Store>(
    shown: &'t Shown<S>,
    client: &'t Client,
    seconds: Vec<Second>,
    events: Vec<telemetry::Event>,
) -> Tick<'t> {
    let snapshot = shown.admin.limiter().snapshot();
    let fleet = shown.admin.fleet().report();
    let about = &shown.console.about;
    Tick {
        version: version::VERSION,
        commit: version::COMMIT,
        role: client.role().name(),
        name: client.name(),
        may: May { adjust: client.has(Role::Adjust), reset: client.has(Role::Reset), domains: client.domains() },
        not_serving: shown.health.borrow().reason(),
        rules_refused: shown.metrics.are_rules_refused(),
        store: Named { name: &about.store, now: shown.console.history.store() },
        rules: snapshot.rules.rules().len(),
        domains: snapshot.rules.domains(),
        shadow_mode: about.shadow_mode,
        adjustments: shown.admin.adjustments().count(),
        adjusted: adjusted(shown, client),
        instances: Instances {
            known: fleet.replicas.len(),
            ready: fleet.replicas.iter().filter(|line| line.state == ReplicaState::Ready).count(),
        },
        store_p50_us: seconds.last().and_then(|second| second.store_p50_us),
        rules_differ_ms: fleet.rules_differ_ms,
        seconds,
        events,
    }
}
