//! A real Redis Cluster, of processes on this machine.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;

use crc16::{State, XMODEM};
use deadpool_redis::redis::{Value, cmd};

use super::certificates::{Authority, Pair};
use super::redis::Redis;
use super::wait_until_async;

/// Number of slots.
pub const SLOTS: u16 = 16_384;

/// Returns the slot of counters with this hash tag, such as `shop|user=ann`.
pub fn slot_of_tag(tag: &str) -> u16 {
    State::<XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

/// Masters, and replicas of each.
pub struct Cluster {
    /// The masters, in the order of their slots; then the replicas, in the same order.
    pub nodes: Vec<Redis>,
    masters: u16,
}

impl Cluster {
    /// Starts this many masters, each with the same number of slots and replicas.
    pub async fn start(masters: u16, replicas: u16) -> Cluster {
        Cluster::start_with(masters, replicas, &[]).await
    }

    /// Starts a cluster that accepts only TLS, with this certificate; clients must present one signed by the authority.
    pub async fn start_secure(masters: u16, authority: &Authority, pair: &Pair, arguments: &[&str]) -> Cluster {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (cert, key, ca) = (text(&pair.cert), text(&pair.key), text(&authority.file()));
        let tls = ["--tls-cluster", "yes", "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        Cluster::start_at(masters, 0, &[&tls, arguments].concat(), |port| {
            vec!["--tls-port".to_owned(), port.to_owned(), "--port".to_owned(), "0".to_owned()]
        })
        .await
    }

    /// The same with more arguments for each node.
    pub async fn start_with(masters: u16, replicas: u16, arguments: &[&str]) -> Cluster {
        Cluster::start_at(masters, replicas, arguments, |_| Vec::new()).await
    }

    async fn start_at(
        masters: u16,
        replicas: u16,
        arguments: &[&str],
        of_port: impl Fn(&str) -> Vec<String>,
    ) -> Cluster {
        let fixed = [
            ["--cluster-enabled", "yes"],
            ["--cluster-node-timeout", "2000"],
            ["--cluster-require-full-coverage", "no"],
            ["--cluster-replica-validity-factor", "0"],
            ["--repl-diskless-sync-delay", "0"],
        ];
        let arguments = [fixed.as_flattened(), arguments].concat();
        let node = |_| {
            let address = address();
            let of_port = of_port(address.rsplit(':').next().unwrap());
            let of_port: Vec<&str> = of_port.iter().map(String::as_str).collect();
            Redis::start_at(&address, &[&arguments[..], &of_port].concat())
        };
        let nodes = (0..masters * (1 + replicas)).map(node).collect();
        let cluster = Cluster { nodes, masters };
        for (i, node) in (0..masters).zip(&cluster.nodes) {
            let slots: Vec<String> = cluster.slots(i).map(|slot| slot.to_string()).collect();
            node.command::<()>(&format!("CLUSTER ADDSLOTS {}", slots.join(" "))).await;
            // Nodes with equal epochs would first have to resolve the conflict.
            node.command::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", i + 1)).await;
        }
        for node in &cluster.nodes[1..] {
            let (host, port) = cluster.nodes[0].host_and_port();
            node.command::<()>(&format!("CLUSTER MEET {host} {port}")).await;
        }
        cluster.agreed(usize::from(masters)).await;
        for (i, replica) in cluster.nodes[usize::from(masters)..].iter().enumerate() {
            let master = cluster.id(i % usize::from(masters)).await;
            replica.command::<()>(&format!("CLUSTER REPLICATE {master}")).await;
            wait_until_async("the replica is in step", async || {
                replica.command::<String>("INFO replication").await.contains("master_link_status:up")
            })
            .await;
        }
        cluster.agreed(usize::from(masters)).await;
        cluster
    }

    /// Adds a master without slots as the last node; returns its address.
    pub async fn join(&mut self, arguments: &[&str]) -> String {
        let address = address();
        let fixed =
            ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"];
        let node = Redis::start_at(&address, &[&fixed, arguments].concat());
        let (host, port) = self.nodes[0].host_and_port();
        node.command::<()>(&format!("CLUSTER MEET {host} {port}")).await;
        self.nodes.push(node);
        self.agreed(usize::from(self.masters)).await;
        address
    }

    /// The slots that this master begins with.
    pub fn slots(&self, master: u16) -> std::ops::Range<u16> {
        let at = |i: u16| u32::from(SLOTS) * u32::from(i) / u32::from(self.masters);
        at(master) as u16..at(master + 1) as u16
    }

    /// Waits until all nodes that run know all of them, and that each slot has one of so many masters.
    pub async fn agreed(&self, masters: usize) {
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            wait_until_async("the cluster agrees", async || {
                let info: String = node.command("CLUSTER INFO").await;
                let has = |line: String| info.lines().any(|told| *told == *line);
                has("cluster_slots_ok:16384".to_owned())
                    && has(format!("cluster_known_nodes:{}", self.nodes.len()))
                    && has(format!("cluster_size:{masters}"))
                    && has("cluster_state:ok".to_owned())
            })
            .await;
        }
    }

    /// Returns its `REDIS_URL`.
    pub fn setting(&self) -> String {
        let all: Vec<String> = self.nodes.iter().map(Redis::tcp_address).collect();
        format!("REDIS_URL=redis-cluster://{}", all.join(","))
    }

    /// A node's name in the cluster.
    pub async fn id(&self, node: usize) -> String {
        self.nodes[node].command("CLUSTER MYID").await
    }

    /// Moves a slot and its counters from one node to another; calls `halfway` before any counter has moved, and again
    /// after half of them.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize, halfway: impl AsyncFn()) {
        let (source, target) = (self.id(from).await, self.id(to).await);
        self.nodes[to].command::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}")).await;
        self.nodes[from].command::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}")).await;
        halfway().await;
        let keys: Vec<String> = self.nodes[from].command(&format!("CLUSTER GETKEYSINSLOT {slot} 100000")).await;
        let (host, port) = self.nodes[to].host_and_port();
        for (i, key) in keys.iter().enumerate() {
            if i == keys.len() / 2 {
                halfway().await;
            }
            self.nodes[from].command::<Value>(&format!("MIGRATE {host} {port} {key} 0 5000")).await;
        }
        // Counters that were new meanwhile are there already.
        for node in [to, from] {
            self.nodes[node].command::<()>(&format!("CLUSTER SETSLOT {slot} NODE {target}")).await;
        }
        self.heard_of_each_other().await;
    }

    /// Waits until each node that runs knows the newest epoch, and so the move that began it. Redis before 7.0 does not
    /// tell others of a move at once; a node that moved a slot meanwhile could take the same epoch and lose the slot.
    async fn heard_of_each_other(&self) {
        wait_until_async("all nodes know the newest epoch", async || {
            let mut epochs = BTreeSet::new();
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                let info: String = node.command("CLUSTER INFO").await;
                epochs.insert(info.lines().find(|line| line.starts_with("cluster_current_epoch:")).map(str::to_owned));
            }
            epochs.len() == 1
        })
        .await;
    }

    /// Returns the number of keys of each node.
    pub async fn sizes(&self) -> Vec<u64> {
        let mut sizes = Vec::new();
        for node in &self.nodes {
            sizes.push(cmd("DBSIZE").query_async(&mut node.connection().await).await.unwrap());
        }
        sizes
    }
}

/// Returns an address with a free port, whose bus port (10,000 higher) is free as well.
fn address() -> String {
    loop {
        let port = super::free_port();
        if TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return format!("127.0.0.1:{port}");
        }
    }
}
