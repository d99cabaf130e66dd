//! On which cores everything runs, and for how long.

use std::fmt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::redis::Redis;
use crate::support::tollgate::{self, Tollgate};

/// Durations and places of measurements.
pub struct Stage {
    /// Duration of one run.
    pub run: Duration,
    /// Number of runs; the median is used.
    pub runs: usize,
    /// Number of counters in the test of many counters.
    pub crowd: usize,
    /// Number of connections in the test of idle connections.
    pub connections: usize,
    /// Number of rules in the test of many rules.
    pub rules: usize,
    /// The limit of a hot key per second.
    pub hot: u32,
    /// Whether to wait until instances use their shares of limits.
    pub shares: bool,
    /// The period of a budget, with which the durations of streams shrink.
    pub minute: Duration,
    cores: Option<Cores>,
}

/// A core for each, as far as there are.
struct Cores {
    server: usize,
    /// This process.
    load: usize,
    redis: usize,
}

/// The core on which Redis runs.
#[derive(Clone, Copy)]
pub enum Place {
    /// On a separate core; with only two cores, on that of the load, because the server has its own.
    BesideLoad,
    /// With the server, or where the server would be: the load has its own.
    BesideServer,
}

impl Stage {
    /// Takes some twelve minutes. Runs are short and numerous, because the speed of a shared machine drifts within
    /// seconds, and both sides of a comparison must be affected equally.
    pub fn full() -> Stage {
        Stage {
            run: Duration::from_secs(1),
            runs: 20,
            crowd: 1_000_000,
            connections: 10_000,
            rules: 1_000_000,
            hot: 100_000,
            shares: true,
            minute: Duration::from_secs(60),
            cores: Cores::take(),
        }
    }

    /// Takes less than three.
    pub fn quick() -> Stage {
        Stage {
            run: Duration::from_secs(1),
            runs: 3,
            crowd: 200_000,
            connections: 10_000,
            rules: 1_000_000,
            hot: 100_000,
            shares: true,
            minute: Duration::from_secs(6),
            cores: Cores::take(),
        }
    }

    /// For tests: checks that every row can be measured, without meaningful values.
    pub fn tried() -> Stage {
        Stage {
            run: Duration::from_millis(50),
            runs: 1,
            crowd: 50_000,
            connections: 200,
            rules: 20_000,
            hot: 1_000,
            shares: false,
            minute: Duration::from_secs(1),
            cores: Cores::take(),
        }
    }

    /// A Tollgate by these rules on the server's core.
    pub fn tollgate(&self, rules: &str, settings: &[&str]) -> Tollgate {
        self.tollgate_by(self.on_server_core(Path::new(tollgate::BINARY)), rules, settings)
    }

    /// Starts this many instances with one thread each, on any core.
    pub fn replicas(&self, count: usize, rules: &str, settings: &[&str]) -> Vec<Tollgate> {
        let settings = [settings, &["WORKER_THREADS=1"]].concat();
        let replica = |_| self.tollgate_by(self.on_any_core(Path::new(tollgate::BINARY)), rules, &settings);
        (0..count).map(replica).collect()
    }

    fn tollgate_by(&self, command: Command, rules: &str, settings: &[&str]) -> Tollgate {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let named = format!("RULES={}", folder.path().display());
        // A generous timeout: an answer by a failure mode costs a different amount than a decision.
        let settings = [settings, &[&*named, "REDIS_TIMEOUT=10s"]].concat();
        let mut tollgate = Tollgate::start_by(command, &settings);
        tollgate.rules = folder;
        tollgate
    }

    /// A Redis.
    pub fn redis(&self, place: Place) -> Redis {
        let redis = Redis::start();
        if let Some(cores) = &self.cores {
            let core = match place {
                Place::BesideLoad => cores.redis,
                Place::BesideServer => cores.server,
            };
            pin(redis.pid(), core);
        }
        redis
    }

    /// Moves a running Redis to the core of processes that run beside the load.
    pub fn place_beside_load(&self, redis: &Redis) {
        self.cores.iter().for_each(|cores| pin(redis.pid(), cores.redis));
    }

    /// This program with another argument, on the server's core; it ends when its standard input does.
    pub fn itself(&self, argument: &str) -> Child {
        let mut command = self.on_server_core(&std::env::current_exe().unwrap());
        command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// This program, with nothing in its environment.
    pub fn on_server_core(&self, program: &Path) -> Command {
        self.on_cores(program, |cores| cores.server.to_string())
    }

    /// The same on every core that something here runs on.
    pub fn on_any_core(&self, program: &Path) -> Command {
        self.on_cores(program, |cores| format!("{},{},{}", cores.server, cores.load, cores.redis))
    }

    fn on_cores(&self, program: &Path, list: impl Fn(&Cores) -> String) -> Command {
        let mut command = match &self.cores {
            None => Command::new(program),
            Some(cores) => {
                // Set before the start, so that it has as many threads as cores.
                let mut command = Command::new("taskset");
                command.arg("--cpu-list").arg(list(cores)).arg(program);
                command
            }
        };
        // Keeps variables of this environment from acting as settings.
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cores {
            Some(Cores { server, load, redis }) => write!(
                f,
                "The server is on core {server}, the load on {load}, Redis on {redis} (or on {server}, where no server \
                 takes part or the load spins). "
            )?,
            None => {
                write!(f, "Nothing is pinned to a core, for want of `taskset` or of two cores: do not trust this. ")?
            }
        }
        write!(f, "Medians of {} runs of {:?}.", self.runs, self.run)
    }
}

impl Cores {
    /// Takes a core for this process and leaves another to the servers, where that is possible.
    fn take() -> Option<Cores> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = Cores { server: 0, load: 1, redis: if count > 2 { 2 } else { 1 } };
        let has_taskset = Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
        if count < 2 || !has_taskset {
            return None;
        }
        pin(std::process::id(), cores.load);
        Some(cores)
    }
}

/// Moves every thread of a process to a core.
fn pin(pid: u32, core: usize) {
    let mut taskset = Command::new("taskset");
    taskset.args(["--all-tasks", "--cpu-list", "--pid", &core.to_string(), &pid.to_string()]).stdout(Stdio::null());
    assert!(taskset.status().unwrap().success(), "cannot pin process {pid} to core {core}");
}
