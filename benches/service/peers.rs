//! Tollgate compared with `envoyproxy/ratelimit`: `make bench-peers` prints a table of both, measured alternately in
//! one run.
//!
//! Both run the same rules and environment, each with a separate Redis, on the server's core. The load runs on the
//! other core: this program's, which checks every answer; h2load; and an Envoy. Then fleets of both, each with a Redis
//! that its instances share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::cost::{Cost, median};
use crate::fleet::{self, REPLICAS};
use crate::http2::{Headers, Server};
use crate::load::{Call, Idle, Latencies, OpenLoop, RULES, Users, calls, open_loop};
use crate::rows::closed_loop;
use crate::shares::{TIMEOUT, by_zipf, drawn, wait_for_shares};
use crate::stage::{Place, Stage};
use crate::support::drop_in::{DropIn, Given};
use crate::support::envoy::Envoy;
use crate::support::redis::Redis;
use crate::support::tollgate;

/// `scripts/peer-tools.sh` installs it.
const REFERENCE: &str = "target/tools/bin/ratelimit";
/// The rate for measuring latency: far below the capacity of both, so calls do not queue.
const PER_SECOND: u32 = 2_000;
/// The rates behind Envoy: of calls that are alone, and of calls that sometimes meet.
const BEHIND_ENVOY: [u32; 2] = [500, 2_000];
const USERS: usize = 10_000;
/// Total request rates of the fleet.
const FLEET_RATES: [u32; 3] = [2_000, 8_000, 16_000];
/// The rates of fleets with shares.
const SHARE_RATES: [u32; 2] = [2_000, 8_000];
/// What the limit of each user has in addition, by fleet of Tollgate.
const OPTIONS: [(&str, &str); 3] = [
    ("Tollgate", ""),
    ("with shares", ", own_share: 10%"),
    ("with shares and leases", ", own_share: 10%, lease: {unused: 10%}"),
];
/// Number of users by Zipf's distribution, of whom the first stays below 1,000 a second.
const ZIPF_USERS: usize = 100_000;
/// The part that has only fleets.
const FLEET: &str = "fleet";
/// Calls of h2load for each second of a run: some seconds of the slower one.
const H2LOAD_CALLS: u64 = 20_000;

/// One side of the comparison.
struct Peer {
    name: &'static str,
    redis: Redis,
    server: DropIn,
    envoys: Envoys,
}

/// Envoys whose filter asks a server, by the headers of the calls, and one whose filter asks nothing.
struct Envoys {
    constant: Envoy,
    new: Envoy,
    idle: Envoy,
}

/// The result of a run.
struct Run {
    /// Closed loops of 10,000 users, by the headers of the calls.
    constant: Cost,
    new: Cost,
    /// A closed loop of h2load.
    h2load: Cost,
    /// Asked directly.
    direct: Latencies,
    /// At each of [`BEHIND_ENVOY`].
    behind_envoy: [BehindEnvoy; 2],
}

/// Requests at one rate through each Envoy: the cost of the server and of Redis, and the latencies of the requests.
struct BehindEnvoy {
    constant: (Cost, Latencies),
    new: (Cost, Latencies),
    idle: Latencies,
}

/// Measures both, and prints the tables; only that of fleets, where `part` is that.
pub fn print(stage: &Stage, part: &str) {
    println!("{stage}\n");
    if part != FLEET {
        print_single(stage);
    }
    print_fleets(stage);
    print_shares(stage);
}

fn print_single(stage: &Stage) {
    let bench = Bench::new();
    let peers = bench.peers(stage);
    let mut runs: Vec<Vec<Run>> = peers.iter().map(|_| Vec::new()).collect();
    for _ in 0..stage.runs {
        for (peer, runs) in peers.iter().zip(&mut runs) {
            runs.push(bench.run(stage, peer));
        }
    }
    head(peers.iter().map(|peer| peer.name));
    for Figure { name, unit, of } in FIGURES {
        let values: Vec<f64> = runs.iter().map(|runs| median(runs.iter().map(of).collect())).collect();
        line(name, unit, &values);
    }
    println!("\nBusy with 256 in flight and behind Envoy at 2,000/s, new headers in each call:\n");
    for (peer, runs) in peers.iter().zip(&runs) {
        let Run { new, behind_envoy: [.., BehindEnvoy { new: (behind_envoy, _), .. }], .. } = &runs[runs.len() - 1];
        println!("- {}: {}; {}", peer.name, new.busy(), behind_envoy.busy());
    }
    let is_disturbed = |run: &&Run| [&run.constant, &run.new, &run.h2load].into_iter().any(Cost::disturbed);
    let disturbed = runs.iter().flatten().filter(is_disturbed).count();
    println!("\nOthers were on the cores in {disturbed} of {} runs.", runs.iter().map(Vec::len).sum::<usize>());
}

/// Prints the head of a table in which each side but the first is followed by its ratio to the first.
fn head<'n>(names: impl Iterator<Item = &'n str>) {
    let names: Vec<&str> = names.collect();
    let columns = 2 * names.len();
    println!(
        "| figure | {} | ratio |\n|{}",
        names.join(" | ratio | ").replacen(" | ratio", "", 1),
        "---|".repeat(columns)
    );
}

fn line(name: &str, unit: &str, values: &[f64]) {
    let shown = |value: f64| format!("{value:.*} {unit}", digits(value));
    let others = values[1..].iter().map(|value| format!("{} | {:.2} |", shown(*value), value / values[0]));
    println!("| {name} | {} | {}", shown(values[0]), others.collect::<Vec<_>>().join(" "));
}

/// A line of the table.
struct Figure {
    name: &'static str,
    unit: &'static str,
    of: fn(&Run) -> f64,
}

const FIGURES: &[Figure] = &[
    Figure { name: "decisions per second, 256 in flight, 10,000 users", unit: "/s", of: |run| run.constant.rate() },
    Figure { name: "server CPU per decision", unit: "µs", of: |run| run.constant.each_us(0) },
    Figure { name: "Redis CPU per decision", unit: "µs", of: |run| run.constant.each_us(1) },
    Figure { name: "decisions per second, new headers in each call", unit: "/s", of: |run| run.new.rate() },
    Figure { name: "server CPU per decision there", unit: "µs", of: |run| run.new.each_us(0) },
    Figure { name: "Redis CPU per decision there", unit: "µs", of: |run| run.new.each_us(1) },
    Figure { name: "decisions per second behind h2load, one user", unit: "/s", of: |run| run.h2load.rate() },
    Figure { name: "server CPU per decision there", unit: "µs", of: |run| run.h2load.each_us(0) },
    Figure { name: "Redis CPU per decision there", unit: "µs", of: |run| run.h2load.each_us(1) },
    Figure { name: "p50 at 2,000/s", unit: "µs", of: |run| run.direct.us(0.5) },
    Figure { name: "p99 at 2,000/s", unit: "µs", of: |run| run.direct.us(0.99) },
    Figure { name: "server CPU per request behind Envoy at 500/s", unit: "µs", of: |run| constant_us(run, 0) },
    Figure { name: "the same, new headers in each call", unit: "µs", of: |run| new_us(run, 0) },
    Figure { name: "added to p50 by Envoy's filter at 500/s", unit: "µs", of: |run| added(run, 0, 0.5) },
    Figure { name: "added to p99 by Envoy's filter at 500/s", unit: "µs", of: |run| added(run, 0, 0.99) },
    Figure { name: "server CPU per request behind Envoy at 2,000/s", unit: "µs", of: |run| constant_us(run, 1) },
    Figure { name: "the same, new headers in each call", unit: "µs", of: |run| new_us(run, 1) },
    Figure { name: "added to p50 by Envoy's filter at 2,000/s", unit: "µs", of: |run| added(run, 1, 0.5) },
    Figure { name: "added to p99 by Envoy's filter at 2,000/s", unit: "µs", of: |run| added(run, 1, 0.99) },
];

fn constant_us(run: &Run, rate: usize) -> f64 {
    run.behind_envoy[rate].constant.0.each_us(0)
}

fn new_us(run: &Run, rate: usize) -> f64 {
    run.behind_envoy[rate].new.0.each_us(0)
}

/// By calls with new headers, which are what Envoy sends.
fn added(run: &Run, rate: usize, share: f64) -> f64 {
    let BehindEnvoy { new: (_, with), idle: without, .. } = &run.behind_envoy[rate];
    with.us(share) - without.us(share)
}

fn digits(value: f64) -> usize {
    if value.abs() < 100.0 { 1 } else { 0 }
}

/// The environment of every run.
struct Bench {
    calls: Vec<Call>,
    folder: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let (calls, folder) = (calls(USERS, 1, Users::Passing), tempfile::tempdir().unwrap());
        fs::write(folder.path().join("call"), &calls[0].message).unwrap();
        Bench { calls, folder }
    }

    fn peers(&self, stage: &Stage) -> Vec<Peer> {
        sides().map(|(name, program)| peer(stage, name, &program)).into()
    }

    fn run(&self, stage: &Stage, peer: &Peer) -> Run {
        let (port, run) = (peer.server.ports.grpc, stage.run);
        let processes = [("server", peer.server.pid()), ("Redis", peer.redis.pid())];
        let closed = |headers| closed_loop(stage, Server::from(port).with(headers), &self.calls, &processes);
        let (constant, new) = (closed(Headers::Constant), closed(Headers::New));
        let calls = (run.as_secs_f64() * H2LOAD_CALLS as f64) as u64;
        let h2load = Cost::of(&processes, || self.h2load_calls(port, calls));
        let direct = open_loop(port, &self.calls, PER_SECOND, run);
        let behind_envoy = BEHIND_ENVOY.map(|per_second| {
            let through = |envoy: &Envoy| self.through(envoy, per_second, run);
            let asking = |envoy: &Envoy| {
                let mut latencies = Latencies::default();
                let cost = Cost::of(&processes, || {
                    latencies = through(envoy);
                    latencies.count()
                });
                (cost, latencies)
            };
            let Envoys { constant, new, idle } = &peer.envoys;
            BehindEnvoy { constant: asking(constant), new: asking(new), idle: through(idle) }
        });
        Run { constant, new, h2load, direct, behind_envoy }
    }

    /// Measures the rate of h2load with 8 connections and 32 streams each, for this many calls.
    fn h2load_calls(&self, port: u16, calls: u64) -> u64 {
        let url = format!("http://127.0.0.1:{port}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let mut command = h2load(calls);
        command.args(["-c", "8", "-m", "32", "-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]);
        succeed(command.arg(self.folder.path().join("call")).arg(url), calls);
        calls
    }

    /// Sends requests through an Envoy at this rate, each as a user of the rules.
    fn through(&self, envoy: &Envoy, per_second: u32, run: Duration) -> Latencies {
        let calls = (run.as_secs_f64() * f64::from(per_second)) as u64;
        let log = self.folder.path().join("log");
        let _ = fs::remove_file(&log);
        let mut command = h2load(calls.max(1));
        command.args(["-c", "1", "-m", "100", "-H", "x-user: ann", "--rps", &per_second.to_string(), "--log-file"]);
        succeed(command.arg(&log).arg(format!("http://127.0.0.1:{}/", envoy.port)), calls.max(1));
        // Each line: when it began, its status, and how many microseconds it took.
        let text = fs::read_to_string(&log).unwrap();
        let taken = text.lines().map(|line| {
            let microseconds = line.rsplit('\t').next().and_then(|field| field.trim().parse().ok());
            Duration::from_micros(microseconds.unwrap_or_else(|| panic!("h2load has logged {line:?}")))
        });
        Latencies::new(taken.collect())
    }
}

/// Returns both sides, with their programs.
fn sides() -> [(&'static str, PathBuf); 2] {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join(REFERENCE);
    assert!(reference.exists(), "{REFERENCE} is missing: scripts/test-tools.sh ratelimit h2load");
    [("envoyproxy/ratelimit", reference), ("Tollgate", PathBuf::from(tollgate::BINARY))]
}

/// Replicas of one side, and the Redis that they share.
struct Fleet {
    redis: Redis,
    replicas: Vec<DropIn>,
}

impl Fleet {
    fn start(stage: &Stage, name: &str, program: &Path, rules: &str) -> Fleet {
        let redis = stage.redis(Place::BesideLoad);
        let command = || {
            let mut command = stage.on_any_core(program);
            // One thread for each instance, as if it had one core.
            command.envs([("WORKER_THREADS", "1"), ("GOMAXPROCS", "1")]);
            command.envs([("EXPECTED_REPLICAS", &*REPLICAS.to_string()), ("SHARE_TIMEOUT", TIMEOUT)]);
            command
        };
        let replicas = (0..REPLICAS).map(|_| start(name, &command, rules, &redis)).collect();
        Fleet { redis, replicas }
    }

    fn run(&self, stage: &Stage, calls: &[Call], per_second: u32) -> (Cost, Latencies) {
        let ports: Vec<u16> = self.replicas.iter().map(|replica| replica.ports.grpc).collect();
        let processes = fleet::processes(&self.redis, self.replicas.iter().map(DropIn::pid));
        let open_loop = OpenLoop { ports: &ports, calls, per_second, run: stage.run, idle: Idle::Pause };
        let mut latencies = Latencies::default();
        let cost = Cost::of(&processes, || {
            latencies = open_loop.checked();
            latencies.count()
        });
        (cost, latencies)
    }
}

fn print_fleets(stage: &Stage) {
    let calls = calls(USERS, 1, Users::Passing);
    let fleets = sides().map(|(name, program)| (name, Fleet::start(stage, name, &program, RULES)));
    println!("\n{REPLICAS} replicas, which share a Redis:\n");
    print_rates(stage, &fleets, &FLEET_RATES, &calls);
}

/// Prints what shares and leases save: each user may send 1,000 requests a second.
fn print_shares(stage: &Stage) {
    const LIMIT: &str = "unit: second, requests_per_unit: 1000";
    let rules = |options| format!("domain: bench\ndescriptors: [{{key: user, rate_limit: {{{LIMIT}{options}}}}}]");
    let [(reference, program), (_, ours)] = sides();
    let mut fleets = vec![(reference, Fleet::start(stage, reference, &program, &rules("")))];
    fleets.extend(OPTIONS.map(|(name, options)| (name, Fleet::start(stage, name, &ours, &rules(options)))));
    let with_shares = fleets.iter().filter(|(name, _)| name.starts_with("with shares"));
    let ports = with_shares.flat_map(|(_, fleet)| fleet.replicas.iter().map(|replica| replica.ports.http));
    wait_for_shares(stage, ports, Duration::from_secs(1));
    let [.., most] = SHARE_RATES;
    let count = (f64::from(most) * stage.run.as_secs_f64()) as usize + 1;
    let even = calls(USERS, 1, Users::Passing);
    let by_zipf = drawn("user", &by_zipf(ZIPF_USERS, 1.0), count);
    for (users, calls) in [("10,000 users alike", even), ("100,000 users by Zipf's distribution", by_zipf)] {
        println!("\nThe same for {users}, each with a limit of 1,000 a second:\n");
        print_rates(stage, &fleets, &SHARE_RATES, &calls);
    }
}

/// Prints a table of these fleets by the rates that are offered to each of them, in turn.
fn print_rates(stage: &Stage, fleets: &[(&str, Fleet)], rates: &[u32], calls: &[Call]) {
    head(fleets.iter().map(|(name, _)| *name));
    for per_second in rates {
        let mut runs: Vec<_> = fleets.iter().map(|_| Vec::new()).collect();
        for _ in 0..stage.runs {
            for ((_, fleet), runs) in fleets.iter().zip(&mut runs) {
                runs.push(fleet.run(stage, calls, *per_second));
            }
        }
        let figure = |name: &str, unit: &str, of: &dyn Fn(&(Cost, Latencies)) -> f64| {
            let values: Vec<f64> = runs.iter().map(|runs| median(runs.iter().map(of).collect())).collect();
            line(&format!("{name} at {per_second}/s"), unit, &values);
        };
        figure("decisions per second", "/s", &|(cost, _)| cost.rate());
        figure("Redis CPU per decision", "µs", &|(cost, _)| cost.each_us(0));
        figure("server CPU per decision", "µs", &|(cost, _)| cost.each_us(2));
        figure("p50", "µs", &|(_, latencies)| latencies.us(0.5));
        figure("p99", "µs", &|(_, latencies)| latencies.us(0.99));
    }
}

/// A server of either side, which counts in this Redis.
fn start(name: &str, command: &dyn Fn() -> Command, rules: &str, redis: &Redis) -> DropIn {
    // The cheapest configuration of envoyproxy/ratelimit: it reports nothing.
    let settings = [("USE_STATSD", "false"), ("DISABLE_STATS", "true"), ("LOG_LEVEL", "WARN")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let rules = [("rules.yaml".to_owned(), rules.trim_start().to_owned())];
    let given = Given { command, settings: &settings, rules: &rules, redis };
    DropIn::start(&given).unwrap_or_else(|ended| panic!("{name} has ended: {}", ended.0))
}

fn peer(stage: &Stage, name: &'static str, program: &Path) -> Peer {
    let redis = stage.redis(Place::BesideLoad);
    let server = start(name, &|| stage.on_server_core(program), RULES, &redis);
    // Only the descriptor of the user, which is absent without the header.
    let domain = ("domain: shop", "domain: bench");
    let no_path = ("text: request.url_path", "text: request.headers['x-nobody']");
    let no_user = ("header_name: x-user,", "header_name: x-nobody,");
    let envoy = |change| Envoy::start_with(server.ports.grpc, &[Envoy::LONG_TIMEOUT, domain, no_path, change]);
    // Envoy makes a request ID for each request. It stands in for a trace, too, whose header has as many characters.
    let request_id = r#"{ key: x-request-id, value: "%REQ(x-request-id)%" }"#;
    let trace = r#"{ key: traceparent, value: "00-%REQ(x-request-id)%-00f067aa0ba9-01" }"#;
    let envoys = Envoys {
        constant: envoy((&format!("initial_metadata: [{request_id}]"), "")),
        new: envoy((request_id, &format!("{request_id}, {trace}"))),
        idle: envoy(no_user),
    };
    Peer { name, redis, server, envoys }
}

/// Returns a command for this many requests, on this program's core.
fn h2load(calls: u64) -> Command {
    let mut command = Command::new("h2load");
    command.args(["-n", &calls.to_string()]);
    command
}

/// Runs it, and looks whether all of its requests were answered.
fn succeed(command: &mut Command, calls: u64) {
    let output = command.output().expect("h2load is not installed: scripts/test-tools.sh ratelimit h2load");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(&format!("status codes: {calls} 2xx")), "{command:?}: {said}");
}
