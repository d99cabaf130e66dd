//! Usage records for billing: how much of a limit each counter used, by minute, hour or day.
//!
//! The store writes a record in the same step as the charge, so records contain exactly what was charged. A record
//! holds the usage of one period. Records of adjacent periods are grouped in a page, which the store keeps and expires
//! as a whole.
//!
//! If an instance decides requests by a lease, the store records them when the lease is returned, in the step that
//! settles it. What a lost return would have recorded is in no record.
//!
//! Requests whose call was lost, and requests answered by failure modes, have no known charge and are in no record.

pub mod page;
mod time;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use time::{Time, TimeError};

/// The usage records to keep for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage {
    period: Period,
    keep: Duration,
}

/// The longest time that records are kept: slightly more than ten years.
const MAX_KEEP: Duration = Duration::from_secs(3_660 * 24 * 60 * 60);

/// The length of time that one record covers, aligned with UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Period {
    /// One minute.
    Minute,
    /// One hour.
    Hour,
    /// One day.
    Day,
}

/// The reason why a usage setting is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// `keep` is out of range.
    #[error("keep must be at least one {0}, the length of a record, and at most 3660d")]
    Keep(Period),
}

/// The most denied requests in a record, which has six bytes for them.
const MAX_DENIED: i64 = (1 << 48) - 1;
/// The largest absolute value of admitted requests, which have a sign, and of costs: Lua adds up the costs of the 60
/// records of a page for refunds, and the sum must stay below 2^53.
const MAX_SIGNED: i64 = (1 << 47) - 1;
/// The same of a cost of a budget, whose corrections are no refunds: the largest whole number below 2^53.
const MAX_COST: i64 = (1 << 53) - 1;
/// The most hits of top-ups in a record, which has a double for them: the largest whole number below 2^53.
const MAX_TOPPED_UP: u64 = (1 << 53) - 1;

/// The usage of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests that passed. It can be negative in a part of a record: if a request is denied afterwards, it may be
    /// subtracted on another page than it was added to.
    pub admitted: i64,
    /// Requests that did not pass.
    pub denied: u64,
    /// Hits of requests that passed, times the limit's `cost`, less refunds. If the rule sets `count_denied: true`,
    /// hits of denied requests are included. Negative if hits of an earlier period of the page were refunded.
    pub cost: i64,
    /// Hits by which a budget was topped up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub topped_up: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The amounts that a decision adds to a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Index of the period.
    pub index: u64,
    /// Added to [`Totals::admitted`].
    pub admitted: i64,
    /// Added to [`Totals::denied`].
    pub denied: i64,
    /// Added to [`Totals::cost`].
    pub cost: i64,
    /// Added to [`Totals::topped_up`].
    pub topped_up: u64,
    /// The cost is that of a budget. A negative one corrects an earlier charge, which may be on another page, and is no
    /// refund.
    pub corrects: bool,
}

impl Added {
    /// Limits a refund to the total cost of the page's records, `charged`. Returns `None` if nothing is left of it.
    pub fn on_page(self, charged: i64) -> Option<Added> {
        let is_refund = self.admitted == 0 && self.denied == 0 && self.cost < 0 && !self.corrects;
        if !is_refund {
            return Some(self);
        }
        let cost = self.cost.max(-charged.max(0));
        (cost < 0).then_some(Added { cost, ..self })
    }
}

impl Usage {
    /// Creates records of this period that are kept for `keep` after they end.
    ///
    /// # Errors
    /// Fails if `keep` is shorter than a period, or longer than ten years.
    pub fn new(period: Period, keep: Duration) -> Result<Usage, UsageError> {
        let shortest = Duration::from_millis(period.ms());
        if !(shortest..=MAX_KEEP).contains(&keep) {
            return Err(UsageError::Keep(period));
        }
        Ok(Usage { period, keep })
    }

    /// Returns the length of time that one record covers.
    pub fn period(self) -> Period {
        self.period
    }

    /// Returns how long a record is kept after its period.
    pub fn keep(self) -> Duration {
        self.keep
    }

    /// Returns the TTL in milliseconds of a page that a record was just added to. It is long enough for every record
    /// that may still be added to the page.
    pub fn page_kept_ms(self) -> u64 {
        let keep = u64::try_from(self.keep.as_millis()).unwrap_or(u64::MAX);
        keep.saturating_add(self.period.page_ms())
    }
}

/// Formats the setting as rules write it.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { period, keep } = self;
        write!(f, "{{by: {period}, keep: {}}}", humantime::format_duration(*keep))
    }
}

impl Period {
    /// All periods.
    pub const ALL: [Period; 3] = [Period::Minute, Period::Hour, Period::Day];

    /// Returns the period with this name.
    pub fn named(name: &str) -> Option<Period> {
        Period::ALL.into_iter().find(|period| period.name() == name)
    }

    /// Returns the name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Period::Minute => "minute",
            Period::Hour => "hour",
            Period::Day => "day",
        }
    }

    /// Returns the length in milliseconds.
    pub const fn ms(self) -> u64 {
        const MINUTE: u64 = 60 * 1_000;
        match self {
            Period::Minute => MINUTE,
            Period::Hour => 60 * MINUTE,
            Period::Day => 24 * 60 * MINUTE,
        }
    }

    /// Returns the number of periods on one page, which covers an hour, a day, or 32 days.
    pub const fn per_page(self) -> u64 {
        match self {
            Period::Minute => 60,
            Period::Hour => 24,
            Period::Day => 32,
        }
    }

    /// Returns the length of time that a page covers, in milliseconds.
    pub const fn page_ms(self) -> u64 {
        self.ms() * self.per_page()
    }

    /// Returns the index of the period that contains a time, counted from the epoch.
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
    /// Returns the sum of two usages.
    #[must_use]
    pub fn plus(self, other: Totals) -> Totals {
        Totals {
            admitted: self.admitted.saturating_add(other.admitted),
            denied: self.denied.saturating_add(other.denied),
            cost: self.cost.saturating_add(other.cost),
            topped_up: self.topped_up.saturating_add(other.topped_up),
        }
    }

    /// Returns the record after a decision, limited to what a record can hold.
    #[must_use]
    pub fn with(self, added: Added) -> Totals {
        let signed = |sum: i64, added: i64, most: i64| sum.saturating_add(added).clamp(-most, most);
        let denied = i64::try_from(self.denied).unwrap_or(MAX_DENIED).saturating_add(added.denied);
        Totals {
            admitted: signed(self.admitted, added.admitted, MAX_SIGNED),
            denied: denied.clamp(0, MAX_DENIED).unsigned_abs(),
            cost: signed(self.cost, added.cost, if added.corrects { MAX_COST } else { MAX_SIGNED }),
            topped_up: self.topped_up.saturating_add(added.topped_up).min(MAX_TOPPED_UP),
        }
    }

    /// Returns the bytes that Redis stores: 19, and eight more if a budget was topped up.
    pub fn pack(self) -> Vec<u8> {
        let numbers = [self.admitted.to_le_bytes(), self.denied.to_le_bytes(), self.cost.to_le_bytes()];
        let parts = numbers.iter().zip(WIDTHS).flat_map(|(number, width)| &number[..width]);
        let mut bytes: Vec<u8> = parts.copied().collect();
        if self.topped_up > 0 {
            bytes.extend((self.topped_up as f64).to_le_bytes());
        }
        bytes
    }

    /// Parses the bytes of a record; `None` if they are not a record.
    pub fn unpack(bytes: &[u8]) -> Option<Totals> {
        let mut rest = bytes;
        let mut next = |width: usize| {
            let (part, behind) = rest.split_at_checked(width)?;
            rest = behind;
            Some(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        let [admitted, denied, cost] = WIDTHS;
        let numbers = (next(admitted)?, next(denied)?, next(cost)?);
        let topped_up = match rest {
            [] => 0.0,
            rest => f64::from_le_bytes(rest.try_into().ok()?),
        };
        // The sign is the highest of the bits.
        let signed = |number: u64, width: usize| {
            let unused = 64 - 8 * width;
            (number << unused).cast_signed() >> unused
        };
        let is_number = topped_up.fract() == 0.0 && (0.0..=MAX_TOPPED_UP as f64).contains(&topped_up);
        let totals = Totals {
            admitted: signed(numbers.0, admitted),
            denied: numbers.1,
            cost: signed(numbers.2, cost),
            topped_up: topped_up as u64,
        };
        is_number.then_some(totals)
    }
}

/// Bytes of the admitted and denied requests in a record, and of their cost.
const WIDTHS: [usize; 3] = [6, 6, 7];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            admitted in -MAX_SIGNED..=MAX_SIGNED, denied in 0..=MAX_DENIED.unsigned_abs(),
            cost in -MAX_COST..=MAX_COST, topped_up in prop_oneof![Just(0), 0..=MAX_TOPPED_UP],
        ) {
            let totals = Totals { admitted, denied, cost, topped_up };
            prop_assert_eq!(Totals::unpack(&totals.pack()), Some(totals));
        }

        #[test]
        fn a_record_has_room_for_what_it_becomes(
            steps in prop::collection::vec((any::<i64>(), any::<i64>(), any::<i64>(), any::<u64>()), 1..8),
            corrects: bool
        ) {
            let mut totals = Totals::default();
            for (admitted, denied, cost, topped_up) in steps {
                totals = totals.with(Added { index: 0, admitted, denied, cost, topped_up, corrects });
                prop_assert_eq!(Totals::unpack(&totals.pack()), Some(totals));
            }
        }
    }

    #[test]
    fn bytes_of_another_length_are_no_record() {
        for bytes in [&b""[..], b"12", &[0; 18], &[0; 20], &[0; 26], &[1; 27], &[0; 28]] {
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
