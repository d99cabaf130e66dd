//! How a Redis is asked.

use std::fmt;
use std::time::Duration;

use super::address::{Place, RedisAddress};

/// How to reach Redis, and for how long to wait.
#[derive(Clone)]
pub struct RedisConfig {
    /// Where it is, and what lets Tollgate in.
    pub address: RedisAddress,
    /// Connections, over all workers.
    pub connections: usize,
    /// How long Redis may be silent, and how long connecting may take.
    pub timeout: Duration,
    /// How many checks may wait, for each worker.
    pub queue: usize,
    /// In front of every counter's name.
    pub key_prefix: String,
    /// Where counters of limits of seconds live, if not there.
    pub per_second: Option<Box<RedisConfig>>,
}

impl RedisConfig {
    /// The same for one node of a cluster.
    pub(super) fn of_node(&self, place: &Place) -> RedisConfig {
        RedisConfig { address: self.address.of_node(place.clone()), per_second: None, ..self.clone() }
    }
}

impl fmt::Display for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}
