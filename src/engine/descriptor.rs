//! Requests from clients. These types are independent of gRPC; their creator has checked the request's size.

use std::fmt;
use std::time::Duration;

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

use crate::algorithm::{Algorithm, Ask, Limit, MAX_PERIOD, NEVER, Options, StartsOn, TimeZone};

/// The key of the entry of a descriptor by which a stream holds hits of a budget. Its value names the stream. Only
/// entries that choose a price follow it.
pub const HOLD_KEY: &str = "hold";

/// The key of the entry of a descriptor by which a stream settles what it has used of a budget, in the same place.
pub const SETTLE_KEY: &str = "settle";

/// Text of a request. Up to 24 bytes need no allocation.
pub type Text = CompactString;

/// One call: a domain, and descriptors that must all be allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Domain of the rules.
    pub domain: Text,
    /// Descriptors in the client's order, which the answer keeps.
    pub descriptors: Vec<Descriptor>,
}

/// Formats the request as people write it: `user=ann path=/a + remote_address=192.0.2.1`.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, descriptor) in self.descriptors.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { " + " })?;
            for (level, Entry { key, value }) in descriptor.entries.iter().enumerate() {
                write!(f, "{}{key}={value}", if level == 0 { "" } else { " " })?;
            }
        }
        Ok(())
    }
}

/// A descriptor: one thing to count, with its entries from general to specific.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The path through the tree of rules.
    pub entries: Vec<Entry>,
    /// The operation: to take hits, refund them, and so on.
    pub ask: Ask,
    /// A limit that the client sets to replace the configured one.
    pub limit: Option<Override>,
}

impl Descriptor {
    /// Returns whether it settles what a stream has used. Entries that choose a price may follow the one that says so.
    pub fn settles(&self) -> bool {
        self.entries.iter().any(|entry| entry.key == SETTLE_KEY)
    }
}

/// One step of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Key of the entry: `user`, `path`.
    pub key: Text,
    /// Value of the entry.
    pub value: Text,
}

/// A limit that a client sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Override {
    /// Hits in a period.
    pub number: u32,
    /// Length of the period.
    pub period: Duration,
}

impl Override {
    /// Creates a limit for `multiplier` units; `None` if that is zero or over 366 days.
    pub fn new(number: u32, unit: Unit, multiplier: u32) -> Option<Override> {
        Override::of_period(number, unit.duration().checked_mul(multiplier)?)
    }

    /// Creates a limit for this period; `None` if it is zero or over 366 days.
    pub fn of_period(number: u32, period: Duration) -> Option<Override> {
        (!period.is_zero() && period <= MAX_PERIOD).then_some(Override { number, period })
    }

    /// Parses a limit as people write it: `5/minute`, or `5/30second`.
    pub fn parse(text: &str) -> Option<Override> {
        let (number, period) = text.split_once('/')?;
        let digits = period.find(|char: char| !char.is_ascii_digit())?;
        let multiplier = if digits == 0 { 1 } else { period[..digits].parse().ok()? };
        let name = period[digits..].trim_end_matches('s');
        let unit = Unit::ALL.into_iter().find(|unit| unit.name() == name)?;
        Override::new(number.parse().ok()?, unit, multiplier)
    }
}

/// The effect of one limit's denial on the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The request is denied.
    #[default]
    Enforced,
    /// The request is denied if all limits with this role that apply to it deny it.
    Quota,
    /// No effect: the denial is only counted and reported.
    Shadow,
}

impl Role {
    /// Returns the name in answers of the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Enforced => "enforced",
            Role::Quota => "quota",
            Role::Shadow => "shadow",
        }
    }
}

/// The units of time that Envoy's protocol has names for. A month is 30 days and a year is 365 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All units, the shortest first.
    pub const ALL: [Unit; 7] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Returns the name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// Returns the length.
    pub const fn duration(self) -> Duration {
        const DAY: u64 = 24 * 60 * 60;
        Duration::from_secs(match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 60 * 60,
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 30 * DAY,
            Unit::Year => 365 * DAY,
        })
    }

    /// The name of the unit of a balance, which never ends. It is none on the wire.
    pub const NEVER: &'static str = "never";

    /// Returns the unit with exactly this length.
    pub fn of(duration: Duration) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.duration() == duration)
    }

    /// Returns the longest unit that divides this duration, and the quotient.
    pub fn multiple_of(duration: Duration) -> Option<(Unit, u32)> {
        let fits =
            |unit: &Unit| !duration.is_zero() && duration.as_millis().is_multiple_of(unit.duration().as_millis());
        let unit = Unit::ALL.into_iter().rev().find(fits)?;
        Some((unit, u32::try_from(duration.as_secs() / unit.duration().as_secs()).ok()?))
    }
}

/// Formats a duration as rules write it, in the largest unit that leaves no fraction: `90m`, `1500ms`.
pub fn length(length: Duration) -> String {
    const UNITS: [(&str, u128); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let ms = length.as_millis();
    let (unit, unit_ms) = UNITS.into_iter().find(|(_, unit)| ms.is_multiple_of(*unit)).unwrap_or(("ms", 1));
    format!("{}{unit}", ms / unit_ms)
}

/// Formats a number of things: `1 hit`, `2 hits`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats when a counter resets, if it does: a balance never does.
pub fn resets(ms: u64) -> Option<String> {
    let resets = 0 < ms && u128::from(ms) < NEVER.as_millis();
    resets.then(|| format!(", resets in {}", wait(ms)))
}

/// Formats a waiting time: short times exact to the millisecond, longer ones rounded up.
pub fn wait(ms: u64) -> String {
    const EXACT_MS: u64 = 10_000;
    const PLAIN_SECONDS: u64 = 600;
    let seconds = ms.div_ceil(1_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..EXACT_MS => format!("{}s", ms as f64 / 1_000.0),
        _ if seconds < PLAIN_SECONDS => format!("{seconds}s"),
        _ => humantime::format_duration(Duration::from_secs(seconds)).to_string(),
    }
}

/// Describes the period of a limit: `per minute`, `per 90s`, `per month in Asia/Shanghai`, `per 14d in UTC from
/// 2026-01-15`. Without one it is `in all` for a budget, which is a balance then, and `at once` for requests in
/// progress.
pub fn per(algorithm: &str, window: Option<Duration>, time_zone: Option<&str>, starts_on: Option<StartsOn>) -> String {
    let there = time_zone.map(|name| format!(" in {name}")).unwrap_or_default();
    let from = starts_on.map(|date| format!(" from {date}")).unwrap_or_default();
    match window {
        None if algorithm == Algorithm::Budget.name() => "in all".to_owned(),
        None => "at once".to_owned(),
        Some(window) => match unit_of(window, starts_on) {
            Some(unit) => format!("per {}{there}{from}", unit.name()),
            None => format!("per {}{there}{from}", length(window)),
        },
    }
}

/// Returns the unit of windows of this length; `None` if it is none, or a number of days that are counted from a date.
pub fn unit_of(window: Duration, starts_on: Option<StartsOn>) -> Option<Unit> {
    if let Some(StartsOn::Days(_)) = starts_on { None } else { Unit::of(window) }
}

/// Describes the period of a limit: `per minute`, or `in all` for a balance.
pub fn per_of(limit: &Limit) -> String {
    let Options { time_zone, starts_on, .. } = limit.options();
    per(limit.algorithm().name(), limit.window(), time_zone.map(TimeZone::name), starts_on)
}

/// Describes a limit for people: `5 per minute, sliding_window`.
pub fn in_words(limit: &Limit) -> String {
    let held = match limit.options().max_delay {
        None => String::new(),
        Some(delay) => format!(", delayed up to {}", humantime::format_duration(delay)),
    };
    format!("{} {}, {}{held}", limit.number(), per_of(limit), limit.algorithm())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;

    #[test]
    fn a_wait_is_exact_where_it_is_short_and_never_rounded_down() {
        let said = [0, 350, 1_000, 1_250, 9_999, 10_000, 10_001, 65_000, 599_000, 600_001, 86_399_001].map(wait);
        let expected = ["0ms", "350ms", "1s", "1.25s", "9.999s", "10s", "11s", "65s", "599s", "10m 1s", "1day"];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_limit_is_a_number_in_a_unit_or_in_several() {
        assert_eq!(Override::parse("5/minute"), Override::new(5, Unit::Minute, 1));
        assert_eq!(Override::parse("0/30seconds"), Override::new(0, Unit::Second, 30));
        for wrong in ["", "5", "/minute", "5/", "5/30", "5/0second", "5/minuets", "-1/day", "5/400day"] {
            assert_eq!(Override::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_period_reads_as_rules_write_it() {
        let said = |ms| per("sliding_window", Some(Duration::from_millis(ms)), None, None);
        assert_eq!(
            [1, 1_500, 60_000, 90_000, 5_400_000, 604_800_000, 31_622_400_000].map(said),
            ["per 1ms", "per 1500ms", "per minute", "per 90s", "per 90m", "per week", "per 366d"]
        );
        assert_eq!(per("concurrency", None, None, None), "at once");
        assert_eq!(per("budget", None, None, None), "in all");
    }

    #[test]
    fn days_that_are_counted_from_a_date_are_no_month() {
        let from = StartsOn::parse("2026-01-31");
        let said = |days: u64, from| per("budget", Some(Duration::from_secs(days * 86_400)), Some("UTC"), from);
        assert_eq!(said(30, from), "per month in UTC from 2026-01-31");
        assert_eq!(said(30, from.map(StartsOn::of_days)), "per 30d in UTC from 2026-01-31");
    }

    #[test]
    fn a_unit_from_a_day_on_is_one_of_the_calendar() {
        for unit in Unit::ALL {
            let options = Options { time_zone: TimeZone::named("UTC"), ..Options::default() };
            let limit = Limit::new(Algorithm::FixedWindow, 5, unit.duration(), options);
            assert_eq!(limit.is_ok(), unit.duration() >= Unit::Day.duration(), "{unit:?}");
            let mut name = String::new();
            if let Ok(limit) = limit {
                limit.identity(&mut name);
                assert_eq!(
                    (name, per_of(&limit)),
                    (format!("fw1:{}/UTC", unit.name()), format!("per {} in UTC", unit.name()))
                );
            }
        }
    }
}
