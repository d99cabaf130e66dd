//! Times as logs write them.

use jiff::Timestamp;

/// Near the end of the year 9999, the latest time that RFC 3339 can write in every time zone.
const END_MS: u64 = 253_402_128_000_000;

/// The units of numbers: the smallest number read in each unit, and how many of the unit are a millisecond. For
/// example, 1e11 would be in the year 5138 if read in seconds, as would 1e14 in milliseconds.
const UNITS: [(f64, f64); 4] = [(0.0, 1e-3), (1e11, 1.0), (1e14, 1e3), (1e17, 1e6)];

/// Parses a time to milliseconds since the Unix epoch. The text is in RFC 3339 format, or a number of seconds,
/// milliseconds, microseconds or nanoseconds since the epoch, as its size shows. Returns `None` for other texts, and
/// for times before the epoch or after the year 9999.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let ms = match text.parse::<f64>() {
        Ok(number) => {
            let (_, in_a_ms) = UNITS.into_iter().rfind(|(from, _)| number >= *from)?;
            (number / in_a_ms).round() as u64
        }
        Err(_) => {
            let time: Timestamp = text.parse().ok()?;
            u64::try_from(time.as_nanosecond().div_euclid(1_000_000)).ok()?
        }
    };
    (ms < END_MS).then_some(ms)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_time_is_rfc_3339_or_a_number_of_seconds_or_parts_of_them() {
        let at = Some(1_767_323_045_678);
        for text in [
            "2026-01-02T03:04:05.678Z",
            "2026-01-02T03:04:05.678999Z",
            "2026-01-02T04:04:05.678+01:00",
            "1767323045.678",
            "1767323045678",
            "1767323045678123",
            "1767323045678123456",
            " 1767323045678 ",
        ] {
            assert_eq!(parse(text), at, "{text}");
        }
        for wrong in [
            "",
            "-",
            "now",
            "-1",
            "NaN",
            "inf",
            "1969-12-31T23:59:59Z",
            "2026-13-02T03:04:05Z",
            "1e300",
            "9999-12-31T23:59:59-01:00",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        /// A report prints every time it read, so no time may be after the year 9999.
        #[test]
        fn whatever_is_a_time_can_be_written(number in prop_oneof![any::<f64>(), 0.0..1e21]) {
            if let Some(ms) = parse(&number.to_string()) {
                let written = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string();
                prop_assert_eq!(parse(&written), Some(ms));
            }
        }
    }
}
