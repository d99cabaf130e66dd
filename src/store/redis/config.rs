//! How a Redis is asked.

use std::fmt;
use std::sync::Arc;
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
    /// Who hears of calls.
    pub on_call: OnCall,
}

/// Is told of each call to Redis how many requests travel in it; by default nobody is.
#[derive(Clone, Default)]
pub struct OnCall(Option<Arc<dyn Fn(usize) + Send + Sync>>);

impl OnCall {
    /// This is told.
    pub fn new(told: impl Fn(usize) + Send + Sync + 'static) -> OnCall {
        OnCall(Some(Arc::new(told)))
    }

    pub(super) fn tell(&self, requests: usize) {
        if let Some(told) = &self.0 {
            told(requests);
        }
    }
}

impl RedisConfig {
    /// The same, of whose calls this is told, those to the Redis of seconds among them.
    #[must_use]
    pub fn told_to(self, on_call: OnCall) -> RedisConfig {
        let per_second = self.per_second.map(|config| Box::new(config.told_to(on_call.clone())));
        RedisConfig { per_second, on_call, ..self }
    }

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
