//! Reading what limits were used: the pages of records, some at a time, from wherever they are kept. Nothing is
//! changed, and nothing is kept between two calls: a cursor says where to go on.

use std::sync::Arc;

use super::StoreError;
use super::redis::RedisUsage;
use crate::usage::Time;
use crate::usage::page::Page;

/// Where pages are kept.
pub enum UsageStore {
    /// In Redis, or in two.
    Redis(Box<RedisUsage>),
    /// In this process.
    Memory(Arc<dyn MemoryPages>),
}

/// A store in memory that has pages.
pub trait MemoryPages: Send + Sync {
    /// The pages from this place on, about so many, as far as [`PageName::may_have`] says that the scope wants them;
    /// and the next place, if there is one. The first is 0. What is there all the time comes once at least.
    ///
    /// [`PageName::may_have`]: crate::usage::page::PageName::may_have
    fn pages(&self, scope: &Scope<'_>, place: u64, about: usize) -> (Vec<Page>, Option<u64>);

    /// What time it is, in milliseconds since the epoch.
    fn now(&self) -> u64;
}

/// Which pages are wanted. More may come: whose a page is, is not always in its name.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'s> {
    /// Of this domain. `None`: of all.
    pub domain: Option<&'s str>,
    /// With periods that begin then or later.
    pub from: Time,
    /// With periods that begin before.
    pub to: Time,
}

/// Some of the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// What stands on them, in no order. In a store one may come twice, by the same name.
    pub pages: Vec<Page>,
    /// Which store it was: pages of one name in two are two.
    pub store: &'static str,
    /// The store's time.
    pub now: Time,
    /// Where to go on; `None` where this is the end.
    pub cursor: Option<String>,
}

/// Why no pages come.
#[derive(Debug, thiserror::Error)]
pub enum UsageReadError {
    /// It was never told.
    #[error("no such cursor: begin without one, and go on with the one that the answer has")]
    Cursor,
    /// A cursor means nothing to another server.
    #[error("redis is another one than the one that was read so far, or has other slots: begin again without a cursor")]
    Changed,
    /// The store does not answer, or refuses.
    #[error("the store is unavailable: {0}")]
    Store(#[from] StoreError),
}

impl UsageStore {
    /// So many pages of a store in memory come at once, about.
    const ABOUT: usize = 500;

    /// Some of the pages, from the cursor on.
    ///
    /// # Errors
    /// Where there is no such cursor, or no longer, or the store does not answer.
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
