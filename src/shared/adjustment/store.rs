//! The store of adjustments: Redis for all instances, or memory for this process.

use super::board::{Command, MemoryAdjustments, Reply};
use super::redis::RedisAdjustments;
use crate::engine::check::StoreError;

/// The store of a process's adjustments.
pub enum AdjustmentStore {
    /// Redis.
    Redis(Box<RedisAdjustments>),
    /// This process, until it ends.
    Memory(MemoryAdjustments),
}

impl AdjustmentStore {
    /// Executes a command. `known` is the version that the caller knows.
    ///
    /// # Errors
    /// If the store does not answer. It is then unknown whether a change was made; it can be requested again.
    pub async fn ask(&self, known: u64, command: Command<'_>) -> Result<Reply, StoreError> {
        match self {
            AdjustmentStore::Redis(redis) => redis.ask(known, command).await,
            AdjustmentStore::Memory(memory) => Ok(memory.ask(known, command)),
        }
    }
}
