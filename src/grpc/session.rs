//! What the calls of one connection share: a budget of half-received bytes, how many of them are being decided, and
//! whether the process drains.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// One connection, as its calls see it.
#[derive(Debug)]
pub(super) struct Session {
    /// How many bytes may be half-received.
    budget: usize,
    /// How many are.
    held: AtomicUsize,
    deciding: AtomicUsize,
    draining: watch::Sender<bool>,
}

impl Session {
    pub(super) fn new(budget: usize) -> Arc<Session> {
        Arc::new(Session {
            budget,
            held: AtomicUsize::new(0),
            deciding: AtomicUsize::new(0),
            draining: watch::Sender::new(false),
        })
    }

    /// An account of half-received bytes, with none in it.
    pub(super) fn held(self: &Arc<Self>) -> Held {
        Held { session: Arc::clone(self), bytes: 0 }
    }

    /// Counts a request as being decided for as long as this is kept.
    pub(super) fn decide(self: &Arc<Self>) -> Deciding {
        self.deciding.fetch_add(1, Ordering::Relaxed);
        Deciding(Arc::clone(self))
    }

    /// Whether requests are being decided.
    pub(super) fn is_deciding(&self) -> bool {
        self.deciding.load(Ordering::Relaxed) > 0
    }

    /// From now on all calls but those that are being decided have to end.
    pub(super) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Waits until that is so.
    pub(super) fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.draining.subscribe();
        async move {
            // An error means that the connection is gone: its calls go with it.
            let _ = draining.wait_for(|draining| *draining).await;
        }
    }
}

/// The bytes that one call holds of the connection's budget.
#[derive(Debug)]
pub(super) struct Held {
    session: Arc<Session>,
    bytes: usize,
}

impl Held {
    /// Holds so many in all, at least as many as before. `false`: the budget has no room for them.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let before = self.session.held.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        before.saturating_add(more) <= self.session.budget
    }

    /// Holds so many more.
    pub(super) fn grow_by(&mut self, bytes: usize) -> bool {
        self.grow_to(self.bytes.saturating_add(bytes))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.session.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A request that is being decided.
#[derive(Debug)]
pub(super) struct Deciding(Arc<Session>);

impl Drop for Deciding {
    fn drop(&mut self) {
        self.0.deciding.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_budget_is_shared_and_what_is_dropped_is_given_back() {
        let session = Session::new(100);
        let (mut one, mut other) = (session.held(), session.held());
        assert!(one.grow_to(60) && one.grow_to(50), "it shrinks not, and costs nothing");
        assert!(other.grow_by(40) && !other.grow_by(1));
        drop(other);
        assert!(one.grow_to(100) && !session.held().grow_by(1));
        drop(one);
        assert_eq!(session.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn draining_ends_all_that_wait_for_it_early_or_late() {
        let session = Session::new(0);
        let mut early = Box::pin(session.drained());
        assert!((&mut early).now_or_never().is_none());
        session.drain();
        assert!(early.now_or_never().is_some() && session.drained().now_or_never().is_some());
        let deciding = session.decide();
        assert!(session.is_deciding());
        drop(deciding);
        assert!(!session.is_deciding());
    }
}
