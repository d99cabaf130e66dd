//! Replays: the decisions that rules would have made on the requests of a log. A replay uses the real matcher and the
//! real algorithms on the log's own clock. The same log and rules give the same report, to the byte.
//!
//! ```text
//! log ─▶ lines        one line after the other, or the reason why it cannot be read
//!        format       the fields of a line: Envoy's text or JSON, CSV, or a decision log
//!        mapping      creates a Request from the fields: entry, rate_limits (Envoy's actions), condition
//!        envoy        Envoy's own configuration: the route of a line, and what Envoy asks about it
//!        packed       a Request, or the part that differs from line to line, until it is decided
//!        order        sorts requests that are slightly out of order
//!        source       merges several logs
//!        evaluate     decides each request as the service would, and counts the results
//! report ◀─ report    for people, or as JSON
//! lines  ◀─ verdict   what the rules say to each request
//! ```
//!
//! Memory is bounded by the number of counters and keys, not by the length of a log. Nothing here opens a file: a log
//! is any reader.

mod condition;
mod decisions;
mod entry;
mod envoy;
mod format;
mod lines;
mod mapping;
mod order;
mod packed;
mod rate_limits;
mod report;
mod source;
mod template;
mod text;
mod time;
mod verdict;

use crate::engine::descriptor::{Request, Text};
use crate::evaluate::Arrival;

pub use envoy::{EnvoyConfig, EnvoyError};
pub use format::{Format, FormatError};
pub use lines::Log;
pub use mapping::{MappingError, MappingOptions};
pub use report::{Against, Report};
pub use source::{Read, ReadError, Reading, Requests};
pub use verdict::Verdict;

/// A request of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it came, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What it asked.
    pub request: Request,
    /// The indices of the descriptors whose keys are outside of the log's sample: the log has only those requests of
    /// such a key that ask about a sampled key, too. They take part in deciding, and no report counts them.
    pub outside: Vec<usize>,
    /// How long the request lasted, in milliseconds, if the log tells it.
    pub lasts_ms: Option<u64>,
    /// What identifies the request elsewhere, if an option says where the log has it.
    pub id: Option<String>,
}

impl Event {
    /// A request whose keys are all in the log's sample.
    pub fn new(at_ms: u64, request: Request) -> Event {
        Event { at_ms, request, outside: Vec::new(), lasts_ms: None, id: None }
    }

    /// An event without a request. [`Requests::read_into`] replaces it, and then reuses its memory.
    pub fn empty() -> Event {
        Event::new(0, Request { domain: Text::default(), descriptors: Vec::new() })
    }
}

impl<'e> From<&'e Event> for Arrival<'e> {
    fn from(Event { at_ms, request, outside, lasts_ms, id: _ }: &'e Event) -> Self {
        Arrival { at_ms: *at_ms, request, outside, lasts_ms: *lasts_ms }
    }
}
