//! Counters in Redis: shared by every process that asks the same Redis, decided by one script on Redis's own clock.

mod batch;
mod breaker;
mod config;
mod connection;
mod keeper;
mod link;
mod node;
mod queue;
pub mod script;

use std::borrow::Borrow;
use std::error::Error;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;

pub use config::{RedisAddress, RedisAddressError, RedisConfig};

use super::{Check, Store, StoreError, Verdicts};
use link::Link;
use node::Node;

/// The shared store, as one worker sees it.
pub struct RedisStore(Arc<Node>);

/// Is called whenever Redis goes down or comes up, the first time included.
pub type OnChange = Box<dyn Fn(bool) + Send + Sync>;

/// Why no attempt to reach Redis is possible at all.
#[derive(Debug, thiserror::Error)]
#[error("Redis cannot be asked: {0}")]
pub struct StartError(Box<dyn Error + Send + Sync>);

impl StartError {
    fn new(cause: impl Error + Send + Sync + 'static) -> StartError {
        StartError(Box::new(cause))
    }
}

impl RedisStore {
    /// Connects, or goes on trying in the background where Redis cannot be reached: requests then learn that it is
    /// down.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub async fn start(config: RedisConfig, on_change: OnChange) -> Result<RedisStore, StartError> {
        let queue = config.queue;
        let link = Arc::new(Link::start(config, on_change, &[Handle::current()]).await?);
        Ok(RedisStore(Arc::new(Node::new(link, 0, queue))))
    }

    /// The same for each of these runtimes: its connections live on it, so that a call and its answer stay on one
    /// thread. Whether Redis is up they know together.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub async fn start_on(
        runtimes: Vec<Handle>,
        config: RedisConfig,
        on_change: OnChange,
    ) -> Result<Vec<RedisStore>, StartError> {
        let queue = config.queue;
        let link = Arc::new(Link::start(config, on_change, &runtimes).await?);
        let node = |worker| Node::new(Arc::clone(&link), worker, queue);
        Ok((0..runtimes.len()).map(|worker| RedisStore(Arc::new(node(worker)))).collect())
    }
}

impl Store for RedisStore {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        self.0.ask(checks, deadline).await
    }
}

/// What the queue locks with; its test has another.
mod sync {
    pub(super) use parking_lot::Mutex;
}
