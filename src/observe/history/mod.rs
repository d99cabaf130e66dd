//! The last fifteen minutes: second by second, in steps of five seconds, and for each limit.

mod rules;
mod steps;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::MissedTickBehavior;

use self::rules::Histories;
use self::steps::Steps;
use crate::metrics::{Metrics, Reading, RuleReading, Times};

pub use rules::{BARS, Minute, Rate, Requests, RuleHistory};
pub use steps::{STEP_MS, STEPS, Step};

/// Number of seconds kept.
const KEPT: usize = 15 * 60;

/// The events of the last fifteen minutes.
#[derive(Debug)]
pub struct History {
    kept: Mutex<Kept>,
    rules: Mutex<Histories>,
    /// Number of seconds so far.
    number: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    seconds: VecDeque<Second>,
    steps: Steps,
    before: Reading,
    store: StoreNow,
}

/// Events of one second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Second {
    /// Its number since the start, from 1.
    pub number: u64,
    /// End of the second, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Requests that passed.
    pub passed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Calls that failed or were rejected.
    pub failed: u64,
    /// Limits that were answered without the store.
    pub without_store: u64,
    /// Median and 99th percentile of the duration of calls, in microseconds; `None` if there were no calls.
    pub p50_us: Option<u64>,
    /// See `p50_us`.
    pub p99_us: Option<u64>,
    /// The same percentiles for the store.
    pub store_p50_us: Option<u64>,
    /// See `store_p50_us`.
    pub store_p99_us: Option<u64>,
    /// Share of the store that was available at the end of the second: 1 is all of it.
    pub store_up: f64,
}

/// Current state of the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreNow {
    /// Share of the store that is available: 1 is all of it.
    pub up: f64,
    /// Why it is not fully available.
    pub cause: Option<String>,
    /// Start of this state, in milliseconds since the epoch.
    pub since_ms: u64,
}

impl Default for History {
    fn default() -> Self {
        History { kept: Mutex::default(), rules: Mutex::default(), number: watch::Sender::new(0) }
    }
}

impl History {
    /// Records every second, forever.
    pub async fn follow(self: Arc<Self>, metrics: Arc<Metrics>) -> Infallible {
        let mut step = steps::start(now_ms());
        self.note(metrics.reading(), now_ms());
        Arc::clone(&self).note_rules(step, &metrics).await;
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let now_ms = now_ms();
            self.note(metrics.reading(), now_ms);
            let next = steps::start(now_ms);
            if next != step {
                Arc::clone(&self).note_rules(step, &metrics).await;
                step = next;
            }
        }
    }

    /// Records what each limit did in the step with this start, which has just ended. Not on the thread of the ports:
    /// there may be a hundred thousand limits.
    async fn note_rules(self: Arc<Self>, step_ms: u64, metrics: &Arc<Metrics>) {
        let metrics = Arc::clone(metrics);
        let note = move || {
            let each = |each: &mut dyn FnMut(&str, &str, RuleReading)| metrics.each_rule(each);
            self.rules.lock().add(step_ms, each);
        };
        // A panic is reported by the hook of the process; the next step goes on.
        let _ = spawn_blocking(note).await;
    }

    /// Records the events between the previous reading and this one. The first reading is left out: the time it covers
    /// is unknown.
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
            let Kept { steps, before: now, .. } = &mut *kept;
            steps.add((&before, now), at_ms);
            if kept.seconds.len() == KEPT {
                kept.seconds.pop_front();
            }
            kept.seconds.push_back(second);
        }
        drop(kept);
        self.number.send_replace(number + 1);
    }

    /// Returns so many of the latest seconds, or all if there are fewer.
    pub fn last(&self, most: usize) -> Vec<Second> {
        let kept = self.kept.lock();
        kept.seconds.range(kept.seconds.len().saturating_sub(most)..).cloned().collect()
    }

    /// Returns the seconds after the one of this number; after 0 returns all kept seconds.
    pub fn after(&self, number: u64) -> Vec<Second> {
        let kept = self.kept.lock();
        let skipped = kept.seconds.partition_point(|second| second.number <= number);
        kept.seconds.range(skipped..).cloned().collect()
    }

    /// Returns the steps of five seconds that are over, from this time on.
    pub fn steps(&self, since_ms: u64) -> Vec<Step> {
        self.kept.lock().steps.over(since_ms)
    }

    /// Returns the history of a limit; `None` if it was not used lately, or others were used more.
    pub fn of_rule(&self, domain: &str, rule: &str) -> Option<RuleHistory> {
        self.rules.lock().of(domain, rule)
    }

    /// Returns the last hour of a limit by minutes; those without requests are left out.
    pub fn hour_of_rule(&self, domain: &str, rule: &str) -> Vec<Minute> {
        self.rules.lock().hour(domain, rule)
    }

    /// Returns the limits that denied the most in the last fifteen minutes, also in shadow mode, and then those with
    /// the most requests.
    pub fn busiest_rules(&self, most: usize) -> Vec<RuleHistory> {
        self.rules.lock().busiest(most)
    }

    /// Returns the current state of the store.
    pub fn store(&self) -> StoreNow {
        self.kept.lock().store.clone()
    }

    /// Returns a channel that changes every second.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.number.subscribe()
    }
}

/// Returns the time by this machine's clock, in milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
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
