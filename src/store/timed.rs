//! Measures how long the store takes to answer. Leases and known denials answer without the store and are not measured.
//! A sampled call gets a span for it.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Store;
use crate::engine::check::{Check, CheckVerdict, StoreError, Verdicts};
use crate::instant;
use crate::spans::{Current, SpanKind, Spans};

/// A store that reports each answer.
pub struct Timed<S> {
    store: Arc<S>,
    on_answer: OnAnswer,
    spans: Spans,
}

/// Called with the error, if any, and the time that the answer took.
pub type OnAnswer = Arc<dyn Fn(Option<&StoreError>, Duration) + Send + Sync>;

impl<S> Timed<S> {
    /// Returns the store with this callback.
    pub fn new(store: Arc<S>, on_answer: OnAnswer) -> Timed<S> {
        Timed { store, on_answer, spans: Spans::default() }
    }

    /// Returns the store with these spans.
    #[must_use]
    pub fn traced(self, spans: Spans) -> Timed<S> {
        Timed { spans, ..self }
    }
}

impl<S: Store> Timed<S> {
    async fn check_traced<C: Borrow<Check> + Sync>(
        &self,
        call: Current,
        checks: &[C],
        deadline: Instant,
    ) -> Result<Verdicts, StoreError> {
        let span = call.child("store", SpanKind::Internal);
        span.set("tollgate.counters", i64::try_from(checks.len()).unwrap_or(i64::MAX));
        let verdicts = span.run(self.store.check(checks, deadline)).await;
        if let Err(error) = &verdicts {
            span.fail(error.kind());
        }
        verdicts
    }
}

impl<S: Store> Store for Timed<S> {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let asked = instant::now();
        let verdicts = match self.spans.current() {
            None => self.store.check(checks, deadline).await,
            // Boxed to keep the future of a request that is not sampled small.
            Some(call) => Box::pin(self.check_traced(call, checks, deadline)).await,
        };
        (self.on_answer)(verdicts.as_ref().err(), instant::now() - asked);
        verdicts
    }

    fn known_denial(&self, check: &Check) -> Option<CheckVerdict> {
        self.store.known_denial(check)
    }

    async fn close(&self, deadline: Instant) {
        self.store.close(deadline).await;
    }

    fn flush_log(&self) {
        self.store.flush_log();
    }
}
