//! The cost of Tollgate, compared with the minimum possible cost: `make bench` prints the table of
//! `docs/measurements.md`.
//!
//! ```text
//! rows        the rows of the table: figure, target, measurement
//! beside_bare, system_calls, idle_connections
//!             rows with a file each
//! report      the table
//! stage       the cores on which everything runs, and the durations
//! cost        the CPU time of processes, as reported by the system
//! load        requests of many users, in a closed or open loop, with a check of every answer
//! fleet       many instances that share a Redis
//! shares      the same with shares of limits, and leases
//! budgets     streams of a budget, and what they cost Redis
//! cluster     a Redis Cluster with several masters
//! console     the console, closed and open
//! overload    more requests than can be served (`make bench-overload`)
//! envoys      the load of several Envoys, which give up late calls
//! growth      costs by connections, calls, descriptors, rules and TLS (`make bench-growth`)
//! streams     streams of a model in an Envoy, and their budget (`make bench-streams`)
//! plot        draws the results of overload and streams
//! peers       comparison with envoyproxy/ratelimit (`make bench-peers`)
//! http2       a minimal HTTP/2 client: the load must cost far less than the server
//! hpack       the headers of its calls
//! bare        the servers for comparison: tonic and hyper, with a constant answer
//! rules       any number of rules
//! headers     rules with many levels, as Envoy Gateway writes them
//! redis_loop  the client for comparison: only pipelined calls
//! ```
//!
//! Both sides of a comparison run alternately, in one run on one machine, so ratios are comparable even if absolute
//! figures are not.

#![allow(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

mod bare;
mod beside_bare;
mod budgets;
mod cluster;
mod console;
mod cost;
mod envoys;
mod fleet;
mod growth;
mod headers;
mod http2;
mod idle_connections;
mod load;
mod overload;
mod peers;
mod plot;
mod redis_loop;
mod report;
mod rows;
mod rules;
mod shares;
mod stage;
mod streams;
#[path = "../../tests/it/support/mod.rs"]
mod support;
mod system_calls;

use stage::Stage;

/// The same allocator as that of the `tollgate` command, for the bare server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_given = |argument: &str| arguments.iter().any(|given| given == argument);
    if bare::serve(is_given) {
        return;
    }
    let stage = match () {
        () if is_given("--quick") => Stage::quick(),
        // `cargo bench` passes this argument; `cargo test` does not.
        () if is_given("--bench") => Stage::full(),
        () => {
            println!("Every row is tried, and nothing is measured: `cargo bench` does that.");
            Stage::tried()
        }
    };
    // `cargo bench --bench service -- latency` measures only figures with that in their name.
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let part = wanted.map_or("", |part| part);
    match () {
        () if is_given("--overload") => overload::run(&stage, part),
        () if is_given("--growth") => growth::print(&stage, part),
        () if is_given("--peers") => peers::print(&stage, part),
        () if is_given("--streams") => streams::run(&stage, part),
        () => report::print(&stage, part),
    }
}
