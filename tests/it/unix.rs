//! gRPC over a Unix socket.

use crate::support;

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use support::certificates::Authority;
use support::envoy::Envoy;
use support::tollgate::{self, Tollgate};
use support::wait_until;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
";

fn start(path: &Path, settings: &[String]) -> Tollgate {
    let named = format!("GRPC_UDS={}", path.display());
    let settings: Vec<_> = settings.iter().map(String::as_str).chain([&*named]).collect();
    Tollgate::start(RULES, &settings)
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gate.sock");
    (folder, path)
}

#[test]
fn grpc_is_served_at_a_path_and_the_file_goes_with_the_process() {
    let (_folder, path) = socket();
    let mut tollgate = start(&path, &["GRPC_UDS_MODE=600".into()]);
    let up = tollgate.must_log("tollgate is up");
    assert_eq!(up["grpc"], format!("unix:{}", path.display()));
    tollgate.must_log("try: ");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let address = format!("unix:{}", path.display());
    let ask = ["ask", "--domain", "shop", "user=ann", "--timeout", "20s"];
    let code = |arguments: &[&str]| tollgate::command().args(arguments).output().unwrap().status.code();
    assert_eq!(code(&[&ask[..], &["--address", &address]].concat()), Some(0));
    assert_eq!(code(&[&ask[..], &["--address", &address.replace("unix:", "unix://")]].concat()), Some(0));
    assert_eq!(code(&[&ask[..], &["--address", &address]].concat()), Some(2));
    let mut health = tollgate::command();
    let health = health.env("GRPC_UDS", &path).args(["health", "--timeout", "20s"]).output().unwrap();
    assert_eq!(health.status.code(), Some(0), "{health:?}");

    tollgate.signal("TERM");
    assert_eq!(tollgate.wait().code(), Some(0));
    assert!(!path.exists());
    let nobody = tollgate::command().args(ask).args(["--address", &address]).output().unwrap();
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(said.contains(&format!("cannot reach {address}: ")) && said.contains("see --address"), "{said}");
}

#[test]
fn a_stale_socket_is_replaced_and_one_of_a_living_process_is_left_alone() {
    let (_folder, path) = socket();
    let mut killed = start(&path, &[]);
    killed.signal("KILL");
    killed.wait();
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket(), "it is left behind");
    let living = start(&path, &[]);

    let mut second = tollgate::command();
    second.env("GRPC_UDS", &path).env("RULES", living.rules.path()).env("PORT", "0");
    let output = second.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("(GRPC_UDS): another process listens on it: end that process, or choose another path"),
        "{said}"
    );
    assert!(path.exists());
}

#[test]
fn a_real_envoy_asks_over_the_socket_and_in_tls_too() {
    let (_folder, path) = socket();
    let ours = Authority::new("ours");
    let plain = "socket_address: { address: 127.0.0.1, port_value: 8081 }";
    let pipe = format!("pipe: {{ path: {} }}", path.display());
    // A socket needs no DNS. The comment keeps a port for the harness to replace.
    let changes = [Envoy::LONG_TIMEOUT, (plain, &*pipe), ("type: STRICT_DNS", "type: STATIC # port_value: 8081 }")];
    let _tollgate = start(&path, &[]);
    let envoy = Envoy::start_from("deploy/envoy/envoy.yaml", 0, &changes);
    wait_until("envoy is answered", || envoy.get_as("ann").is_decided());
    wait_until("ann is limited", || envoy.get_as("ann").status == 429);

    let (_folder, path) = socket();
    let _secret = start(&path, &ours.sign("server", &["localhost"]).settings());
    let mut ask = tollgate::command();
    ask.args(["ask", "--domain", "shop", "user=ann", "--timeout", "20s", "--ca"]).arg(ours.file());
    let output = ask.arg("--address").arg(format!("unix:{}", path.display())).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
