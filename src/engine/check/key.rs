//! Names of counters: `PREFIX{domain|key=value|key=value}|LIMIT`, or the names that `envoyproxy/ratelimit` uses, if
//! counters are shared with it.

use std::borrow::Borrow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::algorithm::{Limit, Penalty, leased};
use crate::descriptor::Entry;
use crate::usage::Period;
use crate::usage::page::MARK;

/// The name of a counter. Different counters have different names, whatever bytes a client sends. Names from
/// [`Key::of_window`] follow envoyproxy/ratelimit and do not have this property among themselves.
///
/// A name reads `PREFIX{domain|key=value|key=value}|LIMIT`. The braces are a Redis Cluster hash tag: all counters of
/// one descriptor are in one slot. `LIMIT` names the algorithm, the version of its layout, and its window. A limit that
/// a request sets has the prefix `override|` and a separate counter, and so has one that is kept in money, with
/// `money|`. In the tag, separators and bytes that are not printable ASCII are escaped as `%` and two hexadecimal
/// digits. A value that represents all matches of a pattern is marked with `~` instead of `=`. The last value of a
/// limit with holders is marked the same way; it is not part of the name, because it identifies the [`holder`]. A long
/// tag is replaced by its BLAKE3 hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// The origin of a counter's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The rules.
    Rule,
    /// The rules, in which it is kept in money.
    Money,
    /// The request.
    Override,
}

impl Key {
    /// The longest tag that is not replaced by its hash.
    const MAX_TAG: usize = 180;
    /// The longest tag that is stored together with its hash. Clients choose its content, and it is kept as long as the
    /// usage records they are billed by.
    const MAX_LONG_TAG: usize = 1_024;

    /// Returns the name of the counter of `limit` for these entries. `shared_pattern` holds, for each level, the
    /// pattern that replaces the value. `prefix` must not contain braces, because the first braces in a name mark the
    /// tag.
    pub fn new<'a>(
        prefix: &str,
        domain: &str,
        entries: &[Entry],
        shared_pattern: impl Fn(usize) -> Option<&'a str>,
        limit: &Limit,
        origin: Origin,
    ) -> Key {
        let mut name = String::with_capacity(96);
        name.push_str(prefix);
        name.push('{');
        let tag = name.len();
        write_tag(&mut name, domain, entries, shared_pattern, limit);
        if name.len() > tag + Self::MAX_TAG {
            let hash = blake3::hash(&name.as_bytes()[tag..]);
            name.truncate(tag);
            // No other tag starts with this character, because a domain is never empty.
            name.push('|');
            name.push_str(&hash.to_hex());
        }
        name.push_str("}|");
        name.push_str(match origin {
            Origin::Rule => "",
            Origin::Money => "money|",
            Origin::Override => "override|",
        });
        limit.identity(&mut name);
        Key(name)
    }

    /// Returns the tag of the counter of `limit` for these entries if the name contains only its hash; `None` if the
    /// name contains the tag, or if the tag is too long to store.
    pub fn long_tag<'a>(
        &self,
        domain: &str,
        entries: &[Entry],
        shared_pattern: impl Fn(usize) -> Option<&'a str>,
        limit: &Limit,
    ) -> Option<Arc<str>> {
        // The prefix contains no braces.
        let (_, tag) = self.0.split_once('{')?;
        if !tag.starts_with('|') {
            return None;
        }
        let mut tag = String::new();
        write_tag(&mut tag, domain, entries, shared_pattern, limit);
        (tag.len() <= Self::MAX_LONG_TAG).then(|| tag.into())
    }

    /// Returns the name that `envoyproxy/ratelimit` gives the counter for these entries in the window that begins at
    /// this time, in seconds since the epoch: `PREFIXdomain_key_value_key_value_WINDOW`. It has no maximum length and
    /// no escapes. Entries that are equal when joined by `_` share a counter, and so do windows of different units that
    /// begin at the same time. It never equals a name from [`Key::new`], because the text after the last `_` there, if
    /// any, is not just digits.
    pub fn of_window<'a>(
        prefix: &str,
        domain: &str,
        entries: &[Entry],
        shared_pattern: impl Fn(usize) -> Option<&'a str>,
        start_s: u64,
    ) -> Key {
        let texts: usize = entries.iter().map(|entry| entry.key.len() + entry.value.len() + 2).sum();
        let mut name = String::with_capacity(prefix.len() + domain.len() + texts + 21);
        name.push_str(prefix);
        name.push_str(domain);
        name.push('_');
        for (level, entry) in entries.iter().enumerate() {
            for text in [&entry.key, shared_pattern(level).unwrap_or(&entry.value)] {
                name.push_str(text);
                name.push('_');
            }
        }
        // Writing to a String cannot fail.
        let _ = write!(name, "{start_s}");
        Key(name)
    }

    /// Returns the name of the penalty's counter for the limit of this counter.
    pub fn of_penalty(&self, penalty: &Penalty) -> Key {
        let mut name = format!("{self}|");
        penalty.identity(&mut name);
        Key(name)
    }

    /// Returns the name of the counter of the leases of this counter.
    pub fn of_leases(&self) -> Key {
        Key(format!("{self}|{}", leased::CODE))
    }

    /// Returns the name of the usage page for this counter at this time, in milliseconds since the epoch. It is in the
    /// same slot of a cluster.
    pub fn of_page(&self, period: Period, now_ms: u64) -> Key {
        Key(format!("{self}{MARK}{}:{}", period.ms(), now_ms / period.page_ms()))
    }

    /// Returns the name without a window at its end, so all windows of a counter have the same result.
    pub fn without_window(&self) -> &str {
        match self.0.rsplit_once('_') {
            Some((name, window)) if !window.is_empty() && window.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &self.0,
        }
    }

    /// Returns the name as Redis stores it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn write_tag<'a>(
    name: &mut String,
    domain: &str,
    entries: &[Entry],
    shared_pattern: impl Fn(usize) -> Option<&'a str>,
    limit: &Limit,
) {
    escape(name, domain);
    for (level, entry) in entries.iter().enumerate() {
        name.push('|');
        escape(name, &entry.key);
        let is_holder = limit.algorithm().has_holders() && level + 1 == entries.len();
        match shared_pattern(level).or(is_holder.then_some("*")) {
            Some(pattern) => {
                name.push('~');
                escape(name, pattern);
            }
            None => {
                name.push('=');
                escape(name, &entry.value);
            }
        }
    }
}

/// Returns the number of the stream that asks a limit with holders. The last entry's value identifies the stream.
/// Values with the same number would count as one holder, which is unlikely among 2^53 numbers.
pub fn holder(entries: &[Entry]) -> u64 {
    let value = entries.last().map_or("", |entry| &entry.value);
    let hash = blake3::hash(value.as_bytes());
    let first = hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    first >> 11
}

/// Characters that are escaped in addition to those outside ASCII: separators, and the braces, which mark the slot in
/// Redis Cluster.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'|').add(b'=').add(b'~').add(b'{').add(b'}');

/// Appends a part of a tag.
pub fn escape(name: &mut String, text: &str) {
    name.extend(utf8_percent_encode(text, ESCAPED));
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Algorithm, Options};

    fn limit() -> Limit {
        Limit::new(Algorithm::SlidingWindow, 5, Duration::from_secs(60), Options::default()).unwrap()
    }

    fn key(domain: &str, entries: &[(String, String)], shared: Option<usize>) -> Key {
        prefixed("", domain, entries, shared)
    }

    fn prefixed(prefix: &str, domain: &str, entries: &[(String, String)], shared: Option<usize>) -> Key {
        let entries: Vec<Entry> =
            entries.iter().map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect();
        Key::new(prefix, domain, &entries, |level| (shared == Some(level)).then_some("a*"), &limit(), Origin::Rule)
    }

    #[test]
    fn a_short_name_can_be_read() {
        let name = key("shop", &[("user".into(), "ann".into()), ("path".into(), "/pay now".into())], None);
        assert_eq!(name.as_str(), "{shop|user=ann|path=/pay%20now}|sw1:60000/10");
    }

    #[test]
    fn a_changed_number_keeps_the_counter_and_a_changed_window_does_not() {
        let with = |algorithm, number, seconds| {
            let limit = Limit::new(algorithm, number, Duration::from_secs(seconds), Options::default()).unwrap();
            Key::new("", "shop", &[], |_| None, &limit, Origin::Rule)
        };
        for algorithm in Algorithm::ALL {
            assert_eq!(with(*algorithm, 5, 60), with(*algorithm, 6, 60));
            assert_ne!(with(*algorithm, 5, 60), with(*algorithm, 5, 61));
            for other in Algorithm::ALL.iter().filter(|other| *other != algorithm) {
                assert_ne!(with(*algorithm, 5, 60), with(*other, 5, 60));
            }
        }
    }

    #[test]
    fn a_long_value_is_bounded_and_still_distinct() {
        let long = |end: &str| key("shop", &[("user".into(), "x".repeat(1 << 20) + end)], None);
        assert!(long("a").as_str().len() <= 90);
        assert_ne!(long("a"), long("b"));
    }

    #[test]
    fn a_limit_of_a_request_has_a_counter_of_its_own() {
        let of = |origin| Key::new("", "shop", &[], |_| None, &limit(), origin);
        assert_ne!(of(Origin::Rule), of(Origin::Override));
        assert_eq!(of(Origin::Override).as_str(), "{shop}|override|sw1:60000/10");
    }

    #[test]
    fn all_counters_of_a_descriptor_have_the_same_tag() {
        let entries = [Entry { key: "user".into(), value: "}{".into() }];
        let tag = |name: &str| name.split('{').nth(1).unwrap().split('}').next().unwrap().to_owned();
        let minute = Duration::from_secs(60);
        let penalty = Penalty::new(5, minute, minute, false).unwrap();
        for algorithm in Algorithm::ALL.iter().filter(|algorithm| !algorithm.has_holders()) {
            let limit = Limit::new(*algorithm, 5, minute, Options::default()).unwrap();
            for origin in [Origin::Rule, Origin::Override] {
                let own = Key::new("p:", "shop", &entries, |_| None, &limit, origin);
                let all = [own.of_penalty(&penalty), own.of_leases(), own];
                assert!(all.iter().all(|key| tag(key.as_str()) == "shop|user=%7D%7B"), "{all:?}");
            }
        }
    }

    #[test]
    fn the_name_that_envoyproxy_ratelimit_has_is_joined_as_it_is() {
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        let of = |prefix, entries: &[Entry]| Key::of_window(prefix, "domain", entries, |_| None, 1200);
        let entries = [entry("key2", "value2"), entry("subkey2", "subvalue2")];
        assert_eq!(of("", &entries).as_str(), "domain_key2_value2_subkey2_subvalue2_1200");
        assert_eq!(of("p:", &[entry("key", "")]).as_str(), "p:domain_key__1200");
        assert_eq!(of("", &[]).as_str(), "domain_1200");
        let shared = Key::of_window("", "domain", &entries, |level| (level == 0).then_some("val*"), 1200);
        assert_eq!(shared.as_str(), "domain_key2_val*_subkey2_subvalue2_1200");
    }

    proptest! {
        /// Texts consist of bytes that could make the two kinds of names look alike.
        #[test]
        fn no_name_of_ours_is_one_of_envoyproxy_ratelimit(
            ours in ("[a{_]{0,2}", "[a{}|_]{1,3}", prop::collection::vec(("[a{}|_=]{0,3}", "[a}|f1:60_]{0,5}"), 0..2)),
            theirs in ("[a{}|_]{1,5}", prop::collection::vec(("[a{}|_=]{0,4}", "[a}|fwpes1:60_]{0,12}"), 0..2)),
            algorithm in prop::sample::select(Algorithm::ALL), start_s in 0..100_000_u64,
        ) {
            let entries = |entries: &[(String, String)]| -> Vec<Entry> {
                entries.iter().map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect()
            };
            let minute = Duration::from_secs(60);
            let limit = Limit::new(algorithm, 5, minute, Options::default()).unwrap();
            let (prefix, domain, own) = ours;
            let penalty = Penalty::new(5, minute, minute, false).unwrap();
            for origin in [Origin::Rule, Origin::Override] {
                let own = Key::new(&prefix, &domain, &entries(&own), |_| None, &limit, origin);
                for own in [own.of_penalty(&penalty), own.of_leases(), own] {
                    // In the other format, the text after the last `_` is a number.
                    let last = own.as_str().rsplit_once('_').map(|(_, last)| last);
                    prop_assert!(last.is_none_or(|last| last.parse::<u64>().is_err()), "{}", own);
                    let (domain, other) = &theirs;
                    let other = Key::of_window(&prefix, domain, &entries(other), |_| None, start_s);
                    let last = other.as_str().rsplit_once('_').and_then(|(_, last)| last.parse().ok());
                    prop_assert_eq!(last, Some(start_s));
                    prop_assert_ne!(&own, &other);
                }
            }
        }
    }

    proptest! {
        /// Texts consist of bytes that could make a name ambiguous.
        #[test]
        fn different_counters_have_different_names(
            counters in prop::collection::vec(
                (
                    "[ab|:]{0,2}",
                    "[a|=~%_]{1,2}",
                    prop::collection::vec(("[a|=~%_*\0é]{0,3}", "[a|=~%_*\0é]{0,3}"), 0..3),
                    prop::option::of(0..2_usize),
                ),
                2..200,
            )
        ) {
            let mut seen = HashMap::new();
            for (prefix, domain, mut entries, shared) in counters {
                let name = prefixed(&prefix, &domain, &entries, shared);
                let shared = shared.filter(|level| *level < entries.len());
                if let Some(level) = shared {
                    entries[level].1 = "a*".into();
                }
                let counter = (prefix, domain, entries, shared);
                let earlier = seen.entry(name).or_insert_with(|| counter.clone());
                prop_assert_eq!(earlier, &counter);
            }
        }
    }
}
