//! What Tollgate costs, beside what it could cost at the least: `make bench` prints the table of `docs/performance.md`.
//!
//! ```text
//! rows        every row once: the figure, the target, how it is measured
//! report      the table
//! stage       on which cores everything runs, and for how long
//! cost        what processes have used of the processor, by the system's own account
//! load        requests of many users, closed loop and open loop, and a check of every answer
//! fleet       of many replicas that share a Redis
//! overload    more of them than can be served (`make bench-overload`)
//! plot        draws what becomes of them
//! peers       beside envoyproxy/ratelimit (`make bench-peers`)
//! http2       the least of HTTP/2 that this takes: load must cost far less than what it measures
//! bare        the server to compare with: tonic, with one constant answer
//! rules       as many as one likes
//! headers     of many levels, as Envoy Gateway writes them
//! redis_loop  the client to compare with: nothing but pipelined calls
//! ```
//!
//! Both sides of a comparison run in turn, in one run on one machine, so that ratios hold where absolute figures do
//! not.

#![allow(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

mod bare;
mod cost;
mod fleet;
mod headers;
mod http2;
mod load;
mod overload;
mod peers;
mod plot;
mod redis_loop;
mod report;
mod rows;
mod rules;
mod stage;
#[path = "../../tests/it/support/mod.rs"]
mod support;

use stage::Stage;

/// That of the `tollgate` command, for the bare server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_given = |argument: &str| arguments.iter().any(|given| given == argument);
    if is_given(bare::ARGUMENT) {
        return bare::serve();
    }
    let stage = match () {
        () if is_given("--quick") => Stage::quick(),
        // `cargo bench` says so; `cargo test` does not.
        () if is_given("--bench") => Stage::full(),
        () => {
            println!("Every row is tried, and nothing is measured: `cargo bench` does that.");
            Stage::tried()
        }
    };
    // `cargo bench --bench service -- latency` measures what has that in a figure's name.
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let part = wanted.map_or("", |part| part);
    match () {
        () if is_given("--overload") => overload::run(&stage, part),
        () if is_given("--peers") => peers::print(&stage, part),
        () => report::print(&stage, part),
    }
}
