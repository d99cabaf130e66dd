//! Times as people write them, in UTC.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::algorithm::TimeZone;

/// A time in milliseconds since the epoch, written in RFC 3339 format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// The error for text that is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a time: write a date (2026-11-01), a time (2026-11-01T12:00:00Z) or milliseconds since 1970, in UTC"
)]
pub struct TimeError(String);

/// Near the end of the year 9999, the latest time that RFC 3339 can write in every time zone.
const END_MS: u64 = 253_402_128_000_000;

/// Smaller numbers would be times before 1974 and are most likely seconds.
const LEAST_MS: u64 = 100_000_000_000;

impl Time {
    /// The latest time.
    pub const END: Time = Time(END_MS);

    /// Reads a time as [`Time::from_str`] does, but a date as that of this time zone.
    ///
    /// # Errors
    /// If the text is not a time.
    pub fn read_in(text: &str, zone: TimeZone) -> Result<Time, TimeError> {
        zone.start_of_written(text).map_or_else(|| text.parse(), |ms| Ok(Time(ms)))
    }

    /// Returns the first moment of this month and of the next one.
    pub fn month(self) -> (Time, Time) {
        let at = self.to_jiff().to_zoned(tz::TimeZone::UTC).date();
        let begins = at.first_of_month();
        let next = begins.last_of_month().tomorrow();
        (of_date(begins).unwrap_or_default(), next.ok().and_then(of_date).unwrap_or(Time::END))
    }

    /// Returns the time `ms` later, but never after the end.
    #[must_use]
    pub fn plus(self, ms: u64) -> Time {
        Time(self.0.saturating_add(ms)).min(Time::END)
    }

    fn to_jiff(self) -> Timestamp {
        let ms = i64::try_from(self.min(Time::END).0).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
    }
}

fn of_date(date: Date) -> Option<Time> {
    let at = date.to_zoned(tz::TimeZone::UTC).ok()?.timestamp();
    Some(Time(u64::try_from(at.as_millisecond()).ok()?))
}

impl FromStr for Time {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Time, TimeError> {
        let ms = match text.parse::<u64>() {
            Ok(ms) => Some(ms).filter(|ms| *ms == 0 || *ms >= LEAST_MS),
            Err(_) => match text.parse::<Timestamp>() {
                Ok(at) => u64::try_from(at.as_millisecond()).ok(),
                // A time without a zone is rejected, because its zone would be a guess.
                Err(_) if text.len() > "2026-11-01".len() => None,
                Err(_) => text.parse().ok().and_then(of_date).map(|time| time.0),
            },
        };
        ms.filter(|ms| *ms <= END_MS).map(Time).ok_or_else(|| TimeError(text.to_owned()))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = UNIX_EPOCH + Duration::from_millis((*self).min(Time::END).0);
        if self.0.is_multiple_of(1_000) {
            write!(f, "{}", humantime::format_rfc3339_seconds(at))
        } else {
            write!(f, "{}", humantime::format_rfc3339_millis(at))
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_time_is_a_date_or_rfc_3339_or_milliseconds() {
        let day = Ok(Time(1_793_491_200_000));
        for text in ["2026-11-01", "2026-11-01T00:00:00Z", "2026-11-01T08:00:00+08:00", "1793491200000"] {
            assert_eq!(text.parse(), day, "{text}");
        }
        assert_eq!("2026-11-01T00:00:00.250Z".parse(), Ok(Time(1_793_491_200_250)));
        let wrong = ["", "now", "2026-13-01", "2026-11-31", "1793491200", "-1", "2026-11-01T00:00:00", "1969-12-31"];
        for text in wrong.into_iter().chain(["2026-11", "253402128000001", "2026-11-01 00:00", "99999999999999999999"])
        {
            assert_eq!(text.parse::<Time>(), Err(TimeError(text.to_owned())));
        }
    }

    #[test]
    fn months_are_of_the_calendar() {
        let month = |text: &str| {
            let (begins, ends) = text.parse::<Time>().unwrap().month();
            format!("{begins} {ends}")
        };
        assert_eq!(month("2028-02-29T23:59:59Z"), "2028-02-01T00:00:00Z 2028-03-01T00:00:00Z");
        assert_eq!(month("2026-12-01"), "2026-12-01T00:00:00Z 2027-01-01T00:00:00Z");
        assert_eq!(month("9999-12-29"), "9999-12-01T00:00:00Z 9999-12-30T00:00:00Z");
        assert_eq!(Time::END.to_string().parse(), Ok(Time::END));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(ms in LEAST_MS..END_MS) {
            let (begins, ends) = Time(ms).month();
            prop_assert!(begins <= Time(ms) && Time(ms) <= ends);
            prop_assert_eq!(Time(ms).to_string().parse(), Ok(Time(ms)));
        }
    }
}
