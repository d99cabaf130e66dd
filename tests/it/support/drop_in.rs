//! Any server that takes the environment of `envoyproxy/ratelimit`: that, a Tollgate, or another.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::redis::Redis;
use super::{SOON, free_port};

/// Number of attempts to start a server if a port is taken.
const TRIES: usize = 3;

/// Parameters of a server.
pub struct Given<'a> {
    /// The command, with nothing in its environment.
    pub command: &'a dyn Fn() -> Command,
    /// Beside what every server has.
    pub settings: &'a [(String, String)],
    /// By their paths in the folder of rules.
    pub rules: &'a [(String, String)],
    /// The store of its counters.
    pub redis: &'a Redis,
}

/// A running server with its rules.
pub struct DropIn {
    process: Child,
    output: Arc<Mutex<String>>,
    folder: TempDir,
    /// Its ports.
    pub ports: Ports,
}

/// The ports of a server.
#[derive(Clone, Copy)]
pub struct Ports {
    /// For health and `/json`.
    pub http: u16,
    /// For rate limit requests.
    pub grpc: u16,
    /// For people.
    pub debug: u16,
    /// For Prometheus, where that is wanted.
    pub prometheus: u16,
}

/// It ended before it served, with this output.
#[derive(Debug)]
pub struct Ended(pub String);

impl DropIn {
    /// Starts one, and waits until it serves.
    pub fn start(given: &Given<'_>) -> Result<DropIn, Ended> {
        let mut ended = Ended(String::new());
        for _ in 0..TRIES {
            match DropIn::start_once(given) {
                Err(Ended(output)) if output.contains("ddress already in use") => ended = Ended(output),
                started => return started,
            }
        }
        Err(ended)
    }

    fn start_once(given: &Given<'_>) -> Result<DropIn, Ended> {
        let folder = tempfile::tempdir().unwrap();
        let config = config_folder(folder.path());
        fs::create_dir_all(&config).unwrap();
        for (path, text) in given.rules {
            let path = config.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let ports = Ports { http: free_port(), grpc: free_port(), debug: free_port(), prometheus: free_port() };
        let mut command = (given.command)();
        command.envs(environment(folder.path(), given.redis, ports)).envs(given.settings.iter().cloned());
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let output = Arc::new(Mutex::new(String::new()));
        collect(process.stdout.take().unwrap(), &output);
        collect(process.stderr.take().unwrap(), &output);
        let mut server = DropIn { process, output, folder, ports };
        server.wait().map(|()| server)
    }

    /// Waits until it is healthy and answers calls.
    fn wait(&mut self) -> Result<(), Ended> {
        let start = Instant::now();
        while !(is_healthy(self.ports.http) && TcpStream::connect(("127.0.0.1", self.ports.grpc)).is_ok()) {
            if self.process.try_wait().unwrap().is_some() || start.elapsed() > SOON {
                // Time to read the rest of its output.
                std::thread::sleep(Duration::from_millis(100));
                return Err(Ended(self.output()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns its output so far.
    pub fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// Replaces a rules file atomically, or removes it.
    pub fn write(&self, path: &str, text: Option<&str>) {
        let target = config_folder(self.folder.path()).join(path);
        let Some(text) = text else { return fs::remove_file(target).unwrap() };
        let next = self.folder.path().join("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, target).unwrap();
    }
}

impl Drop for DropIn {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_healthy(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(SOON))?;
        write!(stream, "GET /healthcheck HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn config_folder(folder: &Path) -> PathBuf {
    folder.join("ratelimit/config")
}

/// Returns the environment of every server.
fn environment(folder: &Path, redis: &Redis, ports: Ports) -> Vec<(&'static str, String)> {
    let own = |name, value: &str| (name, value.to_owned());
    vec![
        own("HOST", "127.0.0.1"),
        ("PORT", ports.http.to_string()),
        own("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", ports.grpc.to_string()),
        own("DEBUG_HOST", "127.0.0.1"),
        ("DEBUG_PORT", ports.debug.to_string()),
        ("PROMETHEUS_ADDR", format!("127.0.0.1:{}", ports.prometheus)),
        ("RUNTIME_ROOT", folder.display().to_string()),
        own("RUNTIME_SUBDIRECTORY", "ratelimit"),
        own("RUNTIME_APPDIRECTORY", "config"),
        own("RUNTIME_WATCH_ROOT", "false"),
        own("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", redis.tcp_address()),
        // A generous timeout for busy machines.
        own("REDIS_TIMEOUT", "10s"),
        own("LOG_LEVEL", "INFO"),
    ]
}

fn collect(pipe: impl std::io::Read + Send + 'static, output: &Arc<Mutex<String>>) {
    let output = Arc::clone(output);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut output = output.lock().unwrap();
            output.push_str(&line);
            output.push('\n');
        }
    });
}
