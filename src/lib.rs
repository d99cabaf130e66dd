//! Tollgate, a rate-limit service for Envoy.
//!
//! One request, in a straight line:
//!
//! ```text
//! Envoy ─▶ grpc      turns the call into a Request, or rejects it as invalid
//!          limiter   takes one snapshot of rules and adjustments for the whole request
//!          plan      matches each descriptor: no rule, unlimited, or Checks of counters
//!          store     decides all Checks together, in one round trip; a lease or a known denial saves it
//!          plan      gives each limit its answer: the store's verdict, or that of its failure mode
//!          decision  concludes whether the request passes, and when
//!          metrics   records the Decision
//!          observe   hands it to the observers that are on: top keys, decision log, candidates, what if, notices
//!          delay     keeps the request until its release time, if a limit delays it
//! Envoy ◀─ grpc      turns the Decision into statuses, a code and headers
//! ```
//!
//! Invariants:
//! - The engine reads no clock: `now` is an argument, and in Redis the script's `TIME`.
//! - Every number in a limit's arithmetic is whole and below 2^53, in Rust and in Lua.
//! - A decision never depends on a key's expiry; expiry only collects garbage.
//! - A request sees one snapshot of the rules and of the adjustments.
//! - One request is one group: unless all of it passes, only refunds happen, and only limits that count denials are
//!   charged.
//! - Everything that clients can make grow has a bound, and a stated answer at the bound.
//! - No settings object passed down, no panic for an error, no second way to limit, no `unsafe`. The only global state
//!   is the calendars of time zones, which never change once loaded.
//! - An algorithm is one pair of files of one name and one line in `engine::algorithm`; every property, twin and store
//!   test picks it up.

// The path of a request. `engine` decides; it is a separate crate, which imports nothing of the others.
pub use tollgate_engine as engine;

pub mod store;
pub mod limiter;
pub mod delay;
pub mod grpc;
pub mod wire;

// Around decisions: the sources of rules, the observers, what instances share, and what operators read.
pub mod sources;
pub mod observe;
pub mod notify;
pub mod shared;
pub mod survey;
pub mod inspect;
pub mod metrics;
pub mod http;

// Evaluates rules on logs and sampled requests, without the service's counters.
pub mod evaluate;

// The text of rules that someone proposes, checked and compared with the rules in force.
pub mod proposal;

// Offline tools: rules replayed on a log, and a signed ledger of usage.
pub mod replay;
pub mod ledger;

// The process: its settings, its start and end, and its commands.
pub mod settings;
pub mod server;
pub mod command;

// Leaves, which know nothing about rate limits.
pub mod connect;
pub mod files;
pub mod instant;
pub mod probe;
pub mod spans;
pub mod supervise;
pub mod telemetry;
pub mod tls;
pub mod version;
