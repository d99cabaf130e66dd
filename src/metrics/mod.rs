//! The metrics of the process. Each metric is declared once, with its meaning. Labels come from rules and settings,
//! which are few, and never from requests. `reference` exposes the same values under the names of
//! `envoyproxy/ratelimit`.

pub mod statsd;
mod admin;
mod by_rule;
mod by_value;
mod calls;
mod candidates;
mod decision_log;
mod declaration;
mod fleet;
mod names;
mod notices;
mod namespace;
mod observed;
mod page;
#[cfg(target_os = "linux")]
mod process;
mod prometheus_text;
mod reading;
mod record;
pub mod reference;
mod register;
mod rules;
mod sentinels;
mod spans;
mod store;
mod striped;
mod tally;
mod tls;
mod xds;

pub use admin::AdminMetrics;
pub use by_rule::RuleMetrics;
pub use candidates::CandidateMetrics;
pub use decision_log::DecisionLogMetrics;
pub use declaration::Metrics;
pub use fleet::ReplicaCounts;
pub use page::page;
pub use reading::{Reading, RuleReading, Spread, StoreReading, Times};
pub use record::Delayed;
pub use sentinels::SentinelMetrics;
pub use spans::SpanMetrics;
pub use tally::Around;
pub use xds::XdsMetrics;
