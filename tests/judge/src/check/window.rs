//! No interval of one period has more than N hits, for certain.
//!
//! **Statement.** If operations that were allowed, and that lie wholly in a half-open interval of one period, have more
//! than N hits together, then no assignment of instants to operations keeps the limit. An instant is between an
//! operation's begin and its end.
//!
//! **Proof.** Whatever their instants are, all of them lie in the interval, so the interval has more than N hits.
//!
//! **How.** It suffices to test the intervals that end at an operation's end c, which is included: let a set lie wholly
//! in [t, t + P), and let c be the last of its ends. Then c < t + P, so each begins at t > c - P or later. Operations
//! come in the order of their ends, so all of the set are known at c. Those that begin at c - P or earlier are dropped:
//! they lie in no later interval of this kind either.

use std::collections::VecDeque;

/// The hits of one counter that may lie in one interval.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Begin and hits of operations, in the order of begins.
    recent: VecDeque<(u64, u64)>,
    hits: u64,
}

impl Window {
    /// Adds an operation that was allowed. Returns the hits of the interval that ends with it if they are more than
    /// `number`; then the operation is left out afterwards, so that each excess is told once.
    pub(super) fn admit(&mut self, (begin, end): (u64, u64), hits: u64, number: u64, period_us: u64) -> Option<u64> {
        let is_old = |begin: u64| end >= period_us && begin <= end - period_us;
        while let Some((first, hits)) = self.recent.front()
            && is_old(*first)
        {
            self.hits -= hits;
            self.recent.pop_front();
        }
        if is_old(begin) {
            // It lasted for a period: it lies in no interval, and no excess is certain.
            return None;
        }
        if self.hits + hits > number {
            return Some(self.hits + hits);
        }
        // Most operations begin in the order of their ends, nearly.
        let later = self.recent.iter().rev().take_while(|(other, _)| *other > begin).count();
        self.recent.insert(self.recent.len() - later, (begin, hits));
        self.hits += hits;
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether some interval of a period has more than `number` hits, by trying all.
    fn is_over(operations: &[(u64, u64, u64)], number: u64, period_us: u64) -> bool {
        operations.iter().any(|(from, ..)| {
            let lies_in = |(begin, end, _): &&(u64, u64, u64)| begin >= from && *end < from + period_us;
            operations.iter().filter(lies_in).map(|(.., hits)| hits).sum::<u64>() > number
        })
    }

    proptest! {
        #[test]
        fn an_excess_is_found_where_there_is_one_and_nowhere_else(
            drawn in prop::collection::vec((0..60_u64, 0..30_u64, 1..4_u64), 0..30), number in 1..8_u64,
            period_us in 1..20_u64,
        ) {
            let operation = |(begin, lasts, hits): &(u64, u64, u64)| (*begin, begin + lasts, *hits);
            let mut operations: Vec<_> = drawn.iter().map(operation).collect();
            operations.sort_by_key(|(_, end, _)| *end);
            let mut window = Window::default();
            let mut admit = |(begin, end, hits): &(u64, u64, u64)| {
                window.admit((*begin, *end), *hits, number, period_us).is_some()
            };
            let found: Vec<bool> = operations.iter().map(&mut admit).collect();
            prop_assert_eq!(found.contains(&true), is_over(&operations, number, period_us));
            // What is left is within the limit.
            let kept = operations.iter().zip(&found).filter(|(_, over)| !**over).map(|(operation, _)| *operation);
            prop_assert!(!is_over(&kept.collect::<Vec<_>>(), number, period_us));
        }
    }
}
