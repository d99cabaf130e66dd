//! The heartbeats of instances: a hash with one field for each, read and written by one script. They use a separate
//! connection, so no request waits for them.

use deadpool_redis::redis::Value;

use crate::engine::check::StoreError;
use crate::shared::exchange::{Exchange, Repeat};
use crate::shared::fleet::PERIOD;
use crate::shared::fleet::heartbeats::{Beat, Command, Heartbeat, MOST, Reply, TTL};
use crate::store::redis::topology::route::Route;

pub(crate) const SOURCE: &str = include_str!("../../../lua/fleet.lua");

/// The store of a service's heartbeats.
pub struct RedisHeartbeats {
    exchange: Exchange,
}

impl RedisHeartbeats {
    /// Returns the store of the service over this route, without asking Redis yet.
    pub fn new(route: &Route) -> RedisHeartbeats {
        RedisHeartbeats { exchange: Exchange::new(route, SOURCE, ("replicas", &["heard"])) }
    }

    /// Executes a command of the instance with this ID, and returns all instances if the known list may be out of date.
    ///
    /// # Errors
    /// If Redis does not answer within the timeout of the configuration, or rejects the command.
    pub async fn ask(&self, id: &str, command: Command<'_>) -> Result<Reply, StoreError> {
        let mut call = self.exchange.call();
        let (name, list) = match command {
            Command::Beat(Beat { list, .. }) => ("beat", list),
            Command::Leave => ("leave", 0),
        };
        call.arg(name).arg(id).arg(TTL.as_millis() as u64).arg(MOST).arg(PERIOD.as_millis() as u64).arg(list);
        if let Command::Beat(Beat { published, .. }) = command {
            // Cannot fail, since there are only strings and numbers.
            call.arg(serde_json::to_string(published).unwrap_or_default());
        }
        read(self.exchange.turn().await.send(&call, Repeat::Allowed).await?)
    }
}

/// Parses the reply of the script.
fn read(reply: Value) -> Result<Reply, StoreError> {
    let Value::Array(parts) = reply else { return Err(StoreError::Answer) };
    let [Value::Int(now_ms), Value::BulkString(outcome), Value::Int(list), Value::Array(listed)] = &*parts else {
        return Err(StoreError::Answer);
    };
    let now_ms = u64::try_from(*now_ms).map_err(|_| StoreError::Answer)?;
    let list = u64::try_from(*list).map_err(|_| StoreError::Answer)?;
    let heartbeat = |pair: &[Value]| match pair {
        [Value::BulkString(id), Value::BulkString(kept)] => {
            heartbeat(std::str::from_utf8(id).ok()?, std::str::from_utf8(kept).ok()?, now_ms)
        }
        _ => None,
    };
    let replicas = (outcome != b"unchanged").then(|| listed.chunks(2).filter_map(heartbeat).collect());
    Ok(Reply { replicas, list, is_full: outcome == b"full" })
}

/// Parses the heartbeat of an instance.
fn heartbeat(id: &str, kept: &str, now_ms: u64) -> Option<Heartbeat> {
    let (heard, published) = kept.split_once(' ')?;
    let heard_ms = now_ms.saturating_sub(heard.parse().ok()?);
    Some(Heartbeat { id: id.to_owned(), heard_ms, published: serde_json::from_str(published).ok() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fleet::heartbeats::{Published, ReplicaState};

    #[test]
    fn what_another_version_says_is_read_as_far_as_it_goes() {
        let of = |published: &str| heartbeat("host-1", &format!("1000 {published}"), 3_500).unwrap();
        let published = of(r#"{"version": "9.1.0", "state": "asleep", "mood": "good", "rules": "abc"}"#);
        assert_eq!((&*published.id, published.heard_ms), ("host-1", 2_500));
        let expected = Published { version: "9.1.0".into(), rules: Some("abc".into()), ..Published::default() };
        assert_eq!(published.published, Some(expected));
        assert_eq!(of("nonsense").published, None);
        assert_eq!(of(r#"{"state": "draining"}"#).published.unwrap().state, ReplicaState::Draining);
        assert_eq!(heartbeat("host-1", "then {}", 0), None);
    }
}
