//! How long the store takes, where it is asked: what stands before it, a lease or a known denial, answers without it.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Check, CheckVerdict, Store, StoreError, Verdicts};

/// A store that reports each answer.
pub struct Timed<S> {
    store: Arc<S>,
    on_answer: OnAnswer,
}

/// Is called with what has gone wrong, if anything, and how long the answer took.
pub type OnAnswer = Arc<dyn Fn(Option<&StoreError>, Duration) + Send + Sync>;

impl<S> Timed<S> {
    /// The same store.
    pub fn new(store: Arc<S>, on_answer: OnAnswer) -> Timed<S> {
        Timed { store, on_answer }
    }
}

impl<S: Store> Store for Timed<S> {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let asked = Instant::now();
        let verdicts = self.store.check(checks, deadline).await;
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
