//! What the process counts: every metric is declared once, with its meaning. Labels come from rules and settings, which
//! are few; never from requests. `reference` shows the same under other names.

mod by_rule;
mod declaration;
mod observed;
mod page;
mod prometheus_text;
mod record;
pub mod reference;
mod spans;
mod striped;
mod tally;
mod xds;

pub use by_rule::RuleMetrics;
pub use declaration::Metrics;
pub use page::page;
pub use record::Delayed;
pub use spans::SpanMetrics;
pub use xds::XdsMetrics;
