//! What was given back at one counter.
//!
//! **Statement.** If each hit that was given back can be given a hit of its own that was certainly taken before - by an
//! operation that was allowed and that ended before the return began - then each return took its whole number of hits
//! off the count, as long as no hit has been forgotten.
//!
//! **Proof.** By induction over the returns in the order of their instants. Let r be the instant of one of h hits, and
//! let M be, of it and all returns before it, the one that began last. All of them have hits of their own, taken by
//! operations that ended before M began, which is before r. So before r the count is at least the hits of these, h and
//! what was returned before, without what was returned before: h.
//!
//! **How.** Each return can be given its own if and only if, for each return, the hits that were certainly taken before
//! it began are no fewer than the hits of all returns that began when it did or earlier: what a return may be given, an
//! later one may be given, too (Hall). A return that comes changes this for itself, and for those that began later.

use std::collections::VecDeque;

/// A return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Return {
    pub(super) begin: u64,
    /// The latest instant.
    pub(super) end: u64,
    pub(super) hits: u64,
    pub(super) is_certain: bool,
}

/// The returns of a counter.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// In the order of their ends.
    recent: VecDeque<Return>,
    /// The hits of all, and of those that are certain, and of those before the recent ones.
    all: u64,
    certain: u64,
    settled: u64,
    has_unmatched: bool,
}

impl Returns {
    pub(super) fn is_empty(&self) -> bool {
        self.all == 0
    }

    /// Whether each return took its hits off the count.
    pub(super) fn are_whole(&self) -> bool {
        !self.has_unmatched
    }

    /// Adds a return. `taken_before` tells the hits that were certainly taken before an instant.
    pub(super) fn add(&mut self, one: Return, taken_before: impl Fn(u64) -> u64) {
        self.recent.push_back(one);
        self.all += one.hits;
        self.certain += if one.is_certain { one.hits } else { 0 };
        let later = self.recent.iter().rev().take_while(|other| other.end >= one.begin);
        let mut later = later.filter(|other| other.begin >= one.begin);
        let is_short = later.any(|other| taken_before(other.begin) < self.begun_until(other.begin));
        self.has_unmatched |= is_short;
    }

    /// Forgets the instants of those that ended before.
    pub(super) fn settle(&mut self, oldest: u64) {
        while let Some(first) = self.recent.front()
            && first.end < oldest
        {
            self.settled += first.hits;
            self.recent.pop_front();
        }
    }

    /// Returns the hits of all that began at an instant or before.
    pub(super) fn begun_until(&self, at: u64) -> u64 {
        let later = self.recent.iter().rev().take_while(|one| one.end > at).filter(|one| one.begin > at);
        self.all - later.map(|one| one.hits).sum::<u64>()
    }

    /// Returns the hits of those that certainly happened before an instant.
    pub(super) fn certain_before(&self, at: u64) -> u64 {
        let later = self.recent.iter().rev().take_while(|one| one.end >= at).filter(|one| one.is_certain);
        self.certain - later.map(|one| one.hits).sum::<u64>()
    }

    /// Returns all hits that may have been given back until an instant.
    pub(super) fn may_until(&self, at: u64) -> u64 {
        self.settled + self.may_within(at, u64::MAX)
    }

    /// Returns the hits that may have been given back in the period before an instant.
    pub(super) fn may_within(&self, at: u64, period_us: u64) -> u64 {
        let may = self.recent.iter().filter(|one| one.begin <= at && one.end.saturating_add(period_us) > at);
        may.map(|one| one.hits).sum()
    }

    /// Whether one may have happened between two instants.
    pub(super) fn may_be_between(&self, since: u64, until: u64) -> bool {
        self.recent.iter().any(|one| one.begin <= until && one.end >= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_is_whole_if_what_it_returns_was_taken_before() {
        let mut returns = Returns::default();
        let taken = |at: u64| if at > 10 { 3 } else { 0 };
        let one = |begin, end, hits| Return { begin, end, hits, is_certain: true };
        returns.add(one(11, 14, 2), taken);
        assert!(returns.are_whole());
        assert_eq!([14, 15].map(|at| returns.certain_before(at)), [0, 2]);
        assert_eq!([10, 11].map(|at| returns.begun_until(at)), [0, 2]);
        returns.settle(15);
        assert_eq!((returns.certain_before(15), returns.begun_until(15), returns.may_until(15)), (2, 2, 2));
        returns.add(one(13, 16, 1), taken);
        assert!(returns.are_whole(), "all three");
        returns.add(one(17, 18, 1), taken);
        assert!(!returns.are_whole(), "four of three");
    }

    #[test]
    fn one_that_began_before_others_takes_what_they_need() {
        let mut returns = Returns::default();
        let one = |begin, end| Return { begin, end, hits: 1, is_certain: true };
        returns.add(one(12, 13), |_| 1);
        assert!(returns.are_whole());
        returns.add(one(11, 20), |at| u64::from(at > 11));
        assert!(!returns.are_whole(), "it may have come first, and then there was nothing for the other one");
    }
}
