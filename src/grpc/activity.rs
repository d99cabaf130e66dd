//! Tracks whether a connection is in use. A port at its bound closes the connection that has been idle longest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::time::{Duration, Instant};

/// Counts the calls of one connection. A stream that stays open (a watch of health, reflection) does not count: a
/// client could keep every place with one such stream on each connection.
#[derive(Debug)]
pub struct Activity {
    opened: Instant,
    calls: AtomicUsize,
    /// Whether a call has begun or ended since the connection was last polled.
    used: AtomicBool,
    /// Time of the last such poll, in milliseconds since the connection was opened.
    last_used_ms: AtomicU64,
}

/// A call in progress.
#[derive(Debug)]
pub struct ActiveCall(Arc<Activity>);

impl Activity {
    /// Creates the record of a connection opened now.
    pub fn new() -> Arc<Activity> {
        Arc::new(Activity {
            opened: Instant::now(),
            calls: AtomicUsize::new(0),
            used: AtomicBool::new(false),
            last_used_ms: AtomicU64::new(0),
        })
    }

    /// Counts a call until the returned value is dropped.
    pub fn begin_call(self: &Arc<Self>) -> ActiveCall {
        self.calls.fetch_add(1, Ordering::Relaxed);
        ActiveCall(Arc::clone(self))
    }

    /// Returns whether calls are in progress.
    pub fn has_calls(&self) -> bool {
        self.calls.load(Ordering::Acquire) > 0
    }

    /// Notes the time if calls have begun or ended. Called once per poll, which saves reading the clock for each call.
    pub fn polled(&self) {
        if self.used.load(Ordering::Relaxed) {
            self.used.store(false, Ordering::Relaxed);
            let ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.last_used_ms.store(ms, Ordering::Relaxed);
        }
    }

    /// Records the number of calls in progress, and whether one has begun or ended since the last time.
    pub fn report(&self, calls: usize, is_used: bool) {
        self.calls.store(calls, Ordering::Release);
        self.used.store(is_used, Ordering::Relaxed);
        self.polled();
    }

    /// Returns the time since when the connection has no call, or `None` while it has one.
    pub fn idle_since(&self) -> Option<Instant> {
        let is_used = self.has_calls() || self.used.load(Ordering::Relaxed);
        (!is_used).then(|| self.opened + Duration::from_millis(self.last_used_ms.load(Ordering::Relaxed)))
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.0.used.store(true, Ordering::Relaxed);
        // The order ensures that a thread that sees no call also sees that the connection was used.
        self.0.calls.fetch_sub(1, Ordering::Release);
    }
}
