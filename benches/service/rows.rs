//! The rows of the table, each with its figure, target and measurement.

use std::hint::black_box;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::engine::algorithm::{Algorithm, Ask, Limit, Options};
use tollgate::engine::check::{Check, Key, Origin};
use tollgate::engine::descriptor::Entry;
use tollgate::store::Store as _;
use tollgate::store::redis::RedisStore;
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};

use crate::beside_bare;
use crate::budgets;
use crate::cluster;
use crate::console;
use crate::cost::{Cost, median, memory};
use crate::fleet;
use crate::headers;
use crate::http2::Server;
use crate::idle_connections;
use crate::load::{Call, Closed, Deadline, IN_FLIGHT, RULES, Users, calls, open_loop};
use crate::overload;
use crate::redis_loop::{Pipeline, RedisLoop};
use crate::rules;
use crate::shares;
use crate::stage::{Place, Stage};
use crate::support::certificates::Authority;
use crate::support::redis::Redis;
use crate::support::tollgate::Tollgate;
use crate::system_calls;

/// Figures measured together.
pub struct Measurement {
    pub rows: &'static [Row],
    /// Gives one for each row.
    pub measure: fn(&Stage) -> Vec<Measured>,
}

/// A row of the table.
pub struct Row {
    pub figure: &'static str,
    pub target: Target,
}

/// The target and its unit.
#[derive(Clone, Copy)]
pub enum Target {
    AtMost(f64, &'static str),
    AtLeast(f64, &'static str),
}
use Target::{AtLeast, AtMost};

/// A result.
pub struct Measured {
    /// None where it cannot be measured; the description says why.
    pub value: Option<f64>,
    /// Description of the measurement.
    pub detail: String,
    /// Share of a core that each process used.
    pub busy: String,
    /// Whether other processes used so much that the value is meaningless.
    pub disturbed: bool,
}

impl Measured {
    pub fn new(value: f64, detail: String) -> Measured {
        Measured { value: Some(value), detail, busy: String::new(), disturbed: false }
    }

    /// What is not measured here, with the reason and what to do about it.
    pub fn none(why: String) -> Measured {
        Measured { value: None, ..Measured::new(0.0, why) }
    }

    /// Adds the utilization of these processes.
    pub fn under(self, loads: &[(&str, &Cost)]) -> Measured {
        let tell = |(name, cost): &(&str, &Cost)| match *name {
            "" => cost.busy(),
            name => format!("{name}: {}", cost.busy()),
        };
        Measured { busy: loads.iter().map(tell).collect::<Vec<_>>().join("; "), ..self }
    }

    /// A time or a rate of these runs, which others on the cores spoil.
    pub fn timed_by<'c>(self, mut runs: impl Iterator<Item = &'c Cost>) -> Measured {
        Measured { disturbed: runs.any(Cost::disturbed), ..self }
    }
}

/// In the order of the table. Figures that are not measured yet have no row.
pub const MEASUREMENTS: &[Measurement] = &[
    Measurement { rows: beside_bare::ROWS, measure: beside_bare::measure },
    Measurement { rows: system_calls::ROWS, measure: system_calls::measure },
    Measurement { rows: idle_connections::ROWS, measure: idle_connections::measure },
    Measurement { rows: overload::ROWS, measure: overload::measure },
    Measurement { rows: console::ROWS, measure: console::measure },
    Measurement {
        rows: &[
            Row { figure: "cluster of six masters, server CPU per request", target: AtMost(1.15, "x one master") },
            Row {
                figure: "cluster of six masters, two slots, server CPU per request",
                target: AtMost(2.0, "x one master"),
            },
        ],
        measure: cluster::by_masters,
    },
    Measurement {
        rows: &[Row { figure: "memory store, TLS, server CPU per request", target: AtMost(1.5, "x without TLS") }],
        measure: tls,
    },
    Measurement {
        rows: &[Row {
            figure: "Redis store, 256 in flight, decisions per second",
            target: AtLeast(0.9, "x a bare pipelined loop"),
        }],
        measure: decisions_per_second,
    },
    Measurement {
        rows: &[
            Row {
                figure: "latency at 2,000 requests/s, Redis store, p50",
                target: AtMost(2.0, "x a Redis round trip"),
            },
            Row { figure: "latency at 2,000 requests/s, Redis store, p99", target: AtMost(1.5, "ms") },
        ],
        measure: latency,
    },
    Measurement {
        rows: &[
            Row {
                figure: "16 replicas share 2,000 requests/s, Redis CPU per decision",
                target: AtMost(1.2, "x INCRBY and EXPIRE"),
            },
            Row {
                figure: "16 replicas share 8,000 requests/s, Redis CPU per decision",
                target: AtMost(1.2, "x INCRBY and EXPIRE"),
            },
        ],
        measure: fleet::low_rates,
    },
    Measurement {
        rows: &[Row {
            figure: "16 stores at Redis's limit, decisions per second",
            target: AtLeast(0.85, "x one store"),
        }],
        measure: fleet::at_redis_limit,
    },
    Measurement {
        rows: &[
            Row {
                figure: "a stream of a budget begins or settles, Redis CPU",
                target: AtMost(2.5, "x a sliding window"),
            },
            Row { figure: "a stream of a budget beside 8,900 others, Redis CPU", target: AtMost(1.3, "x one stream") },
        ],
        measure: budgets::in_redis,
    },
    Measurement {
        rows: &[
            Row { figure: "match against 10,000 rules", target: AtMost(1.3, "x 10 rules") },
            Row { figure: "match against 1,000,000 rules", target: AtMost(1.3, "x 10 rules") },
            Row { figure: "match against 1,000,000 rules, time", target: AtMost(1.0, "µs") },
        ],
        measure: matching,
    },
    Measurement {
        rows: &[
            Row { figure: "match 128 headers against 256 rules of as many", target: AtMost(1.3, "x 1 rule") },
            Row { figure: "make 256 rules of 128 headers, each rule", target: AtMost(1.3, "x 16 rules") },
        ],
        measure: headers,
    },
    Measurement {
        rows: &[
            Row { figure: "5 descriptors, Redis store, server CPU per request", target: AtMost(2.0, "x 1 descriptor") },
            Row { figure: "5 descriptors, Redis store, calls to Redis", target: AtMost(1.0, "a request") },
        ],
        measure: descriptors,
    },
    Measurement {
        rows: &[
            // The same, but for what two runs of one side differ by.
            Row {
                figure: "keys over their limit, Redis store, server CPU per request",
                target: AtMost(1.05, "x the memory store"),
            },
            Row { figure: "keys over their limit, Redis store, calls to Redis", target: AtMost(0.01, "a request") },
        ],
        measure: keys_over_their_limit,
    },
    Measurement {
        rows: &[Row {
            figure: "a hot key under its limit, with a lease",
            target: AtMost(0.05, "Redis calls per decision"),
        }],
        measure: hot_key,
    },
    Measurement {
        rows: &[
            Row {
                figure: "a hot key of 100,000/s, 2 replicas with leases, twice as much offered",
                target: AtMost(1.0, "% over its limit"),
            },
            Row { figure: "the same, calls to Redis", target: AtMost(100.0, "a second and replica") },
        ],
        measure: fleet::hot_key,
    },
    Measurement {
        rows: &[Row {
            figure: "a key of 500/s, 2 replicas with leases, 800/s offered",
            target: AtMost(1.0, "% beside its limit"),
        }],
        measure: fleet::warm_key,
    },
    Measurement { rows: fleet::HOT_SHARES, measure: fleet::hot_key_with_shares },
    Measurement { rows: shares::CALLS, measure: shares::calls_to_redis },
    Measurement { rows: shares::LATENCY, measure: shares::latency },
    Measurement { rows: shares::OUTAGE, measure: shares::outage },
    Measurement {
        rows: &[
            Row { figure: "heap allocations per decision, memory store, in all", target: AtMost(4.0, "a request") },
            Row { figure: "the same, new headers in each call", target: AtMost(4.0, "a request") },
            Row {
                figure: "heap allocations per decision, memory store",
                target: AtMost(4.0, "more than a constant answer"),
            },
        ],
        measure: allocations,
    },
    Measurement {
        rows: &[
            Row { figure: "memory store, an idle counter", target: AtMost(150.0, "bytes") },
            Row { figure: "memory store, expired counters left after two periods", target: AtMost(0.0, "of a crowd") },
            Row { figure: "memory store, p99 while a crowd expires", target: AtMost(1.5, "ms") },
        ],
        measure: idle_counters,
    },
    Measurement { rows: &[Row { figure: "start to first answer", target: AtMost(100.0, "ms") }], measure: start },
];

/// Number of users.
pub const USERS: usize = 10_000;

/// Measures a closed loop and the CPU time of these processes, the first of which is the server.
pub fn closed_loop(
    stage: &Stage,
    server: impl Into<Server>,
    calls: &[Call],
    processes: &[(&'static str, u32)],
) -> Cost {
    closed_loop_with(stage, (server.into(), Deadline::Ample), calls, processes)
}

/// The same with calls that have this deadline.
pub fn closed_loop_with(
    stage: &Stage,
    (server, deadline): (Server, Deadline),
    calls: &[Call],
    processes: &[(&'static str, u32)],
) -> Cost {
    let processes = [processes, &[("load", std::process::id())]].concat();
    Closed::during_with(deadline, server, calls, |answered: &AtomicU64| {
        Cost::of(&processes, || {
            let before = answered.load(Ordering::Relaxed);
            std::thread::sleep(stage.run);
            answered.load(Ordering::Relaxed) - before
        })
    })
}

/// Mutual TLS, in connections that last: what every request costs more.
fn tls(stage: &Stage) -> Vec<Measured> {
    let authority = Authority::new("bench");
    let settings = authority.sign("server", &["localhost"]).settings();
    let required = format!("GRPC_CLIENT_TLS_CACERT={}", authority.file().display());
    let settings: Vec<_> = settings.iter().map(String::as_str).chain([&*required]).collect();
    let (plain, secret) = (stage.tollgate(RULES, &[]), stage.tollgate(RULES, &settings));
    let server = Server::with_tls(secret.grpc_port, authority.sign("client", &[]).client(&authority));
    let calls = calls(USERS, 1, Users::Mixed);
    let mut runs = Vec::new();
    for _ in 0..stage.runs {
        let plain = closed_loop(stage, plain.grpc_port, &calls, &[("server", plain.pid())]);
        runs.push((closed_loop(stage, server.clone(), &calls, &[("server", secret.pid())]), plain));
    }
    let of = |figure: fn(&(Cost, Cost)) -> f64| median(runs.iter().map(figure).collect());
    let (secret, plain) = &runs[runs.len() - 1];
    let detail = format!(
        "{:.2} µs, {:.0}/s; {:.2} µs",
        of(|(secret, _)| secret.each_us(0)),
        of(|(secret, _)| secret.rate()),
        of(|(_, plain)| plain.each_us(0))
    );
    let value = of(|(secret, plain)| secret.each_us(0) / plain.each_us(0));
    vec![Measured::new(value, detail).under(&[("TLS", secret), ("without", plain)])]
}

/// Measures the store without gRPC: 256 tasks on one thread.
fn decisions_per_second(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideServer);
    let checks = checks(USERS);
    let processes = [("Redis", redis.pid()), ("client", std::process::id())];
    let mut runs = Vec::new();
    for _ in 0..stage.runs {
        let calls_before = redis.script_calls();
        let store = Cost::of(&processes, || store_loop(stage, &redis, &checks, 1));
        let calls = redis.script_calls() - calls_before;
        // Each request in a separate call, or as many per call as the store sent.
        let in_each = ((store.done as f64 / calls as f64).round() as usize).max(1);
        let bare = Cost::of(&processes, || bare_loop(stage, &redis, &checks, in_each));
        runs.push((store, bare, in_each));
    }
    let (store, bare, in_each) = &runs[runs.len() - 1];
    let detail = format!(
        "{:.0}/s; {:.0}/s; {in_each} in a call",
        median(runs.iter().map(|(store, ..)| store.rate()).collect()),
        median(runs.iter().map(|(_, bare, _)| bare.rate()).collect())
    );
    let value = median(runs.iter().map(|(store, bare, _)| store.rate() / bare.rate()).collect());
    let all = runs.iter().flat_map(|(store, bare, _)| [store, bare]);
    vec![Measured::new(value, detail).under(&[("store", store), ("loop", bare)]).timed_by(all)]
}

/// Measures the decisions of this many stores with a total number of requests in flight.
pub fn store_loop(stage: &Stage, redis: &Redis, checks: &[Check], stores: usize) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = RedisConfig {
            address: redis.url().parse().unwrap(),
            connections: 2,
            timeout: Duration::from_secs(10),
            queue: IN_FLIGHT,
            key_prefix: String::new(),
            per_second: None,
            on_call: OnCall::default(),
        };
        let start = |_| RedisStore::start(config.clone(), Box::new(|_| {}));
        let stores = futures_util::future::try_join_all((0..stores).map(start)).await.unwrap();
        let (start, next) = (Instant::now(), AtomicU64::new(0));
        let task = async |store: &RedisStore| {
            while start.elapsed() < stage.run {
                let turn = next.fetch_add(1, Ordering::Relaxed) as usize;
                let check = std::slice::from_ref(&checks[turn % checks.len()]);
                let verdicts = store.check(check, tokio::time::Instant::now() + Duration::from_secs(10)).await.unwrap();
                assert!(verdicts[0].unwrap().allowed());
            }
        };
        futures_util::future::join_all((0..IN_FLIGHT).map(|place| task(&stores[place % stores.len()]))).await;
        next.into_inner()
    })
}

/// Two connections like the store's, each with half of the requests in flight.
fn bare_loop(stage: &Stage, redis: &Redis, checks: &[Check], in_each: usize) -> u64 {
    let pipelines: Vec<Pipeline> =
        checks.chunks(IN_FLIGHT / 2).map(|checks| Pipeline::of_decisions(checks, in_each)).collect();
    std::thread::scope(|scope| {
        let run = || RedisLoop::connect(redis).run_for(&pipelines, stage.run);
        let threads = [scope.spawn(run), scope.spawn(run)];
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Returns one check per user, with the default algorithm.
pub fn checks(users: usize) -> Vec<Check> {
    let limit =
        Limit::new(Algorithm::SlidingWindow, 4_000_000_000, Duration::from_secs(60), Options::default()).unwrap();
    let check = |user: usize| {
        let entries = rules::entries(user);
        let key = Key::new("", "bench", &entries, |_| None, &limit, Origin::Rule);
        // With one descriptor each, as if they were separate requests.
        Check { descriptor: user, ..Check::new(key, limit, Ask::Take(1)) }
    };
    (0..users).map(check).collect()
}

fn latency(stage: &Stage) -> Vec<Measured> {
    const PER_SECOND: u32 = 2_000;
    let redis = stage.redis(Place::BesideServer);
    let tollgate = stage.tollgate(RULES, &[&format!("REDIS_URL={}", redis.url())]);
    let (calls, check) = (calls(USERS, 1, Users::Mixed), &checks(1));
    let processes = [("server", tollgate.pid()), ("Redis", redis.pid()), ("load, which spins,", std::process::id())];
    let one = Pipeline::of_decisions(check, 1);
    let (mut halves, mut most, mut trips, mut costs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..stage.runs {
        costs.push(Cost::of(&processes, || {
            let latencies = open_loop(tollgate.grpc_port, &calls, PER_SECOND, stage.run);
            halves.push(latencies.us(0.5));
            most.push(latencies.us(0.99));
            latencies.count()
        }));
        trips.push(RedisLoop::connect(&redis).round_trips(&one, PER_SECOND, stage.run).us(0.5));
    }
    let ratio = median(halves.iter().zip(&trips).map(|(half, trip)| half / trip).collect());
    let detail = format!("{:.0} µs; {:.0} µs", median(halves), median(trips));
    let load = &[("", &costs[costs.len() - 1])];
    vec![
        Measured::new(ratio, detail).under(load).timed_by(costs.iter()),
        Measured::new(median(most) / 1000.0, "of which the machine has its part".into())
            .under(load)
            .timed_by(costs.iter()),
    ]
}

/// Measures a policy of Envoy Gateway with the maximum size: each header is a level of the tree, and an entry of the
/// request.
fn headers(stage: &Stage) -> Vec<Measured> {
    let matched = |count: usize| {
        let rules = headers::of_rules(count);
        let entries = headers::entries(count / 2);
        ns_each(stage, || assert!(rules.find(rules.domain("bench").unwrap(), black_box(&entries)).is_some()))
    };
    let made = |count: usize| ns_each(stage, || drop(headers::of_rules(black_box(count)))) / count as f64;
    let ([one, all], [few, many]) = ([1, 256].map(matched), [16, 256].map(made));
    vec![
        Measured::new(all / one, format!("{:.2} µs, {:.2} µs", all / 1000.0, one / 1000.0)),
        Measured::new(many / few, format!("{:.0} µs, {:.0} µs", many / 1000.0, few / 1000.0)),
    ]
}

/// Returns the duration of one call, the median of the runs.
fn ns_each(stage: &Stage, mut once: impl FnMut()) -> f64 {
    let run = |_| {
        let (start, mut times) = (Instant::now(), 0_u32);
        while start.elapsed() < stage.run / 10 {
            once();
            times += 1;
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(times)
    };
    median((0..stage.runs).map(run).collect())
}

/// The same ten requests, and in the detail any of those that have a rule.
fn matching(stage: &Stage) -> Vec<Measured> {
    let times = [10, 10_000, stage.rules].map(|size| {
        let rules = rules::of_one_level(size);
        let entry = |user: usize| rules::entries(user);
        let few: Vec<_> = (0..10).map(entry).collect();
        // By a stride that has nothing in common with the size.
        let many: Vec<_> = (0..100_000).map(|turn| entry(turn * 7_919 % size)).collect();
        let time = |requests: &[Vec<Entry>]| {
            let all = || {
                for entries in requests {
                    let domain = rules.domain(black_box("bench")).unwrap();
                    assert!(rules.find(domain, black_box(entries)).is_some());
                }
            };
            ns_each(stage, all) / requests.len() as f64
        };
        (time(&few), time(&many))
    });
    let [(ten, _), (ten_thousand, scattered), (million, far_scattered)] = times;
    vec![
        Measured::new(
            ten_thousand / ten,
            format!("{ten_thousand:.0} ns, {ten:.0} ns; {scattered:.0} ns where every request is another"),
        ),
        Measured::new(million / ten, format!("{million:.0} ns; {far_scattered:.0} ns where every request is another")),
        Measured::new(far_scattered / 1000.0, "where every request is another, and the caches help none".into()),
    ]
}

fn descriptors(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideLoad);
    let tollgate = stage.tollgate(RULES, &[&format!("REDIS_URL={}", redis.url())]);
    let processes = [("server", tollgate.pid()), ("Redis", redis.pid())];
    let [one, five] = [1, 5].map(|descriptors| calls(USERS, descriptors, Users::Mixed));
    let mut runs = Vec::new();
    for _ in 0..stage.runs {
        let one = closed_loop(stage, tollgate.grpc_port, &one, &processes);
        let five = closed_loop(stage, tollgate.grpc_port, &five, &processes);
        runs.push((one, five));
    }
    let (calls_before, requests) = (redis.script_calls(), 10_000);
    Closed::once(tollgate.grpc_port, &five[..requests]);
    let trips = redis.script_calls() - calls_before;
    let of = |figure: fn(&(Cost, Cost)) -> f64| median(runs.iter().map(figure).collect());
    let (one_us, five_us) = (of(|(one, _)| one.each_us(0)), of(|(_, five)| five.each_us(0)));
    let (one, five) = &runs[runs.len() - 1];
    vec![
        Measured::new(of(|(one, five)| five.each_us(0) / one.each_us(0)), format!("{five_us:.2} µs; {one_us:.2} µs"))
            .under(&[("5", five), ("1", one)]),
        Measured::new(trips as f64 / requests as f64, format!("{trips} calls, {requests} requests")),
    ]
}

/// A hundred users that have used up their daily limits and continue: each cached denial is checked again after a
/// second.
fn keys_over_their_limit(stage: &Stage) -> Vec<Measured> {
    const KEYS: usize = 100;
    let redis = stage.redis(Place::BesideLoad);
    let rules = RULES.replacen("unit: minute, requests_per_unit: 4000000000", "unit: day, requests_per_unit: 1", 1);
    let (memory, shared) =
        (stage.tollgate(&rules, &[]), stage.tollgate(&rules, &[&format!("REDIS_URL={}", redis.url())]));
    let (first, over) = (calls(KEYS, 1, Users::Passing), calls(KEYS, 1, Users::Over));
    for tollgate in [&memory, &shared] {
        Closed::once(tollgate.grpc_port, &first);
    }
    let mut runs = Vec::new();
    for _ in 0..stage.runs {
        let memory = closed_loop(stage, memory.grpc_port, &over, &[("server", memory.pid())]);
        let calls_before = redis.script_calls();
        let shared = closed_loop(stage, shared.grpc_port, &over, &[("server", shared.pid()), ("Redis", redis.pid())]);
        // Includes the requests of the warm-up.
        let trips = (redis.script_calls() - calls_before) as f64 / shared.done as f64;
        runs.push((memory, shared, trips));
    }
    let of = |figure: fn(&(Cost, Cost, f64)) -> f64| median(runs.iter().map(figure).collect());
    let (memory_us, shared_us) = (of(|(memory, ..)| memory.each_us(0)), of(|(_, shared, _)| shared.each_us(0)));
    let rate = of(|(_, shared, _)| shared.rate());
    let (memory, shared, _) = &runs[runs.len() - 1];
    let load = &[("Redis store", shared), ("memory", memory)];
    vec![
        Measured::new(
            of(|(memory, shared, _)| shared.each_us(0) / memory.each_us(0)),
            format!("{shared_us:.2} µs, {rate:.0}/s; {memory_us:.2} µs"),
        )
        .under(load),
        Measured::new(of(|(.., trips)| *trips), format!("{KEYS} keys, each asked for again every second"))
            .under(&load[..1]),
    ]
}

/// Measures one key at the maximum rate.
fn hot_key(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideLoad);
    let limit = "requests_per_unit: 4000000000";
    let rules = RULES.replacen(limit, &format!("{limit}, lease: {{unused: 1%}}"), 1);
    let tollgate = stage.tollgate(&rules, &[&format!("REDIS_URL={}", redis.url())]);
    let processes = [("server", tollgate.pid()), ("Redis", redis.pid()), ("load", std::process::id())];
    let calls = calls(1, 1, Users::Passing);
    let (mut trips_each, mut costs) = (Vec::new(), Vec::new());
    for _ in 0..stage.runs {
        costs.push(Closed::during(tollgate.grpc_port, &calls, |answered| {
            let counts = || (redis.script_calls(), answered.load(Ordering::Relaxed));
            Cost::of(&processes, || {
                let (trips, before) = counts();
                std::thread::sleep(stage.run);
                let (trips_after, after) = counts();
                trips_each.push((trips_after - trips) as f64 / (after - before) as f64);
                after - before
            })
        }));
    }
    let cost = &costs[costs.len() - 1];
    let detail = format!("up to 1 % in leases; {:.2} µs of the server, {:.0}/s", cost.each_us(0), cost.rate());
    vec![Measured::new(median(trips_each), detail).under(&[("", cost)])]
}

/// In a process with a counting allocator, which would slow down the servers of this one.
fn allocations(_: &Stage) -> Vec<Measured> {
    let mut cargo = Command::new(env!("CARGO"));
    let command = if cfg!(debug_assertions) { "test" } else { "bench" };
    cargo.args([command, "--locked", "--quiet", "--bench", "allocations"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = cargo.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let number =
        |name: &str| -> f64 { text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap() };
    let (decision, constant) = (number("decision:"), number("constant:"));
    let whole = |name: &str| Measured::new(number(name), "from reading a request that is alone to its answer".into());
    vec![
        whole("connection, constant headers:"),
        whole("connection, new headers:"),
        Measured::new(decision - constant, format!("{decision}; {constant}")),
    ]
}

fn idle_counters(stage: &Stage) -> Vec<Measured> {
    let crowd = calls(stage.crowd, 1, Users::Passing);
    let tollgate = stage.tollgate(RULES, &[]);
    // Excludes the memory of connections and of the first counters.
    let (first, rest) = crowd.split_at(stage.crowd / 100);
    Closed::once(tollgate.grpc_port, first);
    let before = memory(tollgate.pid());
    Closed::once(tollgate.grpc_port, rest);
    let bytes = (memory(tollgate.pid()) - before) as f64 / rest.len() as f64;
    drop(tollgate);

    const PERIOD: Duration = Duration::from_secs(5);
    let tollgate = stage.tollgate(&RULES.replace("unit: minute", "period: 5s"), &[]);
    Closed::once(tollgate.grpc_port, &crowd);
    // These users send requests throughout, so their counters stay.
    let staying = &crowd[..100];
    let processes = [("server", tollgate.pid()), ("load, which spins,", std::process::id())];
    let mut latencies = None;
    let cost =
        Cost::of(&processes, || latencies.insert(open_loop(tollgate.grpc_port, staying, 1_000, 2 * PERIOD)).count());
    let latencies = latencies.unwrap();
    let left = tollgate.metric("tollgate_memory_counters") - staying.len() as f64;
    let slowest = format!("at 1,000 requests/s; p50 {:.0} µs", latencies.us(0.5));
    vec![
        Measured::new(bytes, format!("{} counters, by the memory of the process", rest.len())),
        Measured::new(left.max(0.0), format!("{} counters of {PERIOD:?}", crowd.len())),
        Measured::new(latencies.us(0.99) / 1000.0, slowest).under(&[("", &cost)]).timed_by(std::iter::once(&cost)),
    ]
}

fn start(stage: &Stage) -> Vec<Measured> {
    let calls = calls(1, 1, Users::Passing);
    let once = |_| {
        let start = Instant::now();
        let tollgate: Tollgate = stage.tollgate(RULES, &[]);
        Closed::once(tollgate.grpc_port, &calls);
        start.elapsed().as_secs_f64() * 1e3
    };
    let taken = median((0..stage.runs).map(once).collect());
    vec![Measured::new(taken, "memory store, a handful of rules".into())]
}
