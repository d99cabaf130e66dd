//! What the process counts: every metric is declared once, with its meaning. Labels come from rules and settings, which
//! are few; never from requests. `reference` shows the same under other names.

mod by_rule;
mod candidates;
mod decision_log;
mod declaration;
mod observed;
mod page;
mod prometheus_text;
mod reading;
mod record;
pub mod reference;
mod spans;
mod striped;
mod tally;
mod xds;

pub use by_rule::RuleMetrics;
pub use candidates::{CandidateMetrics, CandidateOutcome};
pub use decision_log::DecisionLogMetrics;
pub use declaration::Metrics;
pub use page::page;
pub use reading::{Reading, RuleReading, StoreReading, Times};
pub use record::{Delayed, ReplicaCounts};
pub use spans::SpanMetrics;
pub use tally::Around;
pub use xds::XdsMetrics;
