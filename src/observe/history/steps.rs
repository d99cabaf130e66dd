//! The last fifteen minutes in steps of five seconds. A step begins at a whole multiple of five seconds since the
//! epoch, by the clock of this machine, so that the steps of several instances can be added up.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::metrics::{Reading, Spread};

/// Length of a step, in milliseconds.
pub const STEP_MS: u64 = 5_000;

/// Number of steps kept.
pub const STEPS: usize = 180;

/// A clock that is set back by more than this starts the steps over.
pub(super) const SET_BACK_MS: u64 = 60_000;

/// Events of five seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// Start, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Limits that were answered without the store.
    pub undecided: u64,
    /// Calls that failed or were rejected.
    pub failed: u64,
    /// Durations of calls.
    pub calls: Spread,
    /// Durations of calls to the store.
    pub store: Spread,
}

/// The steps, oldest first.
#[derive(Debug, Default)]
pub(super) struct Steps(VecDeque<Step>);

/// Returns the start of the step that has this time. A time at the very end of a step belongs to it.
pub(super) fn start(at_ms: u64) -> u64 {
    at_ms.saturating_sub(1) / STEP_MS * STEP_MS
}

impl Steps {
    /// Adds the events between two readings, of which the later is of this time.
    pub(super) fn add(&mut self, (before, now): (&Reading, &Reading), at_ms: u64) {
        let at_ms = start(at_ms);
        if self.0.back().is_some_and(|last| at_ms + SET_BACK_MS < last.at_ms) {
            self.0.clear();
        }
        if self.0.back().is_none_or(|last| last.at_ms < at_ms) {
            if self.0.len() == STEPS {
                self.0.pop_front();
            }
            self.0.push_back(Step { at_ms, ..Step::default() });
        }
        // A clock that is set back a little adds to the latest step.
        if let Some(step) = self.0.back_mut() {
            step.allowed += now.passed.saturating_sub(before.passed);
            step.denied += now.denied.saturating_sub(before.denied);
            step.undecided += now.without_store.saturating_sub(before.without_store);
            step.failed += now.failed.saturating_sub(before.failed);
            step.calls.add(&now.calls.since(&before.calls));
            step.store.add(&now.store.since(&before.store));
        }
    }

    /// Returns the steps from this time on that are over: the last one still grows.
    pub(super) fn over(&self, since_ms: u64) -> Vec<Step> {
        let over = self.0.len().saturating_sub(1);
        self.0.iter().take(over).filter(|step| step.at_ms >= since_ms).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(passed: u64) -> Reading {
        Reading { passed, ..Reading::default() }
    }

    fn told(steps: &Steps) -> Vec<(u64, u64)> {
        steps.over(0).iter().map(|step| (step.at_ms, step.allowed)).collect()
    }

    #[test]
    fn a_step_has_the_events_of_its_five_seconds_and_the_latest_is_not_over() {
        let mut steps = Steps::default();
        for second in 1..=12_u64 {
            steps.add((&reading(second - 1), &reading(second)), 100_000 + second * 1_000);
        }
        assert_eq!(told(&steps), [(100_000, 5), (105_000, 5)]);
        assert_eq!(steps.over(105_000).len(), 1);
    }

    #[test]
    fn only_the_last_steps_are_kept_and_time_without_readings_is_a_gap() {
        let mut steps = Steps::default();
        for step in 0..1_000 {
            steps.add((&reading(0), &reading(1)), 1_000_000 + step * STEP_MS + 1);
        }
        assert_eq!(steps.0.len(), STEPS);
        steps.add((&reading(0), &reading(1)), 9_000_001);
        steps.add((&reading(0), &reading(1)), 9_100_001);
        assert_eq!(told(&steps).last(), Some(&(9_000_000, 1)));
    }

    #[test]
    fn a_clock_that_is_set_back_a_little_adds_to_the_latest_step_and_one_set_back_far_starts_over() {
        let mut steps = Steps::default();
        for at_ms in [500_001, 505_001, 504_001, 510_001] {
            steps.add((&reading(0), &reading(1)), at_ms);
        }
        assert_eq!(told(&steps), [(500_000, 1), (505_000, 2)]);
        steps.add((&reading(0), &reading(1)), 1_001);
        steps.add((&reading(0), &reading(1)), 6_001);
        assert_eq!(told(&steps), [(0, 1)]);
    }
}
