//! How the keys of a mapping are looked up, and how a value of each type is read once its key has been found.

use std::borrow::Cow;
use std::sync::Arc;

use super::document::{Node, Value};
use super::hints;
use super::keys::Section;
use super::place::Place;
use super::scalar::Plain;
use super::syntax;
use crate::rules::config::{FieldPath, Raw, Text};
use crate::rules::report::{Position, Problem, Report, Severity, escaped, quoted};

/// As many keys as the longest section has; a test sees to it.
const MAX_KEYS: usize = 22;

/// Blanks that are no blanks, and what has no width at all: they come by copying from elsewhere.
const INVISIBLE: [char; 8] =
    ['\u{a0}', '\u{ad}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{202f}', '\u{2060}', '\u{feff}'];

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
    section: &'static Section,
    values: [Option<&'n Node<'n>>; MAX_KEYS],
    /// What has been said of keys that mean nothing there.
    hints: Vec<String>,
}

impl<'n> Fields<'n, '_> {
    /// The value of a key; `None` where the key is missing or says nothing: `null`, `~`, or blank.
    pub(super) fn get(&self, key: &'static str) -> Option<Spot<'n, '_>> {
        let index = self.section.index(key)?;
        self.values[index].map(|node| Spot { node, path: self.path.key(key) })
    }

    /// What a key that must be there is where it is not. Where a hint names it, that has been reported already.
    pub(super) fn missing<T>(&self, key: &str) -> Raw<T> {
        let is_letter = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let names = |hint: &String| hint.split(|char| !is_letter(char)).any(|word| word == key);
        if self.hints.iter().any(names) { Raw::Unreadable } else { Raw::Missing }
    }
}

/// A file that is being read. A value of a type that it cannot have is reported, and is [`Raw::Unreadable`].
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

    /// Looks up the keys of a mapping and reports those that mean nothing there.
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
        let mut fields = Fields { path: spot.path, section, values: [None; MAX_KEYS], hints: Vec::new() };
        let mut own = [false; MAX_KEYS];
        for entry in entries.iter() {
            let Some(index) = name(&entry.key).and_then(|name| section.index(name)) else {
                fields.hints.extend(self.stray_key(spot, section, &entry.key));
                continue;
            };
            if own[index] {
                let message = "the same key stands above; only this last one counts".to_owned();
                self.add(Severity::Warning, entry.key.position, spot.path.key(section.keys[index].name), message);
            }
            own[index] = !entry.merged;
            fields.values[index] = (!entry.value.is_null()).then_some(&entry.value);
        }
        Some(fields)
    }

    /// Returns what an error says should be there instead.
    fn stray_key(&mut self, parent: Spot<'_, '_>, section: &Section, key: &Node<'_>) -> Option<String> {
        let Some(name) = name(key) else {
            let message = format!("a key must be a name, not {}", kind(key));
            self.add(Severity::Error, key.position, parent.path, message);
            return None;
        };
        let shown = escaped(name);
        let (severity, message) = hints::stray(section, name);
        let rest = message.strip_prefix("unknown key ").and_then(|rest| rest.strip_prefix(&quoted(name)));
        // A list of all keys is no hint at one of them.
        let hint = rest.filter(|rest| !rest.starts_with("; there")).map(str::to_owned);
        self.add(severity, key.position, parent.path.key(&shown), message);
        hint
    }

    /// The items of a list.
    pub(super) fn items<'n>(&mut self, spot: Spot<'n, '_>) -> Option<&'n [Node<'n>]> {
        match &spot.node.value {
            Value::List(items) => Some(items),
            // Somebody else has them.
            Value::Visited(_) => Some(&[]),
            _ => {
                self.error(spot, format!("must be a list, not {}", kind(spot.node)));
                None
            }
        }
    }

    /// A text. What YAML takes for a whole number or a truth value is text as it was written.
    pub(super) fn text<'n>(&mut self, spot: Spot<'n, '_>) -> Raw<Text<'n>> {
        match &spot.node.value {
            Value::Quoted(text) => return self.readable(spot, text),
            Value::Plain(text) if Plain::of(text) != Plain::Float => {
                if text.starts_with(['\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}', '\u{201e}', '\u{ab}']) {
                    let message = "these quotes are part of the text; those of YAML are \" and '".to_owned();
                    self.add(Severity::Warning, spot.node.position, spot.path, message);
                }
                return self.readable(spot, text);
            }
            Value::Plain(text) => {
                let text = escaped(text);
                let message = format!("YAML takes {text} for a floating-point number; a text needs quotes: \"{text}\"");
                self.error(spot, message);
            }
            Value::Map(entries) if entries.first().is_some_and(|entry| matches!(entry.key.value, Value::Map(_))) => {
                self.error(spot, "must be a text; {{ }} is a template that has not been rendered");
            }
            Value::List(_) | Value::Visited(_) | Value::Map(_) => {
                let message =
                    format!("must be a text, not {}; a text that begins with [ or {{ needs quotes", kind(spot.node));
                self.error(spot, message);
            }
        }
        Raw::Unreadable
    }

    /// A text. What nobody sees in it is pointed out.
    fn readable<'n>(&mut self, spot: Spot<'n, '_>, text: &'n str) -> Raw<Text<'n>> {
        if let Some(char) = text.chars().find(|char| INVISIBLE.contains(char)) {
            let message = format!("holds a character that nobody sees: {}", char.escape_unicode());
            self.add(Severity::Warning, spot.node.position, spot.path, message);
        }
        Raw::Given(Text::Borrowed(text))
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
pub(super) fn name<'n>(key: &'n Node<'_>) -> Option<&'n str> {
    match &key.value {
        Value::Plain(text) | Value::Quoted(text) => Some(text),
        Value::List(_) | Value::Visited(_) | Value::Map(_) => None,
    }
}

impl Node<'_> {
    /// Where a field stands; what is said of a missing field is said of the mapping that it is missing in. The way to
    /// this node is the path but for its last `steps`.
    pub(super) fn position_of(&self, path: &FieldPath<'_>, steps: usize) -> Position {
        let (Ok(node) | Err(node)) = self.find(path, steps);
        node.position
    }

    /// A field, or the last of what leads to it.
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

    /// It says nothing: `null`, `~`, or blank.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Plain(text) if Plain::of(text) == Plain::Null)
    }
}

/// What a message says instead of a value.
pub(super) fn kind(node: &Node<'_>) -> Cow<'static, str> {
    match &node.value {
        Value::Plain(text) => match Plain::of(text) {
            Plain::Null => "null".into(),
            Plain::Text => format!("the text {}", quoted(text)).into(),
            Plain::Bool(_) | Plain::Integer(_) | Plain::Float => escaped(text).into(),
        },
        Value::Quoted(text) => format!("the quoted text {}", quoted(text)).into(),
        Value::List(_) | Value::Visited(_) => "a list".into(),
        Value::Map(_) => "a mapping".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::source::yaml::keys::SECTIONS;

    #[test]
    fn there_is_room_for_the_keys_of_the_longest_section() {
        assert_eq!(SECTIONS.iter().map(|section| section.keys.len()).max(), Some(MAX_KEYS));
    }
}
