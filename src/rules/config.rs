//! What a domain says, from anywhere: plain values, as a source has them. Nothing of it is checked yet: see `validate`.

use std::borrow::Cow;
use std::fmt;

/// A value, as its source has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Raw<T> {
    /// It is not there, or says nothing.
    #[default]
    Missing,
    /// It is there and of a type that it cannot have. Its source has reported that.
    Unreadable,
    /// This.
    Given(T),
}

/// A text, which mostly borrows from what has been read.
pub type Text<'a> = Cow<'a, str>;

/// What a rule says beside its limits, for whoever reads the answers: whatever JSON has.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// A list, each item of which may be of a wrong type.
pub type List<T> = Raw<Vec<Raw<T>>>;

impl<T> Raw<T> {
    /// The value, where there is one.
    pub fn get(&self) -> Option<&T> {
        match self {
            Raw::Given(value) => Some(value),
            Raw::Missing | Raw::Unreadable => None,
        }
    }

    /// Nothing has been said.
    pub fn is_missing(&self) -> bool {
        matches!(self, Raw::Missing)
    }
}

/// A flag that is there and says yes.
impl Raw<bool> {
    /// Whether it is.
    pub fn is_set(&self) -> bool {
        self.get() == Some(&true)
    }
}

/// A domain, or the part of it that one file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDomain<'a> {
    /// What requests call it.
    pub domain: Raw<Text<'a>>,
    /// What holds for limits that do not say otherwise.
    pub defaults: Raw<RawDefaults<'a>>,
    /// The top level of the tree.
    pub descriptors: List<RawDescriptor<'a>>,
}

/// What holds for limits that do not say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDefaults<'a> {
    /// The name of an algorithm.
    pub algorithm: Raw<Text<'a>>,
    /// The name of a failure mode.
    pub failure_mode: Raw<Text<'a>>,
}

/// A node of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDescriptor<'a> {
    /// The entry's key; `*` matches any characters.
    pub key: Raw<Text<'a>>,
    /// The entry's value; `*` matches any characters.
    pub value: Raw<Text<'a>>,
    /// All values that match the wildcard share one counter.
    pub share_threshold: Raw<bool>,
    /// Statistics of the rule beside it name the values of requests, at every level.
    pub detailed_metric: Raw<bool>,
    /// Statistics of the rules here and below name the values of requests, at this level.
    pub value_to_metric: Raw<bool>,
    /// A denial is counted and reported only.
    pub shadow_mode: Raw<bool>,
    /// A request is denied where all such rules deny it.
    pub quota_mode: Raw<bool>,
    /// What an answer says where the descriptor passes.
    pub metadata: Raw<Box<Metadata>>,
    /// The limit.
    pub rate_limit: Raw<Box<RawLimit<'a>>>,
    /// Or several.
    pub rate_limits: List<RawLimit<'a>>,
    /// The next level.
    pub descriptors: List<RawDescriptor<'a>>,
}

/// A limit. Lengths of time are texts, such as `90s`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawLimit<'a> {
    /// What others call it.
    pub name: Raw<Text<'a>>,
    /// The name of a unit.
    pub unit: Raw<Text<'a>>,
    /// Hits in a unit or period.
    pub requests_per_unit: Raw<u32>,
    /// Nothing is limited.
    pub unlimited: Raw<bool>,
    /// Whose place it takes.
    pub replaces: List<RawReplaces<'a>>,
    /// A length, instead of a unit.
    pub period: Raw<Text<'a>>,
    /// The name of an algorithm.
    pub algorithm: Raw<Text<'a>>,
    /// What a hit counts.
    pub cost: Raw<u32>,
    /// Of a bucket.
    pub burst: Raw<u32>,
    /// Of a leaky bucket: a length.
    pub max_delay: Raw<Text<'a>>,
    /// Of a token bucket: what it holds at first.
    pub initial: Raw<Text<'a>>,
    /// Of a sliding window.
    pub segments: Raw<u32>,
    /// Of a sliding window.
    pub weighting: Raw<Text<'a>>,
    /// Of a fixed window: the name of a time zone.
    pub time_zone: Raw<Text<'a>>,
    /// Of concurrency: a length.
    pub hold: Raw<Text<'a>>,
    /// Whether negative hits are valid.
    pub give_back: Raw<bool>,
    /// What happens to clients that are denied again and again.
    pub penalty: Raw<RawPenalty<'a>>,
    /// What a process takes in advance.
    pub lease: Raw<RawLease<'a>>,
    /// What it takes is held by a replica of Redis, too.
    pub durable: Raw<bool>,
    /// What is kept of its use.
    pub usage: Raw<RawUsage<'a>>,
    /// The name of a failure mode.
    pub failure_mode: Raw<Text<'a>>,
    /// A denied request is charged, too.
    pub count_denied: Raw<bool>,
}

impl RawLimit<'_> {
    /// The keys that say something.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        let RawLimit { name, unit, requests_per_unit, unlimited, replaces, period, algorithm, cost, .. } = self;
        let RawLimit { burst, max_delay, initial, segments, weighting, hold, give_back, penalty, lease, .. } = self;
        let RawLimit { time_zone, durable, usage, failure_mode, count_denied, .. } = self;
        let keys = [
            ("name", name.is_missing()),
            ("unit", unit.is_missing()),
            ("requests_per_unit", requests_per_unit.is_missing()),
            ("unlimited", unlimited.is_missing()),
            ("replaces", replaces.is_missing()),
            ("period", period.is_missing()),
            ("algorithm", algorithm.is_missing()),
            ("cost", cost.is_missing()),
            ("burst", burst.is_missing()),
            ("max_delay", max_delay.is_missing()),
            ("initial", initial.is_missing()),
            ("segments", segments.is_missing()),
            ("weighting", weighting.is_missing()),
            ("time_zone", time_zone.is_missing()),
            ("hold", hold.is_missing()),
            ("give_back", give_back.is_missing()),
            ("penalty", penalty.is_missing()),
            ("lease", lease.is_missing()),
            ("durable", durable.is_missing()),
            ("usage", usage.is_missing()),
            ("failure_mode", failure_mode.is_missing()),
            ("count_denied", count_denied.is_missing()),
        ];
        keys.into_iter().filter_map(|(key, is_missing)| (!is_missing).then_some(key))
    }
}

/// An item of `replaces`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawReplaces<'a> {
    /// Whose place the limit takes.
    pub name: Raw<Text<'a>>,
}

/// A penalty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawPenalty<'a> {
    /// So many denials.
    pub after: Raw<u32>,
    /// In this length.
    pub within: Raw<Text<'a>>,
    /// Bring a ban of this length.
    pub ban: Raw<Text<'a>>,
    /// Every request during it begins it anew.
    pub extend: Raw<bool>,
}

/// A lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawLease<'a> {
    /// Hits that are taken in advance.
    pub size: Raw<u32>,
    /// The length for which they may be used.
    pub ttl: Raw<Text<'a>>,
}

/// What is kept of a limit's use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawUsage<'a> {
    /// The name of a period.
    pub by: Raw<Text<'a>>,
    /// The length for which its records are kept.
    pub keep: Raw<Text<'a>>,
}

/// The way from a domain to a field of it: `descriptors[2].rate_limit.unit`.
#[derive(Clone, Copy, Debug)]
pub enum FieldPath<'t> {
    /// The domain itself.
    Root,
    /// A field.
    Key(&'t FieldPath<'t>, &'t str),
    /// An item of a list.
    Item(&'t FieldPath<'t>, usize),
}

impl<'t> FieldPath<'t> {
    /// The way to a field of it.
    pub fn key(&'t self, key: &'t str) -> FieldPath<'t> {
        FieldPath::Key(self, key)
    }

    /// The way to an item of it.
    pub fn item(&'t self, index: usize) -> FieldPath<'t> {
        FieldPath::Item(self, index)
    }
}

impl FieldPath<'_> {
    /// How many steps it has.
    pub fn steps(&self) -> usize {
        match self {
            FieldPath::Root => 0,
            FieldPath::Key(parent, _) | FieldPath::Item(parent, _) => parent.steps() + 1,
        }
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldPath::Root => Ok(()),
            FieldPath::Key(FieldPath::Root, key) => f.write_str(key),
            FieldPath::Key(parent, key) => write!(f, "{parent}.{key}"),
            FieldPath::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}
