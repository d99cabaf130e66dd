//! The store of adjustments: Redis for all instances, or memory for this process.

use std::time::Duration;

use super::audit::{Action, Note, Trail};
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

    /// Adds a record of this age to the audit trail. A repetition has no second effect.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(super) async fn record(&self, action: Action, age: Duration, note: &Note) -> Result<(), StoreError> {
        match self {
            AdjustmentStore::Redis(redis) => redis.record(action, age, note).await,
            AdjustmentStore::Memory(memory) => {
                memory.record(action, age, note);
                Ok(())
            }
        }
    }

    /// Returns the newest records of the audit trail: at most `most` changes, and as many refusals.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(super) async fn trail(&self, most: usize) -> Result<Trail, StoreError> {
        match self {
            AdjustmentStore::Redis(redis) => redis.trail(most).await,
            AdjustmentStore::Memory(memory) => Ok(memory.trail(most)),
        }
    }
}
