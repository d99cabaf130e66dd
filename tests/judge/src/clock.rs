//! The clock of histories.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time in microseconds, by the monotonic clock that all processes of the machine share.
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative: this clock begins when the machine starts.
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}
