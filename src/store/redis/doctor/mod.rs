//! What may be wrong with a Redis, in words for people: the problem, and what to do about it. Nothing here asks Redis;
//! [`link::inspection`](super::link::inspection) does while it serves, [`examination`](super::examination) for a
//! command.

pub mod cause;
pub(crate) mod identity;
pub(crate) mod rights;

use std::error::Error;

pub use cause::Cause;
pub use identity::{Persistence, Vitals};

/// The reason why a start is pointless.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No attempt to reach Redis is possible at all.
    #[error("redis cannot be asked: {0}")]
    Impossible(Box<dyn Error + Send + Sync>),
    /// Limits could never hold in this Redis.
    #[error("{redis} cannot hold counters: {cause}")]
    Unfit {
        /// The address of the Redis.
        redis: String,
        /// The reason.
        cause: Cause,
    },
}

impl StartError {
    /// Returns the error in one word, for metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            StartError::Impossible(_) => "other",
            StartError::Unfit { cause, .. } => cause.kind(),
        }
    }

    pub(crate) fn new(cause: impl Error + Send + Sync + 'static) -> StartError {
        StartError::Impossible(Box::new(cause))
    }
}
