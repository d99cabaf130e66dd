//! Reads the usage of limits: pages of records, in parts, from any store. Nothing is changed, and no state is kept
//! between calls: a cursor holds the position.

use std::sync::Arc;

use crate::engine::check::StoreError;
use crate::engine::usage::Time;
use crate::engine::usage::page::Page;
use crate::shared::redis::usage::RedisUsage;

/// The store of usage pages.
pub enum UsageStore {
    /// Redis, or two of them.
    Redis(Box<RedisUsage>),
    /// This process.
    Memory(Arc<dyn MemoryPages>),
}

/// A store in memory that has pages.
pub trait MemoryPages: Send + Sync {
    /// Returns about this many pages, starting at this place, that the scope may want according to
    /// [`PageName::may_have`], and the next place if there are more. The first place is 0. A page that exists during
    /// the whole read is returned at least once.
    ///
    /// [`PageName::may_have`]: crate::engine::usage::page::PageName::may_have
    fn pages(&self, scope: &Scope<'_>, place: u64, about: usize) -> (Vec<Page>, Option<u64>);

    /// Returns the time, in milliseconds since the epoch.
    fn now(&self) -> u64;
}

/// The wanted pages. More may be returned, since the name of a page does not always contain its owner.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'s> {
    /// The wanted domain, or `None` for all domains.
    pub domain: Option<&'s str>,
    /// Includes periods that begin at this time or later.
    pub from: Time,
    /// Includes periods that begin before this time.
    pub to: Time,
}

/// A part of the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The contents of the pages, in no order. A store may return a page twice, with the same name.
    pub pages: Vec<Page>,
    /// The name of the store. Pages with the same name in two stores are different pages.
    pub store: &'static str,
    /// The store's time.
    pub now: Time,
    /// The cursor of the next part, or `None` at the end.
    pub cursor: Option<String>,
}

/// The reason why pages could not be read.
#[derive(Debug, thiserror::Error)]
pub enum UsageReadError {
    /// The cursor was never issued.
    #[error("no such cursor: begin without one, and go on with the one that the answer has")]
    Cursor,
    /// The cursor belongs to another server.
    #[error("redis is another one than the one that was read so far, or has other slots: begin again without a cursor")]
    Changed,
    /// The store does not answer, or rejects the request.
    #[error("the store is unavailable: {0}")]
    Store(#[from] StoreError),
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
