//! Problems in rules files, and their reports.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use crate::printable::{printable, printable_lines};

/// A mistake, or something valid that is probably not intended. Printed on one line:
/// `rules/a.yaml:12:9: descriptors[2].rate_limit.unit: unknown unit "minuets", did you mean "minute"?`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether the rules can still be used.
    pub severity: Severity,
    /// The file or folder, as named by its source.
    pub file: Arc<Path>,
    /// Position in the file, or `None` if the whole file is meant.
    pub position: Option<Position>,
    /// Path in the tree, such as `descriptors[2].rate_limit.unit`; empty for the root.
    pub path: String,
    /// The problem and its correction.
    pub message: String,
}

/// A line of an origin, counted from 1; `None` if the origin has no lines or does not contain the value.
pub type Line = Option<NonZeroU32>;

/// Severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The rules are rejected.
    Error,
    /// The rules are accepted, but probably do something unintended.
    Warning,
    /// The rules work as written, but an alternative may fit better.
    Hint,
}

impl Severity {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Hint => "hint",
        }
    }
}

/// A position in a text, counted from 1; columns are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in the line.
    pub column: usize,
}

/// The problems of rejected rules, of all files, ordered by file and position, including warnings if there is room.
/// Printed with one problem on each line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RulesError {
    /// The first problems, at most a hundred; at least one of them is an error.
    pub problems: Vec<Problem>,
    /// Number of further problems.
    pub more: usize,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.severity {
            Severity::Error => "",
            Severity::Warning => "warning: ",
            Severity::Hint => "hint: ",
        })?;
        f.write_str(&printable(&self.file.display().to_string()))?;
        if let Some(Position { line, column }) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        f.write_str(": ")?;
        f.write_str(&printable_lines(&self.message))
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

/// Largest number of problems reported: a file can have a million, and people read only the first.
const REPORTED: usize = 100;

/// Collects problems: one mistake does not hide the next. Beyond a hundred it only counts them.
#[derive(Debug, Default)]
pub struct Report {
    errors: First,
    warnings: First,
    hints: BTreeMap<String, Kind>,
}

/// The first hint of a kind, and the number of all.
#[derive(Debug)]
struct Kind {
    first: Problem,
    all: usize,
}

/// The first problems, and the number of all.
#[derive(Debug, Default)]
struct First {
    /// Ordered by file and position, and then as they were found.
    kept: BTreeMap<(Arc<Path>, Option<Position>, usize), Problem>,
    all: usize,
}

impl First {
    fn add(&mut self, problem: Problem) {
        self.all += 1;
        self.kept.insert((Arc::clone(&problem.file), problem.position, self.all), problem);
        if self.kept.len() > REPORTED {
            self.kept.pop_last();
        }
    }

    fn merge(&mut self, other: First) {
        let all = self.all + other.all;
        other.kept.into_values().for_each(|problem| self.add(problem));
        self.all = all;
    }
}

impl Report {
    /// Adds a problem.
    pub fn add(&mut self, problem: Problem) {
        match problem.severity {
            Severity::Error => self.errors.add(problem),
            Severity::Warning => self.warnings.add(problem),
            Severity::Hint => self.hint(problem, 1),
        }
    }

    /// Returns whether the rules are rejected because of the problems so far.
    pub fn has_errors(&self) -> bool {
        self.errors.all > 0
    }

    /// Adds the problems of another report after its own.
    pub fn merge(&mut self, other: Report) {
        self.errors.merge(other.errors);
        self.warnings.merge(other.warnings);
        other.hints.into_values().for_each(|Kind { first, all }| self.hint(first, all));
    }

    /// Adds hints of the same kind: their messages differ in numbers and names only.
    fn hint(&mut self, first: Problem, all: usize) {
        let place = |problem: &Problem| (Arc::clone(&problem.file), problem.position);
        let kind = kind(&first.message);
        match self.hints.get_mut(&kind) {
            Some(known) => {
                known.all += all;
                if place(&first) < place(&known.first) {
                    known.first = first;
                }
            }
            None => drop(self.hints.insert(kind, Kind { first, all })),
        }
    }

    /// Adds an error about a file or folder as a whole.
    pub fn refuse(&mut self, file: &Path, message: String) {
        let (severity, file) = (Severity::Error, file.into());
        self.add(Problem { severity, file, position: None, path: String::new(), message });
    }

    /// Removes and returns the hints, the first of each kind with the number of the others.
    pub fn take_hints(&mut self) -> Vec<Problem> {
        let told = |Kind { first, all }| match all - 1 {
            0 => first,
            more => Problem { message: format!("{} (and {more} more hints of this kind)", first.message), ..first },
        };
        let mut hints: Vec<_> = std::mem::take(&mut self.hints).into_values().map(told).collect();
        hints.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
        hints
    }

    /// Returns the warnings if there are no errors. After a hundred, the last one has the number left out.
    ///
    /// # Errors
    /// If there are errors; includes as many warnings as there is room for.
    pub fn finish(self) -> Result<Vec<Problem>, RulesError> {
        let Report { errors, warnings, hints: _ } = self;
        let (failed, all) = (errors.all > 0, errors.all + warnings.all);
        let mut problems: Vec<Problem> =
            errors.kept.into_values().chain(warnings.kept.into_values()).take(REPORTED).collect();
        let more = all - problems.len();
        problems.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
        if failed {
            return Err(RulesError { problems, more });
        }
        Ok(listed(problems, all))
    }
}

/// Returns the kind of a hint: its message without numbers, and without names in quotes.
fn kind(message: &str) -> String {
    let outside = message.split('"').step_by(2);
    let is_name = |word: &&str| !word.starts_with(|char: char| char.is_ascii_digit());
    outside.flat_map(str::split_whitespace).filter(is_name).collect::<Vec<_>>().join(" ")
}

/// Returns the first problems, and a last one with the number left out.
fn listed(mut first: Vec<Problem>, all: usize) -> Vec<Problem> {
    if let (Some(last), more @ 1..) = (first.last().cloned(), all - first.len()) {
        let message = format!("and {more} more warnings, there or in other files");
        first.push(Problem { position: None, path: String::new(), message, ..last });
    }
    first
}

/// A number of bytes, formatted for people.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1024 * 1024;
        if self.0 > 0 && self.0.is_multiple_of(MIB) {
            write!(f, "{} MiB", self.0 / MIB)
        } else {
            write!(f, "{} bytes", self.0)
        }
    }
}

/// Returns a message such as `unknown unit "minuets", did you mean "minute"?`, or with a list of all names if none is
/// similar.
pub fn unknown(what: &str, given: &str, known: &[&str]) -> String {
    let unknown = format!("unknown {what} {}", quoted(given));
    match nearest(given, known) {
        Some(near) => format!("{unknown}, did you mean {near:?}?"),
        None => format!("{unknown}; there are {}", known.join(", ")),
    }
}

/// Returns the name that was probably meant, with at most a third of its characters wrong.
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    if given.len() > 64 {
        return None; // No name is that long, and comparing takes time.
    }
    let given = given.to_lowercase();
    let distance = |name: &&&str| strsim::osa_distance(&given, &name.to_lowercase());
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= given.chars().count().div_ceil(3)).then_some(near)
}

/// Quotes a text from a file, shortened and escaped for one line.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

/// Shortens and escapes a text from a file for one line.
pub fn escaped(text: &str) -> String {
    const SHOWN: usize = 60;
    let (shown, rest) = match text.char_indices().nth(SHOWN) {
        Some((end, _)) => (&text[..end], "..."),
        None => (text, ""),
    };
    let quoted = format!("{shown:?}");
    format!("{}{rest}", &quoted[1..quoted.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(severity: Severity, line: usize) -> Problem {
        let position = Some(Position { line, column: 1 });
        Problem { severity, file: Path::new("a.yaml").into(), position, path: String::new(), message: "wrong".into() }
    }

    #[test]
    fn of_a_million_mistakes_the_first_hundred_are_kept_and_all_are_counted() {
        let mut report = Report::default();
        for line in (1..=1_000_000).rev() {
            report.add(found(Severity::Warning, line));
            report.add(found(Severity::Error, line));
        }
        assert_eq!((report.errors.kept.len(), report.warnings.kept.len()), (REPORTED, REPORTED));
        let error = report.finish().unwrap_err();
        assert!(error.problems.iter().all(|problem| problem.severity == Severity::Error), "errors go first");
        let text = error.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[99]), (101, "a.yaml:1:1: wrong", "a.yaml:100:1: wrong"));
        assert_eq!(lines[100], "and 1999900 more");
    }

    #[test]
    fn warnings_fill_what_errors_leave_and_stand_at_their_places() {
        let mut report = Report::default();
        for line in 1..=60 {
            report.add(found(Severity::Warning, line));
        }
        for line in 31..=90 {
            report.add(found(Severity::Error, line));
        }
        let error = report.finish().unwrap_err();
        let severities: Vec<_> = error.problems.iter().map(|problem| problem.severity).collect();
        assert_eq!((error.problems.len(), error.more), (100, 20));
        assert_eq!((severities[0], severities[99]), (Severity::Warning, Severity::Error));
        assert!(error.problems.is_sorted_by_key(|problem| problem.position));
    }

    #[test]
    fn too_many_warnings_are_counted_too() {
        let mut report = Report::default();
        for line in 1..=150 {
            report.add(found(Severity::Warning, line));
        }
        let warnings = report.finish().unwrap();
        let rest = "warning: a.yaml: and 50 more warnings, there or in other files";
        assert_eq!((warnings.len(), warnings[100].to_string().as_str()), (101, rest));
    }
}
