//! Overload: goodput and latency by offered load, the memory of the server meanwhile, and its shutdown. `make
//! bench-overload` prints the tables of `docs/measurements-load.md` and draws the picture of `docs/performance.md`;
//! `make bench` measures one load.
//!
//! Goodput is the number of calls decided in time; answers by failure modes are not included. The peak is the largest
//! goodput at any load. If a refused call costs `r` times what a decision costs, a server that refuses at once whatever
//! it cannot decide has a goodput of (1 - x r) / (1 - r) of the peak at x times the peak.

use std::fmt;
use std::time::{Duration, Instant};

use tollgate::wire::rate_limit_response::Code;

use crate::cost::{Cost, median, memory};
use crate::envoys::{Came, DEADLINE, Envoys, Load};
use crate::http2::{Headers, Server};
use crate::load::{Call, Closed, Deadline, RULES, Users, calls};
use crate::plot::{Axis, Curve, Panel, Picture};
use crate::rows::Target::{AtLeast, AtMost};
use crate::rows::{Measured, Row, closed_loop_with};
use crate::stage::{Place, Stage};
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, request};

/// The offered load, as a share of the capacity.
const OFFERED: [f64; 9] = [0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0];
/// The load at which the server is ended.
const ENDED_AT: f64 = 2.0;
/// The minimum goodput, as a share of what is possible.
const KEPT: f64 = 0.9;
/// The maximum share of calls that are sent and not answered in time.
const LATE: f64 = 0.05;
/// The maximum memory of the server.
const MEMORY_MB: u64 = 64;
const USERS: usize = 10_000;
/// Idle time of the server before its memory is read again.
const REST: Duration = Duration::from_secs(2);
/// The most runs for a row of `make bench`.
const RUNS: usize = 5;

/// What `make bench` measures, at [`ROW_LOAD`] times the peak.
pub const ROWS: &[Row] = &[
    Row {
        figure: "overload, 16 Envoys of 1,024 calls, 3 x the peak, goodput",
        target: AtLeast(KEPT, "x the possible"),
    },
    Row { figure: "the same, late", target: AtMost(LATE * 100.0, "% of the calls") },
    Row { figure: "the same, memory", target: AtMost(MEMORY_MB as f64, "MB") },
];
const ROW_LOAD: f64 = 3.0;
/// The loads among which the peak is, as shares of the capacity.
const PEAKS: [f64; 4] = [0.5, 0.65, 0.8, 1.0];

/// A service to overload.
struct Scenario {
    name: &'static str,
    store: Backend,
    envoys: Envoys,
}

enum Backend {
    Memory,
    /// Every decision checks many limits.
    Limits,
    Redis,
    /// Redis is the bottleneck: every decision copies a thousand slots there.
    SlowRedis,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "memory store, 1 Envoy",
        store: Backend::Memory,
        envoys: Envoys { count: 1, max_requests: 1_024 },
    },
    Scenario {
        name: "memory store, 16 Envoys of 32 calls",
        store: Backend::Memory,
        envoys: Envoys { count: 16, max_requests: 32 },
    },
    Scenario {
        name: "Redis store, 16 Envoys of 32 calls",
        store: Backend::Redis,
        envoys: Envoys { count: 16, max_requests: 32 },
    },
    Scenario {
        name: "slow Redis, 1 Envoy",
        store: Backend::SlowRedis,
        envoys: Envoys { count: 1, max_requests: 1_024 },
    },
    UNBOUNDED,
    Scenario { name: LIMITS, store: Backend::Limits, envoys: UNBOUNDED.envoys },
];

/// More calls on their way than can be answered while their callers wait.
const UNBOUNDED: Scenario = Scenario {
    name: "memory store, 16 Envoys of 1,024 calls",
    store: Backend::Memory,
    envoys: Envoys { count: 16, max_requests: 1_024 },
};

/// A decision costs many times what a refusal costs.
const LIMITS: &str = "memory store, a rule of 50 limits, 16 Envoys of 1,024 calls";
const LIMITS_OF_RULE: u64 = 50;
/// So few that their counters take no memory that would count.
const USERS_OF_LIMITS: usize = 100;

/// Rules that make Redis slow, with the number of slots in use.
const CONCURRENCY: &str = "
domain: bench
defaults: {failure_mode: closed}
descriptors:
  - {key: stream, rate_limit: {algorithm: concurrency, requests_per_unit: 2000, hold: 1h}}
";
const SLOTS: usize = 1_000;

/// Measures the scenarios with `part` in their name; draws the picture if all were measured.
pub fn run(stage: &Stage, part: &str) {
    println!("{stage}");
    let measured = SCENARIOS.iter().filter(|scenario| scenario.name.contains(part));
    let outcomes: Vec<Outcome> = measured.map(|scenario| scenario.run(stage)).collect();
    if outcomes.len() == SCENARIOS.len() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/overload.svg");
        std::fs::write(file, picture(&outcomes).svg()).unwrap();
    }
}

/// The results of a scenario.
struct Outcome {
    name: &'static str,
    points: Vec<Point>,
}

struct Point {
    /// The offered load and its goodput, both as shares of the capacity.
    offered: f64,
    goodput: f64,
    /// The 99th percentile, in milliseconds; none where nothing was good.
    p99_ms: Option<f64>,
}

/// Draws goodput and latency by the offered load. Scenarios without a promise have dashed lines.
fn picture(outcomes: &[Outcome]) -> Picture {
    let deadline_ms = DEADLINE.as_secs_f64() * 1e3;
    let curve = |name| Curve { name, is_dashed: [UNBOUNDED.name, LIMITS].contains(&name) };
    let good = |outcome: &Outcome| outcome.points.iter().map(|point| (point.offered, point.goodput)).collect();
    let late =
        |outcome: &Outcome| outcome.points.iter().filter_map(|point| Some((point.offered, point.p99_ms?))).collect();
    Picture {
        title: "Goodput and latency over the load that is offered",
        across: Axis { title: "load offered, as a part of what can be served".into(), most: 3.0, step: 0.5 },
        legend: outcomes.iter().map(|outcome| curve(outcome.name)).collect(),
        panels: vec![
            Panel {
                up: Axis {
                    title: format!("goodput: decided within {deadline_ms} ms, as a part of what can be served"),
                    most: 1.25,
                    step: 0.25,
                },
                height: 240.0,
                lines: outcomes.iter().map(good).collect(),
            },
            Panel {
                up: Axis {
                    title: "p99 of what was decided in time, in ms".into(),
                    most: deadline_ms,
                    step: deadline_ms / 4.0,
                },
                height: 140.0,
                lines: outcomes.iter().map(late).collect(),
            },
        ],
    }
}

/// Measures [`ROWS`].
pub fn measure(stage: &Stage) -> Vec<Measured> {
    let service = UNBOUNDED.start(stage);
    let runs = stage.runs.min(RUNS);
    let price = service.price(stage, runs);
    let offer = |per_second| service.offer(stage, UNBOUNDED.envoys, per_second);
    let goodput = |came: Came| came.goodput(stage.run);
    let peak = PEAKS.map(|share| goodput(offer(price.capacity * share))).into_iter().fold(1.0, f64::max);
    let processes = [service.deciders(), vec![("load", std::process::id())]].concat();
    let offered = |_| {
        let mut came = None;
        let cost = Cost::of(&processes, || came.insert(offer(peak * ROW_LOAD)).all());
        (came.unwrap(), cost)
    };
    let offered: Vec<(Came, Cost)> = (0..runs).map(offered).collect();
    let of = |figure: &dyn Fn(&Came) -> f64| median(offered.iter().map(|(came, _)| figure(came)).collect());
    let reached = of(&|came| came.goodput(stage.run)) / peak;
    let possible = price.possible(ROW_LOAD);
    let detail = format!(
        "{reached:.2} of the peak of {peak:.0}/s, {possible:.2} possible: {price}; load late by {:.1?}",
        offered.iter().map(|(came, _)| came.lag).max().unwrap_or_default()
    );
    let measured = [
        // Whatever is reached where nothing is possible is enough.
        Measured::new(if possible > 0.0 { reached / possible } else { 1.0 }, detail),
        Measured::new(of(&|came| came.late_share() * 100.0), "sent, and given up after 20 ms".into()),
        Measured::new(of(&|came| came.memory as f64) / (1 << 20) as f64, "at most, meanwhile".into()),
    ];
    let costs = || offered.iter().map(|(_, cost)| cost);
    measured.map(|measured| measured.under(&[("", &offered[0].1)]).timed_by(costs())).into()
}

impl Scenario {
    fn run(&self, stage: &Stage) -> Outcome {
        let service = self.start(stage);
        let price = service.price(stage, stage.runs);
        println!("\n**{}**, {:.0} calls/s by a closed loop ({})", self.name, price.capacity, price.busy);
        let idle = memory(service.tollgate.pid());
        let offers = OFFERED.map(|factor| {
            let once = |_| Offer {
                factor,
                capacity: price.capacity,
                run: stage.run,
                came: service.offer(stage, self.envoys, price.capacity * factor),
            };
            let mut runs: Vec<Offer> = (0..stage.runs).map(once).collect();
            runs.sort_by(|one, other| one.goodput().total_cmp(&other.goodput()));
            runs.swap_remove(stage.runs / 2)
        });
        std::thread::sleep(REST);
        let after = memory(service.tollgate.pid());
        let ended = service.end(stage, self.envoys, price.capacity * ENDED_AT);
        let peak = offers.iter().map(Offer::goodput).fold(1.0, f64::max);
        println!("\nThe peak is {peak:.0}/s; {price}.\n");
        println!("{}\n{}", Offer::HEAD, "|---".repeat(Offer::HEAD.matches('|').count() - 1) + "|");
        offers.iter().for_each(|offer| println!("{}", offer.row(peak, &price)));
        println!(
            "\nMemory: {} MB before the first and {} MB {REST:?} after the last. {ended}",
            idle >> 20,
            after >> 20,
        );
        let point = |offer: &Offer| Point {
            offered: offer.factor,
            goodput: offer.goodput() / offer.capacity,
            p99_ms: offer.ms(0.99),
        };
        Outcome { name: self.name, points: offers.iter().map(point).collect() }
    }

    /// Starts the services of a scenario.
    fn start(&self, stage: &Stage) -> Service {
        // Distinguishes answers by failure modes from decisions.
        let closed = |rules: &str| format!("{rules}\ndefaults: {{failure_mode: closed}}\n");
        let users = calls(USERS, 1, Users::Passing);
        let in_memory = |rules: &str| Service { tollgate: stage.tollgate(rules, &[]), redis: None, calls: Vec::new() };
        let in_redis = |rules: &str| {
            let redis = stage.redis(Place::BesideLoad);
            let tollgate = stage.tollgate(rules, &[&format!("REDIS_URL={}", redis.url())]);
            Service { tollgate, redis: Some(redis), calls: Vec::new() }
        };
        match self.store {
            Backend::Memory => Service { calls: users, ..in_memory(&closed(RULES)) },
            Backend::Limits => {
                let calls = calls(USERS_OF_LIMITS, 1, Users::Passing);
                Service { calls, ..in_memory(&closed(&rule_of_limits())) }
            }
            Backend::Redis => Service { calls: users, ..in_redis(&closed(RULES)) },
            Backend::SlowRedis => {
                let service = in_redis(CONCURRENCY);
                let streams = |hits: u64| (0..SLOTS).map(|stream| call(&format!("{stream}"), hits)).collect::<Vec<_>>();
                Closed::once(service.tollgate.grpc_port, &streams(1));
                // Peeks change nothing.
                Service { calls: streams(0), ..service }
            }
        }
    }
}

/// Returns rules by which each request of a user checks [`LIMITS_OF_RULE`] limits.
fn rule_of_limits() -> String {
    let limit = |seconds: u64| format!("{{period: {seconds}s, requests_per_unit: 4000000000}}");
    let limits = (60..60 + LIMITS_OF_RULE).map(limit).collect::<Vec<_>>().join(", ");
    format!("domain: bench\ndescriptors: [{{key: user, rate_limits: [{limits}]}}]\n")
}

/// Asks for a slot, or for none to look only.
fn call(stream: &str, hits: u64) -> Call {
    let mut request = request("bench", &[&[("stream", stream)]]);
    request.descriptors[0].hits_addend = Some(hits);
    Call::new(&request, Code::Ok)
}

/// The running services of a scenario, and its calls.
struct Service {
    tollgate: Tollgate,
    redis: Option<Redis>,
    calls: Vec<Call>,
}

impl Service {
    /// The processes that decide.
    fn deciders(&self) -> Vec<(&'static str, u32)> {
        let redis = self.redis.iter().map(|redis| ("Redis", redis.pid()));
        std::iter::once(("server", self.tollgate.pid())).chain(redis).collect()
    }

    /// Measures the capacity and both costs: a closed loop never offers more than can be served.
    fn price(&self, stage: &Stage, runs: usize) -> Price {
        let deciders = self.deciders();
        let closed = |deadline| {
            let server = Server::from(self.tollgate.grpc_port).with(Headers::New);
            closed_loop_with(stage, (server, deadline), &self.calls, &deciders)
        };
        let pairs: Vec<(Cost, Cost)> = (0..runs).map(|_| (closed(Deadline::Ample), closed(Deadline::Passed))).collect();
        // The process that spends most is what limits the rate.
        let dearest = |cost: &Cost| (0..deciders.len()).map(|place| cost.each_us(place)).fold(0.0, f64::max);
        let of = |figure: &dyn Fn(&(Cost, Cost)) -> f64| median(pairs.iter().map(figure).collect());
        Price {
            capacity: of(&|(decided, _)| decided.rate()),
            busy: pairs[pairs.len() - 1].0.busy(),
            decision_us: of(&|(decided, _)| dearest(decided)),
            refusal_us: of(&|(_, refused)| dearest(refused)),
            r: of(&|(decided, refused)| dearest(refused) / dearest(decided)),
        }
    }

    /// Offers a load for the length of a run.
    fn offer(&self, stage: &Stage, envoys: Envoys, per_second: f64) -> Came {
        self.load(stage, envoys, per_second).offer(&self.calls)
    }

    fn load(&self, stage: &Stage, envoys: Envoys, per_second: f64) -> Load {
        Load { port: self.tollgate.grpc_port, pid: self.tollgate.pid(), envoys, per_second, run: stage.run }
    }

    /// Ends the service during an overload, and returns the result.
    fn end(self, stage: &Stage, envoys: Envoys, per_second: f64) -> String {
        let load = self.load(stage, envoys, per_second);
        let Service { mut tollgate, calls, redis: _redis } = self;
        std::thread::scope(|scope| {
            let loaded = scope.spawn(|| load.offer(&calls));
            std::thread::sleep(stage.run / 4);
            tollgate.signal("TERM");
            let start = Instant::now();
            let status = tollgate.wait();
            let took = start.elapsed();
            let came = loaded.join().unwrap();
            format!("SIGTERM in the middle of it: {status} after {took:.1?}, {} calls broken off.", came.lost)
        })
    }
}

/// What a closed loop of calls gets and costs, and what it costs to refuse them.
struct Price {
    /// Decisions per second.
    capacity: f64,
    busy: String,
    /// CPU time of the process that spends most.
    decision_us: f64,
    refusal_us: f64,
    /// Cost of a refusal, as a share of that of a decision.
    r: f64,
}

impl Price {
    /// Returns the possible goodput at this load, both as shares of the peak.
    fn possible(&self, load: f64) -> f64 {
        match self.r {
            _ if load <= 1.0 => load,
            r if r >= 1.0 => 0.0,
            r => ((1.0 - load * r) / (1.0 - r)).max(0.0),
        }
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Price { decision_us, refusal_us, r, .. } = self;
        write!(f, "a decision costs {decision_us:.2} µs and a refused call {refusal_us:.2} µs, r = {r:.2}")
    }
}

/// A line of the table.
struct Offer {
    factor: f64,
    capacity: f64,
    run: Duration,
    came: Came,
}

impl Offer {
    const HEAD: &str = "| offered | goodput | x the peak | goodput of the peak | possible | p50 | p99 \
                        | refused in time | given up late | never sent | memory | load late by | held |";

    fn goodput(&self) -> f64 {
        self.came.goodput(self.run)
    }

    /// Returns this percentile of the calls decided in time, in milliseconds; `None` if there were none.
    fn ms(&self, share: f64) -> Option<f64> {
        let taken = &self.came.taken;
        (taken.count() > 0).then(|| taken.us(share) / 1e3)
    }

    fn row(&self, peak: f64, price: &Price) -> String {
        let Came { refused, unsent, connections_lost, lag, memory, .. } = &self.came;
        let share = |part: u64| format!("{:.0} %", part as f64 / self.came.all() as f64 * 100.0);
        let broken =
            if *connections_lost > 0 { format!(" ({connections_lost} connections lost)") } else { String::new() };
        let ms = |share| self.ms(share).map_or("-".into(), |ms| format!("{ms:.1} ms"));
        let (load, reached) = (self.factor * self.capacity / peak, self.goodput() / peak);
        let possible = price.possible(load);
        let held = reached >= possible * KEPT && self.came.late_share() < LATE && *memory <= MEMORY_MB << 20;
        format!(
            "| {:.2} | {:.2} ({:.0}/s) | {load:.2} | {reached:.2} | {possible:.2} | {} | {} | {} | {}{broken} | {} | \
             {} MB | {lag:.1?} | {} |",
            self.factor,
            self.goodput() / self.capacity,
            self.goodput(),
            ms(0.5),
            ms(0.99),
            share(*refused),
            share(self.came.not_in_time()),
            share(*unsent),
            memory >> 20,
            if held { "yes" } else { "**no**" },
        )
    }
}
