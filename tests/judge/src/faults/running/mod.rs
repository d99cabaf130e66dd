//! A running system: its processes on free ports of this machine, which end with the run.
//!
//! ```text
//! instances   of the rate limiter
//! redis       one Redis, and with Sentinels a master and its replicas
//! cluster     a cluster of Redis
//! doors       proxies in front of nodes, to cut them off from each other
//! ```

mod cluster;
mod doors;
mod instances;
mod redis;

use std::path::PathBuf;

use tempfile::TempDir;

use super::fault::Fault;
use super::process::{Process, Start};
use super::proxy::Proxy;
use super::shares;
use super::system::{NUMBER, Programs, System};
use crate::record::adapter::{Gubernator, Rls, Target};
pub use doors::{Doors, SECOND_REPLICA};
use instances::address;
pub use redis::{MASTER, sentinel_names_another};

/// A running system.
#[derive(Debug)]
pub struct Running {
    /// Which it is.
    pub system: System,
    /// Its instances.
    pub instances: Vec<Process>,
    /// Its stores: one Redis, or a master and its replicas, or the masters and then the replicas of a cluster.
    pub stores: Vec<Process>,
    /// The Sentinels of the stores.
    pub sentinels: Vec<Process>,
    /// The proxies of instances in front of one Redis.
    pub proxies: Vec<Proxy>,
    /// The proxies in front of nodes that can be cut off.
    pub doors: Doors,
    /// The proxies through which callers reach instances, where they can be led to others; else none.
    pub entrances: Vec<Proxy>,
    /// The file that sets the clock of the one Redis, if its clock can step.
    pub clock: Option<PathBuf>,
    /// How an instance reaches its store.
    store: Vec<(String, String)>,
    folder: TempDir,
}

impl Running {
    /// Starts a system to which a fault can happen.
    ///
    /// # Errors
    /// Fails if a program is missing or does not start.
    pub async fn start(system: System, fault: Fault, programs: &Programs) -> anyhow::Result<Running> {
        let mut running = Running {
            system,
            instances: Vec::new(),
            stores: Vec::new(),
            sentinels: Vec::new(),
            proxies: Vec::new(),
            doors: Doors::default(),
            entrances: Vec::new(),
            clock: None,
            store: Vec::new(),
            folder: tempfile::tempdir()?,
        };
        let mut instances = if fault.loses_seat() { 3 } else { 2 };
        match system {
            System::TollgateMemory => instances = 1,
            // Nothing listens there.
            System::TollgateLocal => {
                running.reach([("REDIS_URL", address()?), ("EXPECTED_REPLICAS", "2".to_owned())]);
            }
            System::TollgateRedis | System::TollgateShares | System::Ratelimit => {
                if fault.steps_clock() {
                    running.clock = Some(running.folder.path().join("clock"));
                }
                running.redis(programs, fault.is_persistent(), &[])?;
            }
            System::TollgateSentinel | System::TollgateSentinelDurable | System::TollgateSharesSentinel => {
                running.watched(programs, fault.is_persistent()).await?;
            }
            System::TollgateCluster => running.cluster(programs, fault).await?,
            System::Gubernator => {
                running.reach([("GUBER_MEMBERLIST_KNOWN_NODES", format!("{},{}", address()?, address()?))]);
            }
        }
        for _ in 0..instances {
            running.add_instance(programs).await?;
        }
        if fault == Fault::ScaledOut {
            for index in 0..4 {
                let port = running.instances[index % instances].port();
                running.entrances.push(Proxy::start(port).await?);
            }
        }
        if system.has_shares() {
            shares::wait_until_seated(&running).await?;
        }
        Ok(running)
    }

    /// Returns how it is asked.
    pub fn target(&self) -> Target {
        let entrances = self.entrances.iter().map(Proxy::port);
        let instances = self.instances.iter().map(Process::port);
        let ports: Vec<u16> = if self.entrances.is_empty() { instances.collect() } else { entrances.collect() };
        let addresses = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        match self.system {
            System::Gubernator => Target::Gubernator(Gubernator { addresses, number: NUMBER, period_ms: 60_000 }),
            _ => Target::Rls(Rls { addresses, domain: "judge".to_owned(), decided_by: String::new() }),
        }
    }

    /// Returns what the instances have printed as warnings and errors.
    pub fn complaints(&self) -> usize {
        let is_complaint = |line: &&str| {
            let line = line.to_ascii_lowercase();
            ["warn", "error", "fail"].iter().any(|word| line.contains(word))
        };
        self.instances.iter().map(|instance| instance.log().lines().filter(is_complaint).count()).sum()
    }

    /// Says how instances reach their store.
    fn reach<const N: usize>(&mut self, settings: [(&str, String); N]) {
        self.store = settings.map(|(name, value)| (name.to_owned(), value)).into();
    }

    fn process(&self, program: PathBuf, name: String, port: u16) -> anyhow::Result<Start> {
        let folder = self.folder.path().join(&name);
        std::fs::create_dir_all(&folder)?;
        let (arguments, environment) = (Vec::new(), Vec::new());
        Ok(Start { program, arguments, environment, folder, port, log: "log".to_owned() })
    }
}
