//! The system calls of the server for a request that is alone, counted by `strace -c`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bare::{Bare, Library};
use crate::http2::{Connection, Headers, Server};
use crate::load::{Call, RULES, Users, calls, one_by_one};
use crate::rows::Target::AtMost;
use crate::rows::{Measured, Row};
use crate::stage::{Place, Stage};
use crate::support::signal;

pub const ROWS: &[Row] = &[
    Row { figure: "a request alone, memory store, system calls", target: AtMost(3.0, "a request") },
    Row { figure: "a request alone, Redis store, system calls", target: AtMost(6.25, "a request") },
];

/// Number of requests, each after the answer to the one before.
const REQUESTS: usize = 500;
/// Number of requests before them.
const WARM_UP: usize = 100;
/// The timeout of a call, as in `deploy/envoy`: the server's timer for it is earlier than any other. Some calls may be
/// late.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Number of the most frequent system calls to show.
const SHOWN: usize = 6;
const INSTALL: &str = "strace is not installed: apt-get install strace (Debian's package `strace`)";

/// Numbers of system calls by their names, for each request.
type Calls = BTreeMap<String, f64>;

/// Gives one for each of [`ROWS`].
pub fn measure(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideLoad);
    let bare = Bare::start(stage, Library::Hyper);
    let memory = stage.tollgate(RULES, &[]);
    let shared = stage.tollgate(RULES, &[&format!("REDIS_URL={}", redis.url())]);
    let users = calls(100, 1, Users::Passing);
    let count = |port, pid| of_requests(port, pid, &users);
    let bare = count(bare.port, bare.pid());
    let row = |counted: Result<Calls, String>| match (&bare, counted) {
        (Ok(bare), Ok(counted)) => {
            // What happens now and then is not of a request.
            let value = (sum(&counted) * 10.0).round() / 10.0;
            let detail = format!("{}; bare hyper {:.1}; nothing is saturated", list(&counted), sum(bare));
            Measured::new(value, detail)
        }
        (Err(why), _) => Measured::none(why.clone()),
        (_, Err(why)) => Measured::none(why),
    };
    vec![row(count(memory.grpc_port, memory.pid())), row(count(shared.grpc_port, shared.pid()))]
}

/// Counts the system calls of a request, less those of the same time without any.
fn of_requests(port: u16, pid: u32, users: &[Call]) -> Result<Calls, String> {
    let server = Server::from(port).with(Headers::New);
    let mut connection = Connection::open(server, TIMEOUT).unwrap();
    one_by_one(&mut connection, users, WARM_UP);
    let mut elapsed = Duration::ZERO;
    let mut of_requests = during(pid, || {
        let start = Instant::now();
        one_by_one(&mut connection, users, REQUESTS);
        elapsed = start.elapsed();
    })?;
    for (name, count) in during(pid, || std::thread::sleep(elapsed))? {
        *of_requests.entry(name).or_default() -= count;
    }
    Ok(of_requests.into_iter().map(|(name, count)| (name, count / REQUESTS as f64)).collect())
}

/// Counts the system calls of all threads of a process during `load`.
fn during(pid: u32, load: impl FnOnce()) -> Result<Calls, String> {
    let table = tempfile::NamedTempFile::new().unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-o"]).arg(table.path()).args(["-p", &pid.to_string()]).stderr(Stdio::piped());
    let mut strace = strace.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => INSTALL.to_owned(),
        _ => format!("strace does not start: {error}"),
    })?;
    let mut said = String::new();
    let mut lines = BufReader::new(strace.stderr.take().unwrap());
    while !said.contains(" attached") {
        if lines.read_line(&mut said).unwrap() == 0 {
            let _ = strace.wait();
            return Err(format!("strace may not look at another process here: {}", said.trim()));
        }
    }
    load();
    signal(&strace, "INT");
    let _ = strace.wait();
    Ok(parsed(&std::fs::read_to_string(table.path()).unwrap()))
}

/// Reads the table: share, seconds, microseconds per call, calls, errors if there are any, and the name.
fn parsed(table: &str) -> Calls {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (count, name) = (fields.get(3)?.parse().ok()?, *fields.last()?);
        (name != "total").then(|| (name.to_owned(), count))
    };
    table.lines().filter_map(line).collect()
}

fn sum(calls: &Calls) -> f64 {
    calls.values().sum()
}

fn list(calls: &Calls) -> String {
    let mut most: Vec<(&String, &f64)> = calls.iter().collect();
    most.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let shown = most.into_iter().take(SHOWN).filter(|(_, count)| **count >= 0.05);
    shown.map(|(name, count)| format!("{name} {count:.1}")).collect::<Vec<_>>().join(", ")
}
