//! The two queues of a worker to one Redis: one for most requests, and one for requests that a replica must
//! acknowledge. Only the latter wait for replicas.
//!
//! A request with at least one durable limit uses the durable queue, with all its limits. Operations on a counter keep
//! their order only within a queue. A limit that is asked sometimes alone and sometimes together with a durable limit
//! has no order between the two.

use std::borrow::Borrow;
use std::sync::Arc;

use super::batch::{NodeError, takes_durably};
use super::batcher::{Asking, Batcher};
use crate::engine::check::{Check, Verdicts};
use crate::store::redis::link::Link;

/// Both queues.
pub(crate) struct NodeQueues {
    link: Arc<Link>,
    durable: Arc<Batcher>,
    others: Arc<Batcher>,
}

impl NodeQueues {
    /// Returns the queues to the Redis of this link, each with room for this many checks.
    pub(crate) fn new(link: Arc<Link>, worker: usize, capacity: usize) -> NodeQueues {
        let durable = Arc::new(Batcher::durable(Arc::clone(&link), worker, capacity));
        let others = Arc::new(Batcher::new(Arc::clone(&link), worker, capacity));
        NodeQueues { link, durable, others }
    }

    /// Decides a request.
    pub(crate) fn ask<C: Borrow<Check>>(
        &self,
        asking: Asking<'_, C>,
    ) -> impl Future<Output = Result<Verdicts, NodeError>> {
        let is_durable = asking.checks.iter().map(Borrow::borrow).any(takes_durably);
        let node = if is_durable { &self.durable } else { &self.others };
        node.ask(asking)
    }

    /// Logs what the log throttles hold back.
    pub(crate) fn flush_log(&self) {
        self.link.flush_log();
    }
}
