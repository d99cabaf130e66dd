//! Envoy's rate limit service: a call comes in, the limiter decides, the answer goes out.

mod connection;
mod convert;
mod details;
mod dynamic_metadata;
mod headers;
mod calls;
mod executor;
mod message;
mod preface;
mod request_id;
mod session;

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, HeaderName};
use tonic::{Request, Response, Status};

pub use connection::{Begun, ConnectionOptions, Server, begin};
pub use convert::RequestLimits;
pub use headers::{HeaderFormat, HeaderNames, Headers};
pub use preface::NotHttp2;

use self::details::{Beside, Detail};
use self::request_id::RequestId;
use crate::algorithm::Ask;
use crate::decision::{DecidedBy, Decision, Limited};
use crate::decision_log::DecisionLog;
use crate::delay::Delay;
use crate::descriptor::{self, Role};
use crate::explain;
use crate::limiter::{Deadlines, DecideError, Limiter, Snapshot};
use crate::metrics::Metrics;
use crate::spans::{Span, Spans};
use crate::store::Store;
use crate::wire::details::REQUEST_KEY;
use crate::wire::{RateLimitRequest, RateLimitResponse, RateLimitService};

/// The most that is kept back of a delayed caller's timeout.
const MAX_ANSWER_TIME: Duration = Duration::from_millis(100);

/// The service.
pub struct Service<S> {
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    spans: Spans,
    decision_log: Option<Arc<DecisionLog>>,
    options: ServiceOptions,
}

/// What holds for every call.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The largest request.
    pub limits: RequestLimits,
    /// The headers that Envoy shall add to its response.
    pub headers: Headers,
    /// The name of one more, which says by what a request was decided; `None`: there is none.
    pub decided_by_header: Option<String>,
    /// Answers have dynamic metadata: what was asked, and what the rules say of what passes.
    pub dynamic_metadata: bool,
    /// The longest that a call waits for the store.
    pub store_timeout: Duration,
}

impl<S> Service<S> {
    /// A service that asks `limiter`.
    pub fn new(limiter: Arc<Limiter<S>>, metrics: Arc<Metrics>, options: ServiceOptions) -> Self {
        Service { limiter, metrics, spans: Spans::default(), decision_log: None, options }
    }

    /// The same service, whose calls have these spans.
    #[must_use]
    pub fn traced(self, spans: Spans) -> Self {
        Service { spans, ..self }
    }

    /// The same service, whose decisions are logged here.
    #[must_use]
    pub fn logged(self, decision_log: Option<Arc<DecisionLog>>) -> Self {
        Service { decision_log, ..self }
    }

    /// Who calls with these headers.
    pub fn caller(&self, headers: &HeaderMap) -> Caller {
        static DETAILS: HeaderName = HeaderName::from_static(REQUEST_KEY);
        let detail = if headers.contains_key(&DETAILS) { Detail::Full } else { Detail::Unusual };
        // Nobody else asks for it.
        let request_id = self.decision_log.as_ref().and_then(|_| RequestId::of(headers));
        Caller { timeout: timeout(headers), detail, span: self.spans.call(headers), request_id }
    }
}

/// What a caller says of a call beside its request.
#[derive(Debug)]
pub struct Caller {
    /// The time that it gives the call; `None`: as long as it takes.
    timeout: Option<Duration>,
    detail: Detail,
    /// Of the call, where it is sampled.
    span: Option<Span>,
    /// What it calls the request, where that is logged.
    request_id: Option<RequestId>,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request can have none.
    #[error("{0}")]
    Invalid(String),
    /// Envoy's `failure_mode_deny` decides, as where nobody answers.
    #[error("{0}")]
    Unavailable(String),
    /// There is no room for it.
    #[error("{0}")]
    Overloaded(String),
    /// The caller waits no longer.
    #[error("{0}")]
    DeadlineExceeded(String),
}

impl CallError {
    /// In one word, as spans have it.
    fn kind(&self) -> &'static str {
        match self {
            CallError::Invalid(_) => "invalid",
            CallError::Unavailable(_) => "unavailable",
            CallError::Overloaded(_) => "overloaded",
            CallError::DeadlineExceeded(_) => "deadline_exceeded",
        }
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Status {
        match error {
            CallError::Invalid(message) => Status::invalid_argument(message),
            CallError::Unavailable(message) => Status::unavailable(message),
            CallError::Overloaded(message) => Status::resource_exhausted(message),
            CallError::DeadlineExceeded(message) => Status::deadline_exceeded(message),
        }
    }
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Service<S> {
    async fn should_rate_limit(&self, call: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        let caller = self.caller(call.metadata().as_ref());
        self.call(call.into_inner(), caller).await.map(Response::new).map_err(Status::from)
    }
}

impl<S: Store> Service<S> {
    /// Answers a call, at its release time where it is delayed. What it has taken is refunded if it is dropped before.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(&self, request: RateLimitRequest, caller: Caller) -> Result<RateLimitResponse, CallError> {
        let start = Instant::now();
        let deadlines = self.deadlines(start, caller.timeout);
        let answer = match &caller.span {
            None => self.answer(request, deadlines, &caller).await,
            // Boxed: the future of a call that is not sampled need not be as large.
            Some(span) => Box::pin(span.run(self.traced_answer(request, deadlines, (&caller, span)))).await,
        };
        let took = start.elapsed();
        self.metrics.record_call(took);
        let (response, delay) = answer?;
        // Too late for the store, it is too late for a failure mode.
        if caller.timeout.is_some_and(|timeout| timeout < took) {
            let error = CallError::DeadlineExceeded("the deadline is over".to_owned());
            caller.span.iter().for_each(|span| span.fail(error.kind()));
            return Err(error);
        }
        if let Some(delay) = delay {
            delay.wait().await;
        }
        Ok(response)
    }
}

impl<S: Store> Service<S> {
    /// A quarter of the caller's timeout is kept back, for our answer to arrive in time.
    fn deadlines(&self, start: Instant, timeout: Option<Duration>) -> Deadlines {
        let store_timeout = self.options.store_timeout;
        match timeout {
            None => Deadlines { store: start + store_timeout, caller: None },
            Some(timeout) => Deadlines {
                store: start + store_timeout.min(timeout / 4 * 3),
                caller: start.checked_add(timeout - MAX_ANSWER_TIME.min(timeout / 4)),
            },
        }
    }

    /// The answer to a call that is sampled.
    async fn traced_answer(
        &self,
        request: RateLimitRequest,
        deadlines: Deadlines,
        (caller, span): (&Caller, &Span),
    ) -> Result<(RateLimitResponse, Option<Delay>), CallError> {
        span.set_text("tollgate.domain", &request.domain);
        span.set("tollgate.descriptors", i64::try_from(request.descriptors.len()).unwrap_or(i64::MAX));
        let answer = self.answer(request, deadlines, caller).await;
        if let Err(error) = &answer {
            span.fail(error.kind());
        }
        answer
    }

    /// The answer, and its delay.
    async fn answer(
        &self,
        request: RateLimitRequest,
        deadlines: Deadlines,
        caller: &Caller,
    ) -> Result<(RateLimitResponse, Option<Delay>), CallError> {
        let asked = self.options.dynamic_metadata.then(|| dynamic_metadata::asked(&request));
        let request = convert::request(request, &self.options.limits).map_err(|invalid| {
            self.metrics.record_invalid();
            tracing::debug!(error = %invalid, "invalid request");
            CallError::Invalid(invalid.to_string())
        })?;
        let snapshot = self.limiter.snapshot();
        let (decision, delay) =
            self.limiter.decide(&snapshot, &request, deadlines).await.map_err(|error| match error {
                DecideError::NoRules | DecideError::Undecided { .. } => CallError::Unavailable(error.to_string()),
                DecideError::GiveBack { .. } => {
                    self.metrics.record_invalid();
                    CallError::Invalid(error.to_string())
                }
                DecideError::Overloaded => CallError::Overloaded(error.to_string()),
                DecideError::DeadlineExceeded => {
                    self.metrics.record_deadline_exceeded();
                    CallError::DeadlineExceeded(error.to_string())
                }
                DecideError::TooMuchWork(_) => {
                    self.metrics.record_invalid();
                    CallError::Invalid(error.to_string())
                }
            })?;
        tracing::debug!(?request, over_limit = decision.over_limit, over = ?Over(&decision.limits), "decided");
        if let Some(decision_log) = &self.decision_log {
            let request_id = caller.request_id.as_ref().map(|request_id| request_id as &dyn Display);
            decision_log.record(&request, &decision, request_id);
        }
        if let Some(span) = &caller.span {
            span.set("tollgate.decision", if decision.over_limit { "over_limit" } else { "ok" });
            span.set_words("tollgate.decided_by", decision.decided_by().into_iter().map(DecidedBy::name));
        }
        let metadata = match caller.detail {
            Detail::Unusual => details::of_unusual(&decision),
            // Boxed: the future of a request that wants no details need not be as large.
            Detail::Full => Some(Box::pin(self.details(&decision, (&snapshot, &request), deadlines.store)).await),
        };
        let mut response = convert::response(&decision, &self.options, metadata);
        if let Some(asked) = asked {
            dynamic_metadata::add(&mut response, asked, &decision);
        }
        Ok((response, delay))
    }

    /// All that there is to say of a decision.
    async fn details(
        &self,
        decision: &Decision<'_>,
        (snapshot, request): (&Snapshot, &descriptor::Request),
        deadline: Instant,
    ) -> prost_types::Struct {
        let is_peek = request.descriptors.iter().all(|descriptor| descriptor.ask == Ask::Peek);
        let next_after_ms = match is_peek && decision.rooms().contains(&false) {
            true => self.limiter.next_after_ms(decision, deadline).await,
            false => Vec::new(),
        };
        details::full(decision, Beside { missed: explain::missed(&snapshot.rules, request), next_after_ms })
    }
}

/// The limits that a request is over, by their names, for the log.
struct Over<'d>(&'d [Limited<'d>]);

impl fmt::Debug for Over<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.0.iter().filter(|limited| limited.over());
        let name = |limited: &Limited<'_>| match limited.role() {
            Role::Shadow => format!("{} (shadow)", limited.asked.source.label()),
            Role::Enforced | Role::Quota => limited.asked.source.label().to_owned(),
        };
        f.debug_list().entries(over.map(name)).finish()
    }
}

impl Caller {
    /// The same caller, which gives the call so much time at most.
    #[must_use]
    pub fn within(self, most: Duration) -> Caller {
        Caller { timeout: Some(self.timeout.map_or(most, |timeout| timeout.min(most))), ..self }
    }
}

/// The time that the caller gives the call: gRPC's `grpc-timeout`, up to eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
    let text = headers.get(&GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 60 * 60),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}
