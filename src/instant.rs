//! The time, read once for all calls that are handled together. Reading the clock costs as much as finding a rule, and
//! a call would read it seven times.

use std::cell::Cell;

use tokio::time::Instant;

thread_local! {
    static SHARED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the time: the one that is shared just now on this thread, or else the clock's.
pub fn now() -> Instant {
    SHARED.get().unwrap_or_else(Instant::now)
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
    use std::time::Duration;

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
