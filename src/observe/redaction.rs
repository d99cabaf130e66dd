//! Redaction of values from clients for people and other programs: values are shown in plain text, as a keyed hash, or
//! not at all. Rules may contain such values, too, so the labels of rules are redacted the same way.

use std::borrow::Cow;
use std::fmt;

use crate::engine::asked::Source;
use crate::engine::descriptor::Entry;
use crate::engine::rules::Rule;

/// Number of bytes of a hash that are shown. Two values have the same hash with a probability of one in 2^64 values.
const HASH_BYTES: usize = 16;

/// How values are shown, with the key of hashes.
#[derive(Clone, Default)]
pub enum Values {
    /// In plain text.
    #[default]
    Plain,
    /// As the first half of their BLAKE3 hash with this key, in hexadecimal digits.
    Hashed([u8; blake3::KEY_LEN]),
    /// Not at all.
    Hidden,
}

/// Returns whether a value looks like a hash from [`Values::Hashed`]: it has the same length and digits.
pub fn looks_hashed(value: &str) -> bool {
    value.len() == 2 * HASH_BYTES && value.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// How values are shown, without the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// In plain text.
    #[default]
    Plain,
    /// As a hash.
    Hashed,
    /// Not at all.
    Hidden,
}

impl Shown {
    /// All values.
    pub const ALL: [Shown; 3] = [Shown::Plain, Shown::Hashed, Shown::Hidden];

    /// Returns the name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Shown::Plain => "plain",
            Shown::Hashed => "hashed",
            Shown::Hidden => "hidden",
        }
    }
}

impl Values {
    /// Creates hashing with a key derived from this text: its BLAKE3 hash.
    pub fn hashed(text: &str) -> Values {
        Values::Hashed(*blake3::hash(text.as_bytes()).as_bytes())
    }

    /// Returns the shown form of a value; `None` if it is hidden.
    pub fn shown<'v>(&self, value: &'v str) -> Option<Cow<'v, str>> {
        match self {
            Values::Plain => Some(Cow::Borrowed(value)),
            Values::Hashed(key) => {
                let hash = blake3::keyed_hash(key, value.as_bytes());
                Some(Cow::Owned(hash.to_hex()[..2 * HASH_BYTES].to_owned()))
            }
            Values::Hidden => None,
        }
    }

    /// Returns each entry's key with the shown form of its value.
    pub fn of_entries<'e>(&self, entries: &'e [Entry]) -> impl Iterator<Item = (&'e str, Option<Cow<'e, str>>)> {
        entries.iter().map(|Entry { key, value }| (key.as_str(), self.shown(value)))
    }

    /// Returns the label of a limit, see [`Source::label`]. A name from the rules is not redacted; the values in a path
    /// are.
    pub fn label<'s>(&self, source: Source<'s>) -> Cow<'s, str> {
        let label = source.label();
        let (Source::Rule(rule, limit), false) = (source, matches!(self, Values::Plain)) else { return label.into() };
        let suffix = label.strip_prefix(&*rule.path);
        match suffix {
            Some(suffix) if rule.keys_and_values().any(|(_, value)| value.is_some()) && limit.name() != label => {
                format!("{}{suffix}", self.path(rule)).into()
            }
            _ => label.into(),
        }
    }

    fn path(&self, rule: &Rule) -> String {
        let level = |(key, value): (&str, Option<&str>)| match value.and_then(|value| self.shown(value)) {
            Some(value) => format!("{key}={value}"),
            None => key.to_owned(),
        };
        rule.keys_and_values().map(level).collect::<Vec<_>>().join("|")
    }
}

/// Formats without the key.
impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Values::Plain => "Plain",
            Values::Hashed(_) => "Hashed",
            Values::Hidden => "Hidden",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_what_b3sum_says_of_the_value_under_the_hash_of_the_key() {
        let key = blake3::hash(b"a key of sixteen");
        let expected = blake3::keyed_hash(key.as_bytes(), b"ann").to_hex();
        let values = Values::hashed("a key of sixteen");
        assert_eq!(values.shown("ann").as_deref(), Some(&expected[..32]));
        assert_ne!(Values::hashed("another key here").shown("ann"), values.shown("ann"));
        assert_eq!(format!("{values:?}"), "Hashed");
    }
}
