//! The rules: from the domains that a source reads to a compiled snapshot that never changes.
//!
//! A source hands over raw domains ([`config`]). [`validate`] turns them into checked ones ([`checked`]), or reports
//! every mistake in a [`report`], by the path of its field; the source maps paths to positions in its files. [`keys`]
//! lists what rules may say; each option of a limit is a file in [`options`], and [`pairs`] is the table of those that
//! go together. Requests are matched with [`compiled`] rules, and `trace` explains to people how a request was matched.

pub mod checked;
pub mod compiled;
mod complaints;
pub mod config;
pub mod diff;
pub mod expect;
pub mod keys;
mod matching;
pub mod options;
pub mod pairs;
pub mod prices;
pub mod report;
pub mod section;
mod shares;
mod trace;
pub mod validate;
mod version;

pub use checked::{
    Allowance, Defaults, DescriptorConfig, DomainConfig, FailureMode, FixedWindows, LimitConfig, Months, OriginConfig,
    Place, RuleConfig, RuleLimitConfig, SettingOrigin, SettingOrigins,
};
pub use compiled::{Domain, Rule, RuleLimit, Rules, StatName};
pub use report::Line;
pub use shares::DomainShares;
pub use trace::{Budget, MatchedBy, Miss, Missed, Step, Trace};
