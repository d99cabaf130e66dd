//! Counters in this process's memory: as exact as in Redis, for one process, until it ends.
//!
//! Counters are spread over shards, each behind its own lock. A request locks the shards of its counters in ascending order,
//! decides, and lets go. Expired counters are garbage: every request sweeps a few of its shard's, and [`MemoryStore::sweep`]
//! sweeps the idle shards, a few at a time, so that nobody ever waits for a full pass.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use indexmap::map::Entry;
use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::{Check, Key, Store, StoreError, group};
use crate::algorithm::{State, Verdict};

/// Enough that cores seldom meet at one.
const SHARDS: usize = 256;
/// How many counters a request looks at for expiry.
const SWEEP_PER_CHECK: usize = 2;
/// How many counters [`MemoryStore::sweep`] looks at under one lock: some microseconds.
const SWEEP_AT_ONCE: usize = 256;
/// How long one pass of [`MemoryStore::sweep`] over all counters takes.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The time in milliseconds since the Unix epoch.
pub trait Clock: Send + Sync + 'static {
    /// It may stand still or step back; counters bear it.
    fn now(&self) -> u64;
}

/// The host's clock.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The embedded store.
#[derive(Debug)]
pub struct MemoryStore<C = SystemClock> {
    shards: Box<[Mutex<Shard>]>,
    /// Hashes names with a key that nobody outside knows, so that nobody can make two names meet.
    hash_key: [u8; 16],
    clock: C,
    /// How many counters there are.
    counters: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    counters: IndexMap<Name, Counter, BuildHasherDefault<NameHasher>>,
    /// Where the sweep goes on.
    hand: usize,
}

#[derive(Debug)]
struct Counter {
    state: State,
    /// In milliseconds since the epoch.
    expires_at: u64,
}

impl<C: Clock> MemoryStore<C> {
    /// An empty store on this clock.
    pub fn new(clock: C) -> Self {
        let random = RandomState::new();
        let mut hash_key = [0; 16];
        for (half, part) in hash_key.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&random.hash_one(half).to_le_bytes());
        }
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        MemoryStore { shards, hash_key, clock, counters: AtomicUsize::new(0) }
    }

    /// Decides at once; see [`Store::check`].
    pub fn decide(&self, checks: &[Check]) -> Vec<Verdict> {
        let names: Vec<Name> = checks.iter().map(|check| self.name(&check.key)).collect();
        let mut shards: Vec<usize> = names.iter().map(|name| name.shard()).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: Vec<MutexGuard<'_, Shard>> = shards.iter().map(|shard| self.shards[*shard].lock()).collect();
        // One guard for each shard, in the same order.
        let place = |name: &Name| shards.partition_point(|shard| *shard < name.shard());
        // Read under the locks: whoever comes next to these counters reads no earlier time.
        let now = self.clock.now();

        let state = |i: usize| locked[place(&names[i])].counters.get(&names[i]).map(|counter| &counter.state);
        let (verdicts, changes) = group::decide(checks, now, state);

        let (mut added, mut removed) = (0, 0);
        let mut emptied = Vec::new();
        for (i, change, reset_after_ms) in changes {
            let shard = &mut locked[place(&names[i])];
            if reset_after_ms == 0 {
                emptied.push(i);
            }
            let expires_at = now + reset_after_ms;
            match shard.counters.entry(names[i]) {
                Entry::Occupied(mut entry) => {
                    let counter = entry.get_mut();
                    counter.state.alter(change);
                    counter.expires_at = expires_at;
                }
                Entry::Vacant(entry) => {
                    entry.insert(Counter { state: State::begin(change), expires_at });
                    added += 1;
                }
            }
        }
        // As fresh ones they need not be kept, unless a later check has taken of them.
        for i in emptied {
            let counters = &mut locked[place(&names[i])].counters;
            if counters.get(&names[i]).is_some_and(|counter| counter.expires_at <= now) {
                counters.swap_remove(&names[i]);
                removed += 1;
            }
        }
        for shard in &mut locked {
            removed += shard.sweep(SWEEP_PER_CHECK, now);
        }
        drop(locked);
        self.count(added, removed);
        verdicts
    }

    /// How many counters there are.
    pub fn len(&self) -> usize {
        self.counters.load(Ordering::Relaxed)
    }

    /// Whether there is no counter at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sweeps expired counters out, a few at a time, for ever.
    pub async fn sweep(&self) -> ! {
        let mut ticks = tokio::time::interval(SWEEP_EVERY / SHARDS as u32);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut shard = 0;
        loop {
            if self.is_empty() {
                tokio::time::sleep(SWEEP_EVERY).await;
            }
            ticks.tick().await;
            self.sweep_shard(shard).await;
            shard = (shard + 1) % SHARDS;
        }
    }

    async fn sweep_shard(&self, shard: usize) {
        let mut left = self.shards[shard].lock().counters.len();
        while left > 0 {
            let now = self.clock.now();
            let removed = self.shards[shard].lock().sweep(SWEEP_AT_ONCE, now);
            self.count(0, removed);
            left = left.saturating_sub(SWEEP_AT_ONCE);
            tokio::task::yield_now().await;
        }
    }

    fn count(&self, added: usize, removed: usize) {
        if added != removed {
            self.counters.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
        }
    }

    fn name(&self, key: &Key) -> Name {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(key.as_str().as_bytes());
        Name(hasher.finish128().as_u128())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new(SystemClock)
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    async fn check(&self, checks: &[Check], _: Instant) -> Result<Vec<Verdict>, StoreError> {
        Ok(self.decide(checks))
    }
}

impl Shard {
    /// Looks at the next few counters, removes those that have expired, and tells how many.
    fn sweep(&mut self, most: usize, now: u64) -> usize {
        let mut removed = 0;
        for _ in 0..most.min(self.counters.len()) {
            if self.hand >= self.counters.len() {
                self.hand = 0;
            }
            match self.counters.get_index(self.hand) {
                Some((_, counter)) if counter.expires_at <= now => {
                    self.counters.swap_remove_index(self.hand);
                    removed += 1;
                }
                _ => self.hand += 1,
            }
        }
        // Room that a burst of counters left behind is given back once most of it is empty.
        if removed > 0 && self.counters.capacity() > 64 && self.counters.len() < self.counters.capacity() / 4 {
            self.counters.shrink_to(self.counters.len() * 2);
        }
        removed
    }
}

/// The hash of a counter's name: 128 bits under a secret key stand for the name itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name(u128);

impl Name {
    fn shard(self) -> usize {
        (self.0 >> 64) as usize % SHARDS
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0 as u64);
    }
}

/// Takes a [`Name`] as it is: it is a hash already.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a name hashes as one u64");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::algorithm::{Algorithm, Limit, Options};
    use crate::descriptor::{Hits, Role};

    #[derive(Clone, Default)]
    struct HandClock(Arc<AtomicU64>);

    impl Clock for HandClock {
        fn now(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn check(domain: &str) -> Check {
        let limit = Limit::new(Algorithm::SlidingWindow, 5, Duration::from_secs(1), Options::default()).unwrap();
        let key = Key::new("", domain, &[], |_| None, &limit);
        Check { key, limit, hits: Hits::take(1).unwrap(), role: Role::Enforced, descriptor: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn expired_counters_leave_and_live_ones_stay() {
        let clock = HandClock::default();
        clock.0.store(1_000_000, Ordering::Relaxed);
        let store = MemoryStore::new(clock.clone());
        for i in 0..100_000 {
            store.decide(&[check(&format!("old{i}"))]);
        }
        assert_eq!(store.len(), 100_000);
        clock.0.store(1_002_000, Ordering::Relaxed);
        for i in 0..100 {
            store.decide(&[check(&format!("new{i}"))]);
        }
        let _ = tokio::time::timeout(SWEEP_EVERY * 2, store.sweep()).await;
        assert_eq!(store.len(), 100);
        let capacity: usize = store.shards.iter().map(|shard| shard.lock().counters.capacity()).sum();
        assert!(capacity < 20_000, "room for {capacity} counters is still held");
    }

    #[test]
    fn requests_alone_sweep_too() {
        let clock = HandClock::default();
        let store = MemoryStore::new(clock.clone());
        for second in 0..100 {
            clock.0.store(second * 1_000, Ordering::Relaxed);
            for i in 0..1_000 {
                store.decide(&[check(&format!("{second}/{i}"))]);
            }
        }
        assert!(store.len() < 10_000, "{} counters are left of a hundred thousand", store.len());
    }
}
