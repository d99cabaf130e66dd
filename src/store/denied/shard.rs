//! Denials that are kept in so much memory, and no more.

use std::time::Instant;

use indexmap::IndexMap;

use super::Denial;
use crate::store::Key;

/// What the map takes for an entry that there is room for, used or not: one place in its list, and in its table, which is made of powers of two
/// and doubled when it is half full of what has been removed, five at the most.
const PLACE: usize = size_of::<(usize, Key, Denial)>() + 5 * (size_of::<usize>() + 1);
/// How many entries there is room for at first.
const FIRST: usize = 4;

/// A part of what is known.
#[derive(Default)]
pub(super) struct Shard {
    denials: IndexMap<Key, Denial>,
    /// How many there is room for. That is never given back.
    places: usize,
    /// What the names of those that there are take.
    key_bytes: usize,
    /// Where the search for what may go continues.
    hand: usize,
    /// When something was given back to one of its counters last: an answer to what was asked before may not be true any more.
    given_back: Option<Instant>,
}

impl Shard {
    /// What is known of a counter.
    pub(super) fn get(&self, key: &Key) -> Option<Denial> {
        self.denials.get(key).copied()
    }

    /// Keeps a denial in `most` bytes: unless something has been given back since it was asked for, one that is there goes before it, or it does
    /// not fit.
    pub(super) fn learn(&mut self, key: &Key, denial: Denial, most: usize) {
        if self.given_back.is_some_and(|at| at >= denial.asked) {
            return;
        }
        if self.denials.get(key).is_some_and(|known| known.goes_before(&denial)) {
            return;
        }
        for _ in 0..2 {
            self.drop_next(|next| next.until <= denial.asked);
        }
        if let Some(known) = self.denials.get_mut(key) {
            *known = denial;
        } else if self.make_room(key, most) {
            self.key_bytes += size(key);
            self.denials.insert(key.clone(), denial);
        }
    }

    /// Makes room for one more, where there can be: while that fits, more room, and from then on another has to go.
    fn make_room(&mut self, key: &Key, most: usize) -> bool {
        let key_bytes = size(key);
        if self.denials.len() == self.places {
            let average = (self.key_bytes + key_bytes) / (self.denials.len() + 1);
            let places = (self.places * 2).max(FIRST).min(most / (PLACE + average));
            if places > self.places {
                self.denials.reserve_exact(places - self.denials.len());
                self.places = places;
            }
        }
        let fits = |shard: &Shard| {
            shard.denials.len() < shard.places && shard.places * PLACE + shard.key_bytes + key_bytes <= most
        };
        while !fits(self) && !self.denials.is_empty() {
            self.drop_next(|_| true);
        }
        fits(self)
    }

    /// Looks at the next entry, and drops it if it `may` go.
    fn drop_next(&mut self, may: impl Fn(&Denial) -> bool) {
        if self.hand >= self.denials.len() {
            self.hand = 0;
        }
        match self.denials.get_index(self.hand) {
            Some((key, denial)) if may(denial) => {
                self.key_bytes -= size(key);
                self.denials.swap_remove_index(self.hand);
            }
            _ => self.hand += 1,
        }
    }

    /// Something has been given back to this counter.
    pub(super) fn forget(&mut self, key: &Key, now: Instant) {
        self.given_back = self.given_back.max(Some(now));
        if self.denials.swap_remove(key).is_some() {
            self.key_bytes -= size(key);
        }
    }
}

/// What a name takes, with what the allocator adds.
fn size(key: &Key) -> usize {
    let len = key.as_str().len();
    len + len / 8 + 16
}
