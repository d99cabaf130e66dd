//! Processes of a run: started on free ports of this machine, killed, stopped and continued, and gone at the end.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// The longest that a process may take until it listens.
const START: Duration = Duration::from_secs(30);

/// How to start a process, any number of times.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its environment, and nothing else.
    pub environment: Vec<(String, String)>,
    /// The folder in which it runs.
    pub folder: PathBuf,
    /// The port that it opens when it is ready.
    pub port: u16,
    /// The file in its folder that has what it prints.
    pub log: String,
}

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Process {
    start: Start,
    child: Child,
}

/// Returns a port that is free now.
///
/// # Errors
/// Fails if there is none.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Returns a port that is free now, and so is the one that is 10,000 higher: the bus of a node of a cluster.
///
/// # Errors
/// Fails if there is none.
pub fn free_port_with_bus() -> anyhow::Result<u16> {
    for _ in 0..1_000 {
        let port = free_port()?;
        if port.checked_add(10_000).is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return Ok(port);
        }
    }
    bail!("no two ports are free, of which one is 10,000 higher")
}

impl Process {
    /// Starts a process, and waits until it listens.
    ///
    /// # Errors
    /// Fails if it does not start or ends.
    pub fn start(start: Start) -> anyhow::Result<Process> {
        let mut process = Process { child: start.spawn()?, start };
        process.wait_until_ready()?;
        Ok(process)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.start.port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} has ended: {status}: {}", self.start.program.display(), self.log());
            }
            if begin.elapsed() > START {
                bail!("{} does not listen: {}", self.start.program.display(), self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills it, as by `kill -9`.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ends it by SIGTERM, and waits until it has ended.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn end(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again; does not wait until it listens.
    ///
    /// # Errors
    /// Fails if it does not start.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = self.start.spawn()?;
        Ok(())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process has a number")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Returns what it has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.start.folder.join(&self.start.log)).unwrap_or_default()
    }

    /// Returns the folder in which it runs.
    pub fn folder(&self) -> &Path {
        &self.start.folder
    }

    /// Returns a setting that it was started with.
    pub fn setting(&self, name: &str) -> Option<&str> {
        let own = |(own, _): &&(String, String)| own == name;
        self.start.environment.iter().find(own).map(|(_, value)| &**value)
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.start.port
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process is killed, too. It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Start {
    fn spawn(&self) -> anyhow::Result<Child> {
        let log = File::options().create(true).append(true).open(self.folder.join(&self.log))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().envs(self.environment.iter().cloned());
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("{} cannot be started", self.program.display()))
    }
}

/// Returns the path of a program, absolute.
///
/// # Errors
/// Fails if it is not there.
pub fn program(name: &Path) -> anyhow::Result<PathBuf> {
    if name.components().count() > 1 {
        return name.canonicalize().with_context(|| format!("{} is not there", name.display()));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(name));
    paths.find(|path| path.is_file()).with_context(|| format!("{} is not installed", name.display()))
}
