//! Counters in this process's memory: as exact as in Redis, for one process, until it ends.
//!
//! Counters are spread over shards, each behind its own lock. A request locks the shards of its counters in ascending
//! order, decides, and lets go. Expired counters are garbage: every request sweeps a few of its shard's, and
//! [`MemoryStore::sweep`] sweeps the idle shards, a few at a time, so that nobody ever waits for a full pass. What they
//! leave behind is kept for the next ones, and [`MemoryStore::sweep`] alone returns to the allocator what no counter
//! needs for a second: a decision should not pay for what the system does about memory.
//!
//! What all counters take is bounded. At the bound the counters that are there go on, and a request that needs a new
//! one, or a longer one, fails with [`StoreError::Full`]: to forget others for it would open limits that are used up,
//! just when somebody invents names.

mod available;
mod shard;
mod usage;

use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};
use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::usage::{MemoryPages, Scope};
use super::{Check, CheckVerdict, Key, Store, StoreError, Verdicts, group};
use crate::algorithm::{Effect, Outcome, State};
use crate::usage::Added;
use crate::usage::page::Page;
use shard::{COUNTER_BYTES, Name, PAGE_BYTES, Shard, Swept};
use usage::Pages;

/// Enough that cores seldom meet at one.
const SHARDS: usize = 256;
/// How many counters a request looks at for expiry.
const SWEEP_PER_CHECK: usize = 2;
/// How many counters [`MemoryStore::sweep`] looks at under one lock: some microseconds.
const SWEEP_AT_ONCE: usize = 256;
/// How long one pass of [`MemoryStore::sweep`] over all counters takes.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How many bytes [`MemoryStore::sweep`] returns to the allocator for each shard, on average: 16 MiB in a pass.
/// mimalloc hands to the system at one go what became free within a second, on a thread that frees or fills one of its
/// pages. Mostly that is the sweep's, but it may be one that decides, and each MiB takes it some fifth of a
/// millisecond.
const RETURNED_AT_ONCE: usize = (16 << 20) / SHARDS;

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

/// A clock that stands still until somebody sets it: where requests are decided later than they came.
#[derive(Clone, Debug, Default)]
pub struct GivenClock(Arc<AtomicU64>);

impl GivenClock {
    /// It is so late, in milliseconds since the Unix epoch.
    pub fn set(&self, now_ms: u64) {
        self.0.store(now_ms, Ordering::Relaxed);
    }
}

impl Clock for GivenClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The embedded store.
#[derive(Debug)]
pub struct MemoryStore<C = SystemClock> {
    shards: Box<[Mutex<Shard>]>,
    /// Hashes names with a key that nobody outside knows, so that nobody can make two names meet.
    hash_key: [u8; 16],
    clock: C,
    /// What all counters may take, in bytes.
    most_bytes: usize,
    /// What they take.
    bytes: AtomicUsize,
    /// How many counters there are.
    counters: AtomicUsize,
    /// What they were used, where that is kept.
    usage: Option<Mutex<Pages>>,
}

/// What a decision or a sweep does to the sums.
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
    /// An empty store on this clock, whose counters may take so many bytes.
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

    /// The same that also keeps what counters are used, within the same bytes.
    #[must_use]
    pub fn keeping_usage(self) -> Self {
        MemoryStore { usage: Some(Mutex::default()), ..self }
    }

    /// Decides at once; see [`Store::check`].
    ///
    /// # Errors
    /// [`StoreError::Full`] where there is no room for what the request needs; nothing of it is charged then.
    pub fn decide<K: Borrow<Check>>(&self, checks: &[K]) -> Result<Verdicts, StoreError> {
        if let [check] = checks
            && check.borrow().counters() == 1
            && (check.borrow().recorded.is_none() || self.usage.is_none())
        {
            return Ok(smallvec![Some(self.decide_alone(check.borrow())?)]);
        }
        let names: SmallVec<[Name; 8]> = group::keys(checks).map(|key| self.name(key)).collect();
        let mut shards: SmallVec<[usize; 8]> = names.iter().map(|name| shard_of(*name)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: SmallVec<[MutexGuard<'_, Shard>; 8]> =
            shards.iter().map(|shard| self.shards[*shard].lock()).collect();
        // One guard for each shard, in the same order.
        let place = |name: &Name| shards.partition_point(|shard| *shard < shard_of(*name));
        // Read under the locks: the next request of these counters reads no earlier time.
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
            && self.record(checks, &verdicts, now, &mut sums);
        if has_room {
            for (i, effect) in effects {
                locked[place(&names[i])].apply(names[i], effect, now, &mut sums);
            }
        }
        drop(locked);
        self.count(&sums);
        if has_room { Ok(verdicts) } else { Err(StoreError::Full) }
    }

    /// The same for one counter: one name, one lock, one look-up.
    fn decide_alone(&self, check: &Check) -> Result<CheckVerdict, StoreError> {
        let name = self.name(&check.key);
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
        if has_room {
            Ok(CheckVerdict { own: verdict, ban: None, is_known: false, at_ms: now })
        } else {
            Err(StoreError::Full)
        }
    }

    /// Adds to the records of the checks what these verdicts mean for them. `false`: there is no room for that, and
    /// nothing is added.
    fn record<K: Borrow<Check>>(&self, checks: &[K], verdicts: &Verdicts, now: u64, sums: &mut Sums) -> bool {
        let Some(usage) = &self.usage else { return true };
        let added = group::added(checks, verdicts, now);
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
        // What another thread has done to the pages may not be in the sum yet.
        let others = self.bytes.load(Ordering::Relaxed).saturating_sub(before);
        // And for a counter, which is new where the first record is.
        let has_room = needed == 0 || others + pages.bytes() + needed + COUNTER_BYTES <= self.most_bytes;
        if has_room {
            records.into_iter().for_each(|(page, recorded, added)| pages.add(page, recorded, added, now));
        }
        sums.grown += pages.bytes();
        sums.shrunk += before;
        has_room
    }

    /// There is room for what a counter becomes, or it needs no more than it has.
    fn has_room(&self, effect: &Effect, state: Option<&State>) -> bool {
        let Effect::Changed { change, .. } = effect else { return true };
        self.bytes.load(Ordering::Relaxed) + COUNTER_BYTES <= self.most_bytes
            || state.is_some_and(|state| change.heap_bytes() <= state.heap_bytes())
    }

    /// About what all counters take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many counters there are.
    pub fn len(&self) -> usize {
        self.counters.load(Ordering::Relaxed)
    }

    /// Whether there is no counter at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sweeps expired counters out, a few at a time, and returns their memory, for ever.
    pub async fn sweep(&self) -> ! {
        let mut ticks = tokio::time::interval(SWEEP_EVERY / SHARDS as u32);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut shard = 0;
        // What was returned faster than it should be, and how many shards in a row had nothing.
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

    /// Frees what a shard has not needed for a pass, and returns how many bytes of it.
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

/// What counters may take where nobody says: half of the memory that the process may use; without bound where the
/// system does not tell.
pub fn default_bytes() -> usize {
    available::available_memory().map_or(usize::MAX, |bytes| usize::try_from(bytes / 2).unwrap_or(usize::MAX))
}

impl Default for MemoryStore {
    /// On the host's clock, without bound.
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
        self.usage.as_ref().map_or((Vec::new(), None), |usage| usage.lock().read(scope, place, about))
    }

    fn now(&self) -> u64 {
        self.clock.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Ask, Limit, Options};
    use crate::store::Origin;

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
            // The tick with which it begins is at once, so that there may be one more.
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
        // A log that is there takes no more either.
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
