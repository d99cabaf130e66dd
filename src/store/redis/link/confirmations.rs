//! How long durable calls wait until replicas confirm them.
//!
//! A call waits for the whole time while replicas confirm. After one that nobody confirmed in time, calls wait a fifth
//! of it, so that they do not queue up behind replicas that are gone: the failure mode answers soon. Every [`PROBE`]
//! one of them waits for the whole time, in case the replicas are only slow. The first confirmation ends this.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How often a call waits for the whole time while nobody confirms.
const PROBE: Duration = Duration::from_millis(250);
/// The part of the time that other calls wait meanwhile.
const PART: u32 = 5;

/// What is known of the confirmations of a node.
#[derive(Debug)]
pub(crate) struct Confirmations {
    start: Instant,
    /// Whether nobody confirmed the last call.
    is_missing: AtomicBool,
    /// When a call last began to wait for the whole time, in milliseconds since the start.
    probed_ms: AtomicU64,
}

impl Confirmations {
    pub(crate) fn new() -> Confirmations {
        Confirmations { start: Instant::now(), is_missing: AtomicBool::new(false), probed_ms: AtomicU64::new(0) }
    }

    /// Returns how long a call waits now, of at most this time.
    pub(crate) fn within(&self, whole: Duration) -> Duration {
        if !self.is_missing.load(Ordering::Relaxed) {
            return whole;
        }
        let (now, probed) = (self.now_ms(), self.probed_ms.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(probed) >= PROBE.as_millis() as u64;
        let probes =
            is_due && self.probed_ms.compare_exchange(probed, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if probes { whole } else { whole / PART }
    }

    /// Notes whether replicas confirmed a call.
    pub(crate) fn note(&self, is_confirmed: bool) {
        if is_confirmed {
            self.is_missing.store(false, Ordering::Relaxed);
        } else if !self.is_missing.swap(true, Ordering::Relaxed) {
            self.probed_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn while_nobody_confirms_calls_wait_a_fifth_of_the_time_and_now_and_then_all_of_it() {
        let (confirmations, whole) = (Confirmations::new(), Duration::from_millis(50));
        let part = whole / PART;
        assert_eq!(confirmations.within(whole), whole);
        confirmations.note(false);
        assert_eq!([(); 3].map(|()| confirmations.within(whole)), [part; 3]);
        tokio::time::advance(PROBE).await;
        assert_eq!([(); 3].map(|()| confirmations.within(whole)), [whole, part, part], "one probes");
        confirmations.note(false);
        assert_eq!(confirmations.within(whole), part, "a probe that fails changes nothing");
        tokio::time::advance(PROBE).await;
        assert_eq!(confirmations.within(whole), whole);
        confirmations.note(true);
        assert_eq!([(); 3].map(|()| confirmations.within(whole)), [whole; 3]);
    }
}
