//! Many instances that share one Redis: the cost of a decision when each has few requests, the resulting capacity, and
//! the admission of a hot key.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollgate::wire::RateLimitRequest;
use tollgate::wire::rate_limit_response::Code;

use crate::cost::{Cost, median};
use crate::load::{Call, Idle, Latencies, OpenLoop, RULES, Users, calls};
use crate::redis_loop::{Pipeline, RedisLoop, spread};
use crate::rows::Target::AtMost;
use crate::rows::{Measured, Row, USERS, checks, store_loop};
use crate::shares;
use crate::stage::{Place, Stage};
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, request};

/// Number of instances in a fleet.
pub const REPLICAS: usize = 16;
/// Total request rates of the fleet.
pub const RATES: [u32; 2] = [2_000, 8_000];
/// Time for which a pausing load leaves its core to other processes.
const PAUSE: Duration = Duration::from_micros(20);
/// Number of instances that share a hot key.
const TWO: usize = 2;
/// Rows of a hot key whose limit has shares and leases, by the number of instances.
pub const HOT_SHARES: &[Row] = &[
    Row {
        figure: "a hot key of 100,000/s, 2 replicas with shares and leases, twice as much offered",
        target: AtMost(1.0, "% over its limit"),
    },
    Row { figure: "the same, calls to Redis, with shares", target: AtMost(100.0, "a second and replica") },
    Row { figure: "the same, left of its limit, with shares", target: AtMost(10.0, "%") },
    Row {
        figure: "a hot key of 100,000/s, 16 replicas with shares and leases, twice as much offered",
        target: AtMost(1.0, "% over its limit"),
    },
    Row { figure: "the same, calls to Redis, with shares", target: AtMost(100.0, "a second and replica") },
    Row { figure: "the same, left of its limit, with shares", target: AtMost(10.0, "%") },
];
/// The decided code of an answer that lets pass: its first field, 1.
const PASSED: [u8; 2] = [8, 1];

/// Measures the cost of a decision for Redis at each rate, and that of the commands of `envoyproxy/ratelimit` over the
/// same number of connections.
pub fn low_rates(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideLoad);
    let replicas = stage.replicas(REPLICAS, RULES, &[&format!("REDIS_URL={}", redis.url())]);
    let ports: Vec<u16> = replicas.iter().map(|replica| replica.grpc_port).collect();
    let processes = processes(&redis, replicas.iter().map(Tollgate::pid));
    let calls = calls(USERS, 1, Users::Mixed);
    let counting: Vec<Pipeline> = (0..USERS).map(|user| Pipeline::of_counting(&format!("user-{user:07}"))).collect();
    let mut connections: Vec<RedisLoop> = (0..REPLICAS).map(|_| RedisLoop::connect(&redis)).collect();
    let at = |per_second| {
        let (mut runs, mut halves, mut most) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..stage.runs {
            let fleet = Cost::of(&processes, || {
                let open_loop =
                    OpenLoop { ports: &ports, calls: &calls, per_second, run: stage.run, idle: Idle::Pause };
                let latencies = open_loop.checked();
                halves.push(latencies.us(0.5));
                most.push(latencies.us(0.99));
                latencies.count()
            });
            let counting = Cost::of(&processes, || {
                spread(&mut connections, &counting, per_second, stage.run, || sleep(PAUSE)).count()
            });
            runs.push((fleet, counting));
        }
        let of = |figure: fn(&(Cost, Cost)) -> f64| median(runs.iter().map(figure).collect());
        let detail = format!(
            "{:.1} µs; {:.1} µs; p50 {:.0} µs, p99 {:.0} µs",
            of(|(fleet, _)| fleet.each_us(0)),
            of(|(_, counting)| counting.each_us(0)),
            median(halves),
            median(most)
        );
        let ratio = of(|(fleet, counting)| fleet.each_us(0) / counting.each_us(0));
        Measured::new(ratio, detail).under(&[("", &runs[runs.len() - 1].0)])
    };
    RATES.map(at).into()
}

/// The processes of a fleet, by their names.
pub fn processes(redis: &Redis, replicas: impl Iterator<Item = u32>) -> Vec<(&'static str, u32)> {
    let load = [("Redis", redis.pid()), ("load", std::process::id())];
    load.into_iter().chain(replicas.map(|pid| ("replicas", pid))).collect()
}

/// The stores of a fleet, which have together in flight what one has alone.
pub fn at_redis_limit(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideServer);
    let checks = checks(USERS);
    let processes = [("Redis", redis.pid()), ("clients", std::process::id())];
    let mut runs = Vec::new();
    for _ in 0..stage.runs {
        let one = Cost::of(&processes, || store_loop(stage, &redis, &checks, 1));
        let before = redis.script_calls();
        let fleet = Cost::of(&processes, || store_loop(stage, &redis, &checks, REPLICAS));
        let in_each = fleet.done as f64 / f64::from(redis.script_calls() - before);
        runs.push((fleet, one, in_each));
    }
    let of = |figure: fn(&(Cost, Cost, f64)) -> f64| median(runs.iter().map(figure).collect());
    let detail = format!(
        "{:.0}/s, {:.2} µs of Redis each, {:.1} in a call; one store {:.0}/s, {:.2} µs",
        of(|(fleet, ..)| fleet.rate()),
        of(|(fleet, ..)| fleet.each_us(0)),
        of(|(.., in_each)| *in_each),
        of(|(_, one, _)| one.rate()),
        of(|(_, one, _)| one.each_us(0))
    );
    let ratio = of(|(fleet, one, _)| fleet.rate() / one.rate());
    let (fleet, one, _) = &runs[runs.len() - 1];
    let all = runs.iter().flat_map(|(fleet, one, _)| [fleet, one]);
    vec![Measured::new(ratio, detail).under(&[("fleet", fleet), ("one", one)]).timed_by(all)]
}

/// Measures a hot key with twice as many requests as its limit allows, on two instances with leases of up to 4 % of the
/// limit. Each request has ten hits, so two cores can generate enough load.
pub fn hot_key(stage: &Stage) -> Vec<Measured> {
    let number = stage.hot;
    let options = "lease: {unused: 4%}";
    let seen = HotKey { instances: TWO, number, options, offered: 2 * number, hits: 10 }.run(stage);
    let leases = "4 % may be out".to_owned();
    let measured = [(seen.over(number), seen.told()), (seen.calls, leases)];
    measured.map(|(value, detail)| seen.measured(value, detail)).into()
}

/// Measures the same on two and on sixteen instances with shares of 5 % in all, and up to 5 % in leases.
pub fn hot_key_with_shares(stage: &Stage) -> Vec<Measured> {
    let number = stage.hot;
    let of = |instances| {
        let options = "own_share: 5%, lease: {unused: 5%}";
        let seen = HotKey { instances, number, options, offered: 2 * number, hits: 10 }.run(stage);
        let (calls, left) = ("5 % in shares, 5 % may be out".to_owned(), "the least of all seconds".to_owned());
        [(seen.over(number), seen.told()), (seen.calls, calls), (seen.left(number), left)]
            .map(|(value, detail)| seen.measured(value, detail))
    };
    [TWO, REPLICAS].into_iter().flat_map(of).collect()
}

/// A key of a small limit, with a lease.
pub fn warm_key(stage: &Stage) -> Vec<Measured> {
    const NUMBER: u32 = 500;
    let options = "lease: {unused: 2%}";
    let seen = HotKey { instances: TWO, number: NUMBER, options, offered: 800, hits: 1 }.run(stage);
    vec![seen.measured(seen.over(NUMBER).max(seen.left(NUMBER)), seen.told())]
}

fn list(passed: &[f64]) -> String {
    let least = passed.iter().copied().fold(f64::INFINITY, f64::min);
    let most = passed.iter().copied().fold(0.0, f64::max);
    if least == most { format!("{most:.0}") } else { format!("{least:.0} to {most:.0}") }
}

/// A key with this limit per second, which instances share.
struct HotKey {
    instances: usize,
    number: u32,
    /// Of the limit, in addition to its algorithm.
    options: &'static str,
    /// Hits a second, to all of them together.
    offered: u32,
    /// Hits per request.
    hits: u32,
}

/// The results.
struct Seen {
    /// In each whole second.
    passed: Vec<f64>,
    /// Hits a second.
    offered: f64,
    /// The expected value.
    wanted: f64,
    /// To Redis, a second and replica.
    calls: f64,
}

impl Seen {
    /// The most that passed beyond this number in a second, in percent of it.
    fn over(&self, number: u32) -> f64 {
        let most = self.passed.iter().copied().fold(0.0, f64::max);
        (most / f64::from(number) - 1.0).max(0.0) * 100.0
    }

    /// The most that this number had left in a second, in percent of it.
    fn left(&self, number: u32) -> f64 {
        let least = self.passed.iter().copied().fold(f64::INFINITY, f64::min);
        (1.0 - least / f64::from(number)).max(0.0) * 100.0
    }

    /// Describes what passed.
    fn told(&self) -> String {
        format!("{} passed each second, of {:.0} offered", list(&self.passed), self.offered)
    }

    fn measured(&self, value: f64, detail: String) -> Measured {
        Measured { disturbed: self.is_short(), ..Measured::new(value, detail) }
    }

    /// Others were on the cores so much that less was offered than should have been.
    fn is_short(&self) -> bool {
        self.offered < self.wanted * 0.95
    }
}

impl HotKey {
    fn run(&self, stage: &Stage) -> Seen {
        let HotKey { instances, number, options, offered, hits } = *self;
        let redis = stage.redis(Place::BesideLoad);
        let limit = format!("unit: second, requests_per_unit: {number}, count_denied: false, {options}");
        let rules =
            format!("domain: bench\ndescriptors: [{{key: user, rate_limit: {{algorithm: fixed_window, {limit}}}}}]");
        let settings = shares::settings(&redis, instances);
        let replicas = stage.replicas(instances, &rules, &settings.each_ref().map(String::as_str));
        if options.contains("own_share") {
            shares::wait_for_shares(stage, replicas.iter().map(|replica| replica.http_port), Duration::from_secs(1));
        }
        let ports: Vec<u16> = replicas.iter().map(|replica| replica.grpc_port).collect();
        let hot = RateLimitRequest { hits_addend: hits, ..request("bench", &[&[("user", "hot")]]) };
        // The first second and the last are cut off, and one is left of the shortest run.
        let run = stage.run * stage.runs as u32 + Duration::from_secs(2);
        let mut passed: BTreeMap<u64, f64> = BTreeMap::new();
        let before = redis.script_calls();
        let calls = [Call::new(&hot, Code::Ok)];
        let open_loop = OpenLoop { ports: &ports, calls: &calls, per_second: offered / hits, run, idle: Idle::Pause };
        let (start, begin) = (Instant::now(), second());
        let latencies: Latencies = open_loop.run(|_, answer| {
            if has_passed(answer) {
                *passed.entry(second()).or_default() += f64::from(hits);
            }
        });
        let (elapsed, end) = (start.elapsed().as_secs_f64(), second());
        Seen {
            passed: (begin + 1..end).map(|second| passed.get(&second).copied().unwrap_or_default()).collect(),
            offered: latencies.count() as f64 * f64::from(hits) / elapsed,
            wanted: f64::from(offered),
            calls: f64::from(redis.script_calls() - before) / elapsed / instances as f64,
        }
    }
}

/// Returns whether this answer lets pass.
pub fn has_passed(answer: &[u8]) -> bool {
    answer.get(5..7) == Some(&PASSED)
}

/// On Redis's clock, which is this machine's.
fn second() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}
