//! Where counters live in Redis: which nodes there are, and how each is reached.
//!
//! A node is a [`Link`] and, for each worker, a queue ([`Lanes`]). What is special to a kind of Redis ends here: the
//! link asks a [`Dialer`] for a connection, and the dialer knows where its node is just now.

mod access;
mod cluster;
mod dial;
mod layout;
mod overview;
mod sentinel;

use std::sync::Arc;

use tokio::runtime::Handle;

use super::address::{Place, Servers};
use super::lanes::Lanes;
use super::link::Link;
use super::{OnChange, RedisConfig, StartError};
pub(super) use access::{Access, handshake_failed};
pub(super) use cluster::{Cluster, Member, survey};
use dial::Target;
pub(super) use dial::{DialError, Dialed, Dialer, connect};
pub(super) use layout::{Layout, Master};
use sentinel::Sentinels;

/// The nodes of a Redis.
pub(super) enum Topology {
    /// A Redis by itself, or the master that Sentinels name: all counters are there. For each worker.
    One(Vec<Arc<Lanes>>),
    /// Each node has the counters of its slots.
    Cluster(Arc<Cluster>),
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
        let access = Arc::new(Access::start(&config.address).map_err(StartError::new)?);
        let (queue, dialer) = match reach(&config, &access) {
            Reach::One(dialer) => (config.queue, dialer),
            Reach::Cluster(seeds) => {
                return Cluster::start(config, access, seeds, on_change, runtimes).await.map(Topology::Cluster);
            }
        };
        let link = Arc::new(Link::start(config, dialer, None, on_change, runtimes).await?);
        let node = |worker| Arc::new(Lanes::new(Arc::clone(&link), worker, queue));
        Ok(Topology::One((0..runtimes.len()).map(node).collect()))
    }
}

/// How the nodes of a Redis are reached.
pub(super) enum Reach {
    /// There is one, and this makes connections to it.
    One(Dialer),
    /// Whoever is at one of these places knows all of them.
    Cluster(Vec<Place>),
}

/// How those of this Redis are.
pub(super) fn reach(config: &RedisConfig, access: &Arc<Access>) -> Reach {
    let target = match config.address.servers() {
        Servers::Single(place) => Target::Fixed(place.clone()),
        Servers::Sentinel { master, sentinels } => {
            let access = access.of_sentinels(&config.address);
            Target::Master(Sentinels::start(master.clone(), sentinels.clone(), access, config.timeout))
        }
        Servers::Cluster(seeds) => return Reach::Cluster(seeds.clone()),
    };
    Reach::One(Dialer::new(target, Arc::clone(access)))
}

/// What makes connections to the node at this place: one of a cluster, or a replica.
pub(super) fn node_dialer(place: Place, access: &Arc<Access>) -> Dialer {
    Dialer::new(Target::Fixed(place), Arc::clone(access))
}
