//! Counters in Redis, shared by all processes that use the same Redis, decided by one script on Redis's clock.

mod deadlines;
pub mod decide;
pub mod doctor;
pub mod examination;
pub mod link;
pub mod replicas;
pub mod script;
pub mod topology;

use std::borrow::Borrow;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Store;
use super::health::OnChange;
use crate::engine::check::{Check, StoreError, Verdicts};
use crate::spans::Spans;
use decide::backends::Backends;
use doctor::StartError;
use topology::config::RedisConfig;
use topology::route::Route;

/// The target of this store's log lines.
pub const LOG_TARGET: &str = module_path!();

/// The shared store, as used by one worker.
pub struct RedisStore {
    backends: Backends,
    spans: Spans,
}

impl RedisStore {
    /// Connects. If Redis cannot be reached, keeps trying in the background, and requests get an error until it can.
    ///
    /// # Errors
    /// If a password or TLS file cannot be used, the TLS server name is invalid, or the first attempt finds that limits
    /// could never hold in this Redis.
    pub async fn start(config: RedisConfig, on_change: OnChange) -> Result<RedisStore, StartError> {
        let mut stores = RedisStore::start_on(vec![Handle::current()], config, on_change).await?;
        Ok(stores.swap_remove(0))
    }

    /// Connects once for each of these runtimes. The connections of a store live on its runtime, which keeps a call and
    /// its answer on one thread. The stores share what they know about the state of Redis.
    ///
    /// # Errors
    /// If a password or TLS file cannot be used, the TLS server name is invalid, or the first attempt finds that limits
    /// could never hold in this Redis.
    pub async fn start_on(
        runtimes: Vec<Handle>,
        config: RedisConfig,
        on_change: OnChange,
    ) -> Result<Vec<RedisStore>, StartError> {
        RedisStore::start_over(runtimes, &Route::start(config)?, on_change).await
    }

    /// Connects over a route that other parts of the process use as well.
    ///
    /// # Errors
    /// If a password or TLS file cannot be used, the TLS server name is invalid, or the first attempt finds that limits
    /// could never hold in this Redis.
    pub async fn start_over(
        runtimes: Vec<Handle>,
        route: &Route,
        on_change: OnChange,
    ) -> Result<Vec<RedisStore>, StartError> {
        let backends = Backends::start(route, on_change, &runtimes).await?;
        Ok(backends.into_iter().map(|backends| RedisStore { backends, spans: Spans::default() }).collect())
    }

    /// Returns the store with these spans for its calls.
    #[must_use]
    pub fn traced(self, spans: Spans) -> RedisStore {
        RedisStore { spans, ..self }
    }
}

impl Store for RedisStore {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        self.backends.check(checks, deadline, self.spans.current()).await
    }

    fn flush_log(&self) {
        self.backends.flush_log();
    }
}
