//! Counters in Redis: shared by every process that asks the same Redis, decided by one script on Redis's own clock.

mod config;
mod link;
pub mod script;

use std::sync::Arc;
use std::time::Instant;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::runtime::Handle;

pub use config::{RedisAddress, RedisAddressError, RedisConfig};
pub use link::OnChange;

use super::{Check, Store, StoreError};
use crate::algorithm::Verdict;
use link::Link;

/// The shared store, as one worker sees it.
pub struct RedisStore {
    link: Arc<Link>,
    worker: usize,
}

impl RedisStore {
    /// Connects, or goes on trying in the background where Redis cannot be reached: requests are then told that it is down.
    /// `on_change` is told whenever Redis goes down or comes up, the first time included.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub async fn start(config: RedisConfig, on_change: OnChange) -> Result<RedisStore, RedisError> {
        let link = Link::start(config, on_change, vec![Handle::current()]).await?;
        Ok(RedisStore { link: Arc::new(link), worker: 0 })
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
        let workers = runtimes.len();
        let link = Arc::new(Link::start(config, on_change, runtimes).await?);
        Ok((0..workers).map(|worker| RedisStore { link: Arc::clone(&link), worker }).collect())
    }
}

impl Store for RedisStore {
    async fn check(&self, checks: &[Check], deadline: Instant) -> Result<Vec<Verdict>, StoreError> {
        let mut connection = self.link.connection(self.worker).ok_or(StoreError::Down)?;
        let reply = match tokio::time::timeout_at(deadline.into(), ask(&mut connection, checks)).await {
            Ok(Ok(reply)) => script::verdicts(&reply, checks.len()),
            Ok(Err(error)) => Err(classify(error)),
            Err(_) => Err(StoreError::Timeout),
        };
        if reply.is_err() {
            self.link.suspect();
        }
        reply
    }
}

/// One call; a second one where Redis has forgotten the script, which it says before it does anything.
async fn ask(connection: &mut MultiplexedConnection, checks: &[Check]) -> Result<Vec<u8>, RedisError> {
    let call = script::call(&[checks]);
    match call.query_async(connection).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            script::load().exec_async(connection).await?;
            call.query_async(connection).await
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
