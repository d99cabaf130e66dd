//! Records when the system reported that a connection has input. The input itself may have arrived a little earlier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::time::{Duration, Instant};

/// Wakes the task of a connection when the connection has input, and records the time.
pub(super) struct Arrival {
    state: Arc<State>,
    waker: Waker,
}

struct State {
    task: AtomicWaker,
    opened: Instant,
    /// Time of the first wake since [`Arrival::take`], in nanoseconds after `opened` plus one; 0 if there was none.
    at: AtomicU64,
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.at.load(Ordering::Relaxed) == 0 {
            let ns = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.at.store(ns.saturating_add(1), Ordering::Relaxed);
        }
        self.task.wake();
    }
}

impl Arrival {
    pub(super) fn new() -> Arrival {
        let state = Arc::new(State { task: AtomicWaker::new(), opened: Instant::now(), at: AtomicU64::new(0) });
        Arrival { waker: Waker::from(Arc::clone(&state)), state }
    }

    /// Sets the task to wake. Call it in each poll of the task.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.state.task.register(cx.waker());
    }

    /// Returns the waker for polls of the input.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns the time of the first report since the last call of this function, if there was one.
    pub(super) fn take(&self) -> Option<Instant> {
        let ns = self.state.at.swap(0, Ordering::Relaxed).checked_sub(1)?;
        Some(self.state.opened + Duration::from_nanos(ns))
    }
}
