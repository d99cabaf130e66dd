//! Overload: goodput and latency by offered load, the memory of the server meanwhile, and its shutdown. `make
//! bench-overload` prints the tables of `docs/performance.md` and draws its picture.
//!
//! An open loop of one thread that behaves like several Envoys. Each call has a due time that does not depend on
//! previous calls, and its [`DEADLINE`] starts then. A late call is cancelled. Each thread of an Envoy has a
//! connection, and opens another if the server's limit of calls on it is reached. The circuit breaker limits the number
//! of calls in flight (`max_requests`); further calls fail in Envoy and are not sent. Goodput is the number of calls
//! decided in time; answers by failure modes are not included.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use tollgate::wire::rate_limit_response::Code;

use crate::cost::{Cost, memory};
use crate::http2::Connection;
use crate::load::{Call, Closed, Latencies, RULES, Users, calls};
use crate::plot::{self, Curve, Point};
use crate::stage::{Place, Stage};
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, request};

/// Envoy's default timeout.
const DEADLINE: Duration = Duration::from_millis(20);
/// The offered load, as a share of the capacity.
const OFFERED: [f64; 9] = [0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0];
/// The share at which the promise must hold.
const PROMISED: f64 = 2.0;
/// The minimum goodput there, as a share of the peak.
const KEPT: f64 = 0.8;
/// An Envoy's threads.
const THREADS: usize = 8;
const USERS: usize = 10_000;
/// Interval for reading the server's memory.
const LOOK: Duration = Duration::from_millis(50);
/// Time for which the load leaves its core to other processes. A call that is late by only this much does not count as
/// late.
const PAUSE: Duration = Duration::from_micros(20);
/// Idle time of the server before its memory is read again.
const REST: Duration = Duration::from_secs(2);
/// The decided code of an answer: its first field, 1.
const PASSED: [u8; 2] = [8, 1];

/// A service to overload.
struct Scenario {
    name: &'static str,
    store: Backend,
    envoys: Envoys,
}

/// Number of Envoys, and their calls in flight: Envoy's default is 1,024.
#[derive(Clone, Copy)]
struct Envoys {
    count: usize,
    max_requests: usize,
}

enum Backend {
    Memory,
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
    Scenario { name: UNBOUNDED, store: Backend::Memory, envoys: Envoys { count: 16, max_requests: 1_024 } },
];

/// More calls on their way than can be answered while their callers wait: nothing is promised then.
const UNBOUNDED: &str = "memory store, 16 Envoys of 1,024 calls";

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
    let curves: Vec<Curve> = measured.map(|scenario| scenario.run(stage)).collect();
    if curves.len() == SCENARIOS.len() {
        let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/overload.svg");
        std::fs::write(picture, plot::picture(&curves, DEADLINE, &[UNBOUNDED])).unwrap();
    }
}

impl Scenario {
    fn run(&self, stage: &Stage) -> Curve {
        let (redis, tollgate, calls) = self.start(stage);
        let capacity = capacity(stage, &tollgate, redis.as_ref(), &calls);
        println!("\n**{}**, {} calls/s by a closed loop ({})\n", self.name, capacity.rate().round(), capacity.busy());
        println!("{}\n{}", Offer::HEAD, "|---".repeat(Offer::HEAD.matches('|').count() - 1) + "|");
        let idle = memory(tollgate.pid());
        let offers = OFFERED.map(|factor| {
            let load = Load {
                port: tollgate.grpc_port,
                pid: tollgate.pid(),
                envoys: self.envoys,
                per_second: capacity.rate() * factor,
                run: stage.run,
            };
            let once = |_| Offer { factor, capacity: capacity.rate(), run: stage.run, came: load.offer(&calls) };
            let mut runs: Vec<Offer> = (0..stage.runs).map(once).collect();
            runs.sort_by(|one, other| one.goodput().total_cmp(&other.goodput()));
            let offer = runs.swap_remove(stage.runs / 2);
            println!("{}", offer.row());
            offer
        });
        std::thread::sleep(REST);
        let after = memory(tollgate.pid());
        let ended = end(tollgate, stage, self.envoys, capacity.rate() * PROMISED, &calls);
        let peak = offers.iter().map(Offer::goodput).fold(0.0, f64::max);
        let promised = offers.iter().find(|offer| offer.factor == PROMISED).unwrap().goodput();
        let held = if promised >= peak * KEPT { "held" } else { "**not held**" };
        println!(
            "\nAt {PROMISED} times the load {:.2} of the peak: {held}. Memory: {} MB before the first and \
             {} MB {REST:?} after the last. {ended}",
            promised / peak,
            idle >> 20,
            after >> 20,
        );
        let point = |offer: &Offer| Point {
            offered: offer.factor,
            goodput: offer.goodput() / offer.capacity,
            p99_ms: offer.ms(0.99),
        };
        Curve { name: self.name, points: offers.iter().map(point).collect() }
    }

    /// Starts the services of a scenario, and returns its calls.
    fn start(&self, stage: &Stage) -> (Option<Redis>, Tollgate, Vec<Call>) {
        // Distinguishes answers by failure modes from decisions.
        let rules = format!("{RULES}\ndefaults: {{failure_mode: closed}}\n");
        let users = calls(USERS, 1, Users::Passing);
        let redis = || stage.redis(Place::BesideLoad);
        let with = |redis: &Redis, rules: &str| stage.tollgate(rules, &[&format!("REDIS_URL={}", redis.url())]);
        match self.store {
            Backend::Memory => (None, stage.tollgate(&rules, &[]), users),
            Backend::Redis => {
                let redis = redis();
                let tollgate = with(&redis, &rules);
                (Some(redis), tollgate, users)
            }
            Backend::SlowRedis => {
                let redis = redis();
                let tollgate = with(&redis, CONCURRENCY);
                let streams = |hits: u64| (0..SLOTS).map(|stream| call(&format!("{stream}"), hits)).collect::<Vec<_>>();
                Closed::once(tollgate.grpc_port, &streams(1));
                // Peeks change nothing.
                (Some(redis), tollgate, streams(0))
            }
        }
    }
}

/// Asks for a slot, or for none to look only.
fn call(stream: &str, hits: u64) -> Call {
    let mut request = request("bench", &[&[("stream", stream)]]);
    request.descriptors[0].hits_addend = Some(hits);
    Call::new(&request, Code::Ok)
}

/// Measures the capacity: a closed loop never offers more.
fn capacity(stage: &Stage, tollgate: &Tollgate, redis: Option<&Redis>, calls: &[Call]) -> Cost {
    let mut processes = vec![("server", tollgate.pid()), ("load", std::process::id())];
    processes.extend(redis.map(|redis| ("Redis", redis.pid())));
    Closed::during(tollgate.grpc_port, calls, |answered| {
        Cost::of(&processes, || {
            let before = answered.load(std::sync::atomic::Ordering::Relaxed);
            std::thread::sleep(stage.run);
            answered.load(std::sync::atomic::Ordering::Relaxed) - before
        })
    })
}

/// Ends the service during an overload, and returns the result.
fn end(mut tollgate: Tollgate, stage: &Stage, envoys: Envoys, per_second: f64, calls: &[Call]) -> String {
    let load = Load { port: tollgate.grpc_port, pid: tollgate.pid(), envoys, per_second, run: stage.run };
    std::thread::scope(|scope| {
        let loaded = scope.spawn(|| load.offer(calls));
        std::thread::sleep(stage.run / 4);
        tollgate.signal("TERM");
        let start = Instant::now();
        let status = tollgate.wait();
        let took = start.elapsed();
        let came = loaded.join().unwrap();
        format!("SIGTERM in the middle of it: {status} after {took:.1?}, {} calls broken off.", came.lost)
    })
}

/// An open loop.
struct Load {
    port: u16,
    pid: u32,
    envoys: Envoys,
    per_second: f64,
    run: Duration,
}

/// The results.
#[derive(Default)]
struct Came {
    /// From when they were due to when they were decided, in time.
    taken: Latencies,
    /// Answered in time, but not decided.
    refused: u64,
    /// Sent, and given up.
    late: u64,
    /// Given up before they were sent.
    unsent: u64,
    /// Lost with their connection.
    lost: u64,
    connections_lost: u64,
    /// The most that the load itself was late.
    lag: Duration,
    /// The most memory that the server had.
    memory: u64,
}

/// A thread of an Envoy.
#[derive(Default)]
struct Thread {
    lanes: Vec<Lane>,
}

/// A connection and its calls: their numbers and due times.
struct Lane {
    connection: Connection<Sent>,
    sent: VecDeque<(u32, Instant)>,
}

struct Sent {
    due: Instant,
    decided: Cell<bool>,
}

impl Load {
    fn offer(&self, calls: &[Call]) -> Came {
        // The threads of one Envoy are adjacent.
        let mut threads: Vec<Thread> = (0..self.envoys.count * THREADS).map(|_| Thread::default()).collect();
        let mut on_their_way = vec![0; self.envoys.count];
        let (mut came, mut taken) = (Came::default(), Vec::new());
        let (start, gap) = (Instant::now(), Duration::from_secs_f64(1.0 / self.per_second));
        let (mut turn, mut look) = (0_u32, start);
        loop {
            let now = Instant::now();
            if now > start + self.run + DEADLINE * 2 {
                break;
            }
            if now >= look {
                came.memory = came.memory.max(memory(self.pid));
                look = now + LOOK;
            }
            while start + gap * turn <= now.min(start + self.run) {
                let due = start + gap * turn;
                came.lag = came.lag.max(now - due);
                let thread = turn as usize % threads.len();
                let on_its_way = &mut on_their_way[thread / THREADS];
                let message = &calls[turn as usize % calls.len()].message;
                if *on_its_way < self.envoys.max_requests && threads[thread].send(self.port, message, due).is_ok() {
                    *on_its_way += 1;
                } else {
                    came.unsent += 1;
                }
                turn += 1;
            }
            for (place, thread) in threads.iter_mut().enumerate() {
                let before = thread.waiting();
                thread.step(now, &mut came, &mut taken);
                on_their_way[place / THREADS] -= before - thread.waiting();
            }
            std::thread::sleep(PAUSE);
        }
        came.taken = Latencies::new(taken);
        came
    }
}

impl Thread {
    /// Sends a call, on an additional connection if no other has room.
    fn send(&mut self, port: u16, message: &[u8], due: Instant) -> io::Result<()> {
        let place = match self.lanes.iter().position(|lane| lane.connection.has_room()) {
            Some(place) => place,
            None => {
                let mut connection = Connection::open(port, DEADLINE)?;
                connection.never_wait()?;
                self.lanes.push(Lane { connection, sent: VecDeque::new() });
                self.lanes.len() - 1
            }
        };
        let Lane { connection, sent } = &mut self.lanes[place];
        let id = connection.call(message, Sent { due, decided: Cell::new(false) });
        sent.push_back((id, due));
        Ok(())
    }

    fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.connection.waiting()).sum()
    }

    fn step(&mut self, now: Instant, came: &mut Came, taken: &mut Vec<Duration>) {
        for lane in std::mem::take(&mut self.lanes) {
            match lane.step(now, came, taken) {
                Ok(lane) => self.lanes.push(lane),
                Err(lost) => {
                    came.connections_lost += 1;
                    came.lost += lost as u64;
                }
            }
        }
    }
}

impl Lane {
    /// Receives, cancels late calls, and sends. An error contains the number of calls lost with the connection.
    fn step(mut self, now: Instant, came: &mut Came, taken: &mut Vec<Duration>) -> Result<Lane, usize> {
        let end = |Sent { due, decided }: Sent, answered: bool| match answered {
            _ if due.elapsed() > DEADLINE => came.late += 1,
            true if decided.get() => taken.push(due.elapsed()),
            _ => came.refused += 1,
        };
        let received =
            self.connection.receive(|sent, answer| sent.decided.set(answer.get(5..7) == Some(&PASSED[..])), end);
        while let Some((id, _)) = self.sent.front().copied().filter(|(_, due)| *due + DEADLINE <= now) {
            self.sent.pop_front();
            came.late += u64::from(self.connection.cancel(id).is_some());
        }
        match received.and_then(|()| self.connection.flush()) {
            Ok(()) => Ok(self),
            Err(_) => Err(self.connection.waiting()),
        }
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
    const HEAD: &str =
        "| offered | goodput | p50 | p99 | refused in time | given up late | never sent | memory | load late by |";

    /// In a second.
    fn goodput(&self) -> f64 {
        self.came.taken.count() as f64 / self.run.as_secs_f64()
    }

    /// Returns this percentile of the calls decided in time, in milliseconds; `None` if there were none.
    fn ms(&self, share: f64) -> Option<f64> {
        let taken = &self.came.taken;
        (taken.count() > 0).then(|| taken.us(share) / 1e3)
    }

    fn row(&self) -> String {
        let Came { taken, refused, late, unsent, lost, connections_lost, lag, memory, .. } = &self.came;
        let all = (taken.count() + refused + late + unsent + lost) as f64;
        let share = |part: u64| format!("{:.0} %", part as f64 / all * 100.0);
        let broken =
            if *connections_lost > 0 { format!(" ({connections_lost} connections lost)") } else { String::new() };
        let ms = |share| self.ms(share).map_or("-".into(), |ms| format!("{ms:.1} ms"));
        format!(
            "| {:.2} | {:.2} ({:.0}/s) | {} | {} | {} | {}{broken} | {} | {} MB | {lag:.1?} |",
            self.factor,
            self.goodput() / self.capacity,
            self.goodput(),
            ms(0.5),
            ms(0.99),
            share(*refused),
            share(late + lost),
            share(*unsent),
            memory >> 20,
        )
    }
}
