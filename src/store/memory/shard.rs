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

use hashbrown::HashTable;

use super::Sums;
use super::dues::{Due, Dues};
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
    dues: Dues,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
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
    /// When the counter is due.
    due: Due,
}

impl Counter {
    /// Applies the change of a decision.
    fn alter(&mut self, change: Change, expires_at: u64) {
        self.state.alter(change);
        self.expires_at = expires_at;
    }

    /// Returns when the counter expires, in milliseconds since the epoch.
    pub(super) fn expires_at(&self) -> u64 {
        self.expires_at
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
    fn add(&mut self, name: Name, state: State, expires_at: u64, now: u64) {
        let place = u32::try_from(self.len()).expect("no machine has the memory for 2^32 counters in each shard");
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            let page = self.spares.pop().unwrap_or_else(|| Vec::with_capacity(PAGE));
            self.fewest_spares = self.fewest_spares.min(self.spares.len());
            self.pages.push(page);
        }
        let due = self.dues.add(place, expires_at, now);
        self.pages.last_mut().expect("one has room").push(Entry { name, counter: Counter { state, expires_at, due } });
        self.places.insert_unique(name.low, place, |place| entry(&self.pages, *place).name.low);
    }

    /// Removes the counter at this place, and moves the last counter there.
    fn remove(&mut self, place: usize) {
        let Entry { name, counter: Counter { due, .. } } = *entry(&self.pages, place as u32);
        let last = self.len() - 1;
        self.forget_due(due);
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
            self.dues.put(moved.counter.due, place as u32);
            self.pages[place / PAGE][place % PAGE] = moved;
        }
    }

    /// Removes a counter from the index of due times.
    fn forget_due(&mut self, due: Due) {
        if let Some((other, its_due)) = self.dues.remove(due) {
            self.pages[other as usize / PAGE][other as usize % PAGE].counter.due = its_due;
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
                self.add(name, State::begin(change), now + expires_after_ms, now);
                sums.add(self.at(self.len() - 1).bytes());
            }
        }
    }

    /// Checks the next few counters that are due and removes those that have expired. Returns their number and size,
    /// and whether nothing more is due.
    pub(super) fn sweep(&mut self, most: usize, now: u64) -> Swept {
        let mut swept = Swept::default();
        let step = Dues::step_of(now);
        for _ in 0..most {
            let Some(place) = self.dues.next(step) else {
                return Swept { is_done: true, ..swept };
            };
            let counter = self.at(place as usize);
            if counter.expires_at <= now {
                swept.counters += 1;
                swept.bytes += counter.bytes();
                self.remove(place as usize);
            } else {
                let Counter { due, expires_at, .. } = *counter;
                self.forget_due(due);
                let due = self.dues.add(place, expires_at, now);
                self.pages[place as usize / PAGE][place as usize % PAGE].counter.due = due;
            }
        }
        swept
    }

    /// Returns when the counter that is swept next expires, if one is due.
    pub(super) fn next_due(&self, now: u64) -> Option<u64> {
        self.dues.next(Dues::step_of(now)).map(|place| self.at(place as usize).expires_at)
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
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::algorithm::{Algorithm, Ask, Caller, Limit, Options};
    use crate::store::memory::dues::DUE_MS;

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
            shard.add(Name { high: 0, low: low as u64 }, State::begin(change), 1, 0);
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
        shard.add(Name { high: 0, low: far }, State::begin(change), u64::MAX / 2, 0);
        // One more than the number of the other counters: it finds nothing to check.
        assert!(shard.sweep(far as usize + 1, DUE_MS).is_done);
        assert_eq!(shard.len(), 1);
    }

    #[test]
    fn few_lists_hold_the_due_times_of_a_year() {
        const YEAR_MS: u64 = 365 * 24 * 60 * 60 * 1_000;
        let (mut dues, now) = (Dues::default(), 1_700_000_000_000);
        for nth in 1..=10_000 {
            let due = dues.add(nth, now + YEAR_MS / 10_000 * u64::from(nth), now);
            assert_eq!(dues.next(Dues::step_of(now)), None, "{due:?} is in the future");
        }
        assert!(dues.lists() < 500, "{}", dues.lists());
    }

    proptest! {
        /// Counters of any life are added, used again, forgotten and swept.
        #[test]
        fn a_counter_is_removed_within_a_step_after_it_expires_and_not_before(
            lives in prop::collection::vec(1..4_000_000_u64, 40),
            steps in prop::collection::vec((0..40_usize, 0..3_u8, 0..3_000_u64), 1..300),
        ) {
            let limit = Limit::new(Algorithm::FixedWindow, 5, Duration::from_secs(1), Options::default()).unwrap();
            let change = || match limit.decide(Ask::Take(1), Caller::default(), None, 0).effect {
                Effect::Changed { change, .. } => change,
                _ => panic!("a first hit is counted"),
            };
            let (mut shard, mut expiries, mut now) = (Shard::default(), BTreeMap::new(), 1_700_000_000_000);
            for (nth, kind, passed_ms) in steps {
                now += passed_ms * passed_ms;
                let (low, expires_after_ms) = (nth as u64, lives[nth]);
                let name = Name { high: 0, low };
                let effect = match kind {
                    0 => Effect::Forgotten,
                    _ => Effect::Changed { change: change(), expires_after_ms },
                };
                match kind {
                    0 => expiries.remove(&low),
                    _ => expiries.insert(low, now + expires_after_ms),
                };
                shard.apply(name, effect, now, &mut Sums::default());
                prop_assert!(shard.sweep(usize::MAX, now).is_done);
                expiries.retain(|low, expires_at| {
                    let is_there = shard.find(Name { high: 0, low: *low }).is_some();
                    assert!(is_there || *expires_at <= now, "{low} was removed too early");
                    assert!(!is_there || *expires_at + 2 * DUE_MS > now, "{low} is still there");
                    is_there
                });
                prop_assert_eq!((shard.len(), shard.dues.len()), (expiries.len(), expiries.len()));
                let places = |page: &Page| page.iter().map(|entry| entry.counter.due).collect::<Vec<_>>();
                for (place, due) in shard.pages.iter().flat_map(places).enumerate() {
                    prop_assert_eq!(shard.dues.at(due), Some(place as u32));
                }
            }
        }
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
