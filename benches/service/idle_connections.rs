//! The memory of the server for a connection that does nothing.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::bare::{Bare, Library};
use crate::cost::memory;
use crate::http2::{Connection, Headers, Server};
use crate::load::{Call, RULES, Users, calls, one_by_one};
use crate::rows::Target::AtMost;
use crate::rows::{Measured, Row};
use crate::stage::Stage;

pub const ROWS: &[Row] = &[
    Row { figure: "an idle connection, resident memory", target: AtMost(8.0, "KB") },
    Row { figure: "the same, after a call with new headers", target: AtMost(8.0, "KB") },
];

/// Descriptors of a process for anything else, those of a Tollgate's other port among them.
const KEPT: usize = 400;
/// A timeout that calls do not reach.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Gives one for each of [`ROWS`].
pub fn measure(stage: &Stage) -> Vec<Measured> {
    let count = stage.connections.min(descriptors().saturating_sub(KEPT));
    let users = calls(100, 1, Users::Passing);
    // Its own bound would let idle connections go.
    let tollgate = stage.tollgate(RULES, &[&format!("GRPC_MAX_CONNECTIONS={}", 2 * stage.connections)]);
    let ours = kilobytes_each(tollgate.grpc_port, tollgate.pid(), count, &users);
    drop(tollgate);
    let bare = Bare::start(stage, Library::Tonic);
    let bare = kilobytes_each(bare.port, bare.pid(), count, &users);
    let few = if count < stage.connections { ", as many as `ulimit -Hn` allows" } else { "" };
    let row = |(ours, bare)| {
        Measured::new(ours, format!("{count} connections{few}; bare tonic {bare:.1} KB; nothing is saturated"))
    };
    ours.into_iter().zip(bare).map(row).collect()
}

/// Opens this many connections, and returns what each takes before and after its first call.
fn kilobytes_each(port: u16, pid: u32, count: usize, users: &[Call]) -> [f64; 2] {
    let open = |count: usize| -> Vec<Connection<usize>> { (0..count).map(|_| opened(port)).collect() };
    let call = |connections: &mut [Connection<usize>]| {
        for connection in connections {
            assert_eq!(one_by_one(connection, users, 1), 1, "a call failed");
            connection.rest().unwrap();
        }
    };
    // Excludes the memory of whatever the first connections need.
    let mut first = open(count / 100 + 1);
    call(&mut first);
    let before = memory(pid);
    let most = count - first.len();
    let mut rest = open(most);
    let each = |memory: u64| memory.saturating_sub(before) as f64 / most as f64 / 1024.0;
    let without = each(memory(pid));
    call(&mut rest);
    [without, each(memory(pid))]
}

/// Returns a connection that has exchanged settings.
fn opened(port: u16) -> Connection<usize> {
    let mut connection = Connection::open(Server::from(port).with(Headers::New), TIMEOUT).unwrap();
    connection.flush().unwrap();
    connection.receive(|_, _| {}, |_, _| {}).unwrap();
    connection.rest().unwrap();
    connection
}

/// Raises this process's limit on file descriptors, which servers that it starts have too, and returns it.
pub fn descriptors() -> usize {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    usize::try_from(if raised { hard } else { soft }).unwrap()
}
