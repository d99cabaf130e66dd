//! Envoy's rate limit service: receives calls, asks the limiter, and sends the answers.

mod activity;
mod bounds;
mod by_hyper;
mod connection;
mod convert;
mod denied_body;
mod details;
mod dynamic_metadata;
mod front;
mod headers;
mod incoming;
mod options;
mod preface;
mod protocol;
mod request_id;
mod upstream;

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, HeaderName};
use tonic::{Request, Response, Status};

pub use activity::Activity;
pub use connection::{Begun, Server, begin};
pub use convert::RequestLimits;
pub use headers::{HeaderFormat, HeaderNames, Headers, PartitionKeys};
pub use incoming::Incoming;
pub use options::{ConnectionOptions, Transport};
pub use preface::NotHttp2;
pub use upstream::Upstream;

use self::details::{Beside, Detail};
use self::request_id::RequestId;
use crate::delay::Delay;
use crate::engine::algorithm::Ask;
use crate::engine::decision::{DecidedBy, Decision, Limited};
use crate::engine::descriptor::{self, Role};
use crate::engine::explain;
use crate::inspect::next_pass;
use crate::instant;
use crate::limiter::{Call, Deadlines, DecideError, Limiter, Snapshot};
use crate::metrics::Metrics;
use crate::spans::{Span, Spans};
use crate::store::Store;
use crate::wire::details::REQUEST_KEY;
use crate::wire::{RateLimitRequest, RateLimitResponse, RateLimitService};

/// Largest part of a delayed caller's timeout that is reserved for the answer.
const MAX_ANSWER_TIME: Duration = Duration::from_millis(100);

/// The rate limit service.
pub struct Service<S> {
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    spans: Spans,
    options: ServiceOptions,
}

/// Options of all calls.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Limits on the size of requests.
    pub limits: RequestLimits,
    /// The headers that Envoy adds to its response.
    pub headers: Headers,
    /// Name of a header with the cause of the decision, if it is wanted.
    pub decided_by_header: Option<String>,
    /// Whether answers have dynamic metadata: the request, and the metadata of the rules that its descriptors pass.
    pub dynamic_metadata: bool,
    /// What the upstream is told of a request that passes.
    pub upstream: Upstream,
    /// Longest time that a call waits for the store.
    pub store_timeout: Duration,
    /// Whether observers log the callers' request IDs; if not, the IDs are not read.
    pub request_ids: bool,
}

impl<S> Service<S> {
    /// Creates a service that asks `limiter`.
    pub fn new(limiter: Arc<Limiter<S>>, metrics: Arc<Metrics>, options: ServiceOptions) -> Self {
        Service { limiter, metrics, spans: Spans::default(), options }
    }

    /// Adds spans to the service's calls.
    #[must_use]
    pub fn traced(self, spans: Spans) -> Self {
        Service { spans, ..self }
    }

    /// Reads the properties of the caller from a call's headers.
    pub fn caller(&self, headers: &HeaderMap) -> Caller {
        static DETAILS: HeaderName = HeaderName::from_static(REQUEST_KEY);
        static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
        let timeout = headers.get(&GRPC_TIMEOUT).and_then(|value| parse_timeout(value.as_bytes()));
        self.caller_of(timeout, headers.contains_key(&DETAILS), headers)
    }

    /// Returns the properties of a caller with this timeout, who may want details. `headers` have its trace and its ID
    /// of the request, if they are wanted.
    fn caller_of(&self, timeout: Option<Duration>, details: bool, headers: &HeaderMap) -> Caller {
        let detail = if details { Detail::Full } else { Detail::Unusual };
        // Used only by observers that log it.
        let request_id = self.options.request_ids.then(|| RequestId::of(headers)).flatten();
        Caller { timeout, detail, span: self.spans.call(headers), request_id }
    }

    /// Returns whether anybody wants a call's trace or the caller's ID of the request.
    fn wants_traces(&self) -> bool {
        self.options.request_ids || self.spans.are_on()
    }
}

/// The headers of a call that its caller's properties are read from.
#[derive(Debug)]
struct CallerHeaders {
    timeout: Option<Duration>,
    details: bool,
    /// Its trace and the ID of the request, if they are wanted and it has them.
    headers: Option<Box<HeaderMap>>,
}

/// The properties of a call that its headers give.
#[derive(Debug)]
pub struct Caller {
    /// The caller's timeout, or `None` if it has none.
    timeout: Option<Duration>,
    detail: Detail,
    /// The span of the call if it is sampled.
    span: Option<Span>,
    /// The caller's ID of the request if it is logged.
    request_id: Option<RequestId>,
}

/// Reasons for a call to fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The service cannot decide; Envoy's `failure_mode_deny` applies, as if the service were down.
    #[error("{0}")]
    Unavailable(String),
    /// Too many calls wait already.
    #[error("{0}")]
    Overloaded(String),
    /// The caller's deadline has passed.
    #[error("{0}")]
    DeadlineExceeded(String),
}

impl CallError {
    /// Returns the kind of error, for spans.
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
    /// Answers a call, at its release time if it is delayed. If the future is dropped earlier, the request's hits are
    /// refunded.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(&self, request: RateLimitRequest, caller: Caller) -> Result<RateLimitResponse, CallError> {
        let start = instant::now();
        let deadlines = self.deadlines(start, caller.timeout);
        let answer = match &caller.span {
            None => self.answer(request, deadlines, &caller).await,
            // Boxed, to keep the future of a call that is not sampled small.
            Some(span) => Box::pin(span.run(self.traced_answer(request, deadlines, (&caller, span)))).await,
        };
        let took = instant::now() - start;
        self.metrics.record_call(took);
        let (response, delay) = answer?;
        // If it is too late for the store's answer, it is too late for a failure mode's answer.
        if caller.timeout.is_some_and(|timeout| timeout < took) {
            let error = CallError::DeadlineExceeded("the deadline has passed".to_owned());
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
    /// Reserves a quarter of the caller's timeout for the answer to arrive in time.
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

    /// Answers a sampled call.
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

    /// Returns the answer and its delay.
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
        let request_id = caller.request_id.as_ref().map(|request_id| request_id as &(dyn Display + Sync));
        let call = Call { deadlines, request_id };
        let (decision, delay) = self.limiter.decide(&snapshot, &request, call).await.map_err(|error| match error {
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
        if let Some(span) = &caller.span {
            span.set("tollgate.decision", if decision.over_limit { "over_limit" } else { "ok" });
            span.set_words("tollgate.decided_by", decision.decided_by().into_iter().map(DecidedBy::name));
            describe(span, &decision);
        }
        let metadata = match caller.detail {
            Detail::Unusual => details::of_unusual(&decision),
            // Boxed, to keep the future of a request without details small.
            Detail::Full => Some(Box::pin(self.details(&decision, (&snapshot, &request), deadlines.store)).await),
        };
        let mut response = convert::response(&decision, &self.options, metadata);
        if decision.over_limit {
            denied_body::add(&mut response, &decision, (&snapshot.rules, &request.domain));
        } else {
            upstream::add(&mut response, &decision, &self.options.upstream);
        }
        if let Some(asked) = asked {
            dynamic_metadata::add(&mut response, asked, &decision);
        }
        Ok((response, delay))
    }

    /// Collects the details of a decision, unless there are too many.
    async fn details(
        &self,
        decision: &Decision<'_>,
        (snapshot, request): (&Snapshot, &descriptor::Request),
        deadline: Instant,
    ) -> prost_types::Struct {
        if let Some(left_out) = details::left_out(decision) {
            return details::without_descriptors(decision, left_out);
        }
        let is_peek = request.descriptors.iter().all(|descriptor| descriptor.ask == Ask::Peek);
        let next_after_ms = match is_peek && decision.rooms().contains(&false) {
            true => next_pass::next_after_ms(decision, self.limiter.store(), deadline).await,
            false => Vec::new(),
        };
        details::full(decision, Beside { missed: explain::missed(&snapshot.rules, request), next_after_ms })
    }
}

/// Adds the limit that is reported to the client to a span. Its name comes from the rules.
fn describe(span: &Span, decision: &Decision<'_>) {
    if let Some(limited) = decision.reported() {
        let limit = &limited.asked.check.limit;
        span.set_text("tollgate.limit.name", limited.asked.source.label());
        span.set("tollgate.limit.algorithm", limit.algorithm().name());
        span.set("tollgate.limit.number", i64::try_from(limit.number()).unwrap_or(i64::MAX));
        if limit.window().is_some() {
            span.set("tollgate.limit.period_ms", i64::try_from(limit.period_ms()).unwrap_or(i64::MAX));
        }
        if let Some(remaining) = limited.remaining() {
            span.set("tollgate.limit.remaining", i64::try_from(remaining).unwrap_or(i64::MAX));
        }
    }
    if let Some(retry_after_ms) = decision.retry_after_ms() {
        span.set("tollgate.retry_after_ms", i64::try_from(retry_after_ms).unwrap_or(i64::MAX));
    }
}

/// Formats the limits that a request is over by their names, for the log.
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
    /// Limits the caller's timeout to at most `most`.
    #[must_use]
    pub fn within(self, most: Duration) -> Caller {
        Caller { timeout: Some(self.timeout.map_or(most, |timeout| timeout.min(most))), ..self }
    }
}

/// Parses the caller's timeout: gRPC's `grpc-timeout`, of up to eight digits and a unit.
fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| 10 * number + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 60 * 60),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}
