//! `enforce: 5%`: the limit is enforced for a share of its keys, and in shadow mode for all others.
//!
//! A fixed hash of the key selects the share, so all instances agree, and a larger share contains every smaller one.
//! The key is the descriptor without the values that share a counter or name a holder. Neither the number nor the
//! algorithm of the limit is part of it: a key that is selected stays selected when the limit changes.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use super::Validation;
use crate::descriptor::Entry;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};
use crate::rules::{Allowance, LimitConfig, Rule};

pub(in crate::rules) const KEY: Key = key(
    "enforce",
    Takes::Text,
    "Share of the limit's keys for which it is enforced, from 0.01% to 100%; for all others it is in shadow mode.",
)
.example("5%")
.conflicts(&[
    ("unlimited", "an unlimited rule has nothing to enforce: remove one of the two"),
    (
        "shadow_mode",
        "shadow_mode enforces the limit for no key: remove it, keys outside of the share are in shadow mode as well",
    ),
]);

/// The share of keys for which the limit is enforced; `None` for all.
pub type Value = Option<Share>;

pub(super) const UNSAID: Value = None;

/// A share of keys, in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u16);

/// The keys of the hash. Other samples of keys use other ones, so that they do not select the same keys.
const HASH_KEYS: (u64, u64) = (0x746f_6c6c_6761_7465, 0x656e_666f_7263_6521);

impl Share {
    const WHOLE: u16 = 10_000;

    /// Parses a percentage from 0.01% to 100%.
    pub fn parse(text: &str) -> Option<Share> {
        let (whole, part) = text.strip_suffix('%').map(|text| text.split_once('.').unwrap_or((text, "0")))?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || part.len() > 2 {
            return None;
        }
        let hundredths = part.parse::<u16>().ok()? * if part.len() == 1 { 10 } else { 1 };
        let share = whole.parse::<u16>().ok()?.checked_mul(100)?.checked_add(hundredths)?;
        (1..=Share::WHOLE).contains(&share).then_some(Share(share))
    }

    /// Returns whether `part` is more than this share of `whole`.
    pub fn is_exceeded(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(Share::WHOLE) > u128::from(self.0) * u128::from(whole)
    }

    /// Returns whether `part` is at least this share of `whole`.
    pub fn is_reached(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(Share::WHOLE) >= u128::from(self.0) * u128::from(whole)
    }

    /// Returns it in hundredths of a percent.
    pub fn hundredths(self) -> u16 {
        self.0
    }

    /// Returns whether the key of a descriptor that reaches this rule is in the share.
    pub fn has(self, rule: &Rule, limit: &LimitConfig, (domain, entries): (&str, &[Entry])) -> bool {
        let has_holders = match &limit.allowance {
            Allowance::Limited(limit) => limit.algorithm().has_holders(),
            Allowance::Unlimited => false,
        };
        let mut hasher = SipHasher13::new_with_keys(HASH_KEYS.0, HASH_KEYS.1);
        let mut add = |text: &str| {
            // Its length, so that other texts do not look alike.
            hasher.write_u64(text.len() as u64);
            hasher.write(text.as_bytes());
        };
        add(domain);
        for (level, Entry { key, value }) in entries.iter().enumerate() {
            add(key);
            if rule.shared_pattern(level).is_none() && !(has_holders && level + 1 == entries.len()) {
                add(value);
            }
        }
        (u128::from(hasher.finish()) * u128::from(Share::WHOLE)) >> 64 < u128::from(self.0)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let text = validation.raw.text(KEY.name).get().copied()?;
    let share = Share::parse(text);
    if share.is_none() {
        let is_zero = text.strip_suffix('%').and_then(|text| text.parse::<f64>().ok()) == Some(0.0);
        let message = match is_zero {
            true => "no key would be in the share: write shadow_mode: true beside rate_limit to enforce it for no key",
            false => "write a percentage with its sign, from 0.01% to 100%, such as 5%",
        };
        validation.complaints.error(path, message);
    }
    if share == Some(Share(Share::WHOLE)) {
        validation.complaints.hint(path, "the limit is enforced for all keys: without enforce it is as well");
    }
    share.map(Some)
}

pub(super) fn written(share: &Value) -> String {
    super::given(share)
}

pub(super) fn explained(share: &Value) -> String {
    match share {
        Some(share) => format!("{share} of its keys, in shadow mode for all others"),
        None => super::given(share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_exceeded_beyond_it() {
        let share = Share::parse("80%").unwrap();
        assert!(!share.is_exceeded(8, 10) && share.is_exceeded(9, 10) && !share.is_exceeded(0, 0));
        assert!(Share::parse("99.99%").unwrap().is_exceeded(u64::MAX, u64::MAX));
    }

    #[test]
    fn shares_are_read_as_people_write_them() {
        for (text, share) in [("5%", 500), ("0.01%", 1), ("100%", 10_000), ("12.5%", 1_250), ("33.05%", 3_305)] {
            assert_eq!(Share::parse(text), Some(Share(share)), "{text}");
            assert_eq!(Share(share).to_string(), text);
        }
        for text in ["5", "0%", "0.001%", "100.01%", "101%", "-5%", "+5%", "5 %", "%", ".5%", "5.%", "99999999%"] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
    }
}
