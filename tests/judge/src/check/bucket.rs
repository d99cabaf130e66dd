//! No interval has more hits than a bucket has, for certain.
//!
//! **Statement.** Let B be the burst and r the rate. If operations that were allowed, and that lie wholly in a closed
//! interval of length t, have more than B + r t hits together, then no assignment of instants to operations is one of a
//! bucket.
//!
//! **Proof.** A bucket holds at most B at the begin of the interval, gets at most r t within it, and gives out no more
//! than both. All the instants lie in the interval.
//!
//! With a clock of steps, an interval may be a step longer to the limiter than it is: t is a step more.
//!
//! **How.** It suffices to test intervals from an operation's begin b to an operation's end c, both included: a smaller
//! interval around the same operations has a smaller bound. Let S(b) be the hits of all operations so far that begin at
//! b or later. The test at c is that the largest of S(b) + r b is at most B + r c. With the hits of all operations so
//! far, T, and those that begin before b, F(b): S(b) = T - F(b). So only T changes with each operation, and F of the
//! few that begin later than it. Operations that are older than the longest that one lasts can change no longer; of
//! them, only the largest r b - F(b) is kept.

use std::collections::VecDeque;

/// The hits of one counter.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Begin, and hits of all that began before, of the operations that may change, in the order of begins.
    recent: VecDeque<(u64, u64)>,
    /// The largest value of those that cannot change.
    settled: Option<i128>,
    /// The hits of all operations.
    total: u64,
}

/// The burst, and the hits of a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) burst: u64,
    pub(super) number: u64,
    pub(super) period_us: u64,
    /// The step of the clock, for which it may refill more, or less.
    pub(super) clock_us: u64,
}

impl Bucket {
    /// Adds an operation that was allowed; none lasts longer than `longest_us`. Returns the number of hits above what
    /// the bucket has, rounded up, if there are some; then the operation is left out afterwards.
    pub(super) fn admit(
        &mut self,
        (begin, end): (u64, u64),
        hits: u64,
        Rate { burst, number, period_us, clock_us }: Rate,
        longest_us: u64,
    ) -> Option<u64> {
        // Numbers are hits times the period, so that all are whole.
        let value = |(begin, before): &(u64, u64)| {
            i128::from(number) * i128::from(*begin) - i128::from(*before) * i128::from(period_us)
        };
        while let Some(first) = self.recent.front()
            && first.0 + longest_us < end
        {
            self.settled = self.settled.max(Some(value(first)));
            self.recent.pop_front();
        }
        let later = self.recent.iter().rev().take_while(|(other, _)| *other > begin).count();
        let at = self.recent.len() - later;
        // What began before: all, without those that began at the same time or later.
        let before = match self.recent.iter().find(|(other, _)| *other >= begin) {
            Some((_, before)) => *before,
            None => self.total,
        };
        for (_, before) in self.recent.iter_mut().skip(at) {
            *before += hits;
        }
        self.recent.insert(at, (begin, before));
        self.total += hits;
        let most = self.settled.max(self.recent.iter().map(value).max()).unwrap_or(i128::MIN);
        let bound =
            i128::from(burst) * i128::from(period_us) + i128::from(number) * (i128::from(end) + i128::from(clock_us));
        let over = most + i128::from(self.total) * i128::from(period_us) - bound;
        if over <= 0 {
            return None;
        }
        self.total -= hits;
        self.recent.remove(at);
        for (_, before) in self.recent.iter_mut().skip(at) {
            *before -= hits;
        }
        let whole = (over + i128::from(period_us) - 1) / i128::from(period_us);
        Some(u64::try_from(whole).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_over(operations: &[(u64, u64, u64)], rate: Rate) -> bool {
        operations.iter().any(|(from, ..)| {
            operations.iter().any(|(_, to, _)| {
                let lies_in = |(begin, end, _): &&(u64, u64, u64)| begin >= from && end <= to;
                let hits = operations.iter().filter(lies_in).map(|(.., hits)| hits).sum::<u64>();
                hits > 0
                    && hits * rate.period_us > rate.burst * rate.period_us + rate.number * (to - from + rate.clock_us)
            })
        })
    }

    proptest! {
        #[test]
        fn an_excess_is_found_where_there_is_one_and_nowhere_else(
            drawn in prop::collection::vec((0..80_u64, 0..20_u64, 1..4_u64), 0..30), burst in 0..8_u64,
            number in 1..5_u64, period_us in 1..20_u64, clock_us in 0..3_u64,
        ) {
            let rate = Rate { burst, number, period_us, clock_us };
            let operation = |(begin, lasts, hits): &(u64, u64, u64)| (*begin, begin + lasts, *hits);
            let mut operations: Vec<_> = drawn.iter().map(operation).collect();
            operations.sort_by_key(|(_, end, _)| *end);
            let mut bucket = Bucket::default();
            let mut admit = |(begin, end, hits): &(u64, u64, u64)| {
                bucket.admit((*begin, *end), *hits, rate, 20).is_some()
            };
            let found: Vec<bool> = operations.iter().map(&mut admit).collect();
            prop_assert_eq!(found.contains(&true), is_over(&operations, rate));
            let kept = operations.iter().zip(&found).filter(|(_, over)| !**over).map(|(operation, _)| *operation);
            prop_assert!(!is_over(&kept.collect::<Vec<_>>(), rate));
        }
    }
}
