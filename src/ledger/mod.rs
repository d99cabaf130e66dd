//! Ledgers of usage: signed totals for each domain and period, with each line linked to the previous one. A ledger can
//! verify a bill long after the store has dropped the records behind it.
//!
//! A ledger is a text file with one JSON object per line. The periods of each domain follow each other without a gap.
//! Each write ends with a seal, so removing the last lines is detected as well. A ledger cut at an earlier seal looks
//! complete; to detect that, keep a copy of a later line in another place.
//!
//! This module does not read or write files.

pub mod answer;
pub mod statement;
mod key;
mod line;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

pub use key::{KeyError, PublicKey, SigningKey};
pub use line::{Closed, Content, Length, Line, Seal};

use self::statement::Row;
use crate::engine::usage::{Period, Time, Totals};
use line::{NOTHING, Signed};

/// The content of a file.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
    /// Number of bytes in complete lines.
    whole: usize,
    /// Number of bytes after them that are not a complete line.
    half: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    /// `None` if the line is not a ledger line.
    signed: Option<Signed>,
    hash: String,
}

/// A problem in a ledger, with its line in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line number in the file, from 1.
    pub at: usize,
    /// The problem.
    pub what: Wrong,
}

/// The kind of a problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The line is not JSON, or not from a ledger.
    #[error("it is not a line of a ledger")]
    NoLine,
    /// The content does not match its signature.
    #[error("its content does not match its signature")]
    Changed,
    /// Another key signed the line.
    #[error("it is signed with another key, {0}: if that key is yours, pass its public key as well")]
    OtherKey(String),
    /// Preceding lines are missing.
    #[error("{} before it", taken_out(.0, .1))]
    TakenOut(u64, u64),
    /// A line with a higher number precedes this one.
    #[error("it is line {0}, but follows a later line or a copy of itself")]
    OutOfPlace(u64),
    /// The preceding line does not have the hash that this one refers to.
    #[error("the preceding line was replaced: its hash does not match")]
    Replaced,
    /// A period is closed twice.
    #[error("it closes {0} from {1} on, which another line has already closed")]
    Again(String, Time),
    /// A period is not closed.
    #[error("no line closes {0} from {1} to {2}")]
    Gap(String, Time, Time),
    /// The final seal is missing.
    #[error("the lines up to here are not sealed: lines were removed, or `close` was interrupted; run `close` again")]
    NoSeal,
    /// The last line is incomplete.
    #[error("it is an incomplete line of {0} bytes: `close` was interrupted; the next `close` removes it")]
    Half(usize),
    /// The file has no lines.
    #[error("the ledger has no lines")]
    Empty,
    /// A domain's last period ends too early.
    #[error("no line closes {0} from {1} on")]
    Ends(String, Time),
}

fn taken_out(first: &u64, last: &u64) -> String {
    match first == last {
        true => format!("line {first} is missing"),
        false => format!("lines {first} to {last} are missing"),
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.at, self.what)
    }
}

/// The reason why nothing can be appended to a ledger.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The ledger is damaged.
    #[error("the ledger is damaged, so nothing was appended: {0}; `tollgate usage check` lists all problems")]
    Damaged(Problem),
    /// The ledger's periods have another length.
    #[error("the ledger closes {}s and cannot switch to another period: omit --by", .0.name())]
    Length(Length),
    /// The records cover longer periods.
    #[error("{0} records usage by day, which cannot be closed by hour: use --by day")]
    Coarse(String),
    /// A line cannot be written as JSON.
    #[error("a line cannot be written")]
    Unwritable,
}

/// The periods to close.
#[derive(Clone, Debug)]
pub struct Closing<'c> {
    /// Records of all periods that may be closed, one row each.
    pub rows: &'c [Row],
    /// Only this domain; `None` for all.
    pub domain: Option<&'c str>,
    /// Length of the periods.
    pub by: Length,
    /// Only periods that end at this time or before.
    pub until: Time,
    /// The store's time.
    pub at: Time,
}

/// The comparison of a closed period with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The store has the same records as the line.
    Agrees,
    /// Records have expired as planned; this many are left.
    Expired(u64),
    /// The store has other records, as described.
    Differs(String),
}

impl Ledger {
    /// Parses a file.
    pub fn read(bytes: &[u8]) -> Ledger {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let entry = |line: &[u8]| {
            let signed = std::str::from_utf8(line).ok().and_then(Signed::read);
            Entry { signed, hash: line::hash(line) }
        };
        let lines = bytes[..whole].strip_suffix(b"\n").map(|lines| lines.split(|byte| *byte == b'\n'));
        let entries = lines.into_iter().flatten().map(entry).collect();
        Ledger { entries, whole, half: bytes.len() - whole }
    }

    /// Returns the number of bytes in complete lines, and of those after them.
    pub fn bytes(&self) -> (usize, usize) {
        (self.whole, self.half)
    }

    /// Returns the number of lines.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no lines.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the lines that close a period, with their line numbers in the file.
    pub fn closed(&self) -> impl Iterator<Item = (usize, &Closed)> {
        self.lines().filter_map(|(at, line)| match &line.content {
            Content::Closed(closed) => Some((at, closed)),
            Content::Seal(_) => None,
        })
    }

    /// Returns the length of the closed periods; `None` if there are none.
    pub fn length(&self) -> Option<Length> {
        self.closed().next().map(|(_, closed)| closed.by)
    }

    /// Returns the time from which records are needed to continue for this domain, or for all.
    pub fn next(&self, domain: Option<&str>) -> Time {
        let ends = self.ends();
        let of_all = || {
            // If all domains were closed together, a new domain has no earlier records.
            let until = self.sealed(|of| of.is_none())?;
            ends.values().copied().chain([until]).min()
        };
        match domain {
            Some(domain) => ends.get(domain).copied(),
            None => of_all(),
        }
        .unwrap_or_default()
    }

    /// Returns the time up to which the ledger claims to have all records of this domain; `None` if it claims none.
    pub fn sealed_until(&self, domain: &str) -> Option<Time> {
        self.sealed(|of| of.is_none_or(|one| one == domain))
    }

    /// Returns the time of the last matching seal.
    fn sealed(&self, is_for: impl Fn(Option<&str>) -> bool) -> Option<Time> {
        let seals = self.lines().filter_map(|(_, line)| match &line.content {
            Content::Seal(Seal { domain, until, .. }) if is_for(domain.as_deref()) => Some(*until),
            _ => None,
        });
        seals.last()
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        (1..).zip(&self.entries).filter_map(|(at, entry)| Some((at, &entry.signed.as_ref()?.line)))
    }

    /// Returns the time up to which each domain is closed.
    fn ends(&self) -> BTreeMap<&str, Time> {
        self.closed().map(|(_, closed)| (&*closed.domain, closed.to)).collect()
    }

    /// Returns all problems, given the trusted keys. If `to` is set, every domain must be closed up to that time.
    pub fn problems(&self, keys: &[PublicKey], to: Option<Time>) -> Vec<Problem> {
        let mut reading = Reading::default();
        for (at, entry) in (1..).zip(&self.entries) {
            reading.read(at, entry, Some(keys));
        }
        let last = self.entries.len();
        let is_sealed = |entry: &Entry| match &entry.signed {
            Some(signed) => matches!(signed.line.content, Content::Seal(_)),
            None => true, // already reported
        };
        let mut problems = reading.problems;
        let mut tell = |at, what| problems.push(Problem { at, what });
        match self.entries.last() {
            None if self.half == 0 => tell(1, Wrong::Empty),
            Some(entry) if !is_sealed(entry) => tell(last, Wrong::NoSeal),
            _ => {}
        }
        if self.half > 0 {
            tell(last + 1, Wrong::Half(self.half));
        }
        let early = self.ends().into_iter().filter(|(_, end)| to.is_some_and(|to| *end < to));
        early.for_each(|(domain, end)| tell(last, Wrong::Ends(domain.to_owned(), end)));
        problems
    }

    /// Returns the signed lines that close all due periods, each with a line end; empty if all are closed already.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or of another kind. An incomplete last line is ignored.
    pub fn close(&self, closing: &Closing<'_>, key: &SigningKey) -> Result<String, CloseError> {
        let mut reading = Reading::default();
        for (at, entry) in (1..).zip(&self.entries) {
            // Earlier lines may be signed with another key.
            reading.read(at, entry, None);
        }
        if let Some(problem) = reading.problems.into_iter().next() {
            return Err(CloseError::Damaged(problem));
        }
        if let Some(length) = self.length().filter(|length| *length != closing.by) {
            return Err(CloseError::Length(length));
        }
        let is_coarse = |row: &&Row| Period::named(row.span).is_none_or(|period| period > closing.by.period());
        if let Some(row) = closing.rows.iter().filter(|row| closing.is_about(row)).find(is_coarse) {
            return Err(CloseError::Coarse(row.counter.owner.domain.clone()));
        }
        let mut contents: Vec<Content> = closing.periods(&self.ends()).into_iter().map(Content::Closed).collect();
        let is_sealed = self.lines().last().is_none_or(|(_, line)| matches!(line.content, Content::Seal(_)));
        if contents.is_empty() && is_sealed {
            return Ok(String::new());
        }
        let Closing { at, until, domain, .. } = *closing;
        contents.push(Content::Seal(Seal { at, until, domain: domain.map(str::to_owned) }));
        let mut previous = self.entries.last().map_or_else(|| NOTHING.to_owned(), |entry| entry.hash.clone());
        let (mut text, key_id) = (String::new(), key.public().id());
        for (line, content) in (self.entries.len() as u64 + 1..).zip(contents) {
            let line = Line { line, content, previous, key: key_id.clone() };
            let signed = line.signed(key).ok_or(CloseError::Unwritable)?;
            previous = line::hash(signed.as_bytes());
            text.push_str(&signed);
            text.push('\n');
        }
        Ok(text)
    }
}

/// A reader that checks lines in order.
#[derive(Default)]
struct Reading {
    problems: Vec<Problem>,
    /// Highest line number so far.
    highest: u64,
    /// Hash of the previous line, unless that had a problem.
    before: Option<String>,
    /// Whether there was a previous line.
    began: bool,
    ends: BTreeMap<String, Time>,
}

impl Reading {
    fn read(&mut self, at: usize, entry: &Entry, keys: Option<&[PublicKey]>) {
        let before = self.before.take();
        let is_first = !std::mem::replace(&mut self.began, true);
        let Some(signed) = &entry.signed else {
            self.highest += 1;
            return self.problems.push(Problem { at, what: Wrong::NoLine });
        };
        let line = &signed.line;
        if let Some(what) = keys.and_then(|keys| unsigned(signed, keys)) {
            self.highest += 1;
            return self.problems.push(Problem { at, what });
        }
        let follows = match &before {
            Some(hash) => *hash == line.previous,
            // The problem with the previous line is already reported.
            None => !is_first || line.previous == NOTHING,
        };
        let what = if line.line <= self.highest {
            Some(Wrong::OutOfPlace(line.line))
        } else if line.line > self.highest + 1 {
            Some(Wrong::TakenOut(self.highest + 1, line.line - 1))
        } else if !follows {
            Some(Wrong::Replaced)
        } else {
            None
        };
        // A line that follows a later one does not affect the lines after that.
        let is_ahead = line.line > self.highest;
        self.before = if is_ahead { Some(entry.hash.clone()) } else { before };
        self.highest = self.highest.max(line.line);
        let is_in_place = what.is_none();
        self.problems.extend(what.map(|what| Problem { at, what }));
        if let Content::Closed(closed) = &line.content {
            self.follow(at, closed, is_in_place);
        }
    }

    /// Checks that a line continues where the previous line of its domain ends.
    fn follow(&mut self, at: usize, closed: &Closed, is_in_place: bool) {
        let Closed { domain, from, to, .. } = closed;
        let end = self.ends.insert(domain.clone(), *to);
        let what = match end {
            Some(end) if *from < end => Wrong::Again(domain.clone(), *from),
            Some(end) if *from > end => Wrong::Gap(domain.clone(), end, *from),
            _ => return,
        };
        // Missing or misplaced lines are already reported.
        if is_in_place && self.problems.is_empty() {
            self.problems.push(Problem { at, what });
        }
    }
}

/// Returns the problem with a line's signature, if any.
fn unsigned(signed: &Signed, keys: &[PublicKey]) -> Option<Wrong> {
    if keys.iter().any(|key| signed.is_signed_by(key)) {
        return None;
    }
    let id = &signed.line.key;
    match keys.iter().any(|key| key.id() == *id) {
        true => Some(Wrong::Changed),
        false => Some(Wrong::OtherKey(id.clone())),
    }
}

impl Closing<'_> {
    fn is_about(&self, row: &Row) -> bool {
        self.domain.is_none_or(|one| one == row.counter.owner.domain)
    }

    /// Returns the periods to close by time and domain, given the time up to which each domain is closed.
    fn periods(&self, ends: &BTreeMap<&str, Time>) -> Vec<Closed> {
        let mut by_period: BTreeMap<(&str, Time), Vec<&Row>> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| self.is_about(row)) {
            by_period.entry((&row.counter.owner.domain, self.by.begin(row.start))).or_default().push(row);
        }
        let known = ends.keys().copied().chain(by_period.keys().map(|(domain, _)| *domain));
        let domains: BTreeSet<&str> = known.filter(|domain| self.domain.is_none_or(|one| one == *domain)).collect();
        let mut closed = Vec::new();
        for domain in domains {
            let first = || by_period.range((domain, Time(0))..).next().map(|((_, start), _)| *start);
            let mut from = ends.get(domain).copied().or_else(first).unwrap_or(self.until);
            while from.plus(self.by.period().ms()) <= self.until {
                let to = from.plus(self.by.period().ms());
                let rows = by_period.get(&(domain, from)).map_or(&[][..], Vec::as_slice);
                closed.push(close(domain, self.by, (from, to), rows));
                from = to;
            }
        }
        closed.sort_by(|one, other| (one.from, &one.domain).cmp(&(other.from, &other.domain)));
        closed
    }
}

fn close(domain: &str, by: Length, (from, to): (Time, Time), rows: &[&Row]) -> Closed {
    let Totals { admitted, denied, cost, topped_up } =
        rows.iter().fold(Totals::default(), |sum, row| sum.plus(row.totals));
    Closed {
        domain: domain.to_owned(),
        by,
        from,
        to,
        records: rows.len() as u64,
        admitted,
        denied,
        cost,
        topped_up,
        digest: digest(rows),
        kept_until: rows.iter().filter_map(|row| row.expires).min(),
    }
}

/// Returns the BLAKE3 hash of records. The hashed text has one line for each record, `COUNTER PERIOD START_MS ADMITTED
/// DENIED COST`, with ` TOPPED_UP` behind it if a budget was topped up. The lines are ordered by the counters' bytes,
/// then by time, the shorter period first. `COUNTER` is the counter's name without the service's prefix. `PERIOD` is
/// `minute`, `hour` or `day`.
pub fn digest(rows: &[&Row]) -> String {
    let mut rows = rows.to_vec();
    let period = |row: &Row| Period::named(row.span);
    rows.sort_unstable_by(|one, other| {
        let by_time = || (one.start, period(one)).cmp(&(other.start, period(other)));
        one.counter.name.cmp(&other.counter.name).then_with(by_time)
    });
    let (mut hasher, mut line) = (blake3::Hasher::new(), String::new());
    for Row { start, span, counter, totals: Totals { admitted, denied, cost, topped_up }, .. } in rows {
        line.clear();
        // Writing to a String cannot fail.
        let _ = write!(line, "{} {span} {} {admitted} {denied} {cost}", counter.name, start.0);
        let _ = if *topped_up > 0 { writeln!(line, " {topped_up}") } else { writeln!(line) };
        hasher.update(line.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

impl Closed {
    /// Compares the line with the records that the store has now for its domain and period.
    pub fn compare(&self, rows: &[&Row], now: Time) -> Stored {
        let found = close(&self.domain, self.by, (self.from, self.to), rows);
        if found.digest == self.digest {
            return Stored::Agrees;
        }
        let may_be_gone = self.kept_until.is_some_and(|kept| kept <= now);
        // The remaining records must be a part of the closed ones.
        let is_part = found.admitted <= self.admitted && found.denied <= self.denied;
        if may_be_gone && found.records < self.records && is_part {
            return Stored::Expired(found.records);
        }
        let mut words = Vec::new();
        match (found.records, self.records) {
            (found, closed) if found < closed => {
                words.push(format!("{} of {closed} records are missing", closed - found))
            }
            (found, closed) if found > closed => words.push(format!("{} more records than {closed}", found - closed)),
            _ => {}
        }
        let numbers = [
            ("admitted", i128::from(found.admitted), i128::from(self.admitted)),
            ("denied", found.denied.into(), self.denied.into()),
            ("cost", found.cost.into(), self.cost.into()),
            ("topped_up", found.topped_up.into(), self.topped_up.into()),
        ];
        words.extend(
            numbers
                .iter()
                .filter(|(_, found, closed)| found != closed)
                .map(|(name, found, closed)| format!("{name} is {found}, was {closed}")),
        );
        if words.is_empty() {
            words.push("the sums agree, but the records behind them have changed".to_owned());
        }
        Stored::Differs(words.join("; "))
    }
}
