//! Values given to settings, by the flag or variable that was used, and the mistakes in them.

use std::ffi::OsString;
use std::fmt;

use super::SettingsError;

/// A value given to a flag or to its variable.
#[derive(Clone, Debug)]
pub struct Given {
    /// The flag, without its dashes.
    pub flag: String,
    /// The variable, if the flag has one.
    pub variable: Option<String>,
    /// Which of the two was used.
    pub origin: Origin,
    /// Several values if it was given several times.
    pub values: Vec<OsString>,
    /// Whether the value must not appear in a log.
    pub is_secret: bool,
}

/// Origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A variable.
    Environment,
    /// A flag.
    CommandLine,
}

/// An invalid value, or one that conflicts with others.
#[derive(Clone, Debug)]
pub struct Mistake {
    /// The value; `None` if the mistake is that no value was given.
    pub given: Option<Given>,
    /// What to write instead.
    pub reason: String,
}

/// Longest value that is shown whole, in characters.
const SHOWN: usize = 200;

/// Writes `REDIS_TIMEOUT=100` or `--redis-timeout=100`; for a secret only the name.
impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.origin, &self.variable) {
            (Origin::Environment, Some(variable)) => f.write_str(variable)?,
            _ => write!(f, "--{}", self.flag)?,
        }
        write!(f, "={}", self.value())
    }
}

impl Given {
    /// Returns the value escaped for one line, with stars in place of a secret.
    pub fn value(&self) -> String {
        if self.is_secret {
            return "***".to_owned();
        }
        let values: Vec<_> = self.values.iter().map(|value| value.to_string_lossy()).collect();
        on_one_line(&values.join(","))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Environment => "environment",
            Origin::CommandLine => "command line",
        })
    }
}

/// Writes `REDIS_TIMEOUT=100 (environment): a duration has units`.
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mistake { given, reason } = self;
        match given {
            Some(given) => write!(f, "{given} ({}): {reason}", given.origin),
            None => f.write_str(reason),
        }
    }
}

impl Given {
    /// Returns whether the setting is one of these variables.
    pub fn is_one_of(&self, variables: &[&str]) -> bool {
        self.variable.as_deref().is_some_and(|variable| variables.contains(&variable))
    }
}

impl Mistake {
    /// Returns the error with the flag or variable that was used.
    pub fn of(error: &SettingsError, given: &[Given]) -> Mistake {
        let setting = error.setting();
        let concerned = |given: &&Given| setting.is_some() && given.variable.as_deref() == setting;
        Mistake { given: given.iter().find(concerned).cloned(), reason: error.to_string() }
    }
}

/// Returns a text from outside, escaped for one line.
pub(super) fn on_one_line(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(origin: Origin, values: &[&str], is_secret: bool) -> Given {
        Given {
            flag: "redis-auth".into(),
            variable: Some("REDIS_AUTH".into()),
            origin,
            values: values.iter().map(OsString::from).collect(),
            is_secret,
        }
    }

    #[test]
    fn a_value_has_the_name_that_was_used_and_a_secret_has_nothing_else() {
        for (given, shown) in [
            (given(Origin::Environment, &["a"], false), "REDIS_AUTH=a"),
            (given(Origin::CommandLine, &["a", "b"], false), "--redis-auth=a,b"),
            (given(Origin::CommandLine, &["a\nb\u{1b}[1m"], false), "--redis-auth=a\\nb\\u{1b}[1m"),
            (given(Origin::Environment, &["hidden"], true), "REDIS_AUTH=***"),
            (given(Origin::CommandLine, &["hidden"], true), "--redis-auth=***"),
        ] {
            assert_eq!(given.to_string(), shown);
        }
        let long = given(Origin::Environment, &[&"x".repeat(10_000)], false).to_string();
        assert_eq!(long.len(), "REDIS_AUTH=".len() + SHOWN + "...".len());
    }
}
