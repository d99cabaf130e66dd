//! No more holders than places, for certain.
//!
//! **Statement.** A holder that was let in by an operation [b, e] certainly holds its place from e on, until the first
//! of: its time is over, counted from b; an operation begins that lets it go, and that ends at b or later. Without an
//! answer, an operation may take effect for as long as one lasts at most after its end. If at some instant more than N
//! hold a place for certain, no assignment of instants keeps the limit.
//!
//! **Proof.** It was let in at an instant x in [b, e]. Its time is over at x and the time, or later. It is let go after
//! x only by an operation whose instant is after x, which ends at b or later, and whose instant is not before its
//! begin.

use hashbrown::HashMap;

use crate::history::{Ask, Told};

#[derive(Debug)]
pub(super) struct Holders {
    expiry_us: u64,
    longest_us: u64,
    holders: HashMap<Box<str>, Holder>,
}

/// The operations of one holder.
#[derive(Debug, Default)]
struct Holder {
    /// Begin and end of those that let it in.
    takes: Vec<(u64, u64)>,
    /// The latest instant and the begin of those that let it go.
    returns: Vec<(u64, u64)>,
}

impl Holders {
    pub(super) fn new(expiry_us: u64, longest_us: u64) -> Holders {
        Holders { expiry_us, longest_us, holders: HashMap::new() }
    }

    /// Adds an operation of a holder.
    pub(super) fn add(&mut self, (begin, end): (u64, u64), (ask, told): (Ask, Told), holder: &str) {
        let holder = match self.holders.get_mut(holder) {
            Some(known) => known,
            None => self.holders.entry(holder.into()).or_default(),
        };
        match (ask, told) {
            (Ask::Take, Told::Allowed) => holder.takes.push((begin, end)),
            (Ask::Return, Told::Allowed) => holder.returns.push((end, begin)),
            (Ask::Return, _) => holder.returns.push((end + self.longest_us, begin)),
            _ => {}
        }
    }

    /// Returns the most that held a place at once for certain.
    pub(super) fn most(&mut self) -> u64 {
        let mut changes = Vec::new();
        for (_, holder) in self.holders.drain() {
            for (since, until) in holder.certain(self.expiry_us) {
                changes.extend([(since, true), (until, false)]);
            }
        }
        // At the same time, those that leave make room first.
        changes.sort_unstable();
        let (mut held, mut most) = (0_u64, 0);
        for (_, is_taken) in changes {
            held = if is_taken { held + 1 } else { held - 1 };
            most = most.max(held);
        }
        most
    }
}

impl Holder {
    /// Returns the intervals in which it certainly holds its place, apart from each other.
    fn certain(mut self, expiry_us: u64) -> Vec<(u64, u64)> {
        self.returns.sort_unstable();
        let mut first = u64::MAX;
        // The first begin of each and all that may take effect later.
        for (_, begin) in self.returns.iter_mut().rev() {
            first = first.min(*begin);
            *begin = first;
        }
        let mut all: Vec<(u64, u64)> = Vec::new();
        for (begin, since) in self.takes {
            let later = self.returns.partition_point(|(latest, _)| *latest < begin);
            let let_go = self.returns.get(later).map_or(u64::MAX, |(_, begin)| *begin);
            let until = begin.saturating_add(expiry_us).min(let_go);
            if since < until {
                all.push((since, until));
            }
        }
        all.sort_unstable();
        all.into_iter().fold(Vec::new(), |mut apart, (since, until)| {
            match apart.last_mut() {
                Some((_, last)) if since <= *last => *last = until.max(*last),
                _ => apart.push((since, until)),
            }
            apart
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(operations: &[(u64, u64, Ask, &str)]) -> u64 {
        let mut holders = Holders::new(100, 10);
        for (begin, end, ask, holder) in operations {
            holders.add((*begin, *end), (*ask, Told::Allowed), holder);
        }
        holders.most()
    }

    #[test]
    fn places_are_held_from_the_answer_to_the_return() {
        use Ask::{Return, Take};
        assert_eq!(most(&[(0, 1, Take, "a"), (2, 3, Take, "b")]), 2);
        assert_eq!(most(&[(0, 5, Take, "a"), (4, 6, Return, "a"), (1, 7, Take, "b")]), 1, "it may be let go before");
        assert_eq!(most(&[(0, 1, Take, "a"), (99, 101, Take, "b")]), 1, "a has expired");
        assert_eq!(most(&[(0, 1, Take, "a"), (50, 51, Take, "a"), (99, 101, Take, "b")]), 2, "a is alive");
        assert_eq!(most(&[(0, 1, Take, "a"), (0, 1, Take, "a")]), 1, "it is the same");
        let both = [(1, 3, Return, "a"), (0, 4, Take, "a"), (5, 6, Take, "b")];
        assert_eq!(most(&both), 1, "a may have left after it came");
    }
}
