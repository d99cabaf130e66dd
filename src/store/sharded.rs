//! What is kept by counter, in parts that are locked each for itself.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use parking_lot::Mutex;

use super::Key;

/// Enough that threads seldom meet at one.
pub(super) const SHARDS: usize = 64;

/// Parts, each with the counters that fall to it.
pub(super) struct Sharded<T> {
    shards: Box<[Mutex<T>]>,
    /// The same in every process, so that a simulated run repeats. Who picks his names can crowd one part at the worst; the map in it has a hash
    /// of its own, which withstands him.
    hash: BuildHasherDefault<DefaultHasher>,
}

impl<T> Sharded<T> {
    /// The part of this counter.
    pub(super) fn of(&self, key: &Key) -> &Mutex<T> {
        &self.shards[self.hash.hash_one(key) as usize % SHARDS]
    }

    /// All parts.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Mutex<T>> {
        self.shards.iter()
    }
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Sharded { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hash: BuildHasherDefault::default() }
    }
}
