//! The path under which `envoyproxy/ratelimit` counts a rule: the domain and a name for each level.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::engine::descriptor::Entry;
use crate::engine::rules::{Rule, StatName};

/// Longest name of a level, in bytes. Longer names are cut, as they come from requests.
const LONGEST: usize = 256;
/// Largest number of levels in a path.
const DEEPEST: usize = 16;

/// Matches text like an IPv4 address. Its dots would separate levels.
static ADDRESS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}").ok());

/// The path of a statistic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatPath {
    /// The domain and the levels, separated by dots.
    text: Box<str>,
    /// The end of each part in `text`.
    ends: Box<[u32]>,
}

impl StatPath {
    /// Creates a path from a domain and the names of levels, which may contain any characters.
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

    /// Returns the path of a rule that has the same path for every request.
    pub(in crate::metrics) fn of_rule(rule: &Rule) -> StatPath {
        StatPath::new(&rule.domain, levels(rule).map(Cow::Owned))
    }

    /// Returns the path of a rule with values of this request.
    pub(in crate::metrics) fn of_request(rule: &Rule, entries: &[Entry]) -> StatPath {
        let levels = levels(rule).zip(entries).enumerate().map(|(level, (own, Entry { key, value }))| {
            match rule.stat_name(level) {
                StatName::Rule => own,
                StatName::Value if value.is_empty() => key.to_string(),
                StatName::Value | StatName::AnyValue => format!("{key}_{value}"),
            }
        });
        StatPath::new(&rule.domain, levels.map(Cow::Owned))
    }

    /// Returns the path of a limit that a request sends; without entries it has one level, which is empty.
    pub(in crate::metrics) fn of_override(domain: &str, entries: &[Entry]) -> StatPath {
        let level = |Entry { key, value }: &Entry| match value.is_empty() {
            true => Cow::Owned(key.to_string()),
            false => Cow::Owned(format!("{key}_{value}")),
        };
        let nameless = entries.is_empty().then_some(Cow::Borrowed(""));
        StatPath::new(domain, entries.iter().map(level).chain(nameless))
    }

    /// Returns the whole path, as in statsd.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the domain.
    pub(super) fn domain(&self) -> &str {
        self.part(0).unwrap_or_default()
    }

    /// Returns the name of a level.
    pub(super) fn level(&self, level: usize) -> Option<&str> {
        self.part(level + 1)
    }

    /// Returns the domain and all levels.
    pub(super) fn parts(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).filter_map(|index| self.part(index))
    }

    fn part(&self, index: usize) -> Option<&str> {
        let start = index.checked_sub(1).map_or(Some(0), |before| Some(*self.ends.get(before)? as usize + 1))?;
        self.text.get(start..*self.ends.get(index)? as usize)
    }
}

/// Returns the rule's name for each level: `key_value`, or the key alone.
fn levels(rule: &Rule) -> impl Iterator<Item = String> {
    rule.keys_and_values().map(|(key, value)| value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}")))
}

/// Shortens a name, and replaces characters that would end it in a line of statsd.
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
    fn a_limit_that_is_brought_along_has_the_path_that_envoyproxy_ratelimit_gives_it() {
        let of = |entries: &[(&str, &str)]| {
            let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
            StatPath::of_override("d", &entries.iter().map(entry).collect::<Vec<_>>()).as_str().to_owned()
        };
        assert_eq!(of(&[("k", "v"), ("l", "")]), "d.k_v.l");
        assert_eq!(of(&[("k", "")]), "d.k");
        assert_eq!(of(&[]), "d.");
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
