//! The keys of a rules file, and how a value of each type is read once its key has been found.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use super::document::{Node, Value};
use super::scalar::Plain;
use crate::rules::config::{FieldPath, Raw, Text};
use crate::rules::report::{Position, Problem, Report, Severity, escaped, quoted, unknown};

/// A mapping of the file, and the keys that mean something in it.
#[derive(Debug)]
pub(super) struct Section {
    /// What a message calls it.
    name: &'static str,
    keys: &'static [&'static str],
}

pub(super) const ROOT: Section = Section { name: "the file's top level", keys: &["domain", "defaults", "descriptors"] };
pub(super) const DEFAULTS: Section = Section { name: "defaults", keys: &["algorithm", "failure_mode"] };
pub(super) const DESCRIPTOR: Section = Section {
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
pub(super) const RATE_LIMIT: Section = Section {
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
        "give_back",
        "penalty",
        "lease",
        "failure_mode",
        "count_denied",
    ],
};
pub(super) const PENALTY: Section = Section { name: "penalty", keys: &["after", "within", "ban", "extend"] };
pub(super) const LEASE: Section = Section { name: "lease", keys: &["size", "ttl"] };
pub(super) const REPLACES: Section = Section { name: "an item of replaces", keys: &["name"] };

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

/// A node, and the way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot<'n, 'p> {
    pub(super) node: &'n Node<'n>,
    pub(super) path: FieldPath<'p>,
}

/// A mapping whose keys have been looked up.
#[derive(Debug)]
pub(super) struct Fields<'n, 'p> {
    path: FieldPath<'p>,
    keys: &'static [&'static str],
    values: [Option<&'n Node<'n>>; MAX_KEYS],
}

impl<'n> Fields<'n, '_> {
    /// The value of a key; `None` where the key is missing or says nothing: `null`, `~`, or blank.
    pub(super) fn get(&self, key: &'static str) -> Option<Spot<'n, '_>> {
        let index = self.keys.iter().position(|known| *known == key)?;
        self.values[index].map(|node| Spot { node, path: self.path.key(key) })
    }
}

/// A file that is being read. A value of a type that it cannot have is reported, and is [`Raw::Unreadable`].
#[derive(Debug)]
pub(super) struct File<'r> {
    pub(super) name: Arc<Path>,
    pub(super) report: &'r mut Report,
}

impl File<'_> {
    fn error(&mut self, spot: Spot<'_, '_>, message: impl Into<String>) {
        self.add(Severity::Error, spot.node.position, spot.path, message.into());
    }

    pub(super) fn add(&mut self, severity: Severity, position: Position, path: FieldPath<'_>, message: String) {
        let (file, position) = (Arc::clone(&self.name), Some(position));
        self.report.add(Problem { severity, file, position, path: path.to_string(), message });
    }

    /// Looks up the keys of a mapping and reports those that mean nothing there.
    pub(super) fn fields<'n, 'p>(&mut self, spot: Spot<'n, 'p>, section: &'static Section) -> Option<Fields<'n, 'p>> {
        let Value::Map(entries) = &spot.node.value else {
            self.error(spot, format!("must be a mapping, not {}", kind(spot.node)));
            return None;
        };
        let mut fields = Fields { path: spot.path, keys: section.keys, values: [None; MAX_KEYS] };
        let mut own = [false; MAX_KEYS];
        for entry in entries.iter() {
            let Some(index) = name(&entry.key).and_then(|name| section.keys.iter().position(|known| *known == name))
            else {
                self.stray_key(spot, section, &entry.key);
                continue;
            };
            if own[index] {
                let message = "the same key stands above; only this last one counts".to_owned();
                self.add(Severity::Warning, entry.key.position, spot.path.key(section.keys[index]), message);
            }
            own[index] = !entry.merged;
            fields.values[index] = (!entry.value.is_null()).then_some(&entry.value);
        }
        Some(fields)
    }

    fn stray_key(&mut self, parent: Spot<'_, '_>, section: &Section, key: &Node<'_>) {
        let Some(name) = name(key) else {
            let message = format!("a key must be a name, not {}", kind(key));
            self.add(Severity::Error, key.position, parent.path, message);
            return;
        };
        let shown = escaped(name);
        let homes: Vec<_> = SECTIONS.iter().filter(|home| home.keys.contains(&name)).map(|home| home.name).collect();
        let (severity, message) = if homes.is_empty() {
            (Severity::Error, unknown("key", name, section.keys))
        } else {
            (Severity::Warning, format!("does nothing here; it belongs in {}", homes.join(" or ")))
        };
        self.add(severity, key.position, parent.path.key(&shown), message);
    }

    /// The items of a list.
    pub(super) fn items<'n>(&mut self, spot: Spot<'n, '_>) -> Option<&'n [Node<'n>]> {
        match &spot.node.value {
            Value::List(items) => Some(items),
            _ => {
                self.error(spot, format!("must be a list, not {}", kind(spot.node)));
                None
            }
        }
    }

    /// What must be a mapping, whatever it holds.
    pub(super) fn mapping(&mut self, spot: Spot<'_, '_>) {
        if !matches!(spot.node.value, Value::Map(_)) {
            self.error(spot, format!("must be a mapping, not {}", kind(spot.node)));
        }
    }

    /// A text. What YAML takes for a whole number or a truth value is text as it was written.
    pub(super) fn text<'n>(&mut self, spot: Spot<'n, '_>) -> Raw<Text<'n>> {
        match &spot.node.value {
            Value::Quoted(text) => return Raw::Given(Text::Borrowed(text)),
            Value::Plain(text) if Plain::of(text) != Plain::Float => return Raw::Given(Text::Borrowed(text)),
            Value::Plain(text) => {
                let text = escaped(text);
                let message = format!("YAML takes {text} for a floating-point number; a text needs quotes: \"{text}\"");
                self.error(spot, message);
            }
            Value::List(_) | Value::Map(_) => self.error(spot, format!("must be a text, not {}", kind(spot.node))),
        }
        Raw::Unreadable
    }

    /// A whole number without quotes.
    pub(super) fn number(&mut self, spot: Spot<'_, '_>) -> Raw<u32> {
        if let Value::Plain(text) = &spot.node.value
            && let Plain::Integer(number) = Plain::of(text)
            && let Ok(number) = u32::try_from(number)
        {
            return Raw::Given(number);
        }
        let octal = match &spot.node.value {
            Value::Plain(text) if text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                " (digits after a leading 0 are octal)"
            }
            _ => "",
        };
        let given = kind(spot.node);
        self.error(spot, format!("must be a whole number from 0 to {}, not {given}{octal}", u32::MAX));
        Raw::Unreadable
    }

    /// The text of a length of time, with or without quotes.
    pub(super) fn length<'n>(&mut self, spot: Spot<'n, '_>) -> Raw<Text<'n>> {
        let (Value::Plain(text) | Value::Quoted(text)) = &spot.node.value else {
            self.error(spot, format!("must be a length of time such as 90s, not {}", kind(spot.node)));
            return Raw::Unreadable;
        };
        Raw::Given(Text::Borrowed(text))
    }

    /// Yes or no, without quotes.
    pub(super) fn flag(&mut self, spot: Spot<'_, '_>) -> Raw<bool> {
        if let Value::Plain(text) = &spot.node.value
            && let Plain::Bool(flag) = Plain::of(text)
        {
            return Raw::Given(flag);
        }
        self.error(spot, format!("must be true or false, not {}", kind(spot.node)));
        Raw::Unreadable
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
    /// Where a field stands; what is said of a missing field is said of the mapping that it is missing in.
    pub(super) fn position_of(&self, path: &FieldPath<'_>) -> Position {
        let (Ok(node) | Err(node)) = self.find(path);
        node.position
    }

    /// A field, or the last of what leads to it.
    fn find(&self, path: &FieldPath<'_>) -> Result<&Node<'_>, &Node<'_>> {
        match path {
            FieldPath::Root => Ok(self),
            FieldPath::Key(parent, key) => {
                let parent = self.find(parent)?;
                let Value::Map(entries) = &parent.value else { return Err(parent) };
                let last = entries.iter().rev().find(|entry| name(&entry.key) == Some(key));
                last.map(|entry| &entry.value).filter(|value| !value.is_null()).ok_or(parent)
            }
            FieldPath::Item(parent, index) => {
                let parent = self.find(parent)?;
                let Value::List(items) = &parent.value else { return Err(parent) };
                items.get(*index).ok_or(parent)
            }
        }
    }

    /// It says nothing: `null`, `~`, or blank.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Plain(text) if Plain::of(text) == Plain::Null)
    }
}

/// What a message says instead of a value.
fn kind(node: &Node<'_>) -> Cow<'static, str> {
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
