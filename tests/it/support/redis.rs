//! A real Redis.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{AsyncConnectionConfig, Client, FromRedisValue};
use tempfile::TempDir;

use super::certificates::{Authority, Pair};
use super::{free_port, signal, wait_until, wait_until_async};

/// A `redis-server` with a Unix socket in a temporary folder, and a port that was free.
pub struct Redis {
    folder: TempDir,
    port: u16,
    server: Option<Child>,
    arguments: Vec<String>,
}

impl Redis {
    /// Starts one that keeps nothing on disk.
    pub fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// The same with more arguments.
    pub fn start_with(arguments: &[&str]) -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut redis = Redis { folder, port: free_port(), server: None, arguments };
        redis.restart();
        redis
    }

    /// The same in the place of another that has ended, `HOST:PORT`.
    pub fn start_at(address: &str, arguments: &[&str]) -> Redis {
        let port = address.rsplit(':').next().unwrap().parse().unwrap();
        let mut redis = Redis::stopped_at(port);
        redis.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        redis.restart();
        redis
    }

    /// Starts a replica of it, and waits until both report that it is in sync.
    pub async fn start_replica(&self, arguments: &[&str]) -> Redis {
        self.command::<()>("CONFIG SET repl-diskless-sync-delay 0").await;
        let (host, port) = self.host_and_port();
        let replica = Redis::start_with(&[&["--replicaof", &host, &port], arguments].concat());
        let online = format!("port={},state=online", replica.port);
        wait_until_async("the replica is in step", async || {
            replica.command::<String>("INFO replication").await.contains("master_link_status:up")
                && self.command::<String>("INFO replication").await.contains(&online)
        })
        .await;
        replica
    }

    /// Starts a Redis that accepts only TLS, with this certificate; clients must present one signed by the authority.
    pub fn start_secure(authority: &Authority, pair: &Pair, arguments: &[&str]) -> Redis {
        let port = free_port();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (cert, key, ca, tls_port) = (text(&pair.cert), text(&pair.key), text(&authority.file()), port.to_string());
        let tls = ["--port", "0", "--tls-port", &tls_port, "--tls-cert-file", &cert, "--tls-key-file", &key];
        let tls = [&tls[..], &["--tls-ca-cert-file", &ca], arguments].concat();
        Redis::start_at(&format!("127.0.0.1:{port}"), &tls)
    }

    /// A Sentinel, from this configuration, which names its port.
    pub fn start_sentinel(config: &Path, port: u16) -> Redis {
        let mut redis = Redis::stopped_at(port);
        redis.server = Some(spawn(server().arg(config).arg("--sentinel")));
        let address = redis.tcp_address();
        wait_until("the Sentinel opens its port", || std::net::TcpStream::connect(&address).is_ok());
        redis
    }

    /// Creates a server that is not running yet.
    pub fn stopped() -> Redis {
        Redis::stopped_at(free_port())
    }

    /// The same for a port that is known to be free.
    pub fn stopped_at(port: u16) -> Redis {
        Redis { folder: tempfile::tempdir().unwrap(), port, server: None, arguments: Vec::new() }
    }

    /// Ends it as a crash would, if it runs.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = std::fs::remove_file(self.socket());
    }

    /// Restarts it without data.
    pub fn restart(&mut self) {
        self.kill();
        let mut command = server();
        command
            .args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port"])
            .arg(self.port.to_string())
            .arg("--dir")
            .arg(self.folder.path())
            .arg("--unixsocket")
            .arg(self.socket())
            .args(&self.arguments);
        self.server = Some(spawn(&mut command));
        let socket = self.socket();
        wait_until("redis-server opens its socket", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    }

    /// Suspends the process: it accepts connections and never answers.
    pub fn freeze(&self) {
        signal(self.server.as_ref().unwrap(), "STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        signal(self.server.as_ref().unwrap(), "CONT");
    }

    /// Returns whether it has been started and not killed.
    pub fn is_running(&self) -> bool {
        self.server.is_some()
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.server.as_ref().unwrap().id()
    }

    /// Returns its `REDIS_URL`.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The same over TCP.
    pub fn tcp_address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns its host and port.
    pub fn host_and_port(&self) -> (String, String) {
        ("127.0.0.1".to_owned(), self.port.to_string())
    }

    /// The path of its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// A connection of the test's own.
    pub async fn connection(&self) -> MultiplexedConnection {
        let client = Client::open(self.url()).unwrap();
        // Only the machine can be slow here.
        let timeout = Some(Duration::from_secs(30));
        let patient = AsyncConnectionConfig::new().set_response_timeout(timeout).set_connection_timeout(timeout);
        client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
    }

    /// Returns the number of successful script calls, without heartbeats, which instances send on their own.
    pub fn script_calls(&self) -> u32 {
        let mut connection = Client::open(self.url()).unwrap().get_connection().unwrap();
        let stats: String = deadpool_redis::redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let number = |command: &str, field: &str| {
            let stats = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")))?;
            let number = stats.split(',').find_map(|stat| stat.strip_prefix(field)?.strip_prefix('='))?;
            Some(number.parse::<u32>().unwrap())
        };
        let number = |command, field| number(command, field).unwrap_or(0);
        number("evalsha", "calls") - number("evalsha", "failed_calls") - number("hmget", "calls")
    }

    /// Returns the number of calls of this command, with its subcommand (`script|load`); Redis before 7.0 counts all
    /// subcommands together.
    pub fn calls_of(&self, command: &str) -> u32 {
        let container = command.split('|').next().unwrap();
        let calls = self.calls();
        let calls = calls.iter().filter(|(called, _)| called == command || called == container);
        calls.map(|(_, calls)| calls).sum()
    }

    /// Counts calls from now on.
    pub fn forget_calls(&self) {
        let mut connection = Client::open(self.url()).unwrap().get_connection().unwrap();
        deadpool_redis::redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).unwrap();
    }

    /// Returns the number of calls of each command, by clients and scripts.
    pub fn calls(&self) -> Vec<(String, u32)> {
        let mut connection = Client::open(self.url()).unwrap().get_connection().unwrap();
        let stats: String = deadpool_redis::redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let calls = |line: &str| {
            let (command, stats) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((command.to_owned(), stats.split(',').next()?.parse().unwrap()))
        };
        stats.lines().filter_map(calls).collect()
    }

    /// The version of Redis that it is, or is compatible with: its first two numbers.
    pub async fn version(&self) -> (u32, u32) {
        let info: String = self.command("INFO server").await;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap();
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Runs one command, words separated by spaces.
    pub async fn command<T: FromRedisValue>(&self, words: &str) -> T {
        let mut words = words.split(' ');
        let mut command = deadpool_redis::redis::cmd(words.next().unwrap());
        command.arg(words.collect::<Vec<_>>());
        command.query_async(&mut self.connection().await).await.unwrap()
    }
}

/// The server that `TOLLGATE_TEST_REDIS` names (`make engines` sets it), or the `redis-server` of the PATH.
fn server() -> Command {
    Command::new(std::env::var_os("TOLLGATE_TEST_REDIS").unwrap_or_else(|| "redis-server".into()))
}

fn spawn(command: &mut Command) -> Child {
    let server = command.stdout(Stdio::null()).spawn();
    server.unwrap_or_else(|error| panic!("{command:?} ({error}): `make test` installs redis-server"))
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
