//! Parsers of durations, in the spelling of people and of Go.

use std::time::Duration;

/// Longest duration allowed. A longer one is a mistake, and could overflow the clock.
pub(super) const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than zero".into()),
        duration => Ok(duration),
    }
}

/// Parses a duration of at most a year.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).ok().or_else(|| of_go(text)) {
        Some(duration) if duration > LONGEST => Err("must be at most 366d".into()),
        Some(duration) => Ok(duration),
        None => Err("a duration has units, such as 150us, 20ms, 1h30m".into()),
    }
}

/// Parses a duration of any length, as in Go; zero for a negative one.
pub(super) fn of_any_length(text: &str) -> Option<Duration> {
    let (is_negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let duration = humantime::parse_duration(unsigned).ok().or_else(|| of_go(unsigned))?;
    Some(if is_negative { Duration::ZERO } else { duration })
}

/// Go's units in nanoseconds. A longer name comes before its own prefix.
const UNITS: [(&str, f64); 8] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Parses the durations that Go's `time.ParseDuration` accepts and `humantime` does not: fractions, as in `1.5h` or
/// `.5s`, and a plus.
fn of_go(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (number, unit) = rest.split_at(end);
        let (name, nanos) = UNITS.into_iter().find(|(name, _)| unit.starts_with(name))?;
        let nanos = number.parse::<f64>().ok()? * nanos;
        sum = sum.checked_add(Duration::try_from_secs_f64(nanos / 1e9).ok()?)?;
        rest = &unit[name.len()..];
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gos_spellings_are_durations() {
        for (text, millis) in [
            ("150us", 0.15),
            ("150µs", 0.15),
            ("10s", 10_000.0),
            ("24h", 86_400_000.0),
            ("1h30m", 5_400_000.0),
            ("1.5h", 5_400_000.0),
            (".5s", 500.0),
            ("1m0.5s", 60_500.0),
            ("+2ms", 2.0),
            ("0", 0.0),
            ("0s", 0.0),
            ("1day", 86_400_000.0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(millis / 1000.0)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_or_too_long_is_refused() {
        for text in ["", "5", "-1s", "1.2.3s", "1x", "s", "ms5", "1e9h", "1.s.", "400d", "1e400s", "NaNs", "infs"] {
            assert!(duration(text).is_err(), "{text}: {:?}", duration(text));
        }
        assert!(positive_duration("0s").is_err() && positive_duration("1ns").is_ok());
    }
}
