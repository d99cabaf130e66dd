//! The counters of a history, by limit and key.

use std::hash::{Hash, Hasher};

use hashbrown::{Equivalent, HashMap};

use super::bucket::{Bucket, Rate};
use super::budget::Budget;
use super::holders::Holders;
use super::known::Known;
use super::places::Places;
use super::schedule::Job;
use super::window::Window;
use crate::history::Promise;

/// A counter.
#[derive(Debug)]
pub(super) struct Counter {
    /// The index of its limit.
    pub(super) limit: usize,
    pub(super) key: Box<str>,
    pub(super) known: Known,
    pub(super) sound: Sound,
    /// The operations of one hit each, for the exact check.
    pub(super) jobs: Vec<Job>,
}

/// The check that no more was admitted than is promised.
#[derive(Debug)]
pub(super) enum Sound {
    Window(Window),
    Bucket(Bucket),
    Holders(Box<(Holders, Places)>),
    Budget(Box<Budget>),
}

impl Counter {
    fn new(limit: usize, key: &str, promise: &Promise, (longest_us, clock_us): (u64, u64)) -> Counter {
        let (memory_us, period_us, rate, sound) = match *promise {
            Promise::Window { memory_us, period_us, .. } => {
                (memory_us, period_us, None, Sound::Window(Window::default()))
            }
            Promise::Bucket { burst, number, period_us, usable_thousandths } => {
                let usable = |whole: u64| whole * usable_thousandths / 1_000;
                let rate = Rate { burst: usable(burst), number: usable(number), period_us, clock_us };
                (0, 0, Some(rate), Sound::Bucket(Bucket::default()))
            }
            Promise::Holders { expiry_us, .. } => {
                // To the limiter a place may be held a step shorter, of which the promise knows, or a step longer.
                let longest_held_us = expiry_us.saturating_add(2 * clock_us);
                let places = Places::new(longest_held_us, longest_us);
                (0, 0, None, Sound::Holders(Box::new((Holders::new(expiry_us, longest_us), places))))
            }
            Promise::Budget { .. } => (0, 0, None, Sound::Budget(Box::default())),
        };
        let known = Known::new(memory_us, period_us, rate, longest_us);
        Counter { limit, key: key.into(), known, sound, jobs: Vec::new() }
    }

    pub(super) fn places(&mut self) -> Option<&mut Places> {
        match &mut self.sound {
            Sound::Holders(holders) => Some(&mut holders.1),
            Sound::Window(_) | Sound::Bucket(_) | Sound::Budget(_) => None,
        }
    }
}

/// All counters.
#[derive(Debug, Default)]
pub(super) struct Counters {
    index: HashMap<CounterName, usize>,
    pub(super) all: Vec<Counter>,
}

#[derive(Debug, PartialEq, Eq)]
struct CounterName {
    limit: usize,
    key: Box<str>,
}

/// The same, borrowed.
#[derive(PartialEq, Eq)]
struct CounterRef<'k> {
    limit: usize,
    key: &'k str,
}

impl Hash for CounterName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        CounterRef { limit: self.limit, key: &self.key }.hash(state);
    }
}

impl Hash for CounterRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.limit.hash(state);
        self.key.hash(state);
    }
}

impl Equivalent<CounterName> for CounterRef<'_> {
    fn equivalent(&self, name: &CounterName) -> bool {
        self.limit == name.limit && *self.key == *name.key
    }
}

impl Counters {
    /// Returns the index of the counter of a key, which begins with its first operation.
    pub(super) fn of(&mut self, limit: usize, key: &str, promise: &Promise, times_us: (u64, u64)) -> usize {
        if let Some(counter) = self.index.get(&CounterRef { limit, key }) {
            return *counter;
        }
        let counter = self.all.len();
        self.all.push(Counter::new(limit, key, promise, times_us));
        self.index.insert(CounterName { limit, key: key.into() }, counter);
        counter
    }
}
