//! The adjustments that all replicas share: a text and its version, read and written by one script, over a connection
//! of its own, so that no request waits for it. A reader asks for the version, and for the text where that has changed.

use deadpool_redis::redis::{Cmd, Value, cmd};

use super::exchange::{Exchange, Turn};
use super::{RedisConfig, StartError};
use crate::adjustment::{Adjustment, Id, MOST, Written};
use crate::store::StoreError;
use crate::store::adjustments::{Command, Outcome, Reply};

pub(super) const SOURCE: &str = include_str!("../../../lua/adjustments.lua");

/// Where adjustments are kept for all replicas.
pub struct RedisAdjustments {
    /// The first key is that of the version, the second that of the text.
    exchange: Exchange,
}

impl RedisAdjustments {
    /// Those of the service with this configuration; nothing is asked yet.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub fn new(config: RedisConfig) -> Result<RedisAdjustments, StartError> {
        let exchange = Exchange::new(config, SOURCE, ("adjustments", &["version", "list"]))?;
        Ok(RedisAdjustments { exchange })
    }

    /// Does what is asked. `known` is the version that the caller knows.
    ///
    /// # Errors
    /// Where Redis does not answer within the timeout of the configuration, or refuses.
    pub async fn ask(&self, known: u64, command: Command<'_>) -> Result<Reply, StoreError> {
        let mut turn = self.exchange.turn().await;
        if let Command::Read = command
            && self.version(&mut turn).await? == known
        {
            return Ok(Reply::unchanged(known));
        }
        read(turn.send(&self.call(command)).await?)
    }

    async fn version(&self, turn: &mut Turn<'_>) -> Result<u64, StoreError> {
        let mut get = cmd("GET");
        get.arg(self.exchange.key(0));
        match turn.send(&get).await? {
            Value::Nil => Ok(0),
            Value::BulkString(version) => number(&version),
            _ => Err(StoreError::Answer),
        }
    }

    fn call(&self, command: Command<'_>) -> Cmd {
        let mut call = self.exchange.call();
        match command {
            Command::Read => {
                call.arg("read");
            }
            Command::Begin(proposal) => {
                let lasts_ms = u64::try_from(proposal.lasts.as_millis()).unwrap_or(u64::MAX);
                // It has strings and numbers alone, so that it cannot fail.
                let content = serde_json::to_string(&Written::from(&proposal.content)).unwrap_or_default();
                call.arg("begin").arg(proposal.id.as_str()).arg(lasts_ms).arg(content).arg(MOST);
            }
            Command::End(id) => {
                call.arg("end").arg(id.as_str());
            }
        }
        call
    }
}

/// What the script replies.
fn read(reply: Value) -> Result<Reply, StoreError> {
    let Value::Array(parts) = reply else { return Err(StoreError::Answer) };
    let [Value::Int(now_ms), Value::BulkString(outcome), Value::BulkString(version), Value::BulkString(lines)] =
        &*parts
    else {
        return Err(StoreError::Answer);
    };
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| StoreError::Answer);
    let outcome = match text(outcome)? {
        "read" => Outcome::Read,
        "done" => Outcome::Done,
        "same" => Outcome::Same,
        "taken" => Outcome::Taken,
        "full" => Outcome::Full,
        "unknown" => Outcome::Unknown,
        _ => return Err(StoreError::Answer),
    };
    let all: Vec<Option<Adjustment>> = text(lines)?.lines().map(adjustment).collect();
    let unreadable = all.iter().filter(|one| one.is_none()).count();
    Ok(Reply {
        outcome,
        now_ms: u64::try_from(*now_ms).map_err(|_| StoreError::Answer)?,
        version: number(version)?,
        adjustments: all.into_iter().flatten().collect(),
        unreadable,
    })
}

fn number(text: &[u8]) -> Result<u64, StoreError> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(StoreError::Answer)
}

/// One of a line.
fn adjustment(line: &str) -> Option<Adjustment> {
    let mut parts = line.splitn(4, ' ');
    let (since_ms, until_ms) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let (id, content) = (Id::parse(parts.next()?)?, serde_json::from_str::<Written>(parts.next()?).ok()?);
    Some(Adjustment { id, content: content.content().ok()?, since_ms, until_ms })
}
