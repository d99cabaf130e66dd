//! What rules say once `validate` has found nothing wrong with them: what is here can be put in force.

use crate::algorithm::{Algorithm, Limit, Penalty};
use crate::descriptor::Role;
use crate::lease::Lease;

/// A domain, every value checked.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainConfig {
    /// What requests call it.
    pub name: String,
    /// What a limit is where it does not say, an override among them.
    pub defaults: Defaults,
    /// The top level of the tree.
    pub descriptors: Vec<DescriptorConfig>,
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorConfig {
    /// The entry's key; `*` matches any characters.
    pub key: String,
    /// The entry's value; `*` matches any characters. `None`: any value.
    pub value: Option<String>,
    /// All values that match the wildcard share one counter.
    pub share_threshold: bool,
    /// The rule for requests that end here.
    pub rule: Option<RuleConfig>,
    /// The next level.
    pub descriptors: Vec<DescriptorConfig>,
}

/// What a node says about requests that end there.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleConfig {
    /// What a denial means for the request.
    pub role: Role,
    /// Every one of them must let the request pass. At least one; no two share a counter.
    pub limits: Vec<LimitConfig>,
}

/// One limit of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitConfig {
    /// Empty where it has none.
    pub name: String,
    /// How much may pass.
    pub allowance: Allowance,
    /// What it answers while the store is unavailable.
    pub failure_mode: FailureMode,
    /// Every hit counts so many.
    pub cost: u32,
    /// Negative hits are valid: a client can refund what it has taken, or what any other has.
    pub give_back: bool,
    /// What happens to those whom it denies again and again.
    pub penalty: Option<Penalty>,
    /// What a process may take in advance, to serve a hot key from memory.
    pub lease: Option<Lease>,
    /// Limits of these names do not apply to a request that this one applies to.
    pub replaces: Vec<String>,
}

/// How much may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Everything; the store is never asked.
    Unlimited,
    /// What the limit admits.
    Limited(Limit),
}

/// What a limit answers while the store is unavailable: after an error, a timeout, or while it is known to be down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FailureMode {
    /// The request passes.
    #[default]
    Open,
    /// The request is denied.
    Closed,
    /// This process decides by itself, by its share of the number.
    Local,
    /// The call fails with `UNAVAILABLE`, and the client decides.
    Error,
}

impl FailureMode {
    /// Every mode.
    pub const ALL: [FailureMode; 4] = [FailureMode::Open, FailureMode::Closed, FailureMode::Local, FailureMode::Error];

    /// The name in rules, settings and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            FailureMode::Open => "open",
            FailureMode::Closed => "closed",
            FailureMode::Local => "local",
            FailureMode::Error => "error",
        }
    }
}

/// What holds for a limit that does not say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// How it counts.
    pub algorithm: Algorithm,
    /// What it answers while the store is unavailable.
    pub failure_mode: FailureMode,
}

impl Default for Defaults {
    /// As the settings are by default.
    fn default() -> Self {
        Defaults { algorithm: Algorithm::SlidingWindow, failure_mode: FailureMode::Open }
    }
}
