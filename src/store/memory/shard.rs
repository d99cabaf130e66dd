//! The counters of one shard, with an index by name, and an index by the time when they are due to be checked for
//! expiry, a few at a time.
//!
//! A counter's due time is when it would have expired at the time it was added or last checked. Most counters have been
//! used since, and then get a new due time from their current expiry. Decisions therefore do not touch this index, and
//! the sweep does not visit counters that expire much later.
//!
//! Counters are stored in pages. A shard grows and shrinks by a page, and nothing is copied. The list of an `IndexMap`,
//! which was used before, is copied when it is full, into one with nearly twice the room, and the old list stays with
//! the allocator. An emptied page becomes a spare: under a steady turnover of counters no page is allocated or freed.

use std::collections::BTreeSet;

use hashbrown::HashTable;

use super::Sums;
use crate::engine::algorithm::{Change, Effect, State};

/// Size of a page in bytes.
pub(super) const PAGE_BYTES: usize = 4096;
/// Number of counters in a page.
const PAGE: usize = PAGE_BYTES / size_of::<Entry>();

/// Counters that share a lock.
#[derive(Debug, Default)]
pub(super) struct Shard {
    /// The place of the counter of each name.
    places: HashTable<u32>,
    /// Pages, all of them full except the last.
    pages: Vec<Page>,
    /// Emptied pages, which are filled next.
    spares: Vec<Page>,
    /// The smallest number of spares since [`Shard::unneeded`].
    fewest_spares: usize,
    /// The times when counters are due.
    dues: BTreeSet<Due>,
}

/// The time when the counter at a place is due, in steps of [`DUE_MS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    step: u32,
    place: u32,
}

/// About a second: the longest time that an expired counter is kept after it could be removed.
const DUE_MS: u64 = 1 << 10;

impl Due {
    /// Returns the first step that lies entirely after this time.
    fn step(expires_at: u64) -> u32 {
        u32::try_from(expires_at / DUE_MS + 1).unwrap_or(u32::MAX)
    }
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Swept {
    pub(super) counters: usize,
    pub(super) bytes: usize,
    /// Whether nothing more is due.
    pub(super) is_done: bool,
}

/// A page, with room for [`PAGE`] counters.
type Page = Vec<Entry>;

#[derive(Debug)]
pub(super) struct Entry {
    name: Name,
    counter: Counter,
}

/// The hash of a counter's name: 128 bits under a secret key, in place of the name itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Chooses the shard.
    pub(super) high: u64,
    /// Chooses the place in the shard.
    pub(super) low: u64,
}

#[derive(Debug)]
pub(super) struct Counter {
    pub(super) state: State,
    /// In milliseconds since the epoch.
    expires_at: u64,
    /// The step when the counter is due.
    due: u32,
}

impl Counter {
    /// Applies the change of a decision.
    fn alter(&mut self, change: Change, expires_at: u64) {
        self.state.alter(change);
        self.expires_at = expires_at;
    }

    /// Returns the approximate total size in bytes.
    fn bytes(&self) -> usize {
        COUNTER_BYTES + self.state.heap_bytes()
    }
}

/// The size of a counter without heap memory: its place in a page, in the table, and in the index of due times.
pub(super) const COUNTER_BYTES: usize = size_of::<Entry>() + 8 + 12;

impl Shard {
    /// Returns the number of counters.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the place of the counter with this name. It is valid until a counter is removed.
    pub(super) fn find(&self, name: Name) -> Option<usize> {
        let place = self.places.find(name.low, |place| entry(&self.pages, *place).name == name)?;
        Some(*place as usize)
    }

    pub(super) fn at(&self, place: usize) -> &Counter {
        &self.pages[place / PAGE][place % PAGE].counter
    }

    /// Adds a counter with a name that has none yet.
    fn add(&mut self, name: Name, state: State, expires_at: u64) {
        let place = u32::try_from(self.len()).expect("no machine has the memory for 2^32 counters in each shard");
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            let page = self.spares.pop().unwrap_or_else(|| Vec::with_capacity(PAGE));
            self.fewest_spares = self.fewest_spares.min(self.spares.len());
            self.pages.push(page);
        }
        let due = Due::step(expires_at);
        self.dues.insert(Due { step: due, place });
        self.pages.last_mut().expect("one has room").push(Entry { name, counter: Counter { state, expires_at, due } });
        self.places.insert_unique(name.low, place, |place| entry(&self.pages, *place).name.low);
    }

    /// Removes the counter at this place, and moves the last counter there.
    fn remove(&mut self, place: usize) {
        let Entry { name, counter: Counter { due, .. } } = *entry(&self.pages, place as u32);
        let last = self.len() - 1;
        self.dues.remove(&Due { step: due, place: place as u32 });
        let page = self.pages.last_mut().expect("there is a counter");
        let moved = page.pop().expect("no page is empty");
        if page.is_empty() {
            self.spares.extend(self.pages.pop());
        }
        if let Ok(removed) = self.places.find_entry(name.low, |other| *other as usize == place) {
            removed.remove();
        }
        if place < last {
            let its_place = self.places.find_mut(moved.name.low, |other| *other as usize == last);
            *its_place.expect("every counter has a place") = place as u32;
            self.dues.remove(&Due { step: moved.counter.due, place: last as u32 });
            self.dues.insert(Due { step: moved.counter.due, place: place as u32 });
            self.pages[place / PAGE][place % PAGE] = moved;
        }
    }

    /// Applies the effect of a decision to the counter with this name, and to the totals.
    pub(super) fn apply(&mut self, name: Name, effect: Effect, now: u64, sums: &mut Sums) {
        let found = self.find(name);
        self.apply_at(found, name, effect, now, sums);
    }

    /// Applies the effect to a counter with a known place.
    pub(super) fn apply_at(&mut self, found: Option<usize>, name: Name, effect: Effect, now: u64, sums: &mut Sums) {
        match (found, effect) {
            (_, Effect::None) | (None, Effect::Forgotten) => {}
            (Some(place), Effect::Forgotten) => {
                sums.remove(self.at(place).bytes());
                self.remove(place);
            }
            (Some(place), Effect::Changed { change, expires_after_ms }) => {
                let counter = &mut self.pages[place / PAGE][place % PAGE].counter;
                let before = counter.bytes();
                counter.alter(change, now + expires_after_ms);
                let after = counter.bytes();
                sums.grown += after;
                sums.shrunk += before;
            }
            (None, Effect::Changed { change, expires_after_ms }) => {
                self.add(name, State::begin(change), now + expires_after_ms);
                sums.add(self.at(self.len() - 1).bytes());
            }
        }
    }

    /// Checks the next few counters that are due and removes those that have expired. Returns their number and size,
    /// and whether nothing more is due.
    pub(super) fn sweep(&mut self, most: usize, now: u64) -> Swept {
        let mut swept = Swept::default();
        let step = u32::try_from(now / DUE_MS).unwrap_or(u32::MAX);
        for _ in 0..most {
            let Some(due) = self.dues.first().copied().filter(|due| due.step <= step) else {
                return Swept { is_done: true, ..swept };
            };
            let place = due.place as usize;
            let Entry { counter, .. } = &mut self.pages[place / PAGE][place % PAGE];
            if counter.expires_at <= now {
                swept.counters += 1;
                swept.bytes += counter.bytes();
                self.remove(place);
            } else {
                counter.due = Due::step(counter.expires_at);
                let next = Due { step: counter.due, ..due };
                self.dues.pop_first();
                self.dues.insert(next);
            }
        }
        swept
    }

    /// Shrinks the table if most of it is empty, and returns the number of bytes freed.
    pub(super) fn shrink(&mut self) -> usize {
        // The capacity would be wrong here: it treats removed entries as if they were still there.
        if self.places.num_buckets() <= 64 || self.len() >= self.places.num_buckets() / 4 {
            return 0;
        }
        let before = self.places.allocation_size();
        self.places.shrink_to(self.len() * 2, |place| entry(&self.pages, *place).name.low);
        self.pages.shrink_to(self.len() * 2 / PAGE);
        before - self.places.allocation_size()
    }

    /// Returns spare pages, up to this many, that were not needed since the last call. The caller may free them without
    /// the lock.
    pub(super) fn unneeded(&mut self, most: usize) -> Vec<Page> {
        let kept = self.spares.len() - self.fewest_spares.min(most);
        let unneeded = self.spares.split_off(kept);
        self.spares.shrink_to(kept * 2);
        self.fewest_spares = kept;
        unneeded
    }

    /// Returns the number of counters that there is room for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.places.capacity().max((self.pages.len() + self.spares.len()) * PAGE)
    }

    /// Returns the size of the memory in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.places.allocation_size() + (self.pages.len() + self.spares.len()) * PAGE_BYTES
    }
}

fn entry(pages: &[Page], place: u32) -> &Entry {
    &pages[place as usize / PAGE][place as usize % PAGE]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::algorithm::{Algorithm, Ask, Caller, Effect, Limit, Options};

    /// Returns a shard with this many pages of counters, which expire at 1.
    fn shard(pages: usize) -> Shard {
        let mut shard = Shard::default();
        fill(&mut shard, pages);
        shard
    }

    fn fill(shard: &mut Shard, pages: usize) {
        let limit = Limit::new(Algorithm::FixedWindow, 5, Duration::from_secs(1), Options::default()).unwrap();
        for low in (shard.len()..).take(pages * PAGE) {
            let Effect::Changed { change, .. } = limit.decide(Ask::Take(1), Caller::default(), None, 0).effect else {
                panic!("a first hit is counted")
            };
            shard.add(Name { high: 0, low: low as u64 }, State::begin(change), 1);
        }
    }

    fn empty(shard: &mut Shard) {
        shard.sweep(usize::MAX, DUE_MS);
        assert_eq!((shard.len(), shard.pages.len()), (0, 0));
    }

    #[test]
    fn emptied_pages_are_filled_again() {
        let mut shard = shard(10);
        empty(&mut shard);
        assert_eq!(shard.spares.len(), 10);
        fill(&mut shard, 4);
        assert_eq!((shard.pages.len(), shard.spares.len()), (4, 6));
        fill(&mut shard, 8);
        assert_eq!((shard.pages.len(), shard.spares.len()), (12, 0));
    }

    #[test]
    fn what_was_a_spare_all_along_is_unneeded() {
        let mut shard = shard(10);
        empty(&mut shard);
        assert_eq!(shard.unneeded(100).len(), 0, "they were in use");
        fill(&mut shard, 4);
        empty(&mut shard);
        assert_eq!(shard.unneeded(5).len(), 5, "no more than asked for");
        assert_eq!(shard.unneeded(100).len(), 5);
        assert_eq!((shard.unneeded(100).len(), shard.bytes()), (0, shard.places.allocation_size()));
    }

    #[test]
    fn a_counter_that_was_used_again_is_swept_when_it_is_to_expire_then() {
        let mut shard = shard(1);
        let all = shard.len();
        let (kept, gone) = (Name { high: 0, low: 0 }, Name { high: 0, low: 1 });
        let place = shard.find(kept).unwrap();
        shard.pages[place / PAGE][place % PAGE].counter.expires_at = 10 * DUE_MS;
        shard.remove(shard.find(gone).unwrap());
        let swept = shard.sweep(usize::MAX, DUE_MS);
        assert_eq!((swept.counters, swept.is_done, shard.len(), shard.dues.len()), (all - 2, true, 1, 1));
        assert_eq!(shard.sweep(usize::MAX, 10 * DUE_MS).counters, 0);
        assert_eq!(shard.sweep(usize::MAX, 11 * DUE_MS).counters, 1);
        assert_eq!((shard.len(), shard.dues.len()), (0, 0));
    }

    #[test]
    fn the_sweep_skips_a_counter_that_has_long_to_live() {
        let mut shard = Shard::default();
        fill(&mut shard, 1);
        let far = shard.len() as u64;
        let limit = Limit::new(Algorithm::FixedWindow, 5, Duration::from_secs(1), Options::default()).unwrap();
        let Effect::Changed { change, .. } = limit.decide(Ask::Take(1), Caller::default(), None, 0).effect else {
            panic!("a first hit is counted")
        };
        shard.add(Name { high: 0, low: far }, State::begin(change), u64::MAX / 2);
        // One more than the number of the other counters: it finds nothing to check.
        assert!(shard.sweep(far as usize + 1, DUE_MS).is_done);
        assert_eq!(shard.len(), 1);
    }

    #[test]
    fn a_table_that_is_mostly_empty_shrinks() {
        let mut shard = shard(10);
        assert_eq!(shard.shrink(), 0);
        let before = shard.places.allocation_size();
        empty(&mut shard);
        assert_eq!((shard.shrink(), shard.places.allocation_size()), (before, 0));
        assert_eq!(shard.shrink(), 0);
    }
}
