//! The options of a limit beyond its number of requests. Each has one file with its parsing, validation, formatting,
//! comparison and explanation.
//!
//! An option is a module with
//! - `KEY`: its key in rules, with the type and the meaning of its value, and its conflicts ([`pairs`](super::pairs));
//! - `Value`: the type of its value, and `UNSAID`, the value if a limit does not set it;
//! - `check`: validates the value from a source; returns `None` if it has reported a mistake;
//! - `written`: the value as in rules, and `explained`: the value in the words of `tollgate explain`.
//!
//! A new option needs such a file, a line in `options!` below, and code where it takes effect, usually in the plan of a
//! request. Everything that lists options follows from it: the reader, the schema for editors, the version of the
//! rules, the differences between rules, `explain`, and the test of all pairs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::complaints::Complaints;
use super::config::{FieldPath, Raw, RawMapping};
use super::prices::Prices;
use super::section::Key;
use crate::algorithm::Limit;

macro_rules! options {
    ($($name:ident)*) => {
        $(pub mod $name;)*

        /// The options of a limit beyond its number of requests.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct RuleOptions { $(
            #[doc = concat!("See [`", stringify!($name), "`].")]
            pub $name: $name::Value,
        )* }

        impl Default for RuleOptions {
            /// Returns the options of a limit that sets none of them.
            fn default() -> Self {
                RuleOptions { $($name: $name::UNSAID),* }
            }
        }

        impl RuleOptions {
            /// The keys of all options.
            pub const KEYS: &'static [Key] = &[$($name::KEY),*];

            /// Validates the options of a limit. Returns `None` if it has reported a mistake.
            pub(super) fn check(validation: &mut Validation<'_, '_>) -> Option<RuleOptions> {
                $(let $name = validation.option(&$name::KEY, $name::UNSAID, $name::check);)*
                Some(RuleOptions { $($name: $name?),* })
            }

            /// Returns each option's key, with its value as in rules.
            pub fn written(&self) -> Vec<(&'static str, String)> {
                vec![$(($name::KEY.name, $name::written(&self.$name))),*]
            }

            /// Explains the options that the limit sets.
            pub fn explained(&self) -> Vec<(&'static str, String)> {
                let options = [$(
                    (self.$name != $name::UNSAID).then(|| ($name::KEY.name, $name::explained(&self.$name)))
                ),*];
                options.into_iter().flatten().collect()
            }
        }
    };
}

options! {
    cost
    give_back
    penalty
    lease
    own_share
    durable
    usage
    enforce
    denied_body
    soft
    quota_unit
    number
    notify
    weigh_by
}

/// A limit during the validation of its options.
pub(super) struct Validation<'s, 'r> {
    /// Its keys and values.
    pub(super) raw: &'s RawMapping<'s>,
    /// Its path.
    pub(super) path: FieldPath<'s>,
    /// The limit itself; `None` if it is invalid or unlimited.
    pub(super) limit: Option<&'s Limit>,
    /// The prices of its file; unreadable if a mistake in them is reported.
    pub(super) prices: &'s Raw<Arc<Prices>>,
    /// Keys with a reported conflict.
    pub(super) in_conflict: &'s [&'static str],
    /// Receives the mistakes.
    pub(super) complaints: &'s mut Complaints<'r>,
}

impl<'s, 'r> Validation<'s, 'r> {
    /// Validates an option. Returns `None` if a mistake has been reported.
    fn option<V>(
        &mut self,
        key: &Key,
        default: V,
        check: impl FnOnce(&mut Validation<'s, 'r>, FieldPath<'_>) -> Option<V>,
    ) -> Option<V> {
        match self.raw.get(key.name) {
            Raw::Missing => Some(default),
            Raw::Unreadable => None,
            Raw::Given(_) => {
                let path = self.path;
                let value = check(self, path.key(key.name));
                value.filter(|_| !self.is_in_conflict(key))
            }
        }
    }

    /// Returns whether a conflict of this option has been reported.
    fn is_in_conflict(&self, key: &Key) -> bool {
        self.in_conflict.contains(&key.name)
    }

    /// Returns the limit that the option must fit, or `None` if a mistake in either has been reported.
    fn limit_for(&self, key: &Key) -> Option<&'s Limit> {
        self.limit.filter(|_| !self.is_in_conflict(key))
    }

    /// Returns a flag if it is given.
    fn flag(&self, key: &Key) -> Option<bool> {
        self.raw.flag(key.name).get().copied()
    }

    /// Reads a required number of an option that is a mapping.
    fn number_in(&mut self, key: &Key, field: &str, path: FieldPath<'_>, hint: &str) -> Option<u32> {
        let given = self.raw.mapping(key.name).get().map(|mapping| mapping.number(field))?;
        self.complaints.required(&given, path.key(field), hint).copied()
    }

    /// Reads a required length of time of an option that is a mapping.
    fn length_in(&mut self, key: &Key, field: &str, path: FieldPath<'_>, hint: &str) -> Option<Duration> {
        let given = self.raw.mapping(key.name).get().map(|mapping| mapping.text(field))?;
        self.complaints.required(&given, path.key(field), hint);
        self.complaints.length(&given, path.key(field))
    }
}

/// The part by which a limit has no lease or no share.
pub(super) const NO_PART: &str = "0%";

/// Formats an optional option as in rules.
fn given<T: fmt::Display>(option: &Option<T>) -> String {
    option.as_ref().map_or_else(|| "none".to_owned(), T::to_string)
}
