//! Usage that can be billed: how much of a limit each counter was used, by minute, hour or day.
//!
//! The store writes it where it charges, in the same step: so it says what was charged, and nothing else. What it was
//! in one period is a record; the records of a counter that lie close together are a page, which the store keeps and
//! forgets as one.
//!
//! Requests whose call is lost, and those that failure modes answer, have charged nothing that is known: they are in
//! no record.

pub mod answer;
pub mod ledger;
pub mod page;
pub mod statement;
mod time;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use time::{Time, TimeError};

/// What is kept of a limit's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage {
    period: Period,
    keep: Duration,
}

/// The longest time that records are kept: ten years and a little.
const MAX_KEEP: Duration = Duration::from_secs(3_660 * 24 * 60 * 60);

/// How long a time one record is about. It is aligned to UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Period {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
}

/// Why no such usage is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// Out of range.
    #[error("keep must be from one {0} to 3660d: so long is what a counter was used in a {0} kept")]
    Keep(Period),
}

/// How much a counter was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests that passed.
    pub admitted: u64,
    /// Requests that did not.
    pub denied: u64,
    /// What they were charged, less what was refunded: hits times the limit's `cost`. Below zero where more was
    /// refunded than charged.
    pub cost: i64,
}

impl Usage {
    /// The records of such periods, kept so long after they end.
    ///
    /// # Errors
    /// Where `keep` is shorter than a period, or longer than ten years.
    pub fn new(period: Period, keep: Duration) -> Result<Usage, UsageError> {
        let shortest = Duration::from_millis(period.ms());
        if !(shortest..=MAX_KEEP).contains(&keep) {
            return Err(UsageError::Keep(period));
        }
        Ok(Usage { period, keep })
    }

    /// How long a time one record is about.
    pub fn period(self) -> Period {
        self.period
    }

    /// How long a record is kept after its period.
    pub fn keep(self) -> Duration {
        self.keep
    }
}

/// As rules have it.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { period, keep } = self;
        write!(f, "{{by: {period}, keep: {}}}", humantime::format_duration(*keep))
    }
}

impl Period {
    /// All of them.
    pub const ALL: [Period; 3] = [Period::Minute, Period::Hour, Period::Day];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Period> {
        Period::ALL.into_iter().find(|period| period.name() == name)
    }

    /// The name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Period::Minute => "minute",
            Period::Hour => "hour",
            Period::Day => "day",
        }
    }

    /// How long it is, in milliseconds.
    pub const fn ms(self) -> u64 {
        const MINUTE: u64 = 60 * 1_000;
        match self {
            Period::Minute => MINUTE,
            Period::Hour => 60 * MINUTE,
            Period::Day => 24 * 60 * MINUTE,
        }
    }

    /// How many of them are on one page: an hour, a day, or 32 days.
    pub const fn per_page(self) -> u64 {
        match self {
            Period::Minute => 60,
            Period::Hour => 24,
            Period::Day => 32,
        }
    }

    /// The number of the period that a time lies in, from the epoch on.
    pub const fn index(self, at_ms: u64) -> u64 {
        at_ms / self.ms()
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Totals {
    /// What this and another were together.
    #[must_use]
    pub fn plus(self, other: Totals) -> Totals {
        Totals {
            admitted: self.admitted.saturating_add(other.admitted),
            denied: self.denied.saturating_add(other.denied),
            cost: self.cost.saturating_add(other.cost),
        }
    }
}
