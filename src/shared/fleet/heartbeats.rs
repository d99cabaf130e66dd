//! Heartbeats: each instance repeatedly publishes its state in Redis, for all others to see. An instance that was
//! silent for longer than [`TTL`] is no longer listed.
//!
//! All ages are measured on the store's clock: an instance publishes how long ago an event was, never its time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a silent instance is listed.
pub const TTL: Duration = Duration::from_secs(15);

/// The most instances listed.
pub const MOST: usize = 200;

/// The published state of an instance. Another version of Tollgate may omit fields or add others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Published {
    /// The version of Tollgate.
    pub version: String,
    /// Whether the instance answers requests.
    pub state: ReplicaState,
    /// The version of the rules in force, or `None` before there are any.
    pub rules: Option<String>,
    /// How long the rules have been in force, in milliseconds.
    pub rules_age_ms: u64,
    /// The version of the candidate rules, if there are any.
    pub candidates: Option<String>,
    /// How long the instance has run, in milliseconds.
    pub uptime_ms: u64,
    /// Whether the instance answers questions of others. Older releases do not.
    pub answers: bool,
}

/// Whether an instance answers requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// The instance answers by rules.
    Ready,
    /// The instance is shutting down, and will soon stop answering.
    Draining,
    /// The instance has no rules yet, or does not meet another condition of health.
    #[default]
    #[serde(other)]
    NotReady,
}

impl ReplicaState {
    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            ReplicaState::Ready => "ready",
            ReplicaState::NotReady => "not ready",
            ReplicaState::Draining => "draining",
        }
    }
}

/// A command to the store.
#[derive(Clone, Copy, Debug)]
pub enum Command<'c> {
    /// Publish the state of this instance.
    Beat(Beat<'c>),
    /// Remove this instance.
    Leave,
}

/// A heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Beat<'c> {
    /// The state.
    pub published: &'c Published,
    /// The version of the list that this instance knows; 0 for none.
    pub list: u64,
}

/// An instance that has published its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The ID of the instance.
    pub id: String,
    /// How long ago it published its state, in milliseconds.
    pub heard_ms: u64,
    /// The published state, or `None` if this version of Tollgate cannot read it.
    pub published: Option<Published>,
}

/// The instances in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// All instances, including the one that asks if it is listed; `None` if the known list has not changed, all others
    /// in it were heard recently, and somebody has read all within a period.
    pub replicas: Option<Vec<Heartbeat>>,
    /// The version of the list.
    pub list: u64,
    /// Whether there are too many instances to list the one that asks.
    pub is_full: bool,
    /// Whether an instance has asked a question that is still open.
    pub has_questions: bool,
}
