//! Errors of stores. They do not depend on the kind of store.

use std::sync::Arc;
use std::time::Duration;

use super::Verdicts;

/// The reason why a store could not decide.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The deadline passed without an answer.
    #[error("no answer in time")]
    Timeout,
    /// There is no memory for another counter, or for a counter that needs more.
    #[error("no room for more counters in memory")]
    Full,
    /// Too many requests are waiting. The store was not asked.
    #[error("too many requests are queued for the store")]
    Overloaded,
    /// This request waited for half of its time or more. The store was not asked.
    #[error("waited {} of {} ms in the queue: the store or this host is slow", .waited.as_millis(), .of.as_millis())]
    Waited {
        /// Time in the queue.
        waited: Duration,
        /// Time that the request had.
        of: Duration,
    },
    /// Redis is known to be down, for this reason. It was not asked.
    #[error("redis is down: {0}")]
    Down(Arc<str>),
    /// The connection was lost.
    #[error("connection lost: {0}")]
    Connection(Arc<str>),
    /// The store rejected the command.
    #[error("the store rejected the call: {0}")]
    Refused(Arc<str>),
    /// The store cannot read or write a counter of the request: its name and the reason. They are not printed, because
    /// the name contains data from clients.
    #[error("a counter could not be decided (LOG_LEVEL=debug logs its name)")]
    Counter(String),
    /// The answer was not a list of verdicts.
    #[error("unexpected answer")]
    Answer,
    /// Some nodes decided, and another did not.
    #[error("{}", .0.error)]
    Partly(Box<Partly>),
}

/// The decided part of a request when a node failed.
#[derive(Clone, Debug)]
pub struct Partly {
    /// The available verdicts, in the order of the checks.
    pub decided: Verdicts,
    /// Whether these verdicts deny the request, so that nothing is charged. If they do not, their charges remain.
    pub denied: bool,
    /// The reason why the other verdicts are missing.
    pub error: StoreError,
}

impl StoreError {
    /// The kinds of errors in metrics.
    pub const KINDS: [&'static str; 8] =
        ["timeout", "full", "overloaded", "down", "connection", "refused", "counter", "answer"];

    /// Returns the part that was decided, if any.
    pub fn partly(&self) -> Option<&Partly> {
        if let StoreError::Partly(partly) = self { Some(partly) } else { None }
    }

    /// Returns the reason why the rest was not decided.
    pub fn without_verdicts(&self) -> &StoreError {
        self.partly().map_or(self, |partly| &partly.error)
    }

    /// Returns whether the store is unchanged, because it was not asked or is full.
    pub fn changes_nothing(&self) -> bool {
        matches!(self, StoreError::Full | StoreError::Down(_)) || self.is_overload()
    }

    /// Returns whether the request was not sent to the store because of the queue.
    pub fn is_overload(&self) -> bool {
        matches!(self, StoreError::Overloaded | StoreError::Waited { .. })
    }

    /// Returns the kind, one of [`StoreError::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            StoreError::Timeout => "timeout",
            StoreError::Full => "full",
            StoreError::Overloaded | StoreError::Waited { .. } => "overloaded",
            StoreError::Down(_) => "down",
            StoreError::Connection(_) => "connection",
            StoreError::Refused(_) => "refused",
            StoreError::Counter(_) => "counter",
            StoreError::Answer => "answer",
            StoreError::Partly(partly) => partly.error.kind(),
        }
    }
}
