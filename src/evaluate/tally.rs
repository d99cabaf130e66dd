//! The tally of a limit's decisions, by key.

use std::hash::Hasher as _;

use hashbrown::HashMap;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::engine::check::Key;

/// The most keys in total that are told apart. Decisions for further keys are counted only in the sums.
const MOST_KEYS: usize = 1 << 24;

/// Length of the intervals from which the worst is reported.
const MINUTE_MS: u64 = 60_000;

/// The tally of one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) decisions: u64,
    pub(super) denied: u64,
    /// Times of the first and last denial.
    pub(super) denied_between_ms: Option<(u64, u64)>,
    /// The minute with the most denials, the earliest if there are several.
    pub(super) worst_minute: Minute,
    minute: Minute,
    keys: HashMap<KeyHash, KeyTally>,
    /// Display names of the keys with a denial.
    names: HashMap<KeyHash, Box<str>>,
}

/// The denials within a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Minute {
    pub(super) begin_ms: u64,
    pub(super) denied: u64,
}

/// The tally of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyTally {
    pub(super) decisions: u64,
    pub(super) denied: u64,
    /// Hits requested, multiplied by the cost.
    pub(super) hits: u64,
}

/// A hash that represents the name of a counter. Collisions are practically impossible. The hash is the same in every
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct KeyHash(u64, u64);

impl KeyHash {
    pub(super) fn of(key: &Key) -> KeyHash {
        let mut hasher = SipHasher13::new();
        hasher.write(key.as_str().as_bytes());
        let hash = hasher.finish128();
        KeyHash(hash.h1, hash.h2)
    }
}

/// Number of further keys that there is room for.
#[derive(Debug)]
pub(super) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Room(MOST_KEYS)
    }
}

impl Room {
    /// Takes the room for one key, and returns whether there was any.
    pub(super) fn take(&mut self) -> bool {
        let has_room = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        has_room
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.0 == 0
    }
}

/// One decision of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided<'d> {
    pub(super) at_ms: u64,
    pub(super) key: &'d Key,
    pub(super) hits: u64,
    pub(super) is_denied: bool,
}

impl Tally {
    /// Adds a decision. `name` is called once for each key with a denial.
    pub(super) fn add(&mut self, decided: Decided<'_>, room: &mut Room, name: impl FnOnce() -> Box<str>) {
        let Decided { at_ms, key, hits, is_denied } = decided;
        self.decisions += 1;
        if is_denied {
            self.deny(at_ms);
        }
        let hash = KeyHash::of(key);
        let key = match self.keys.get_mut(&hash) {
            Some(key) => key,
            None if room.take() => self.keys.entry(hash).or_default(),
            None => return,
        };
        key.decisions += 1;
        key.hits += hits;
        if is_denied {
            key.denied += 1;
            if key.denied == 1 {
                self.names.insert(hash, name());
            }
        }
    }

    fn deny(&mut self, at_ms: u64) {
        self.denied += 1;
        let (first, _) = self.denied_between_ms.unwrap_or((at_ms, at_ms));
        self.denied_between_ms = Some((first, at_ms));
        let begin_ms = at_ms - at_ms % MINUTE_MS;
        if self.minute.begin_ms != begin_ms {
            self.minute = Minute { begin_ms, denied: 0 };
        }
        self.minute.denied += 1;
        if self.minute.denied > self.worst_minute.denied {
            self.worst_minute = self.minute;
        }
    }

    /// Returns the number of keys, and of those with a denial.
    pub(super) fn keys(&self) -> (u64, u64) {
        (self.keys.len() as u64, self.names.len() as u64)
    }

    /// Returns the highest total of hits that a key requested.
    pub(super) fn most_hits(&self) -> u64 {
        self.keys.values().map(|key| key.hits).max().unwrap_or(0)
    }

    /// Returns the keys with the most denials, each with its tally.
    pub(super) fn most_denied(&self, most: usize) -> Vec<(&str, KeyTally)> {
        let named = self.names.iter().filter_map(|(hash, name)| Some((&**name, *self.keys.get(hash)?)));
        let mut named: Vec<(&str, KeyTally)> = named.collect();
        let order = |(name, key): &(&str, KeyTally), (other_name, other): &(&str, KeyTally)| {
            other.denied.cmp(&key.denied).then(name.cmp(other_name)).then(key.decisions.cmp(&other.decisions))
        };
        if named.len() > most {
            named.select_nth_unstable_by(most, order);
            named.truncate(most);
        }
        named.sort_unstable_by(order);
        named
    }
}
