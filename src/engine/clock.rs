//! The clock that a store decides by, and its times in text. The engine reads no clock; the owner of a store provides
//! one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// The end of the year 9999, the latest time that RFC 3339 can write.
const LATEST_MS: u64 = 253_402_300_799_999;

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

/// Formats milliseconds since the Unix epoch in RFC 3339 format. Times after the year 9999 are shown as its end.
pub fn timestamp(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms.min(LATEST_MS))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_timestamp() {
        assert_eq!(timestamp(1_767_323_045_678), "2026-01-02T03:04:05.678Z");
        assert_eq!(timestamp(u64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
