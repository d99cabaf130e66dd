//! Tollgate started the way Envoy Gateway and Envoy AI Gateway start `envoyproxy/ratelimit`: with their command,
//! arguments and environment (tests/drivers), mounts, probes, and management servers. Once on the host, with different
//! ports and paths; and once in the image's root file system, in separate namespaces, without any change.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use ::tollgate::wire::ratelimit_config::{RateLimitConfig, RateLimitUnit};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::support::certificates::{Authority, Pair};
use crate::support::management::Management;
use crate::support::redis::Redis;
use crate::support::tollgate::{self, Tollgate, get};
use crate::support::{signal, wait_until};
use crate::xds::{HOST, MATCH, limit, node, policy};

/// The program that starts Tollgate.
#[derive(Clone, Copy)]
struct Driver {
    /// By line, word by word.
    environment: &'static str,
    arguments: &'static [&'static str],
    /// The first rules of its management server.
    rules: fn() -> RateLimitConfig,
    /// Envoy's requests with them, up to the first denial.
    asked: &'static [&'static str],
}

const ENVOY_GATEWAY: Driver = Driver {
    environment: include_str!("../drivers/envoy-gateway.env"),
    arguments: &[],
    rules: || policy("default/eg/http", 2),
    asked: &["default/eg/http", HOST, MATCH],
};

const AI_GATEWAY: Driver = Driver {
    environment: include_str!("../drivers/envoy-ai-gateway.env"),
    arguments: &["--quotaRateLimitServiceHost=envoy-ai-gateway-ratelimit.envoy-gateway-system"],
    rules: quota,
    asked: &["ai-gateway-quota", "openai", "gpt"],
};

/// The quota of a model at a backend.
fn quota() -> RateLimitConfig {
    let mut model = node("gpt", "gpt", limit(RateLimitUnit::Hour, 2));
    model.quota_mode = true;
    let mut backend = node("openai", "openai", None);
    backend.descriptors = vec![model];
    let name = "ai-gateway-quota".to_owned();
    RateLimitConfig { domain: name.clone(), name, descriptors: vec![backend] }
}

impl Driver {
    fn variables(&self) -> Vec<(&'static str, &'static str)> {
        self.environment.lines().map(|line| line.split_once('=').unwrap()).collect()
    }

    /// Returns the variables that docs/envoy-gateway.md adds to those of Envoy Gateway.
    fn added() -> Vec<String> {
        let text = fs::read_to_string("deploy/envoy-gateway/config.yaml").unwrap();
        let added = text.lines().filter_map(|line| line.trim().strip_prefix("- { name: ")?.strip_suffix(" }"));
        let added = added.map(|pair| pair.replace(", value: ", "=").replace('"', ""));
        let added: Vec<String> = added.collect();
        assert!(added.len() > 2, "{text}");
        added
    }

    fn value(&self, name: &str) -> &'static str {
        self.variables().into_iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    fn has_tls(&self) -> bool {
        self.value("GRPC_SERVER_USE_TLS") == "true"
    }

    /// Returns whether it is ready without rules.
    fn is_ready_without_rules(&self) -> bool {
        self.value("FORCE_START_WITHOUT_INITIAL_CONFIG") == "true"
    }
}

mod replayed {
    use super::{AI_GATEWAY, Around, ENVOY_GATEWAY, Management};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn envoy_gateway_starts_it() {
        Around::new(ENVOY_GATEWAY).serves_here(Management::replayed("envoy_gateway").await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn ai_gateway_starts_it() {
        Around::new(AI_GATEWAY).serves_here(Management::replayed("ai_gateway").await).await;
    }
}

mod real {
    use super::{AI_GATEWAY, Around, ENVOY_GATEWAY, Management};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs the server in Go, which `make e2e` builds"]
    async fn envoy_gateway_starts_it() {
        Around::new(ENVOY_GATEWAY).serves_here(Management::real("envoy_gateway", &[])).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs the server in Go, which `make e2e` builds"]
    async fn ai_gateway_starts_it() {
        Around::new(AI_GATEWAY).serves_here(Management::real("ai_gateway", &[])).await;
    }
}

mod the_image {
    use super::{AI_GATEWAY, ENVOY_GATEWAY, in_the_image};

    #[test]
    #[ignore = "needs root, who alone may start something in another root: deploy/image/try.sh does"]
    fn envoy_gateway_starts_it() {
        in_the_image(ENVOY_GATEWAY, "envoy_gateway");
    }

    #[test]
    #[ignore = "needs root, who alone may start something in another root: deploy/image/try.sh does"]
    fn ai_gateway_starts_it() {
        in_the_image(AI_GATEWAY, "ai_gateway");
    }
}

/// The environment of the pod in its cluster.
struct Around {
    driver: Driver,
    authority: Authority,
    redis: Redis,
}

impl Around {
    fn new(driver: Driver) -> Around {
        Around::with(driver, Redis::start())
    }

    fn with(driver: Driver, redis: Redis) -> Around {
        let authority = Authority::new("envoy-gateway");
        // One Secret for both sides of the rate limit service.
        authority.sign("tls", &["envoy-ratelimit", "localhost"]);
        let around = Around { driver, authority, redis };
        let folder = around.authority.folder();
        fs::write(folder.join("conf.yaml"), "mappings: []\n").unwrap();
        // Secrets are mounted readable for every user.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        around
    }

    /// Starts it on the host, with replacements for the settings that must differ.
    async fn serves_here(self, mut management: Management) {
        let server = Redis::stopped().tcp_address();
        let certs = self.authority.folder().display().to_string();
        let mut settings: Vec<String> = Vec::new();
        for (name, value) in self.driver.variables() {
            let value = match name {
                "CONFIG_GRPC_XDS_SERVER_URL" => server.replace("127.0.0.1", "localhost"),
                "REDIS_URL" => self.redis.tcp_address(),
                // Any that are free.
                "GRPC_PORT" => "0".to_owned(),
                "PROMETHEUS_ADDR" => Redis::stopped().tcp_address(),
                "PROMETHEUS_MAPPER_YAML" => format!("{certs}/conf.yaml"),
                _ => value.replace("/certs/", &format!("{certs}/")),
            };
            settings.push(format!("{name}={value}"));
        }
        if self.driver.value("CONFIG_GRPC_XDS_NODE_ID") == "envoy-ratelimit" {
            settings.extend(Driver::added());
        }
        let mut command = tollgate::command();
        command.arg0("/bin/ratelimit").args(self.driver.arguments);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let mut tollgate = Tollgate::start_until("listening", command, &settings);
        self.serves(&tollgate, &mut management, &server).await;
        for argument in self.driver.arguments {
            tollgate.must_log(&format!("{argument} (command line) does nothing: no such argument"));
        }
        let told: Vec<String> = tollgate.logs().iter().map(ToString::to_string).collect();
        assert!(!told.iter().any(|line| line.contains("did you mean")), "{told:?}");
        tollgate.signal("TERM");
        assert_eq!(tollgate.wait().code(), Some(0));
        management.finish().await;
    }

    /// Asserts what its probes and its Envoys see. The management server starts later, at this address.
    async fn serves(&self, place: &impl Place, management: &mut Management, server: &str) {
        let health = || place.get("/healthcheck").0;
        let expected = if self.driver.is_ready_without_rules() { 200 } else { 500 };
        wait_until("the probe answers", || health() == expected);
        let _server = self.management_at(TcpListener::bind(server).await.unwrap(), management.port);
        let mut config = (self.driver.rules)();
        management.set("1", std::slice::from_ref(&config)).await;
        wait_until("there are rules", || self.ask(place, "0") == Some(0) && health() == 200);
        let codes: Vec<_> = (0..3).map(|_| self.ask(place, "1")).collect();
        assert_eq!(codes, [Some(0), Some(0), Some(2)]);
        assert!(self.redis.script_calls() > 0, "it counts in Redis");
        config.descriptors.clear();
        management.set("2", &[]).await;
        wait_until("the last policy is deleted", || self.ask(place, "1") == Some(3));
        let answered = "tollgate_xds_responses_total{answer=\"ack\"} 2\n";
        wait_until("both are answered", || place.get("/metrics").1.contains(answered));
    }

    /// Asks as Envoy does, over TLS where it does so; and with a certificate, which it has.
    fn ask(&self, place: &impl Place, hits: &str) -> Option<i32> {
        let [domain, entries @ ..] = self.driver.asked else { panic!("no domain") };
        let mut command = tollgate::command();
        let address = format!("localhost:{}", place.grpc_port());
        command.args(["ask", "--timeout", "20s", "--address", &address, "--domain", domain, "--hits", hits]);
        command.args(entries.iter().map(|entry| format!("{entry}={entry}")));
        if self.driver.has_tls() {
            command.arg("--ca").arg(self.authority.file()).args(self.secret().flags());
        }
        command.output().unwrap().status.code()
    }

    /// Returns the contents of the driver's Secret.
    fn secret(&self) -> Pair {
        let folder = self.authority.folder();
        Pair { cert: folder.join("tls.crt"), key: folder.join("tls.key") }
    }

    /// Creates the driver's management server on this listener, with mutual TLS if the driver requires it.
    fn management_at(&self, listener: TcpListener, port: u16) -> Serving {
        let host = self.driver.value("CONFIG_GRPC_XDS_SERVER_URL").rsplit_once(':').unwrap().0;
        let pair = self.authority.sign("management", &[host, "localhost"]);
        let acceptor = self.driver.has_tls().then(|| TlsAcceptor::from(pair.server(&self.authority)));
        Serving(tokio::spawn(forward(listener, port, acceptor)))
    }
}

/// Ends with its owner.
struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Hands every connection on to a port, without its TLS.
async fn forward(listener: TcpListener, port: u16, acceptor: Option<TlsAcceptor>) {
    loop {
        let (connection, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let mut there = TcpStream::connect(("127.0.0.1", port)).await?;
            match acceptor {
                Some(acceptor) => {
                    let mut here = acceptor.accept(connection).await?;
                    tokio::io::copy_bidirectional(&mut here, &mut there).await
                }
                None => {
                    let mut here = connection;
                    tokio::io::copy_bidirectional(&mut here, &mut there).await
                }
            }
        });
    }
}

/// The environment in which it runs.
trait Place {
    fn grpc_port(&self) -> u16;
    fn get(&self, path: &str) -> (u16, String);
}

impl Place for Tollgate {
    fn grpc_port(&self) -> u16 {
        self.grpc_port
    }

    fn get(&self, path: &str) -> (u16, String) {
        Tollgate::get(self, path)
    }
}

/// Set for the process in the namespaces.
const INSIDE: &str = "TOLLGATE_TEST_IS_INSIDE";
/// Names a mounted image to use instead of an image made from a debug binary.
const IMAGE: &str = "TOLLGATE_TEST_IMAGE";
/// A new network namespace has no address.
const IN_NAMESPACES: &str = r#"
ip link set lo up 2>/dev/null || python3 -c '
import fcntl, socket, struct
SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack("16sh", b"lo", UP_AND_RUNNING))'
exec "$@"
"#;

/// Starts it without replacements, in separate mount and network namespaces, where every port and path is free.
fn in_the_image(driver: Driver, recording: &str) {
    if std::env::var_os(INSIDE).is_none() {
        let test = format!("drivers::the_image::{recording}_starts_it");
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-euc", IN_NAMESPACES, "sh"]).arg(std::env::current_exe().unwrap());
        let output = command.args(["--exact", &test, "--ignored", "--nocapture"]).env(INSIDE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let redis = Redis::start_at(driver.value("REDIS_URL"), &[]);
        let around = Around::with(driver, redis);
        let mut management = Management::replayed(recording).await;
        let at = driver.value("CONFIG_GRPC_XDS_SERVER_URL").rsplit(':').next().unwrap();
        let mut container = Container::start(&around);
        around.serves(&container, &mut management, &format!("127.0.0.1:{at}")).await;
        container.is_confined();
        signal(&container.process, "TERM");
        wait_until("it is not ready while it drains", || container.get("/healthcheck").0 != 200);
        assert_eq!(container.process.wait().unwrap().code(), Some(0));
        management.finish().await;
    });
}

/// Started as a kubelet does, from the image.
struct Container {
    process: Child,
    _root: Option<TempDir>,
}

const NOBODY: &str = "65534";

impl Container {
    fn start(around: &Around) -> Container {
        let (folder, root) = match std::env::var_os(IMAGE) {
            Some(root) => (None, PathBuf::from(root)),
            None => {
                let folder = laid_out();
                let root = folder.path().to_owned();
                (Some(folder), root)
            }
        };
        let hosts = around.authority.folder().join("hosts");
        let names = ["REDIS_URL", "CONFIG_GRPC_XDS_SERVER_URL"].map(|name| around.driver.value(name));
        let names = names.map(|address| address.rsplit_once(':').unwrap().0);
        fs::write(&hosts, format!("127.0.0.1 localhost {}\n", names.join(" "))).unwrap();
        let config = around.authority.folder().join("conf.yaml");
        mount(&root, &root);
        mount(Path::new("/proc"), &inside(&root, "/proc"));
        mount(&hosts, &inside(&root, "/etc/hosts"));
        mount(&config, &inside(&root, "/etc/statsd-exporter/conf.yaml"));
        mount(around.authority.folder(), &inside(&root, "/certs"));
        for library in libraries(&root) {
            mount(Path::new(library), &inside(&root, library));
        }
        read_only(&root);
        let mut command = Command::new("setpriv");
        command.args(["--no-new-privs", "--bounding-set=-all,+setuid,+setgid,+sys_chroot", "chroot"]);
        command.arg(format!("--userspec={NOBODY}:{NOBODY}")).arg("--groups=").arg(&root).arg("/bin/ratelimit");
        // Only the driver's environment, so `chroot` is resolved before.
        command.args(around.driver.arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(around.driver.variables());
        Container { process: command.spawn().unwrap(), _root: folder }
    }

    /// Any user, no capability, and nothing that could be written.
    fn is_confined(&self) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            value.unwrap_or_else(|| panic!("no {name}: {status}"))
        };
        assert_eq!(field("Uid").split('\t').collect::<Vec<_>>(), [NOBODY; 4]);
        assert_eq!(field("Groups").trim(), "");
        assert_eq!((field("CapPrm"), field("CapEff"), field("NoNewPrivs")), (NO_CAPABILITY, NO_CAPABILITY, "1"));
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.process.id())).unwrap();
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
        assert!(root.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro"), "{root}");
    }
}

const NO_CAPABILITY: &str = "0000000000000000";

impl Place for Container {
    fn grpc_port(&self) -> u16 {
        8081
    }

    fn get(&self, path: &str) -> (u16, String) {
        // Connection refused: the service has not started or has ended.
        match std::net::TcpStream::connect("127.0.0.1:8080") {
            Ok(_) => get(8080, path),
            Err(_) => (0, String::new()),
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The image's root, as the Dockerfile lays it out, with the binary of the tests.
fn laid_out() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dockerfile = fs::read_to_string("Dockerfile").unwrap();
    let copied = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")?.split_once(' '));
    for (from, to) in copied {
        if from == "tollgate" {
            mount(Path::new(tollgate::BINARY), &inside(root.path(), to));
            continue;
        }
        let to = root.path().join(to.trim_start_matches('/'));
        let copied = Command::new("cp").args(["--recursive", "--no-target-directory", from]).arg(to).status().unwrap();
        assert!(copied.success());
    }
    root
}

/// Returns the files that a dynamically linked binary needs: its loader and libraries.
fn libraries(root: &Path) -> &'static [&'static str] {
    let said = Command::new("ldd").arg(root.join("bin/tollgate")).output().unwrap();
    let is_static = !String::from_utf8_lossy(&said.stdout).contains("=>");
    if is_static { &[] } else { &["/lib", "/lib64", "/usr/lib"] }
}

/// A path within a root.
fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Bind-mounts `from` at `to` in this namespace.
fn mount(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
    } else if !to.exists() {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, "").unwrap();
    }
    run(Command::new("mount").arg("--rbind").arg(from).arg(to));
}

fn read_only(root: &Path) {
    run(Command::new("mount").args(["--options", "remount,bind,ro"]).arg(root));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}
