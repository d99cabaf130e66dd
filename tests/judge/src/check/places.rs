//! Whether each place of a limit of holders comes back.
//!
//! **Statement.** A place that was taken may be held from the begin of the operation that took it until the first of:
//! its time is over, counted from the operation's latest instant; an operation that let its holder go has ended. That
//! one must have been allowed, and have begun after the latest instant; and the holder must not have been denied, or
//! had no answer, before: a limiter may take a release for that of a request that it denied. Of several places of a
//! holder, one release ends the one whose time is over first. If at each instant of an operation fewer than N places
//! may be held, then the operation is not denied, and is not told that fewer remain.
//!
//! A place has *leaked* if such an answer is wrong, and no later answer shows that the place came back: that more are
//! free than N without those that were missing.
//!
//! **Proof.** A place is held at an instant only if it was taken at an instant before, its time is not over, and it was
//! not let go since. The release takes effect between its begin and its end, and finds the place, since that was taken
//! before. If the holder has several, the places that are counted here end no earlier than those that are held: the
//! limiter ends one of them too, of which the time is over at the same instant or later.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::finding::Kind;
use crate::history::{Ask, Told};

/// The places of one counter that may be held.
#[derive(Debug)]
pub(super) struct Places {
    /// The longest that a place is held.
    longest_held_us: u64,
    longest_us: u64,
    stays: HashMap<String, SmallVec<[Stay; 1]>>,
    /// Until when a release may be taken for that of a denied request, by holder.
    denied: HashMap<String, u64>,
    /// The number of holders and denied ones at which what is over is forgotten.
    sweep_at: usize,
    /// Answers that told too little, since the last that told otherwise.
    doubt: Option<Doubt>,
}

/// A place that was taken.
#[derive(Clone, Copy, Debug)]
struct Stay {
    begin: u64,
    latest: u64,
    /// When its time is over.
    over: u64,
    let_go: u64,
}

impl Stay {
    fn gone(&self) -> u64 {
        self.over.min(self.let_go)
    }
}

/// An answer that told fewer free places than there are.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    pub(super) kind: Kind,
    pub(super) line: u64,
    pub(super) what: String,
    /// Number of such answers.
    pub(super) count: u64,
    /// The places that were missing.
    pub(super) missing: u64,
}

impl Places {
    const SWEEP_AT: usize = 64;

    pub(super) fn new(longest_held_us: u64, longest_us: u64) -> Places {
        Places {
            longest_held_us,
            longest_us,
            stays: HashMap::new(),
            denied: HashMap::new(),
            sweep_at: Self::SWEEP_AT,
            doubt: None,
        }
    }

    /// Adds an operation of a holder.
    pub(super) fn add(&mut self, (begin, end): (u64, u64), (ask, told): (Ask, Told), holder: &str) {
        match (ask, told) {
            (Ask::Take, Told::Allowed) => self.take((begin, end), end, holder),
            (Ask::Take, Told::Denied) => self.deny(begin, end, holder),
            (Ask::Take, Told::Failed | Told::Late) => {
                let latest = end + self.longest_us;
                self.take((begin, end), latest, holder);
                self.deny(begin, latest, holder);
            }
            (Ask::Return, Told::Allowed) => self.let_go(begin, end, holder),
            (Ask::Return | Ask::Peek | Ask::Hold | Ask::Settle | Ask::Total, _) => {}
        }
    }

    fn take(&mut self, (begin, end): (u64, u64), latest: u64, holder: &str) {
        self.sweep(end);
        let over = latest.saturating_add(self.longest_held_us);
        let stay = Stay { begin, latest, over, let_go: u64::MAX };
        self.stays.entry_ref(holder).or_default().push(stay);
    }

    fn deny(&mut self, begin: u64, latest: u64, holder: &str) {
        self.sweep(begin);
        let until = latest.saturating_add(self.longest_held_us);
        let known = self.denied.entry_ref(holder).or_default();
        *known = until.max(*known);
        // A release that may have come after it may be taken for its own.
        for stay in self.stays.get_mut(holder).into_iter().flatten().filter(|stay| stay.let_go >= begin) {
            stay.let_go = u64::MAX;
        }
    }

    fn let_go(&mut self, begin: u64, end: u64, holder: &str) {
        if self.denied.get(holder).is_some_and(|until| *until >= begin) {
            return;
        }
        let stays = self.stays.get_mut(holder).into_iter().flatten();
        let held = stays.filter(|stay| stay.latest < begin && stay.gone() > end);
        if let Some(stay) = held.min_by_key(|stay| stay.over) {
            // Of two instants that are one, either may be the first.
            stay.let_go = end + 1;
        }
    }

    /// Forgets what is over for each operation that is judged later.
    fn sweep(&mut self, at: u64) {
        if self.stays.len() + self.denied.len() < self.sweep_at {
            return;
        }
        let oldest = at.saturating_sub(3 * self.longest_us);
        self.denied.retain(|_, until| *until >= oldest);
        self.stays.retain(|_, stays| {
            stays.retain(|stay| stay.gone() >= oldest);
            !stays.is_empty()
        });
        self.sweep_at = Self::SWEEP_AT.max(2 * (self.stays.len() + self.denied.len()));
    }

    /// Returns the most places that may be held at an instant from `begin` to `end`.
    pub(super) fn most_in(&self, begin: u64, end: u64) -> u64 {
        let may = self.stays.values().flatten().filter(|stay| stay.begin <= end && stay.gone() > begin);
        may.count() as u64
    }

    /// Hears an answer that told too little. It stays in doubt for how long.
    pub(super) fn doubt(&mut self, doubt: Doubt) {
        match &mut self.doubt {
            Some(known) => {
                known.count += 1;
                known.missing = doubt.missing.min(known.missing);
            }
            None => self.doubt = Some(doubt),
        }
    }

    /// Hears that places are free, of `number`. Returns the doubt that this ends.
    pub(super) fn hear_free(&mut self, free: u64, number: u64) -> Option<Doubt> {
        self.doubt.take_if(|doubt| free > number.saturating_sub(doubt.missing))
    }

    /// Returns what is left in doubt at the end.
    pub(super) fn leaked(&mut self) -> Option<Doubt> {
        self.doubt.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_at(at: u64, operations: &[(u64, u64, Ask, Told, &str)]) -> u64 {
        let mut places = Places::new(100, 10);
        for (begin, end, ask, told, holder) in operations {
            places.add((*begin, *end), (*ask, *told), holder);
        }
        places.most_in(at, at)
    }

    #[test]
    fn a_place_is_free_once_its_release_was_answered() {
        use Ask::{Return, Take};
        use Told::{Allowed, Denied, Late};
        let take = (0, 5, Take, Allowed, "a");
        assert_eq!([0, 104, 105].map(|at| held_at(at, &[take])), [1, 1, 0], "until its time is over");
        assert_eq!([9, 10].map(|at| held_at(at, &[take, (6, 9, Return, Allowed, "a")])), [1, 0]);
        assert_eq!(held_at(20, &[take, (5, 9, Return, Allowed, "a")]), 1, "it may have been let go before it came");
        assert_eq!(held_at(20, &[take, (6, 9, Return, Late, "a")]), 1);
        assert_eq!(held_at(20, &[(0, 5, Take, Late, "a"), (16, 18, Return, Allowed, "a")]), 1, "it may be denied");
        assert_eq!(held_at(20, &[take, (6, 9, Take, Denied, "a"), (10, 12, Return, Allowed, "a")]), 1);
        assert_eq!(held_at(20, &[take, (6, 9, Return, Allowed, "a"), (8, 12, Take, Denied, "a")]), 1);
        assert_eq!(held_at(20, &[take, (1, 6, Take, Allowed, "a"), (8, 12, Return, Allowed, "a")]), 1, "of two");
        assert_eq!(held_at(20, &[take, (2, 3, Take, Denied, "b"), (21, 22, Take, Allowed, "c")]), 1);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut places = Places::new(100, 10);
        for at in 0..100_000 {
            let told = if at % 2 == 0 { Told::Allowed } else { Told::Denied };
            places.add((at, at + 1), (Ask::Take, told), &format!("h{at}"));
        }
        assert!(places.stays.len() + places.denied.len() < 1_000);
        assert_eq!(places.most_in(99_999, 99_999), 50);
    }

    #[test]
    fn a_doubt_ends_with_an_answer_that_contradicts_it() {
        let doubt = |missing| Doubt { kind: Kind::NeedlessDenial, line: 1, what: String::new(), count: 1, missing };
        let mut places = Places::new(100, 10);
        places.doubt(doubt(2));
        places.doubt(doubt(1));
        assert!(places.hear_free(2, 3).is_none(), "one is missing still");
        assert_eq!(places.hear_free(3, 3).map(|doubt| doubt.count), Some(2));
        places.doubt(doubt(1));
        assert!(places.leaked().is_some() && places.leaked().is_none());
    }
}
