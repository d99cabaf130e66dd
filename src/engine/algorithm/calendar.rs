//! Windows that follow the calendar of a time zone: days, weeks, months and years, with summer time.
//!
//! A window begins at the first instant of its first day. This is midnight, or the clock change if it skips midnight.
//! The window ends where the next one begins. A day has 23 or 25 hours if the clocks change during it. If the clocks go
//! back across midnight, the new day continues through the repeated hour.
//!
//! The rules of all time zones are built into the program (`jiff`); no files of the host are read.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use jiff::civil::{Date, Time};
use jiff::tz::{self, AmbiguousOffset, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use parking_lot::Mutex;

/// The latest time that has a window, in the year 9000, before the end of `jiff`'s calendar.
const LAST_MS: u64 = 221_845_392_000_000;

/// A time zone of the IANA database. It is a reference, because every limit has room for one.
#[derive(Clone, Copy)]
pub struct TimeZone(&'static Zone);

struct Zone {
    name: String,
    rules: tz::TimeZone,
}

impl TimeZone {
    /// Returns the zone with this name, such as `Asia/Shanghai`, in any letter case; `None` if there is none.
    pub fn named(name: &str) -> Option<TimeZone> {
        /// Zones in use are never freed, so limits can be `Copy`. The database bounds their number.
        static IN_USE: Mutex<BTreeMap<&'static str, TimeZone>> = Mutex::new(BTreeMap::new());
        let rules = TimeZoneDatabase::bundled().get(name).ok().filter(|rules| !rules.is_unknown())?;
        let name = rules.iana_name()?;
        let mut in_use = IN_USE.lock();
        if let Some(zone) = in_use.get(name) {
            return Some(*zone);
        }
        let zone = TimeZone(Box::leak(Box::new(Zone { name: name.to_owned(), rules })));
        in_use.insert(zone.name(), zone);
        Some(zone)
    }

    /// Returns the names of all zones.
    pub fn names() -> Vec<String> {
        TimeZoneDatabase::bundled().available().map(|name| name.as_str().to_owned()).collect()
    }

    /// Returns the name as the database spells it.
    pub fn name(self) -> &'static str {
        &self.0.name
    }

    /// Returns the start of this day, and that of the next one, in milliseconds since the epoch.
    pub fn day(self, ms: u64) -> Range<u64> {
        self.range(ms, Unit::Day)
    }

    /// Returns the start of this month, and that of the next one, in milliseconds since the epoch.
    pub fn month(self, ms: u64) -> Range<u64> {
        self.range(ms, Unit::Month)
    }

    /// Returns the start of a date that is written as `2026-11-01`, in milliseconds since the epoch; `None` if the text
    /// is no date, or one before the epoch.
    pub fn start_of_written(self, date: &str) -> Option<u64> {
        // A time of a day would be cut.
        let is_date = date.len() == "2026-11-01".len() && date.as_bytes()[4] == b'-';
        let date = date.parse::<Date>().ok().filter(|_| is_date)?;
        (date.year() >= 1970).then(|| self.start_of(date))
    }

    /// Writes a time with its offset in this zone, as RFC 3339 has it.
    pub fn written(self, ms: u64) -> String {
        let at = timestamp(ms);
        at.display_with_offset(self.0.rules.to_offset(at)).to_string()
    }

    fn range(self, ms: u64, unit: Unit) -> Range<u64> {
        Calendar { unit, time_zone: self }.window(ms.min(LAST_MS))
    }

    /// Returns the date at a time.
    fn date(self, ms: u64) -> Date {
        self.0.rules.to_datetime(timestamp(ms)).date()
    }

    /// Returns the seconds that the clocks show at a time, since midnight.
    pub(crate) fn second_of_day(self, ms: u64) -> u32 {
        let time = self.0.rules.to_datetime(timestamp(ms)).time();
        let number = |part: i8| u32::try_from(part).unwrap_or(0);
        (number(time.hour()) * 60 + number(time.minute())) * 60 + number(time.second())
    }

    /// Returns the times near this one, in no particular order, at which the clocks show one of these seconds of the
    /// day, on the days from yesterday to the third from now, or change. Below a minute, the clocks may pass a second
    /// of the day without showing it: then a change is among the times.
    pub(crate) fn times_near(self, ms: u64, seconds_of_day: [u32; 2]) -> Vec<u64> {
        let mut found = Vec::new();
        let now = timestamp(ms);
        let first = self.date(ms).saturating_sub(1.day());
        for date in first.series(1.day()).take(5) {
            for seconds in seconds_of_day {
                let shown = date.to_datetime(Time::midnight()).saturating_add(i64::from(seconds).seconds());
                let (one, other) = match self.0.rules.to_ambiguous_timestamp(shown).offset() {
                    AmbiguousOffset::Unambiguous { offset } => (offset, None),
                    AmbiguousOffset::Fold { before, after } | AmbiguousOffset::Gap { before, after } => {
                        (before, Some(after))
                    }
                };
                found.extend([Some(one), other].into_iter().flatten().filter_map(|at| at.to_timestamp(shown).ok()));
            }
        }
        let last = found.iter().max().copied().unwrap_or(now);
        found.extend(self.0.rules.following(now).map(|change| change.timestamp()).take_while(|at| *at <= last));
        found.into_iter().filter_map(|at| u64::try_from(at.as_millisecond()).ok()).collect()
    }

    /// Returns the start of a date in milliseconds since the epoch; 0 for dates before the epoch.
    fn start_of(self, date: Date) -> u64 {
        let midnight = date.to_datetime(Time::midnight());
        let start = match self.0.rules.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                offset.to_timestamp(midnight)
            }
            // With the offset before the change, midnight is at the change or after it.
            AmbiguousOffset::Gap { before, .. } => before.to_timestamp(midnight).map(|late| self.last_change(late)),
        };
        start.map_or(0, |start| u64::try_from(start.as_millisecond()).unwrap_or(0))
    }

    /// Returns the time of the last clock change up to `until`.
    fn last_change(self, until: Timestamp) -> Timestamp {
        let after = until.saturating_add(SignedDuration::from_nanos(1)).unwrap_or(until);
        self.0.rules.preceding(after).next().map_or(until, |change| change.timestamp())
    }
}

fn timestamp(ms: u64) -> Timestamp {
    let timestamp = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    timestamp.unwrap_or(Timestamp::MAX)
}

impl PartialEq for TimeZone {
    fn eq(&self, other: &TimeZone) -> bool {
        self.name() == other.name()
    }
}

impl Eq for TimeZone {}

impl Hash for TimeZone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

impl fmt::Display for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Windows of one calendar unit in one time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Calendar {
    unit: Unit,
    time_zone: TimeZone,
}

/// The calendar length of a window. Weeks begin on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    const ALL: [Unit; 4] = [Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    const fn name(self) -> &'static str {
        match self {
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// Returns the period that represents the unit in a limit.
    const fn period_ms(self) -> u64 {
        const DAY: u64 = 24 * 60 * 60 * 1_000;
        match self {
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 30 * DAY,
            Unit::Year => 365 * DAY,
        }
    }

    /// Returns the first date of the window that contains `date`.
    fn first(self, date: Date) -> Date {
        match self {
            Unit::Day => date,
            Unit::Week => date.saturating_sub(date.weekday().to_monday_zero_offset().days()),
            Unit::Month => date.first_of_month(),
            Unit::Year => date.first_of_year(),
        }
    }

    /// Returns the first date of the next window, given the first date of this one.
    fn next(self, first: Date) -> Date {
        first.saturating_add(match self {
            Unit::Day => 1.day(),
            Unit::Week => 1.week(),
            Unit::Month => 1.month(),
            Unit::Year => 1.year(),
        })
    }
}

impl Calendar {
    /// Returns windows of the unit that this period represents (24 hours, 7, 30 or 365 days); `None` for other periods.
    pub(super) fn new(period_ms: u64, time_zone: TimeZone) -> Option<Calendar> {
        let unit = Unit::ALL.into_iter().find(|unit| unit.period_ms() == period_ms)?;
        Some(Calendar { unit, time_zone })
    }

    /// Returns the window that contains `now`, in milliseconds since the epoch.
    pub(super) fn window(self, now: u64) -> Range<u64> {
        let now = now.min(LAST_MS);
        let mut first = self.unit.first(self.time_zone.date(now));
        loop {
            let next = self.unit.next(first);
            let stop = self.time_zone.start_of(next);
            // If the clocks went back across midnight, `now` has yesterday's date but lies in today's window.
            if now < stop {
                return self.time_zone.start_of(first)..stop;
            }
            first = next;
        }
    }

    /// Returns the starts of five windows: the last but one, and those of [`starts`](Calendar::starts).
    pub(super) fn starts_from_earlier(self, now: u64) -> [u64; 5] {
        let [before, start, stop, last] = self.starts(now);
        [self.window(before.saturating_sub(1)).start, before, start, stop, last]
    }

    /// Returns the starts of four windows: the previous one, the one that contains `now`, and the next two.
    pub(super) fn starts(self, now: u64) -> [u64; 4] {
        let window = self.window(now);
        let [before, after] = [window.start.saturating_sub(1), window.end].map(|time| self.window(time));
        [before.start, window.start, window.end, after.end]
    }

    /// Appends the calendar's part of a counter's name.
    pub(super) fn identity(self, name: &mut String) {
        name.push_str(self.unit.name());
        name.push('/');
        name.push_str(self.time_zone.name());
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::{DateTime, date};
    use jiff::tz::Offset;
    use proptest::prelude::*;

    use super::*;

    const HOUR: u64 = 60 * 60 * 1_000;

    fn zone(name: &str) -> TimeZone {
        TimeZone::named(name).unwrap()
    }

    fn calendar(unit: Unit, name: &str) -> Calendar {
        Calendar { unit, time_zone: zone(name) }
    }

    /// Parses a local time with a fixed offset from UTC.
    fn at(text: &str, hours: f64) -> u64 {
        let offset = Offset::from_seconds((hours * 3_600.0) as i32).unwrap();
        let time: DateTime = text.parse().unwrap();
        offset.to_timestamp(time).unwrap().as_millisecond().try_into().unwrap()
    }

    /// Generates times up to the year 2126.
    fn any_time() -> impl Strategy<Value = u64> {
        400 * 24 * HOUR..156 * 365 * 24 * HOUR
    }

    fn any_calendar() -> impl Strategy<Value = Calendar> {
        let name = prop::sample::select(TimeZone::names());
        (prop::sample::select(&Unit::ALL[..]), name).prop_map(|(unit, name)| calendar(unit, &name))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn a_window_begins_with_the_first_instant_of_its_first_day(calendar in any_calendar(), now in any_time()) {
            let Calendar { unit, time_zone } = calendar;
            let window = calendar.window(now);
            prop_assert!(window.contains(&now));
            let on_the_clock = |ms: u64| {
                let instant = Timestamp::from_millisecond(ms.try_into().unwrap()).unwrap();
                (time_zone.0.rules.to_offset(instant), time_zone.0.rules.to_datetime(instant))
            };
            let [(before, eve), (offset, begun)] = [window.start - 1, window.start].map(on_the_clock);
            let first = unit.first(begun.date());
            prop_assert!(eve.date() < first, "{eve}");
            // The start is midnight, unless the clocks skip it.
            prop_assert!(begun == first.to_datetime(Time::midnight()) || before != offset, "{begun}");
            let [day, last] = [now, window.end - 1].map(|ms| on_the_clock(ms).1.date());
            // The date may go back to the previous day for an hour.
            prop_assert!(day >= first || day.tomorrow().unwrap() == first, "{day}");
            prop_assert!(unit.first(last) <= first);
        }

        #[test]
        fn windows_follow_each_other_without_a_gap(calendar in any_calendar(), now in any_time()) {
            let window = calendar.window(now);
            let [before, start, stop, last] = calendar.starts(now);
            prop_assert_eq!(start..stop, window.clone());
            prop_assert_eq!(calendar.window(start - 1), before..start);
            prop_assert_eq!(calendar.window(stop), stop..last);
            prop_assert_eq!([calendar.window(start), calendar.window(stop - 1)], [window.clone(), window]);
        }
    }

    #[test]
    fn a_month_is_that_of_its_time_zone_and_as_long_as_it_is() {
        let window = calendar(Unit::Month, "Asia/Shanghai").window(at("2026-02-14T12:00", 8.0));
        assert_eq!(window, at("2026-02-01T00:00", 8.0)..at("2026-03-01T00:00", 8.0));
        let window = calendar(Unit::Month, "UTC").window(at("2028-02-29T23:59", 0.0));
        assert_eq!(window, at("2028-02-01T00:00", 0.0)..at("2028-03-01T00:00", 0.0));
        let window = calendar(Unit::Year, "Asia/Kolkata").window(at("2028-12-31T23:59", 5.5));
        assert_eq!(window.end - window.start, 366 * 24 * HOUR);
        assert_eq!(window.start, at("2028-01-01T00:00", 5.5));
    }

    #[test]
    fn a_week_begins_on_monday() {
        let window = calendar(Unit::Week, "Europe/Berlin").window(at("2026-11-22T23:00", 1.0));
        assert_eq!(window, at("2026-11-16T00:00", 1.0)..at("2026-11-23T00:00", 1.0));
    }

    #[test]
    fn a_day_is_as_long_as_the_clocks_make_it() {
        for (name, day, minutes) in [
            ("Europe/Berlin", date(2026, 3, 29), 23 * 60),
            ("Europe/Berlin", date(2026, 10, 25), 25 * 60),
            ("America/New_York", date(2026, 3, 8), 23 * 60),
            ("Australia/Lord_Howe", date(2026, 4, 5), 24 * 60 + 30),
            // The clocks skip midnight here.
            ("America/Havana", date(2025, 3, 9), 23 * 60),
            ("Asia/Beirut", date(2026, 3, 29), 23 * 60),
            // Midnight comes twice here.
            ("America/Havana", date(2025, 11, 2), 25 * 60),
            ("UTC", date(2026, 3, 29), 24 * 60),
        ] {
            let start = zone(name).start_of(day);
            let window = calendar(Unit::Day, name).window(start);
            assert_eq!((window.start, window.end - start), (start, minutes * 60_000), "{name}: {day}");
        }
    }

    #[test]
    fn a_day_that_an_island_skips_is_no_window() {
        let apia = calendar(Unit::Day, "Pacific/Apia");
        // Apia skipped 30 December 2011.
        let eve = apia.window(at("2011-12-29T12:00", -10.0));
        let next = apia.window(eve.end);
        assert_eq!(eve.end, at("2011-12-31T00:00", 14.0));
        assert_eq!(next, at("2011-12-31T00:00", 14.0)..at("2012-01-01T00:00", 14.0));
    }

    #[test]
    fn a_time_zone_has_one_name_in_any_letter_case() {
        assert_eq!(TimeZone::named("asia/SHANGHAI"), Some(zone("Asia/Shanghai")));
        assert_eq!(zone("asia/shanghai").name(), "Asia/Shanghai");
        assert_eq!(zone("utc").name(), "UTC");
        for unknown in ["", "Asia", "Asia/Shangai", "+08:00", "../etc/passwd", "Etc/Unknown"] {
            assert_eq!(TimeZone::named(unknown), None, "{unknown}");
        }
        for name in TimeZone::names() {
            assert_eq!(zone(&name).name(), name);
        }
    }

    #[test]
    fn no_time_is_too_late() {
        for unit in Unit::ALL {
            let window = calendar(unit, "Europe/Berlin").window(u64::MAX);
            assert!(window.start < window.end && window.contains(&LAST_MS), "{unit:?}: {window:?}");
        }
    }
}
