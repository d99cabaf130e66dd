//! The store through which a fleet's instances know each other: Redis, or none.

use super::redis::{RedisHeartbeats, RedisQuestions};
use crate::store::redis::topology::route::Route;

/// The store of a service's heartbeats and questions.
pub enum FleetStore {
    /// Redis.
    Redis(Box<RedisHeartbeats>, Box<RedisQuestions>),
    /// No store: a process with counters in its memory shares nothing.
    Memory,
}

impl FleetStore {
    /// Returns the store of the service over this route, without asking Redis yet.
    pub fn in_redis(route: &Route) -> FleetStore {
        FleetStore::Redis(Box::new(RedisHeartbeats::new(route)), Box::new(RedisQuestions::new(route)))
    }
}
