//! Levels of log lines.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// The lowest levels to write: for Tollgate, and for each library that is named.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLevels {
    own: LevelFilter,
    named: Vec<(String, LevelFilter)>,
}

/// The levels of the running log, which may change while it runs.
#[derive(Clone)]
pub struct LevelControl {
    /// The levels of the settings.
    configured: LogLevels,
    current: Arc<Mutex<Current>>,
    apply: Arc<dyn Fn(&LogLevels) + Send + Sync>,
}

/// The levels in force.
#[derive(Clone, Debug, PartialEq)]
struct Current {
    levels: LogLevels,
    /// Number of changes so far.
    changes: u64,
    /// When the levels of the settings return; `None` if they do not.
    until: Option<Instant>,
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

/// Writes the levels as settings do: `info,h2=warn`.
impl fmt::Display for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.own)?;
        self.named.iter().try_for_each(|(target, level)| write!(f, ",{target}={level}"))
    }
}

impl fmt::Debug for LevelControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelControl").field("configured", &self.configured).finish_non_exhaustive()
    }
}

impl LevelControl {
    /// Creates the control of a log that starts with these levels. `apply` puts others in force.
    pub(super) fn new(configured: LogLevels, apply: impl Fn(&LogLevels) + Send + Sync + 'static) -> LevelControl {
        let current = Current { levels: configured.clone(), changes: 0, until: None };
        LevelControl { configured, current: Arc::new(Mutex::new(current)), apply: Arc::new(apply) }
    }

    /// Returns the levels of the settings.
    pub fn configured(&self) -> &LogLevels {
        &self.configured
    }

    /// Returns the levels in force, and the time until those of the settings return.
    pub fn current(&self) -> (LogLevels, Option<Duration>) {
        let current = self.current.lock();
        (current.levels.clone(), current.until.map(|until| until.saturating_duration_since(Instant::now())))
    }

    /// Puts other levels in force, and logs the change. Returns the number of this change, with which the caller
    /// [ends](LevelControl::end) it after this time, if there is one.
    pub fn set(&self, levels: LogLevels, time: Option<Duration>, role: &'static str) -> u64 {
        self.change(&mut self.current.lock(), levels, time, role)
    }

    /// Puts the levels of the settings in force, unless they have changed after this change.
    pub fn end(&self, change: u64) {
        let mut current = self.current.lock();
        if current.changes == change {
            self.change(&mut current, self.configured.clone(), None, "timer");
        }
    }

    fn change(&self, current: &mut Current, levels: LogLevels, time: Option<Duration>, role: &'static str) -> u64 {
        let before = std::mem::replace(&mut current.levels, levels);
        current.changes += 1;
        current.until = time.map(|time| Instant::now() + time);
        let (now, lasts) = (&current.levels, time.map(humantime::format_duration).map(tracing::field::display));
        let tell = || tracing::info!(%before, %now, lasts, role, "the level of the log has changed");
        // One of both levels writes the line in most cases.
        if before.own >= LevelFilter::INFO {
            tell();
            (self.apply)(now);
        } else {
            (self.apply)(now);
            tell();
        }
        current.changes
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
    fn levels_are_written_as_settings_have_them() {
        for text in ["info", "debug,h2=warn,tollgate::grpc=trace", "error"] {
            assert_eq!(text.parse::<LogLevels>().unwrap().to_string(), text);
        }
        assert_eq!(" Warning, h2 = FATAL".parse::<LogLevels>().unwrap().to_string(), "warn,h2=error");
    }

    #[test]
    fn the_end_of_a_change_leaves_a_later_one_in_force() {
        let control = LevelControl::new(Level::INFO.into(), |_| {});
        let first = control.set(Level::DEBUG.into(), Some(Duration::from_secs(60)), "admin");
        let second = control.set(Level::TRACE.into(), None, "admin");
        control.end(first);
        assert_eq!(control.current(), (Level::TRACE.into(), None));
        control.end(second);
        assert_eq!(&control.current().0, control.configured());
    }

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
