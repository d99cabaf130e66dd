//! What is wrong with rules files, and how it is told.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// One mistake, or one thing that is legal but hardly meant. Printed on one line:
/// `rules/a.yaml:12:9: descriptors[2].rate_limit.unit: unknown unit "minuets", did you mean "minute"?`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether the rules can be used all the same.
    pub severity: Severity,
    /// The file or folder, as its source names it.
    pub file: Arc<Path>,
    /// Where in the file; `None` where the whole of it is meant.
    pub position: Option<Position>,
    /// The place in the tree, `descriptors[2].rate_limit.unit`; empty for the root.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The rules are refused.
    Error,
    /// The rules are accepted, and do not do what they seem to.
    Warning,
}

/// A place in a text, counted from 1; columns are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in it.
    pub column: usize,
}

/// Why rules were refused: what is wrong, ordered by file and position, warnings among them; of many errors, and of many
/// warnings, the first hundred, and how many more there are. Printed with one problem on each line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.problems))]
pub struct RulesError {
    /// At least one of them is an error.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        write!(f, "{}", self.file.display())?;
        if let Some(Position { line, column }) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// How many errors are told, and how many warnings: a file can hold millions of either.
const TOLD: usize = 100;

/// Collects problems. All that looks at rules has one at hand, so that a mistake never hides the next one.
#[derive(Debug, Default)]
pub struct Report {
    errors: First,
    warnings: First,
}

/// The first of many problems.
#[derive(Debug, Default)]
struct First {
    /// In their order: by file and position, and where that is the same, as they were found.
    problems: BTreeMap<(Arc<Path>, Option<Position>, usize), Problem>,
    found: usize,
}

impl Report {
    /// Takes note of a problem.
    pub fn add(&mut self, problem: Problem) {
        match problem.severity {
            Severity::Error => self.errors.add(problem),
            Severity::Warning => self.warnings.add(problem),
        }
    }

    /// What concerns a file or folder as a whole.
    pub fn refuse(&mut self, file: &Path, message: String) {
        let (severity, file) = (Severity::Error, file.into());
        self.add(Problem { severity, file, position: None, path: String::new(), message });
    }

    /// The warnings, where nothing worse has come up.
    ///
    /// # Errors
    /// With all that has come up, otherwise.
    pub fn finish(self) -> Result<Vec<Problem>, RulesError> {
        let refused = self.errors.found > 0;
        let rests = [self.errors.rest("errors"), self.warnings.rest("warnings")];
        let mut problems: Vec<_> = self.errors.problems.into_iter().chain(self.warnings.problems).collect();
        problems.sort_by(|(a, _), (b, _)| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let problems = problems.into_iter().map(|(_, problem)| problem).chain(rests.into_iter().flatten()).collect();
        if refused { Err(RulesError { problems }) } else { Ok(problems) }
    }
}

impl First {
    fn add(&mut self, problem: Problem) {
        self.found += 1;
        self.problems.insert((Arc::clone(&problem.file), problem.position, self.found), problem);
        if self.problems.len() > TOLD {
            self.problems.pop_last();
        }
    }

    /// Says how many more there are.
    fn rest(&self, what: &str) -> Option<Problem> {
        let more = self.found.checked_sub(TOLD).filter(|more| *more > 0)?;
        let (_, last) = self.problems.last_key_value()?;
        let message = format!("and {more} more {what} from here on");
        Some(Problem { position: None, path: String::new(), message, ..last.clone() })
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// `unknown unit "minuets", did you mean "minute"?`, or the list of what there is where nothing is near.
pub(super) fn unknown(what: &str, given: &str, known: &[&str]) -> String {
    let unknown = format!("unknown {what} {}", quoted(given));
    match nearest(given, known) {
        Some(near) => format!("{unknown}, did you mean {near:?}?"),
        None => format!("{unknown}; there are {}", known.join(", ")),
    }
}

/// The name that was probably meant: at most every third character is wrong.
pub(super) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    if given.len() > 64 {
        return None; // No name is that long, and comparing takes time.
    }
    let given = given.to_lowercase();
    let distance = |name: &&&str| strsim::osa_distance(&given, name);
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= given.chars().count().div_ceil(3)).then_some(near)
}

/// A text from a file, fit for one line, in quotes.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

/// A text from a file, fit for one line.
pub(super) fn escaped(text: &str) -> String {
    const SHOWN: usize = 60;
    let (shown, rest) = match text.char_indices().nth(SHOWN) {
        Some((end, _)) => (&text[..end], "..."),
        None => (text, ""),
    };
    let quoted = format!("{shown:?}");
    format!("{}{rest}", &quoted[1..quoted.len() - 1])
}
