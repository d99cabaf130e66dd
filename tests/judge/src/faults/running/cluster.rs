//! A cluster of three masters, each with a replica.

use anyhow::Context as _;

use super::super::fault::Fault;
use super::super::process::free_port_with_bus;
use super::super::proxy::Proxy;
use super::super::redis_cli::{self, ask, wait_until};
use super::super::system::Programs;
use super::Running;
use super::doors::{CUT_OFF, OTHERS};

/// What every node is started with.
const FIXED: [&str; 10] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    "--cluster-require-full-coverage",
    "no",
    "--cluster-replica-validity-factor",
    "0",
    "--repl-diskless-sync-delay",
    "0",
];

impl Running {
    /// Starts a cluster. Its nodes have doors if the fault cuts one off.
    pub(super) async fn cluster(&mut self, programs: &Programs, fault: Fault) -> anyhow::Result<()> {
        let mut direct = Vec::new();
        for index in 0..6 {
            let port = free_port_with_bus()?;
            if fault.cuts_off() {
                let (door, bus) = (Proxy::start(port).await?, Proxy::start(port + 10_000).await?);
                let from = format!("127.0.0.{}", if index == 0 { CUT_OFF } else { OTHERS });
                let (door_port, bus_port) = (door.port().to_string(), bus.port().to_string());
                let announced = [
                    "--bind-source-addr",
                    &from,
                    "--cluster-announce-ip",
                    "127.0.0.1",
                    "--cluster-announce-port",
                    &door_port,
                    "--cluster-announce-bus-port",
                    &bus_port,
                ];
                self.redis_at(programs, port, fault.is_persistent(), &[&FIXED[..], &announced].concat())?;
                self.doors.stores.push(door);
                self.doors.buses.push(bus);
            } else {
                self.redis_at(programs, port, fault.is_persistent(), &FIXED)?;
            }
            direct.push(format!("127.0.0.1:{port}"));
        }
        let addresses: Vec<&str> = direct.iter().map(String::as_str).collect();
        let create = [&["create"], &addresses[..], &["--cluster-replicas", "1", "--cluster-yes"]].concat();
        redis_cli::cluster(programs, &create).await?;
        self.wait_until_agreed(programs).await?;
        let masters = if self.doors.stores.is_empty() {
            direct[..3].join(",")
        } else {
            let doors = self.doors.stores[..3].iter().map(|door| format!("127.0.0.1:{}", door.port()));
            doors.collect::<Vec<_>>().join(",")
        };
        self.reach([("REDIS_URL", masters), ("REDIS_TYPE", "cluster".to_owned())]);
        Ok(())
    }

    /// Adds a master without slots; returns its port.
    ///
    /// # Errors
    /// Fails if it does not start, or the others do not take it.
    pub async fn add_master(&mut self, programs: &Programs) -> anyhow::Result<u16> {
        let port = self.redis(programs, false, &FIXED)?;
        let [new, old] = [port, self.stores[0].port()].map(|port| format!("127.0.0.1:{port}"));
        redis_cli::cluster(programs, &["add-node", &new, &old]).await?;
        self.wait_until_agreed(programs).await?;
        Ok(port)
    }

    /// Waits until all nodes know each other and all slots, and replicas are in step.
    ///
    /// # Errors
    /// Fails if that takes too long.
    pub async fn wait_until_agreed(&self, programs: &Programs) -> anyhow::Result<()> {
        let known = format!("cluster_known_nodes:{}", self.stores.len());
        for store in &self.stores {
            wait_until("the cluster agrees", async || {
                let info = ask(programs, store.port(), &["CLUSTER", "INFO"]).await?;
                let role = ask(programs, store.port(), &["ROLE"]).await?;
                let has = |line: &str| info.lines().any(|told| told == line);
                let agrees = has("cluster_slots_ok:16384") && has(&known) && has("cluster_state:ok");
                Ok(agrees && (role.starts_with("master") || role.contains("connected")))
            })
            .await?;
        }
        Ok(())
    }

    /// Returns the port of the first replica of a master.
    ///
    /// # Errors
    /// Fails if the node does not answer, or has no replica.
    pub async fn replica_of(&self, programs: &Programs, store: usize) -> anyhow::Result<u16> {
        let port = self.stores[store].port();
        let name = self.name_of(programs, store).await?;
        let nodes = ask(programs, port, &["CLUSTER", "NODES"]).await?;
        let replica = nodes.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mut replica = replica.filter(|node| node.get(3) == Some(&&*name));
        let address = replica.next().and_then(|node| node.get(1).copied()).context("a master has a replica")?;
        let port = address.split(['@', ',']).next().and_then(|address| address.rsplit(':').next());
        Ok(port.context("an address has a port")?.parse()?)
    }

    /// Returns the name of a node in the cluster.
    ///
    /// # Errors
    /// Fails if it does not answer.
    pub async fn name_of(&self, programs: &Programs, store: usize) -> anyhow::Result<String> {
        Ok(ask(programs, self.stores[store].port(), &["CLUSTER", "MYID"]).await?.trim().to_owned())
    }
}
