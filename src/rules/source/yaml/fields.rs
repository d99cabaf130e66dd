//! The keys of a rules file, and how a value is read once its key has been found: every complaint with the path to its place.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::document::{Node, Value};
use super::scalar::Plain;
use crate::rules::report::{Position, Problem, Report, Severity, escaped, quoted, unknown};

/// A mapping of the file, and the keys that mean something in it.
#[derive(Debug)]
pub(in crate::rules) struct Section {
    /// What a message calls it.
    name: &'static str,
    pub(in crate::rules) keys: &'static [&'static str],
}

pub(in crate::rules) const ROOT: Section =
    Section { name: "the file's top level", keys: &["domain", "defaults", "descriptors"] };
pub(in crate::rules) const DEFAULTS: Section = Section { name: "defaults", keys: &["algorithm", "failure_mode"] };
pub(in crate::rules) const DESCRIPTOR: Section = Section {
    name: "a descriptor",
    keys: &[
        "key",
        "value",
        "rate_limit",
        "rate_limits",
        "descriptors",
        "share_threshold",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "metadata",
    ],
};
pub(in crate::rules) const RATE_LIMIT: Section = Section {
    name: "rate_limit",
    keys: &[
        "name",
        "unit",
        "requests_per_unit",
        "unlimited",
        "replaces",
        "period",
        "algorithm",
        "cost",
        "burst",
        "max_delay",
        "initial",
        "segments",
        "weighting",
        "hold",
        "penalty",
        "lease",
        "failure_mode",
        "count_denied",
    ],
};
pub(in crate::rules) const PENALTY: Section = Section { name: "penalty", keys: &["after", "within", "ban", "extend"] };
pub(in crate::rules) const LEASE: Section = Section { name: "lease", keys: &["size", "ttl"] };
pub(in crate::rules) const REPLACES: Section = Section { name: "an item of replaces", keys: &["name"] };

const SECTIONS: [&Section; 7] = [&ROOT, &DEFAULTS, &DESCRIPTOR, &RATE_LIMIT, &PENALTY, &LEASE, &REPLACES];

/// As many keys as the longest section has.
const MAX_KEYS: usize = {
    let (mut max, mut section) = (0, 0);
    while section < SECTIONS.len() {
        if max < SECTIONS[section].keys.len() {
            max = SECTIONS[section].keys.len();
        }
        section += 1;
    }
    max
};

/// The way from the root to a node.
#[derive(Clone, Copy, Debug)]
pub(in crate::rules) enum Trail<'t> {
    Root,
    Key(&'t Trail<'t>, &'t str),
    Item(&'t Trail<'t>, usize),
}

impl fmt::Display for Trail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trail::Root => Ok(()),
            Trail::Key(Trail::Root, key) => f.write_str(key),
            Trail::Key(parent, key) => write!(f, "{parent}.{key}"),
            Trail::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// A node, and the way to it.
#[derive(Clone, Copy, Debug)]
pub(in crate::rules) struct Spot<'t> {
    pub(in crate::rules) node: &'t Node<'t>,
    pub(in crate::rules) trail: Trail<'t>,
}

impl<'t> Spot<'t> {
    /// The nodes of a list.
    pub(in crate::rules) fn item(&'t self, index: usize, node: &'t Node<'t>) -> Spot<'t> {
        Spot { node, trail: Trail::Item(&self.trail, index) }
    }
}

/// A mapping whose keys have been looked up.
#[derive(Debug)]
pub(in crate::rules) struct Fields<'t> {
    spot: &'t Spot<'t>,
    keys: &'static [&'static str],
    values: [Option<&'t Node<'t>>; MAX_KEYS],
}

impl Fields<'_> {
    /// The value of a key; `None` where the key is missing or says nothing: `null`, `~`, or blank.
    pub(in crate::rules) fn get(&self, key: &'static str) -> Option<Spot<'_>> {
        let index = self.keys.iter().position(|known| *known == key)?;
        self.values[index].map(|node| Spot { node, trail: Trail::Key(&self.spot.trail, key) })
    }

    /// Where a value would stand: what is said of a missing value is said of its mapping.
    pub(in crate::rules) fn place(&self, key: &'static str) -> Spot<'_> {
        self.get(key).unwrap_or(Spot { node: self.spot.node, trail: Trail::Key(&self.spot.trail, key) })
    }
}

/// A file that is being read. Where a value is not what it must be, that is reported, and `None` takes its place.
#[derive(Debug)]
pub(in crate::rules) struct File<'r> {
    pub(in crate::rules) name: Arc<Path>,
    pub(in crate::rules) report: &'r mut Report,
}

impl File<'_> {
    pub(in crate::rules) fn error(&mut self, spot: Spot<'_>, message: impl Into<String>) {
        self.add(Severity::Error, spot.node.position, spot.trail, message.into());
    }

    pub(in crate::rules) fn warn(&mut self, spot: Spot<'_>, message: impl Into<String>) {
        self.add(Severity::Warning, spot.node.position, spot.trail, message.into());
    }

    pub(in crate::rules) fn add(&mut self, severity: Severity, position: Position, trail: Trail<'_>, message: String) {
        let (file, position) = (Arc::clone(&self.name), Some(position));
        self.report.add(Problem { severity, file, position, path: trail.to_string(), message });
    }

    /// Looks up the keys of a mapping and reports those that mean nothing there.
    pub(in crate::rules) fn fields<'t>(&mut self, spot: &'t Spot<'t>, section: &'static Section) -> Option<Fields<'t>> {
        let Value::Map(entries) = &spot.node.value else {
            self.error(*spot, format!("must be a mapping, not {}", kind(spot.node)));
            return None;
        };
        let mut fields = Fields { spot, keys: section.keys, values: [None; MAX_KEYS] };
        let mut own = [false; MAX_KEYS];
        for entry in entries.iter() {
            let Some(index) = name(&entry.key).and_then(|name| section.keys.iter().position(|known| *known == name))
            else {
                self.stray_key(spot, section, &entry.key);
                continue;
            };
            if own[index] {
                let again = Spot { node: &entry.key, trail: Trail::Key(&spot.trail, section.keys[index]) };
                self.warn(again, "the same key stands above; only this last one counts");
            }
            own[index] = !entry.merged;
            fields.values[index] = (!entry.value.is_null()).then_some(&entry.value);
        }
        Some(fields)
    }

    fn stray_key(&mut self, parent: &Spot<'_>, section: &Section, key: &Node<'_>) {
        let Some(name) = name(key) else {
            self.error(Spot { node: key, ..*parent }, format!("a key must be a name, not {}", kind(key)));
            return;
        };
        let shown = escaped(name);
        let spot = Spot { node: key, trail: Trail::Key(&parent.trail, &shown) };
        let homes: Vec<_> = SECTIONS.iter().filter(|home| home.keys.contains(&name)).map(|home| home.name).collect();
        if homes.is_empty() {
            self.error(spot, unknown("key", name, section.keys));
        } else {
            let homes = homes.join(" or ");
            self.warn(spot, format!("does nothing here; it belongs in {homes}"));
        }
    }

    /// The items of a list.
    pub(in crate::rules) fn items<'t>(&mut self, spot: &Spot<'t>) -> &'t [Node<'t>] {
        match &spot.node.value {
            Value::List(items) => items,
            _ => {
                self.error(*spot, format!("must be a list, not {}", kind(spot.node)));
                &[]
            }
        }
    }

    /// A text. What YAML takes for a whole number or a truth value is text as it was written.
    pub(in crate::rules) fn text<'t>(&mut self, spot: Spot<'t>) -> Option<&'t str> {
        match &spot.node.value {
            Value::Quoted(text) => Some(text),
            Value::Plain(text) if Plain::of(text) != Plain::Float => Some(text),
            Value::Plain(text) => {
                let message = format!("YAML takes {text} for a floating-point number; a text needs quotes: \"{text}\"");
                self.error(spot, message);
                None
            }
            Value::List(_) | Value::Map(_) => {
                self.error(spot, format!("must be a text, not {}", kind(spot.node)));
                None
            }
        }
    }

    /// A value that must be there; `hint` tells what is missing where it is not.
    pub(in crate::rules) fn required<'t>(
        &mut self,
        fields: &'t Fields<'_>,
        key: &'static str,
        hint: &str,
    ) -> Option<Spot<'t>> {
        let found = fields.get(key);
        if found.is_none() {
            self.error(fields.place(key), format!("is missing: {hint}"));
        }
        found
    }

    /// A text that must be there and must not be empty.
    pub(in crate::rules) fn required_text<'t>(&mut self, fields: &'t Fields<'_>, key: &'static str) -> Option<&'t str> {
        let text = match fields.get(key) {
            Some(spot) => self.text(spot)?,
            None => "",
        };
        if text.is_empty() {
            self.error(fields.place(key), "is missing or empty");
            return None;
        }
        Some(text)
    }

    /// A whole number without quotes.
    pub(in crate::rules) fn number(&mut self, spot: Spot<'_>) -> Option<u32> {
        if let Value::Plain(text) = &spot.node.value
            && let Plain::Integer(number) = Plain::of(text)
            && let Ok(number) = u32::try_from(number)
        {
            return Some(number);
        }
        let octal = match &spot.node.value {
            Value::Plain(text) if text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                " (digits after a leading 0 are octal)"
            }
            _ => "",
        };
        let given = kind(spot.node);
        self.error(spot, format!("must be a whole number from 0 to {}, not {given}{octal}", u32::MAX));
        None
    }

    /// A length of time that a person can read: `90s`.
    pub(in crate::rules) fn length(&mut self, spot: Spot<'_>) -> Option<Duration> {
        let (Value::Plain(text) | Value::Quoted(text)) = &spot.node.value else {
            self.error(spot, format!("must be a length of time such as 90s, not {}", kind(spot.node)));
            return None;
        };
        let length = humantime::parse_duration(text);
        if let Err(error) = &length {
            let message = format!("{} is no length of time ({error}); write 500ms, 90s, 15m or 1h30m", quoted(text));
            self.error(spot, message);
        }
        length.ok()
    }

    /// Yes or no, without quotes.
    pub(in crate::rules) fn flag(&mut self, spot: Spot<'_>) -> Option<bool> {
        if let Value::Plain(text) = &spot.node.value
            && let Plain::Bool(flag) = Plain::of(text)
        {
            return Some(flag);
        }
        self.error(spot, format!("must be true or false, not {}", kind(spot.node)));
        None
    }

    /// Whether a flag is there and says yes.
    pub(in crate::rules) fn is_set(&mut self, fields: &Fields<'_>, key: &'static str) -> bool {
        fields.get(key).and_then(|spot| self.flag(spot)).unwrap_or(false)
    }

    /// The one of several that has this name.
    pub(in crate::rules) fn choice<T: Copy>(
        &mut self,
        spot: Spot<'_>,
        what: &str,
        all: &[T],
        name: fn(T) -> &'static str,
    ) -> Option<T> {
        let given = self.text(spot)?;
        let found = all.iter().copied().find(|one| name(*one) == given);
        if found.is_none() {
            let names: Vec<_> = all.iter().copied().map(name).collect();
            self.error(spot, unknown(what, given, &names));
        }
        found
    }
}

/// The text of a key.
fn name<'n>(key: &'n Node<'_>) -> Option<&'n str> {
    match &key.value {
        Value::Plain(text) | Value::Quoted(text) => Some(text),
        Value::List(_) | Value::Map(_) => None,
    }
}

impl Node<'_> {
    /// It says nothing: `null`, `~`, or blank.
    pub(in crate::rules) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Plain(text) if Plain::of(text) == Plain::Null)
    }
}

/// What a message says instead of a value.
pub(in crate::rules) fn kind(node: &Node<'_>) -> Cow<'static, str> {
    match &node.value {
        Value::Plain(text) => match Plain::of(text) {
            Plain::Null => "null".into(),
            Plain::Text => format!("the text {}", quoted(text)).into(),
            Plain::Bool(_) | Plain::Integer(_) | Plain::Float => escaped(text).into(),
        },
        Value::Quoted(text) => format!("the quoted text {}", quoted(text)).into(),
        Value::List(_) => "a list".into(),
        Value::Map(_) => "a mapping".into(),
    }
}
