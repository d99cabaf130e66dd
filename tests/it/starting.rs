//! A process whose rules load slowly, and its answers meanwhile. A pipe simulates the slow disk: it returns data only
//! when the test writes.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::tollgate::{Tollgate, command};
use crate::support::{signal, wait_until};

const RULES: &str = "{domain: shop, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1}}]}";
const OTHERS: &str = "{domain: mall, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1}}]}";

/// Rules in a pipe, which cannot be read before the test writes them.
struct Slow {
    folder: tempfile::TempDir,
}

impl Slow {
    fn new() -> Slow {
        let slow = Slow { folder: tempfile::tempdir().unwrap() };
        assert!(Command::new("mkfifo").arg(slow.path()).status().unwrap().success());
        slow
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("slow")
    }

    /// Waits until somebody reads them.
    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    fn start(&self, settings: &[&str]) -> Tollgate {
        let rules = format!("RULES={}", self.path().display());
        Tollgate::start_until("listening", command(), &[&[rules.as_str()], settings].concat())
    }
}

async fn health(tollgate: &Tollgate) -> ServingStatus {
    let mut client = HealthClient::new(tollgate.channel().await);
    client.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
}

#[tokio::test]
async fn while_the_rules_are_loaded_http_says_so_and_grpc_refuses_connections_until_they_are_there() {
    let slow = Slow::new();
    let tollgate = slow.start(&["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    assert_eq!(tollgate.get("/healthcheck"), (500, "not serving: the rules are being loaded".to_owned()));
    let connect = || std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port));
    assert_eq!(connect().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let counters = format!("http://127.0.0.1:{}/counters?domain=shop&user=ann", tollgate.http_port);
    let counters = ureq::get(counters).header("Authorization", "Bearer a token of some length").call();
    assert!(matches!(counters, Err(ureq::Error::StatusCode(503))), "{counters:?}");
    let body = br#"{"effect": "block", "domain": "shop", "who": "ann", "why": "a test", "for": "1m"}"#;
    let token = ("authorization", "Bearer a token of some length");
    let (status, said) = tollgate.send("POST", "/adjustments", &[token], body);
    assert!(status == 503 && said.contains("no rules are in force yet"), "{status}: {said}");
    let progress = tollgate.must_log("loading the rules");
    let told = ["stage", "files", "files_read"].map(|field| &progress[field]);
    assert_eq!(told, [&"reading".into(), &1.into(), &serde_json::Value::from(0)]);
    assert!(tollgate.logged("tollgate is up").is_none());

    slow.write(RULES);
    tollgate.must_log("tollgate is up");
    assert_eq!(tollgate.get("/healthcheck"), (200, "OK".to_owned()));
    assert_eq!(health(&tollgate).await, ServingStatus::Serving);
    assert!(tollgate.passes("shop", &[("user", "ann")]).await);
    assert_eq!(tollgate.metric("tollgate_requests_total{outcome=\"no_rules\"}"), 0.0, "no call came too early");
}

#[test]
fn a_unix_socket_is_not_there_before_the_rules_are() {
    let slow = Slow::new();
    let path = slow.folder.path().join("gate.sock");
    let setting = format!("GRPC_UDS={}", path.display());
    let tollgate = slow.start(&[&setting]);
    assert!(!path.exists());
    slow.write(RULES);
    tollgate.must_log("tollgate is up");
    std::os::unix::net::UnixStream::connect(&path).unwrap();
}

#[test]
fn a_port_that_others_listen_on_ends_the_process_before_its_rules_are_read() {
    let slow = Slow::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = command();
    command.env("RULES", slow.path()).env("HOST", "127.0.0.1").env("PORT", "0").env("GRPC_HOST", "127.0.0.1");
    let output = command.env("GRPC_PORT", other.local_addr().unwrap().port().to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot listen on 127.0.0.1:") && said.contains("GRPC_PORT"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_signal_ends_a_process_that_is_still_loading_at_once() {
    for signal in ["TERM", "INT"] {
        let slow = Slow::new();
        let mut tollgate = slow.start(&["DRAIN_DELAY=1h"]);
        tollgate.signal(signal);
        assert_eq!(tollgate.wait().code(), Some(0));
        tollgate.must_log("all requests are answered");
    }
}

#[test]
fn a_signal_ends_a_process_that_is_loading_again_at_once() {
    let slow = Slow::new();
    let folder = tempfile::tempdir().unwrap();
    let quick = folder.path().join("quick.yaml");
    std::fs::write(&quick, OTHERS).unwrap();
    let quick_setting = format!("RULES={},{}", quick.display(), slow.path().display());
    let mut tollgate = slow.start(&[&quick_setting]);
    slow.write(RULES);
    tollgate.must_log("tollgate is up");
    std::fs::write(&quick, OTHERS.replace("year", "hour")).unwrap();
    tollgate.must_log("loading the rules");
    assert_eq!(tollgate.get("/healthcheck").0, 200, "the old ones are in force");
    tollgate.signal("TERM");
    assert_eq!(tollgate.wait().code(), Some(0));
}

#[test]
fn a_hangup_while_rules_are_loaded_is_told_at_once_and_they_are_read_once_more() {
    let slow = Slow::new();
    let tollgate = slow.start(&[]);
    tollgate.signal("HUP");
    let told = "the rules are reloaded, after the load in progress";
    tollgate.must_log(told);
    tollgate.signal("HUP");
    wait_until("both are told", || tollgate.logs().iter().filter(|line| line["message"] == told).count() == 2);
    assert!(tollgate.logged("tollgate is up").is_none());
    slow.write(RULES);
    tollgate.must_log("tollgate is up");
    slow.write(RULES);
    tollgate.must_log("the rules were reloaded, their limits are unchanged");
}

#[test]
fn a_load_that_fails_at_last_ends_the_process_with_its_report_unless_it_shall_wait() {
    let slow = Slow::new();
    let mut tollgate = slow.start(&[]);
    slow.write("domain:");
    assert_eq!(tollgate.wait().code(), Some(1));
    let said = tollgate.must_log("the rules are rejected");
    assert!(said["message"].as_str().unwrap().ends_with("slow:1:1: domain: is missing or empty"), "{said}");

    let slow = Slow::new();
    let tollgate = slow.start(&["FORCE_START_WITHOUT_INITIAL_CONFIG=true"]);
    slow.write("domain:");
    tollgate.must_log("tollgate is up");
    let reason = "not serving: the rules are rejected, see the log";
    assert_eq!(tollgate.get("/healthcheck"), (500, reason.to_owned()));
    assert_eq!(tollgate.metric("tollgate_rules_loads_total{result=\"error\"}"), 1.0);
    std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).expect("it listens, and its health says why");
}

/// The first file has been read when it changes, and the second has not.
#[test]
fn a_file_that_changes_while_others_are_loaded_is_loaded_again() {
    let slow = Slow::new();
    let folder = tempfile::tempdir().unwrap();
    let quick = folder.path().join("quick.yaml");
    std::fs::write(&quick, OTHERS).unwrap();
    let tollgate = slow.start(&[&format!("RULES={},{}", quick.display(), slow.path().display())]);
    wait_until("the first file is read", || {
        let progress = |line: &serde_json::Value| line["message"] == "loading the rules" && line["files_read"] == 1;
        tollgate.logs().iter().any(progress)
    });
    let bytes = OTHERS.len();
    let reason = format!("not serving: the rules are being loaded, {bytes} of {bytes} bytes");
    assert_eq!(tollgate.get("/healthcheck"), (500, reason));
    std::fs::write(&quick, OTHERS.replace("year", "hour")).unwrap();
    slow.write(RULES);
    tollgate.must_log("tollgate is up");
    slow.write(RULES);
    let said = tollgate.must_log("new rules are in force: 0 added, 0 removed, 1 changed; counters of 1 are reset");
    tollgate.must_log("changes of the new rules:\nchanged: mall: user: period year -> hour: counters are reset");
    assert_eq!((&said["changed"], &said["afresh"], &said["added"]), (&1.into(), &1.into(), &0.into()));
}

#[test]
fn check_says_what_new_rules_change_before_they_are_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("old.yaml", RULES);
    write("new.yaml", &RULES.replace("year", "hour"));
    write("wrong.yaml", "domain:");
    let check = |old: &str, new: &str| {
        let path = |name: &str| Path::join(folder.path(), name);
        let output = command().arg("check").arg("--against").arg(path(old)).arg(path(new)).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    let (code, out, _) = check("old.yaml", "new.yaml");
    let expected = "ok: 1 rule in 1 domain\n\
                    changed: shop: user: period year -> hour: counters are reset\n\
                    0 added, 0 removed, 1 changed; counters of 1 are reset\n";
    assert_eq!((code, out.as_str()), (Some(0), expected));
    let (code, _, err) = check("wrong.yaml", "new.yaml");
    assert_eq!(code, Some(1));
    assert!(err.contains("--against") && err.contains("wrong.yaml:1:1: domain: is missing or empty"), "{err}");
    assert_eq!(check("old.yaml", "wrong.yaml").0, Some(1));
}

/// Output that is closed early is not an error of the check.
#[test]
fn what_check_says_is_written_as_it_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let rule = |number: usize, unit| {
        format!("- {{key: user, value: u{number}, rate_limit: {{unit: {unit}, requests_per_unit: 5}}}}\n")
    };
    let write = |name: &str, unit| {
        let rules: String = (0..2_000).map(|number| rule(number, unit)).collect();
        std::fs::write(folder.path().join(name), format!("domain: d\ndescriptors:\n{rules}")).unwrap();
    };
    write("old.yaml", "minute");
    write("new.yaml", "hour");
    let output = command()
        .args(["check", "--against"])
        .args([folder.path().join("old.yaml"), folder.path().join("new.yaml")])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().filter(|line| line.ends_with("counters are reset")).count(), 2_000);
    assert!(lines.ends_with("0 added, 0 removed, 2000 changed; counters of 2000 are reset\n"));
}

#[test]
fn a_pipe_where_a_file_belongs_ends_the_start_and_the_log_says_so() {
    let slow = Slow::new();
    let pipe = slow.path().display().to_string();
    for (setting, others) in [
        ("GRPC_SERVER_TLS_CERT", &["GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_KEY=/nowhere"][..]),
        ("REDIS_AUTH_FILE", &["REDIS_URL=redis://127.0.0.1:1"]),
        ("REDIS_TLS_CACERT", &["REDIS_URL=rediss://127.0.0.1:1"]),
        ("DECISION_LOG", &[]),
        ("VALUES_KEY_FILE", &["TOP_KEYS_VALUES=hashed"]),
        ("PROMETHEUS_MAPPER_YAML", &["USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"]),
    ] {
        let mut service = command();
        service.envs(others.iter().map(|setting| setting.split_once('=').unwrap()));
        service.envs([("GRPC_PORT", "0"), ("PORT", "0"), ("RULES", "/dev/null"), (setting, &*pipe)]);
        let ended = service.output().unwrap();
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(ended.status.code(), Some(1), "{setting}: {said}");
        assert!(said.contains("it is a pipe or a socket: name a regular file"), "{setting}: {said}");
    }
}

/// The master of a terminal stands for a file on a mount that hangs: it is no pipe, and a read from it never ends.
const HANGS: &str = "/dev/ptmx";

#[test]
fn a_start_that_waits_for_a_file_says_for_which_and_ends_with_a_signal() {
    let token = "ADMIN_TOKEN=a token of some length";
    for (setting, others) in [
        ("REDIS_TLS_CACERT", &["REDIS_URL=rediss://127.0.0.1:1"][..]),
        ("REDIS_AUTH_FILE", &["REDIS_URL=redis://127.0.0.1:1"]),
        ("GRPC_SERVER_TLS_CERT", &["GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_KEY=/dev/null"]),
        ("VALUES_KEY_FILE", &["TOP_KEYS_VALUES=hashed", "ADMIN_API=true", token]),
        ("PROMETHEUS_MAPPER_YAML", &["USE_PROMETHEUS=true", "USE_STATSD=false"]),
    ] {
        waits_for_a_file_and_ends_with_a_signal(setting, Path::new(HANGS), others);
    }
}

/// A log is only written, so it must hang where it is opened: the kernel lets nobody open a file on which another
/// process has a lease, until that process agrees or 45 seconds later.
#[test]
fn a_start_that_waits_for_its_decision_log_says_so_and_ends_with_a_signal() {
    const LEASE: &str = "$SIG{IO} = 'IGNORE'; open(F, '+>', $ARGV[0]) or die; \
                         fcntl(F, 1024, 1) or die \"no lease: $!\"; print \"leased\\n\"; close(STDOUT); <STDIN>";
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("decisions");
    let mut holder = Command::new("perl");
    let mut holder = holder.args(["-e", LEASE]).arg(&log).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    holder.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "leased\n");
    waits_for_a_file_and_ends_with_a_signal("DECISION_LOG", &log, &[]);
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
}

fn waits_for_a_file_and_ends_with_a_signal(setting: &str, file: &Path, others: &[&str]) {
    let mut command = command();
    command.envs([("GRPC_PORT", "0"), ("PORT", "0"), ("RULES", "/dev/null")]).env(setting, file);
    command.envs(others.iter().map(|setting| setting.split_once('=').unwrap()));
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find(|line| line.contains("the start waits for a file that does not answer"));
    let said = said.unwrap_or_else(|| panic!("{setting}: it ended: {:?}", process.wait()));
    assert!(said.contains(setting) && said.contains(&*file.to_string_lossy()), "{said}");
    signal(&process, "TERM");
    // The file never answers: who waits for it does not end.
    assert!(process.wait().unwrap().success());
    assert!(lines.any(|line| line.contains("ending before the start is over")));
}
