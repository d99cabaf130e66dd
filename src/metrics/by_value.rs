//! Separate counters by the values of requests, for rules that ask for them (`detailed_metric`, `value_to_metric`), and
//! counters of limits and domains that are known only from requests. Their number has no natural bound, so only a fixed
//! number is kept: the least recently used is evicted, and starts from zero if it returns.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lru::LruCache;
use parking_lot::Mutex;

use super::names::{Departed, Places, Stat, StatPath};
use super::tally::{Tally, counted_as};

/// The counters of the most recently used paths.
pub(super) struct ByValue {
    known: Mutex<LruCache<Box<str>, Arc<ValueCounters>, RandomState>>,
    gone: Mutex<Gone>,
    most: NonZeroUsize,
    evicted: AtomicU64,
    is_pushed: AtomicBool,
    /// Where evicted counters are kept for Prometheus.
    departed: OnceLock<Arc<Departed>>,
}

/// Evicted counters with an increase that is still to be pushed.
#[derive(Default)]
struct Gone {
    /// Kept one by one: as many as there are known paths, plus those in use by a push.
    apart: Vec<Arc<ValueCounters>>,
    /// The sums of all further ones, by their path without values.
    together: HashMap<Box<str>, Arc<ValueCounters>>,
}

/// The counters of one path.
#[derive(Debug)]
pub(super) struct ValueCounters {
    pub(super) path: StatPath,
    /// The path under which it is pushed if too many were evicted.
    without_values: Option<StatPath>,
    pub(super) tally: Tally,
    /// Number of descriptors with an unknown domain.
    pub(super) domain_not_found: AtomicU64,
    domain_not_found_pushed: AtomicU64,
    places: Option<Places>,
}

/// All counters by value.
#[derive(Debug)]
pub(super) struct Values {
    /// Paths of rules that ask for them.
    pub(super) of_rules: ByValue,
    /// Paths known only from requests. They have a separate bound, so made-up values cannot evict the paths of rules.
    pub(super) of_callers: ByValue,
}

impl Values {
    /// Keeps at most `most` paths of each kind.
    pub(super) fn new(most: NonZeroUsize) -> Values {
        Values { of_rules: ByValue::new(most), of_callers: ByValue::new(most) }
    }

    fn each(&self) -> [&ByValue; 2] {
        [&self.of_rules, &self.of_callers]
    }

    /// Returns the number of evicted paths.
    pub(super) fn evicted(&self) -> u64 {
        self.each().map(|by_value| by_value.evicted.load(Ordering::Relaxed)).iter().sum()
    }

    /// Keeps evicted counters until they are pushed.
    pub(super) fn push(&self) {
        self.each().iter().for_each(|by_value| by_value.is_pushed.store(true, Ordering::Relaxed));
    }

    /// Shows the counters to Prometheus.
    pub(super) fn show(&self, departed: &Arc<Departed>) {
        self.each().iter().for_each(|by_value| drop(by_value.departed.set(Arc::clone(departed))));
    }

    /// Returns all known counters in no particular order, and the result of `then`, which runs before any of them can
    /// be evicted. Reading them does not count as use.
    pub(super) fn all<T>(&self, then: impl FnOnce() -> T) -> (Vec<Arc<ValueCounters>>, T) {
        let (mut all, (of_callers, then)) = self.of_rules.all(|| self.of_callers.all(then));
        all.extend(of_callers);
        (all, then)
    }

    /// Returns the counters that may have an increase to push.
    pub(super) fn to_push(&self) -> Vec<Arc<ValueCounters>> {
        self.each().iter().flat_map(|by_value| by_value.to_push()).collect()
    }

    /// Drops the evicted counters that have nothing to push.
    pub(super) fn forget_pushed(&self) {
        self.each().iter().for_each(|by_value| by_value.forget_pushed());
    }
}

impl ByValue {
    /// Keeps at most `most` paths.
    fn new(most: NonZeroUsize) -> ByValue {
        ByValue {
            known: Mutex::new(LruCache::with_hasher(most, RandomState::new())),
            gone: Mutex::default(),
            most,
            evicted: AtomicU64::new(0),
            is_pushed: AtomicBool::new(false),
            departed: OnceLock::new(),
        }
    }

    /// Counts at a path, which cannot be evicted during the count.
    pub(super) fn count(
        &self,
        path: StatPath,
        without_values: impl FnOnce() -> StatPath,
        count: impl FnOnce(&ValueCounters),
    ) {
        if let Some(counters) = self.known.lock().get(path.as_str()) {
            return count(counters);
        }
        let departed = self.departed.get();
        let counters = Arc::new(ValueCounters {
            places: departed.map(|departed| departed.places(&path)),
            without_values: Some(without_values()),
            ..ValueCounters::new(path)
        });
        let mut known = self.known.lock();
        let name = counters.path.as_str();
        // Another thread may have added the path in between.
        if let Some(counters) = known.get(name) {
            return count(counters);
        }
        count(&counters);
        counters.enter(departed);
        if let Some((_, evicted)) = known.push(name.into(), Arc::clone(&counters)) {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            evicted.leave(departed);
            if self.is_pushed.load(Ordering::Relaxed) {
                self.gone.lock().add(evicted, self.most);
            }
        }
    }

    /// Returns all known counters in no particular order, and the result of `then`, which runs before any of them can
    /// be evicted. Reading them does not count as use.
    fn all<T>(&self, then: impl FnOnce() -> T) -> (Vec<Arc<ValueCounters>>, T) {
        let known = self.known.lock();
        (known.iter().map(|(_, counters)| Arc::clone(counters)).collect(), then())
    }

    /// Returns the counters that may have an increase to push.
    fn to_push(&self) -> Vec<Arc<ValueCounters>> {
        let gone: Vec<_> = self.gone.lock().all().map(Arc::clone).collect();
        self.all(|| ()).0.into_iter().chain(gone).filter(|counters| counters.has_unpushed()).collect()
    }

    /// Drops the evicted counters that have nothing to push.
    fn forget_pushed(&self) {
        let Gone { apart, together } = &mut *self.gone.lock();
        apart.retain(|counters| counters.has_unpushed());
        together.retain(|_, counters| counters.has_unpushed());
    }
}

impl Gone {
    fn all(&self) -> impl Iterator<Item = &Arc<ValueCounters>> {
        self.apart.iter().chain(self.together.values())
    }

    fn add(&mut self, evicted: Arc<ValueCounters>, most: NonZeroUsize) {
        // A push in progress has yet to note how much of these counters has arrived.
        let is_held = Arc::strong_count(&evicted) > 1;
        match &evicted.without_values {
            Some(path) if self.apart.len() >= most.get() && !is_held => {
                let new = || Arc::new(ValueCounters::new(path.clone()));
                self.together.entry(path.as_str().into()).or_insert_with(new).add_unpushed(&evicted);
            }
            _ => self.apart.push(evicted),
        }
    }
}

impl ValueCounters {
    fn new(path: StatPath) -> ValueCounters {
        ValueCounters {
            path,
            without_values: None,
            tally: Tally::default(),
            domain_not_found: AtomicU64::new(0),
            domain_not_found_pushed: AtomicU64::new(0),
            places: None,
        }
    }

    fn add_unpushed(&self, other: &ValueCounters) {
        Stat::ALL.iter().for_each(|stat| self.tally.add(counted_as(*stat), other.tally.unpushed(*stat)));
        self.domain_not_found.fetch_add(other.unpushed_domain_not_found(), Ordering::Relaxed);
    }

    pub(super) fn domain_not_found(&self) -> u64 {
        self.domain_not_found.load(Ordering::Relaxed)
    }

    pub(super) fn unpushed_domain_not_found(&self) -> u64 {
        self.domain_not_found().saturating_sub(self.domain_not_found_pushed.load(Ordering::Relaxed))
    }

    pub(super) fn note_domain_not_found_pushed(&self, more: u64) {
        self.domain_not_found_pushed.fetch_add(more, Ordering::Relaxed);
    }

    fn enter(&self, departed: Option<&Arc<Departed>>) {
        if let (Some(departed), Some(places)) = (departed, &self.places) {
            departed.enter(places);
        }
    }

    fn leave(&self, departed: Option<&Arc<Departed>>) {
        if let (Some(departed), Some(places)) = (departed, &self.places) {
            departed.leave(places, Stat::ALL.map(|stat| self.tally.stat(stat)), self.domain_not_found());
        }
    }

    fn has_unpushed(&self) -> bool {
        self.tally.has_unpushed() || self.unpushed_domain_not_found() > 0
    }
}

impl fmt::Debug for ByValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByValue").field("most", &self.most).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;
    use crate::metrics::tally::OfRule;

    proptest! {
        #[test]
        fn the_most_recent_are_known_and_nothing_that_is_pushed_is_lost(
            most in 1..6_usize,
            values in proptest::collection::vec(0..12_u8, 0..60),
            flush in 1..30_usize,
        ) {
            let by_value = ByValue::new(NonZeroUsize::new(most).unwrap());
            by_value.is_pushed.store(true, Ordering::Relaxed);
            let mut arrived = 0;
            for (index, value) in values.iter().enumerate() {
                let path = StatPath::new("shop", [Cow::Owned(value.to_string())]);
                let without_values = || StatPath::new("shop", [Cow::Borrowed("user")]);
                by_value.count(path, without_values, |counters| counters.tally.add(OfRule::Hits, 1));
                prop_assert!(by_value.known.lock().len() <= most);
                prop_assert!(by_value.gone.lock().all().count() <= most + 1);
                // More paths may have been evicted than are kept one by one.
                if index % flush == 0 {
                    for counters in by_value.to_push() {
                        let more = counters.tally.unpushed(Stat::TotalHits);
                        counters.tally.note_pushed(Stat::TotalHits, more);
                        arrived += more;
                    }
                    by_value.forget_pushed();
                }
            }
            let left: u64 =
                by_value.to_push().iter().map(|counters| counters.tally.unpushed(Stat::TotalHits)).sum();
            prop_assert_eq!(arrived + left, values.len() as u64);
            let mut recent = Vec::new();
            for value in values.iter().rev().map(|value| format!("shop.{value}")) {
                if recent.len() < most && !recent.contains(&value) {
                    recent.push(value);
                }
            }
            let known = by_value.all(|| ()).0;
            let mut known: Vec<_> = known.iter().map(|counters| counters.path.as_str().to_owned()).collect();
            known.sort();
            recent.sort();
            prop_assert_eq!(known, recent);
        }
    }
}
