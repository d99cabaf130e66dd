//! Claims of notices: of all instances that share a store, one tells a notice.

mod redis;

use std::time::Duration;

use crate::engine::check::StoreError;
use crate::store::redis::topology::Route;
use redis::RedisClaims;

/// The claims of the instances that share a store.
pub enum Claims {
    /// Redis has them.
    Redis(Box<RedisClaims>),
    /// The store is the memory of this process, so no other instance can claim a notice.
    Alone,
}

/// The reply to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The notice is this instance's to tell.
    Ours,
    /// Another notice has the claim for this long.
    Taken(Duration),
}

impl Claims {
    /// Returns the claims of the service over this route, without asking Redis yet.
    pub fn in_redis(route: &Route) -> Claims {
        Claims::Redis(Box::new(RedisClaims::new(route)))
    }

    /// Claims what this name stands for, on behalf of the notice with this ID.
    ///
    /// # Errors
    /// If Redis does not answer within the timeout of the configuration, or rejects the command.
    pub async fn claim(&self, name: &str, id: &str, lifetime: Duration) -> Result<Claim, StoreError> {
        match self {
            Claims::Redis(redis) => redis.claim(name, id, lifetime).await,
            Claims::Alone => Ok(Claim::Ours),
        }
    }

    /// Keeps the claim for this long from now: the notice was told.
    ///
    /// # Errors
    /// If Redis does not answer within the timeout of the configuration, or rejects the command.
    pub async fn keep(&self, name: &str, id: &str, lifetime: Duration) -> Result<(), StoreError> {
        match self {
            Claims::Redis(redis) => redis.keep(name, id, lifetime).await,
            Claims::Alone => Ok(()),
        }
    }
}
