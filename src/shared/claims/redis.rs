//! Claims in Redis: one key each, which expires by itself. They use a separate connection, so no request waits for
//! them.

use std::time::Duration;

use deadpool_redis::redis::Value;

use super::Claim;
use crate::engine::check::StoreError;
use crate::shared::exchange::{Exchange, Repeat};
use crate::store::redis::topology::Route;

const SOURCE: &str = include_str!("../../../lua/claims.lua");

/// The store of claims.
pub struct RedisClaims {
    exchange: Exchange,
}

impl RedisClaims {
    pub(super) fn new(route: &Route) -> RedisClaims {
        // The names of the claims follow that of this key, so all are in one slot.
        RedisClaims { exchange: Exchange::new(route, SOURCE, ("claims", &[""])) }
    }

    pub(super) async fn claim(&self, name: &str, id: &str, lifetime: Duration) -> Result<Claim, StoreError> {
        match self.ask("claim", (name, id), lifetime).await? {
            Value::Int(0) => Ok(Claim::Ours),
            Value::Int(ms) => {
                u64::try_from(ms).map_or(Err(StoreError::Answer), |ms| Ok(Claim::Taken(Duration::from_millis(ms))))
            }
            _ => Err(StoreError::Answer),
        }
    }

    pub(super) async fn keep(&self, name: &str, id: &str, lifetime: Duration) -> Result<(), StoreError> {
        self.ask("keep", (name, id), lifetime).await.map(drop)
    }

    async fn ask(&self, command: &str, (name, id): (&str, &str), lifetime: Duration) -> Result<Value, StoreError> {
        let key = format!("{}{name}", self.exchange.key(0));
        let mut call = self.exchange.call_with([key]);
        call.arg(command).arg(id).arg(u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX).max(1));
        Ok(self.exchange.turn().await.send(&call, Repeat::Allowed).await?)
    }
}
