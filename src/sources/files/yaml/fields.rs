//! Looks up the keys of a mapping, and reads values of each type.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::document::{Node, Value};
use super::hints;
use super::place::Place;
use super::scalar::Plain;
use super::syntax;
use crate::engine::rules::config::{FieldPath, Raw, Text};
use crate::engine::rules::report::{Position, Problem, Report, Severity, escaped, quoted};
use crate::engine::rules::section::{Key, Section};

/// Number of keys that most mappings have at most.
const KEYS: usize = 6;

/// Characters that look like a blank or have no width; they come from copying text from other programs.
const INVISIBLE: [char; 8] =
    ['\u{a0}', '\u{ad}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{202f}', '\u{2060}', '\u{feff}'];

/// A node and its path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot<'n, 'p> {
    pub(super) node: &'n Node<'n>,
    pub(super) path: FieldPath<'p>,
}

/// A key found in a mapping.
#[derive(Debug)]
struct Field<'n> {
    key: &'static Key,
    /// `None` if the value is empty: `null`, `~`, or blank.
    value: Option<&'n Node<'n>>,
    /// Whether it comes from a merge key, and so gives way to one of the mapping's own keys.
    is_merged: bool,
}

/// A mapping with its keys looked up.
#[derive(Debug)]
pub(super) struct Fields<'n, 'p> {
    path: FieldPath<'p>,
    /// The keys found.
    fields: SmallVec<[Field<'n>; KEYS]>,
    /// Hints given about keys that mean nothing in the mapping.
    hints: Vec<String>,
}

impl<'n> Fields<'n, '_> {
    /// Returns the value of a key, or `None` if the key is missing or empty: `null`, `~`, or blank.
    pub(super) fn get(&self, key: &'static str) -> Option<Spot<'n, '_>> {
        let field = self.fields.iter().find(|field| field.key.name == key)?;
        field.value.map(|node| Spot { node, path: self.path.key(key) })
    }

    /// Returns every key that has a value.
    pub(super) fn given(&self) -> impl Iterator<Item = (&'static Key, Spot<'n, '_>)> {
        let given = self.fields.iter().filter_map(|field| Some((field.key, field.value?)));
        given.map(|(key, node)| (key, Spot { node, path: self.path.key(key.name) }))
    }

    /// Returns the value for a missing required key. If a hint has named the key, its absence has been reported
    /// already.
    pub(super) fn missing<T>(&self, key: &str) -> Raw<T> {
        let is_letter = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let names = |hint: &String| hint.split(|char| !is_letter(char)).any(|word| word == key);
        if self.hints.iter().any(names) { Raw::Unreadable } else { Raw::Missing }
    }
}

/// A file being read. A value of the wrong type is reported, and becomes [`Raw::Unreadable`].
#[derive(Debug)]
pub(super) struct File<'r> {
    pub(super) place: Place,
    pub(super) report: &'r mut Report,
}

impl File<'_> {
    pub(super) fn error(&mut self, spot: Spot<'_, '_>, message: impl Into<String>) {
        self.add(Severity::Error, spot.node.position, spot.path, message.into());
    }

    pub(super) fn add(&mut self, severity: Severity, position: Position, path: FieldPath<'_>, message: String) {
        let (file, path) = (Arc::clone(&self.place.file), self.place.path(position, &path));
        let position = Some(self.place.position(position));
        self.report.add(Problem { severity, file, position, path, message });
    }

    /// Looks up the keys of a mapping, and reports unknown ones.
    pub(super) fn fields<'n, 'p>(&mut self, spot: Spot<'n, 'p>, section: &'static Section) -> Option<Fields<'n, 'p>> {
        let Value::Map(entries) = &spot.node.value else {
            let space = match &spot.node.value {
                Value::Plain(text) => syntax::without_space(text),
                _ => None,
            };
            let hint = space.map(|key| format!("; a space is missing after the colon: {key}: ..."));
            self.error(spot, format!("must be a mapping, not {}{}", kind(spot.node), hint.unwrap_or_default()));
            return None;
        };
        let mut fields = Fields { path: spot.path, fields: SmallVec::new(), hints: Vec::new() };
        for entry in entries.iter() {
            let Some(key) = name(&entry.key).and_then(|name| section.key(name)) else {
                fields.hints.extend(self.stray_key(spot, section, &entry.key));
                continue;
            };
            let value = (!entry.value.is_null()).then_some(&entry.value);
            let field = Field { key, value, is_merged: entry.merged };
            match fields.fields.iter_mut().find(|field| field.key.name == key.name) {
                None => fields.fields.push(field),
                Some(before) => {
                    if !before.is_merged {
                        let message = "the key occurs above as well; only this last occurrence counts".to_owned();
                        self.add(Severity::Warning, entry.key.position, spot.path.key(key.name), message);
                    }
                    *before = field;
                }
            }
        }
        Some(fields)
    }

    /// Reports a key that means nothing here. Returns the hint at the right key, if there is one.
    fn stray_key(&mut self, parent: Spot<'_, '_>, section: &Section, key: &Node<'_>) -> Option<String> {
        let Some(name) = name(key) else {
            let message = format!("a key must be a name, not {}", kind(key));
            self.add(Severity::Error, key.position, parent.path, message);
            return None;
        };
        let shown = escaped(name);
        let (severity, message) = hints::stray(section, name);
        let rest = message.strip_prefix("unknown key ").and_then(|rest| rest.strip_prefix(&quoted(name)));
        // A list of all keys is not a hint at one of them.
        let hint = rest.filter(|rest| !rest.starts_with("; there")).map(str::to_owned);
        self.add(severity, key.position, parent.path.key(&shown), message);
        hint
    }

    /// Returns the items of a list.
    pub(super) fn items<'n>(&mut self, spot: Spot<'n, '_>) -> Option<&'n [Node<'n>]> {
        match &spot.node.value {
            Value::List(items) => Some(items),
            // The visitor has taken its items.
            Value::Visited(_) => Some(&[]),
            _ => {
                self.error(spot, format!("must be a list, not {}", kind(spot.node)));
                None
            }
        }
    }

    /// Reads a text. A whole number or a truth value counts as the text that was written.
    pub(super) fn text<'n>(&mut self, spot: Spot<'n, '_>) -> Raw<Text<'n>> {
        match &spot.node.value {
            Value::Quoted(text) => return self.readable(spot, text),
            Value::Plain(text) if Plain::of(text) != Plain::Float => {
                if text.starts_with(['\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}', '\u{201e}', '\u{ab}']) {
                    let message = "these quotes are part of the text; YAML's quotes are \" and '".to_owned();
                    self.add(Severity::Warning, spot.node.position, spot.path, message);
                }
                return self.readable(spot, text);
            }
            Value::Plain(text) => {
                let text = escaped(text);
                let message =
                    format!("YAML reads {text} as a floating-point number; for a string write quotes: \"{text}\"");
                self.error(spot, message);
            }
            Value::Map(entries) if entries.first().is_some_and(|entry| matches!(entry.key.value, Value::Map(_))) => {
                self.error(spot, "must be a string; {{ }} is a template that has not been rendered");
            }
            Value::List(_) | Value::Visited(_) | Value::Map(_) => {
                let message = format!(
                    "must be a string, not {}; a string that begins with [ or {{ needs quotes",
                    kind(spot.node)
                );
                self.error(spot, message);
            }
        }
        Raw::Unreadable
    }

    /// Reads a text, with a warning about invisible characters.
    fn readable<'n>(&mut self, spot: Spot<'n, '_>, text: &'n str) -> Raw<Text<'n>> {
        if let Some(char) = text.chars().find(|char| INVISIBLE.contains(char)) {
            let message = format!("contains an invisible character: {}", char.escape_unicode());
            self.add(Severity::Warning, spot.node.position, spot.path, message);
        }
        Raw::Given(Text::Borrowed(text))
    }

    /// Reads a whole number without quotes, of `most` at most.
    pub(super) fn number(&mut self, spot: Spot<'_, '_>, most: u64) -> Raw<u64> {
        if let Value::Plain(text) = &spot.node.value
            && let Plain::Integer(number) = Plain::of(text)
            && let Some(number) = u64::try_from(number).ok().filter(|number| *number <= most)
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
        self.error(spot, format!("must be a whole number from 0 to {most}, not {given}{octal}"));
        Raw::Unreadable
    }

    /// Reads the text of a length of time, with or without quotes.
    pub(super) fn length<'n>(&mut self, spot: Spot<'n, '_>) -> Raw<Text<'n>> {
        let (Value::Plain(text) | Value::Quoted(text)) = &spot.node.value else {
            self.error(spot, format!("must be a duration such as 90s, not {}", kind(spot.node)));
            return Raw::Unreadable;
        };
        Raw::Given(Text::Borrowed(text))
    }

    /// Reads `true` or `false`, without quotes.
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

/// Returns the text of a key.
pub(super) fn name<'n>(key: &'n Node<'_>) -> Option<&'n str> {
    match &key.value {
        Value::Plain(text) | Value::Quoted(text) => Some(text),
        Value::List(_) | Value::Visited(_) | Value::Map(_) => None,
    }
}

impl Node<'_> {
    /// Returns the position of a field, or for a missing field the position of the mapping that lacks it. The last
    /// `steps` steps of the path lead from this node to the field.
    pub(super) fn position_of(&self, path: &FieldPath<'_>, steps: usize) -> Position {
        let (Ok(node) | Err(node)) = self.find(path, steps);
        node.position
    }

    /// Finds a field, or fails with the last existing node on its path.
    fn find(&self, path: &FieldPath<'_>, steps: usize) -> Result<&Node<'_>, &Node<'_>> {
        let Some(steps) = steps.checked_sub(1) else { return Ok(self) };
        match path {
            FieldPath::Root => Ok(self),
            FieldPath::Key(parent, key) => {
                let parent = self.find(parent, steps)?;
                let Value::Map(entries) = &parent.value else { return Err(parent) };
                let last = entries.iter().rev().find(|entry| name(&entry.key) == Some(key));
                last.map(|entry| &entry.value).filter(|value| !value.is_null()).ok_or(parent)
            }
            FieldPath::Item(parent, index) => {
                let parent = self.find(parent, steps)?;
                let Value::List(items) = &parent.value else { return Err(parent) };
                items.get(*index).ok_or(parent)
            }
        }
    }

    /// Returns whether it is empty: `null`, `~`, or blank.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Plain(text) if Plain::of(text) == Plain::Null)
    }
}

/// Describes a value for a message.
pub(super) fn kind(node: &Node<'_>) -> Cow<'static, str> {
    match &node.value {
        Value::Plain(text) => match Plain::of(text) {
            Plain::Null => "null".into(),
            Plain::Text => format!("the string {}", quoted(text)).into(),
            Plain::Bool(_) | Plain::Integer(_) | Plain::Float => escaped(text).into(),
        },
        Value::Quoted(text) => format!("the quoted string {}", quoted(text)).into(),
        Value::List(_) | Value::Visited(_) => "a list".into(),
        Value::Map(_) => "a mapping".into(),
    }
}
