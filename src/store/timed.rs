//! How long the store takes, where it is asked: what stands before it, a lease or a known denial, answers without it.
//! A call that is sampled has a span for it.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Check, CheckVerdict, Store, StoreError, Verdicts};
use crate::spans::{Current, SpanKind, Spans};

/// A store that reports each answer.
pub struct Timed<S> {
    store: Arc<S>,
    on_answer: OnAnswer,
    spans: Spans,
}

/// Is called with what has gone wrong, if anything, and how long the answer took.
pub type OnAnswer = Arc<dyn Fn(Option<&StoreError>, Duration) + Send + Sync>;

impl<S> Timed<S> {
    /// The same store.
    pub fn new(store: Arc<S>, on_answer: OnAnswer) -> Timed<S> {
        Timed { store, on_answer, spans: Spans::default() }
    }

    /// The same store, with these spans.
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
        let asked = Instant::now();
        let verdicts = match self.spans.current() {
            None => self.store.check(checks, deadline).await,
            // Boxed: the future of a request that is not sampled need not be as large.
            Some(call) => Box::pin(self.check_traced(call, checks, deadline)).await,
        };
        (self.on_answer)(verdicts.as_ref().err(), asked.elapsed());
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
