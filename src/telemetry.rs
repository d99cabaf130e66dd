//! Logs: where they go, what they look like, and how often one failure may be told.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For eyes.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// Sends logs to standard error from now on. Of the libraries, warnings and errors only: at `debug` they tell of every frame.
pub fn init(level: Level, format: LogFormat) {
    let levels = Targets::new().with_target("tollgate", level).with_default(level.min(Level::WARN));
    // h2 warns of frames that make no sense: a client could fill a disk with them.
    let levels = levels.with_target("h2", tracing_subscriber::filter::LevelFilter::OFF);
    let logs = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_target(false);
    let registry = tracing_subscriber::registry().with(levels);
    match format {
        LogFormat::Text => registry.with(logs.with_ansi(io::stderr().is_terminal())).init(),
        LogFormat::Json => registry.with(logs.json().flatten_event(true)).init(),
    }
}

/// Lets one of many equal log lines through every ten seconds.
#[derive(Debug, Default)]
pub struct Bounded {
    last: Mutex<(Option<Instant>, u64)>,
}

impl Bounded {
    const EVERY: Duration = Duration::from_secs(10);

    /// How many there were since the last that was let through, this one included; `None`: say nothing.
    pub fn admit(&self) -> Option<u64> {
        let mut last = self.last.lock();
        last.1 += 1;
        if last.0.is_some_and(|at| at.elapsed() < Self::EVERY) {
            return None;
        }
        let (_, since_last) = std::mem::replace(&mut *last, (Some(Instant::now()), 0));
        Some(since_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_equal_failures_make_one_line() {
        let bounded = Bounded::default();
        let lines = (0..1_000).filter_map(|_| bounded.admit()).count();
        assert_eq!(lines, 1);
    }
}
