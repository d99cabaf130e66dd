//! The administrators' paths together, and the state that they share.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::adjustments;
use super::alerts;
use super::audit;
use super::candidates;
use super::client::{AdminTokens, Change, Client, KnownClients};
use super::counters;
use super::credits;
use super::explain;
use super::fleet;
use super::gate::{Gate, pass};
use super::hosts::{Hosts, answer_to};
use super::log_level;
use super::replays::Replays;
use super::top;
use super::usage;
use super::what_if;
use crate::engine::descriptor::{Entry, Override};
use crate::limiter::Limiter;
use crate::metrics::AdminMetrics;
use crate::observe::Observing;
use crate::observe::redaction::Values;
use crate::proposal::{Files, Reading};
use crate::shared::adjustment::Adjustments;
use crate::shared::adjustment::audit::Note;
use crate::shared::fleet::Fleet;
use crate::shared::usage::UsageStore;
use crate::sources::files::load::LoadOptions;
use crate::sources::files::promote::Promotion;
use crate::store::Store;
use crate::survey::Survey;
use crate::telemetry::LevelControl;

/// Entry without a value that separates two descriptors in a query.
const SEPARATOR: &str = "+";

/// Parameter after the domain: the limit that the request brings along.
const LIMIT: &str = "@limit";

/// Shared state of the administrators' paths, and the gate to them.
pub struct Admin<S> {
    limiter: Arc<Limiter<S>>,
    adjustments: Arc<Adjustments<S>>,
    fleet: Arc<Fleet<S>>,
    survey: Survey<S>,
    runtime: Handle,
    clients: KnownClients,
    metrics: AdminMetrics,
    hosts: Hosts,
    store_timeout: Duration,
    /// How values are shown to clients that may only read.
    reader_values: Values,
    /// Admits one explanation at a time: explaining takes CPU time that the rest of the process needs.
    explaining: Semaphore,
    /// Admits one client at a time that reads the counters of many keys.
    reading_counters: Arc<Semaphore>,
    /// Admits one reader of the audit trail at a time: its script takes time in which Redis decides nothing.
    reading_trail: Arc<Semaphore>,
    /// Admits one replay of recorded requests at a time, even after its client has left.
    replays: Replays,
    /// How this process reads rules.
    reading: Reading,
    /// How candidate rules are put in force; `None` if no client may do so. One client at a time.
    promotion: Option<Arc<Mutex<Promotion>>>,
    /// Recorded usage of limits.
    usage: UsageStore,
    observing: Observing,
    /// `None` if the process does not control a log.
    levels: Option<LevelControl>,
}

impl<S> Admin<S> {
    /// Creates the state. `limiter` is a worker's, with its connection to the counters. Its work runs on that worker's
    /// `runtime` and not on the thread that accepts connections. `store_timeout` bounds the wait for the store.
    pub fn new(
        (limiter, runtime): (Arc<Limiter<S>>, Handle),
        (adjustments, fleet, survey): (Arc<Adjustments<S>>, Arc<Fleet<S>>, Survey<S>),
        usage: UsageStore,
        (tokens, metrics): (&AdminTokens, AdminMetrics),
        store_timeout: Duration,
    ) -> Admin<S> {
        Admin {
            limiter,
            adjustments,
            fleet,
            survey,
            usage,
            runtime,
            clients: KnownClients::new(tokens),
            metrics,
            hosts: Hosts::default(),
            store_timeout,
            reader_values: Values::Plain,
            explaining: Semaphore::new(1),
            reading_counters: Arc::new(Semaphore::new(1)),
            reading_trail: Arc::new(Semaphore::new(1)),
            replays: Replays::new(),
            reading: Reading { options: LoadOptions::default(), files: Files::None },
            promotion: None,
            observing: Observing::default(),
            levels: None,
        }
    }

    /// Shows values as `reader_values` says to clients that may only read.
    #[must_use]
    pub fn showing(self, reader_values: Values) -> Admin<S> {
        Admin { reader_values, ..self }
    }

    /// Shows the findings of these observers.
    #[must_use]
    pub fn observing(self, observing: Observing) -> Admin<S> {
        Admin { observing, ..self }
    }

    /// Lets clients with the role put candidate rules in force.
    #[must_use]
    pub fn promoting(self, promotion: Option<Promotion>) -> Admin<S> {
        Admin { promotion: promotion.map(|promotion| Arc::new(Mutex::new(promotion))), ..self }
    }

    /// Answers to these host names only.
    #[must_use]
    pub fn answering_to(self, hosts: Hosts) -> Admin<S> {
        Admin { hosts, ..self }
    }

    /// Returns the clients, whose tokens may change.
    pub fn clients(&self) -> KnownClients {
        self.clients.clone()
    }

    /// Reads proposed rules as the process reads its own.
    #[must_use]
    pub fn reading(self, reading: Reading) -> Admin<S> {
        Admin { reading, ..self }
    }

    /// Changes the levels of this log.
    #[must_use]
    pub fn leveling(self, levels: LevelControl) -> Admin<S> {
        Admin { levels: Some(levels), ..self }
    }

    pub(super) fn levels(&self) -> Option<&LevelControl> {
        self.levels.as_ref()
    }

    pub(super) fn observed(&self) -> &Observing {
        &self.observing
    }

    pub(super) fn usage(&self) -> &UsageStore {
        &self.usage
    }

    /// Returns how values are shown to a client. Clients that may change something see plain values.
    pub(super) fn values(&self, client: &Client) -> &Values {
        if client.may_change() { &Values::Plain } else { &self.reader_values }
    }

    pub(super) fn adjustments(&self) -> &Adjustments<S> {
        &self.adjustments
    }

    /// Returns the note of a change by this client for the audit trail, which says who makes it, and where.
    pub(super) fn note(&self, client: &Client) -> Note {
        Note {
            who: Some(client.holder().to_owned()),
            role: Some(client.role().name().to_owned()),
            instance: self.adjustments.instance().map(str::to_owned),
            ..Note::default()
        }
    }

    pub(super) fn fleet(&self) -> &Fleet<S> {
        &self.fleet
    }

    /// Returns the surveys of all instances.
    pub(super) fn survey(&self) -> &Survey<S> {
        &self.survey
    }

    pub(super) fn limiter(&self) -> Arc<Limiter<S>> {
        Arc::clone(&self.limiter)
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn store_timeout(&self) -> Duration {
        self.store_timeout
    }

    pub(super) fn promotion(&self) -> Option<&Arc<Mutex<Promotion>>> {
        self.promotion.as_ref()
    }

    pub(super) fn reading_counters(&self) -> &Arc<Semaphore> {
        &self.reading_counters
    }

    pub(super) fn reading_trail(&self) -> &Arc<Semaphore> {
        &self.reading_trail
    }

    pub(super) fn replays(&self) -> &Replays {
        &self.replays
    }

    pub(super) fn rules_reading(&self) -> &Reading {
        &self.reading
    }

    pub(super) fn explaining(&self) -> &Semaphore {
        &self.explaining
    }

    /// Returns the gate to the paths of administrators.
    pub(super) fn gate(&self) -> Gate {
        Gate::new(self.clients.clone(), self.metrics.clone(), Arc::clone(self.adjustments.audit()))
            .of_instance(self.adjustments.instance())
    }

    /// Lets only clients through whose request is for a host of the setting.
    pub(super) fn guard(&self, router: Router) -> Router {
        router.layer(from_fn_with_state(self.hosts.clone(), answer_to))
    }
}

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>, gate: Arc<Gate>) -> Router {
    let router = counters::router(Arc::clone(&admin)).merge(credits::router(Arc::clone(&admin)));
    let router = router.merge(explain::router(Arc::clone(&admin)));
    let router = router.merge(candidates::router(Arc::clone(&admin))).merge(fleet::router(Arc::clone(&admin)));
    let router = router.merge(usage::router(Arc::clone(&admin))).merge(what_if::router(Arc::clone(&admin)));
    let router = router.merge(adjustments::router(Arc::clone(&admin))).merge(alerts::router(Arc::clone(&admin)));
    let router = router.merge(log_level::router(Arc::clone(&admin)));
    let router = router.merge(audit::router(Arc::clone(&admin))).merge(top::router(admin));
    router.route_layer(from_fn_with_state(gate, pass))
}

/// An error answer: the status and the reason.
#[derive(Debug)]
pub(super) struct Refusal(StatusCode, String);

pub(super) fn refuse(status: StatusCode, reason: impl ToString) -> Refusal {
    Refusal(status, reason.to_string())
}

/// Refuses a request because of an error in the process.
pub(super) fn failed(error: impl std::error::Error) -> Refusal {
    refuse(StatusCode::INTERNAL_SERVER_ERROR, error)
}

impl Refusal {
    /// Returns the status.
    pub(super) fn status(&self) -> StatusCode {
        self.0
    }

    /// Returns the reason.
    pub(super) fn reason(&self) -> &str {
        &self.1
    }
}

/// The reason of a refusal, an extension of its response for the audit trail.
#[derive(Clone)]
pub(super) struct Reason(pub(super) Arc<str>);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(status, reason) = self;
        let body = Json(json!({ "error": reason }));
        (status, axum::Extension(Reason(reason.into())), body).into_response()
    }
}

/// A request of an administrator about descriptors.
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) domain: String,
    /// At least one descriptor, each with at least one entry.
    pub(super) descriptors: Vec<Vec<Entry>>,
    /// Limit that the request brings along.
    pub(super) limit: Option<Override>,
}

impl<S: Store> FromRequestParts<Arc<Admin<S>>> for Question {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Admin<S>>) -> Result<Question, Refusal> {
        let client = parts.extensions.get::<Client>();
        let client = client.ok_or_else(|| refuse(StatusCode::INTERNAL_SERVER_ERROR, "no client was determined"))?;
        if !parts.method.is_safe() {
            client.may(Change::Reset(None))?;
        }
        question(parts.method.clone(), parts.uri.query().unwrap_or_default())
    }
}

/// Parses the domain and the descriptors of a query, in its order: `domain=shop&user=ann`. `%2B=` starts another
/// descriptor. A limit may follow the domain: `@limit=5/minute`.
pub(super) fn question(method: Method, query: &str) -> Result<Question, Refusal> {
    let mut pairs = form_urlencoded::parse(query.as_bytes()).peekable();
    let domain = pairs.next().filter(|(first, _)| first == "domain").map(|(_, domain)| domain.into_owned());
    let limit =
        match pairs.next_if(|(key, _)| key == LIMIT) {
            None => None,
            Some((_, limit)) => Some(Override::parse(&limit).ok_or_else(|| {
                refuse(StatusCode::BAD_REQUEST, "write a limit as @limit=5/minute or @limit=5/30second")
            })?),
        };
    let entries: Vec<Entry> = pairs.map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect();
    let is_separator = |entry: &Entry| entry.key == SEPARATOR && entry.value.is_empty();
    let descriptors: Vec<Vec<Entry>> = entries.split(is_separator).map(<[Entry]>::to_vec).collect();
    match domain {
        Some(domain) if descriptors.iter().all(|entries| !entries.is_empty()) => {
            Ok(Question { method, domain, descriptors, limit })
        }
        _ => {
            let reason = "name a descriptor, for example ?domain=shop&user=ann: the domain first, then the entries in \
                          order";
            Err(refuse(StatusCode::BAD_REQUEST, reason))
        }
    }
}
