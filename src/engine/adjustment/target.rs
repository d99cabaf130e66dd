//! What an adjustment changes: everything, a domain, a rule, or descriptors, exactly or by patterns.

use std::fmt;

use crate::descriptor::{Entry, Text};
use crate::printable::printable;
use crate::wildcard::Wildcard;

/// The limits that an adjustment changes, from the widest target to the narrowest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// All limits.
    All,
    /// All limits for requests of this domain.
    Domain(String),
    /// The limits of the rule with this path, or the limit with this label.
    Rule {
        /// Domain of the rule.
        domain: String,
        /// Path or label.
        rule: String,
    },
    /// The limits of these descriptors.
    Descriptors {
        /// The domain in requests.
        domain: String,
        /// At least one.
        descriptors: Vec<DescriptorPattern>,
    },
}

/// A descriptor, or all that are alike: exactly these keys in this order, each with a value that matches. At least one
/// entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DescriptorPattern(pub Vec<EntryPattern>);

/// An entry, or all that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryPattern {
    /// The key.
    pub key: Text,
    /// The values.
    pub value: ValuePattern,
}

/// The values of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValuePattern {
    /// This value. A `*` in it is an ordinary character, which a client may have sent.
    Exactly(Text),
    /// All values that match.
    Like(Wildcard),
}

impl ValuePattern {
    /// Returns whether a value is among them.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            ValuePattern::Exactly(one) => one == value,
            ValuePattern::Like(wildcard) => wildcard.matches(value),
        }
    }
}

impl EntryPattern {
    /// Returns whether an entry is among them.
    pub fn matches(&self, entry: &Entry) -> bool {
        self.key == entry.key && self.value.matches(&entry.value)
    }

    /// Returns the entry if it is a single one.
    pub fn exact(&self) -> Option<Entry> {
        match &self.value {
            ValuePattern::Exactly(value) => Some(Entry { key: self.key.clone(), value: value.clone() }),
            ValuePattern::Like(_) => None,
        }
    }
}

impl DescriptorPattern {
    /// Returns exactly this descriptor.
    pub fn of(entries: &[Entry]) -> DescriptorPattern {
        let entries = entries
            .iter()
            .map(|Entry { key, value }| EntryPattern { key: key.clone(), value: ValuePattern::Exactly(value.clone()) });
        DescriptorPattern(entries.collect())
    }

    /// Returns whether a descriptor with these entries is among them.
    pub fn matches(&self, entries: &[Entry]) -> bool {
        self.0.len() == entries.len() && self.0.iter().zip(entries).all(|(pattern, entry)| pattern.matches(entry))
    }

    /// Returns the entries if it is a single descriptor.
    pub fn exact(&self) -> Option<Vec<Entry>> {
        self.0.iter().map(EntryPattern::exact).collect()
    }

    /// Returns the keys, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|entry| entry.key.as_str())
    }
}

impl Target {
    /// Returns the target that is one descriptor.
    pub fn descriptor(domain: &str, entries: &[Entry]) -> Target {
        Target::Descriptors { domain: domain.to_owned(), descriptors: vec![DescriptorPattern::of(entries)] }
    }

    /// Returns the domain; `None` for all limits.
    pub fn domain(&self) -> Option<&str> {
        match self {
            Target::All => None,
            Target::Domain(domain) | Target::Rule { domain, .. } | Target::Descriptors { domain, .. } => Some(domain),
        }
    }

    /// Returns the descriptors; none for wider targets.
    pub fn descriptors(&self) -> &[DescriptorPattern] {
        match self {
            Target::Descriptors { descriptors, .. } => descriptors,
            Target::All | Target::Domain(_) | Target::Rule { .. } => &[],
        }
    }

    /// Returns whether one target is written for something that the other is written for, too.
    pub fn shares_with(&self, other: &Target) -> bool {
        let has_one = || self.descriptors().iter().any(|one| other.descriptors().contains(one));
        self == other || (self.domain() == other.domain() && has_one())
    }

    /// Describes the target without any values of descriptors.
    pub fn without_values(&self) -> String {
        match self {
            Target::All => "everything".to_owned(),
            Target::Domain(domain) => format!("domain {domain}"),
            Target::Rule { domain, rule } => format!("rule {domain}/{rule}"),
            Target::Descriptors { domain, descriptors } => {
                let keys = |descriptor: &DescriptorPattern| descriptor.keys().collect::<Vec<_>>().join("|");
                let mut names: Vec<String> = descriptors.iter().map(keys).collect();
                names.sort();
                names.dedup();
                let names = names.join(" + ");
                match &**descriptors {
                    [one] if one.exact().is_some() => format!("one descriptor {domain}/{names}"),
                    [_] => format!("descriptors by a pattern {domain}/{names}"),
                    several => format!("{} descriptors {domain}/{names}", several.len()),
                }
            }
        }
    }
}

/// Formats the target for a terminal: see [`printable`].
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Target::Descriptors { domain, descriptors } => {
                let descriptors = descriptors.iter().map(ToString::to_string);
                format!("{domain}: {}", descriptors.collect::<Vec<_>>().join(" + "))
            }
            target => target.without_values(),
        };
        f.write_str(&printable(&words))
    }
}

/// Writes it as in commands: `user=ann`, or with a pattern `user~acme_*`.
impl fmt::Display for DescriptorPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, EntryPattern { key, value }) in self.0.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { " " })?;
            match value {
                ValuePattern::Exactly(value) => write!(f, "{key}={value}")?,
                ValuePattern::Like(wildcard) => write!(f, "{key}~{wildcard}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(key: &str, pattern: &str) -> EntryPattern {
        EntryPattern { key: key.into(), value: ValuePattern::Like(Wildcard::new(pattern)) }
    }

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.into(), value: value.into() }
    }

    #[test]
    fn a_target_moves_no_cursor() {
        let (domain, text) = ("a\n".to_owned(), "\u{1b}[2J".to_owned());
        for target in [
            Target::Domain(domain.clone()),
            Target::Rule { domain: domain.clone(), rule: text.clone() },
            Target::descriptor(&domain, &[entry(&text, &text)]),
            Target::Descriptors { domain, descriptors: vec![DescriptorPattern(vec![like(&text, "\u{1b}*")])] },
        ] {
            let words = target.to_string();
            assert!(words.contains("a\\n") && !words.contains(char::is_control), "{words}");
        }
    }

    #[test]
    fn a_pattern_has_all_keys_in_their_order_and_a_star_of_a_client_is_no_pattern() {
        let pattern = DescriptorPattern(vec![like("user", "acme_*"), like("path", "*")]);
        assert!(pattern.matches(&[entry("user", "acme_7"), entry("path", "")]));
        for other in [
            &[entry("user", "acme_7")][..],
            &[entry("path", "/"), entry("user", "acme_7")],
            &[entry("user", "other_7"), entry("path", "/")],
            &[entry("user", "acme_7"), entry("path", "/"), entry("x", "y")],
        ] {
            assert!(!pattern.matches(other), "{other:?}");
        }
        let exact = DescriptorPattern::of(&[entry("user", "*")]);
        assert!(exact.matches(&[entry("user", "*")]) && !exact.matches(&[entry("user", "ann")]));
        assert_eq!(exact.exact(), Some(vec![entry("user", "*")]));
        assert_eq!(pattern.exact(), None);
    }

    #[test]
    fn targets_are_told_with_and_without_their_values() {
        let several = Target::Descriptors {
            domain: "shop".to_owned(),
            descriptors: vec![
                DescriptorPattern::of(&[entry("user", "ann")]),
                DescriptorPattern(vec![like("user", "acme_*"), like("path", "/a")]),
                DescriptorPattern::of(&[entry("user", "bob")]),
            ],
        };
        assert_eq!(several.to_string(), "shop: user=ann + user~acme_* path~/a + user=bob");
        assert_eq!(several.without_values(), "3 descriptors shop/user + user|path");
        let one = Target::descriptor("shop", &[entry("user", "ann")]);
        assert_eq!(one.without_values(), "one descriptor shop/user");
        assert!(several.shares_with(&one) && one.shares_with(&several) && one.shares_with(&one));
        for other in [Target::descriptor("mall", &[entry("user", "ann")]), Target::Domain("shop".to_owned())] {
            assert!(!several.shares_with(&other) && !other.shares_with(&several), "{other}");
        }
    }
}
