//! A bounded count of the spans that wait for the collector, including those being sent.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanProcessor};

use super::{Fate, OnSpans};

/// Number of spans that have ended and not yet reached the collector or been lost.
#[derive(Debug, Default)]
pub(super) struct Waiting(AtomicUsize);

impl Waiting {
    /// Removes spans that were sent or lost.
    pub(super) fn leave(&self, spans: usize) {
        self.0.fetch_sub(spans, Ordering::Relaxed);
    }
}

/// A processor that accepts spans up to a capacity, and counts those it drops.
pub(super) struct Bounded {
    pub(super) batches: BatchSpanProcessor,
    pub(super) waiting: Arc<Waiting>,
    pub(super) capacity: usize,
    pub(super) on_spans: OnSpans,
}

impl fmt::Debug for Bounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounded").field("batches", &self.batches).finish_non_exhaustive()
    }
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &opentelemetry::Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.0.fetch_add(1, Ordering::Relaxed) < self.capacity {
            self.batches.on_end(span);
        } else {
            self.waiting.leave(1);
            (self.on_spans)(Fate::Dropped, 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &opentelemetry_sdk::Resource) {
        self.batches.set_resource(resource);
    }
}
