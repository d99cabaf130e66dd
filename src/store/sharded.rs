//! A value for each shard of the counters, each behind its own lock.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use parking_lot::Mutex;

use crate::engine::check::Key;

/// Number of shards: enough that threads seldom wait for the same lock.
pub(super) const SHARDS: usize = 64;

/// Shards, each for the counters with keys that select it.
pub(super) struct Sharded<T> {
    shards: Box<[Mutex<T>]>,
    /// The same in every run, to make simulations repeatable. At worst, a client that chooses its keys crowds one
    /// shard; the map inside has a randomized hash, which withstands that.
    hash: BuildHasherDefault<DefaultHasher>,
}

impl<T> Sharded<T> {
    /// Returns the shard of this counter.
    pub(super) fn of(&self, key: &Key) -> &Mutex<T> {
        &self.shards[self.hash.hash_one(key) as usize % SHARDS]
    }

    /// Returns all shards.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Mutex<T>> {
        self.shards.iter()
    }
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Sharded { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hash: BuildHasherDefault::default() }
    }
}
