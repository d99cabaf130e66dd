//! What each replica says of itself, again and again: in Redis for all of them, so that each knows the others. One that
//! is silent for longer than [`TTL`] is listed no more.
//!
//! All ages go by the store's clock: a replica says how long ago something was, never when.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::StoreError;
use super::redis::RedisHeartbeats;

/// For so long a replica is listed that says nothing.
pub const TTL: Duration = Duration::from_secs(15);

/// So many are listed.
pub const MOST: usize = 200;

/// Where the replicas of a service meet.
pub enum HeartbeatStore {
    /// In Redis.
    Redis(Box<RedisHeartbeats>),
    /// Nowhere: a process that counts in its memory shares nothing.
    Memory,
}

/// What a replica says of itself. Another version of Tollgate may leave something out, or say more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Said {
    /// Of Tollgate.
    pub version: String,
    /// Whether it answers requests.
    pub state: ReplicaState,
    /// The version of the rules in force; `None` before there are any.
    pub rules: Option<String>,
    /// For how long they have been in force, in milliseconds.
    pub rules_age_ms: u64,
    /// The version of the candidate rules, where there are some.
    pub candidates: Option<String>,
    /// For how long it has run, in milliseconds.
    pub uptime_ms: u64,
}

/// Whether a replica answers requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// By rules.
    Ready,
    /// Not for long: it is shutting down.
    Draining,
    /// It has no rules yet, or health wants something that is not there.
    #[default]
    #[serde(other)]
    NotReady,
}

impl ReplicaState {
    /// As people read it.
    pub const fn name(self) -> &'static str {
        match self {
            ReplicaState::Ready => "ready",
            ReplicaState::NotReady => "not ready",
            ReplicaState::Draining => "draining",
        }
    }
}

/// What is done.
#[derive(Clone, Copy, Debug)]
pub enum Command<'c> {
    /// The replica is here, and says this.
    Beat(&'c Said),
    /// It goes.
    Leave,
}

/// A replica that has been heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// What it is called.
    pub id: String,
    /// How long ago it was heard, in milliseconds.
    pub heard_ms: u64,
    /// What it said then; `None` where this version of Tollgate cannot read it.
    pub said: Option<Said>,
}

/// Who is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Each, the one that asks among them.
    pub replicas: Vec<Heartbeat>,
    /// There are so many that the one that asks is not listed.
    pub is_full: bool,
}

impl HeartbeatStore {
    /// Does what is asked by the replica of this id, and tells who is there.
    ///
    /// # Errors
    /// Where the store does not answer.
    pub async fn ask(&self, id: &str, command: Command<'_>) -> Result<Reply, StoreError> {
        match self {
            HeartbeatStore::Redis(redis) => redis.ask(id, command).await,
            HeartbeatStore::Memory => Ok(Reply::default()),
        }
    }
}
