//! Real processes for tests: each has its own port and ends when it is dropped.

#![allow(dead_code, reason = "tests/allocations.rs and the benchmarks use a part of this")]

pub mod certificates;
pub mod chromium;
pub mod cluster;
pub mod collector;
pub mod drop_in;
pub mod envoy;
pub mod http2;
pub mod imports;
pub mod limits;
pub mod management;
pub mod model;
pub mod redis;
pub mod reference;
pub mod terminal;
pub mod tollgate;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::ops::Range;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time limit for anything that should happen soon, on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// Ports for servers that choose none themselves, or start again: below those that the system gives to outgoing
/// connections, which could take one before its server does. The bus of a Redis Cluster has a port 10,000 higher.
const PORTS: Range<u16> = 10_000..22_000;

/// Returns a free port that this process has not returned before: `envoyproxy/ratelimit` shares ports with other
/// processes.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = fastrand::u16(PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

/// Waits until `ready` returns true.
///
/// # Panics
/// With `what` where it never does.
pub fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < SOON, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same where asking takes its time.
pub async fn wait_until_async(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !ready().await {
        assert!(start.elapsed() < SOON, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sends a signal (`STOP`, `CONT`, `TERM`, `KILL`) to a child of ours.
pub fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([format!("-{signal}"), pid]).status().expect("kill(1) is there");
    assert!(sent.success());
}
