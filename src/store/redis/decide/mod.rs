//! Sends decisions to Redis: batches, queues, and the nodes that decide.

pub(crate) mod batch;
pub(crate) mod lanes;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod own;
pub(crate) mod pace;
pub(crate) mod queue;
pub(crate) mod redises;
pub mod script;
pub(crate) mod slot;
pub(crate) mod source;

/// The queue's lock; the test of the queue uses another.
mod sync {
    pub(crate) use parking_lot::Mutex;
}
