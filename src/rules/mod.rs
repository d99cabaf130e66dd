//! The rules: from what a source says to a compiled snapshot that never changes.
//!
//! A source (`source`: files of YAML, which [`load`] finds and reads and [`watch`] reads again when they change) hands
//! over raw domains ([`config`]). [`validate`] makes checked ones of them (`checked`), or says by a [`report`] what is
//! wrong, naming fields by their paths; the source knows where each stands. `compiled` is what requests are matched
//! with, and `trace` tells people how.

mod checked;
mod compiled;
pub mod config;
pub mod report;
mod source;
mod trace;
pub mod validate;
mod version;

pub use checked::{
    Allowance, Defaults, DescriptorConfig, DomainConfig, FailureMode, LimitConfig, Line, OriginConfig, Place,
    RuleConfig, RuleLimitConfig, Said, SaidBy,
};
pub use compiled::{Domain, Rule, RuleLimit, Rules, StatName};
pub use source::{load, schema, watch, xds};
pub use trace::{Budget, MatchedBy, Miss, Missed, Step, Trace};
