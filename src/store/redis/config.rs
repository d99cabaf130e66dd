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

/// Is told of each call to Redis how many requests travel in it, and how its servers are; by default nobody is.
#[derive(Clone, Default)]
pub struct OnCall {
    call: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    vitals: Option<Arc<OnVitals>>,
}

/// Where a server is, and how.
type OnVitals = dyn Fn(&str, Vitals) + Send + Sync;

impl OnCall {
    /// This is told of calls.
    pub fn new(told: impl Fn(usize) + Send + Sync + 'static) -> OnCall {
        OnCall { call: Some(Arc::new(told)), vitals: None }
    }

    /// And this of servers: where each is, and how. What they are asked anyway tells it, every ten seconds or so.
    #[must_use]
    pub fn and_of_servers(self, told: impl Fn(&str, Vitals) + Send + Sync + 'static) -> OnCall {
        OnCall { vitals: Some(Arc::new(told)), ..self }
    }

    pub(super) fn tell(&self, requests: usize) {
        if let Some(told) = &self.call {
            told(requests);
        }
    }

    pub(super) fn tell_of(&self, server: &str, vitals: Vitals) {
        if let Some(told) = &self.vitals {
            told(server, vitals);
        }
    }
}

/// How a server of Redis is, as it says itself (`INFO`); `None` where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vitals {
    /// What its data takes, in bytes.
    pub used_memory: Option<u64>,
    /// What that may be; 0: there is no bound.
    pub maxmemory: Option<u64>,
    /// So many keys it has evicted since it started.
    pub evicted_keys: Option<u64>,
    /// So many clients are connected.
    pub clients: Option<u64>,
    /// So many commands it did in the last second, those of scripts not counted.
    pub commands_per_second: Option<u64>,
    /// The processor time that it has used since it started, in seconds.
    pub cpu_seconds: Option<f64>,
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
