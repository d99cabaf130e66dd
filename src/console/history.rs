//! The last fifteen minutes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::metrics::{Metrics, Reading, Times};

/// So many seconds are kept.
const KEPT: usize = 15 * 60;

/// What happened in each of the last seconds, the oldest first.
#[derive(Debug)]
pub struct History {
    kept: Mutex<Kept>,
    /// How many seconds there have been.
    number: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    seconds: VecDeque<Second>,
    before: Reading,
    store: StoreNow,
}

/// What happened in a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Second {
    /// Its place among all, from 1.
    pub number: u64,
    /// When it ended, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Requests that passed.
    pub passed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Calls that failed, or were refused.
    pub failed: u64,
    /// Answers that limits gave without the store.
    pub without_store: u64,
    /// What half of the calls took at most, in microseconds, and what 99 % did; `None` where there were none.
    pub p50_us: Option<u64>,
    /// See `p50_us`.
    pub p99_us: Option<u64>,
    /// The same of the store.
    pub store_p50_us: Option<u64>,
    /// See `store_p50_us`.
    pub store_p99_us: Option<u64>,
    /// The share of the store that could be asked at its end: 1 is all of it.
    pub store_up: f64,
}

/// How the store is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreNow {
    /// The share of it that can be asked: 1 is all of it.
    pub up: f64,
    /// Why that is not all.
    pub cause: Option<String>,
    /// Since when it is so, in milliseconds since the epoch.
    pub since_ms: u64,
}

impl Default for History {
    fn default() -> Self {
        History { kept: Mutex::default(), number: watch::Sender::new(0) }
    }
}

impl History {
    /// Notes what happens, a second at a time, for ever.
    pub async fn follow(self: Arc<Self>, metrics: Arc<Metrics>) -> Infallible {
        self.note(metrics.reading(), now_ms());
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.note(metrics.reading(), now_ms());
        }
    }

    /// What has happened from the reading before to this one. Of the first, nobody knows in which time.
    fn note(&self, reading: Reading, at_ms: u64) {
        let mut kept = self.kept.lock();
        let number = *self.number.borrow();
        let store = &kept.store;
        if number == 0 && store.since_ms == 0 || (store.up, &store.cause) != (reading.store_up, &reading.store_cause) {
            let cause = reading.store_cause.clone();
            kept.store = StoreNow { up: reading.store_up, cause, since_ms: at_ms };
        }
        let before = std::mem::replace(&mut kept.before, reading);
        let reading = &kept.before;
        let quantile = |now: &Times, before: &Times, quantile| {
            now.quantile_since(before, quantile).map(|time| time.as_micros() as u64)
        };
        let second = Second {
            number,
            at_ms,
            passed: reading.passed.saturating_sub(before.passed),
            denied: reading.denied.saturating_sub(before.denied),
            failed: reading.failed.saturating_sub(before.failed),
            without_store: reading.without_store.saturating_sub(before.without_store),
            p50_us: quantile(&reading.calls, &before.calls, 0.5),
            p99_us: quantile(&reading.calls, &before.calls, 0.99),
            store_p50_us: quantile(&reading.store, &before.store, 0.5),
            store_p99_us: quantile(&reading.store, &before.store, 0.99),
            store_up: reading.store_up,
        };
        if number > 0 {
            if kept.seconds.len() == KEPT {
                kept.seconds.pop_front();
            }
            kept.seconds.push_back(second);
        }
        drop(kept);
        self.number.send_replace(number + 1);
    }

    /// The seconds after the one of this number; after 0 all that are kept.
    pub fn after(&self, number: u64) -> Vec<Second> {
        let kept = self.kept.lock();
        let skipped = kept.seconds.partition_point(|second| second.number <= number);
        kept.seconds.range(skipped..).cloned().collect()
    }

    /// How the store is.
    pub fn store(&self) -> StoreNow {
        self.kept.lock().store.clone()
    }

    /// Changes with every second.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.number.subscribe()
    }
}

/// As this machine has it, in milliseconds since the epoch.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(passed: u64, denied: u64, up: f64) -> Reading {
        let store_cause = (up < 1.0).then(|| "refused".to_owned());
        Reading { passed, denied, store_up: up, store_cause, ..Reading::default() }
    }

    #[test]
    fn a_second_has_what_came_in_it_and_only_the_last_are_kept() {
        let history = History::default();
        for second in 0..=1_000 {
            history.note(reading(second * 3, second, 1.0), 1_000 * (second + 1));
        }
        let seconds = history.after(0);
        assert_eq!((seconds.len(), seconds[0].number), (KEPT, 101));
        assert!(seconds.iter().all(|second| (second.passed, second.denied) == (3, 1)));
        assert_eq!(history.after(998).iter().map(|second| second.number).collect::<Vec<_>>(), [999, 1_000]);
        assert_eq!(history.after(5_000), []);
    }

    #[test]
    fn what_was_counted_before_the_first_reading_is_in_no_second() {
        let history = History::default();
        history.note(reading(1_000_000, 7, 1.0), 1);
        assert_eq!(history.after(0), []);
        history.note(reading(1_000_002, 7, 1.0), 1_001);
        assert_eq!(history.after(0)[0].passed, 2);
    }

    #[test]
    fn it_knows_since_when_the_store_is_as_it_is_and_why() {
        let history = History::default();
        for (second, up) in [1.0, 1.0, 0.0, 0.0, 1.0].into_iter().enumerate() {
            history.note(reading(0, 0, up), second as u64 + 1);
            let StoreNow { up: told, cause, since_ms } = history.store();
            assert_eq!((told, cause.is_some()), (up, up < 1.0));
            assert_eq!(since_ms, [1, 1, 3, 3, 5][second]);
        }
    }
}
