//! Systems that can be asked. One more is a file here, and a variant of [`Target`].

mod gubernator;
mod rls;
mod tollgate;

use std::time::Duration;

use serde::Deserialize;

use crate::history::{Ask, Told};
pub use gubernator::Gubernator;
pub use rls::Rls;
pub use tollgate::{Tollgate, Usage};

/// How a system is reached.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Target {
    /// Envoy's rate limit service over gRPC: Tollgate, envoyproxy/ratelimit, Limitador.
    Rls(Rls),
    /// The same, with Tollgate's own count of what a key has used.
    Tollgate(Tollgate),
    /// Gubernator over gRPC.
    Gubernator(Gubernator),
}

/// A connection to a system.
#[derive(Clone, Debug)]
pub enum Connection {
    /// Of [`Target::Rls`].
    Rls(rls::Client),
    /// Of [`Target::Tollgate`].
    Tollgate(tollgate::Client),
    /// Of [`Target::Gubernator`].
    Gubernator(gubernator::Client),
}

/// A counter that a request asks.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The key of the descriptor's first entry, which the limit is for.
    pub entry: String,
    /// Its value: the key of the counter.
    pub key: String,
    /// The hits.
    pub hits: u64,
    /// The holder, in an entry `stream`, at a limit of holders; the stream, in an entry `hold` or `settle`, at a
    /// budget.
    pub holder: Option<String>,
}

/// What a system answers.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether the request passes.
    pub told: Told,
    /// What remains at the counter that has least.
    pub remaining: Option<u64>,
    /// The wait until the same passes.
    pub wait: Option<Duration>,
    /// What the counter was used, if that was asked.
    pub total: Option<i64>,
    /// Who decided.
    pub by: Option<String>,
}

impl Target {
    /// Connects to the system. `caller` chooses among several addresses.
    ///
    /// # Errors
    /// Fails if an address has a wrong form. Whether somebody listens shows later.
    pub fn connect(&self, caller: usize) -> anyhow::Result<Connection> {
        match self {
            Target::Rls(rls) => Ok(Connection::Rls(rls.connect(caller)?)),
            Target::Tollgate(tollgate) => Ok(Connection::Tollgate(tollgate.connect(caller)?)),
            Target::Gubernator(fleet) => Ok(Connection::Gubernator(fleet.connect(caller)?)),
        }
    }

    /// Whether the system counts by itself what a key has used.
    pub fn has_totals(&self) -> bool {
        match self {
            Target::Tollgate(_) => true,
            Target::Rls(_) | Target::Gubernator(_) => false,
        }
    }

    /// Returns by how much waits may be told too long.
    pub fn wait_resolution(&self) -> Duration {
        match self {
            Target::Rls(_) | Target::Tollgate(_) => Duration::from_secs(1),
            Target::Gubernator(_) => Duration::ZERO,
        }
    }
}

impl Connection {
    /// Asks about a request.
    ///
    /// # Errors
    /// Fails if the system fails.
    pub async fn ask(&mut self, ask: Ask, asked: &[Asked], deadline: Duration) -> Result<Answer, String> {
        match self {
            Connection::Rls(client) => client.ask(ask, asked, deadline).await,
            Connection::Tollgate(client) => client.ask(ask, asked, deadline).await,
            Connection::Gubernator(client) => client.ask(ask, asked, deadline).await,
        }
    }
}
