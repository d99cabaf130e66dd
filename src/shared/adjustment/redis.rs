//! The adjustments that all instances share: a text and its version, read and written by one script. They use a
//! separate connection, so no request waits for them. A reader asks for the version, and for the text only if that has
//! changed.

use std::time::Duration;

use deadpool_redis::redis::{Cmd, Value, cmd};

use super::audit::{Action, Note, Record, Trail};
use super::board::{Command, Offer, Outcome, Reply};
use crate::engine::adjustment::{Adjustment, Id, LASTS, MOST, Proposal, Written};
use crate::engine::algorithm::MAX_HITS;
use crate::engine::check::StoreError;
use crate::shared::exchange::{Exchange, Repeat, Turn};
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::link::connection::Fault;
use crate::store::redis::topology::route::Route;

pub(crate) const SOURCE: &str = include_str!("../../../lua/adjustments.lua");

/// The store of the fleet's adjustments.
pub struct RedisAdjustments {
    /// The keys are for the version, the text, the trail of changes and that of refusals.
    exchange: Exchange,
    /// Reads the trails, which takes long: no change of an adjustment waits for a reader.
    trails: Exchange,
}

impl RedisAdjustments {
    /// Returns the store of the service over this route, without asking Redis yet.
    pub fn new(route: &Route) -> RedisAdjustments {
        let exchange = || Exchange::new(route, SOURCE, ("adjustments", &["version", "list", "audit", "refused"]));
        RedisAdjustments { exchange: exchange(), trails: exchange() }
    }

    /// Executes a command. `known` is the version that the caller knows.
    ///
    /// # Errors
    /// If Redis does not answer within the timeout of the configuration, or rejects the command.
    pub async fn ask(&self, known: u64, command: Command<'_>) -> Result<Reply, StoreError> {
        let mut turn = self.exchange.turn().await;
        match command {
            Command::Read if self.version(&mut turn).await? == Some(known) => return Ok(Reply::unchanged(known)),
            Command::Read => return self.read(&mut turn).await,
            Command::Begin(..) | Command::Offer(..) | Command::End(..) | Command::Sweep => {
                self.exchange.admit_change()?
            }
        }
        let reply = match command {
            Command::End(id, note) => self.end(&mut turn, id, note).await?,
            // A repeated command finds the same adjustment, and says so.
            command => read(turn.send(&self.call(command), Repeat::Allowed).await?)?,
        };
        // A failover that began meanwhile may lose the change.
        self.exchange.admit_change()?;
        Ok(reply)
    }

    async fn read(&self, turn: &mut Turn<'_>) -> Result<Reply, StoreError> {
        read(turn.send(&self.call(Command::Read), Repeat::Allowed).await?)
    }

    /// Adds a record of this age to the audit trail.
    ///
    /// # Errors
    /// If Redis does not answer within the timeout of the configuration, or rejects the command.
    pub async fn record(&self, action: Action, age: Duration, note: &Note) -> Result<(), StoreError> {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let mut call = self.exchange.call();
        call.arg("record").arg(action.name()).arg(age_ms).arg("").arg("").arg(note.json());
        let mut turn = self.exchange.turn().await;
        self.exchange.admit_change()?;
        turn.send(&call, Repeat::Allowed).await?;
        // A failover that began meanwhile may lose the record.
        self.exchange.admit_change()
    }

    /// Returns the newest records of the audit trail: at most `most` changes, and as many refusals.
    ///
    /// # Errors
    /// If Redis does not answer within the timeout of the configuration, or rejects the command.
    pub async fn trail(&self, most: usize) -> Result<Trail, StoreError> {
        let mut call = self.trails.call();
        call.arg("trail").arg(most);
        let reply = self.trails.turn().await.send(&call, Repeat::Allowed).await?;
        trail(&reply)
    }

    /// Ends an adjustment. If the reply is lost, reads whether it was ended: a second command would find none.
    async fn end(&self, turn: &mut Turn<'_>, id: &Id, note: &Note) -> Result<Reply, StoreError> {
        let call = self.call(Command::End(id, note));
        let before = self.read(turn).await?;
        let lost = match turn.send(&call, Repeat::Never).await {
            Err(fault @ (Fault::Lost(_) | Fault::Silent(_))) => fault,
            reply => return read(reply?),
        };
        let Ok(after) = self.read(turn).await else { return Err(lost.into()) };
        if after.has(id) {
            return read(turn.send(&call, Repeat::Never).await?);
        }
        let outcome = if before.has(id) { Outcome::Done } else { Outcome::Unknown };
        Ok(Reply { outcome, ..after })
    }

    /// Returns the version of the text, or `None` if the key holds something else.
    async fn version(&self, turn: &mut Turn<'_>) -> Result<Option<u64>, StoreError> {
        let mut get = cmd("GET");
        get.arg(self.exchange.key(0));
        match turn.send(&get, Repeat::Allowed).await {
            Ok(Value::Nil) => Ok(Some(0)),
            Ok(Value::BulkString(version)) => Ok(number(&version).ok()),
            Ok(_) => Err(StoreError::Answer),
            // The next change replaces it.
            Err(Fault::Refused(Cause::Other(said))) if said.contains("WRONGTYPE") => Ok(None),
            Err(fault) => Err(fault.into()),
        }
    }

    fn call(&self, command: Command<'_>) -> Cmd {
        let mut call = self.exchange.call();
        match command {
            Command::Read => {
                call.arg("read");
            }
            Command::Begin(proposal, note) => begin(&mut call, "begin", proposal, note),
            Command::Offer(Offer { proposal, note, held, seen }) => {
                begin(&mut call, "offer", proposal, note);
                call.arg(u64::try_from(held.as_millis()).unwrap_or(u64::MAX)).arg(seen);
            }
            Command::End(id, note) => {
                call.arg("end").arg(id.as_str()).arg("").arg("").arg("").arg(note.json());
            }
            Command::Sweep => {
                call.arg("sweep");
            }
        }
        call
    }
}

fn begin(call: &mut Cmd, command: &str, Proposal { id, content, lasts }: &Proposal, note: &Note) {
    let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
    // Cannot fail, since there are only strings and numbers.
    let content = serde_json::to_string(&Written::from(content)).unwrap_or_default();
    call.arg(command).arg(id.as_str()).arg(lasts_ms).arg(content).arg(MOST).arg(note.json());
}

/// Parses the reply of the script.
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
    // A line that is not valid text cannot be read, but the others can.
    let all: Vec<Option<Adjustment>> = String::from_utf8_lossy(lines).lines().map(adjustment).collect();
    let unreadable = all.iter().filter(|one| one.is_none()).count();
    Ok(Reply {
        outcome,
        now_ms: u64::try_from(*now_ms).map_err(|_| StoreError::Answer)?,
        version: number(version)?,
        adjustments: all.into_iter().flatten().collect(),
        unreadable,
    })
}

/// Parses the reply with the trails. Records of another version are left out.
fn trail(reply: &Value) -> Result<Trail, StoreError> {
    let Value::Array(parts) = reply else { return Err(StoreError::Answer) };
    let [Value::Int(now_ms), Value::BulkString(_), Value::Array(changes), Value::Array(refusals)] = &**parts else {
        return Err(StoreError::Answer);
    };
    let record = |value: &Value| match value {
        Value::BulkString(kept) => Record::parse(&String::from_utf8_lossy(kept)),
        _ => None,
    };
    let records = changes.iter().chain(refusals).filter_map(record).collect();
    Ok(Trail { now_ms: u64::try_from(*now_ms).map_err(|_| StoreError::Answer)?, records })
}

fn number(text: &[u8]) -> Result<u64, StoreError> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(StoreError::Answer)
}

/// Parses the adjustment in a line.
fn adjustment(line: &str) -> Option<Adjustment> {
    let mut parts = line.splitn(4, ' ');
    let (since_ms, until_ms): (u64, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    if since_ms > until_ms || until_ms >= MAX_HITS {
        return None;
    }
    // An adjustment written by hand is cut to the longest valid duration.
    let until_ms = until_ms.min(since_ms + u64::try_from(LASTS.1.as_millis()).unwrap_or(u64::MAX));
    let (id, content) = (Id::parse(parts.next()?)?, serde_json::from_str::<Written>(parts.next()?).ok()?);
    Some(Adjustment { id, content: content.content().ok()?, since_ms, until_ms })
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::store::redis::topology::config::{OnCall, RedisConfig};

    #[tokio::test]
    async fn a_reader_of_the_trail_and_a_change_do_not_wait_for_each_other() {
        let config = RedisConfig {
            on_call: OnCall::default(),
            address: "redis://127.0.0.1:1".parse().unwrap(),
            connections: 1,
            timeout: Duration::from_secs(1),
            queue: 1,
            key_prefix: String::new(),
            per_second: None,
        };
        let adjustments = RedisAdjustments::new(&Route::start(config).unwrap());
        let reading = adjustments.trails.turn().await;
        let most = Duration::from_secs(30);
        assert!(timeout(most, adjustments.ask(0, Command::Sweep)).await.is_ok_and(|reply| reply.is_err()));
        drop(reading);
        let _changing = adjustments.exchange.turn().await;
        assert!(timeout(most, adjustments.trail(1)).await.is_ok_and(|reply| reply.is_err()));
    }
}
