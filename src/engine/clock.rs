//! The clock that a store decides by. The engine reads no clock; the owner of a store provides one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of the time in milliseconds since the Unix epoch.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time. It may pause or step back; counters handle both.
    fn now(&self) -> u64;
}

/// A clock that shows the time it was last set to, for requests that are decided later than they came.
#[derive(Clone, Debug, Default)]
pub struct GivenClock(Arc<AtomicU64>);

impl GivenClock {
    /// Sets the time, in milliseconds since the Unix epoch.
    pub fn set(&self, now_ms: u64) {
        self.0.store(now_ms, Ordering::Relaxed);
    }
}

impl Clock for GivenClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
