//! Counters in Redis: shared by every process that asks the same Redis, decided by one script on Redis's own clock.

mod batch;
mod config;
mod link;
pub mod script;

use std::borrow::Borrow;
use std::sync::Arc;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::runtime::Handle;
use tokio::time::Instant;

pub use config::{RedisAddress, RedisAddressError, RedisConfig};
pub use link::OnChange;

use super::{Check, Store, StoreError, Verdicts};
use batch::{Batch, Queue};
use link::Link;

/// The shared store, as one worker sees it.
pub struct RedisStore(Arc<Shared>);

struct Shared {
    link: Arc<Link>,
    worker: usize,
    queue: Queue,
}

impl RedisStore {
    /// Connects, or goes on trying in the background where Redis cannot be reached: requests are then told that it is down.
    /// `on_change` is told whenever Redis goes down or comes up, the first time included.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub async fn start(config: RedisConfig, on_change: OnChange) -> Result<RedisStore, RedisError> {
        let queue = Queue::new(config.queue);
        let link = Arc::new(Link::start(config, on_change, vec![Handle::current()]).await?);
        Ok(RedisStore(Arc::new(Shared { link, worker: 0, queue })))
    }

    /// The same for each of these runtimes: its connections live on it, so that a call and its answer stay on one thread. Whether Redis is
    /// up they know together.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub async fn start_on(
        runtimes: Vec<Handle>,
        config: RedisConfig,
        on_change: OnChange,
    ) -> Result<Vec<RedisStore>, RedisError> {
        let (workers, capacity) = (runtimes.len(), config.queue);
        let link = Arc::new(Link::start(config, on_change, runtimes).await?);
        let shared = |worker| Shared { link: Arc::clone(&link), worker, queue: Queue::new(capacity) };
        Ok((0..workers).map(|worker| RedisStore(Arc::new(shared(worker)))).collect())
    }
}

impl Store for RedisStore {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let RedisStore(shared) = self;
        if shared.link.is_down() {
            return Err(StoreError::Down);
        }
        let start = || drop(tokio::spawn(Arc::clone(shared).call()));
        let answer = shared.queue.push(checks, deadline, start)?;
        let answer = match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // In time, but nobody answers: the process is about to end.
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout),
        };
        // To have much to do is no reason to suspect anything.
        if answer.as_ref().is_err_and(|error| !matches!(error, StoreError::Overloaded)) {
            shared.link.suspect();
        }
        answer
    }
}

impl Shared {
    /// Makes calls until nothing waits.
    async fn call(self: Arc<Self>) {
        while let Some(mut batch) = self.queue.next() {
            let reply = match self.link.connection(self.worker) {
                Some(mut connection) => ask(&mut connection, &mut batch).await.map_err(classify),
                None => Err(StoreError::Down),
            };
            batch.answer(reply);
        }
    }
}

/// One call; a second one where Redis has forgotten the script, which it says before it does anything.
async fn ask(connection: &mut MultiplexedConnection, batch: &mut Batch) -> Result<Vec<u8>, RedisError> {
    match script::call(batch.groups()).query_async(connection).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            script::load().exec_async(connection).await?;
            batch.leave_out_the_gone();
            script::call(batch.groups()).query_async(connection).await
        }
        reply => reply,
    }
}

fn classify(error: RedisError) -> StoreError {
    if error.is_timeout() {
        StoreError::Timeout
    } else if matches!(error.kind(), ErrorKind::Io) || error.is_connection_dropped() {
        StoreError::Connection(error)
    } else {
        StoreError::Refused(error)
    }
}
