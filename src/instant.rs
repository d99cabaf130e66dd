//! The time, read once for all calls that are handled together. Reading the clock costs as much as finding a rule, and
//! a call would read it seven times.

use std::cell::Cell;
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::time::ClockId;
use tokio::time::Instant;

thread_local! {
    static SHARED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the time: the one that is shared just now on this thread, or else the clock's.
pub fn now() -> Instant {
    SHARED.get().unwrap_or_else(Instant::now)
}

/// Returns for how long the machine has been suspended since it started, to a millisecond: the clocks of the standard
/// library and of tokio do not count that.
#[cfg(target_os = "linux")]
pub fn suspended() -> Duration {
    let of = |clock| {
        let time = rustix::time::clock_gettime(clock);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    let mut before = of(ClockId::Monotonic);
    loop {
        let (boot, after) = (of(ClockId::Boottime), of(ClockId::Monotonic));
        // Where this thread had to wait between the readings, the difference would be too small by that.
        if after.saturating_sub(before) < Duration::from_millis(1) {
            return boot.saturating_sub(after);
        }
        before = after;
    }
}

/// Returns for how long the machine has been suspended: unknown here.
#[cfg(not(target_os = "linux"))]
pub fn suspended() -> Duration {
    Duration::ZERO
}

/// A clock that measures from its start, never steps, and goes on while the machine is suspended, as others' clocks do.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    start: Instant,
    /// For how long the machine has been suspended, and for how long it was at the start.
    suspended: fn() -> Duration,
    before: Duration,
}

impl Steady {
    /// Starts a clock.
    pub fn new() -> Steady {
        Steady::counting(suspended)
    }

    /// Starts a clock that counts these suspensions.
    pub fn counting(suspended: fn() -> Duration) -> Steady {
        Steady { start: Instant::now(), suspended, before: suspended() }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed() + (self.suspended)().saturating_sub(self.before)
    }
}

impl Default for Steady {
    fn default() -> Self {
        Steady::new()
    }
}

/// Shares one reading of the clock with everything that runs on this thread, until it is dropped. Keep it for one poll.
#[derive(Debug)]
pub struct Shared(());

impl Shared {
    /// Reads the clock.
    pub fn read() -> Shared {
        SHARED.set(Some(Instant::now()));
        Shared(())
    }
}

/// Reads the clock again, if a reading is shared just now.
pub fn share_again() {
    if SHARED.get().is_some() {
        SHARED.set(Some(Instant::now()));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        SHARED.set(None);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reading_is_shared_until_it_is_dropped() {
        let start = now();
        share_again();
        let shared = Shared::read();
        advance(Duration::from_secs(1)).await;
        assert_eq!(now(), start);
        share_again();
        assert_eq!(now(), start + Duration::from_secs(1));
        advance(Duration::from_secs(1)).await;
        drop(shared);
        assert_eq!(now(), start + Duration::from_secs(2));
    }
}
