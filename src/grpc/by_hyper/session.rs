//! State shared by the calls of one connection: the budgets of half-received requests and of unsent answers, the number
//! of calls being decided, and whether the process drains.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use super::unsent::Unsent;
use crate::grpc::activity::{ActiveCall, Activity};

/// The shared state.
#[derive(Debug)]
pub(super) struct Session {
    /// Largest number of half-received bytes.
    budget: usize,
    /// Present number of half-received bytes.
    held: AtomicUsize,
    /// Answers that the client has not received.
    pub(super) unsent: Arc<Unsent>,
    activity: Arc<Activity>,
    draining: watch::Sender<bool>,
}

impl Session {
    pub(super) fn new(budget: usize, activity: Arc<Activity>) -> Arc<Session> {
        Arc::new(Session {
            budget,
            held: AtomicUsize::new(0),
            unsent: Arc::default(),
            activity,
            draining: watch::Sender::new(false),
        })
    }

    /// Starts an account of half-received bytes.
    pub(super) fn held(self: &Arc<Self>) -> Held {
        Held { session: Arc::clone(self), bytes: 0 }
    }

    /// Counts a request as being decided until the returned value is dropped.
    pub(super) fn decide(&self) -> ActiveCall {
        self.activity.begin_call()
    }

    /// Returns whether any request is being decided.
    pub(super) fn is_deciding(&self) -> bool {
        self.activity.has_calls()
    }

    /// Updates the activity. Call it after polling the connection and its calls.
    pub(super) fn polled(&self) {
        self.activity.polled();
    }

    /// Ends all calls, except those being decided.
    pub(super) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Waits until the process drains.
    pub(super) fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.draining.subscribe();
        async move {
            // An error means that the connection is gone, and its calls with it.
            let _ = draining.wait_for(|draining| *draining).await;
        }
    }
}

/// The bytes of the connection's budget that one call holds.
#[derive(Debug)]
pub(super) struct Held {
    session: Arc<Session>,
    bytes: usize,
}

impl Held {
    /// Raises the number of bytes held to `bytes`. Returns `false` if the budget has no room for them.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let before = self.session.held.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        before.saturating_add(more) <= self.session.budget
    }

    /// Holds this many more bytes. Returns `false` if the budget has no room for them.
    pub(super) fn grow_by(&mut self, bytes: usize) -> bool {
        self.grow_to(self.bytes.saturating_add(bytes))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.session.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_budget_is_shared_and_what_is_dropped_is_given_back() {
        let session = Session::new(100, Activity::new());
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
        let session = Session::new(0, Activity::new());
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
