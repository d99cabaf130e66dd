//! A real Envoy, with the configurations that users are given.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::wait_until;

/// An Envoy in front of a service, which asks a Tollgate.
pub struct Envoy {
    process: Child,
    folder: TempDir,
    agent: ureq::Agent,
    /// Its port.
    pub port: u16,
}

/// The response to a client.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: ureq::http::HeaderMap,
    /// The body.
    pub body: String,
}

impl Answer {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().unwrap())
    }

    /// A header that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }

    /// Tollgate's own word about a limit, not what Envoy does where it has none.
    pub fn is_decided(&self) -> bool {
        self.header("x-ratelimit-limit").is_some()
    }
}

impl Envoy {
    /// A change that gives calls to Tollgate a generous timeout, for busy machines.
    pub const LONG_TIMEOUT: (&'static str, &'static str) = ("timeout: 0.1s", "timeout: 10s");

    /// Starts one that asks the Tollgate on this port, patiently.
    pub fn start(tollgate: u16) -> Envoy {
        Envoy::start_with(tollgate, &[Envoy::LONG_TIMEOUT])
    }

    /// Starts an Envoy with these changes to `deploy/envoy/envoy.yaml`, and with free ports.
    pub fn start_with(tollgate: u16, changes: &[(&str, &str)]) -> Envoy {
        Envoy::start_from("deploy/envoy/envoy.yaml", tollgate, changes)
    }

    /// The same with another file.
    pub fn start_from(file: &str, tollgate: u16, changes: &[(&str, &str)]) -> Envoy {
        Envoy::start_by(&binary(), file, tollgate, changes)
    }

    /// Starts another Envoy than the usual one.
    pub fn start_binary(binary: &Path, tollgate: u16) -> Envoy {
        Envoy::start_by(binary, "deploy/envoy/envoy.yaml", tollgate, &[Envoy::LONG_TIMEOUT])
    }

    /// Starts this binary with another file.
    pub fn start_by(binary: &Path, file: &str, tollgate: u16, changes: &[(&str, &str)]) -> Envoy {
        let folder = tempfile::tempdir().unwrap();
        // Each listener takes a free port, which is then queried; the stand-in for the service uses a socket instead.
        let stand_in = format!("pipe: {{ path: {} }}", folder.path().join("stand-in.sock").display());
        let tollgate = format!("port_value: {tollgate} }}");
        let mut changes = changes.to_vec();
        changes.extend([
            (
                "socket_address: { address: 0.0.0.0, port_value: 10000 }",
                "socket_address: { address: 127.0.0.1, port_value: 0 }",
            ),
            ("socket_address: { address: 127.0.0.1, port_value: 10001 }", &stand_in),
            ("port_value: 8081 }", &tollgate),
            ("port_value: 9901 }", "port_value: 0 }"),
        ]);
        let mut config = fs::read_to_string(file).unwrap();
        for (old, new) in changes {
            assert!(config.contains(old), "{file} no longer says {old:?}");
            config = config.replace(old, new);
        }
        fs::write(folder.path().join("envoy.yaml"), config).unwrap();

        let log = fs::File::create(folder.path().join("log")).unwrap();
        let process = Command::new(binary)
            .current_dir(folder.path())
            .args(["--config-path", "envoy.yaml", "--admin-address-path", "admin", "--log-level", "warn"])
            // Several instances on one machine would otherwise take each other for a previous process.
            .args(["--disable-hot-restart", "--concurrency", "1", "--file-flush-interval-msec", "100"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}: {INSTALL}", binary.display()));
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None) // whatever the environment has for the world outside
            .max_idle_connections(CLIENTS)
            .max_idle_connections_per_host(CLIENTS)
            .timeout_global(Some(Duration::from_secs(30)))
            .build()
            .new_agent();
        let mut envoy = Envoy { process, folder, agent, port: 0 };
        wait_until("envoy listens", || {
            let ended = envoy.process.try_wait().unwrap();
            assert!(ended.is_none(), "envoy ended ({ended:?}): {}", envoy.log());
            envoy.port = envoy.find_port().unwrap_or(0);
            // It knows its port some time before it listens.
            envoy.port != 0 && TcpStream::connect(("127.0.0.1", envoy.port)).is_ok()
        });
        envoy
    }

    /// Asks for a path.
    pub fn get(&self, path: &str) -> Answer {
        self.ask(path, &[])
    }

    /// Asks for the front page, as this user.
    pub fn get_as(&self, user: &str) -> Answer {
        self.ask("/", &[("x-user", user)])
    }

    /// Asks for a path, with these headers.
    pub fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = self.agent.get(format!("http://127.0.0.1:{}{path}", self.port));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.call().unwrap_or_else(|error| panic!("no answer: {error}: {}", self.log()));
        let (parts, mut body) = response.into_parts();
        let body = body.read_to_string().unwrap(); // to the end, so that the connection can be used again
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Posts a JSON body.
    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut request = self.agent.post(format!("http://127.0.0.1:{}{path}", self.port));
        for (name, value) in [("content-type", "application/json")].iter().chain(headers) {
            request = request.header(*name, *value);
        }
        let response =
            request.send(body.to_string()).unwrap_or_else(|error| panic!("no answer: {error}: {}", self.log()));
        let (parts, mut body) = response.into_parts();
        let body = body.read_to_string().unwrap();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Asks its admin port.
    pub fn admin(&self, path: &str) -> Option<String> {
        let admin = fs::read_to_string(self.folder.path().join("admin")).ok()?;
        self.agent.get(format!("http://{admin}{path}")).call().ok()?.body_mut().read_to_string().ok()
    }

    /// The port that the system gave to the listener `front`, once it has.
    fn find_port(&self) -> Option<u16> {
        let listeners: Value = serde_json::from_str(&self.admin("/listeners?format=json")?).ok()?;
        let listeners = listeners["listener_statuses"].as_array()?;
        let front = listeners.iter().find(|listener| listener["name"] == "front")?;
        front["local_address"]["socket_address"]["port_value"].as_u64()?.try_into().ok()
    }

    fn log(&self) -> String {
        self.written("log")
    }

    /// Returns the contents of a file that it wrote.
    pub fn written(&self, file: &str) -> String {
        fs::read_to_string(self.folder.path().join(file)).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Clients that each keep a connection.
const CLIENTS: usize = 256;

const INSTALL: &str = "scripts/test-tools.sh installs Envoy, or set TOLLGATE_ENVOY=/path/to/envoy";

/// Returns the usual Envoy.
pub fn binary() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/envoy");
    match std::env::var_os("TOLLGATE_ENVOY") {
        Some(named) => named.into(),
        None if installed.exists() => installed,
        None => "envoy".into(), // on the PATH
    }
}
