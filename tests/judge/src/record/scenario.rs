//! A scenario: the limits, the system and the load.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::adapter::Target;
use crate::history::Promise;

/// A scenario, as a file says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The system, for people.
    pub about: String,
    /// How it is reached.
    pub target: Target,
    /// The step of the system's clock, in microseconds.
    #[serde(default)]
    pub clock_us: u64,
    /// The limits by name.
    pub limits: BTreeMap<String, Limit>,
    /// What is asked.
    #[serde(default)]
    pub load: Load,
}

/// A limit of the system.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The key of the entry that it is for.
    pub entry: String,
    /// What it promises.
    pub promise: Promise,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// For how long, in seconds.
    pub seconds: f64,
    /// Number of processes that ask.
    pub processes: u32,
    /// Number of callers of a process, each of which has one request in flight.
    pub callers: usize,
    /// Number of callers that have keys of their own, and ask again when they were told to.
    pub probers: usize,
    /// Number of keys.
    pub keys: usize,
    /// After how many milliseconds as many new keys begin; half of the requests are for the old ones. 0 for never.
    pub new_keys_ms: u64,
    /// The exponent of Zipf's law by which keys are drawn; 0 for all alike.
    pub zipf: f64,
    /// The most hits of a request.
    pub most_hits: u64,
    /// Of a hundred requests, those that ask several limits.
    pub groups: u8,
    /// Of a hundred requests, those that only ask what remains.
    pub peeks: u8,
    /// Of a hundred requests, those that give back what another took.
    pub refunds: u8,
    /// How long a holder holds its place, in milliseconds, at most.
    pub holds_ms: u64,
    /// Of a hundred places, those that their holders do not let go, so that they expire.
    pub abandons: u8,
    /// The longest pause of a caller between requests, in milliseconds.
    pub think_ms: u64,
    /// How long a caller waits for an answer, in milliseconds.
    pub deadline_ms: u64,
    /// How long to wait at the end for places to expire, in milliseconds, at most.
    pub settle_ms: u64,
    /// The seed of all that is drawn.
    pub seed: u64,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            seconds: 10.0,
            processes: 2,
            callers: 8,
            probers: 2,
            keys: 20,
            new_keys_ms: 0,
            zipf: 1.0,
            most_hits: 5,
            groups: 20,
            peeks: 5,
            refunds: 0,
            holds_ms: 200,
            abandons: 0,
            think_ms: 20,
            deadline_ms: 500,
            settle_ms: 5_000,
            seed: 1,
        }
    }
}

impl Load {
    /// For how long it asks.
    pub fn lasts(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.max(0.0))
    }

    /// How long a caller waits for an answer.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    /// What a clock of milliseconds takes away from a wait, in microseconds.
    pub fn slack_us(&self) -> u64 {
        2_000
    }
}

impl Scenario {
    /// Returns what the limits promise.
    pub fn promises(&self) -> BTreeMap<String, Promise> {
        self.limits.iter().map(|(name, limit)| (name.clone(), limit.promise.clone())).collect()
    }
}
