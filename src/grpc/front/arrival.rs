//! When the input of a connection arrived, as far as the process knows: when the system reported it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::time::{Duration, Instant};

/// Wakes the task of a connection when it has input, and notes the time.
pub(super) struct Arrival {
    noted: Arc<Noted>,
    waker: Waker,
}

struct Noted {
    task: AtomicWaker,
    opened: Instant,
    /// Nanoseconds from `opened` to the first wake since the time was taken, and one; 0 if there was none.
    at: AtomicU64,
}

impl Wake for Noted {
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
        let noted = Arc::new(Noted { task: AtomicWaker::new(), opened: Instant::now(), at: AtomicU64::new(0) });
        Arrival { waker: Waker::from(Arc::clone(&noted)), noted }
    }

    /// Has this task woken when there is input. Call it in each poll.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.noted.task.register(cx.waker());
    }

    /// Returns the waker to poll the input with.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns when input was reported first since the last time.
    pub(super) fn take(&self) -> Option<Instant> {
        let ns = self.noted.at.swap(0, Ordering::Relaxed).checked_sub(1)?;
        Some(self.noted.opened + Duration::from_nanos(ns))
    }
}
