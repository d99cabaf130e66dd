//! What the instances of a fleet exchange through Redis: heartbeats, in a hash with one field for each instance, and
//! questions with their answers. Each is read and written by one script over a separate connection, so no request waits
//! for them.

use deadpool_redis::redis::{Cmd, Value, from_redis_value};
use std::time::Duration;

use crate::engine::check::StoreError;
use crate::shared::exchange::{Exchange, Repeat};
use crate::shared::fleet::PERIOD;
use crate::shared::fleet::heartbeats::{Beat, Command, Heartbeat, MOST, Reply, TTL};
use crate::shared::fleet::questions::MOST_OPEN;
use crate::store::redis::topology::route::Route;

pub(crate) const SOURCE: &str = include_str!("../../../lua/fleet.lua");

const QUESTIONS: &str = include_str!("../../../lua/questions.lua");

/// The first part of the names of all keys, which are in one slot.
const NAME: &str = "replicas";

/// The key of the open questions.
const ASKED: &str = "asked";

/// The store of a service's heartbeats.
pub struct RedisHeartbeats {
    exchange: Exchange,
}

impl RedisHeartbeats {
    /// Returns the store of the service over this route, without asking Redis yet.
    pub fn new(route: &Route) -> RedisHeartbeats {
        RedisHeartbeats { exchange: Exchange::new(route, SOURCE, (NAME, &["heard", ASKED])) }
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
    let [Value::Int(now_ms), outcome @ .., Value::Int(questions)] = &*parts else { return Err(StoreError::Answer) };
    let [Value::BulkString(outcome), Value::Int(list), Value::Array(listed)] = outcome else {
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
    Ok(Reply { replicas, list, is_full: outcome == b"full", has_questions: *questions == 1 })
}

/// The store of the questions that instances ask each other.
pub struct RedisQuestions {
    exchange: Exchange,
}

impl RedisQuestions {
    /// Returns the store of the questions over this route, without asking Redis yet.
    pub fn new(route: &Route) -> RedisQuestions {
        RedisQuestions { exchange: Exchange::new(route, QUESTIONS, (NAME, &[ASKED])) }
    }

    /// Opens a question for this long. Returns `false` if too many are open.
    pub(super) async fn ask(&self, id: &str, (text, lasts): (&str, Duration)) -> Result<bool, StoreError> {
        let mut call = self.call("ask", id);
        call.arg(lasts.as_millis() as u64).arg(MOST_OPEN).arg(text);
        Ok(self.send(&call, Repeat::Allowed).await? == Value::Int(1))
    }

    /// Returns the open questions with their IDs.
    pub(super) async fn read(&self) -> Result<Vec<(String, String)>, StoreError> {
        let open = self.send(&self.call("read", ""), Repeat::Allowed).await?;
        from_redis_value(open).map_err(|_| StoreError::Answer)
    }

    /// Answers a question for this instance, unless it is closed.
    pub(super) async fn answer(&self, id: &str, instance: &str, answer: &[u8]) -> Result<(), StoreError> {
        self.send(self.call("answer", id).arg(instance).arg(answer), Repeat::Allowed).await.map(drop)
    }

    /// Returns the answers with the IDs of their instances and closes the question, if there are so many.
    pub(super) async fn collect(&self, id: &str, wanted: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let given = self.send(self.call("collect", id).arg(wanted), Repeat::Never).await?;
        let mut given: Vec<(String, Vec<u8>)> = from_redis_value(given).map_err(|_| StoreError::Answer)?;
        // The empty ID has their number.
        given.retain(|(instance, _)| !instance.is_empty());
        Ok(given)
    }

    fn call(&self, command: &str, id: &str) -> Cmd {
        let asked = self.exchange.key(0);
        let answers = if id.is_empty() { asked.to_owned() } else { format!("{asked}|{id}") };
        let mut call = self.exchange.call_with([asked, &answers]);
        call.arg(command).arg(id);
        call
    }

    async fn send(&self, call: &Cmd, repeat: Repeat) -> Result<Value, StoreError> {
        Ok(self.exchange.turn().await.send(call, repeat).await?)
    }
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
