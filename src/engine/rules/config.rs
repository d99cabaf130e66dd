//! Raw domains: plain values as a source has them, not checked yet; see `validate`.

use std::borrow::Cow;
use std::fmt;

/// A value from a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Raw<T> {
    /// The value is missing or empty.
    #[default]
    Missing,
    /// The value has the wrong type. The source has reported this.
    Unreadable,
    /// The value.
    Given(T),
}

/// A text, usually borrowed from the source.
pub type Text<'a> = Cow<'a, str>;

/// Metadata of a rule for the answers: any JSON.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// A list with items that may have the wrong type.
pub type List<T> = Raw<Vec<Raw<T>>>;

impl<T> Raw<T> {
    /// Returns the value, if there is one.
    pub fn get(&self) -> Option<&T> {
        match self {
            Raw::Given(value) => Some(value),
            Raw::Missing | Raw::Unreadable => None,
        }
    }

    /// Applies `of` to the value.
    pub fn map<U>(self, of: impl FnOnce(T) -> U) -> Raw<U> {
        match self {
            Raw::Missing => Raw::Missing,
            Raw::Unreadable => Raw::Unreadable,
            Raw::Given(value) => Raw::Given(of(value)),
        }
    }

    /// Returns whether the value is missing.
    pub fn is_missing(&self) -> bool {
        matches!(self, Raw::Missing)
    }
}

/// A flag.
impl Raw<bool> {
    /// Returns whether the flag is given and true.
    pub fn is_set(&self) -> bool {
        self.get() == Some(&true)
    }
}

/// A domain, or the part of it in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDomain<'a> {
    /// The name in requests.
    pub domain: Raw<Text<'a>>,
    /// Values for limits that do not set them.
    pub defaults: Raw<RawDefaults<'a>>,
    /// Keys of the entries that each request must bring.
    pub expect: List<Text<'a>>,
    /// What happens to a request without one.
    pub on_missing: Raw<Text<'a>>,
    /// What units cost.
    pub prices: Raw<RawPrices<'a>>,
    /// The top level of the tree.
    pub descriptors: List<RawDescriptor<'a>>,
}

/// Values for limits that do not set them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDefaults<'a> {
    /// The name of an algorithm.
    pub algorithm: Raw<Text<'a>>,
    /// The name of a failure mode.
    pub failure_mode: Raw<Text<'a>>,
    /// The body of a denial.
    pub denied_body: Raw<RawMapping<'a>>,
    /// The part of a limit that may be with instances in advance.
    pub lease: Raw<RawMapping<'a>>,
    /// The part of a limit that instances admit by themselves.
    pub own_share: Raw<Text<'a>>,
}

/// A price, or prices by the values of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawPrices<'a> {
    /// A number as it was written.
    Price(Text<'a>),
    /// Prices by values, in the order of the source, each value once.
    Table(Vec<(Text<'a>, Raw<RawPrices<'a>>)>),
}

/// A node of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDescriptor<'a> {
    /// The entry's key; `*` matches any characters.
    pub key: Raw<Text<'a>>,
    /// The entry's value; `*` matches any characters.
    pub value: Raw<Text<'a>>,
    /// Whether all values that match the wildcard share one counter.
    pub share_threshold: Raw<bool>,
    /// Whether statistics of this descriptor's rule have the values of requests, at every level.
    pub detailed_metric: Raw<bool>,
    /// Whether statistics of the rules here and below have the values of requests at this level.
    pub value_to_metric: Raw<bool>,
    /// Whether a denial is only counted and reported.
    pub shadow_mode: Raw<bool>,
    /// Whether a request is denied only if all such rules deny it.
    pub quota_mode: Raw<bool>,
    /// Metadata of an answer if the descriptor passes.
    pub metadata: Raw<Box<Metadata>>,
    /// The limit.
    pub rate_limit: Raw<Box<RawLimit<'a>>>,
    /// Several limits.
    pub rate_limits: List<RawLimit<'a>>,
    /// The next level.
    pub descriptors: List<RawDescriptor<'a>>,
}

/// A limit, with the keys of `keys::RATE_LIMIT`.
pub type RawLimit<'a> = RawMapping<'a>;

/// A mapping of known keys (see [`keys`](super::keys)) from a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawMapping<'a>(Vec<(&'static str, Raw<RawValue<'a>>)>);

/// A value of such a mapping, with the type that its key takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawValue<'a> {
    /// A text, a name, or a length of time such as `90s`.
    Text(Text<'a>),
    /// A whole number below 2^53; below 2^32 unless the key takes a wide one.
    Number(u64),
    /// A truth value.
    Flag(bool),
    /// A mapping of known keys.
    Mapping(RawMapping<'a>),
    /// A list of texts.
    Names(Vec<Raw<Text<'a>>>),
    /// A list of mappings of known keys.
    List(Vec<Raw<RawMapping<'a>>>),
    /// A mapping of any keys.
    Any(Box<Metadata>),
}

impl<'a> RawMapping<'a> {
    /// Adds the value of a key.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: Raw<RawValue<'a>>) -> RawMapping<'a> {
        self.set(key, value);
        self
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &'static str, value: Raw<RawValue<'a>>) {
        self.0.retain(|(other, _)| *other != key);
        if !value.is_missing() {
            self.0.push((key, value));
        }
    }

    /// Returns the keys that have values.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(key, _)| *key)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> &Raw<RawValue<'a>> {
        self.0.iter().find(|(other, _)| *other == key).map_or(&Raw::Missing, |(_, value)| value)
    }

    /// Returns the text of a key that takes one.
    pub fn text(&self, key: &str) -> Raw<&str> {
        self.of_type(key, |value| if let RawValue::Text(text) = value { Some(&**text) } else { None })
    }

    /// Returns the number of a key that takes one of 32 bits.
    pub fn number(&self, key: &str) -> Raw<u32> {
        self.of_type(key, |value| if let RawValue::Number(number) = value { u32::try_from(*number).ok() } else { None })
    }

    /// Returns the number of a key that takes one below 2^53.
    pub fn wide_number(&self, key: &str) -> Raw<u64> {
        self.of_type(key, |value| if let RawValue::Number(number) = value { Some(*number) } else { None })
    }

    /// Returns the truth value of a key that takes one.
    pub fn flag(&self, key: &str) -> Raw<bool> {
        self.of_type(key, |value| if let RawValue::Flag(flag) = value { Some(*flag) } else { None })
    }

    /// Returns the mapping of a key that takes one.
    pub fn mapping(&self, key: &str) -> Raw<&RawMapping<'a>> {
        self.of_type(key, |value| if let RawValue::Mapping(mapping) = value { Some(mapping) } else { None })
    }

    /// Returns the list of a key that takes one.
    pub fn list(&self, key: &str) -> Raw<&[Raw<RawMapping<'a>>]> {
        self.of_type(key, |value| if let RawValue::List(list) = value { Some(&**list) } else { None })
    }

    /// Returns a value of the type that the key takes. A source reads no other type.
    fn of_type<'v, T>(&'v self, key: &str, of: impl FnOnce(&'v RawValue<'a>) -> Option<T>) -> Raw<T> {
        match self.get(key) {
            Raw::Missing => Raw::Missing,
            Raw::Unreadable => Raw::Unreadable,
            Raw::Given(value) => of(value).map_or(Raw::Unreadable, Raw::Given),
        }
    }
}

/// The path from a domain to one of its fields: `descriptors[2].rate_limit.unit`.
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
    /// Returns the path of a field.
    pub fn key(&'t self, key: &'t str) -> FieldPath<'t> {
        FieldPath::Key(self, key)
    }

    /// Returns the path of an item.
    pub fn item(&'t self, index: usize) -> FieldPath<'t> {
        FieldPath::Item(self, index)
    }
}

impl FieldPath<'_> {
    /// Returns the number of steps.
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
