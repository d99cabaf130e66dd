//! Where counters live in Redis: which nodes there are, and how each is reached.
//!
//! A node is a [`Link`] and, for each worker, a queue ([`Node`]). What is special to a kind of Redis ends here: the
//! link asks a [`Dialer`] for a connection, and the dialer knows where its node is just now.

mod access;
mod dial;
mod sentinel;

use std::sync::Arc;

use tokio::runtime::Handle;

use super::address::Servers;
use super::cause::Cause;
use super::link::Link;
use super::node::Node;
use super::{OnChange, RedisConfig, StartError};
pub(super) use access::{Access, handshake_failed};
use dial::Target;
pub(super) use dial::{DialError, Dialed, Dialer, connect};
use sentinel::Sentinels;

/// The nodes of a Redis. All counters are in one: a Redis by itself, or the master that Sentinels name.
pub(super) struct Topology {
    link: Arc<Link>,
    /// How many checks may wait, for each worker and node.
    queue: usize,
}

impl Topology {
    /// Connects from each of these runtimes, or goes on trying in the background.
    ///
    /// # Errors
    /// Where no attempt is possible at all, or the first one finds that limits could never hold there.
    pub(super) async fn start(
        config: RedisConfig,
        on_change: OnChange,
        runtimes: &[Handle],
    ) -> Result<Topology, StartError> {
        let dialer = dialer(&config)?;
        let queue = config.queue;
        let link = Arc::new(Link::start(config, dialer, on_change, runtimes).await?);
        Ok(Topology { link, queue })
    }

    /// The node that holds the counters, as this worker asks it.
    pub(super) fn node(&self, worker: usize) -> Arc<Node> {
        Arc::new(Node::new(Arc::clone(&self.link), worker, self.queue))
    }
}

/// What makes connections to the node that holds the counters.
///
/// # Errors
/// Where files are of no use, or nothing can hold counters there.
pub(super) fn dialer(config: &RedisConfig) -> Result<Dialer, StartError> {
    let access = Access::start(&config.address).map_err(StartError::new)?;
    let target = match config.address.servers() {
        Servers::Single(place) => Target::Fixed(place.clone()),
        Servers::Sentinel { master, sentinels } => {
            let access = access.of_sentinels(&config.address);
            Target::Master(Sentinels::start(master.clone(), sentinels.clone(), access, config.timeout))
        }
        Servers::Cluster(_) => return Err(StartError::Unfit { redis: config.to_string(), cause: Cause::Cluster }),
    };
    Ok(Dialer::new(target, Arc::new(access)))
}
