//! Reads the usage of limits: pages of records, in parts, from any store. Nothing is changed, and no state is kept
//! between calls: a cursor holds the position.

mod reading;
pub mod redis;

use std::sync::Arc;

use crate::engine::usage::Time;
use crate::engine::usage::page::Scope;
use crate::store::memory::MemoryPages;
use redis::RedisUsage;

pub use reading::{Batch, UsageReadError};

/// The store of usage pages.
pub enum UsageStore {
    /// Redis, or two of them.
    Redis(Box<RedisUsage>),
    /// This process.
    Memory(Arc<dyn MemoryPages>),
}

impl UsageStore {
    /// Approximate number of pages in a part from a store in memory.
    const ABOUT: usize = 500;

    /// Returns a part of the pages, starting at the cursor.
    ///
    /// # Errors
    /// If the cursor does not exist or is no longer valid, or if the store does not answer.
    pub async fn read(&self, scope: &Scope<'_>, cursor: Option<&str>) -> Result<Batch, UsageReadError> {
        match self {
            UsageStore::Redis(redis) => redis.read(scope, cursor).await,
            UsageStore::Memory(memory) => {
                let place = cursor.map_or(Ok(0), str::parse).map_err(|_| UsageReadError::Cursor)?;
                let (pages, next) = memory.pages(scope, place, Self::ABOUT);
                let now = Time(memory.now());
                Ok(Batch { pages, store: "memory", now, cursor: next.map(|next| next.to_string()) })
            }
        }
    }
}
