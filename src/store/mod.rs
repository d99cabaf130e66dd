//! Where counters live. A store decides all the checks of a request together, atomically, on its own clock.

pub mod denied;
pub mod group;
pub mod lease;
pub mod memory;
pub mod redis;
mod sharded;
pub mod timed;

use std::fmt;
use std::time::Instant;

use smallvec::SmallVec;

use crate::algorithm::{Limit, Verdict};
use crate::descriptor::{Entry, Hits, Role};
use crate::lease::Lease;

/// One question to the store: may these hits pass this counter?
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Which counter.
    pub key: Key,
    /// What it may admit.
    pub limit: Limit,
    /// What the request takes or gives back.
    pub hits: Hits,
    /// What a denial means for the rest of the request.
    pub role: Role,
    /// Which descriptor of the request it is asked for: several limits of one descriptor are one rule.
    pub descriptor: usize,
    /// What may be taken in advance, where the store is asked from afar.
    pub lease: Option<Lease>,
}

/// Counters, and the one way to ask them.
pub trait Store: Send + Sync + 'static {
    /// Decides `checks` as one group, and charges them: all of them if the request passes; otherwise only give-backs and limits
    /// that count denials. The verdicts come in the order of the checks.
    ///
    /// # Errors
    /// Where the store cannot tell before `deadline`. Whether anything was charged is then unknown; nothing is charged twice.
    fn check(&self, checks: &[Check], deadline: Instant) -> impl Future<Output = Result<Verdicts, StoreError>> + Send;

    /// Gives back what is held in advance, until `deadline`. It is called once, when no more requests are to come.
    fn close(&self, _deadline: Instant) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// What a store says to a request; mostly it is asked one thing, and that needs no allocation.
pub type Verdicts = SmallVec<[Verdict; 1]>;

/// Why a store could not decide.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer before the deadline.
    #[error("no answer in time")]
    Timeout,
    /// Too many requests wait already, or it has waited too long among them: not asked at all.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// Known to be down: not asked at all.
    #[error("the store is down")]
    Down,
    /// The connection broke.
    #[error("connection lost")]
    Connection(#[source] deadpool_redis::redis::RedisError),
    /// It answered with an error.
    #[error("the store refused")]
    Refused(#[source] deadpool_redis::redis::RedisError),
    /// It cannot read or write a counter that the request asks for: which, and why. That is not printed, because the
    /// name holds what clients send.
    #[error("a counter failed (LOG_LEVEL=debug names it)")]
    Counter(String),
    /// It answered something else than verdicts.
    #[error("unexpected answer")]
    Answer,
}

impl StoreError {
    /// The kind, as metrics have it.
    pub const KINDS: [&'static str; 7] =
        ["timeout", "overloaded", "down", "connection", "refused", "counter", "answer"];

    /// One of [`StoreError::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            StoreError::Timeout => "timeout",
            StoreError::Overloaded => "overloaded",
            StoreError::Down => "down",
            StoreError::Connection(_) => "connection",
            StoreError::Refused(_) => "refused",
            StoreError::Counter(_) => "counter",
            StoreError::Answer => "answer",
        }
    }
}

/// A counter's name: two counters share a name only if they are the same counter, whatever bytes a client sends.
///
/// It reads `domain|key=value|key=value|limit`. A byte that could be taken for a separator, or that is not printable ASCII, is
/// escaped as `%` and two hexadecimal digits; a value that stands for all that match a pattern is marked by `~` in place of
/// `=`, and so is the last value of a limit that has holders, which is no part of the name but tells the [`holder`]. A name that
/// would be long is replaced by its BLAKE3 hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// The longest name that is written out.
    const MAX_LEN: usize = 200;

    /// The counter of `limit` for these entries. `shared_pattern` tells, for each level, the pattern that stands for the value.
    pub fn new<'a>(
        prefix: &str,
        domain: &str,
        entries: &[Entry],
        shared_pattern: impl Fn(usize) -> Option<&'a str>,
        limit: &Limit,
    ) -> Key {
        let mut name = String::with_capacity(96);
        name.push_str(prefix);
        escape(&mut name, domain);
        for (level, entry) in entries.iter().enumerate() {
            name.push('|');
            escape(&mut name, &entry.key);
            let is_holder = limit.algorithm().has_holders() && level + 1 == entries.len();
            match shared_pattern(level).or(is_holder.then_some("*")) {
                Some(pattern) => {
                    name.push('~');
                    escape(&mut name, pattern);
                }
                None => {
                    name.push('=');
                    escape(&mut name, &entry.value);
                }
            }
        }
        name.push('|');
        limit.identity(&mut name);
        if name.len() > prefix.len() + Self::MAX_LEN {
            let hash = blake3::hash(&name.as_bytes()[prefix.len()..]);
            name.truncate(prefix.len());
            // No name that is written out begins so: a domain is never empty.
            name.push('|');
            name.push_str(&hash.to_hex());
        }
        Key(name)
    }

    /// The counter of a penalty of the limit whose counter this is.
    pub fn of_penalty(&self, penalty: &Limit) -> Key {
        let mut name = format!("{self}|");
        penalty.identity(&mut name);
        Key(name)
    }

    /// The name as it stands in Redis.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Who asks, where a limit has holders: the last entry's value tells. Two values that came to the same number would be taken for one
/// holder; among 2^53 they do not.
pub fn holder(entries: &[Entry]) -> u64 {
    let value = entries.last().map_or("", |entry| &entry.value);
    let hash = blake3::hash(value.as_bytes());
    let first = hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    first >> 11
}

/// Which bytes are escaped.
const ESCAPED: [bool; 256] = {
    let mut escaped = [true; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        escaped[byte as usize] = matches!(byte, b'%' | b'|' | b'=' | b'~' | b'{' | b'}');
        byte += 1;
    }
    escaped
};

/// Appends `text` so that no separator stands in it, nor a brace, which means a slot to a Redis Cluster.
fn escape(name: &mut String, mut text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    while let Some(at) = text.bytes().position(|byte| ESCAPED[usize::from(byte)]) {
        // No byte of ASCII is part of another character, so that all before it is whole.
        let (plain, odd) = text.split_at(at);
        name.push_str(plain);
        let char = odd.chars().next().map_or(0, char::len_utf8);
        for byte in odd[..char].bytes() {
            name.push('%');
            name.push(char::from(DIGITS[usize::from(byte >> 4)]));
            name.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        text = &odd[char..];
    }
    name.push_str(text);
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
        let entries: Vec<Entry> =
            entries.iter().map(|(key, value)| Entry { key: key.clone(), value: value.clone() }).collect();
        Key::new("", domain, &entries, |level| (shared == Some(level)).then_some("a*"), &limit())
    }

    #[test]
    fn a_short_name_can_be_read() {
        let name = key("shop", &[("user".into(), "ann".into()), ("path".into(), "/pay now".into())], None);
        assert_eq!(name.as_str(), "shop|user=ann|path=/pay%20now|sw60000/10");
    }

    #[test]
    fn a_changed_number_keeps_the_counter_and_a_changed_window_does_not() {
        let with = |algorithm, number, seconds| {
            let limit = Limit::new(algorithm, number, Duration::from_secs(seconds), Options::default()).unwrap();
            Key::new("", "shop", &[], |_| None, &limit)
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
    fn a_long_value_is_bounded_and_still_told_apart() {
        let long = |end: &str| key("shop", &[("user".into(), "x".repeat(1 << 20) + end)], None);
        assert!(long("a").as_str().len() <= 65);
        assert_ne!(long("a"), long("b"));
    }

    proptest! {
        /// Texts are drawn from the bytes that could confuse a name.
        #[test]
        fn different_counters_have_different_names(
            counters in prop::collection::vec(
                ("[a|=~%_]{1,2}", prop::collection::vec(("[a|=~%_*\0é]{0,3}", "[a|=~%_*\0é]{0,3}"), 0..3), prop::option::of(0..2_usize)),
                2..200,
            )
        ) {
            let mut seen = HashMap::new();
            for (domain, mut entries, shared) in counters {
                let name = key(&domain, &entries, shared);
                let shared = shared.filter(|level| *level < entries.len());
                if let Some(level) = shared {
                    entries[level].1 = "a*".into();
                }
                let counter = (domain, entries, shared);
                let earlier = seen.entry(name).or_insert_with(|| counter.clone());
                prop_assert_eq!(earlier, &counter);
            }
        }
    }
}
