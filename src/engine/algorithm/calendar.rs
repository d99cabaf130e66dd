//! Windows that follow the calendar of a time zone: days, weeks, months and years, with summer time.
//!
//! A window begins at the first instant of its first day. This is midnight, or the clock change if it skips midnight.
//! The window ends where the next one begins. A day has 23 or 25 hours if the clocks change during it. If the clocks go
//! back across midnight, the new day continues through the repeated hour.
//!
//! Weeks begin on Monday, months on the 1st and years on 1 January, or on the days that a limit chooses ([`StartsOn`]).
//! Windows may also be a number of days long, counted from a date.
//!
//! The rules of all time zones are built into the program (`jiff`); no files of the host are read.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::ops::Range;

use jiff::civil::{Date, Time};
use jiff::tz::{self, AmbiguousOffset, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use parking_lot::Mutex;

use super::{LimitError, Options};

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
        self.range(ms, Unit::MONTH)
    }

    /// Returns the start of a date that is written as `2026-11-01`, in milliseconds since the epoch; `None` if the text
    /// is no date, or one before the epoch.
    pub fn start_of_written(self, date: &str) -> Option<u64> {
        parse_date(date).map(|date| self.start_of(date))
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

/// Parses a date that is written as `2026-11-01`; `None` if the text is no date, or one before the epoch.
fn parse_date(text: &str) -> Option<Date> {
    // A time of a day would be cut.
    let is_date = text.len() == "2026-11-01".len() && text.as_bytes()[4] == b'-';
    text.parse::<Date>().ok().filter(|date| is_date && *date >= EPOCH)
}

/// The date on which a window of the calendar begins, as a limit chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartsOn {
    /// Beside a unit: its windows begin on this day of the week, this day of the month, or this day of the year.
    Unit(Date),
    /// Beside a period of whole days: its windows are that many days long, before this date and after it.
    Days(Date),
}

impl StartsOn {
    /// Parses a date beside a unit, such as `2026-01-15`; `None` if the text is no date, or one before the epoch.
    pub fn parse(text: &str) -> Option<StartsOn> {
        parse_date(text).map(StartsOn::Unit)
    }

    /// Returns the same date beside a period of whole days.
    #[must_use]
    pub fn of_days(self) -> StartsOn {
        StartsOn::Days(self.date())
    }

    /// Returns the date.
    pub fn date(self) -> Date {
        let (StartsOn::Unit(date) | StartsOn::Days(date)) = self;
        date
    }
}

/// Writes the date.
impl fmt::Display for StartsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.date().fmt(f)
    }
}

/// Windows of one calendar unit in one time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Calendar {
    unit: Unit,
    time_zone: TimeZone,
}

/// The calendar length of a window, and the dates on which windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Day,
    /// `weekday` is the number of days after Monday.
    Week {
        weekday: i8,
    },
    /// A month without this day has a window that begins on its last day.
    Month {
        day: i8,
    },
    /// 29 February is the 28th in years without it.
    Year {
        month: i8,
        day: i8,
    },
    /// One of the windows begins this number of days after the epoch, which is less than their length.
    Days {
        length: i64,
        phase: i64,
    },
}

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

const EPOCH: Date = Date::constant(1970, 1, 1);

impl Unit {
    const WEEK: Unit = Unit::Week { weekday: 0 };
    const MONTH: Unit = Unit::Month { day: 1 };
    const YEAR: Unit = Unit::Year { month: 1, day: 1 };

    /// The units, with windows that begin on the days of the calendar.
    const ALL: [Unit; 4] = [Unit::Day, Unit::WEEK, Unit::MONTH, Unit::YEAR];

    /// Returns the period that represents the unit in a limit.
    const fn period_ms(self) -> u64 {
        DAY_MS
            * match self {
                Unit::Day => 1,
                Unit::Week { .. } => 7,
                Unit::Month { .. } => 30,
                Unit::Year { .. } => 365,
                Unit::Days { length, .. } => length.unsigned_abs(),
            }
    }

    /// Returns the unit of windows that begin on this date.
    fn starting_on(self, date: Date) -> Unit {
        match self {
            Unit::Day => Unit::Day,
            Unit::Week { .. } => Unit::Week { weekday: date.weekday().to_monday_zero_offset() },
            Unit::Month { .. } => Unit::Month { day: date.day() },
            Unit::Year { .. } => Unit::Year { month: date.month(), day: date.day() },
            Unit::Days { length, .. } => Unit::Days { length, phase: days_since_epoch(date).rem_euclid(length) },
        }
    }

    /// Returns the first date of the window that contains `date`.
    fn first(self, date: Date) -> Date {
        let last_of = |first: Date, before: Date| if first <= date { first } else { before };
        match self {
            Unit::Day => date,
            Unit::Week { weekday } => {
                date.saturating_sub((date.weekday().to_monday_zero_offset() - weekday).rem_euclid(7).days())
            }
            Unit::Month { day } => {
                let month = date.first_of_month();
                last_of(in_month(month, day), in_month(month.saturating_sub(1.month()), day))
            }
            Unit::Year { month, day } => {
                last_of(in_year(date.year(), month, day), in_year(date.year() - 1, month, day))
            }
            Unit::Days { length, phase } => {
                date.saturating_sub((days_since_epoch(date) - phase).rem_euclid(length).days())
            }
        }
    }

    /// Returns the first date of the next window, given the first date of this one.
    fn next(self, first: Date) -> Date {
        match self {
            Unit::Day => first.saturating_add(1.day()),
            Unit::Week { .. } => first.saturating_add(1.week()),
            Unit::Month { day } => in_month(first.first_of_month().saturating_add(1.month()), day),
            Unit::Year { month, day } => in_year(first.year() + 1, month, day),
            Unit::Days { length, .. } => first.saturating_add(length.days()),
        }
    }
}

/// Returns this day of the month that begins on `first`, or its last day if it has no such day.
fn in_month(first: Date, day: i8) -> Date {
    first.saturating_add((day.min(first.days_in_month()) - 1).days())
}

/// Returns this day of a year. 29 February is the 28th in years without it.
fn in_year(year: i16, month: i8, day: i8) -> Date {
    in_month(Date::new(year, month, 1).unwrap_or(Date::MAX.first_of_month()), day)
}

fn days_since_epoch(date: Date) -> i64 {
    date.duration_since(EPOCH).as_hours() / 24
}

impl Calendar {
    /// Returns the windows of a limit with these options; `None` if they do not follow a calendar. The period
    /// represents a unit (24 hours, 7, 30 or 365 days), or is a number of days with [`StartsOn::Days`].
    pub(super) fn new(period_ms: u64, options: &Options) -> Result<Option<Calendar>, LimitError> {
        let Options { time_zone, starts_on, .. } = options;
        let Some(time_zone) = *time_zone else {
            return starts_on.map_or(Ok(None), |_| Err(LimitError::StartsOn));
        };
        let unit = Unit::ALL.into_iter().find(|unit| unit.period_ms() == period_ms);
        let unit = match starts_on {
            None => unit.ok_or(LimitError::TimeZone)?,
            Some(StartsOn::Unit(date)) => match unit.ok_or(LimitError::TimeZone)? {
                Unit::Day => return Err(LimitError::StartsOnOfDay),
                unit => unit.starting_on(*date),
            },
            Some(StartsOn::Days(date)) => {
                let length = i64::try_from(period_ms / DAY_MS).ok().filter(|length| *length > 0);
                let length = length.filter(|_| period_ms.is_multiple_of(DAY_MS)).ok_or(LimitError::PeriodOfDays)?;
                Unit::Days { length, phase: 0 }.starting_on(*date)
            }
        };
        Ok(Some(Calendar { unit, time_zone }))
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

    /// Appends the calendar's part of a counter's name: the unit, the time zone, and where windows begin if that is not
    /// as in the calendar. Dates with the same windows have the same name.
    pub(super) fn identity(self, name: &mut String) {
        let zone = self.time_zone;
        // Writing to a string cannot fail.
        let _ = match self.unit {
            Unit::Day => write!(name, "day/{zone}"),
            Unit::WEEK => write!(name, "week/{zone}"),
            Unit::MONTH => write!(name, "month/{zone}"),
            Unit::YEAR => write!(name, "year/{zone}"),
            Unit::Week { weekday } => write!(name, "week/{zone}/{weekday}"),
            Unit::Month { day } => write!(name, "month/{zone}/{day}"),
            Unit::Year { month, day } => write!(name, "year/{zone}/{month}-{day}"),
            Unit::Days { length, phase } => write!(name, "{length}d/{zone}/{phase}"),
        };
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

    fn any_date() -> impl Strategy<Value = Date> {
        let any = (0..60_000_i64).prop_map(|days| EPOCH.saturating_add(days.days()));
        // Days that some months and years lack.
        prop_oneof![any, (28..=31_i8).prop_map(|day| date(2026, 1, day)), Just(date(2024, 2, 29))]
    }

    fn any_unit() -> impl Strategy<Value = Unit> {
        let unit = prop::sample::select(&Unit::ALL[..]);
        let days = (1..=366_i64).prop_map(|length| Unit::Days { length, phase: 0 });
        let chosen = prop_oneof![unit.clone(), days];
        prop_oneof![unit, (chosen, any_date()).prop_map(|(unit, date)| unit.starting_on(date))]
    }

    /// Generates calendars of every zone, often of one with odd changes of its clocks.
    fn any_calendar() -> impl Strategy<Value = Calendar> {
        let odd = ["America/Havana", "Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe", "Africa/Casablanca"];
        let odd = prop::sample::select(odd.map(str::to_owned).to_vec());
        let name = prop_oneof![prop::sample::select(TimeZone::names()), odd];
        (any_unit(), name).prop_map(|(unit, name)| calendar(unit, &name))
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Compares with dates that are found day by day.
        #[test]
        fn a_window_begins_on_the_day_that_is_chosen(from in any_date(), day in any_date(), length in 1..=366_i64) {
            let last_before = |is_start: &dyn Fn(Date) -> bool| {
                let mut date = day;
                while !is_start(date) {
                    date = date.yesterday().unwrap();
                }
                date
            };
            let is_last = |date: Date| date.tomorrow().unwrap().month() != date.month();
            let monthly = |date: Date| date.day() == from.day() || date.day() < from.day() && is_last(date);
            let found = [
                (Unit::WEEK, last_before(&|date| date.weekday() == from.weekday())),
                (Unit::MONTH, last_before(&monthly)),
                (Unit::YEAR, last_before(&|date| date.month() == from.month() && monthly(date))),
            ];
            for (unit, first) in found {
                prop_assert_eq!(unit.starting_on(from).first(day), first, "{:?}", unit);
            }
            let first = Unit::Days { length, phase: 0 }.starting_on(from).first(day);
            let days_from = |date: Date| days_since_epoch(date) - days_since_epoch(from);
            prop_assert_eq!(days_from(first) % length, 0);
            prop_assert!((0..length).contains(&(days_from(day) - days_from(first))));
        }

        #[test]
        fn a_window_is_as_long_as_its_dates_and_the_clocks_make_it(calendar in any_calendar(), now in any_time()) {
            let window = calendar.window(now);
            let length = window.end - window.start;
            let [least, most] = match calendar.unit {
                Unit::Month { .. } => [28, 31],
                Unit::Year { .. } => [365, 366],
                unit => [unit.period_ms() / DAY_MS; 2],
            };
            // Clocks change by up to an hour, except at places that move over the date line and lose a day.
            let range = least.saturating_sub(1) * DAY_MS..=(most + 1) * DAY_MS;
            prop_assert!(range.contains(&length), "{length}");
            // The twin of a budget gets lengths in quarters of an hour. One place had others, until 1972.
            prop_assert!(length.is_multiple_of(HOUR / 4) || window.start < 3 * 366 * DAY_MS, "{length}");
        }

        #[test]
        fn dates_with_the_same_windows_are_one_counter(
            unit in any_unit(), dates in [any_date(), any_date()], now in any_time()
        ) {
            let [one, other] = dates.map(|date| calendar(unit.starting_on(date), "Europe/Berlin"));
            let [name, other_name] = [one, other].map(|calendar| {
                let mut name = String::new();
                calendar.identity(&mut name);
                name
            });
            prop_assert_eq!(name == other_name, one == other);
            if one == other {
                prop_assert_eq!(one.window(now), other.window(now));
            }
        }
    }

    #[test]
    fn a_billing_month_begins_on_the_last_day_of_a_month_without_its_day() {
        let month = calendar(Unit::MONTH.starting_on(date(2026, 1, 31)), "Asia/Shanghai");
        let firsts = ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30", "2026-05-31"];
        let firsts = firsts.map(|date| at(&format!("{date}T00:00"), 8.0));
        for [start, end] in firsts.array_windows() {
            assert_eq!(month.window(*start), *start..*end);
            assert_eq!(month.window(end - 1), *start..*end);
        }
        let year = calendar(Unit::YEAR.starting_on(date(2024, 2, 29)), "UTC");
        let window = year.window(at("2027-12-31T00:00", 0.0));
        assert_eq!(window, at("2027-02-28T00:00", 0.0)..at("2028-02-29T00:00", 0.0));
    }

    #[test]
    fn days_are_counted_from_a_date_and_back() {
        let fortnight = Unit::Days { length: 14, phase: 0 }.starting_on(date(2026, 3, 26));
        let fortnight = calendar(fortnight, "Europe/Berlin");
        // The clocks go forward on 29 March.
        let window = fortnight.window(at("2026-04-01T12:00", 2.0));
        assert_eq!(window, at("2026-03-26T00:00", 1.0)..at("2026-04-09T00:00", 2.0));
        assert_eq!(fortnight.window(window.start - 1).start, at("2026-03-12T00:00", 1.0));
        assert_eq!(fortnight.starts(window.start)[3], at("2026-04-23T00:00", 2.0));
    }

    #[test]
    fn only_windows_of_days_begin_on_a_date() {
        let of = |days: f64, zone: Option<&str>, starts_on: Option<StartsOn>| {
            let time_zone = zone.and_then(TimeZone::named);
            let options = Options { time_zone, starts_on, ..Options::default() };
            Calendar::new((days * DAY_MS as f64) as u64, &options).map(|calendar| calendar.is_some())
        };
        let unit = StartsOn::parse("2026-01-31");
        let days = unit.map(StartsOn::of_days);
        assert_eq!(of(30.0, None, None), Ok(false));
        assert_eq!(of(30.0, None, unit), Err(LimitError::StartsOn));
        assert_eq!(of(1.0, Some("UTC"), unit), Err(LimitError::StartsOnOfDay));
        assert_eq!(of(14.0, Some("UTC"), None), Err(LimitError::TimeZone));
        for [good, bad] in [[1.0, 0.5], [366.0, 1.5]] {
            assert_eq!(of(good, Some("UTC"), days), Ok(true));
            assert_eq!(of(bad, Some("UTC"), days), Err(LimitError::PeriodOfDays));
        }
        for wrong in ["", "2026-1-15", "2026-02-30", "1969-12-31", "20260115", "2026-01-15T00:00", "15.01.2026"] {
            assert_eq!(StartsOn::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_month_is_that_of_its_time_zone_and_as_long_as_it_is() {
        let window = calendar(Unit::MONTH, "Asia/Shanghai").window(at("2026-02-14T12:00", 8.0));
        assert_eq!(window, at("2026-02-01T00:00", 8.0)..at("2026-03-01T00:00", 8.0));
        let window = calendar(Unit::MONTH, "UTC").window(at("2028-02-29T23:59", 0.0));
        assert_eq!(window, at("2028-02-01T00:00", 0.0)..at("2028-03-01T00:00", 0.0));
        let window = calendar(Unit::YEAR, "Asia/Kolkata").window(at("2028-12-31T23:59", 5.5));
        assert_eq!(window.end - window.start, 366 * 24 * HOUR);
        assert_eq!(window.start, at("2028-01-01T00:00", 5.5));
    }

    #[test]
    fn a_week_begins_on_monday() {
        let window = calendar(Unit::WEEK, "Europe/Berlin").window(at("2026-11-22T23:00", 1.0));
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
