//! Own shares and leases: what a fleet decides without Redis, how fast, and while Redis is gone.
//!
//! A limit counts 1,000 hits in six runs, which is a tenth of a minute in the table. Instances share it as they share
//! one of 1,000 a minute. One thing differs: a known denial holds for at most a second of either. So above a limit of a
//! minute, instances ask more often for each decision.

use std::thread::sleep;
use std::time::{Duration, Instant};

use tollgate::wire::rate_limit_response::Code;

use crate::cost::{Cost, median};
use crate::fleet;
use crate::load::{Call, Idle, Latencies, OpenLoop, RULES, Users, calls, open_loop};
use crate::rows::Target::{self, AtMost};
use crate::rows::{Measured, Row, USERS};
use crate::stage::{Place, Stage};
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, get, request};

/// Rows of the calls to Redis, by fleet and then by the demand for its keys.
pub const CALLS: &[Row] = &[
    Row { figure: "4 replicas, shares and leases of 5 %, keys by Zipf", target: FEW },
    Row { figure: "4 replicas, shares and leases of 5 %, quiet keys", target: FEW },
    Row { figure: "4 replicas, shares and leases of 5 %, keys at half of the limit", target: FEW },
    Row { figure: "4 replicas, shares and leases of 5 %, keys at 1.5 times the limit", target: FEW },
    Row { figure: "16 replicas, shares and leases of 10 %, keys by Zipf", target: MORE },
    Row { figure: "16 replicas, shares and leases of 10 %, quiet keys", target: MORE },
    Row { figure: "16 replicas, shares and leases of 10 %, keys at half of the limit", target: MORE },
    Row { figure: "16 replicas, shares and leases of 10 %, keys at 1.5 times the limit", target: MORE },
];

const FEW: Target = AtMost(0.04, "Redis calls per decision");
const MORE: Target = AtMost(0.08, "Redis calls per decision");

/// The row of latency.
pub const LATENCY: &[Row] =
    &[Row { figure: "latency at 2,000 requests/s, within shares, p50", target: AtMost(1.1, "x the memory store") }];

/// The row of an outage.
pub const OUTAGE: &[Row] = &[Row {
    figure: "Redis is gone, keys below their shares, decisions that shares did not answer",
    target: AtMost(0.0, "of all"),
}];

/// The fleets, by their number of instances and the part that is in shares, and as much in leases, in percent.
const FLEETS: [(usize, u32); 2] = [(4, 5), (16, 10)];
/// The limit of a key, where a run takes a second.
const NUMBER: u32 = 1_000;
/// Requests a second, where all keys have the same demand.
const PER_SECOND: u32 = 2_000;
/// Number of keys by Zipf's distribution, the first of which asks for 1.5 times its limit.
const KEYS: usize = 10_000;

/// The shortest timeout of shares. For as long and a tenth more, a new Redis gives no seat.
pub const TIMEOUT: &str = "10s";
/// The timeout where Redis is gone for a minute.
const LONG_TIMEOUT: &str = "SHARE_TIMEOUT=90s";
/// The longest time until all instances have seats.
const LONGEST: Duration = Duration::from_secs(200);

/// Number of requests that shares have decided.
const BY_SHARES: &str = "tollgate_share_decisions_total";
/// Number of requests that were sent to Redis.
const ASKED: &str = "tollgate_store_call_requests_sum";

/// The limit's period.
fn period(stage: &Stage) -> Duration {
    stage.run * 6
}

/// The limit's number.
fn number(stage: &Stage) -> u32 {
    (f64::from(NUMBER) * stage.run.as_secs_f64()) as u32
}

/// A fleet whose instances use their shares.
struct Fleet {
    redis: Redis,
    replicas: Vec<Tollgate>,
}

impl Fleet {
    /// Starts one with a limit for each user, of which this part is in shares, and as much may be in leases.
    fn start(stage: &Stage, (count, percent): (usize, u32), more: &[&str]) -> Fleet {
        let redis = stage.redis(Place::BesideLoad);
        let period = period(stage);
        let limit = format!("period: {}ms, requests_per_unit: {}", period.as_millis(), number(stage));
        let means = format!("own_share: {percent}%, lease: {{unused: {percent}%}}");
        let rules = format!("domain: bench\ndescriptors: [{{key: user, rate_limit: {{{limit}, {means}}}}}]");
        let settings = settings(&redis, count);
        let settings = [&settings.each_ref().map(String::as_str), more].concat();
        let replicas = stage.replicas(count, &rules, &settings);
        wait_for_shares(stage, replicas.iter().map(|replica| replica.http_port), period);
        Fleet { redis, replicas }
    }

    /// The sum of a metric over all instances.
    fn metric(&self, series: &str) -> f64 {
        self.replicas.iter().map(|replica| replica.metric(series)).sum()
    }

    /// Sends these calls at this rate for this time, and gives `answer` each message.
    fn run(&self, (calls, per_second): (&[Call], u32), run: Duration, answer: impl FnMut(usize, &[u8])) -> Load {
        let ports: Vec<u16> = self.replicas.iter().map(|replica| replica.grpc_port).collect();
        let open_loop = OpenLoop { ports: &ports, calls, per_second, run, idle: Idle::Pause };
        let replicas = self.replicas.iter().map(|replica| ("replicas", replica.pid()));
        let processes: Vec<_> = [("load", std::process::id())].into_iter().chain(replicas).collect();
        let mut latencies = Latencies::default();
        let cost = Cost::of(&processes, || {
            latencies = open_loop.run(answer);
            latencies.count()
        });
        Load { cost, latencies }
    }
}

/// The results of a load.
struct Load {
    cost: Cost,
    latencies: Latencies,
}

/// The settings of an instance of this many, which share a Redis.
pub fn settings(redis: &Redis, instances: usize) -> [String; 3] {
    [format!("REDIS_URL={}", redis.url()), format!("EXPECTED_REPLICAS={instances}"), format!("SHARE_TIMEOUT={TIMEOUT}")]
}

/// Waits until the instances with these HTTP ports have seats, agree on their rules, and use shares of limits with this
/// period.
pub fn wait_for_shares(stage: &Stage, http_ports: impl Iterator<Item = u16>, period: Duration) {
    if !stage.shares {
        return;
    }
    let start = Instant::now();
    for port in http_ports {
        while !has_agreed(port) {
            assert!(start.elapsed() < LONGEST, "the instances have no seats, or do not agree on their rules");
            sleep(Duration::from_millis(100));
        }
    }
    // They use shares a period and a tenth after they agree.
    sleep(period.mul_f64(1.2));
}

/// Returns whether an instance has a seat, and all agree on its rules.
fn has_agreed(http_port: u16) -> bool {
    let (_, metrics) = get(http_port, "/metrics");
    let is_one = |series: &str| metrics.lines().any(|line| line.strip_prefix(series) == Some(" 1"));
    is_one("tollgate_share_seat") && is_one("tollgate_share_domains{state=\"agreed\"}")
}

/// Returns this many calls for keys with this prefix, drawn at random by the demand for each.
pub fn drawn(prefix: &str, demand: &[f64], count: usize) -> Vec<Call> {
    let sums: Vec<f64> = demand
        .iter()
        .scan(0.0, |sum, demand| {
            *sum += demand;
            Some(*sum)
        })
        .collect();
    let mut random = fastrand::Rng::with_seed(1);
    let call = |_| {
        let drawn = random.f64() * sums[sums.len() - 1];
        let key = format!("{prefix}-{:07}", sums.partition_point(|sum| *sum <= drawn));
        Call::new(&request("bench", &[&[("user", &key)]]), Code::Ok)
    };
    (0..count).map(call).collect()
}

/// Returns the demand for this many keys by Zipf's distribution, of which the first has this one.
pub fn by_zipf(keys: usize, first: f64) -> Vec<f64> {
    (1..=keys).map(|rank| first / rank as f64).collect()
}

/// Gives one for each of [`CALLS`].
pub fn calls_to_redis(stage: &Stage) -> Vec<Measured> {
    let number = f64::from(number(stage));
    let total = f64::from(PER_SECOND) * period(stage).as_secs_f64();
    let of_fleet = |terms: (usize, u32)| {
        let fleet = Fleet::start(stage, terms, &[]);
        let alike = |each: f64| vec![each; (total / each) as usize];
        // For each quiet key, clients ask for half of what the shares have, as in docs/algorithms-in-detail.md.
        let quiet = number * f64::from(terms.1) / 100.0 / 2.0;
        let demands = [by_zipf(KEYS, number * 1.5), alike(quiet), alike(number / 2.0), alike(number * 1.5)];
        let names = ["zipf", "quiet", "half", "above"];
        let measured = |(name, demand): (&str, Vec<f64>)| calls_for(stage, &fleet, name, &demand);
        names.into_iter().zip(demands).map(measured).collect::<Vec<_>>()
    };
    FLEETS.into_iter().flat_map(of_fleet).collect()
}

/// Sends requests with this demand in each period: for one period to fill the windows, and for one that is measured.
fn calls_for(stage: &Stage, fleet: &Fleet, name: &str, demand: &[f64]) -> Measured {
    let (total, period) = (demand.iter().sum::<f64>(), period(stage));
    let per_second = (total / period.as_secs_f64()) as u32;
    let drawn = drawn(name, demand, 2 * total as usize);
    let (first, second) = drawn.split_at(total as usize);
    fleet.run((first, per_second), period, |_, _| ());
    let before = (fleet.redis.script_calls(), fleet.metric(ASKED));
    let mut passed = 0_u32;
    let count = |_, answer: &[u8]| passed += u32::from(fleet::has_passed(answer));
    let Load { cost, .. } = fleet.run((second, per_second), period, count);
    let (calls, asked) = (fleet.redis.script_calls() - before.0, fleet.metric(ASKED) - before.1);
    let done = cost.done as f64;
    let passed = f64::from(passed) / done * 100.0;
    let keys = demand.len();
    let detail = format!("{calls} calls of {asked} requests, {done} decisions of {keys} keys, {passed:.0} % passed");
    Measured::new(f64::from(calls) / done, detail).under(&[("", &cost)])
}

/// Gives one for each of [`LATENCY`].
pub fn latency(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideLoad);
    let limit = "requests_per_unit: 4000000000";
    let rules = RULES.replacen(&format!("unit: minute, {limit}"), &format!("unit: second, {limit}, own_share: 5%"), 1);
    let settings = settings(&redis, 1);
    let memory = stage.tollgate(&rules, &[]);
    let shared = stage.tollgate(&rules, &settings.each_ref().map(String::as_str));
    wait_for_shares(stage, [shared.http_port].into_iter(), Duration::from_secs(1));
    let calls = calls(USERS, 1, Users::Passing);
    let (mut costs, mut halves) = (Vec::new(), Vec::new());
    let by_shares = shared.metric(BY_SHARES);
    for _ in 0..stage.runs {
        let mut half = |tollgate: &Tollgate| {
            let processes = [("server", tollgate.pid()), ("load, which spins,", std::process::id())];
            let mut latencies = Latencies::default();
            costs.push(Cost::of(&processes, || {
                latencies = open_loop(tollgate.grpc_port, &calls, PER_SECOND, stage.run);
                latencies.count()
            }));
            latencies.us(0.5)
        };
        halves.push((half(&shared), half(&memory)));
    }
    let done: u64 = costs.iter().step_by(2).map(|cost| cost.done).sum();
    let detail = format!(
        "{:.0} µs; {:.0} µs; shares admitted {:.0} of {done}",
        median(halves.iter().map(|(shared, _)| *shared).collect()),
        median(halves.iter().map(|(_, memory)| *memory).collect()),
        shared.metric(BY_SHARES) - by_shares
    );
    let ratio = median(halves.iter().map(|(shared, memory)| shared / memory).collect());
    let load = &[("", &costs[costs.len() - 2])];
    vec![Measured::new(ratio, detail).under(load).timed_by(costs.iter())]
}

/// Gives one for each of [`OUTAGE`]: each user asks in a period for half of the share of one instance.
pub fn outage(stage: &Stage) -> Vec<Measured> {
    let (count, percent) = FLEETS[0];
    let mut fleet = Fleet::start(stage, (count, percent), &[LONG_TIMEOUT]);
    let share = number(stage) * percent / 100 / count as u32;
    // As many users as there are calls in the time between two of one user, which all go to one instance.
    let gap = period(stage) / (share / 2).max(1);
    let users = (gap.as_secs_f64() * f64::from(PER_SECOND)) as usize / count * count;
    let users = calls(users, 1, Users::Passing);
    let load = |fleet: &Fleet, run| {
        fleet.run((&users[..], PER_SECOND), run, |turn, answer| users[turn % users.len()].check(answer, turn))
    };
    let with = load(&fleet, period(stage)).latencies;
    fleet.redis.kill();
    // A minute of `make bench`.
    let gone = stage.run * 3 * stage.runs as u32;
    let before = fleet.metric(BY_SHARES);
    let Load { cost, latencies: without } = load(&fleet, gone);
    let missed = cost.done as f64 - (fleet.metric(BY_SHARES) - before);
    let of = |latencies: &Latencies| format!("p50 {:.0} µs, p99 {:.0} µs", latencies.us(0.5), latencies.us(0.99));
    let detail = format!("{} in {gone:?}, {}; with Redis {}", cost.done, of(&without), of(&with));
    vec![Measured::new(missed, detail).under(&[("", &cost)])]
}
