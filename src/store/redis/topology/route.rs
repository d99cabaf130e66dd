//! The way to a Redis, and what this process knows about the places of its nodes.
//!
//! All connections of a process to one Redis share a route: those for decisions and those for the state of the fleet.
//! So the shared state follows a failover when decisions do, and finds a cluster whose configured nodes are gone.

use std::sync::Arc;

use parking_lot::Mutex;

use super::access::Access;
use super::address::{Place, Servers};
use super::config::RedisConfig;
use super::dial::{Dialer, Target};
use super::layout::Layout;
use super::sentinel::Sentinels;
use crate::store::redis::doctor::StartError;

/// The way to a Redis, or to two: limits of seconds can have a separate one.
#[derive(Clone)]
pub struct Route {
    pub(crate) config: RedisConfig,
    pub(crate) access: Arc<Access>,
    pub(crate) reach: Reach,
    pub(crate) per_second: Option<Box<Route>>,
}

/// The way to reach the nodes of a Redis.
#[derive(Clone)]
pub(crate) enum Reach {
    /// A single node, with its dialer.
    One(Dialer),
    /// The nodes of a cluster, any of which knows all others.
    Cluster(Arc<KnownNodes>),
}

/// The nodes of a cluster that can be asked for its layout.
pub(crate) struct KnownNodes {
    /// Nodes named in the settings.
    seeds: Vec<Place>,
    /// Masters of the last layout.
    masters: Mutex<Vec<Place>>,
}

impl Route {
    /// Returns the way to the Redis with this configuration, and starts to follow its Sentinels. Connects to no other
    /// server yet.
    ///
    /// # Errors
    /// If a password or TLS file cannot be used, or the TLS server name is invalid.
    pub fn start(mut config: RedisConfig) -> Result<Route, StartError> {
        let per_second = config.per_second.take().map(|config| Route::start(*config)).transpose()?;
        let access = Arc::new(Access::start(&config.address).map_err(StartError::new)?);
        let target = match config.address.servers() {
            Servers::Single(place) => Target::Fixed(place.clone()),
            Servers::Sentinel { master, sentinels } => {
                let access = access.of_sentinels(&config.address);
                Target::Master(Sentinels::start(master.clone(), sentinels.clone(), access, &config))
            }
            Servers::Cluster(seeds) => {
                let reach = Reach::Cluster(Arc::new(KnownNodes::new(seeds.clone())));
                return Ok(Route { config, access, reach, per_second: per_second.map(Box::new) });
            }
        };
        let reach = Reach::One(Dialer::new(target, Arc::clone(&access)));
        Ok(Route { config, access, reach, per_second: per_second.map(Box::new) })
    }
}

impl Route {
    /// Returns why a connection to this place is outdated, if its node is elsewhere now.
    pub(crate) fn moved_from(&self, place: &Place) -> Option<String> {
        let Reach::One(dialer) = &self.reach else { return None };
        dialer.moved_from(place)
    }
}

impl KnownNodes {
    fn new(seeds: Vec<Place>) -> KnownNodes {
        KnownNodes { seeds, masters: Mutex::default() }
    }

    /// Records the nodes of a layout. A node that was taken out of the cluster knows none.
    pub(crate) fn note(&self, layout: &Layout) {
        if layout.masters.is_empty() {
            return;
        }
        *self.masters.lock() = layout.masters.iter().map(|master| master.place.clone()).collect();
    }

    /// Returns the places of all known nodes.
    pub(crate) fn places(&self) -> Vec<Place> {
        let mut places = self.masters.lock().clone();
        let seeds = self.seeds.iter().filter(|seed| !places.contains(seed)).cloned().collect::<Vec<_>>();
        places.extend(seeds);
        places
    }
}
