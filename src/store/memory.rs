//! Counters in this process's memory: as exact as in Redis, for one process, until it ends.
//!
//! Counters are spread over shards, each behind its own lock. A request locks the shards of its counters in ascending order,
//! decides, and lets go. Expired counters are garbage: every request sweeps a few of its shard's, and [`MemoryStore::sweep`]
//! sweeps the idle shards, a few at a time, so that nobody ever waits for a full pass. What they leave behind is kept for the next ones, and what nobody
//! needs for a second is given back by [`MemoryStore::sweep`] alone: a decision should not pay for
//! what the system does about memory.

mod shard;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};
use smallvec::{SmallVec, smallvec};

use super::{Check, Key, Store, StoreError, Verdicts, group};
use crate::algorithm::{Outcome, State, Verdict};
use shard::{Name, PAGE_BYTES, Shard};

/// Enough that cores seldom meet at one.
const SHARDS: usize = 256;
/// How many counters a request looks at for expiry.
const SWEEP_PER_CHECK: usize = 2;
/// How many counters [`MemoryStore::sweep`] looks at under one lock: some microseconds.
const SWEEP_AT_ONCE: usize = 256;
/// How long one pass of [`MemoryStore::sweep`] over all counters takes.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How many bytes [`MemoryStore::sweep`] gives back to the allocator for each shard, on average: 16 MiB in a pass. mimalloc hands to the system
/// at one go what became free within a second, on a thread that frees or fills one of its pages. Mostly that is the sweep's, but it may be one that
/// decides, and each MiB takes it some fifth of a millisecond.
const GIVE_BACK: usize = (16 << 20) / SHARDS;

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
    pub fn decide(&self, checks: &[Check]) -> Verdicts {
        if let [check] = checks {
            return smallvec![self.decide_alone(check)];
        }
        let names: SmallVec<[Name; 8]> = checks.iter().map(|check| self.name(&check.key)).collect();
        let mut shards: SmallVec<[usize; 8]> = names.iter().map(|name| shard_of(*name)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: SmallVec<[MutexGuard<'_, Shard>; 8]> =
            shards.iter().map(|shard| self.shards[*shard].lock()).collect();
        // One guard for each shard, in the same order.
        let place = |name: &Name| shards.partition_point(|shard| *shard < shard_of(*name));
        // Read under the locks: whoever comes next to these counters reads no earlier time.
        let now = self.clock.now();

        let state = |i: usize| {
            let shard = &locked[place(&names[i])];
            shard.find(names[i]).map(|place| &shard.at(place).state)
        };
        let (verdicts, changes) = group::decide(checks, now, state);

        let (mut added, mut removed) = (0, 0);
        let mut emptied = Vec::new();
        for (i, change, reset_after_ms) in changes {
            let shard = &mut locked[place(&names[i])];
            if reset_after_ms == 0 {
                emptied.push(i);
            }
            match shard.find(names[i]) {
                Some(place) => shard.at_mut(place).alter(change, now + reset_after_ms),
                None => {
                    shard.add(names[i], State::begin(change), now + reset_after_ms);
                    added += 1;
                }
            }
        }
        // As fresh ones they need not be kept, unless a later check has taken of them.
        for i in emptied {
            let shard = &mut locked[place(&names[i])];
            if let Some(place) = shard.find(names[i]).filter(|place| shard.at(*place).expires_at <= now) {
                shard.remove(place);
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

    /// The same for one check: one name, one lock, one look-up.
    fn decide_alone(&self, check: &Check) -> Verdict {
        let name = self.name(&check.key);
        let mut shard = self.shards[shard_of(name)].lock();
        let now = self.clock.now();
        let (mut added, mut removed) = (0, 0);
        let found = shard.find(name);
        let state = found.map(|place| &shard.at(place).state);
        let Outcome { change, verdict } = group::decide_alone(check, now, state);
        match (found, change, verdict.reset_after_ms) {
            // As a fresh one it need not be kept.
            (Some(place), Some(_), 0) => {
                shard.remove(place);
                removed += 1;
            }
            (Some(place), Some(change), reset_after_ms) => shard.at_mut(place).alter(change, now + reset_after_ms),
            (None, Some(change), reset_after_ms @ 1..) => {
                shard.add(name, State::begin(change), now + reset_after_ms);
                added += 1;
            }
            (None, Some(_), 0) | (_, None, _) => {}
        }
        removed += shard.sweep(SWEEP_PER_CHECK, now);
        drop(shard);
        self.count(added, removed);
        verdict
    }

    /// How many counters there are.
    pub fn len(&self) -> usize {
        self.counters.load(Ordering::Relaxed)
    }

    /// Whether there is no counter at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sweeps expired counters out, a few at a time, and gives their room back, for ever.
    pub async fn sweep(&self) -> ! {
        let mut ticks = tokio::time::interval(SWEEP_EVERY / SHARDS as u32);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut shard = 0;
        // What has been given back faster than it should be, and how many shards in a row had nothing.
        let (mut ahead, mut tidy) = (0_usize, 0);
        loop {
            if self.is_empty() && tidy >= SHARDS {
                tokio::time::sleep(SWEEP_EVERY).await;
            }
            ticks.tick().await;
            self.sweep_shard(shard).await;
            ahead = ahead.saturating_sub(GIVE_BACK);
            if ahead == 0 {
                ahead = self.give_back(shard);
                tidy = if ahead == 0 { tidy + 1 } else { 0 };
            }
            shard = (shard + 1) % SHARDS;
        }
    }

    async fn sweep_shard(&self, shard: usize) {
        let mut left = self.shards[shard].lock().len();
        while left > 0 {
            let now = self.clock.now();
            let removed = self.shards[shard].lock().sweep(SWEEP_AT_ONCE, now);
            self.count(0, removed);
            left = left.saturating_sub(SWEEP_AT_ONCE);
            tokio::task::yield_now().await;
        }
    }

    /// Frees what a shard has not needed for a pass, and tells how many bytes of it.
    fn give_back(&self, shard: usize) -> usize {
        let mut shard = self.shards[shard].lock();
        let table = shard.shrink();
        let pages = shard.unneeded(GIVE_BACK / PAGE_BYTES);
        drop(shard);
        table + pages.len() * PAGE_BYTES
    }

    fn count(&self, added: usize, removed: usize) {
        if added != removed {
            self.counters.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
        }
    }

    fn name(&self, key: &Key) -> Name {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(key.as_str().as_bytes());
        let Hash128 { h1, h2 } = hasher.finish128();
        Name { high: h1, low: h2 }
    }
}

fn shard_of(name: Name) -> usize {
    name.high as usize % SHARDS
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new(SystemClock)
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    async fn check(&self, checks: &[Check], _: Instant) -> Result<Verdicts, StoreError> {
        Ok(self.decide(checks))
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
        Check { key, limit, hits: Hits::take(1).unwrap(), role: Role::Enforced, descriptor: 0, lease: None }
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
        let passes = async |passes| tokio::time::timeout(SWEEP_EVERY * passes, store.sweep()).await;
        let _ = passes(2).await;
        assert_eq!(store.len(), 100);
        let _ = passes(2).await;
        let capacity: usize = store.shards.iter().map(|shard| shard.lock().capacity()).sum();
        assert!(capacity < 20_000, "room for {capacity} counters is still held");
    }

    #[tokio::test(start_paused = true)]
    async fn the_room_of_a_crowd_goes_back_a_little_at_a_time() {
        let clock = HandClock::default();
        let store = MemoryStore::new(clock.clone());
        for i in 0..500_000 {
            store.decide(&[check(&format!("crowd{i}"))]);
        }
        clock.0.store(2_000, Ordering::Relaxed);
        let held = || -> usize { store.shards.iter().map(|shard| shard.lock().bytes()).sum() };
        let (mut before, mut passes) = (held(), 0);
        assert!(before > 40 << 20, "a crowd of {before} bytes is too small to show it");
        while before > 1 << 20 {
            let _ = tokio::time::timeout(SWEEP_EVERY, store.sweep()).await;
            let after = held();
            // The tick with which it begins is at once, so that there may be one more.
            assert!(before - after <= (SHARDS + 1) * GIVE_BACK, "{} bytes went at once", before - after);
            (before, passes) = (after, passes + 1);
            assert!(passes < 10, "{before} bytes are still held");
        }
        assert!(store.is_empty());
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
