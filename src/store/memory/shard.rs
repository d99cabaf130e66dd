//! The counters of one shard: found by name, and walked by position, to expire them a few at a time.
//!
//! They lie in pages, so that a shard grows and shrinks by a page, and nothing is copied. The list of an `IndexMap`, which was here before,
//! is copied when it is full, to one with room for as many again or nearly; and what it was stays with the allocator. A page that is emptied is a spare:
//! under a steady churn of counters no page is allocated or freed.

use hashbrown::HashTable;

use crate::algorithm::{Change, State};

/// What a page takes.
pub(super) const PAGE_BYTES: usize = 4096;
/// How many counters it has room for.
const PAGE: usize = PAGE_BYTES / size_of::<Entry>();

/// Counters that share a lock.
#[derive(Debug, Default)]
pub(super) struct Shard {
    /// Where the counter of a name is.
    places: HashTable<u32>,
    /// All are full but the last.
    pages: Vec<Page>,
    /// Have been emptied, and are the next to be filled.
    spares: Vec<Page>,
    /// The fewest spares that there were since [`Shard::unneeded`].
    fewest_spares: usize,
    /// Where the sweep goes on.
    hand: usize,
}

/// Has room for [`PAGE`] counters.
type Page = Vec<Entry>;

#[derive(Debug)]
pub(super) struct Entry {
    name: Name,
    counter: Counter,
}

/// The hash of a counter's name: 128 bits under a secret key stand for the name itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Tells the shard.
    pub(super) high: u64,
    /// Tells the place in it.
    pub(super) low: u64,
}

#[derive(Debug)]
pub(super) struct Counter {
    pub(super) state: State,
    /// In milliseconds since the epoch.
    pub(super) expires_at: u64,
}

impl Counter {
    /// A decision makes this of it.
    pub(super) fn alter(&mut self, change: Change, expires_at: u64) {
        self.state.alter(change);
        self.expires_at = expires_at;
    }
}

impl Shard {
    /// How many counters there are.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Where the counter of this name is, until one is removed.
    pub(super) fn find(&self, name: Name) -> Option<usize> {
        let place = self.places.find(name.low, |place| entry(&self.pages, *place).name == name)?;
        Some(*place as usize)
    }

    pub(super) fn at(&self, place: usize) -> &Counter {
        &self.pages[place / PAGE][place % PAGE].counter
    }

    pub(super) fn at_mut(&mut self, place: usize) -> &mut Counter {
        &mut self.pages[place / PAGE][place % PAGE].counter
    }

    /// Adds a counter, whose name has none yet.
    pub(super) fn add(&mut self, name: Name, state: State, expires_at: u64) {
        let place = u32::try_from(self.len()).expect("no machine has the memory for 2^32 counters in each shard");
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            let page = self.spares.pop().unwrap_or_else(|| Vec::with_capacity(PAGE));
            self.fewest_spares = self.fewest_spares.min(self.spares.len());
            self.pages.push(page);
        }
        self.pages.last_mut().expect("one has room").push(Entry { name, counter: Counter { state, expires_at } });
        self.places.insert_unique(name.low, place, |place| entry(&self.pages, *place).name.low);
    }

    /// Removes the counter at this place, and puts the last one there.
    pub(super) fn remove(&mut self, place: usize) {
        let (last, name) = (self.len() - 1, entry(&self.pages, place as u32).name);
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
            self.pages[place / PAGE][place % PAGE] = moved;
        }
    }

    /// Looks at the next few counters, removes those that have expired, and tells how many.
    pub(super) fn sweep(&mut self, most: usize, now: u64) -> usize {
        let before = self.len();
        for _ in 0..most.min(before) {
            if self.hand >= self.len() {
                self.hand = 0;
            }
            if self.at(self.hand).expires_at <= now {
                self.remove(self.hand);
            } else {
                self.hand += 1;
            }
        }
        before - self.len()
    }

    /// Makes the table smaller if most of it is empty, and tells how many bytes that gave back.
    pub(super) fn shrink(&mut self) -> usize {
        if self.places.capacity() <= 64 || self.len() >= self.places.capacity() / 4 {
            return 0;
        }
        let before = self.places.allocation_size();
        self.places.shrink_to(self.len() * 2, |place| entry(&self.pages, *place).name.low);
        self.pages.shrink_to(self.len() * 2 / PAGE);
        before - self.places.allocation_size()
    }

    /// The spares, up to so many, that nobody has needed since this was asked before. The caller may free them without the lock.
    pub(super) fn unneeded(&mut self, most: usize) -> Vec<Page> {
        let kept = self.spares.len() - self.fewest_spares.min(most);
        let unneeded = self.spares.split_off(kept);
        self.spares.shrink_to(kept * 2);
        self.fewest_spares = kept;
        unneeded
    }

    /// For how many counters there is room.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.places.capacity().max((self.pages.len() + self.spares.len()) * PAGE)
    }

    /// What the room takes.
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
    use crate::algorithm::{Algorithm, Limit, Options};

    /// A shard with so many pages of counters, which expire at 1.
    fn shard(pages: usize) -> Shard {
        let mut shard = Shard::default();
        fill(&mut shard, pages);
        shard
    }

    fn fill(shard: &mut Shard, pages: usize) {
        let limit = Limit::new(Algorithm::FixedWindow, 5, Duration::from_secs(1), Options::default()).unwrap();
        for low in (shard.len()..).take(pages * PAGE) {
            let change = limit.decide(1, None, 0).change.unwrap();
            shard.add(Name { high: 0, low: low as u64 }, State::begin(change), 1);
        }
    }

    fn empty(shard: &mut Shard) {
        shard.sweep(usize::MAX, 1);
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
    fn a_table_that_is_mostly_empty_shrinks() {
        let mut shard = shard(10);
        assert_eq!(shard.shrink(), 0);
        let before = shard.places.allocation_size();
        empty(&mut shard);
        assert_eq!((shard.shrink(), shard.places.allocation_size()), (before, 0));
        assert_eq!(shard.shrink(), 0);
    }
}
