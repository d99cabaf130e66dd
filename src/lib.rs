//! Tollgate, a rate-limit service for Envoy.
//!
//! One request, in a straight line:
//!
//! ```text
//! Envoy ─▶ grpc         makes the call a Request, or refuses it as invalid
//!          limiter      takes one snapshot of the rules, and of what is changed about them, for the whole request
//!          plan         matches each descriptor: no rule, unlimited, or Checks of counters
//!          store        decides all checks together, in one round trip; a lease or a known denial saves it
//!          plan         gives each limit its answer: the store's verdict, or its failure mode's
//!          decision     concludes from all answers whether the request passes, and when
//!          metrics      records the Decision; heavy_hitters counts whose it is, and decision_log writes down why
//!          delay        keeps a request until its release time, where a limit says so
//! Envoy ◀─ grpc         makes of the Decision statuses, a code, headers
//! ```
//!
//! What always holds:
//! - The core reads no clock: `now` is an argument, in Redis the script's `TIME`.
//! - Every number in a limit's arithmetic is whole and below 2^53, in Rust and in Lua.
//! - A decision never depends on a key's expiry; expiry collects garbage.
//! - A request sees one snapshot of the rules and of the adjustments.
//! - One request is one group: unless all of it passes, only refunds happen, and only limits that count denials are
//!   charged.
//! - Everything that clients can make grow has a bound, and a stated answer at the bound.
//! - No global state, no settings object passed down, no panic for an error, no second way to limit, no `unsafe`.
//! - An algorithm is one pair of files of one name and one line in `algorithm`; every property, twin and store test
//!   picks it up.

// In the order of reading.
pub mod descriptor;
pub mod algorithm;
pub mod lease;
pub mod usage;
pub mod adjustment;
pub mod files;
pub mod rules;
pub mod store;
pub mod plan;
pub mod decision;
pub mod room;
pub mod explain;
pub mod replay;
pub mod counters;
pub mod console;
pub mod changes;
pub mod values;
pub mod sample;
pub mod candidates;
pub mod what_if;
pub mod delay;
pub mod decision_log;
pub mod heavy_hitters;
pub mod limiter;
pub mod steering;
pub mod fleet;
pub mod grpc;
pub mod wire;
pub mod version;
pub mod probe;
pub mod metrics;
pub mod statsd;
pub mod telemetry;
pub mod spans;
pub mod connect;
pub mod http;
pub mod tls;
pub mod settings;
pub mod server;
pub mod command;
