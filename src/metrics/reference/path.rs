//! Where `envoyproxy/ratelimit` counts a rule: the domain, and a name for each level.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::descriptor::Entry;
use crate::rules::{Rule, StatName};

/// The longest name of a level, in bytes. What is longer is cut: it comes from a request.
const LONGEST: usize = 256;
/// The most levels that are told apart.
const DEEPEST: usize = 16;

/// What looks like an address of IPv4. Its dots would be levels.
static ADDRESS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}").ok());

/// The path of a statistic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatPath {
    /// The domain and the levels, with dots between them.
    text: Box<str>,
    /// Where each of them ends.
    ends: Box<[u32]>,
}

impl StatPath {
    /// Of a domain and the names of levels, whatever is in them.
    pub(in crate::metrics) fn new<'n>(domain: &str, levels: impl IntoIterator<Item = Cow<'n, str>>) -> StatPath {
        let mut text = harmless(domain).into_owned();
        let mut ends = vec![text.len() as u32];
        for level in levels.into_iter().take(DEEPEST) {
            text.push('.');
            text.push_str(&harmless(&level));
            ends.push(text.len() as u32);
        }
        StatPath { text: text.into(), ends: ends.into() }
    }

    /// Of a rule whose path is always the same.
    pub(in crate::metrics) fn of_rule(rule: &Rule) -> StatPath {
        StatPath::new(&rule.domain, levels(rule).map(Cow::Owned))
    }

    /// Of a rule whose path has values of requests.
    pub(in crate::metrics) fn of_request(rule: &Rule, entries: &[Entry]) -> StatPath {
        let levels = levels(rule).zip(entries).enumerate().map(|(level, (own, Entry { key, value }))| {
            match rule.stat_name(level) {
                StatName::Rule => own,
                StatName::Value if value.is_empty() => key.clone(),
                StatName::Value | StatName::AnyValue => format!("{key}_{value}"),
            }
        });
        StatPath::new(&rule.domain, levels.map(Cow::Owned))
    }

    /// Of a limit that a request brings along.
    pub(in crate::metrics) fn of_override(domain: &str, entries: &[Entry]) -> StatPath {
        StatPath::new(domain, entries.iter().map(|Entry { key, value }| Cow::Owned(format!("{key}_{value}"))))
    }

    /// All of it, as statsd has it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The domain.
    pub(super) fn domain(&self) -> &str {
        self.part(0).unwrap_or_default()
    }

    /// The name of a level.
    pub(super) fn level(&self, level: usize) -> Option<&str> {
        self.part(level + 1)
    }

    /// The domain and all levels.
    pub(super) fn parts(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).filter_map(|index| self.part(index))
    }

    fn part(&self, index: usize) -> Option<&str> {
        let start = index.checked_sub(1).map_or(Some(0), |before| Some(*self.ends.get(before)? as usize + 1))?;
        self.text.get(start..*self.ends.get(index)? as usize)
    }
}

/// What the rule says of each level: `key_value`, or the key alone.
fn levels(rule: &Rule) -> impl Iterator<Item = String> {
    rule.keys_and_values().map(|(key, value)| value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}")))
}

/// Without what would end a name in a line of statsd.
fn harmless(name: &str) -> Cow<'_, str> {
    let name = match name.char_indices().map(|(at, char)| at + char.len_utf8()).take_while(|end| *end <= LONGEST).last()
    {
        Some(end) if name.len() > LONGEST => &name[..end],
        _ => name,
    };
    let is_harmful = |char: char| matches!(char, ':' | '|') || char.is_control();
    let mut name = Cow::Borrowed(name);
    if name.contains(is_harmful) {
        name = Cow::Owned(name.replace(is_harmful, "_"));
    }
    match &*ADDRESS {
        Some(address) if name.contains('.') && address.is_match(&name) => {
            let without_dots = |found: &regex::Captures<'_>| found[0].replace('.', "_");
            Cow::Owned(address.replace_all(&name, without_dots).into_owned())
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(domain: &str, levels: &[&str]) -> StatPath {
        StatPath::new(domain, levels.iter().map(|level| Cow::Owned((*level).to_owned())))
    }

    #[test]
    fn nothing_in_a_name_ends_it_and_an_address_is_one_level() {
        for (level, name) in [
            ("user_ann", "user_ann"),
            ("path_/v1.2/x", "path_/v1.2/x"),
            ("masked_remote_address_10.0.0.0/8", "masked_remote_address_10_0_0_0/8"),
            ("a:1|c\nb:1|c", "a_1_c_b_1_c"),
            ("ip_::1", "ip___1"),
        ] {
            assert_eq!(path("shop", &[level]).as_str(), format!("shop.{name}"));
        }
    }

    #[test]
    fn levels_keep_their_dots_and_what_is_long_is_cut() {
        let found = path("shop.example", &["path_/v1.2", "user"]);
        assert_eq!(found.as_str(), "shop.example.path_/v1.2.user");
        assert_eq!(
            (found.domain(), found.level(0), found.level(1)),
            ("shop.example", Some("path_/v1.2"), Some("user"))
        );
        assert_eq!(found.level(2), None);
        let long = path("shop", &[&"ü".repeat(1_000)]);
        assert_eq!(long.level(0).unwrap().len(), LONGEST);
        assert_eq!(path("shop", &["a"; 1_000]).level(DEEPEST), None);
    }
}
