//! The heaviest keys of a stream in bounded memory: the Randomized Admission Policy, in its eight-way variant (R. Ben
//! Basat, G. Einziger, R. Friedman, Y. Kassner: "Randomized admission policy for efficient top-k and frequency
//! estimation", INFOCOM 2017).
//!
//! Each key belongs to a bucket of eight counts. A key without a count may take over the smallest one. The probability
//! is the share of its hits in the sum of both keys' hits, and the count then continues from there. So the smallest
//! counts grow slowly under a flood of keys that come once, a heavy key is admitted soon, and counts are right on
//! average.
//!
//! We wrote this because none of the available crates (`heavykeeper` 0.7, `topk` 0.7, `flowstats` 0.1) lets counts age,
//! bounds the bytes of stored names, and supports several writers that do not wait.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// Number of keys that share a bucket.
pub(super) const WAYS: usize = 8;

/// Bytes of names that a bucket keeps. Beyond that, lighter keys lose their names.
pub(super) const NAME_BYTES: usize = 512;

/// Counts of the heaviest keys by 64-bit fingerprints.
pub(super) struct Sketch {
    buckets: Box<[Shared]>,
}

/// A bucket that many threads add to. A thread that finds it locked does not wait: it leaves its hits in the backlog.
/// Otherwise the hottest key, which most threads add to at once, would lose most of its hits.
struct Shared {
    bucket: Mutex<Bucket>,
    backlog: Backlog,
}

/// Hits that wait for the next thread that locks the bucket, of at most two keys. Each word has the last 40 bits of a
/// key's fingerprint and the number of its hits; 0 if it is free. Keys are admitted like those of a bucket: if the
/// system stops the thread that has the lock, the wait is long, and two light keys must not take the place of the
/// hottest one.
#[derive(Default)]
struct Backlog([AtomicU64; 2]);

/// The hits of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heavy {
    pub(super) print: u64,
    /// The name as far as it is kept; `None` if the key was not worth a name.
    pub(super) name: Option<Box<str>>,
    /// Approximate number of hits.
    pub(super) hits: u64,
    /// Lower bound of the number of hits.
    pub(super) at_least: u64,
}

/// The content of a sketch.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) heaviest: Vec<Heavy>,
    /// Hits of all keys.
    pub(super) total: u64,
    /// Whether there were keys without a count.
    pub(super) is_full: bool,
    /// The largest count that a key without a count had to compete with; 0 if all keys have a count.
    pub(super) floor: u64,
}

#[derive(Default)]
struct Bucket {
    prints: [u64; WAYS],
    /// 0 for a free count.
    hits: [u64; WAYS],
    /// The value that a count started with.
    inherited: [u64; WAYS],
    names: [Option<Box<str>>; WAYS],
    name_bytes: usize,
    total: u64,
    is_full: bool,
    owner: u32,
}

/// The owner of a sketch. Hits for another owner are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(pub(super) u32);

/// The outcome of adding a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    Counted,
    /// Not counted, because another thread holds the bucket, and heavier keys fill its backlog.
    Busy,
    /// Not counted, because the sketch has another owner by now.
    NotOwner,
}

impl Sketch {
    /// Creates a sketch with eight keys in each bucket. The number of buckets is rounded up to a power of two.
    pub(super) fn new(buckets: usize, owner: Owner) -> Sketch {
        let bucket = || Shared { bucket: Mutex::new(Bucket::of(owner)), backlog: Backlog::default() };
        Sketch { buckets: (0..buckets.next_power_of_two()).map(|_| bucket()).collect() }
    }

    /// Counts hits of a key. `name` is called only if the name is worth keeping.
    pub(super) fn add(&self, owner: Owner, print: u64, hits: u64, name: impl FnOnce() -> String) -> Added {
        let place = (print >> 40) as usize & (self.buckets.len() - 1);
        let shared = &self.buckets[place];
        match shared.try_lock() {
            None if shared.backlog.add(print, hits) => Added::Counted,
            None => Added::Busy,
            Some(bucket) if bucket.owner != owner.0 => Added::NotOwner,
            Some(mut bucket) => {
                bucket.add(print, hits, name);
                Added::Counted
            }
        }
    }

    /// Halves all counts, so older hits weigh less and less.
    pub(super) fn halve(&self) {
        self.buckets.iter().for_each(|bucket| bucket.lock().halve());
    }

    /// Empties the sketch and gives it to another owner.
    pub(super) fn give_to(&self, owner: Owner) {
        for bucket in &self.buckets {
            *bucket.lock() = Bucket::of(owner);
        }
    }

    /// Returns the hits of all keys.
    pub(super) fn total(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.lock().total).fold(0, u64::saturating_add)
    }

    /// Returns the present content.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for bucket in &self.buckets {
            let bucket = bucket.lock();
            counts.total = counts.total.saturating_add(bucket.total);
            counts.is_full |= bucket.is_full;
            counts.floor = counts.floor.max(bucket.floor());
            counts.heaviest.extend(bucket.heaviest());
        }
        counts
    }
}

impl Shared {
    fn try_lock(&self) -> Option<MutexGuard<'_, Bucket>> {
        self.bucket.try_lock().map(|bucket| self.settled(bucket))
    }

    fn lock(&self) -> MutexGuard<'_, Bucket> {
        self.settled(self.bucket.lock())
    }

    /// Counts the backlog.
    fn settled<'b>(&self, mut bucket: MutexGuard<'b, Bucket>) -> MutexGuard<'b, Bucket> {
        self.backlog.take(|print, hits| bucket.add_waiting(print, hits));
        bucket
    }
}

impl Backlog {
    const HITS_BITS: u32 = 24;
    const MOST_HITS: u64 = (1 << Backlog::HITS_BITS) - 1;

    /// Adds hits of a key. Returns whether they are counted. Where two other keys wait, the lighter one may lose its
    /// place and its hits.
    fn add(&self, print: u64, hits: u64) -> bool {
        let key = print << Backlog::HITS_BITS;
        let sum = |word: u64| {
            let is_of_key = word == 0 || word & !Backlog::MOST_HITS == key;
            let sum = (word & Backlog::MOST_HITS).saturating_add(hits);
            is_of_key.then(|| key | sum.min(Backlog::MOST_HITS))
        };
        self.0.iter().any(|word| word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok())
            || self.replace_lighter(key, hits.min(Backlog::MOST_HITS))
    }

    /// Gives a key the place of the lighter one. The probability is the share of its hits in the sum of both.
    fn replace_lighter(&self, key: u64, hits: u64) -> bool {
        let words = self.0.each_ref().map(|word| (word, word.load(Ordering::Relaxed)));
        let lighter = words.into_iter().min_by_key(|(_, word)| word & Backlog::MOST_HITS);
        lighter.is_some_and(|(place, word)| {
            let both = (word & Backlog::MOST_HITS) + hits;
            let is_admitted = both > 0 && fastrand::u64(..both) < hits;
            is_admitted && place.compare_exchange(word, key | hits, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes all hits, each with the last 40 bits of its key's fingerprint.
    fn take(&self, mut count: impl FnMut(u64, u64)) {
        for word in &self.0 {
            if word.load(Ordering::Relaxed) != 0 {
                let word = word.swap(0, Ordering::Relaxed);
                count(word >> Backlog::HITS_BITS, word & Backlog::MOST_HITS);
            }
        }
    }
}

impl Bucket {
    fn of(owner: Owner) -> Bucket {
        Bucket { owner: owner.0, ..Bucket::default() }
    }

    /// Counts hits from the backlog. A key without a count stays without one: it was not heavy when its hits came.
    fn add_waiting(&mut self, last_bits: u64, hits: u64) {
        self.total = self.total.saturating_add(hits);
        let is_of_key = |print: u64| print << Backlog::HITS_BITS >> Backlog::HITS_BITS == last_bits;
        if let Some(way) = (0..WAYS).find(|way| self.hits[*way] > 0 && is_of_key(self.prints[*way])) {
            self.hits[way] = self.hits[way].saturating_add(hits);
        }
    }

    fn add(&mut self, print: u64, hits: u64, name: impl FnOnce() -> String) {
        self.total = self.total.saturating_add(hits);
        let known = (0..WAYS).find(|way| self.prints[*way] == print && self.hits[*way] > 0);
        if let Some(way) = known {
            self.hits[way] = self.hits[way].saturating_add(hits);
            // A key that came twice is worth a name.
            if self.names[way].is_none() {
                self.keep_name(way, name().into());
            }
            return;
        }
        let least = (0..WAYS).min_by_key(|way| self.hits[*way]).unwrap_or(0);
        let before = self.hits[least];
        self.is_full |= before > 0;
        if before > 0 && fastrand::u64(..before.saturating_add(hits)) >= hits {
            return;
        }
        self.drop_name(least);
        (self.prints[least], self.hits[least], self.inherited[least]) = (print, before.saturating_add(hits), before);
        if before == 0 {
            self.keep_name(least, name().into());
        }
    }

    /// Keeps a name by dropping names of lighter keys. If heavier keys use all the room, the name is not kept for now.
    fn keep_name(&mut self, way: usize, name: Box<str>) {
        while self.name_bytes + name.len() > NAME_BYTES {
            let lighter = |other: &usize| self.names[*other].is_some() && self.hits[*other] < self.hits[way];
            match (0..WAYS).filter(lighter).min_by_key(|other| self.hits[*other]) {
                Some(lightest) => self.drop_name(lightest),
                None => return,
            }
        }
        self.name_bytes += name.len();
        self.names[way] = Some(name);
    }

    fn drop_name(&mut self, way: usize) {
        self.name_bytes -= mem::take(&mut self.names[way]).map_or(0, |name| name.len());
    }

    fn halve(&mut self) {
        self.total /= 2;
        for way in 0..WAYS {
            (self.hits[way], self.inherited[way]) = (self.hits[way] / 2, self.inherited[way] / 2);
            if self.hits[way] == 0 {
                self.drop_name(way);
            }
        }
        self.is_full &= !self.hits.contains(&0);
    }

    /// Returns the least count if there were keys without a count.
    fn floor(&self) -> u64 {
        if self.is_full { self.hits.iter().copied().min().unwrap_or(0) } else { 0 }
    }

    fn heaviest(&self) -> impl Iterator<Item = Heavy> {
        (0..WAYS).filter(|way| self.hits[*way] > 0).map(|way| Heavy {
            print: self.prints[way],
            name: self.names[way].clone(),
            hits: self.hits[way],
            at_least: self.hits[way] - self.inherited[way],
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

    use proptest::prelude::*;

    use super::*;

    const OWNER: Owner = Owner(1);

    fn print(key: u64) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(key)
    }

    /// Returns the keys that a sketch finds heaviest after this stream.
    fn heaviest(buckets: usize, stream: impl Iterator<Item = u64>, most: usize) -> Vec<u64> {
        let sketch = Sketch::new(buckets, OWNER);
        stream.for_each(|key| assert_eq!(sketch.add(OWNER, print(key), 1, || key.to_string()), Added::Counted));
        let mut heaviest = sketch.counts().heaviest;
        heaviest.sort_by_key(|heavy| std::cmp::Reverse(heavy.hits));
        heaviest.truncate(most);
        heaviest.into_iter().map(|heavy| heavy.name.map_or(u64::MAX, |name| name.parse().unwrap())).collect()
    }

    #[test]
    fn the_key_that_all_threads_add_to_at_once_loses_no_hits() {
        const THREADS: u64 = 16;
        const HITS: u64 = 100_000;
        let sketch = Sketch::new(1, OWNER);
        // Hits that wait while a thread holds the bucket count for keys that have a count.
        sketch.add(OWNER, print(0), 1, || "0".to_owned());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let sketch = &sketch;
                scope.spawn(move || {
                    for turn in 0..HITS {
                        // One hit in ten is of another key of the same bucket.
                        let key = if turn % 10 == 0 { 1 + thread % 4 } else { 0 };
                        sketch.add(OWNER, print(key), 1, || key.to_string());
                    }
                });
            }
        });
        let counts = sketch.counts();
        let hot = counts.heaviest.iter().find(|heavy| heavy.print == print(0)).unwrap();
        let counted = hot.hits as f64 / (THREADS * HITS * 9 / 10) as f64;
        assert!(counted > 0.99 && counted <= 1.0 + 1e-6, "{counted} of its hits are counted");
    }

    #[test]
    fn light_keys_that_wait_give_way_to_a_heavy_one_and_not_the_other_way_round() {
        let waiting_after = |hits: &[(u64, u64)]| {
            let (backlog, mut waiting) = (Backlog::default(), HashMap::new());
            for (key, hits) in hits {
                backlog.add(*key, *hits);
            }
            backlog.take(|key, hits| _ = waiting.insert(key, hits));
            waiting
        };
        for seed in 0..100 {
            fastrand::seed(seed);
            let mut hits = vec![(1, 1), (2, 1)];
            hits.extend((0..10_000).map(|turn| if turn % 10 == 0 { (1 + turn % 4, 1) } else { (7, 1) }));
            let hot = waiting_after(&hits)[&7];
            assert!(hot > 8_910 && hot <= 9_000, "{hot} of 9,000 hits are kept, with seed {seed}");
        }
        assert_eq!(waiting_after(&[(1, 0), (2, 0), (3, 0)]).get(&3), None);
    }

    #[test]
    fn of_a_million_users_of_which_twenty_are_hot_all_twenty_are_among_the_first_25() {
        const USERS: u64 = 1_000_000;
        // All hot keys together get as little as a twentieth of the requests.
        for (seed, hot_share) in [(1, 0.05), (2, 0.2), (3, 0.8)] {
            fastrand::seed(seed);
            let mut random = fastrand::Rng::with_seed(seed);
            let stream = (0..USERS + USERS / 2).map(|turn| match turn {
                _ if random.f64() < hot_share => random.u64(..20) * 50_000,
                turn => turn % USERS,
            });
            let first = heaviest(32, stream, 25);
            let found = (0..20).filter(|hot| first.contains(&(hot * 50_000))).count();
            assert_eq!(found, 20, "at a share of {hot_share}: {first:?}");
        }
    }

    /// Draws from Zipf's law: the key of rank `r` has a probability in proportion to `r` to the power of `-s`.
    fn zipf(keys: usize, s: f64, seed: u64) -> impl Iterator<Item = u64> {
        let mut sums: Vec<f64> = Vec::with_capacity(keys);
        for rank in 1..=keys {
            sums.push(sums.last().copied().unwrap_or(0.0) + (rank as f64).powf(-s));
        }
        let (mut random, all) = (fastrand::Rng::with_seed(seed), sums[keys - 1]);
        std::iter::from_fn(move || {
            let drawn = random.f64() * all;
            Some(sums.partition_point(|sum| *sum < drawn) as u64)
        })
    }

    #[test]
    fn of_keys_with_over_a_hundredth_of_zipfs_traffic_99_of_100_are_found() {
        let (mut heavy, mut found) = (0, 0);
        for seed in 0..4 {
            for s in [0.8, 1.0, 1.2, 1.5] {
                fastrand::seed(seed);
                let stream: Vec<u64> = zipf(100_000, s, seed).take(200_000).collect();
                let mut hits: HashMap<u64, usize> = HashMap::new();
                stream.iter().for_each(|key| *hits.entry(*key).or_default() += 1);
                let said = heaviest(32, stream.iter().copied(), 256);
                for (key, _) in hits.iter().filter(|(_, hits)| **hits * 100 > stream.len()) {
                    heavy += 1;
                    found += usize::from(said.contains(key));
                }
            }
        }
        assert!(heavy > 100 && found * 100 >= heavy * 99, "{found} of {heavy}");
    }

    #[test]
    fn counts_are_right_on_the_average_and_what_is_seen_for_certain_is_never_too_much() {
        let (mut said, mut real) = (0.0, 0.0);
        for seed in 0..20 {
            fastrand::seed(seed);
            let stream: Vec<u64> = zipf(10_000, 1.0, seed).take(20_000).collect();
            let sketch = Sketch::new(8, OWNER);
            let mut hits: HashMap<u64, u64> = HashMap::new();
            for key in &stream {
                *hits.entry(print(*key)).or_default() += 1;
                sketch.add(OWNER, print(*key), 1, String::new);
            }
            let counts = sketch.counts();
            assert_eq!(counts.total, 20_000);
            assert!(counts.heaviest.iter().all(|heavy| heavy.at_least <= hits[&heavy.print]));
            let top = counts.heaviest.iter().filter(|heavy| heavy.hits > 200);
            for heavy in top {
                (said, real) = (said + heavy.hits as f64, real + hits[&heavy.print] as f64);
            }
        }
        assert!((said / real - 1.0).abs() < 0.05, "{said} for {real}");
    }

    proptest! {
        #[test]
        fn names_are_bounded_in_bytes(
            hits in prop::collection::vec((0_u64..40, 1_u64..50, 0_usize..600), 1..200),
        ) {
            let mut bucket = Bucket::default();
            for (key, hits, length) in hits {
                bucket.add(print(key), hits, || "x".repeat(length));
                let kept: usize = bucket.names.iter().flatten().map(|name| name.len()).sum();
                prop_assert_eq!(kept, bucket.name_bytes);
                prop_assert!(kept <= NAME_BYTES, "{}", kept);
            }
            bucket.halve();
            prop_assert!(bucket.heaviest().all(|heavy| heavy.at_least <= heavy.hits));
        }
    }

    #[test]
    fn a_key_that_is_not_asked_for_any_more_leaves_and_a_stranger_counts_nothing() {
        let sketch = Sketch::new(2, OWNER);
        for _ in 0..1_000 {
            sketch.add(OWNER, print(7), 1, || "seven".to_owned());
        }
        assert_eq!(sketch.add(Owner(2), print(7), 1, String::new), Added::NotOwner);
        (0..9).for_each(|_| sketch.halve());
        let counts = sketch.counts();
        assert_eq!((counts.total, counts.heaviest[0].hits, counts.heaviest[0].name.as_deref()), (1, 1, Some("seven")));
        sketch.halve();
        assert_eq!((sketch.total(), sketch.counts().heaviest.len()), (0, 0));
        sketch.give_to(Owner(2));
        assert_eq!(sketch.add(Owner(2), print(7), 1, String::new), Added::Counted);
        assert_eq!(sketch.add(OWNER, print(7), 1, String::new), Added::NotOwner);
    }
}
