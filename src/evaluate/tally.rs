//! The tally of a limit's decisions, by key.

use std::hash::Hasher as _;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::engine::check::Key;
use crate::store::memory::Name;

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
    keys: HashMap<Name, KeyTally>,
    /// Display names of the keys with a denial.
    names: HashMap<Name, Box<str>>,
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

impl Tally {
    /// Adds an allowed decision.
    pub(super) fn allow(&mut self, key: Name, hits: u64, room: &mut Room) {
        self.decisions += 1;
        self.add(key, hits, room);
    }

    /// Adds a denial. `name` is called once for each key with a denial.
    pub(super) fn deny(
        &mut self,
        at_ms: u64,
        (key, hits): (Name, u64),
        room: &mut Room,
        name: impl FnOnce() -> Box<str>,
    ) {
        self.decisions += 1;
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
        let Some(tally) = self.add(key, hits, room) else { return };
        tally.denied += 1;
        if tally.denied == 1 {
            self.names.insert(key, name());
        }
    }

    /// Adds a decision to its key; `None` if there is no room for the key.
    fn add(&mut self, key: Name, hits: u64, room: &mut Room) -> Option<&mut KeyTally> {
        let tally = match self.keys.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) if room.take() => new.insert(KeyTally::default()),
            Entry::Vacant(_) => return None,
        };
        tally.decisions += 1;
        tally.hits += hits;
        Some(tally)
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
