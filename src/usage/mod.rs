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
    #[error("keep must be at least one {0}, which is what a record is about, and at most 3660d")]
    Keep(Period),
}

/// The most that a record has denied: it has six bytes for each number.
const MAX_DENIED: i64 = (1 << 48) - 1;
/// The largest of the others, and below zero the smallest: they have a sign.
const MAX_SIGNED: i64 = (1 << 47) - 1;

/// How much a counter was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests that passed. Below zero only in a part of a record: one that is denied after all may be taken back on
    /// another page than the one that it was added to.
    pub admitted: i64,
    /// Requests that did not.
    pub denied: u64,
    /// The hits of those that passed, times the limit's `cost`, less what was refunded; where the rule says
    /// `count_denied: true`, of those that did not pass, too. Below zero where more was refunded.
    pub cost: i64,
}

/// What a decision adds to a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// In which period, by its index.
    pub index: u64,
    /// To [`Totals::admitted`].
    pub admitted: i64,
    /// To [`Totals::denied`].
    pub denied: i64,
    /// To [`Totals::cost`].
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

    /// How long a page is kept that a record has just been added to, in milliseconds: all that may still come onto it
    /// is kept for long enough.
    pub fn page_kept_ms(self) -> u64 {
        let keep = u64::try_from(self.keep.as_millis()).unwrap_or(u64::MAX);
        keep.saturating_add(self.period.page_ms())
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

    /// How long a time a page is about, in milliseconds.
    pub const fn page_ms(self) -> u64 {
        self.ms() * self.per_page()
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

    /// A record after a decision. It stays within what it has room for.
    #[must_use]
    pub fn with(self, added: Added) -> Totals {
        let signed = |sum: i64, added: i64| sum.saturating_add(added).clamp(-MAX_SIGNED, MAX_SIGNED);
        let denied = i64::try_from(self.denied).unwrap_or(MAX_DENIED).saturating_add(added.denied);
        Totals {
            admitted: signed(self.admitted, added.admitted),
            denied: denied.clamp(0, MAX_DENIED).unsigned_abs(),
            cost: signed(self.cost, added.cost),
        }
    }

    /// As it lies in Redis: 18 bytes.
    pub fn pack(self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let numbers = [self.admitted.to_le_bytes(), self.denied.to_le_bytes(), self.cost.to_le_bytes()];
        for (part, number) in bytes.chunks_exact_mut(NUMBER).zip(&numbers) {
            part.copy_from_slice(&number[..NUMBER]);
        }
        bytes
    }

    /// The record of these bytes; `None` where it is none.
    pub fn unpack(bytes: &[u8]) -> Option<Totals> {
        let bytes: &[u8; RECORD] = bytes.try_into().ok()?;
        let number = |place: usize| {
            let part = &bytes[place * NUMBER..(place + 1) * NUMBER];
            part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        // The sign is the highest bit of 48.
        let signed = |place| (number(place) << 16).cast_signed() >> 16;
        Some(Totals { admitted: signed(0), denied: number(1), cost: signed(2) })
    }
}

/// Bytes of a number in a record, and of a record.
const NUMBER: usize = 6;
const RECORD: usize = 3 * NUMBER;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            admitted in -MAX_SIGNED..=MAX_SIGNED, denied in 0..=MAX_DENIED.unsigned_abs(),
            cost in -MAX_SIGNED..=MAX_SIGNED,
        ) {
            let totals = Totals { admitted, denied, cost };
            prop_assert_eq!(Totals::unpack(&totals.pack()), Some(totals));
        }

        #[test]
        fn a_record_has_room_for_what_it_becomes(
            steps in prop::collection::vec([any::<i64>(), any::<i64>(), any::<i64>()], 1..8)
        ) {
            let mut totals = Totals::default();
            for [admitted, denied, cost] in steps {
                totals = totals.with(Added { index: 0, admitted, denied, cost });
                prop_assert_eq!(Totals::unpack(&totals.pack()), Some(totals));
            }
        }
    }

    #[test]
    fn bytes_of_another_length_are_no_record() {
        for bytes in [&b""[..], b"12", &[0; 17], &[0; 19]] {
            assert_eq!(Totals::unpack(bytes), None);
        }
    }

    #[test]
    fn a_record_is_kept_for_a_period_at_least_and_for_ten_years_at_most() {
        let keep = |period, seconds| Usage::new(period, Duration::from_secs(seconds)).map(|usage| usage.keep());
        for period in Period::ALL {
            let shortest = period.ms() / 1_000;
            assert_eq!(keep(period, shortest - 1), Err(UsageError::Keep(period)));
            assert_eq!(keep(period, shortest), Ok(Duration::from_secs(shortest)));
            assert_eq!(keep(period, 3_660 * 86_400), Ok(MAX_KEEP));
            assert_eq!(keep(period, 3_660 * 86_400 + 1), Err(UsageError::Keep(period)));
        }
    }
}
