//! Sends decisions to Redis: batches, queues, and the nodes that decide.

pub(crate) mod backends;
pub(crate) mod batch;
pub(crate) mod batcher;
pub(crate) mod cluster;
pub(crate) mod node_queues;
mod overview;
pub(crate) mod pace;
pub(crate) mod queue;
pub(crate) mod router;

/// The queue's lock; the test of the queue uses another.
mod sync {
    pub(crate) use parking_lot::Mutex;
}
