//! How the cost of a decision grows with connections, calls, descriptors and rules, and by TLS. `make bench-growth`
//! prints the table of `docs/measurements-load.md`.

use std::fmt::Write as _;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::cost::{Cost, median};
use crate::http2::{Connection, Headers, Server};
use crate::idle_connections::descriptors;
use crate::load::{Call, RULES, Users, WARM_UP, calls};
use crate::rows::USERS;
use crate::stage::{Place, Stage};
use crate::support::certificates::Authority;
use crate::support::redis::Redis;
use crate::support::tollgate::Tollgate;

/// Threads of the load.
const THREADS: usize = 8;
/// A timeout that calls do not reach.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What a case has, where it differs from the first of its group.
#[derive(Clone, Copy)]
struct Case {
    connections: usize,
    /// Calls in flight over all connections. Where there are more connections, calls use them in turn.
    in_flight: usize,
    descriptors: usize,
    rules: usize,
    is_tls: bool,
}

const BASE: Case = Case { connections: 8, in_flight: 256, descriptors: 1, rules: 6, is_tls: false };

/// Cases that take turns, and what each of them has.
struct Group {
    name: &'static str,
    cases: &'static [(&'static str, Case)],
}

const GROUPS: &[Group] = &[
    Group {
        name: "connections, 256 calls in flight over all of them",
        cases: &[
            ("8", BASE),
            ("64", Case { connections: 64, ..BASE }),
            ("256", Case { connections: 256, ..BASE }),
            ("1,000", Case { connections: 1_000, ..BASE }),
            ("10,000", Case { connections: 10_000, ..BASE }),
        ],
    },
    Group {
        name: "calls in flight, over 8 connections",
        cases: &[
            ("256", BASE),
            ("8", Case { in_flight: 8, ..BASE }),
            ("64", Case { in_flight: 64, ..BASE }),
            ("1,024", Case { in_flight: 1_024, ..BASE }),
        ],
    },
    Group {
        name: "descriptors in a request, each with a limit",
        cases: &[("1", BASE), ("2", Case { descriptors: 2, ..BASE }), ("5", Case { descriptors: 5, ..BASE })],
    },
    Group {
        name: "rules",
        cases: &[("6", BASE), ("1,000", Case { rules: 1_000, ..BASE }), ("100,000", Case { rules: 100_000, ..BASE })],
    },
    Group { name: "transport", cases: &[("plain", BASE), ("mutual TLS", Case { is_tls: true, ..BASE })] },
];

/// A service under the load of one case.
struct Side {
    case: Case,
    tollgate: Tollgate,
    server: Server,
    redis: Option<Redis>,
    calls: Vec<Call>,
    /// Its files stay.
    _authority: Authority,
}

/// Prints a table for each group with `part` in its name.
pub fn print(stage: &Stage, part: &str) {
    println!("{stage}");
    // Client and server of 10,000 connections need as many.
    descriptors();
    for group in GROUPS.iter().filter(|group| group.name.contains(part)) {
        group.print(stage);
    }
}

impl Group {
    fn print(&self, stage: &Stage) {
        println!(
            "\n| {} | memory store: server CPU, decisions/s | Redis store: server CPU, decisions/s | Redis CPU |",
            self.name
        );
        println!("{}|", "|---".repeat(4));
        let (memory, redis) = (self.measure(stage, false), self.measure(stage, true));
        let mut disturbed = 0;
        for (place, (name, _)) in self.cases.iter().enumerate() {
            let mut line = format!("| {name} |");
            for sides in [&memory, &redis] {
                let of = |figure: &dyn Fn(&Cost) -> f64| median(sides.iter().map(|run| figure(&run[place])).collect());
                let grown = median(sides.iter().map(|run| run[place].each_us(0) / run[0].each_us(0)).collect());
                let (each, rate) = (of(&|cost| cost.each_us(0)), of(&Cost::rate));
                write!(line, " {grown:.2} x ({each:.2} µs), {rate:.0} |").unwrap();
                disturbed += sides.iter().filter(|run| run[place].disturbed()).count();
            }
            let redis_us = median(redis.iter().map(|run| run[place].each_us(1)).collect());
            println!("{line} {redis_us:.2} µs |");
        }
        println!("\nOthers were on the cores in {disturbed} of {} runs.", 2 * stage.runs * self.cases.len());
    }

    /// Returns the cost of each case, run by run.
    fn measure(&self, stage: &Stage, with_redis: bool) -> Vec<Vec<Cost>> {
        let sides: Vec<Side> = self.cases.iter().map(|(_, case)| Side::start(stage, *case, with_redis)).collect();
        (0..stage.runs).map(|_| sides.iter().map(|side| side.run(stage)).collect()).collect()
    }
}

impl Side {
    fn start(stage: &Stage, case: Case, with_redis: bool) -> Side {
        let authority = Authority::new("bench");
        let redis = with_redis.then(|| stage.redis(Place::BesideLoad));
        let mut settings = vec![format!("GRPC_MAX_CONNECTIONS={}", 2 * stage.connections)];
        settings.extend(redis.iter().map(|redis| format!("REDIS_URL={}", redis.url())));
        if case.is_tls {
            settings.extend(authority.sign("server", &["localhost"]).settings());
            settings.push(format!("GRPC_CLIENT_TLS_CACERT={}", authority.file().display()));
        }
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let tollgate = stage.tollgate(&rules(case.rules), &settings);
        let server = match case.is_tls {
            true => Server::with_tls(tollgate.grpc_port, authority.sign("client", &[]).client(&authority)),
            false => Server::from(tollgate.grpc_port),
        };
        let server = server.with(Headers::New);
        Side {
            case,
            tollgate,
            server,
            redis,
            calls: calls(USERS, case.descriptors, Users::Mixed),
            _authority: authority,
        }
    }

    fn run(&self, stage: &Stage) -> Cost {
        let mut processes = vec![("server", self.tollgate.pid())];
        processes.extend(self.redis.iter().map(|redis| ("Redis", redis.pid())));
        processes.push(("load", std::process::id()));
        let (answered, stop, ready) = (&AtomicU64::new(0), &AtomicBool::new(false), &Barrier::new(THREADS + 1));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || self.load(stage, thread, (answered, stop, ready)));
            }
            ready.wait();
            std::thread::sleep(WARM_UP);
            let cost = Cost::of(&processes, || {
                let before = answered.load(Ordering::Relaxed);
                std::thread::sleep(stage.run);
                answered.load(Ordering::Relaxed) - before
            });
            stop.store(true, Ordering::Relaxed);
            cost
        })
    }

    /// One thread's part of the load: over as many of its connections as it has calls in flight, then over the next.
    fn load(&self, stage: &Stage, thread: usize, (answered, stop, ready): (&AtomicU64, &AtomicBool, &Barrier)) {
        let open = |_| Connection::open(self.server.clone(), TIMEOUT).unwrap();
        let most = self.case.connections.min(stage.connections) / THREADS;
        let mut connections: Vec<Connection<usize>> = (0..most).map(open).collect();
        let calls = self.case.in_flight / THREADS;
        let at_once = calls.min(most);
        let mut turns = thread * USERS / THREADS..;
        ready.wait();
        while !stop.load(Ordering::Relaxed) {
            for connection in &mut connections[..at_once] {
                for turn in turns.by_ref().take(calls / at_once) {
                    connection.call(&self.calls[turn % USERS].message, turn);
                }
                connection.flush().unwrap();
            }
            let mut ended = 0;
            for connection in &mut connections[..at_once] {
                while connection.waiting() > 0 {
                    let check = |turn: &usize, answer: &[u8]| self.calls[turn % USERS].check(answer, *turn);
                    let end = |_, answered: bool| {
                        assert!(answered, "a call failed");
                        ended += 1;
                    };
                    connection.receive(check, end).unwrap();
                }
                if at_once < most {
                    connection.rest().unwrap();
                }
            }
            answered.fetch_add(ended, Ordering::Relaxed);
            connections.rotate_left(at_once);
        }
    }
}

/// Returns the rules of the load, and as many that its requests do not match as there must be.
fn rules(count: usize) -> String {
    let mut rules = RULES.to_owned();
    for user in BASE.rules..count {
        writeln!(
            rules,
            "  - {{key: user, value: other-{user:07}, rate_limit: {{unit: minute, requests_per_unit: 5}}}}"
        )
        .unwrap();
    }
    rules
}
