//! Systems that a run starts: each with one limit, 30 in a minute for each key, and so that it errs when it cannot
//! decide.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::process::{Process, Start, free_port, program};
use super::proxy::Proxy;
use crate::history::Promise;
use crate::record::adapter::{Gubernator, Rls, Target};

/// The hits of a minute.
pub const NUMBER: u64 = 30;

/// A system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// Two instances of Tollgate on one Redis.
    TollgateRedis,
    /// Two instances of Tollgate on a cluster of three masters, each with a replica.
    TollgateCluster,
    /// One instance of Tollgate without Redis.
    TollgateMemory,
    /// Two instances of envoyproxy/ratelimit on one Redis.
    Ratelimit,
    /// Two instances of Gubernator, which know each other.
    Gubernator,
}

impl System {
    /// All of them.
    pub const ALL: [System; 5] =
        [System::TollgateRedis, System::TollgateCluster, System::TollgateMemory, System::Ratelimit, System::Gubernator];

    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        match self {
            System::TollgateRedis => "Tollgate, Redis",
            System::TollgateCluster => "Tollgate, cluster",
            System::TollgateMemory => "Tollgate, memory",
            System::Ratelimit => "envoyproxy/ratelimit",
            System::Gubernator => "Gubernator",
        }
    }

    /// Whether its periods begin at each full minute.
    pub fn has_fixed_minutes(self) -> bool {
        self == System::Ratelimit
    }
}

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Tollgate.
    pub tollgate: PathBuf,
    /// envoyproxy/ratelimit.
    pub ratelimit: PathBuf,
    /// Gubernator.
    pub gubernator: PathBuf,
    /// redis-server; redis-cli is beside it.
    pub redis: PathBuf,
}

/// A running system.
#[derive(Debug)]
pub struct Running {
    /// Its instances.
    pub instances: Vec<Process>,
    /// Its stores: one Redis, or the masters and replicas of a cluster.
    pub stores: Vec<Process>,
    /// The proxies of instances in front of one Redis.
    pub proxies: Vec<Proxy>,
    /// How it is asked.
    pub target: Target,
    folder: TempDir,
}

impl Running {
    /// Starts a system. Its store keeps what it is told over a restart if it `is_persistent`.
    ///
    /// # Errors
    /// Fails if a program is missing or does not start.
    pub async fn start(system: System, programs: &Programs, is_persistent: bool) -> anyhow::Result<Running> {
        let folder = tempfile::tempdir()?;
        let mut running = Running {
            instances: Vec::new(),
            stores: Vec::new(),
            proxies: Vec::new(),
            target: Target::Rls(Rls { addresses: Vec::new(), domain: "judge".to_owned(), decided_by: String::new() }),
            folder,
        };
        match system {
            System::TollgateMemory => running.tollgate(programs, &[], 0)?,
            System::TollgateRedis | System::Ratelimit => {
                let store = running.redis(programs, is_persistent, &[])?;
                for index in 0..2 {
                    let proxy = Proxy::start(store).await?;
                    let address = format!("127.0.0.1:{}", proxy.port());
                    running.proxies.push(proxy);
                    match system {
                        System::Ratelimit => running.ratelimit(programs, &address, index)?,
                        _ => running.tollgate(programs, &[("REDIS_URL", &address)], index)?,
                    }
                }
            }
            System::TollgateCluster => {
                let addresses = running.cluster(programs, is_persistent).await?.join(",");
                let settings = [("REDIS_URL", &*addresses), ("REDIS_TYPE", "cluster")];
                (0..2).try_for_each(|index| running.tollgate(programs, &settings, index))?;
            }
            System::Gubernator => running.gubernator(programs)?,
        }
        Ok(running)
    }

    /// Returns what the system promises for each key.
    pub fn promise() -> Promise {
        // Sub-windows of a tenth: a hit counts up to a tenth longer.
        let (period_us, memory_us) = (60_000_000, 66_000_000);
        Promise::Window { number: NUMBER, period_us, memory_us, usable_thousandths: 1_000 }
    }

    /// Returns what the instances have printed as warnings and errors.
    pub fn complaints(&self) -> usize {
        let is_complaint = |line: &&str| {
            let line = line.to_ascii_lowercase();
            ["warn", "error", "fail"].iter().any(|word| line.contains(word))
        };
        self.instances.iter().map(|instance| instance.log().lines().filter(is_complaint).count()).sum()
    }

    fn process(&self, program: PathBuf, name: String, port: u16) -> anyhow::Result<Start> {
        let folder = self.folder.path().join(&name);
        std::fs::create_dir_all(&folder)?;
        let (arguments, environment) = (Vec::new(), Vec::new());
        Ok(Start { program, arguments, environment, folder, port, log: "log".to_owned() })
    }

    fn redis(&mut self, programs: &Programs, is_persistent: bool, more: &[&str]) -> anyhow::Result<u16> {
        let port = free_port()?;
        let mut start = self.process(program(&programs.redis)?, format!("redis-{port}"), port)?;
        let persistence: &[&str] =
            if is_persistent { &["--appendonly", "yes", "--appendfsync", "always"] } else { &["--appendonly", "no"] };
        let port_text = port.to_string();
        let own = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes"];
        start.arguments = own.iter().chain(persistence).chain(more).map(|text| (*text).to_owned()).collect();
        self.stores.push(Process::start(start)?);
        Ok(port)
    }

    /// Starts a cluster; returns the addresses of its masters.
    async fn cluster(&mut self, programs: &Programs, is_persistent: bool) -> anyhow::Result<Vec<String>> {
        let more = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let mut addresses = Vec::new();
        for _ in 0..6 {
            // The port of the cluster's bus is 10,000 more.
            let port = self.redis(programs, is_persistent, &more)?;
            addresses.push(format!("127.0.0.1:{port}"));
        }
        let client = program(&programs.redis)?.with_file_name("redis-cli");
        let mut create = Command::new(client);
        create.args(["--cluster", "create"]).args(&addresses).args(["--cluster-replicas", "1", "--cluster-yes"]);
        let output = create.output()?;
        if !output.status.success() {
            bail!("the cluster cannot be created: {}", String::from_utf8_lossy(&output.stdout));
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        addresses.truncate(3);
        Ok(addresses)
    }

    fn tollgate(&mut self, programs: &Programs, settings: &[(&str, &str)], index: usize) -> anyhow::Result<()> {
        let (grpc, http) = (free_port()?, free_port()?);
        let mut start = self.process(program(&programs.tollgate)?, format!("tollgate-{index}"), grpc)?;
        let rules = "domain: judge\ndefaults: {failure_mode: error}\ndescriptors:\n- key: user\n  rate_limit: {name: \
                     per-user, unit: minute, requests_per_unit: 30}\n";
        std::fs::write(start.folder.join("rules.yaml"), rules)?;
        let own = [("RULES", "rules.yaml"), ("GRPC_PORT", &*grpc.to_string()), ("PORT", &*http.to_string())].map(text);
        start.environment = own.into_iter().chain(settings.iter().map(|setting| text(*setting))).collect();
        self.add_instance(start)
    }

    fn ratelimit(&mut self, programs: &Programs, redis: &str, index: usize) -> anyhow::Result<()> {
        let (grpc, http, debug) = (free_port()?, free_port()?, free_port()?);
        let mut start = self.process(program(&programs.ratelimit)?, format!("ratelimit-{index}"), grpc)?;
        let rules = start.folder.join("ratelimit/config");
        std::fs::create_dir_all(&rules)?;
        let text_of = "domain: judge\ndescriptors:\n- key: user\n  rate_limit: {unit: minute, requests_per_unit: 30}\n";
        std::fs::write(rules.join("rules.yaml"), text_of)?;
        let root = start.folder.display().to_string();
        start.environment = [
            ("RUNTIME_ROOT", &*root),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("USE_STATSD", "false"),
            ("HOST", "127.0.0.1"),
            ("GRPC_HOST", "127.0.0.1"),
            ("DEBUG_HOST", "127.0.0.1"),
            ("PORT", &http.to_string()),
            ("GRPC_PORT", &grpc.to_string()),
            ("DEBUG_PORT", &debug.to_string()),
            ("BACKEND_TYPE", "redis"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", redis),
        ]
        .map(text)
        .into();
        self.add_instance(start)
    }

    fn gubernator(&mut self, programs: &Programs) -> anyhow::Result<()> {
        let members = [free_port()?, free_port()?];
        let known = members.map(|port| format!("127.0.0.1:{port}")).join(",");
        for (index, member) in members.into_iter().enumerate() {
            let (grpc, http) = (free_port()?, free_port()?);
            let mut start = self.process(program(&programs.gubernator)?, format!("gubernator-{index}"), grpc)?;
            start.environment = [
                ("GUBER_GRPC_ADDRESS", format!("127.0.0.1:{grpc}")),
                ("GUBER_HTTP_ADDRESS", format!("127.0.0.1:{http}")),
                ("GUBER_ADVERTISE_ADDRESS", format!("127.0.0.1:{grpc}")),
                ("GUBER_PEER_DISCOVERY_TYPE", "member-list".to_owned()),
                ("GUBER_MEMBERLIST_ADDRESS", format!("127.0.0.1:{member}")),
                ("GUBER_MEMBERLIST_BIND_ADDRESS", format!("127.0.0.1:{member}")),
                ("GUBER_MEMBERLIST_NODE_NAME", format!("instance-{index}")),
                ("GUBER_MEMBERLIST_KNOWN_NODES", known.clone()),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
            self.add_instance(start)?;
        }
        let addresses = self.addresses();
        self.target = Target::Gubernator(Gubernator { addresses, number: NUMBER, period_ms: 60_000 });
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    }

    fn add_instance(&mut self, start: Start) -> anyhow::Result<()> {
        let name = start.program.display().to_string();
        self.instances.push(Process::start(start).with_context(|| name)?);
        if let Target::Rls(rls) = &mut self.target {
            rls.addresses = self.instances.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        }
        Ok(())
    }

    fn addresses(&self) -> Vec<String> {
        self.instances.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect()
    }
}

fn text((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// Sends a command to a Redis by redis-cli.
///
/// # Errors
/// Fails if the command fails.
pub fn redis_command(redis: &Path, port: u16, words: &[&str]) -> anyhow::Result<()> {
    let client = program(redis)?.with_file_name("redis-cli");
    let output = Command::new(client).args(["-p", &port.to_string()]).args(words).output()?;
    if !output.status.success() {
        bail!("redis-cli {words:?} fails: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
