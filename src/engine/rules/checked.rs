//! Validated rules, which can be put in force.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::config::Metadata;
use super::expect::Expect;
use super::options::{self, RuleOptions};
use super::report::Line;
use crate::algorithm::{Algorithm, Limit, TimeZone};
use crate::check::Origin;
use crate::descriptor::{Role, Unit};

/// A validated domain.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainConfig {
    /// The name in requests.
    pub name: String,
    /// Values for limits that do not set them, including limits sent in requests.
    pub defaults: Defaults,
    /// The entries that each request must bring.
    pub expect: Option<Expect>,
    /// Its origins; each [`Place`] refers to one of these.
    pub origins: Vec<OriginConfig>,
    /// The top level of the tree.
    pub descriptors: Vec<DescriptorConfig>,
}

/// A file or another source of a domain or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginConfig {
    /// The name in messages: a file's path, or a resource's name.
    pub name: Arc<Path>,
    /// Line of the domain's name.
    pub domain: Line,
    /// Line of the algorithm in its `defaults`.
    pub algorithm: Line,
    /// Line of the failure mode in its `defaults`.
    pub failure_mode: Line,
    /// Line of the body of a denial in its `defaults`.
    pub denied_body: Line,
    /// Line of the lease in its `defaults`.
    pub lease: Line,
    /// Line of the own share in its `defaults`.
    pub own_share: Line,
}

/// The place of something in the loaded rules. It is small, because every rule has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Index of the origin: among those of its domain, and once in force among all ([`Rules::origin`]).
    ///
    /// [`Rules::origin`]: super::Rules::origin
    pub origin: u32,
    /// Line in the origin.
    pub line: Line,
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorConfig {
    /// Its place.
    pub place: Place,
    /// The entry's key; `*` matches any characters.
    pub key: Box<str>,
    /// The entry's value; `*` matches any characters, and `None` any value.
    pub value: Option<Box<str>>,
    /// Whether all values that match the wildcard share one counter.
    pub share_threshold: bool,
    /// Whether statistics of its rule have the values of requests, at every level.
    pub detailed_metric: bool,
    /// Whether statistics of the rules here and below have the values of requests at this level.
    pub value_to_metric: bool,
    /// The rule for requests that end here.
    pub rule: Option<RuleConfig>,
    /// The next level.
    pub descriptors: Vec<DescriptorConfig>,
}

impl DescriptorConfig {
    /// Returns whether it has neither a limit nor descriptors.
    pub(super) fn is_empty(&self) -> bool {
        self.rule.is_none() && self.descriptors.is_empty()
    }
}

/// The rule of a node, for requests that end there.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleConfig {
    /// The effect of a denial on the request.
    pub role: Role,
    /// Metadata of an answer if the descriptor passes; boxed, because few rules have any.
    pub metadata: Option<Box<Metadata>>,
    /// The limits, all of which must allow the request. At least one; no two share a counter.
    pub limits: Vec<RuleLimitConfig>,
}

impl RuleConfig {
    /// Returns the algorithm of each limit; `None` for one that limits nothing.
    pub fn algorithms(&self) -> impl Iterator<Item = Option<Algorithm>> + Clone {
        self.limits.iter().map(|limit| match &limit.config.allowance {
            Allowance::Limited(limit) => Some(limit.algorithm()),
            Allowance::Unlimited => None,
        })
    }

    /// Returns whether any limit is a budget.
    pub fn is_budget(&self) -> bool {
        self.algorithms().any(|algorithm| algorithm == Some(Algorithm::Budget))
    }
}

/// One limit of a rule: its own properties, and its settings, which equal limits may share. Few of a million rules have
/// settings that no other rule has.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleLimitConfig {
    /// Line, in the same origin as its descriptor.
    pub line: Line,
    /// The name, not empty.
    pub name: Option<Arc<str>>,
    /// The settings.
    pub config: Arc<LimitConfig>,
}

/// The settings of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitConfig {
    /// Where the settings come from that the limit may leave out.
    pub origins: SettingOrigins,
    /// The number of requests to allow.
    pub allowance: Allowance,
    /// The answer while the store is unavailable.
    pub failure_mode: FailureMode,
    /// Further options.
    pub options: RuleOptions,
    /// Names of limits that do not apply to a request that this one applies to.
    pub replaces: Vec<String>,
}

impl LimitConfig {
    /// Returns the origin of its counter's name: units and money have separate counters.
    pub fn origin(&self) -> Origin {
        if self.options.weigh_by.is_some() { Origin::Money } else { Origin::Rule }
    }

    /// Returns whether it is a budget without an end, whose top-ups customers have paid for.
    pub fn is_balance(&self) -> bool {
        matches!(&self.allowance, Allowance::Limited(limit) if limit.is_balance())
    }
}

/// Where the settings come from that a limit may leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SettingOrigins {
    /// The algorithm.
    pub algorithm: SettingOrigin,
    /// The failure mode.
    pub failure_mode: SettingOrigin,
    /// The time that a slot stays taken, for a limit with slots.
    pub hold: SettingOrigin,
    /// The body of a denial.
    pub denied_body: SettingOrigin,
    /// The lease.
    pub lease: SettingOrigin,
    /// The own share.
    pub own_share: SettingOrigin,
}

/// Where a setting of a limit comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SettingOrigin {
    /// The limit itself.
    Limit,
    /// The `defaults` of its file.
    Defaults,
    /// The process's settings, for all files.
    Setting,
    /// Nothing sets it, so the built-in value applies.
    #[default]
    BuiltIn,
}

/// The number of requests to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allowance {
    /// All requests; the store is never asked.
    Unlimited,
    /// The requests that the limit allows.
    Limited(Limit),
}

/// The answer of a limit while the store is unavailable: after an error or a timeout, or while the store is known to be
/// down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FailureMode {
    /// The request passes.
    #[default]
    Open,
    /// The request is denied.
    Closed,
    /// This process decides alone, by its share of the number.
    Local,
    /// The call fails with `UNAVAILABLE`, and the client decides.
    Error,
}

impl FailureMode {
    /// All modes.
    pub const ALL: [FailureMode; 4] = [FailureMode::Open, FailureMode::Closed, FailureMode::Local, FailureMode::Error];

    /// Returns the name in rules, settings and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            FailureMode::Open => "open",
            FailureMode::Closed => "closed",
            FailureMode::Local => "local",
            FailureMode::Error => "error",
        }
    }
}

/// Values for limits that do not set them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether a `fixed_window` charges a denied request.
    pub fixed_windows: FixedWindows,
    /// The months that a `fixed_window` with unit `month` counts by.
    pub months: Months,
    /// The failure mode.
    pub failure_mode: FailureMode,
    /// The body of a denial.
    pub denied_body: options::denied_body::Value,
}

impl Default for Defaults {
    /// Returns the defaults of the settings.
    fn default() -> Self {
        Defaults {
            algorithm: Algorithm::SlidingWindow,
            fixed_windows: FixedWindows::CountDenied,
            months: Months::ThirtyDays,
            failure_mode: FailureMode::Open,
            denied_body: None,
        }
    }
}

/// What a `fixed_window` charges if it does not set `count_denied`. The other algorithms charge no denied request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedWindows {
    /// Every request, as in `envoyproxy/ratelimit`.
    CountDenied,
    /// Requests that pass, as there with `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    CountPassed,
}

/// The months of a `fixed_window` that sets no `time_zone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Months {
    /// Thirty days each, from the Unix epoch on.
    ThirtyDays,
    /// Months of the calendar in UTC, as in `envoyproxy/ratelimit` with `USE_CALENDAR_MONTH_RATE_LIMIT`.
    Calendar,
}

impl Defaults {
    /// Returns the time zone of a limit that sets none, by its algorithm and the length of its windows.
    pub fn time_zone(&self, algorithm: Algorithm, period: Duration) -> Option<TimeZone> {
        let is_month = algorithm == Algorithm::FixedWindow && period == Unit::Month.duration();
        if is_month && self.months == Months::Calendar { TimeZone::named("UTC") } else { None }
    }

    /// Returns the `count_denied` of a limit that sets none; `None` leaves it to the algorithm.
    pub fn count_denied(&self, algorithm: Algorithm) -> Option<bool> {
        let stops = algorithm == Algorithm::FixedWindow && self.fixed_windows == FixedWindows::CountPassed;
        stops.then_some(false)
    }
}
