//! Spans of calls and of what they ask the store, for a collector that speaks OTLP.
//!
//! Where tracing is off, [`Spans`] is empty and a call costs a look at that. Where it is on, a call that is not sampled
//! costs a look at its headers; only a sampled call has spans. A span says nothing of what a request has asked but its
//! domain and the number of its descriptors.

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
    Collector, CollectorError, Compression, Exporting, Fate, OnSpans, Options, Protocol, Queue, Resource,
};
pub use opentelemetry::trace::SpanKind;

use caller::Caller;

/// The longest text in a span, in characters: a client chooses the name of its domain.
const SHOWN: usize = 200;

/// Makes spans, or none where tracing is off.
#[derive(Clone, Debug, Default)]
pub struct Spans(Option<Arc<Maker>>);

#[derive(Debug)]
struct Maker {
    tracer: SdkTracer,
    sampling: Sampling,
    /// Decides on calls whose caller has not, or is not asked.
    sampler: Sampler,
}

/// Which calls have spans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Whose word comes first.
    pub decider: Decider,
    /// The share of those that are left to us.
    pub share: f64,
    /// By which headers callers are known.
    pub propagators: Propagators,
}

/// Who decides whether a call has spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// The caller, where it says so.
    Caller,
    /// We, whatever the caller says.
    Share,
}

/// A span. It ends when this is dropped.
#[derive(Debug)]
pub struct Span(Current);

/// A span that somebody else ends.
#[derive(Clone, Debug)]
pub struct Current {
    context: Context,
    maker: Arc<Maker>,
}

/// The name of the trace that a call with these headers is in, whether it is sampled or not.
pub fn trace_id(headers: &HeaderMap) -> Option<TraceId> {
    Caller::of(headers, Propagators { trace_context: true, b3: true }).trace()
}

impl Spans {
    fn new(tracer: SdkTracer, sampling: Sampling) -> Spans {
        Spans(Some(Arc::new(Maker { tracer, sampling, sampler: Sampler::TraceIdRatioBased(sampling.share) })))
    }

    /// The span of a call with these headers, which name the caller's; `None` where the call is not sampled.
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

    /// The span of what runs now, where it has one.
    pub fn current(&self) -> Option<Current> {
        let maker = self.0.as_ref()?;
        let context = Context::map_current(|context| context.has_active_span().then(|| context.clone()))?;
        Some(Current { context, maker: Arc::clone(maker) })
    }
}

impl Maker {
    /// By the trace, so that all who decide by the same share decide alike.
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
    /// Runs this within the span: it is the current one there.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        future.with_context(self.0.context.clone())
    }

    /// Notes a fact.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.0.context.span().set_attribute(KeyValue::new(name, value));
    }

    /// Notes a text that a client has chosen.
    pub fn set_text(&self, name: &'static str, text: &str) {
        let end = text.char_indices().nth(SHOWN).map_or(text.len(), |(end, _)| end);
        self.set(name, text[..end].to_owned());
    }

    /// Notes several words.
    pub fn set_words(&self, name: &'static str, words: impl IntoIterator<Item = &'static str>) {
        let words = words.into_iter().map(StringValue::from).collect();
        self.set(name, Value::Array(Array::String(words)));
    }

    /// It has failed, for a cause of this kind.
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
    /// A span within this one.
    pub fn child(&self, name: &'static str, kind: SpanKind) -> Span {
        self.maker.begin(name, kind, &self.context)
    }

    /// Points from this span to another, which may be of another trace.
    pub fn link(&self, other: &Span) {
        self.context.span().add_link(other.0.context.span().span_context().clone(), Vec::new());
    }
}
