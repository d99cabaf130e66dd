//! The hours of the day in which an adjustment takes effect.

use std::fmt;
use std::ops::Range;

use crate::algorithm::TimeZone;

const MINUTE_S: u32 = 60;
const DAY_S: u32 = 24 * 60 * MINUTE_S;

/// Hours of every day, by the clocks of a time zone. If they begin later than they end, they go on past midnight.
///
/// They follow what the clocks show. An hour that clocks skip is left out, and an hour that they show twice counts
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hours {
    /// Their begin, in seconds after midnight: below a day, and different from `until`.
    from: u32,
    /// Their end, in the same way.
    until: u32,
    /// The time zone.
    time_zone: TimeZone,
}

impl Hours {
    /// Parses `22:00-06:00`; `None` if it is not two times of the day that differ. `24:00` is midnight, too.
    pub fn parse(text: &str, time_zone: TimeZone) -> Option<Hours> {
        let (from, until) = text.split_once('-')?;
        let (from, until) = (time_of_day(from.trim())?, time_of_day(until.trim())?);
        (from != until).then_some(Hours { from, until, time_zone })
    }

    /// Returns the time zone.
    pub fn time_zone(self) -> TimeZone {
        self.time_zone
    }

    /// Returns the hours as [`Hours::parse`] reads them.
    pub fn range(self) -> String {
        let shown = |time: u32| format!("{:02}:{:02}", time / MINUTE_S / 60, time / MINUTE_S % 60);
        format!("{}-{}", shown(self.from), shown(self.until))
    }

    /// Returns whether a time, in milliseconds since the epoch, is in them.
    pub fn contain(self, ms: u64) -> bool {
        let Range { start: from, end: until } = self.from..self.until;
        let time = self.time_zone.second_of_day(ms);
        if from < until { (from..until).contains(&time) } else { !(until..from).contains(&time) }
    }

    /// Returns the next time after this one at which they begin or end. `None` only at the end of the calendar.
    pub fn next_turn(self, ms: u64) -> Option<u64> {
        let is_in = self.contain(ms);
        // Clocks show each time of the day again after at most two days, so one of both differs from now by then. A
        // change of the clocks moves what they show to the other side at once.
        let mut times = self.time_zone.times_near(ms, [self.from, self.until]);
        times.retain(|time| *time > ms && self.contain(*time) != is_in);
        times.into_iter().min()
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.range(), self.time_zone)
    }
}

/// Parses a time of the day, such as `06:30`, in seconds after midnight.
fn time_of_day(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| {
        let is_number = (1..=2).contains(&text.len()) && text.chars().all(|char| char.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| is_number)
    };
    let (hours, minutes) = (number(hours)?, number(minutes).filter(|minutes| *minutes < 60)?);
    let time = (hours * 60 + minutes) * MINUTE_S;
    (time <= DAY_S).then_some(time % DAY_S)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_MS: u64 = 86_400_000;

    fn zone(name: &str) -> TimeZone {
        TimeZone::named(name).unwrap()
    }

    fn hours(text: &str, name: &str) -> Hours {
        Hours::parse(text, zone(name)).unwrap()
    }

    #[test]
    fn hours_are_read_as_people_write_them() {
        for (text, range) in [
            ("22:00-06:00", "22:00-06:00"),
            (" 9:05 - 17:30 ", "09:05-17:30"),
            ("18:00-24:00", "18:00-00:00"),
            ("24:00-06:00", "00:00-06:00"),
        ] {
            let read = Hours::parse(text, zone("UTC")).map(Hours::range).unwrap_or_default();
            assert_eq!(read, range, "{text}");
        }
        for text in [
            "",
            "22:00",
            "22-06",
            "22:00-22:00",
            "00:00-24:00",
            "25:00-06:00",
            "22:60-06:00",
            "24:01-1:00",
            "-1:00-2:00",
            "+1:00-2:00",
            "1:000-2:00",
            "٣:00-4:00",
        ] {
            assert_eq!(Hours::parse(text, zone("UTC")), None, "{text}");
        }
        assert_eq!(hours("22:00-06:00", "europe/berlin").to_string(), "22:00-06:00 Europe/Berlin");
    }

    #[test]
    fn a_change_of_the_clocks_moves_them() {
        // 2026-03-29 01:00 UTC: 02:00 becomes 03:00 in Berlin. 2026-10-25 01:00 UTC: 03:00 becomes 02:00.
        let (spring, autumn) = (1_774_746_000_000, 1_792_890_000_000);
        let (hour, minute) = (3_600_000, 60_000);
        let skipped = hours("02:15-02:45", "Europe/Berlin");
        assert!((0..180).all(|minutes| !skipped.contain(spring - hour + minutes * minute)));
        assert_eq!(skipped.next_turn(spring - hour), Some(spring + DAY_MS - hour + 15 * minute));
        let twice = hours("02:15-02:45", "Europe/Berlin");
        let turns: Vec<u64> =
            std::iter::successors(twice.next_turn(autumn - hour), |at| twice.next_turn(*at)).take(4).collect();
        let first = autumn - 45 * minute;
        assert_eq!(turns, [first, first + 30 * minute, autumn + 15 * minute, autumn + 45 * minute]);
        let over = hours("02:30-05:00", "Europe/Berlin");
        assert_eq!(over.next_turn(spring - hour), Some(spring), "03:00 follows 01:59");
    }

    proptest! {
        #[test]
        fn the_next_turn_is_where_they_begin_or_end(
            from in 0..1_440_u32, until in 0..1_440_u32, name in prop::sample::select(TimeZone::names()),
            minute in 0..52_594_560_u64,
        ) {
            prop_assume!(from != until);
            let hours = Hours { from: from * 60, until: until * 60, time_zone: zone(&name) };
            let now = minute * 60_000 + 17;
            let next = hours.next_turn(now).unwrap();
            prop_assert!(next > now && next <= now + 3 * DAY_MS, "{} after {}", next, now);
            prop_assert!(hours.contain(next) != hours.contain(now));
            prop_assert!(hours.contain(next - 1) == hours.contain(now));
            let mut between = (now..next).step_by(60_000);
            prop_assert!(between.all(|at| hours.contain(at) == hours.contain(now)));
            prop_assert_eq!(Hours::parse(&hours.range(), hours.time_zone()), Some(hours));
        }
    }
}
