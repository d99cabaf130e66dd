//! Reads the usage of limits: pages of records, in parts, from any store. Nothing is changed, and no state is kept
//! between calls: a cursor holds the position.

mod by_name;
mod reading;
pub mod redis;

use std::sync::Arc;

use crate::engine::usage::Time;
use crate::engine::usage::page::Scope;
use crate::store::memory::MemoryPages;
use by_name::Place;
use redis::RedisUsage;

pub use by_name::Named;
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

    /// Returns a part of the pages of these counters, starting at the cursor. They are read by name, however many
    /// others there are.
    ///
    /// # Errors
    /// If the cursor does not exist or is no longer valid, or if the store does not answer.
    pub async fn read_named(&self, named: &Named, cursor: Option<&str>) -> Result<Batch, UsageReadError> {
        let place = cursor.map_or(Ok(Place::default()), str::parse).map_err(|()| UsageReadError::Cursor)?;
        let (names, next) = named.part(place, Self::ABOUT).ok_or(UsageReadError::Changed)?;
        match self {
            UsageStore::Redis(redis) => redis.read_named(names, (place, next)).await,
            UsageStore::Memory(memory) => {
                let pages = names.iter().filter_map(|name| memory.page(name)).collect();
                let now = Time(memory.now());
                Ok(Batch { pages, store: "memory", now, cursor: next.map(|next| next.to_string()) })
            }
        }
    }
}
