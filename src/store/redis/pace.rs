//! Whether Redis is busy, by how long its answers take beside the quickest.
//!
//! An idle Redis answers in the time of the way there and back, and a request goes out at once, whatever calls are on
//! their way. When many replicas keep Redis busy, its answers take a multiple of that. A request that goes out at once
//! would then wait in front of Redis, in a call of its own; it waits here instead, for the answer to the call that is
//! on its way, and shares the next call with others. So what is left of Redis does not depend on how many replicas
//! share it.

use std::time::Duration;

use tokio::time::Instant;

/// Redis is busy where its answers take so many times as long as the quickest.
const BUSY: u32 = 2;
/// One answer counts as no more than so many times the quickest: a hiccup is no load.
const MOST: u32 = 4;
/// The part that one answer has in the mean.
const PART: u32 = 8;
/// So much longer the quickest is taken for after each second without one like it: the way may have become longer.
const FORGOTTEN: f64 = 0.01;

/// How long answers take.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<Seen>);

#[derive(Debug)]
struct Seen {
    quickest: Duration,
    mean: Duration,
    at: Instant,
}

impl Pace {
    /// Notes that Redis has taken so long to answer a call.
    pub(super) fn note(&mut self, taken: Duration, now: Instant) {
        let quickest = match &self.0 {
            None => taken,
            Some(Seen { quickest, at, .. }) => {
                let forgotten = (now - *at).as_secs_f64() * FORGOTTEN;
                quickest.mul_f64(1.0 + forgotten).min(taken)
            }
        };
        let mean = self.0.as_ref().map_or(taken, |seen| seen.mean);
        let mean = mean - mean / PART + taken.min(quickest * MOST) / PART;
        self.0 = Some(Seen { quickest, mean, at: now });
    }

    /// Forgets everything: a call has failed, and the next may go elsewhere.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// Whether answers take much longer than the quickest.
    pub(super) fn is_busy(&self) -> bool {
        self.0.as_ref().is_some_and(|seen| seen.mean > seen.quickest * BUSY)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A second between two answers of so many microseconds each.
    fn after(answers: impl IntoIterator<Item = u64>) -> Pace {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for (turn, taken) in (0..).zip(answers) {
            pace.note(Duration::from_micros(taken), start + Duration::from_secs(turn));
        }
        pace
    }

    proptest! {
        #[test]
        fn a_redis_that_answers_evenly_is_not_busy_wherever_it_is(
            way in 20_u64..50_000, answers in prop::collection::vec(0_u64..100, 1..300),
        ) {
            // Of the way itself up to nine tenths more.
            prop_assert!(!after(answers.into_iter().map(|more| way + way * more * 9 / 1_000)).is_busy());
        }

        #[test]
        fn a_hiccup_is_no_load(way in 20_u64..50_000, hiccup in 1_u64..1_000_000, before in 1_usize..50) {
            let answers = std::iter::repeat_n(way, before).chain([way + hiccup]);
            prop_assert!(!after(answers).is_busy());
        }

        #[test]
        fn answers_that_take_three_times_as_long_are_load_until_they_are_quick_again(
            way in 20_u64..50_000, before in 1_usize..50,
        ) {
            let idle = || std::iter::repeat_n(way, before);
            let busy = || idle().chain(std::iter::repeat_n(way * 3, 10));
            prop_assert!(after(busy()).is_busy());
            prop_assert!(!after(busy().chain(std::iter::repeat_n(way, 10))).is_busy());
        }

        #[test]
        fn a_way_that_has_become_longer_is_no_load_for_ever(way in 20_u64..50_000, longer in 3_u64..10) {
            let answers = [way].into_iter().chain(std::iter::repeat_n(way * longer, 300));
            prop_assert!(!after(answers).is_busy());
        }
    }

    #[test]
    fn nothing_is_known_at_first_nor_after_a_call_that_failed() {
        let mut pace = after([100, 1_000, 1_000, 1_000, 1_000, 1_000]);
        assert!(pace.is_busy());
        pace.forget();
        assert!(!pace.is_busy());
        assert!(!Pace::default().is_busy());
    }
}
