//! The store of heartbeats: Redis, or none.

use super::heartbeats::{Command, Reply};
use super::redis::RedisHeartbeats;
use crate::engine::check::StoreError;

/// The store of a service's heartbeats.
pub enum HeartbeatStore {
    /// Redis.
    Redis(Box<RedisHeartbeats>),
    /// No store: a process with counters in its memory shares nothing.
    Memory,
}

impl HeartbeatStore {
    /// Executes a command of the instance with this ID, and returns all instances if the known list may be out of date.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn ask(&self, id: &str, command: Command<'_>) -> Result<Reply, StoreError> {
        match self {
            HeartbeatStore::Redis(redis) => redis.ask(id, command).await,
            HeartbeatStore::Memory => Ok(Reply::default()),
        }
    }
}
