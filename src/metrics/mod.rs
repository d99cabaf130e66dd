//! What the process counts: every metric is declared once, with its meaning. Labels come from rules and settings, which
//! are few; never from requests.

mod by_rule;
mod declaration;
mod observed;
mod page;
mod prometheus_text;
mod record;
mod striped;
mod xds;

pub use by_rule::RuleMetrics;
pub use declaration::Metrics;
pub use page::page;
pub use record::Delayed;
pub use xds::XdsMetrics;
