//! Levels of log lines.

use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// The lowest levels to write: for Tollgate, and for each library that is named.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLevels {
    own: LevelFilter,
    named: Vec<(String, LevelFilter)>,
}

/// An unknown level, or a target without one.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown level {0:?}: must be one of {names}; for libraries append TARGET=LEVEL, such as info,h2=warn",
    names = names()
)]
pub struct LogLevelsError(String);

/// The levels of `tracing`, and additional names from envoyproxy/ratelimit.
const LEVELS: [(&str, LevelFilter); 8] = [
    ("trace", LevelFilter::TRACE),
    ("debug", LevelFilter::DEBUG),
    ("info", LevelFilter::INFO),
    ("warn", LevelFilter::WARN),
    ("warning", LevelFilter::WARN),
    ("error", LevelFilter::ERROR),
    ("fatal", LevelFilter::ERROR),
    ("panic", LevelFilter::ERROR),
];

impl LogLevels {
    /// Builds the filter. Libraries that are not named write nothing, since clients could make them write any amount.
    pub(super) fn targets(&self) -> Targets {
        Targets::new().with_target(OWN, self.own).with_targets(self.named.clone())
    }
}

/// The target of Tollgate's own lines.
const OWN: &str = env!("CARGO_CRATE_NAME");

impl LogLevels {
    /// Returns the levels for a command that runs parts of the service itself. The command reports the outcome of those
    /// parts, so lines of the `silent` targets are not written.
    pub fn of_command(silent: &[&str]) -> LogLevels {
        let named = silent.iter().map(|target| ((*target).to_owned(), LevelFilter::OFF));
        LogLevels { own: LevelFilter::WARN, named: named.collect() }
    }
}

impl From<tracing::Level> for LogLevels {
    fn from(level: tracing::Level) -> Self {
        LogLevels { own: level.into(), named: Vec::new() }
    }
}

impl FromStr for LogLevels {
    type Err = LogLevelsError;

    fn from_str(text: &str) -> Result<Self, LogLevelsError> {
        let mut levels = LogLevels::from(tracing::Level::INFO);
        for directive in text.split(',').map(str::trim) {
            match directive.split_once('=') {
                None => levels.own = level(directive)?,
                Some((target, of_target)) => levels.named.push((target.trim().to_owned(), level(of_target.trim())?)),
            }
        }
        Ok(levels)
    }
}

fn level(name: &str) -> Result<LevelFilter, LogLevelsError> {
    let known = LEVELS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    known.map(|(_, level)| *level).ok_or_else(|| LogLevelsError(name.to_owned()))
}

fn names() -> String {
    LEVELS.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_library_is_silent_unless_it_is_named() {
        for (text, target, level, written) in [
            ("info", "tollgate::server", Level::INFO, true),
            ("info", "tollgate::server", Level::DEBUG, false),
            ("debug", "h2::proto", Level::ERROR, false),
            ("info,h2=warn", "h2::proto", Level::WARN, true),
            ("info,h2=warn", "h2::proto", Level::INFO, false),
            ("info, h2 = WARN", "hyper", Level::ERROR, false),
            ("h2=warn", "tollgate", Level::INFO, true),
            ("warn,tollgate::grpc=debug", "tollgate::grpc", Level::DEBUG, true),
            ("warn,tollgate::grpc=debug", "tollgate::limiter", Level::INFO, false),
            ("Fatal", "tollgate", Level::ERROR, true),
            ("panic", "tollgate", Level::WARN, false),
            ("WARNING", "tollgate", Level::WARN, true),
        ] {
            let levels: LogLevels = text.parse().unwrap();
            assert_eq!(levels.targets().would_enable(target, &level), written, "{text}: {target} at {level}");
        }
        let levels = LogLevels::of_command(&["tollgate::store::redis"]);
        let is_written = |target| levels.targets().would_enable(target, &Level::ERROR);
        assert_eq!((is_written("tollgate::store::redis::breaker"), is_written("tollgate::counters")), (false, true));
        for wrong in ["loud", "off", "", "info,", "h2", "h2=", "info,h2=loud"] {
            assert!(wrong.parse::<LogLevels>().is_err(), "{wrong}");
        }
    }
}
