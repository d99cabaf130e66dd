//! What rules would have done with the requests of a log: the real matcher and the real algorithms, on the log's own
//! clock. The same log and rules give the same report, to the byte.
//!
//! ```text
//! log ─▶ lines        one line after the other, or why it cannot be read
//!        format       the fields of a line: Envoy's text or JSON, CSV, or a decision log
//!        mapping      makes a Request of the fields, as Envoy's rate_limits would
//!        order        sorts what is a bit out of order, and joins several logs
//!        run          decides each request as the service would, and counts what comes of it
//!        comparison   what another set of rules decides otherwise
//!        suggestion   tries other numbers, to find the one that denies no more than somebody wants
//!        peaks        how much each key asks for at most within a period
//! report ◀─ report    for people, or as JSON
//! ```
//!
//! Memory is bounded by the counters and keys that there are, not by the length of a log. Nothing here opens a file: a
//! log is whatever can be read.

mod comparison;
mod decisions;
mod format;
mod lines;
mod mapping;
mod order;
mod peaks;
mod report;
mod run;
mod source;
mod suggestion;
mod tally;
mod template;
mod text;
mod time;

use crate::descriptor::Request;

pub use comparison::Comparison;
pub use format::{Format, FormatError};
pub use lines::Log;
pub use mapping::{MappingError, MappingOptions};
pub use peaks::{Peaks, UpTo};
pub use report::{KeyReport, LimitReport, Point, Report, Suggestion};
pub use run::{Judged, Run, Trying};
pub use source::{Read, ReadError, Reading, Requests};
pub use suggestion::{Goal, GoalError, GoalOf, Search};

/// A request of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it came, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What it asked.
    pub request: Request,
}
