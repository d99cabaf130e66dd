//! Records, each once, summed and in order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::answer::{Answer, CounterPage, Record};
use super::page::{Owner, PageName};
use super::{Period, Time, Totals};

/// So long after its end a period is closed: what is charged, or taken back, at its end is written by then, and clocks
/// differ by less.
pub const CLOSED_AFTER_MS: u64 = 5 * 60 * 1_000;

/// For how long a time a row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// As the records are.
    #[default]
    Kept,
    /// For an hour.
    Hour,
    /// For a day.
    Day,
    /// For a month of the calendar.
    Month,
    /// For all of the time that is asked for.
    Total,
}

/// What is summed, and of which time.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long a time a row is. Records of a longer time stay as they are.
    pub by: By,
    /// From then on.
    pub from: Time,
    /// Until then.
    pub to: Time,
    /// Also where the time is not over.
    pub open: bool,
    /// So long after its end a time is over, in milliseconds.
    pub closed_after_ms: u64,
}

/// A counter that was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name without a prefix: `{tag}|LIMIT`.
    pub name: String,
    /// Whose it is.
    pub owner: Owner,
    /// What names the limit.
    pub limit: String,
    /// What the limit is called, where rules in force have it.
    pub rule: Option<String>,
}

/// How much a counter was used in a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// When that begins.
    pub start: Time,
    /// What it is: `minute`, `hour`, `day`, `month` or `total`.
    pub span: &'static str,
    /// Which counter.
    pub counter: Arc<Counter>,
    /// How much.
    pub totals: Totals,
    /// The time is not over, and more may come.
    pub is_open: bool,
    /// The first of its records to be forgotten is forgotten then; `None`: none ever, or nobody knows.
    pub expires: Option<Time>,
}

/// What answers have told.
pub struct Statement {
    options: Options,
    /// Pages by their hashes.
    seen: HashSet<[u8; 16]>,
    counters: Vec<Arc<Counter>>,
    by_name: HashMap<String, usize>,
    sums: HashMap<(Time, &'static str, usize), Sum>,
    /// The store's time when the first answer came.
    now: Option<Time>,
    damaged: u64,
    left_out: u64,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    totals: Totals,
    is_open: bool,
    expires: Option<Time>,
}

impl By {
    /// Those that can be asked for.
    pub const ALL: [By; 4] = [By::Hour, By::Day, By::Month, By::Total];

    /// The name on the command line.
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
    /// One that nothing has been told to yet.
    pub fn new(options: Options) -> Statement {
        Statement {
            options,
            seen: HashSet::new(),
            counters: Vec::new(),
            by_name: HashMap::new(),
            sums: HashMap::new(),
            now: None,
            damaged: 0,
            left_out: 0,
        }
    }

    /// Takes what an answer tells, and not what another has told before.
    pub fn add(&mut self, answer: Answer) {
        let now = *self.now.get_or_insert(answer.now);
        self.damaged += answer.damaged;
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
            let (begins, ends, span) = self.span(period, start);
            // What the record itself is about is over no sooner.
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

    /// The row that a record is summed in: when it begins and ends, and what it is. A total is over with its last
    /// record.
    fn span(&self, period: Period, start: Time) -> (Time, Time, &'static str) {
        let of = |period: Period| {
            let begins = Time(start.0 - start.0 % period.ms());
            (begins, begins.plus(period.ms()), period.name())
        };
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

    /// So many records could not be read.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// So many are left out, because their time is not over.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The store's time when the first answer came.
    pub fn now(&self) -> Option<Time> {
        self.now
    }

    /// All rows, by time, domain, descriptor and limit.
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

    /// A page of this name: the numbers of periods, and how many were admitted in each.
    type Told<'t> = (&'t str, Period, &'t [(u64, i64)]);

    /// The hour, the span, whose it is, how many were admitted, and whether it is open.
    type Shown = (u64, &'static str, String, i64, bool);

    fn answer(store: &str, pages: &[Told<'_>]) -> Answer {
        let page = |(name, period, records): &Told<'_>| {
            let read = PageName::read(name).unwrap();
            let owner = read.owner(None).unwrap();
            let record = |(index, admitted): &(u64, i64)| Record {
                start: Time(index * period.ms()),
                totals: Totals { admitted: *admitted, denied: 1, cost: *admitted },
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
        // The tenth of January 1970, at noon.
        Answer { now: Time(228 * HOUR), store: store.to_owned(), pages, damaged: 0, cursor: None }
    }

    fn options(by: By) -> Options {
        Options { by, from: Time(0), to: Time::END, open: false, closed_after_ms: CLOSED_AFTER_MS }
    }

    fn rows(options: Options, answers: &[Answer]) -> (Vec<Shown>, u64) {
        let mut statement = Statement::new(options);
        answers.iter().for_each(|answer| statement.add(answer.clone()));
        let left_out = statement.left_out();
        let rows = statement.rows().into_iter().map(|row| {
            let whose = row.counter.owner.descriptor().to_string();
            (row.start.0 / HOUR, row.span, whose, row.totals.admitted, row.is_open)
        });
        (rows.collect(), left_out)
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
        let other = Answer { store: "per_second".into(), ..ann.clone() };
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
        // It is noon: the hour before is over, and not closed yet.
        let all = [answer("main", &[(ANN, Period::Hour, &[(226, 1), (227, 2), (228, 4)])])];
        let (told, left_out) = rows(options(By::Kept), &all);
        assert_eq!((told.len(), left_out), (1, 2));
        let (told, left_out) = rows(Options { open: true, ..options(By::Kept) }, &all);
        assert_eq!((told.iter().map(|row| row.4).collect::<Vec<_>>(), left_out), (vec![false, true, true], 0));
        assert_eq!(rows(options(By::Total), &all).0[0].3, 1);
        let open = rows(Options { open: true, ..options(By::Month) }, &all).0;
        assert_eq!((open[0].3, open[0].4), (7, true));
        // A month that is asked for up to a time is over with that time.
        let (told, _) = rows(Options { to: Time(227 * HOUR), ..options(By::Month) }, &all);
        assert_eq!((told[0].3, told[0].4), (1, false));
        // And a record of a day that goes on is not.
        let today = [answer("main", &[(BOB, Period::Day, &[(9, 4)])])];
        for by in [By::Kept, By::Total] {
            assert_eq!(rows(Options { to: Time(227 * HOUR), ..options(by) }, &today), (Vec::new(), 1));
        }
    }
}
