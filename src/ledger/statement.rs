//! Statements of usage: records without duplicates, summed and sorted.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::answer::{CounterPage, Record, UsageAnswer};
use crate::engine::algorithm::TimeZone;
use crate::engine::usage::page::{Owner, PageName};
use crate::engine::usage::{Period, Time, Totals};

/// How long after its end a period is closed. By then, all charges and take-backs at its end are written, and clocks
/// differ by less than this.
pub const CLOSED_AFTER_MS: u64 = 5 * 60 * 1_000;

/// The length of time that a row covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// As stored.
    #[default]
    Kept,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A calendar month.
    Month,
    /// The whole requested time.
    Total,
}

/// Options of a statement.
#[derive(Clone, Debug)]
pub struct StatementOptions {
    /// Length of time that a row covers. Records of longer periods keep their length.
    pub by: By,
    /// Start of the time.
    pub from: Time,
    /// End of the time.
    pub to: Time,
    /// Includes periods that are not over.
    pub open: bool,
    /// How long after its end a period is over, in milliseconds.
    pub closed_after_ms: u64,
    /// The time zone of days and months; `None` for UTC.
    pub zone: Option<TimeZone>,
}

/// The error for records that cannot be summed in a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "records by the {} cannot be summed by days of {zone}, because some of its days begin within such a record: \
     {}, or ask for UTC",
    .period.name(),
    if *.period == Period::Day { "set usage: {by: hour}" } else { "set usage: {by: minute}" }
)]
pub struct Crossing {
    period: Period,
    zone: TimeZone,
}

/// A counter that was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name without a prefix: `{tag}|LIMIT`.
    pub name: String,
    /// Owner of the counter.
    pub owner: Owner,
    /// The part of the name that identifies the limit.
    pub limit: String,
    /// Label of the limit, if the rules in force have it.
    pub rule: Option<String>,
}

/// The usage of a counter in a span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Start of the span.
    pub start: Time,
    /// Kind of span: `minute`, `hour`, `day`, `month` or `total`.
    pub span: &'static str,
    /// The counter.
    pub counter: Arc<Counter>,
    /// The amounts.
    pub totals: Totals,
    /// Whether the span is not over, so usage may still be added.
    pub is_open: bool,
    /// Earliest expiry of its records; `None` if they have none or it is unknown.
    pub expires: Option<Time>,
}

/// A statement collected from answers.
pub struct Statement {
    options: StatementOptions,
    /// Hashes of the pages seen so far.
    seen: HashSet<[u8; 16]>,
    counters: Vec<Arc<Counter>>,
    by_name: HashMap<String, usize>,
    sums: HashMap<(Time, &'static str, usize), Sum>,
    /// The store's time in the first answer.
    now: Option<Time>,
    damaged: u64,
    left_out: u64,
    missed: Option<String>,
    /// For each period, whether its records fit into the days of the time zone.
    fits: HashMap<Period, bool>,
    crossing: Option<Crossing>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    totals: Totals,
    is_open: bool,
    expires: Option<Time>,
}

impl By {
    /// The lengths that can be requested.
    pub const ALL: [By; 4] = [By::Hour, By::Day, By::Month, By::Total];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            By::Kept => "kept",
            By::Hour => "hour",
            By::Day => "day",
            By::Month => "month",
            By::Total => "total",
        }
    }
}

impl Statement {
    /// Creates an empty statement.
    pub fn new(options: StatementOptions) -> Statement {
        Statement {
            options,
            seen: HashSet::new(),
            counters: Vec::new(),
            by_name: HashMap::new(),
            sums: HashMap::new(),
            now: None,
            damaged: 0,
            left_out: 0,
            missed: None,
            fits: HashMap::new(),
            crossing: None,
        }
    }

    /// Adds the records of an answer, except for pages that were added before.
    pub fn add(&mut self, answer: UsageAnswer) {
        let now = *self.now.get_or_insert(answer.now);
        self.damaged += answer.damaged;
        self.missed = answer.missed;
        for page in answer.pages {
            let hash = blake3::hash(format!("{} {}", answer.store, page.page).as_bytes());
            let mut short = [0; 16];
            short.copy_from_slice(&hash.as_bytes()[..16]);
            if self.seen.insert(short) {
                self.take(page, now);
            }
        }
    }

    fn take(&mut self, page: CounterPage, now: Time) {
        let CounterPage { page, domain, descriptor, limit, rule, period, expires, records } = page;
        let Some(name) = PageName::read(&page).map(|page| page.counter.to_owned()) else { return };
        let counters = &mut self.counters;
        let counter = *self.by_name.entry(name).or_insert_with_key(|name| {
            let owner = Owner { domain, parts: descriptor };
            counters.push(Arc::new(Counter { name: name.clone(), owner, limit, rule }));
            counters.len() - 1
        });
        for Record { start, totals } in records {
            if !(self.options.from..self.options.to).contains(&start) {
                continue;
            }
            if let Some(zone) = self.crossed(period, start) {
                self.crossing = Some(Crossing { period, zone });
                continue;
            }
            let (begins, ends, span) = self.span(period, start);
            // A span is over no sooner than the record's period.
            let over = ends.min(self.options.to).max(start.plus(period.ms()));
            let is_open = over.plus(self.options.closed_after_ms) > now;
            if is_open && !self.options.open {
                self.left_out += 1;
                continue;
            }
            let sum = self.sums.entry((begins, span, counter)).or_default();
            sum.totals = sum.totals.plus(totals);
            sum.is_open |= is_open;
            sum.expires = [sum.expires, expires].into_iter().flatten().min();
        }
    }

    /// Returns the span that a record is summed in: its start, end and kind. A total ends with its last record.
    fn span(&self, period: Period, start: Time) -> (Time, Time, &'static str) {
        let StatementOptions { from, to, .. } = self.options;
        let (begins, ends, span) = self.whole_span(period, start);
        let part = match span {
            "month" => "part of a month",
            "day" => "part of a day",
            "hour" => "part of an hour",
            // A total covers any time, and a single record is never split.
            _ => return (begins, ends, span),
        };
        if begins < from || ends > to { (begins.max(from), ends.min(to), part) } else { (begins, ends, span) }
    }

    /// Returns the span before it is cut to the requested time. A total ends with its last record.
    fn whole_span(&self, period: Period, start: Time) -> (Time, Time, &'static str) {
        let of = |period: Period| {
            let begins = Time(start.0 - start.0 % period.ms());
            (begins, begins.plus(period.ms()), period.name())
        };
        let in_zone = |range: Range<u64>, span| (Time(range.start), Time(range.end), span);
        match (self.options.by, self.options.zone) {
            (By::Day, Some(zone)) => return in_zone(zone.day(start.0), "day"),
            (By::Month, Some(zone)) => return in_zone(zone.month(start.0), "month"),
            _ => {}
        }
        match self.options.by {
            By::Hour if period < Period::Hour => of(Period::Hour),
            By::Day if period < Period::Day => of(Period::Day),
            By::Kept | By::Hour | By::Day => of(period),
            By::Month => {
                let (begins, ends) = start.month();
                (begins, ends, "month")
            }
            By::Total => (self.options.from, start.plus(period.ms()), "total"),
        }
    }

    /// Returns the time zone, if days of it begin within records of this period: a day of the year after the first of
    /// them, or of this record. Whether this record itself crosses midnight is no matter: a statement that works on
    /// some days alone would be a trap.
    fn crossed(&mut self, period: Period, start: Time) -> Option<TimeZone> {
        const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
        let zone = self.options.zone.filter(|_| matches!(self.options.by, By::Day | By::Month))?;
        let fits = |at_ms: u64| zone.day(at_ms).start.is_multiple_of(period.ms());
        let year = || (0..400).all(|days| fits(start.plus(days * DAY_MS).0));
        let fits_all_year = *self.fits.entry(period).or_insert_with(year);
        (!fits_all_year || !fits(start.0) || !fits(start.plus(DAY_MS).0)).then_some(zone)
    }

    /// Returns why some records are in no row; `None` if all are.
    pub fn crossing(&self) -> Option<Crossing> {
        self.crossing
    }

    /// Returns the number of unreadable records.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Returns how the domain or the rule of the request misses the rules in force.
    pub fn missed(&self) -> Option<&str> {
        self.missed.as_deref()
    }

    /// Returns the number of records that are left out because their period is not over.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the store's time in the first answer.
    pub fn now(&self) -> Option<Time> {
        self.now
    }

    /// Returns all rows, sorted by time, domain, descriptor and limit.
    pub fn rows(self) -> Vec<Row> {
        let Statement { sums, counters, .. } = self;
        let mut rows: Vec<Row> = sums
            .into_iter()
            .map(|((start, span, counter), Sum { totals, is_open, expires })| {
                let counter = Arc::clone(&counters[counter]);
                Row { start, span, counter, totals, is_open, expires }
            })
            .collect();
        rows.sort_unstable_by(|one, other| {
            let (by, than) = (&one.counter, &other.counter);
            let by_counter = || (&by.owner, &by.limit, &by.name).cmp(&(&than.owner, &than.limit, &than.name));
            one.start.cmp(&other.start).then_with(by_counter).then_with(|| one.span.cmp(other.span))
        });
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    /// Name of a page, its period, and for each period's index the number admitted.
    type Told<'t> = (&'t str, Period, &'t [(u64, i64)]);

    /// Start hour, span, owner, number admitted, and whether the row is open.
    type Shown = (u64, &'static str, String, i64, bool);

    fn answer(store: &str, pages: &[Told<'_>]) -> UsageAnswer {
        let page = |(name, period, records): &Told<'_>| {
            let read = PageName::read(name).unwrap();
            let owner = read.owner(None).unwrap();
            let record = |(index, admitted): &(u64, i64)| Record {
                start: Time(index * period.ms()),
                totals: Totals { admitted: *admitted, denied: 1, cost: *admitted, topped_up: 0 },
            };
            CounterPage {
                page: (*name).to_owned(),
                domain: owner.domain,
                descriptor: owner.parts,
                limit: read.limit.to_owned(),
                rule: None,
                period: *period,
                expires: None,
                records: records.iter().map(record).collect(),
            }
        };
        let pages = pages.iter().map(page).collect();
        // Noon on 10 January 1970.
        UsageAnswer { now: Time(228 * HOUR), store: store.to_owned(), pages, damaged: 0, cursor: None, missed: None }
    }

    #[test]
    fn a_part_of_a_month_a_day_or_an_hour_is_shown_as_part_of_one() {
        let records: Vec<(u64, i64)> = (0..240).map(|hour| (hour, 1)).collect();
        let spans = |by, from: u64, to: u64| {
            let mut statement =
                Statement::new(StatementOptions { from: Time(from * HOUR), to: Time(to * HOUR), ..options(by) });
            statement.add(answer("main", &[("{shop|user=ann}|fw1:1000|u1:3600000:0", Period::Hour, &records)]));
            let rows = statement.rows();
            rows.iter().map(|row| (row.start.0 / HOUR, row.span, row.totals.admitted)).collect::<Vec<_>>()
        };
        assert_eq!(spans(By::Day, 30, 72), [(30, "part of a day", 18), (48, "day", 24)]);
        assert_eq!(spans(By::Day, 24, 50), [(24, "day", 24), (48, "part of a day", 2)]);
        assert_eq!(spans(By::Month, 12, 48), [(12, "part of a month", 36)]);
        assert_eq!(spans(By::Hour, 5, 7), [(5, "hour", 1), (6, "hour", 1)]);
        assert_eq!(spans(By::Total, 12, 48), [(12, "total", 36)]);
    }

    fn options(by: By) -> StatementOptions {
        StatementOptions { by, from: Time(0), to: Time::END, open: false, closed_after_ms: CLOSED_AFTER_MS, zone: None }
    }

    fn rows(options: StatementOptions, answers: &[UsageAnswer]) -> (Vec<Shown>, u64) {
        let mut statement = Statement::new(options);
        answers.iter().for_each(|answer| statement.add(answer.clone()));
        let left_out = statement.left_out();
        let rows = statement.rows().into_iter().map(|row| {
            let whose = row.counter.owner.descriptor().to_string();
            (row.start.0 / HOUR, row.span, whose, row.totals.admitted, row.is_open)
        });
        (rows.collect(), left_out)
    }

    /// Returns the rows of records of one each, from one date on, in a time zone.
    fn in_zone(zone: &str, by: By, period: Period, (from, count): (&str, u64)) -> Result<Vec<(String, i64)>, Crossing> {
        let zone = TimeZone::named(zone).unwrap();
        let first = from.parse::<Time>().unwrap().0 / period.ms();
        let records: Vec<(u64, i64)> = (first..first + count).map(|index| (index, 1)).collect();
        let mut statement = Statement::new(StatementOptions { zone: Some(zone), ..options(by) });
        statement.add(UsageAnswer { now: Time::END, ..answer("main", &[(ANN, period, &records)]) });
        match statement.crossing() {
            Some(crossing) => Err(crossing),
            None => Ok(statement.rows().iter().map(|row| (zone.written(row.start.0), row.totals.admitted)).collect()),
        }
    }

    #[test]
    fn days_and_months_are_those_of_a_time_zone_with_its_changes_of_the_clocks() {
        let told = |rows: &[(&str, i64)]| -> Result<Vec<(String, i64)>, Crossing> {
            Ok(rows.iter().map(|(start, admitted)| ((*start).to_owned(), *admitted)).collect())
        };
        // 90 hours from midnight of 28 March in Berlin.
        let spring = in_zone("Europe/Berlin", By::Day, Period::Hour, ("2026-03-27T23:00:00Z", 90));
        let days = [
            ("2026-03-28T00:00:00+01:00", 24),
            ("2026-03-29T00:00:00+01:00", 23),
            ("2026-03-30T00:00:00+02:00", 24),
            ("2026-03-31T00:00:00+02:00", 19),
        ];
        assert_eq!(spring, told(&days));
        let autumn = in_zone("Europe/Berlin", By::Month, Period::Hour, ("2026-09-30T22:00:00Z", 31 * 24 + 1 + 5));
        assert_eq!(autumn, told(&[("2026-10-01T00:00:00+02:00", 745), ("2026-11-01T00:00:00+01:00", 5)]));
        let by_minute = in_zone("Asia/Kolkata", By::Day, Period::Minute, ("2026-11-01T18:29:00Z", 3));
        assert_eq!(by_minute, told(&[("2026-11-01T00:00:00+05:30", 1), ("2026-11-02T00:00:00+05:30", 2)]));
        // Without days or months, a time zone changes no sum.
        assert_eq!(in_zone("Asia/Kolkata", By::Hour, Period::Hour, ("2026-11-01", 2)).unwrap().len(), 2);
        assert_eq!(in_zone("UTC", By::Month, Period::Day, ("2026-10-31", 2)).unwrap().len(), 2);
    }

    #[test]
    fn records_that_a_day_of_the_time_zone_would_cut_are_refused_on_every_day() {
        for (zone, period, advice) in [
            // Where midnight is that of UTC in winter alone.
            ("Europe/London", Period::Day, "set usage: {by: hour}"),
            ("Europe/Berlin", Period::Day, "set usage: {by: hour}"),
            ("Asia/Kolkata", Period::Hour, "set usage: {by: minute}"),
        ] {
            for by in [By::Day, By::Month] {
                let crossing = in_zone(zone, by, period, ("2026-01-10", 1)).unwrap_err().to_string();
                assert!(crossing.contains(zone) && crossing.contains(advice), "{crossing}");
            }
        }
    }

    const ANN: &str = "{shop|user=ann}|fw1:1000|u1:3600000:0";
    const ANN_NEXT: &str = "{shop|user=ann}|fw1:1000|u1:3600000:1";
    const BOB: &str = "{shop|user=bob}|fw1:1000|u1:86400000:0";

    #[test]
    fn a_page_counts_once_and_pages_of_one_period_add_up() {
        let ann = answer("main", &[(ANN, Period::Hour, &[(23, 5), (24, 1)])]);
        let next = answer("main", &[(ANN_NEXT, Period::Hour, &[(24, 2)]), (ANN, Period::Hour, &[(23, 5), (24, 1)])]);
        let (told, _) = rows(options(By::Kept), &[ann.clone(), next, ann.clone()]);
        let whose = || "(user=ann)".to_owned();
        assert_eq!(told, [(23, "hour", whose(), 5, false), (24, "hour", whose(), 3, false)]);
        let other = UsageAnswer { store: "per_second".into(), ..ann.clone() };
        assert_eq!(rows(options(By::Kept), &[ann, other]).0[0].3, 10, "another Redis has a page of the same name");
    }

    #[test]
    fn rows_are_as_long_as_is_asked_for_and_no_shorter_than_records() {
        let all = [answer("main", &[(BOB, Period::Day, &[(0, 7), (1, 7)]), (ANN, Period::Hour, &[(1, 1), (25, 2)])])];
        let told = |by| -> Vec<_> {
            rows(options(by), &all).0.into_iter().map(|(start, span, whose, ..)| (start, span, whose)).collect()
        };
        let (ann, bob) = (|| "(user=ann)".to_owned(), || "(user=bob)".to_owned());
        let expected = [(0, "day", bob()), (1, "hour", ann()), (24, "day", bob()), (25, "hour", ann())];
        assert_eq!(told(By::Hour), expected);
        let expected = [(0, "day", ann()), (0, "day", bob()), (24, "day", ann()), (24, "day", bob())];
        assert_eq!(told(By::Day), expected);
        assert_eq!(told(By::Total), [(0, "total", ann()), (0, "total", bob())]);
        assert_eq!(told(By::Month), [], "January is not over");
    }

    #[test]
    fn what_is_not_over_is_left_out_or_marked() {
        // At noon, the previous hour is over but not closed yet.
        let all = [answer("main", &[(ANN, Period::Hour, &[(226, 1), (227, 2), (228, 4)])])];
        let (told, left_out) = rows(options(By::Kept), &all);
        assert_eq!((told.len(), left_out), (1, 2));
        let (told, left_out) = rows(StatementOptions { open: true, ..options(By::Kept) }, &all);
        assert_eq!((told.iter().map(|row| row.4).collect::<Vec<_>>(), left_out), (vec![false, true, true], 0));
        assert_eq!(rows(options(By::Total), &all).0[0].3, 1);
        let open = rows(StatementOptions { open: true, ..options(By::Month) }, &all).0;
        assert_eq!((open[0].3, open[0].4), (7, true));
        // A month that is requested up to a time is over at that time.
        let (told, _) = rows(StatementOptions { to: Time(227 * HOUR), ..options(By::Month) }, &all);
        assert_eq!((told[0].3, told[0].4), (1, false));
        // But a record of a day that is not over is not.
        let today = [answer("main", &[(BOB, Period::Day, &[(9, 4)])])];
        for by in [By::Kept, By::Total] {
            assert_eq!(rows(StatementOptions { to: Time(227 * HOUR), ..options(by) }, &today), (Vec::new(), 1));
        }
    }
}
