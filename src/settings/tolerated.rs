//! Values that `envoyproxy/ratelimit` accepts although they have no meaning here. A process that is started with its
//! environment must run: each such value counts as the nearest valid one, and a warning at the start says so.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::duration::{self, LONGEST};

/// How the invalid values of a variable are read.
struct Row {
    variable: &'static str,
    counts_as: CountsAs,
    why: &'static str,
}

enum CountsAs {
    /// The nearer end of this range of whole numbers.
    Whole(i64, i64),
    /// The nearer end of this range of numbers.
    Number(f64, f64),
    /// This maximum. Zero means unlimited there, so it counts as the maximum as well.
    Most(i64),
    /// This duration, if the value is not positive.
    Positive(Duration),
}

/// Numbers of connections to Redis that a process can have.
pub(super) const POOL_SIZE: RangeInclusive<u16> = 1..=100;
/// Most simultaneous calls on a connection.
const STREAMS: u32 = 100_000;
/// Sizes in bytes that a response of a management server can have.
pub(super) const RESPONSE_BYTES: RangeInclusive<u32> = 0..=1 << 30;

const REDIS_TIMEOUT: Duration = Duration::from_millis(100);
const STATS_FLUSH_INTERVAL: Duration = Duration::from_secs(10);
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_secs(3);
const BACKOFF_INITIAL_INTERVAL: Duration = Duration::from_secs(10);
const BACKOFF_MAX_INTERVAL: Duration = Duration::from_secs(60);

const CONNECTIONS: &str = "calls share connections, of which a process has 1 to 100";
const DEFAULT: &str = "a duration of zero or less means the default";

const ROWS: &[Row] = &[
    pool("REDIS_POOL_SIZE"),
    pool("REDIS_PERSECOND_POOL_SIZE"),
    Row {
        variable: "GRPC_MAX_CONCURRENT_STREAMS",
        counts_as: CountsAs::Most(STREAMS as i64),
        why: "the number of calls on a connection is limited",
    },
    Row {
        variable: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        counts_as: CountsAs::Whole(*RESPONSE_BYTES.start() as i64, *RESPONSE_BYTES.end() as i64),
        why: "a response is at most 1 GiB",
    },
    Row {
        variable: "LOCAL_CACHE_SIZE_IN_BYTES",
        counts_as: CountsAs::Whole(0, i64::MAX),
        why: "a negative size disables the cache",
    },
    Row {
        variable: "EXPIRATION_JITTER_MAX_SECONDS",
        counts_as: CountsAs::Whole(0, u32::MAX as i64),
        why: "a counter never expires before its window ends",
    },
    Row {
        variable: "NEAR_LIMIT_RATIO",
        counts_as: CountsAs::Number(0.0, 1.0),
        why: "above 1 no hit is near its limit, below 0 every hit is",
    },
    Row {
        variable: "TRACING_SAMPLING_RATE",
        counts_as: CountsAs::Number(0.0, 1.0),
        why: "above 1 every call is sampled, below 0 none is",
    },
    positive(
        "REDIS_TIMEOUT",
        REDIS_TIMEOUT,
        "every wait for Redis needs a deadline, because the failure mode must answer in time",
    ),
    positive("STATS_FLUSH_INTERVAL", STATS_FLUSH_INTERVAL, DEFAULT),
    positive("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", CONNECT_RETRY_INTERVAL, DEFAULT),
    positive("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", BACKOFF_INITIAL_INTERVAL, DEFAULT),
    positive("XDS_CLIENT_BACKOFF_MAX_INTERVAL", BACKOFF_MAX_INTERVAL, DEFAULT),
];

const fn pool(variable: &'static str) -> Row {
    Row { variable, counts_as: CountsAs::Whole(*POOL_SIZE.start() as i64, *POOL_SIZE.end() as i64), why: CONNECTIONS }
}

const fn positive(variable: &'static str, default: Duration, why: &'static str) -> Row {
    Row { variable, counts_as: CountsAs::Positive(default), why }
}

/// Returns the value that replaces `value` and the reason; `None` if the value is valid.
pub fn tolerated(variable: &str, value: &str) -> Option<String> {
    let Row { counts_as, why, .. } = ROWS.iter().find(|row| row.variable == variable)?;
    let counts_as = match *counts_as {
        CountsAs::Whole(least, most) => {
            let number: i128 = value.parse().ok()?;
            outside(number, number.clamp(least.into(), most.into()))
        }
        CountsAs::Most(most) => {
            let number: i128 = value.parse().ok()?;
            outside(number, if (1..=most.into()).contains(&number) { number } else { most.into() })
        }
        CountsAs::Number(least, most) => {
            let number: f64 = value.parse().ok()?;
            outside(number, number.clamp(least, most))
        }
        CountsAs::Positive(default) => {
            let given = duration::of_any_length(value)?;
            if given.is_zero() {
                Some(humantime::format_duration(default).to_string())
            } else {
                (given > LONGEST).then(|| humantime::format_duration(LONGEST).to_string())
            }
        }
    };
    counts_as.map(|counts_as| format!("counts as {counts_as}: {why}"))
}

fn outside<T: Display + PartialEq>(given: T, nearest: T) -> Option<String> {
    (given != nearest).then(|| nearest.to_string())
}

/// Returns a parser of whole numbers. A number outside `range` counts as its nearer end.
pub(super) fn whole_or_nearest<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync
where
    T: TryFrom<i128> + Copy + Into<i128> + Send + Sync,
{
    move |text| {
        let (least, most) = (*range.start(), *range.end());
        let number: Result<i128, _> = text.parse();
        let number = number.map_err(|_| format!("must be a whole number from {} to {}", least.into(), most.into()))?;
        // The number is within the range of the type by now.
        T::try_from(number.clamp(least.into(), most.into())).map_err(|_| "is too large".to_owned())
    }
}

/// Parses the most simultaneous calls on a connection; 0 means the maximum.
pub(super) fn streams(text: &str) -> Result<u32, String> {
    let number = whole_or_nearest(0..=STREAMS)(text)?;
    Ok(if number == 0 { STREAMS } else { number })
}

/// Parses a number. One outside 0 to 1 counts as the nearer of the two.
pub(super) fn share_or_nearest(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| !number.is_nan());
    number.map(|number| number.clamp(0.0, 1.0)).ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

/// Returns a parser of durations of up to a year. A duration that is not positive counts as the one that [`tolerated`]
/// has for `variable`.
pub(super) fn positive_or_default(
    variable: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let default = ROWS.iter().find_map(|row| match row.counts_as {
            CountsAs::Positive(default) if row.variable == variable => Some(default),
            _ => None,
        });
        match (duration::of_any_length(text), default) {
            (Some(Duration::ZERO), Some(default)) => Ok(default),
            (Some(given), _) => Ok(given.min(LONGEST)),
            (None, _) => duration::duration(text),
        }
    }
}

/// Parses a duration. Zero, a negative duration and one of more than a year mean forever.
pub(super) fn duration_or_never(text: &str) -> Result<Duration, String> {
    match duration::of_any_length(text) {
        Some(given) if given.is_zero() || given > LONGEST => Ok(Duration::MAX),
        Some(given) => Ok(given),
        None => duration::duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    #[test]
    fn what_means_something_has_no_remark_and_what_does_not_says_as_what_it_counts() {
        for (variable, value, remark) in [
            ("REDIS_POOL_SIZE", "500", Some("counts as 100: calls share connections")),
            ("REDIS_PERSECOND_POOL_SIZE", "0", Some("counts as 1: calls share connections")),
            ("REDIS_POOL_SIZE", "100", None),
            ("NEAR_LIMIT_RATIO", "1.5", Some("counts as 1: above 1 no hit is near")),
            ("NEAR_LIMIT_RATIO", "0.8", None),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "-1", Some("counts as 0: a negative size")),
            ("REDIS_TIMEOUT", "0", Some("counts as 100ms: every wait for Redis")),
            ("REDIS_TIMEOUT", "-1s", Some("counts as 100ms")),
            ("REDIS_TIMEOUT", "5s", None),
            ("GRPC_MAX_CONCURRENT_STREAMS", "0", Some("counts as 100000: ")),
            ("GRPC_MAX_CONNECTION_AGE", "0s", None),
        ] {
            let said = tolerated(variable, value);
            let is_right = match remark {
                Some(remark) => said.as_deref().is_some_and(|said| said.starts_with(remark)),
                None => said.is_none(),
            };
            assert!(is_right, "{variable}={value}: {said:?}");
        }
    }

    #[test]
    fn every_row_is_a_setting() {
        let settings = settings::names();
        let unknown: Vec<_> = ROWS.iter().map(|row| row.variable).filter(|name| !settings.contains(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} are no settings");
    }

    #[test]
    fn for_ever_is_written_in_several_ways() {
        for text in ["0", "0s", "-1s", "876000h"] {
            assert_eq!(duration_or_never(text), Ok(Duration::MAX), "{text}");
        }
        assert_eq!(duration_or_never("24h"), Ok(Duration::from_secs(86_400)));
        assert!(duration_or_never("soon").is_err());
    }
}
