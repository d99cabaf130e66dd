//! All tests that stand outside of the code, in one binary: to link one takes as long as to compile the tests of a
//! file. tests/allocations.rs is apart, because its allocator counts for a whole process.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod algorithms;
mod batching;
mod between;
mod changes;
mod concurrency;
mod counters;
mod denied;
mod deploy;
mod docs;
mod envoy;
mod faults;
mod floods;
mod fuzzing;
mod leases;
mod overload;
mod penalty;
mod process;
mod queue;
mod readme;
mod recipes;
mod rls;
mod rules;
mod serving;
mod starting;
mod shaping;
mod simulation;
mod stores;
mod support;
mod tidy;
mod twins;
mod usage;
