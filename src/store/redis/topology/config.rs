//! The configuration of a Redis store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::address::{Place, RedisAddress};
use crate::store::redis::doctor::Vitals;

/// Address, timeout and other settings of a Redis.
#[derive(Clone)]
pub struct RedisConfig {
    /// The address, with credentials.
    pub address: RedisAddress,
    /// Number of connections, over all workers.
    pub connections: usize,
    /// The longest silence of Redis, and the longest time for connecting.
    pub timeout: Duration,
    /// Number of checks that may wait, for each worker.
    pub queue: usize,
    /// Prefix of the names of all counters.
    pub key_prefix: String,
    /// The Redis for counters of limits of seconds, if it is another one.
    pub per_second: Option<Box<RedisConfig>>,
    /// Receives reports about calls.
    pub on_call: OnCall,
}

/// Callbacks for each call to Redis, with the number of requests in it, for damaged counters, for the vital figures of
/// servers, and for Sentinels. By default nothing is called.
#[derive(Clone, Default)]
pub struct OnCall {
    call: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    vitals: Option<Arc<OnVitals>>,
    damaged: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    sentinels: Option<Arc<OnSentinels>>,
    /// Whether it is for the Redis of limits of seconds, which has no balances.
    is_of_seconds: bool,
}

/// Called with the address of a server and its vital figures.
type OnVitals = dyn Fn(&str, Vitals) + Send + Sync;

/// Called with the name of a master, the number of its Sentinels that answer, and the number of all.
type OnSentinels = dyn Fn(&str, usize, usize) + Send + Sync;

impl OnCall {
    /// Returns callbacks with this one for calls.
    pub fn new(told: impl Fn(usize) + Send + Sync + 'static) -> OnCall {
        OnCall { call: Some(Arc::new(told)), ..OnCall::default() }
    }

    /// Adds a callback for servers, with the address and the vital figures of each. The figures come from questions
    /// that are sent anyway, about every ten seconds.
    #[must_use]
    pub fn and_of_servers(self, told: impl Fn(&str, Vitals) + Send + Sync + 'static) -> OnCall {
        OnCall { vitals: Some(Arc::new(told)), ..self }
    }

    /// Adds a callback for damaged counters, with their number in a call.
    #[must_use]
    pub fn and_of_damaged(self, told: impl Fn(usize) + Send + Sync + 'static) -> OnCall {
        OnCall { damaged: Some(Arc::new(told)), ..self }
    }

    /// Adds a callback for Sentinels, with the name of their master, the number that answer, and the number of all.
    #[must_use]
    pub fn and_of_sentinels(self, told: impl Fn(&str, usize, usize) + Send + Sync + 'static) -> OnCall {
        OnCall { sentinels: Some(Arc::new(told)), ..self }
    }

    pub(crate) fn tell_of_sentinels(&self, master: &str, answering: usize, all: usize) {
        if let Some(told) = &self.sentinels {
            told(master, answering, all);
        }
    }

    pub(crate) fn tell_of_damaged(&self, counters: usize) {
        if let Some(told) = &self.damaged {
            told(counters);
        }
    }

    pub(crate) fn tell(&self, requests: usize) {
        if let Some(told) = &self.call {
            told(requests);
        }
    }

    /// Returns whether the vital figures should have the persistence, which is another question to the server.
    pub(crate) fn wants_persistence(&self) -> bool {
        self.vitals.is_some() && !self.is_of_seconds
    }

    pub(crate) fn tell_of(&self, server: &str, vitals: Vitals) {
        if let Some(told) = &self.vitals {
            told(server, vitals);
        }
    }
}

impl RedisConfig {
    /// Returns the configuration with these callbacks, also for the Redis of limits of seconds.
    #[must_use]
    pub fn told_to(self, on_call: OnCall) -> RedisConfig {
        let of_seconds = || OnCall { is_of_seconds: true, ..on_call.clone() };
        let per_second = self.per_second.map(|config| Box::new(config.told_to(of_seconds())));
        RedisConfig { per_second, on_call, ..self }
    }

    /// Returns the configuration for one node of this cluster.
    pub(crate) fn of_node(&self, place: &Place) -> RedisConfig {
        RedisConfig { address: self.address.of_node(place.clone()), per_second: None, ..self.clone() }
    }
}

impl fmt::Display for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}
