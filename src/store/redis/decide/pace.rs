//! Detects a busy Redis by comparing its response times with the quickest one.
//!
//! An idle Redis answers within the round trip of the network, and a request is sent at once even while other calls are
//! in progress. If many instances keep Redis busy, its answers take a multiple of that. A request that is sent at once
//! would then wait in front of Redis, in a separate call. Instead it waits here for the answer to the call in progress,
//! and shares the next call with others. The capacity of Redis therefore does not depend on how many instances share
//! it.

use std::time::Duration;

use tokio::time::Instant;

/// Redis is busy if its answers take this multiple of the quickest response time.
const BUSY: u32 = 2;
/// A single answer counts as at most this multiple of the quickest, because a hiccup is not load.
const MOST: u32 = 4;
/// Each answer contributes one part in this many to the mean.
const PART: u32 = 8;
/// Relative growth per second of the quickest response time, until there is a similar one, because the network may have
/// become slower.
const FORGOTTEN: f64 = 0.01;

/// Response times of Redis.
#[derive(Debug, Default)]
pub(crate) struct Pace(Option<Seen>);

#[derive(Debug)]
struct Seen {
    quickest: Duration,
    mean: Duration,
    at: Instant,
}

impl Pace {
    /// Notes that Redis has taken this long to answer a call.
    pub(crate) fn note(&mut self, taken: Duration, now: Instant) {
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

    /// Forgets all response times after a call has failed, because the next call may go elsewhere.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    /// Returns whether answers take much longer than the quickest.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.as_ref().is_some_and(|seen| seen.mean > seen.quickest * BUSY)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the pace after answers of these many microseconds, a second apart.
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
            // The network itself varies by up to nine tenths.
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
