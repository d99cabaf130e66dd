//! The server's CPU time for a request, beside bare servers with a constant answer, and Redis's for a decision.
//!
//! Once with headers that are the same in each call, and once with headers that are new in each, as proxies that trace
//! send them: a server may save much of the work on the former.

use crate::bare::{Bare, Library};
use crate::cost::{Cost, median};
use crate::http2::{Headers, Server};
use crate::load::{Call, RULES, Users, calls};
use crate::redis_loop::{Pipeline, RedisLoop};
use crate::rows::Target::AtMost;
use crate::rows::{Measured, Row, USERS, closed_loop};
use crate::stage::{Place, Stage};

/// For each kind of headers, in the order of [`KINDS`], and then for Redis.
pub const ROWS: &[Row] = &[
    Row { figure: "memory store, server CPU per request", target: AtMost(0.45, TONIC) },
    Row { figure: "the same, beside hyper", target: AtMost(0.5, HYPER) },
    Row { figure: "Redis store, 256 in flight, server CPU per request", target: AtMost(0.3, MORE) },
    Row { figure: "the same, beside hyper", target: AtMost(1.0, HYPER) },
    Row { figure: "memory store, new headers in each call, server CPU per request", target: AtMost(0.45, TONIC) },
    Row { figure: "the same, beside hyper", target: AtMost(0.5, HYPER) },
    Row { figure: "Redis store, new headers in each call, server CPU per request", target: AtMost(0.3, MORE) },
    Row { figure: "the same, beside hyper", target: AtMost(1.0, HYPER) },
    Row { figure: "Redis store, 256 in flight, Redis CPU per decision", target: AtMost(1.9, "x an empty script") },
];
const TONIC: &str = "x a bare tonic server";
const HYPER: &str = "x a bare hyper server";
const MORE: &str = "x a bare tonic server more than the memory store";
const KINDS: [Headers; 2] = [Headers::Constant, Headers::New];

/// The servers, each with one thread.
const SERVERS: usize = 4;
const BARE_TONIC: usize = 0;
const BARE_HYPER: usize = 1;
const MEMORY: usize = 2;
const REDIS: usize = 3;

/// A server, its calls, and the processes that work on them, the server first.
struct Side<'c> {
    port: u16,
    calls: &'c [Call],
    processes: Vec<(&'static str, u32)>,
}

/// One run of each server with one kind of headers.
type Run = [Cost; SERVERS];

/// Gives one for each of [`ROWS`].
pub fn measure(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideLoad);
    let [tonic, hyper] = [Library::Tonic, Library::Hyper].map(|library| Bare::start(stage, library));
    let memory = stage.tollgate(RULES, &[]);
    let shared = stage.tollgate(RULES, &[&format!("REDIS_URL={}", redis.url())]);
    let (all_pass, mixed) = (&*calls(USERS, 1, Users::Passing), &*calls(USERS, 1, Users::Mixed));
    let alone = |pid| vec![("server", pid)];
    let sides: [Side<'_>; SERVERS] = [
        Side { port: tonic.port, calls: all_pass, processes: alone(tonic.pid()) },
        Side { port: hyper.port, calls: all_pass, processes: alone(hyper.pid()) },
        Side { port: memory.grpc_port, calls: mixed, processes: alone(memory.pid()) },
        Side {
            port: shared.grpc_port,
            calls: mixed,
            processes: vec![("server", shared.pid()), ("Redis", redis.pid())],
        },
    ];
    let mut empty_loop = RedisLoop::connect(&redis);
    let empty = [Pipeline::of_nothing(32)];

    let (mut runs, mut empty_runs) = (KINDS.map(|_| Vec::new()), Vec::new());
    for _ in 0..stage.runs {
        for (kind, runs) in KINDS.into_iter().zip(&mut runs) {
            let run =
                |side: &Side<'_>| closed_loop(stage, Server::from(side.port).with(kind), side.calls, &side.processes);
            runs.push(sides.each_ref().map(run));
        }
        empty_runs.push(Cost::of(&[("Redis", redis.pid())], || empty_loop.run_for(&empty, stage.run)));
    }
    let mut measured: Vec<Measured> = runs.iter().flat_map(|runs| per_request(runs)).collect();
    measured.push(in_redis(&runs[0], &empty_runs));
    measured
}

/// Returns the four rows of one kind of headers.
fn per_request(runs: &[Run]) -> [Measured; 4] {
    let row = |server: usize, bare: usize, ratio: &dyn Fn(&Run) -> f64| {
        let us = |place: usize| median(runs.iter().map(|run| run[place].each_us(0)).collect());
        let rate = |place: usize| median(runs.iter().map(|run| run[place].rate()).collect());
        let detail =
            format!("{:.2} µs, {:.0}/s; bare {:.2} µs, {:.0}/s", us(server), rate(server), us(bare), rate(bare));
        let last = &runs[runs.len() - 1];
        let name = if server == MEMORY { "memory" } else { "Redis store" };
        Measured::new(median(runs.iter().map(ratio).collect()), detail)
            .under(&[(name, &last[server]), ("bare", &last[bare])])
    };
    let us = |run: &Run, place: usize| run[place].each_us(0);
    [
        row(MEMORY, BARE_TONIC, &|run| us(run, MEMORY) / us(run, BARE_TONIC)),
        row(MEMORY, BARE_HYPER, &|run| us(run, MEMORY) / us(run, BARE_HYPER)),
        row(REDIS, BARE_TONIC, &|run| (us(run, REDIS) - us(run, MEMORY)) / us(run, BARE_TONIC)),
        row(REDIS, BARE_HYPER, &|run| us(run, REDIS) / us(run, BARE_HYPER)),
    ]
}

/// Redis's part of the runs, beside an empty script.
fn in_redis(runs: &[Run], empty: &[Cost]) -> Measured {
    let pairs = || runs.iter().map(|run| run[REDIS].each_us(1)).zip(empty.iter().map(|empty| empty.each_us(0)));
    let detail = format!(
        "{:.2} µs; empty {:.2} µs",
        median(pairs().map(|(each, _)| each).collect()),
        median(pairs().map(|(_, empty)| empty).collect())
    );
    let ratio = median(pairs().map(|(each, empty)| each / empty).collect());
    Measured::new(ratio, detail)
        .under(&[("Redis store", &runs[runs.len() - 1][REDIS]), ("empty", &empty[empty.len() - 1])])
}
