//! What rules say once `validate` has found nothing wrong with them: what is here can be put in force.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use super::config::Metadata;
use crate::algorithm::{Algorithm, Limit, Penalty};
use crate::descriptor::Role;
use crate::lease::Lease;
use crate::usage::Usage;

/// A domain, every value checked.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainConfig {
    /// What requests call it.
    pub name: String,
    /// What a limit is where it does not say, an override among them.
    pub defaults: Defaults,
    /// Where it comes from; a [`Place`] is in one of these.
    pub origins: Vec<OriginConfig>,
    /// The top level of the tree.
    pub descriptors: Vec<DescriptorConfig>,
}

/// A file, or whatever else a domain or a part of one comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginConfig {
    /// What messages call it: a file's path, a resource's name.
    pub name: Arc<Path>,
    /// Where it names the domain.
    pub domain: Line,
    /// Where its `defaults` name an algorithm.
    pub algorithm: Line,
    /// Where its `defaults` name a failure mode.
    pub failure_mode: Line,
}

/// A line of an origin, counted from 1; `None` where it has no lines, or does not say the thing.
pub type Line = Option<NonZeroU32>;

/// Where something stands in what was loaded. It is small, because every rule has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The index of the origin: among those of its domain, and in force among all ([`Rules::origin`]).
    ///
    /// [`Rules::origin`]: super::Rules::origin
    pub origin: u32,
    /// The line in it.
    pub line: Line,
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorConfig {
    /// Where it stands.
    pub place: Place,
    /// The entry's key; `*` matches any characters.
    pub key: Box<str>,
    /// The entry's value; `*` matches any characters. `None`: any value.
    pub value: Option<Box<str>>,
    /// All values that match the wildcard share one counter.
    pub share_threshold: bool,
    /// Statistics of its rule name the values of requests, at every level.
    pub detailed_metric: bool,
    /// Statistics of the rules here and below name the values of requests, at this level.
    pub value_to_metric: bool,
    /// The rule for requests that end here.
    pub rule: Option<RuleConfig>,
    /// The next level.
    pub descriptors: Vec<DescriptorConfig>,
}

impl DescriptorConfig {
    /// It has neither a limit nor descriptors.
    pub(super) fn is_empty(&self) -> bool {
        self.rule.is_none() && self.descriptors.is_empty()
    }
}

/// What a node says about requests that end there.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleConfig {
    /// What a denial means for the request.
    pub role: Role,
    /// What an answer says where the descriptor passes; boxed, because few rules say anything.
    pub metadata: Option<Box<Metadata>>,
    /// Every one of them must let the request pass. At least one; no two share a counter.
    pub limits: Vec<RuleLimitConfig>,
}

/// One limit of a rule: what is its own, and what it says, which limits that say the same may share. Of a million
/// rules few say something that no other does.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleLimitConfig {
    /// Where it stands, in the same origin as its descriptor.
    pub line: Line,
    /// Not empty.
    pub name: Option<Arc<str>>,
    /// What it says.
    pub config: Arc<LimitConfig>,
}

/// What a limit says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitConfig {
    /// Who says what it need not say itself.
    pub said: Said,
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
    /// It lets pass only what a replica of Redis has heard of.
    pub durable: bool,
    /// What is kept of its use.
    pub usage: Option<Usage>,
    /// Limits of these names do not apply to a request that this one applies to.
    pub replaces: Vec<String>,
}

/// Who says what a limit need not say itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Said {
    /// How it counts.
    pub algorithm: SaidBy,
    /// What it answers while the store is unavailable.
    pub failure_mode: SaidBy,
    /// How long a slot stays taken, where it counts slots.
    pub hold: SaidBy,
}

/// Who says a part of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SaidBy {
    /// The limit.
    Limit,
    /// The `defaults` of its file.
    Defaults,
    /// The setting that holds for all files.
    Setting,
    /// Nobody, and so it is what it always is.
    #[default]
    Nobody,
}

/// How much may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
