//! Counters in Redis: shared by every process that asks the same Redis, decided by one script on Redis's own clock.

mod address;
mod adjustments;
mod batch;
mod breaker;
pub mod cause;
mod config;
mod connection;
mod diagnosis;
mod examination;
mod exchange;
mod heartbeats;
mod identity;
mod inspection;
mod keeper;
mod lanes;
mod link;
mod node;
mod nodes;
mod own;
mod pace;
mod queue;
mod redises;
mod replicas;
mod rights;
pub mod script;
mod slot;
mod source;
mod topology;
mod usage;

use std::borrow::Borrow;
use std::error::Error;

use tokio::runtime::Handle;
use tokio::time::Instant;

pub use address::{RedisAddress, RedisAddressError, RedisTls, RedisType};
pub use adjustments::RedisAdjustments;
pub use cause::Cause;
pub use config::{OnCall, RedisConfig, Vitals};
pub use examination::{Examination, Server, examine};
pub use heartbeats::RedisHeartbeats;
pub use replicas::{Reading, RedisReplicas, Replica, ReplicaError, Staleness};
pub use usage::RedisUsage;

use super::{Check, Store, StoreError, Verdicts};
use crate::spans::Spans;
use redises::Redises;

/// What the log lines of this store come from.
pub const LOG_TARGET: &str = module_path!();

/// The shared store, as one worker sees it.
pub struct RedisStore {
    redises: Redises,
    spans: Spans,
}

/// Whether Redis is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It is.
    Up,
    /// It is not: why, in one word.
    Down(&'static str),
    /// Some slots of a cluster are decided, and others are not; or one of two Redises, of which each has half.
    Partly {
        /// So many are, of [`Health::SLOTS`].
        slots: u16,
        /// Why one of the others is not, in one word.
        cause: &'static str,
    },
}

impl Health {
    /// How many slots a cluster has.
    pub const SLOTS: u16 = slot::SLOTS;

    /// Every cause of being down, in one word.
    pub const CAUSES: [&str; 33] = [
        "unknown_host",
        "nobody_listens",
        "socket_forbidden",
        "unreachable",
        "timeout",
        "connection",
        "mute",
        "no_password",
        "wrong_password",
        "needless_password",
        "protected_mode",
        "no_permission",
        "tls",
        "not_redis",
        "full",
        "replica",
        "loading",
        "busy",
        "cannot_save",
        "few_replicas",
        "too_many_clients",
        "no_database",
        "cluster",
        "no_cluster",
        "cluster_down",
        "sentinel",
        "no_sentinel",
        "unknown_master",
        "too_old",
        "no_command",
        "no_script",
        "answer",
        "other",
    ];
}

/// Is called whenever Redis goes down or comes up, the first time included, and whenever it is down for another cause.
pub type OnChange = Box<dyn Fn(Health) + Send + Sync>;

/// Why there is no use in starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No attempt to reach Redis is possible at all.
    #[error("redis cannot be asked: {0}")]
    Impossible(Box<dyn Error + Send + Sync>),
    /// Limits could never hold in it.
    #[error("{redis} cannot hold counters: {cause}")]
    Unfit {
        /// Its address.
        redis: String,
        /// Why.
        cause: Cause,
    },
}

impl StartError {
    /// In one word, as metrics have it.
    fn kind(&self) -> &'static str {
        match self {
            StartError::Impossible(_) => "other",
            StartError::Unfit { cause, .. } => cause.kind(),
        }
    }

    fn new(cause: impl Error + Send + Sync + 'static) -> StartError {
        StartError::Impossible(Box::new(cause))
    }
}

impl RedisStore {
    /// Connects, or goes on trying in the background where Redis cannot be reached: requests then learn that it is
    /// down.
    ///
    /// # Errors
    /// Where no attempt is possible at all, or the first one finds that limits could never hold in this Redis.
    pub async fn start(config: RedisConfig, on_change: OnChange) -> Result<RedisStore, StartError> {
        let mut stores = RedisStore::start_on(vec![Handle::current()], config, on_change).await?;
        Ok(stores.swap_remove(0))
    }

    /// The same for each of these runtimes: its connections live on it, so that a call and its answer stay on one
    /// thread. Whether Redis is up they know together.
    ///
    /// # Errors
    /// Where no attempt is possible at all, or the first one finds that limits could never hold in this Redis.
    pub async fn start_on(
        runtimes: Vec<Handle>,
        config: RedisConfig,
        on_change: OnChange,
    ) -> Result<Vec<RedisStore>, StartError> {
        let redises = Redises::start(config, on_change, &runtimes).await?;
        Ok(redises.into_iter().map(|redises| RedisStore { redises, spans: Spans::default() }).collect())
    }

    /// The same store, whose calls have these spans.
    #[must_use]
    pub fn traced(self, spans: Spans) -> RedisStore {
        RedisStore { spans, ..self }
    }
}

impl Store for RedisStore {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        self.redises.check(checks, deadline, self.spans.current()).await
    }

    fn flush_log(&self) {
        self.redises.flush_log();
    }
}

/// What the queue locks with; its test has another.
mod sync {
    pub(super) use parking_lot::Mutex;
}
