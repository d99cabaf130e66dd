//! The answer of a store to a reader of usage.

use crate::engine::check::StoreError;
use crate::engine::usage::Time;
use crate::engine::usage::page::Page;

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
    #[error("unknown cursor: start without one, then send the cursor of each response")]
    Cursor,
    /// The cursor belongs to another server, or to other counters.
    #[error("Redis or the rules changed during the read: start again without a cursor")]
    Changed,
    /// The store does not answer, or rejects the request.
    #[error("the store is unavailable: {0}")]
    Store(#[from] StoreError),
}
