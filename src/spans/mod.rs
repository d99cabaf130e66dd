//! Spans of calls and of their requests to the store, for a collector that supports OTLP.
//!
//! If tracing is off, [`Spans`] is empty, and a call costs one check of that. If it is on, a call that is not sampled
//! costs a check of its headers; only a sampled call gets spans. Of the contents of a request, a span has only the
//! domain and the number of descriptors.

mod caller;
mod collector;
mod connection;
mod exporter;
mod queue;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use hyper::HeaderMap;
use opentelemetry::context::FutureExt as _;
use opentelemetry::trace::{SpanBuilder, Status, TraceContextExt as _, TraceId, Tracer as _};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, Sampler, SamplingDecision, SdkTracer, ShouldSample as _,
};

pub use caller::Propagators;
pub use collector::{
    Collector, CollectorError, Compression, Exporting, Fate, OnSpans, Protocol, Queue, Resource, SpanOptions,
};
pub use opentelemetry::trace::SpanKind;

use caller::Caller;

/// Longest text in a span, in characters, as a client may send any domain.
const SHOWN: usize = 200;

/// Makes spans; empty if tracing is off.
#[derive(Clone, Debug, Default)]
pub struct Spans(Option<Arc<Maker>>);

#[derive(Debug)]
struct Maker {
    tracer: SdkTracer,
    sampling: Sampling,
    /// Decides for calls that the caller has not decided, or if the caller's decision is ignored.
    sampler: Sampler,
}

/// Selection of the calls that get spans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Whether the caller's decision counts.
    pub decider: Decider,
    /// The share of calls to sample if the decision is ours.
    pub share: f64,
    /// Headers that identify the caller's trace.
    pub propagators: Propagators,
}

/// The side that decides whether a call is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// The caller, if it has decided.
    Caller,
    /// Tollgate, regardless of the caller.
    Share,
}

/// A span, which ends when this is dropped.
#[derive(Debug)]
pub struct Span(Current);

/// A reference to a span that its owner ends.
#[derive(Clone, Debug)]
pub struct Current {
    context: Context,
    maker: Arc<Maker>,
}

/// Returns the ID of the trace that these headers name, whether it is sampled or not.
pub fn trace_id(headers: &HeaderMap) -> Option<TraceId> {
    Caller::of(headers, Propagators { trace_context: true, b3: true }).trace()
}

impl Spans {
    fn new(tracer: SdkTracer, sampling: Sampling) -> Spans {
        Spans(Some(Arc::new(Maker { tracer, sampling, sampler: Sampler::TraceIdRatioBased(sampling.share) })))
    }

    /// Returns whether calls may get spans.
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the span of a call with these headers, as a child of the caller's span. Returns `None` if the call is not
    /// sampled.
    pub fn call(&self, headers: &HeaderMap) -> Option<Span> {
        let maker = self.0.as_ref()?;
        let caller = Caller::of(headers, maker.sampling.propagators);
        let said = caller.sampled.filter(|_| maker.sampling.decider == Decider::Caller);
        if !said.unwrap_or_else(|| maker.draw(&caller)) {
            return None;
        }
        let parent = caller.span(headers).map(|span| Context::new().with_remote_span_context(span));
        Some(maker.begin("ShouldRateLimit", SpanKind::Server, &parent.unwrap_or_default()))
    }

    /// Returns the span of the running task, if it has one.
    pub fn current(&self) -> Option<Current> {
        let maker = self.0.as_ref()?;
        let context = Context::map_current(|context| context.has_active_span().then(|| context.clone()))?;
        Some(Current { context, maker: Arc::clone(maker) })
    }
}

impl Maker {
    /// Samples by the trace's ID, so that all services with the same share decide alike.
    fn draw(&self, caller: &Caller) -> bool {
        let trace = caller.trace().unwrap_or_else(|| RandomIdGenerator::default().new_trace_id());
        let drawn = self.sampler.should_sample(None, trace, "", &SpanKind::Server, &[], &[]);
        drawn.decision == SamplingDecision::RecordAndSample
    }

    fn begin(self: &Arc<Self>, name: &'static str, kind: SpanKind, parent: &Context) -> Span {
        let span = self.tracer.build_with_context(SpanBuilder::from_name(name).with_kind(kind), parent);
        Span(Current { context: parent.with_span(span), maker: Arc::clone(self) })
    }
}

impl Span {
    /// Runs a future with this span as the current one.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        future.with_context(self.0.context.clone())
    }

    /// Sets an attribute.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.0.context.span().set_attribute(KeyValue::new(name, value));
    }

    /// Sets an attribute to a text chosen by a client, shortened to 200 characters.
    pub fn set_text(&self, name: &'static str, text: &str) {
        let end = text.char_indices().nth(SHOWN).map_or(text.len(), |(end, _)| end);
        self.set(name, text[..end].to_owned());
    }

    /// Sets an attribute to a list of words.
    pub fn set_words(&self, name: &'static str, words: impl IntoIterator<Item = &'static str>) {
        let words = words.into_iter().map(StringValue::from).collect();
        self.set(name, Value::Array(Array::String(words)));
    }

    /// Marks the span as failed with this kind of error.
    pub fn fail(&self, kind: &'static str) {
        self.set("error.type", kind);
        self.0.context.span().set_status(Status::Error { description: Cow::Borrowed(kind) });
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.0.context.span().end();
    }
}

impl Current {
    /// Starts a child of this span.
    pub fn child(&self, name: &'static str, kind: SpanKind) -> Span {
        self.maker.begin(name, kind, &self.context)
    }

    /// Links this span to another, which may belong to another trace.
    pub fn link(&self, other: &Span) {
        self.context.span().add_link(other.0.context.span().span_context().clone(), Vec::new());
    }
}
