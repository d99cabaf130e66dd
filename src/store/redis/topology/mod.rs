//! The topology of a Redis: its nodes, and how to reach each of them.
//!
//! A node is a [`Link`] and, for each worker, a queue ([`Lanes`]). The differences between kinds of Redis end here: the
//! link asks a [`Dialer`] for a connection, and the dialer knows the current place of its node.

mod access;
pub mod address;
mod cluster;
pub mod config;
mod dial;
mod layout;
mod named_master;
mod overview;
pub mod replicas;
pub mod route;
mod sentinel;

use std::sync::Arc;

use tokio::runtime::Handle;

use self::address::Place;
use crate::store::health::OnChange;
use crate::store::redis::decide::lanes::Lanes;
use crate::store::redis::doctor::StartError;
use crate::store::redis::link::Link;
pub(crate) use access::{Access, handshake_failed};
pub(crate) use cluster::{Cluster, Member, survey};
use dial::Target;
pub(crate) use dial::{DialError, Dialed, Dialer, connect};
pub(crate) use layout::{Layout, Master};
pub(crate) use route::{Reach, Route};

/// The nodes of a Redis.
pub(crate) enum Topology {
    /// A single Redis, or the master that Sentinels name, with all counters. One entry for each worker.
    One(Vec<Arc<Lanes>>),
    /// A cluster, with the counters of each slot on one node.
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Connects from each of these runtimes, and keeps trying in the background if that fails.
    ///
    /// # Errors
    /// If no attempt is possible at all, or if the first one finds that limits could never hold there.
    pub(crate) async fn start(route: &Route, on_change: OnChange, runtimes: &[Handle]) -> Result<Topology, StartError> {
        let Route { config, access, reach, .. } = route.clone();
        let dialer = match reach {
            Reach::One(dialer) => dialer,
            Reach::Cluster(known) => {
                return Cluster::start(config, access, known, on_change, runtimes).await.map(Topology::Cluster);
            }
        };
        let queue = config.queue;
        let link = Arc::new(Link::start(config, dialer, None, on_change, runtimes).await?);
        let node = |worker| Arc::new(Lanes::new(Arc::clone(&link), worker, queue));
        Ok(Topology::One((0..runtimes.len()).map(node).collect()))
    }
}

/// Returns a dialer for the node at this place: a node of a cluster, or a replica.
pub(crate) fn node_dialer(place: Place, access: &Arc<Access>) -> Dialer {
    Dialer::new(Target::Fixed(place), Arc::clone(access))
}
