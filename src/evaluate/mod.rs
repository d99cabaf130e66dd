//! Evaluation: the decisions that rules would make on a stream of requests. It uses the service's plans and algorithms,
//! the memory store, and the clock of those requests; it does not touch the service's counters. Replays of logs,
//! what-if replays and comparisons of candidate rules differ in their streams and in the folds of these decisions.
//!
//! ```text
//! arrivals ─▶ evaluator    decides each whole request by one set of rules
//!             streams      keeps the slots of requests in progress until they end
//!             run          counts the decisions of each limit
//!             comparison   counts the requests that another set of rules decides differently
//!             changed      counts the requests that an adjustment decides differently
//!             fleet_shares decides them as a fleet whose instances have shares of limits
//!             peaks        measures each key's highest demand within a period
//!             suggestion   tries other numbers, to find the smallest that stays within a goal
//! report   ◀─ report       for people, or as JSON
//! ```
//!
//! Memory is bounded by the number of counters and keys, not by the length of the stream. This module is above the
//! engine, because an evaluation owns its store.

mod changed;
mod comparison;
mod evaluator;
mod fleet_shares;
mod peaks;
mod report;
mod run;
mod streams;
mod suggestion;
mod tally;

use crate::engine::descriptor::Request;

pub use changed::{Changed, KeyCount};
pub use comparison::{Comparison, Difference};
pub use evaluator::{Evaluator, RuleSet};
pub use fleet_shares::{FleetReport, FleetShares, FleetTerms};
pub use peaks::{Peaks, UpTo};
pub use report::{Differences, Example, KeyReport, LimitReport, OldLimit, Point, RuleDifferences, Suggestion};
pub use run::{Run, RunOptions};
pub use suggestion::{Goal, GoalError, GoalOf, Search};

/// A request of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'e> {
    /// When it came, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The whole request.
    pub request: &'e Request,
    /// Indices of the descriptors whose keys are outside of the stream's sample. They take part in deciding, and no
    /// fold counts them, because the stream does not have all requests of their keys.
    pub outside: &'e [usize],
    /// How long the stream lasts that the request begins if it passes, in milliseconds; `None` if the source of the
    /// requests does not tell. Limits of requests in progress are then only peeked at, unless the ends of streams are
    /// requests themselves ([`RuleSet::has_releases`]).
    pub lasts_ms: Option<u64>,
}

impl Arrival<'_> {
    /// Returns whether the stream has all requests of this descriptor's key.
    pub(crate) fn is_sampled(&self, descriptor: usize) -> bool {
        !self.outside.contains(&descriptor)
    }
}
