//! The adjustments that all replicas share: a text and its version, read and written by one script, over a connection
//! of its own, so that no request waits for it. A reader asks for the version, and for the text where that has changed.
//! In a cluster both lie in one slot, whose node is asked.
//!
//! The connection is made when it is first needed, and anew after each failure. Who reads them does so again and again,
//! and so this retries nothing but what may be due to a connection that is gone.

use std::sync::{Arc, LazyLock};

use deadpool_redis::redis::{Cmd, Script, Value, cmd};
use tokio::sync::Mutex;

use super::cause::Cause;
use super::connection::{Connection, Fault};
use super::topology::{self, Access, Reach};
use super::{RedisConfig, StartError, slot};
use crate::adjustment::{Adjustment, Id, MOST, Written};
use crate::store::StoreError;
use crate::store::adjustments::{Command, Outcome, Reply};

pub(super) const SOURCE: &str = include_str!("../../../lua/adjustments.lua");

static SHA1: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// Where adjustments are kept for all replicas.
pub struct RedisAdjustments {
    config: RedisConfig,
    access: Arc<Access>,
    reach: Reach,
    /// The names of the version and of the text. No counter has such: no domain is empty.
    keys: [String; 2],
    connection: Mutex<Option<Connection>>,
}

impl RedisAdjustments {
    /// Those of the service with this configuration; nothing is asked yet.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub fn new(config: RedisConfig) -> Result<RedisAdjustments, StartError> {
        let access = Arc::new(Access::start(&config.address).map_err(StartError::new)?);
        let reach = topology::reach(&config, &access);
        let keys = ["version", "list"].map(|name| format!("{}{{|adjustments}}|{name}", config.key_prefix));
        Ok(RedisAdjustments { config, access, reach, keys, connection: Mutex::default() })
    }

    /// Does what is asked. `known` is the version that the caller knows.
    ///
    /// # Errors
    /// Where Redis does not answer within the timeout of the configuration, or refuses.
    pub async fn ask(&self, known: u64, command: Command<'_>) -> Result<Reply, StoreError> {
        // One at a time: what is heard last is what is true.
        let mut connection = self.connection.lock().await;
        if let Command::Read = command
            && self.version(&mut connection).await? == known
        {
            return Ok(Reply::unchanged(known));
        }
        read(self.send(&mut connection, &self.call(command)).await?)
    }

    async fn version(&self, connection: &mut Option<Connection>) -> Result<u64, StoreError> {
        let mut get = cmd("GET");
        get.arg(&self.keys[0]);
        match self.send(connection, &get).await? {
            Value::Nil => Ok(0),
            Value::BulkString(version) => number(&version),
            _ => Err(StoreError::Answer),
        }
    }

    /// Sends a command that may be sent twice.
    async fn send(&self, connection: &mut Option<Connection>, command: &Cmd) -> Result<Value, Fault> {
        let is_new = connection.is_none();
        match self.try_send(connection, command).await {
            // Redis, or something on the way, has closed it meanwhile; or the slot has moved.
            Err(first @ (Fault::Lost(_) | Fault::Elsewhere(_))) if !is_new => {
                match self.try_send(connection, command).await {
                    // Not what the last try says: the first may have been heard.
                    Err(Fault::Connect(_)) => Err(first),
                    reply => reply,
                }
            }
            reply => reply,
        }
    }

    /// Sends it over the connection, which is made where there is none and is given up where it fails.
    async fn try_send(&self, place: &mut Option<Connection>, command: &Cmd) -> Result<Value, Fault> {
        let connection = match place.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let timeout = self.config.timeout;
        let reply = match connection.send(command.clone()).reply(timeout).await {
            Err(Fault::NoScript) => {
                let mut load = cmd("SCRIPT");
                load.arg("LOAD").arg(SOURCE);
                connection.send(load).reply(timeout).await?;
                connection.send(command.clone()).reply(timeout).await?
            }
            reply => reply?,
        };
        *place = Some(connection);
        Ok(reply)
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        let timeout = self.config.timeout;
        let dialed = match &self.reach {
            Reach::One(dialer) => dialer.connect(timeout).await,
            Reach::Cluster(seeds) => {
                let layout = topology::survey(seeds, &self.access, &self.config).await.map_err(Fault::Connect)?;
                let owner = layout.owner(slot::of(&self.keys[0])).ok_or(Fault::Connect(Cause::ClusterDown))?;
                topology::node_dialer(owner.place.clone(), &self.access).connect(timeout).await
            }
        };
        Ok(Connection::new(dialed.map_err(Fault::Connect)?, 0))
    }

    fn call(&self, command: Command<'_>) -> Cmd {
        let mut call = cmd("EVALSHA");
        call.arg(&*SHA1).arg(self.keys.len()).arg(&self.keys);
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
