//! All tests that stand outside of the code, in one binary: to link one takes as long as to compile the tests of a
//! file. tests/allocations.rs is apart, because its allocator counts for a whole process.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod algorithms;
mod batching;
mod between;
mod causes;
mod changes;
mod check;
mod concurrency;
mod conformance;
mod counters;
mod denied;
mod debug_port;
mod deploy;
mod dist;
mod docs;
mod dynamic_metadata;
mod envoy;
mod explain;
mod faults;
mod floods;
mod fuzzing;
mod health;
mod json;
mod leases;
mod overload;
mod pages;
mod penalty;
mod process;
mod queue;
mod readme;
mod recipes;
mod release;
mod replacement;
mod rls;
mod rolling;
mod room;
mod rules;
mod serving;
mod settings;
mod shaping;
mod simulation;
mod starting;
mod stores;
mod support;
mod tidy;
mod tls;
mod twins;
mod unix;
mod usage;
mod wrong_port;
mod xds;
