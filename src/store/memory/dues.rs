//! The index of a shard's counters by the time when they are due to be checked for expiry.
//!
//! Counters that are due in the same step share a list, and each counter knows its position there. A list is found by a
//! search among few steps, and the rest takes constant time. A set ordered by step and place, which was used before,
//! takes a search among all counters for each change, in memory that is seldom in the processor's caches.

use std::collections::BTreeMap;

/// About a second: the longest time that an expired counter is kept after it could be removed.
pub(super) const DUE_MS: u64 = 1 << 10;

/// The steps within a doubling of the time until then. Farther times are rounded down to fewer steps, so there are few
/// lists, however long counters live. A counter is then checked two or three times more in its life.
const STEPS: u32 = 32;

/// When a counter is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// In steps of [`DUE_MS`].
    step: u32,
    /// Position in the list of the step.
    position: u32,
}

/// The places of counters by the step when they are due.
#[derive(Debug)]
pub(super) struct Dues {
    places: BTreeMap<u32, Vec<u32>>,
    /// The first step with a counter, or the largest number.
    first: u32,
}

impl Default for Dues {
    fn default() -> Self {
        Dues { places: BTreeMap::new(), first: u32::MAX }
    }
}

impl Dues {
    /// Returns the step of this time.
    pub(super) fn step_of(now: u64) -> u32 {
        u32::try_from(now / DUE_MS).unwrap_or(u32::MAX)
    }

    /// Returns the step to check a counter that expires at this time: the first step that lies entirely after it, or an
    /// earlier one that is not over, if it is far away.
    fn step(expires_at: u64, now: u64) -> u32 {
        let step = Self::step_of(expires_at).saturating_add(1);
        let until = step.saturating_sub(Self::step_of(now));
        let rounded = (until / STEPS).checked_ilog2().unwrap_or(0);
        step >> rounded << rounded
    }

    /// Adds the counter at this place.
    pub(super) fn add(&mut self, place: u32, expires_at: u64, now: u64) -> Due {
        let step = Self::step(expires_at, now);
        self.first = self.first.min(step);
        let places = self.places.entry(step).or_default();
        places.push(place);
        Due { step, position: places.len() as u32 - 1 }
    }

    /// Removes a counter. If another one takes its position, returns that one's place.
    #[must_use]
    pub(super) fn remove(&mut self, Due { step, position }: Due) -> Option<(u32, Due)> {
        let places = self.places.get_mut(&step)?;
        places.swap_remove(position as usize);
        if places.is_empty() {
            self.places.remove(&step);
            self.first = self.places.first_key_value().map_or(u32::MAX, |(step, _)| *step);
            return None;
        }
        places.get(position as usize).map(|moved| (*moved, Due { step, position }))
    }

    /// Notes that a counter has moved to this place.
    pub(super) fn put(&mut self, Due { step, position }: Due, place: u32) {
        if let Some(noted) = self.places.get_mut(&step).and_then(|places| places.get_mut(position as usize)) {
            *noted = place;
        }
    }

    /// Returns the place of a counter that is due by this step. The same one is returned until it is removed.
    pub(super) fn next(&self, step: u32) -> Option<u32> {
        if self.first > step {
            return None;
        }
        self.places.first_key_value()?.1.last().copied()
    }

    /// Returns the number of counters.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.values().map(Vec::len).sum()
    }

    /// Returns the place of the counter with this position.
    #[cfg(test)]
    pub(super) fn at(&self, Due { step, position }: Due) -> Option<u32> {
        self.places.get(&step)?.get(position as usize).copied()
    }

    /// Returns the number of lists.
    #[cfg(test)]
    pub(super) fn lists(&self) -> usize {
        self.places.len()
    }
}
