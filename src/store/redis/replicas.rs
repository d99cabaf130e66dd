//! Reads counters from replicas, for use when the master does not answer or should not get more load.
//!
//! Nothing can be charged here. This does not implement [`Store`](crate::store::Store), and every check is sent as a
//! peek: a decision based on a replica's data would admit hits that others have taken since.
//!
//! Reads are made by people, occasionally. Each read therefore finds the replicas again and uses a separate connection.
//! It tries one replica after the other until one answers, starting with those known to be the most up-to-date.
//!
//! A replica decides by its own clock which counters have expired, and does not know that a slot of its cluster is
//! moving: a counter that has already moved reads as unused there.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use deadpool_redis::redis::cmd;
use serde::Serialize;
use tokio::time::Duration;

use super::topology::address::Place;
use super::topology::config::RedisConfig;
use super::topology::{self, Access, Dialer, Reach};
use crate::engine::algorithm::{Ask, LeaseAsk};
use crate::engine::check::{Check, CheckVerdict, StoreError, Verdicts};
use crate::store::redis::decide::backends::is_of_seconds;
use crate::store::redis::doctor::StartError;
use crate::store::redis::doctor::cause::{Cause, Rights};
use crate::store::redis::doctor::identity::Identity;
use crate::store::redis::link::connection::{Connection, Fault, reason};
use crate::store::redis::script::slot;
use crate::store::redis::script::{Group, Reply, Slots};
use crate::store::redis::topology::route::Route;

/// The replicas of a Redis, or of two, for reading counters.
pub struct RedisReplicas {
    main: Replicas,
    per_second: Option<Replicas>,
}

/// A reading of a counter from a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The verdict.
    pub verdict: CheckVerdict,
    /// The replica that returned it.
    pub replica: Replica,
}

/// A replica that has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replica {
    /// The address of the replica.
    pub server: String,
    /// How much it may have missed.
    #[serde(flatten)]
    pub staleness: Staleness,
}

/// How far a replica may be behind its master according to itself, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Staleness {
    /// The replica is linked to the master. An idle master sends a message every ten seconds.
    Linked {
        /// Time since the last message from the master.
        heard_s: u64,
    },
    /// The replica has lost the link to the master, and received nothing since.
    Lost {
        /// Time since the link was lost.
        lost_s: u64,
    },
    /// The replica does not report it.
    Untold {},
}

/// The reason why no replica has returned a counter.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The replicas could not be found.
    #[error("cannot find the replicas of {redis}: {cause}")]
    Unknown {
        /// The configured address, without user and password.
        redis: String,
        /// The cause.
        cause: Cause,
    },
    /// There are no replicas.
    #[error("{0} has no replica that is up: start one, or ask the master")]
    None(String),
    /// None of the replicas answers. Holds the place of each, and the cause.
    #[error("no replica answers: {0}")]
    Failed(String),
}

/// The replicas of one Redis.
struct Replicas {
    config: RedisConfig,
    access: Arc<Access>,
    reach: Reach,
}

impl RedisReplicas {
    /// Returns the replicas of the Redis with this store configuration. If the configured address is itself a replica,
    /// that replica is asked.
    ///
    /// # Errors
    /// If a password or TLS file cannot be used, or the TLS server name is invalid.
    pub fn new(config: RedisConfig) -> Result<RedisReplicas, StartError> {
        let mut route = Route::start(config)?;
        let per_second = route.per_second.take().map(|route| Replicas::new(*route));
        Ok(RedisReplicas { main: Replicas::new(route), per_second })
    }

    /// Reads these counters, each separately, in the order of the checks. Charges nothing, whatever the checks ask.
    ///
    /// # Errors
    /// If no replica answers for one of them. Each attempt may take as long as the timeout of the configuration.
    pub async fn peek<C: Borrow<Check>>(&self, checks: &[C]) -> Result<Vec<Reading>, ReplicaError> {
        let mut readings = Vec::with_capacity(checks.len());
        for replicas in std::iter::once(&self.main).chain(&self.per_second) {
            let mut by_slot: BTreeMap<Option<u16>, (Vec<usize>, Vec<Check>)> = BTreeMap::new();
            let checks = checks.iter().map(Borrow::borrow).enumerate();
            for (i, check) in checks.filter(|(_, check)| std::ptr::eq(self.holders(check), replicas)) {
                by_slot.entry(replicas.slot(check)).or_default().extend([(i, peek(check))]);
            }
            for (slot, (indices, peeks)) in by_slot {
                let (verdicts, replica) = replicas.read(&peeks, slot).await?;
                let reading = |verdict| Reading { verdict, replica: replica.clone() };
                readings.extend(indices.into_iter().zip(verdicts.into_iter().flatten().map(reading)));
            }
        }
        readings.sort_unstable_by_key(|(i, _)| *i);
        Ok(readings.into_iter().map(|(_, reading)| reading).collect())
    }

    /// Returns the replicas that have this counter, of one Redis or the other.
    fn holders(&self, check: &Check) -> &Replicas {
        self.per_second.as_ref().filter(|_| is_of_seconds(check)).unwrap_or(&self.main)
    }
}

/// Returns a check of the same counters that takes nothing.
fn peek(check: &Check) -> Check {
    let peek = Check { ask: Ask::Peek, lease: None, durable: false, ..check.clone() };
    if check.lease.is_some() { peek.of_leases(LeaseAsk::default()) } else { peek }
}

impl Replicas {
    fn new(Route { config, access, reach, .. }: Route) -> Replicas {
        Replicas { config, access, reach }
    }

    /// Returns the slot of a counter, or `None` without slots.
    fn slot(&self, check: &Check) -> Option<u16> {
        self.access.is_cluster().then(|| slot::of(check.key.as_str()))
    }

    /// Reads the counters of these peeks from a single replica, and returns which replica that is.
    async fn read(&self, peeks: &[Check], slot: Option<u16>) -> Result<(Verdicts, Replica), ReplicaError> {
        let redis = || self.config.to_string();
        let places = self.find(slot).await.map_err(|cause| ReplicaError::Unknown { redis: redis(), cause })?;
        if places.is_empty() {
            return Err(ReplicaError::None(redis()));
        }
        let group = Group::new(peeks).within(slot.map_or(Slots::None, Slots::One));
        let mut failures = Vec::new();
        for place in places {
            match self.read_at(&place, &group).await {
                Ok(read) => return Ok(read),
                Err(failure) => failures.push(format!("{place}: {failure}")),
            }
        }
        Err(ReplicaError::Failed(failures.join("; ")))
    }

    /// Returns the places of replicas that are up; in a cluster, of those that have this slot.
    async fn find(&self, slot: Option<u16>) -> Result<Vec<Place>, Cause> {
        match &self.reach {
            Reach::One(dialer) => match dialer.replicas().await {
                Some(told) => told,
                None => self.ask_for_replicas(dialer).await.map_err(|fault| self.cause(fault)),
            },
            Reach::Cluster(known) => {
                let layout = topology::survey(known, &self.access, &self.config).await?;
                let owner = slot.and_then(|slot| layout.owner(slot)).ok_or(Cause::ClusterDown)?;
                Ok(owner.replicas.clone())
            }
        }
    }

    /// Returns the replicas that a master names, or the replica itself.
    async fn ask_for_replicas(&self, dialer: &Dialer) -> Result<Vec<Place>, Fault> {
        let connection = self.connect(dialer).await?;
        let info = info(&connection, self.config.timeout).await?;
        let identity = Identity::read(&info);
        Ok(if is_replica(&identity) { vec![connection.place().clone()] } else { named(&identity) })
    }

    /// Reads the counters from the replica at this place.
    async fn read_at(&self, place: &Place, group: &Group) -> Result<(Verdicts, Replica), Failure> {
        let patience = self.config.timeout;
        let connection = self.connect(&topology::node_dialer(place.clone(), &self.access)).await?;
        // The staleness is read first, so the counters are at least as recent.
        let staleness = match info(&connection, patience).await {
            Ok(info) => staleness(&Identity::read(&info))?,
            Err(Fault::Refused(_)) => Staleness::Untold {},
            Err(fault) => return Err(fault.into()),
        };
        let read = async {
            if self.access.is_cluster() {
                connection.send(cmd("READONLY")).reply(patience).await?;
            }
            connection.decide(group, &self.config).await
        };
        let reply = read.await.map_err(|fault| self.with_grant(fault))?;
        let verdicts = Reply::new(&reply, group.counters()).and_then(|mut reply| reply.next(group));
        let verdicts = verdicts.map_err(|error| match &error {
            StoreError::Counter(failure) => Cause::known(reason(failure)).map_or(error.into(), Failure::Refused),
            _ => error.into(),
        })?;
        Ok((verdicts, Replica { server: place.to_string(), staleness }))
    }

    async fn connect(&self, dialer: &Dialer) -> Result<Connection, Fault> {
        let dialed = dialer.connect(self.config.timeout).await.map_err(Fault::Connect)?;
        Ok(Connection::new(dialed, 0))
    }

    /// Adds, to a fault about missing rights, the command that grants all rights that Tollgate needs.
    fn with_grant(&self, fault: Fault) -> Fault {
        let Fault::Refused(Cause::Lacks(rights)) = fault else { return fault };
        let grant = self.access.grant(&self.config.key_prefix);
        Fault::Refused(Cause::Lacks(Rights { grant: Some(grant), ..rights }))
    }

    fn cause(&self, fault: Fault) -> Cause {
        match self.with_grant(fault) {
            Fault::Refused(cause) | Fault::Connect(cause) => cause,
            Fault::Silent(silence) => Cause::Silent(silence.within),
            fault => Cause::Closed(fault.to_string()),
        }
    }
}

/// The reason why a replica has not returned counters.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A counter failed for a reason that is not the counter's fault.
    #[error(transparent)]
    Refused(Cause),
    #[error("it is a master by now")]
    Master,
    #[error("it has no copy of its master yet")]
    Empty,
}

async fn info(connection: &Connection, patience: Duration) -> Result<String, Fault> {
    let info = connection.send(cmd("INFO")).wait(patience).await?;
    Ok(String::from_utf8_lossy(&info).into_owned())
}

fn is_replica(identity: &Identity<'_>) -> bool {
    identity.get("role") == Some("slave")
}

/// Returns the replicas linked to this master: `slave0:ip=10.0.0.2,port=6379,state=online,offset=1234,lag=0`.
fn named(master: &Identity<'_>) -> Vec<Place> {
    let lines = (0..).map_while(|i| master.get(&format!("slave{i}")));
    let mut replicas: Vec<(u64, Place)> = lines
        .filter_map(|line| {
            let field = |name| line.split(',').find_map(|pair| pair.split_once('=').filter(|pair| pair.0 == name));
            let text = |name| field(name).map(|(_, value)| value);
            text("state").filter(|state| *state == "online")?;
            let place = Place::Tcp(text("ip")?.to_owned(), text("port")?.parse().ok()?);
            Some((text("offset").and_then(|offset| offset.parse().ok()).unwrap_or(0), place))
        })
        .collect();
    replicas.sort_by_key(|(offset, _)| Reverse(*offset));
    replicas.into_iter().map(|(_, place)| place).collect()
}

/// Returns how far this replica may be behind.
fn staleness(replica: &Identity<'_>) -> Result<Staleness, Failure> {
    if replica.get("role").is_some() && !is_replica(replica) {
        return Err(Failure::Master);
    }
    match replica.get("master_link_status") {
        Some("up") => Ok(replica
            .number("master_last_io_seconds_ago")
            .map_or(Staleness::Untold {}, |heard_s| Staleness::Linked { heard_s })),
        Some(_) => {
            // A replica without a master since its start reports -1, or in old versions the time since 1970.
            let since_start = replica.number("uptime_in_seconds").unwrap_or(u64::MAX);
            let lost_s = replica.number("master_link_down_since_seconds").filter(|lost_s| *lost_s <= since_start);
            lost_s.map(|lost_s| Staleness::Lost { lost_s }).ok_or(Failure::Empty)
        }
        None => Ok(Staleness::Untold {}),
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the replica {}, which {}", self.server, self.staleness)
    }
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Staleness::Linked { heard_s } => write!(f, "heard from its master {heard_s}s ago"),
            Staleness::Lost { lost_s } => write!(f, "lost its master {lost_s}s ago"),
            Staleness::Untold {} => f.write_str("does not say how far behind its master it is"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(info: &str) -> Identity<'_> {
        Identity::read(info)
    }

    #[test]
    fn a_master_names_those_that_are_linked_to_it() {
        let info = "role:master\r\nconnected_slaves:4\r\n\
            slave0:ip=10.0.0.1,port=6379,state=online,offset=10,lag=0\r\n\
            slave1:ip=::1,port=6380,state=online,offset=30,lag=1\r\n\
            slave2:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=0\r\n\
            slave3:ip=10.0.0.4,port=6379,state=online,offset=20,lag=0\r\n";
        let at = |host: &str, port| Place::Tcp(host.to_owned(), port);
        assert_eq!(named(&identity(info)), [at("::1", 6380), at("10.0.0.4", 6379), at("10.0.0.1", 6379)]);
        assert!(named(&identity("role:master\r\nconnected_slaves:0\r\n")).is_empty());
    }

    #[test]
    fn a_replica_says_how_far_behind_it_may_be() {
        let of = |info: &str| {
            let info = format!("uptime_in_seconds:100\r\n{info}");
            staleness(&identity(&info)).map_err(|failure| failure.to_string())
        };
        let up = "role:slave\r\nmaster_link_status:up\r\nmaster_last_io_seconds_ago:7\r\n";
        let down = |since: &str| {
            format!("role:slave\r\nmaster_link_status:down\r\nmaster_link_down_since_seconds:{since}\r\n")
        };
        let (empty, master) = (Err(Failure::Empty.to_string()), Err(Failure::Master.to_string()));
        assert_eq!(of(up), Ok(Staleness::Linked { heard_s: 7 }));
        assert_eq!(of(&down("100")), Ok(Staleness::Lost { lost_s: 100 }));
        assert_eq!(of(&down("-1")), empty);
        assert_eq!(of(&down("1700000000")), empty, "6.2 counts from 1970 then");
        assert_eq!(of("role:master\r\n"), master);
        assert_eq!(of("role:slave\r\n"), Ok(Staleness::Untold {}));
        assert_eq!(of(""), Ok(Staleness::Untold {}));
    }
}
