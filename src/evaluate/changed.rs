//! The requests that an adjustment touches, and those that it decides differently.
//!
//! A stream has the requests of some keys, and a request counts for one of its keys: that of the first limit that the
//! adjustment touches, or else of the first that denies it. So each request is in the counts with the probability of
//! the sample, and dividing by the sample gives the number of all requests.

use std::cmp::Reverse;

use hashbrown::{HashMap, HashSet};

use super::Arrival;
use super::comparison::example_of;
use super::tally::KeyHash;
use crate::engine::adjustment::Id;
use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::Role;
use crate::observe::redaction::Values;

/// The most keys that are told apart.
const MOST_KEYS: usize = 1 << 17;
/// The most keys that may become examples.
const MOST_NAMES: usize = 1 << 10;

/// The counts of one adjustment.
#[derive(Debug)]
pub struct Changed<'i> {
    id: &'i Id,
    values: Values,
    /// Number of requests that it touches.
    pub touched: u64,
    /// Number of requests that are denied only with it.
    pub newly_denied: u64,
    /// Number of requests that are denied only without it.
    pub newly_allowed: u64,
    keys: HashSet<KeyHash>,
    keys_denied: HashSet<KeyHash>,
    keys_allowed: HashSet<KeyHash>,
    /// Names of keys with a different decision, each with the number of such requests.
    names: HashMap<KeyHash, (u64, String)>,
}

/// The keys of the decided requests.
#[derive(Debug, Default)]
pub struct KeyCount(HashSet<KeyHash>);

impl KeyCount {
    /// Adds the sampled keys of a request.
    pub fn add(&mut self, arrival: Arrival<'_>, decision: &Decision<'_>) {
        let sampled = decision.limits.iter().filter(|limited| arrival.is_sampled(limited.asked.check.descriptor));
        sampled.for_each(|limited| insert(&mut self.0, limited));
    }

    /// Returns their number.
    pub fn get(&self) -> u64 {
        self.0.len() as u64
    }
}

fn insert(keys: &mut HashSet<KeyHash>, limited: &Limited<'_>) {
    if keys.len() < MOST_KEYS {
        keys.insert(KeyHash::of(&limited.asked.check.key));
    }
}

impl<'i> Changed<'i> {
    /// Creates empty counts. `values` says how examples show values.
    pub fn new(id: &'i Id, values: Values) -> Changed<'i> {
        Changed {
            id,
            values,
            touched: 0,
            newly_denied: 0,
            newly_allowed: 0,
            keys: HashSet::new(),
            keys_denied: HashSet::new(),
            keys_allowed: HashSet::new(),
            names: HashMap::new(),
        }
    }

    /// Adds a request with its decisions without and with the adjustment.
    pub fn add<'d>(&mut self, arrival: Arrival<'_>, (old, new): (&Decision<'d>, &Decision<'d>)) {
        let is_touched = |limited: &&Limited<'_>| limited.asked.adjusted.all().any(|one| one.id == *self.id);
        let touched: Option<&Limited<'_>> = new.limits.iter().find(is_touched);
        let is_sampled = |limited: &&Limited<'_>| arrival.is_sampled(limited.asked.check.descriptor);
        for limited in new.limits.iter().filter(is_touched).filter(is_sampled) {
            insert(&mut self.keys, limited);
        }
        self.touched += u64::from(touched.filter(is_sampled).is_some());
        let denying = match (old.over_limit, new.over_limit) {
            (false, true) => new,
            (true, false) => old,
            _ => return,
        };
        let denies = |limited: &&Limited<'_>| limited.over() && limited.role() != Role::Shadow;
        let denial = denying.limits.iter().find(denies);
        let Some(limited) = touched.or(denial).filter(is_sampled) else { return };
        let (count, keys) = match new.over_limit {
            true => (&mut self.newly_denied, &mut self.keys_denied),
            false => (&mut self.newly_allowed, &mut self.keys_allowed),
        };
        *count += 1;
        insert(keys, limited);
        let key = KeyHash::of(&limited.asked.check.key);
        let descriptor = &arrival.request.descriptors[limited.asked.check.descriptor];
        if let Some((count, _)) = self.names.get_mut(&key) {
            *count += 1;
        } else if self.names.len() < MOST_NAMES {
            self.names.insert(key, (1, example_of(std::slice::from_ref(descriptor), &self.values)));
        }
    }

    /// Returns the number of keys that the adjustment touches.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of keys with a request that is denied only with it.
    pub fn keys_denied(&self) -> usize {
        self.keys_denied.len()
    }

    /// Returns the number of keys with a request that is denied only without it.
    pub fn keys_allowed(&self) -> usize {
        self.keys_allowed.len()
    }

    /// Returns the keys with the most requests that are decided differently, as far as values are shown.
    pub fn examples(&self, most: usize) -> Vec<String> {
        let mut names: Vec<&(u64, String)> = self.names.values().collect();
        names.sort_by_key(|(count, name)| (Reverse(*count), name));
        let mut examples: Vec<String> = Vec::new();
        for (_, name) in names {
            // Without their values, many have one name.
            if examples.len() < most && !examples.contains(name) {
                examples.push(name.clone());
            }
        }
        examples
    }
}
