//! A Redis as one worker asks it, by two ways: that of all requests, and that of those which a replica is to hear of,
//! whose waiting must not be the others'.
//!
//! What a request asks goes one way, the durable one where one of its limits is durable. Operations on a counter keep
//! their order as long as they go the same way: a limit that is asked now alone, and now together with a durable one,
//! has none between the two.

use std::borrow::Borrow;
use std::sync::Arc;

use super::batch::NodeError;
use super::link::Link;
use super::node::{Asking, Node};
use crate::store::{Check, Verdicts};

/// Both.
pub(super) struct Lanes {
    link: Arc<Link>,
    durable: Arc<Node>,
    others: Arc<Node>,
}

impl Lanes {
    /// To the Redis of this link; so many checks may wait in each.
    pub(super) fn new(link: Arc<Link>, worker: usize, capacity: usize) -> Lanes {
        let durable = Arc::new(Node::durable(Arc::clone(&link), worker, capacity));
        let others = Arc::new(Node::new(Arc::clone(&link), worker, capacity));
        Lanes { link, durable, others }
    }

    /// Decides a request.
    pub(super) async fn ask<C: Borrow<Check>>(&self, asking: Asking<'_, C>) -> Result<Verdicts, NodeError> {
        let is_durable = asking.checks.iter().any(|check| check.borrow().durable);
        let node = if is_durable { &self.durable } else { &self.others };
        node.ask(asking).await
    }

    /// Logs what has been kept back.
    pub(super) fn flush_log(&self) {
        self.link.flush_log();
    }
}
