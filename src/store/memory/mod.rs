//! Counters in this process's memory: as exact as in Redis, but for one process, and only until it ends.
//!
//! Counters are spread over shards, each behind its own lock. A request locks the shards of its counters in ascending
//! order, decides, and unlocks them. Expired counters are garbage. Every request sweeps a few counters of its shard,
//! and [`MemoryStore::sweep`] sweeps the idle shards, a few counters at a time, so no request ever waits for a full
//! pass. The freed memory is kept for new counters. Only [`MemoryStore::sweep`] returns memory to the allocator, after
//! no counter has needed it for a second, to keep the system's memory management out of decisions.
//!
//! The memory of all counters is bounded. At the bound, existing counters continue to work, and a request that needs a
//! new or larger counter fails with [`StoreError::Full`]. Evicting other counters instead would open limits that are
//! used up, just when an attacker invents keys.

mod available;
mod dues;
mod shard;
mod usage;

use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher as _};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};
use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::Store;
use crate::engine::algorithm::{Effect, Outcome, State};
use crate::engine::check::group::{self, Effects};
use crate::engine::check::{Check, CheckVerdict, Key, StoreError, Verdicts};
use crate::engine::clock::Clock;
use crate::engine::usage::Added;
use crate::engine::usage::page::{Page, Scope};
use shard::{COUNTER_BYTES, PAGE_BYTES, Shard, Swept};
use usage::Pages;

pub use shard::Name;
pub use usage::MemoryPages;

/// Number of shards: enough that cores seldom wait for the same lock.
const SHARDS: usize = 256;
/// Number of counters that each request checks for expiry.
const SWEEP_PER_CHECK: usize = 2;
/// Number of counters that [`MemoryStore::sweep`] checks under one lock: some microseconds.
const SWEEP_AT_ONCE: usize = 256;
/// Duration of one pass of [`MemoryStore::sweep`] over all counters.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Average number of bytes per shard that [`MemoryStore::sweep`] returns to the allocator: 16 MiB in a pass. mimalloc
/// returns everything that was freed within a second to the system at once, on a thread that frees or fills one of its
/// pages. That is usually the sweep's thread, but it may be one that decides, and each MiB delays it by about a fifth
/// of a millisecond.
const RETURNED_AT_ONCE: usize = (16 << 20) / SHARDS;

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
    /// The secret key of the hash of names, which prevents clients from choosing names that collide.
    hash_key: [u8; 16],
    clock: C,
    /// The most memory that all counters may take, in bytes.
    most_bytes: usize,
    /// The memory that all counters take, in bytes.
    bytes: AtomicUsize,
    /// Number of counters.
    counters: AtomicUsize,
    /// Usage records, if they are kept.
    usage: Option<Mutex<Pages>>,
}

/// Changes to the totals by a decision or a sweep.
#[derive(Debug, Default)]
struct Sums {
    added: usize,
    removed: usize,
    grown: usize,
    shrunk: usize,
}

impl Sums {
    fn add(&mut self, bytes: usize) {
        self.added += 1;
        self.grown += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.removed += 1;
        self.shrunk += bytes;
    }

    fn sweep(&mut self, swept: Swept) {
        self.removed += swept.counters;
        self.shrunk += swept.bytes;
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Returns an empty store on this clock with room for this many bytes of counters.
    pub fn new(clock: C, most_bytes: usize) -> Self {
        let random = RandomState::new();
        let mut hash_key = [0; 16];
        for (half, part) in hash_key.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&random.hash_one(half).to_le_bytes());
        }
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let (bytes, counters) = (AtomicUsize::new(0), AtomicUsize::new(0));
        MemoryStore { shards, hash_key, clock, most_bytes, bytes, counters, usage: None }
    }

    /// Returns an empty store on the same clock, with the same bound and the same [`MemoryStore::name`] of each
    /// counter.
    pub fn sibling(&self) -> Self
    where
        C: Clone,
    {
        MemoryStore { hash_key: self.hash_key, ..MemoryStore::new(self.clock.clone(), self.most_bytes) }
    }

    /// Returns the store with usage records, which share its room.
    #[must_use]
    pub fn keeping_usage(self) -> Self {
        MemoryStore { usage: Some(Mutex::default()), ..self }
    }

    /// Decides immediately; see [`Store::check`].
    ///
    /// # Errors
    /// [`StoreError::Full`] if there is no room for what the request needs. Nothing of it is charged then.
    pub fn decide<K: Borrow<Check>>(&self, checks: &[K]) -> Result<Verdicts, StoreError> {
        if let [check] = checks
            && check.borrow().counters() == 1
        {
            return self.decide_named(checks, &[self.name(&check.borrow().key)]);
        }
        let names: SmallVec<[Name; 8]> = group::keys(checks).map(|key| self.name(key)).collect();
        self.decide_named(checks, &names)
    }

    /// Decides like [`MemoryStore::decide`]. `names` are [`MemoryStore::name`] of the group's counters, in the order of
    /// [`group::keys`].
    ///
    /// # Errors
    /// As [`MemoryStore::decide`].
    pub fn decide_named<K: Borrow<Check>>(&self, checks: &[K], names: &[Name]) -> Result<Verdicts, StoreError> {
        if let ([check], [name]) = (checks, names)
            && (check.borrow().recorded.is_none() || self.usage.is_none())
        {
            return Ok(smallvec![Some(self.decide_alone(check.borrow(), *name)?)]);
        }
        let mut shards: SmallVec<[usize; 8]> = names.iter().map(|name| shard_of(*name)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: SmallVec<[MutexGuard<'_, Shard>; 8]> =
            shards.iter().map(|shard| self.shards[*shard].lock()).collect();
        // One guard for each shard, in the same order.
        let place = |name: &Name| shards.partition_point(|shard| *shard < shard_of(*name));
        // Read under the locks, so the next request of these counters cannot read an earlier time.
        let now = self.clock.now();
        let mut sums = Sums::default();
        for shard in &mut locked {
            sums.sweep(shard.sweep(SWEEP_PER_CHECK, now));
        }

        let state = |i: usize| {
            let shard = &locked[place(&names[i])];
            shard.find(names[i]).map(|place| &shard.at(place).state)
        };
        let (verdicts, effects) = group::decide(checks, now, state);
        let has_room = effects.iter().all(|(i, effect)| self.has_room(effect, state(*i)))
            && self.record(checks, (&verdicts, &effects), now, &mut sums);
        if has_room {
            for (i, effect) in effects {
                locked[place(&names[i])].apply(names[i], effect, now, &mut sums);
            }
        }
        drop(locked);
        self.count(&sums);
        if has_room { Ok(verdicts) } else { Err(StoreError::Full) }
    }

    /// Fetches these counters into the processor's caches, without effect on decisions. The owner of a store with many
    /// counters calls this before it decides several requests: the processor then waits for the memory of all of them
    /// together.
    pub fn fetch(&mut self, names: &[Name]) {
        let now = self.clock.now();
        // No lock is needed, and an instruction that locks would keep the processor from looking ahead.
        let times = names.iter().map(|name| {
            let shard = self.shards[shard_of(*name)].get_mut();
            let found = shard.find(*name).map_or(0, |place| shard.at(place).expires_at());
            found ^ shard.next_due(now).unwrap_or(0)
        });
        // The value keeps the compiler from removing the look-ups.
        black_box(times.fold(0, |all, time| all ^ time));
    }

    /// Decides a check of one counter: one lock, one look-up.
    fn decide_alone(&self, check: &Check, name: Name) -> Result<CheckVerdict, StoreError> {
        let mut shard = self.shards[shard_of(name)].lock();
        let now = self.clock.now();
        let mut sums = Sums::default();
        sums.sweep(shard.sweep(SWEEP_PER_CHECK, now));
        let found = shard.find(name);
        let state = found.map(|place| &shard.at(place).state);
        let Outcome { effect, verdict } = group::decide_alone(check, now, state);
        let has_room = self.has_room(&effect, state);
        if has_room {
            shard.apply_at(found, name, effect, now, &mut sums);
        }
        drop(shard);
        self.count(&sums);
        if has_room { Ok(CheckVerdict::new(verdict, now)) } else { Err(StoreError::Full) }
    }

    /// Adds these verdicts to the records of the checks. Returns `false` and adds nothing if there is no room.
    fn record<K: Borrow<Check>>(
        &self,
        checks: &[K],
        decided: (&Verdicts, &Effects),
        now: u64,
        sums: &mut Sums,
    ) -> bool {
        let Some(usage) = &self.usage else { return true };
        let added = group::added(checks, decided, now);
        if added.is_empty() {
            return true;
        }
        let mut pages = usage.lock();
        let of_check = |(place, added): &(usize, Added)| {
            let check: &Check = checks[*place].borrow();
            let recorded = check.recorded.as_ref()?;
            Some((check.key.of_page(recorded.usage.period(), now), recorded, *added))
        };
        let records: Vec<_> = added.iter().filter_map(of_check).collect();
        let before = pages.bytes();
        pages.sweep(SWEEP_PER_CHECK, now);
        let needed: usize = records.iter().map(|(page, recorded, added)| pages.needed(page, recorded, *added)).sum();
        // The total may not include yet what another thread has done to the pages.
        let others = self.bytes.load(Ordering::Relaxed).saturating_sub(before);
        // Includes a counter, since the first record may come with a new one.
        let has_room = needed == 0 || others + pages.bytes() + needed + COUNTER_BYTES <= self.most_bytes;
        if has_room {
            records.into_iter().for_each(|(page, recorded, added)| pages.add(page, recorded, added, now));
        }
        sums.grown += pages.bytes();
        sums.shrunk += before;
        has_room
    }

    /// Returns whether there is room for the changed counter, or the change needs no more memory.
    fn has_room(&self, effect: &Effect, state: Option<&State>) -> bool {
        let Effect::Changed { change, .. } = effect else { return true };
        self.bytes.load(Ordering::Relaxed) + COUNTER_BYTES <= self.most_bytes
            || state.is_some_and(|state| change.heap_bytes() <= state.heap_bytes())
    }

    /// Returns the approximate memory of all counters, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of counters.
    pub fn len(&self) -> usize {
        self.counters.load(Ordering::Relaxed)
    }

    /// Returns whether the store has no counters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes expired counters, a few at a time, and returns unneeded memory to the allocator. Never returns.
    pub async fn sweep(&self) -> ! {
        let mut ticks = tokio::time::interval(SWEEP_EVERY / SHARDS as u32);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut shard = 0;
        // Bytes returned ahead of the permitted rate, and the number of consecutive shards with nothing to return.
        let (mut ahead, mut tidy) = (0_usize, 0);
        loop {
            if self.is_empty() && tidy >= SHARDS {
                tokio::time::sleep(SWEEP_EVERY).await;
            }
            ticks.tick().await;
            self.sweep_shard(shard).await;
            ahead = ahead.saturating_sub(RETURNED_AT_ONCE);
            if ahead == 0 {
                ahead = self.return_unneeded(shard);
                tidy = if ahead == 0 { tidy + 1 } else { 0 };
            }
            shard = (shard + 1) % SHARDS;
        }
    }

    async fn sweep_shard(&self, shard: usize) {
        if let Some(usage) = &self.usage {
            let mut pages = usage.lock();
            let before = pages.bytes();
            pages.sweep(SWEEP_AT_ONCE, self.clock.now());
            let sums = Sums { grown: pages.bytes(), shrunk: before, ..Sums::default() };
            drop(pages);
            self.count(&sums);
        }
        loop {
            let now = self.clock.now();
            let swept = self.shards[shard].lock().sweep(SWEEP_AT_ONCE, now);
            let mut sums = Sums::default();
            sums.sweep(swept);
            self.count(&sums);
            if swept.is_done {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Frees memory that a shard has not needed for a pass, and returns the number of bytes.
    fn return_unneeded(&self, shard: usize) -> usize {
        let mut shard = self.shards[shard].lock();
        let table = shard.shrink();
        let pages = shard.unneeded(RETURNED_AT_ONCE / PAGE_BYTES);
        drop(shard);
        table + pages.len() * PAGE_BYTES
    }

    fn count(&self, Sums { added, removed, grown, shrunk }: &Sums) {
        if added != removed {
            self.counters.fetch_add(added.wrapping_sub(*removed), Ordering::Relaxed);
        }
        if grown != shrunk {
            self.bytes.fetch_add(grown.wrapping_sub(*shrunk), Ordering::Relaxed);
        }
    }

    /// Returns the hash that this store has in place of a counter's name. Collisions are practically impossible.
    pub fn name(&self, key: &Key) -> Name {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(key.as_str().as_bytes());
        let Hash128 { h1, h2 } = hasher.finish128();
        Name { high: h1, low: h2 }
    }
}

fn shard_of(name: Name) -> usize {
    name.high as usize % SHARDS
}

/// Returns the default bound on the memory of counters: half of the memory that the process may use, or no bound if the
/// system does not report that.
pub fn default_bytes() -> usize {
    available::available_memory().map_or(usize::MAX, |bytes| usize::try_from(bytes / 2).unwrap_or(usize::MAX))
}

impl Default for MemoryStore {
    /// Returns a store on the host's clock, without a bound.
    fn default() -> Self {
        MemoryStore::new(SystemClock, usize::MAX)
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    async fn check<K: Borrow<Check> + Sync>(&self, checks: &[K], _: Instant) -> Result<Verdicts, StoreError> {
        self.decide(checks)
    }
}

impl<C: Clock> MemoryPages for MemoryStore<C> {
    fn pages(&self, scope: &Scope<'_>, place: u64, about: usize) -> (Vec<Page>, Option<u64>) {
        self.usage.as_ref().map_or((Vec::new(), None), |usage| Pages::read(usage, scope, place, about))
    }

    fn page(&self, name: &str) -> Option<Page> {
        self.usage.as_ref()?.lock().named(name)
    }

    fn now(&self) -> u64 {
        self.clock.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::{Algorithm, Ask, Limit, Options};
    use crate::engine::check::Origin;
    use crate::engine::clock::GivenClock;

    fn check(domain: &str) -> Check {
        let limit = Limit::new(Algorithm::SlidingWindow, 5, Duration::from_secs(1), Options::default()).unwrap();
        Check::new(Key::new("", domain, &[], |_| None, &limit, Origin::Rule), limit, Ask::Take(1))
    }

    #[tokio::test(start_paused = true)]
    async fn expired_counters_leave_and_live_ones_stay() {
        let clock = GivenClock::default();
        clock.set(1_000_000);
        let store = MemoryStore::new(clock.clone(), usize::MAX);
        for i in 0..100_000 {
            store.decide(&[check(&format!("old{i}"))]).unwrap();
        }
        assert_eq!(store.len(), 100_000);
        clock.set(1_004_000);
        for i in 0..100 {
            store.decide(&[check(&format!("new{i}"))]).unwrap();
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
        let clock = GivenClock::default();
        let store = MemoryStore::new(clock.clone(), usize::MAX);
        for i in 0..500_000 {
            store.decide(&[check(&format!("crowd{i}"))]).unwrap();
        }
        clock.set(4_000);
        let held = || -> usize { store.shards.iter().map(|shard| shard.lock().bytes()).sum() };
        let (mut before, mut passes) = (held(), 0);
        assert!(before > 40 << 20, "a crowd of {before} bytes is too small to show it");
        while before > 1 << 20 {
            let _ = tokio::time::timeout(SWEEP_EVERY, store.sweep()).await;
            let after = held();
            // The sweep's first tick comes at once, so there may be one more.
            assert!(before - after <= (SHARDS + 1) * RETURNED_AT_ONCE, "{} bytes went at once", before - after);
            (before, passes) = (after, passes + 1);
            assert!(passes < 10, "{before} bytes are still held");
        }
        assert!(store.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn at_its_bound_it_takes_no_new_counter_and_the_others_go_on() {
        let clock = GivenClock::default();
        let store = MemoryStore::new(clock.clone(), 100 * COUNTER_BYTES);
        let one = |name: &str| store.decide(&[check(name)]).map(|verdicts| verdicts[0].unwrap().own.remaining);
        for i in 0..100 {
            assert_eq!(one(&format!("user{i}")).unwrap(), 4);
        }
        assert_eq!((store.len(), store.bytes()), (100, 100 * COUNTER_BYTES));
        assert!(matches!(one("late"), Err(StoreError::Full)));
        assert_eq!(one("user7").unwrap(), 3);
        let both = [check("user7"), check("late")];
        assert!(matches!(store.decide(&both), Err(StoreError::Full)));
        assert_eq!(one("user7").unwrap(), 2, "nothing of it is charged");
        // An existing log cannot grow either.
        let limit = Limit::new(Algorithm::SlidingLog, 1_000, Duration::from_secs(1), Options::default()).unwrap();
        let log = MemoryStore::new(clock.clone(), 3 * COUNTER_BYTES);
        let log_check = [Check::new(check("log").key, limit, Ask::Take(1))];
        let kept = (0..1_000).take_while(|ms| {
            clock.set(*ms);
            log.decide(&log_check).is_ok()
        });
        assert!((2..100).contains(&kept.count()));

        clock.set(4_000);
        let _ = tokio::time::timeout(SWEEP_EVERY * 2, store.sweep()).await;
        assert_eq!((store.len(), store.bytes()), (0, 0));
        assert_eq!(one("late").unwrap(), 4);
    }

    #[test]
    fn requests_alone_sweep_too() {
        let clock = GivenClock::default();
        let store = MemoryStore::new(clock.clone(), usize::MAX);
        for second in 0..100 {
            clock.set(second * 1_000);
            for i in 0..1_000 {
                store.decide(&[check(&format!("{second}/{i}"))]).unwrap();
            }
        }
        assert!(store.len() < 10_000, "{} counters are left of a hundred thousand", store.len());
    }
}
