//! Sends decisions to Redis: batches, queues, and the nodes that decide.

pub(crate) mod batch;
pub(crate) mod cluster;
pub(crate) mod lanes;
pub(crate) mod node;
pub(crate) mod nodes;
mod overview;
pub(crate) mod pace;
pub(crate) mod queue;
pub(crate) mod redises;

/// The queue's lock; the test of the queue uses another.
mod sync {
    pub(crate) use parking_lot::Mutex;
}
