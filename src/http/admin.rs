//! What clients with the ADMIN_TOKEN may do, and those with the ADMIN_READ_TOKEN.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::{adjustments, candidates, counters, explain, replicas, top, usage, what_if};
use crate::descriptor::{Entry, Override};
use crate::fleet::Fleet;
use crate::limiter::Limiter;
use crate::steering::Steering;
use crate::store::Store;
use crate::store::usage::UsageStore;
use crate::values::Values;

/// Between the entries of two descriptors stands this one, without a value.
const SEPARATOR: &str = "+";

/// Behind the domain: the limit that the request brings along.
const LIMIT: &str = "@limit";

/// The tokens of those who may do something; without one of a role, nobody has it.
#[derive(Clone, Debug, Default)]
pub struct AdminTokens {
    /// Of those who may do everything.
    pub admin: Option<String>,
    /// Of those who may only read.
    pub reader: Option<String>,
}

/// What a client may do, by its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminRole {
    Admin,
    Reader,
}

impl AdminRole {
    /// The name in the log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            AdminRole::Admin => "admin",
            AdminRole::Reader => "reader",
        }
    }

    /// Refuses a client that may only read, where the method is one that changes something.
    pub(super) fn may(self, method: &Method) -> Result<(), Refusal> {
        match self {
            AdminRole::Reader if !method.is_safe() => {
                Err(refuse(StatusCode::FORBIDDEN, "the ADMIN_READ_TOKEN may only read: send the ADMIN_TOKEN"))
            }
            AdminRole::Admin | AdminRole::Reader => Ok(()),
        }
    }
}

/// What an administrator works on, and who is one.
pub struct Admin<S> {
    limiter: Arc<Limiter<S>>,
    steering: Arc<Steering<S>>,
    fleet: Arc<Fleet<S>>,
    runtime: Handle,
    tokens: AdminTokens,
    store_timeout: Duration,
    /// How values are shown to who may only read.
    reader_values: Values,
    /// To explain is work for the processor: one at a time, and what else the process does goes on.
    explaining: Semaphore,
    /// What limits were used.
    usage: UsageStore,
}

impl<S> Admin<S> {
    /// `limiter` is a worker's, with its way to the counters, and does its work on that worker's `runtime` and not on
    /// the thread that takes connections. A client may what its token says. The store answers within the timeout.
    pub fn new(
        (limiter, runtime): (Arc<Limiter<S>>, Handle),
        (steering, fleet): (Arc<Steering<S>>, Arc<Fleet<S>>),
        usage: UsageStore,
        tokens: AdminTokens,
        store_timeout: Duration,
    ) -> Admin<S> {
        Admin {
            limiter,
            steering,
            fleet,
            usage,
            runtime,
            tokens,
            store_timeout,
            reader_values: Values::Plain,
            explaining: Semaphore::new(1),
        }
    }

    /// The same, which shows values so to clients that may only read.
    #[must_use]
    pub fn showing(self, reader_values: Values) -> Admin<S> {
        Admin { reader_values, ..self }
    }

    pub(super) fn usage(&self) -> &UsageStore {
        &self.usage
    }

    /// How values are shown to a client of this role. Who steers sees what is steered.
    pub(super) fn values(&self, role: AdminRole) -> &Values {
        match role {
            AdminRole::Admin => &Values::Plain,
            AdminRole::Reader => &self.reader_values,
        }
    }

    pub(super) fn steering(&self) -> &Steering<S> {
        &self.steering
    }

    pub(super) fn fleet(&self) -> &Fleet<S> {
        &self.fleet
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

    pub(super) fn explaining(&self) -> &Semaphore {
        &self.explaining
    }

    /// What a client may do. Refuses one without a token. Compares hashes, so that the time it takes reveals nothing of
    /// a token.
    pub(super) fn admit(&self, headers: &HeaderMap) -> Result<AdminRole, Refusal> {
        let given = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        let given = blake3::hash(given);
        let is = |token: &String| given == blake3::hash(format!("Bearer {token}").as_bytes());
        let AdminTokens { admin, reader } = &self.tokens;
        if admin.as_ref().is_some_and(is) {
            return Ok(AdminRole::Admin);
        }
        if reader.as_ref().is_some_and(is) {
            return Ok(AdminRole::Reader);
        }
        Err(refuse(StatusCode::UNAUTHORIZED, "send Authorization: Bearer and the ADMIN_TOKEN, or ADMIN_READ_TOKEN"))
    }
}

pub(super) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    let router = counters::router(Arc::clone(&admin)).merge(explain::router(Arc::clone(&admin)));
    let router = router.merge(candidates::router(Arc::clone(&admin))).merge(replicas::router(Arc::clone(&admin)));
    let router = router.merge(usage::router(Arc::clone(&admin))).merge(what_if::router(Arc::clone(&admin)));
    router.merge(adjustments::router(Arc::clone(&admin))).merge(top::router(admin))
}

/// Why a client gets no answer.
pub(super) struct Refusal(StatusCode, String);

pub(super) fn refuse(status: StatusCode, reason: impl ToString) -> Refusal {
    Refusal(status, reason.to_string())
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(status, reason) = self;
        (status, Json(json!({ "error": reason }))).into_response()
    }
}

/// What an administrator asks about.
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) domain: String,
    /// At least one, of at least one entry each.
    pub(super) descriptors: Vec<Vec<Entry>>,
    /// A limit that the request brings along.
    pub(super) limit: Option<Override>,
}

impl<S: Store> FromRequestParts<Arc<Admin<S>>> for Question {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin<S>>) -> Result<Question, Refusal> {
        admin.admit(&parts.headers)?.may(&parts.method)?;
        question(parts.method.clone(), parts.uri.query().unwrap_or_default())
    }
}

/// The domain and the descriptors of a query, in its order: `domain=shop&user=ann`; after `%2B=` another descriptor.
/// Behind the domain may stand a limit: `@limit=5/minute`.
fn question(method: Method, query: &str) -> Result<Question, Refusal> {
    let mut pairs = form_urlencoded::parse(query.as_bytes()).peekable();
    let domain = pairs.next().filter(|(first, _)| first == "domain").map(|(_, domain)| domain.into_owned());
    let limit =
        match pairs.next_if(|(key, _)| key == LIMIT) {
            None => None,
            Some((_, limit)) => Some(Override::parse(&limit).ok_or_else(|| {
                refuse(StatusCode::BAD_REQUEST, "write a limit as @limit=5/minute or @limit=5/30second")
            })?),
        };
    let entries: Vec<Entry> =
        pairs.map(|(key, value)| Entry { key: key.into_owned(), value: value.into_owned() }).collect();
    let is_separator = |entry: &Entry| entry.key == SEPARATOR && entry.value.is_empty();
    let descriptors: Vec<Vec<Entry>> = entries.split(is_separator).map(<[Entry]>::to_vec).collect();
    match domain {
        Some(domain) if descriptors.iter().all(|entries| !entries.is_empty()) => {
            Ok(Question { method, domain, descriptors, limit })
        }
        _ => {
            let reason = "say which: ?domain=shop&user=ann, the domain first and then the entries in order";
            Err(refuse(StatusCode::BAD_REQUEST, reason))
        }
    }
}
