//! How `tollgate check` reports what it has found: for people, for programs, for GitHub, and for whatever reads SARIF.

mod github;
mod json;
mod sarif;
mod text;

pub(super) use text::Texts;

use std::io::{self, BufWriter, Write};

use clap::ValueEnum;

use crate::changes::{self, Change, Totals};
use crate::rules::Rules;
use crate::rules::load::Loaded;
use crate::rules::report::{Problem, RulesError, Severity};

/// A way to report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people: what is wrong on standard error, each with its line.
    #[default]
    Text,
    /// One JSON object.
    Json,
    /// Workflow commands of GitHub Actions.
    Github,
    /// SARIF 2.1.0.
    Sarif,
}

/// What a warning is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Warnings,
    Errors,
}

/// What has been read.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) new: Result<Loaded, RulesError>,
    /// What they are compared with.
    pub(super) old: Option<Result<Loaded, RulesError>>,
    pub(super) warnings: Weight,
}

/// What is wrong with some rules.
#[derive(Debug)]
struct Findings {
    /// What can be put in force.
    accepted: Option<Accepted>,
    /// At most a hundred and one, and as many hints.
    problems: Vec<Problem>,
    /// How many more there are.
    more: usize,
}

/// How much there is of what can be put in force.
#[derive(Clone, Copy, Debug)]
struct Accepted {
    rules: usize,
    domains: usize,
}

/// Two sets of rules that can both be put in force.
#[derive(Clone, Copy, Debug)]
struct Comparison<'c> {
    old: &'c Rules,
    new: &'c Rules,
}

/// All that a report is about.
#[derive(Debug)]
struct Report<'c> {
    passed: bool,
    warnings: Weight,
    new: Findings,
    /// What is wrong with the rules to compare with, where there are such.
    old: Option<Findings>,
    /// Where both are right.
    comparison: Option<Comparison<'c>>,
}

impl Checked {
    /// The rules can be put in force, where the check is strict without a warning; and so can those that they are
    /// compared with.
    pub(super) fn passed(&self) -> bool {
        let is_accepted = |loaded: &Loaded| self.warnings == Weight::Warnings || loaded.warnings.is_empty();
        self.new.as_ref().is_ok_and(is_accepted) && self.old.as_ref().is_none_or(Result::is_ok)
    }

    /// Prints it. What is wrong goes as text where errors go, all else to standard output.
    pub(super) fn print(&self, format: Format, texts: &mut Texts) -> io::Result<()> {
        let comparison = match (&self.old, &self.new) {
            (Some(Ok(old)), Ok(new)) => Some(Comparison { old: &old.rules, new: &new.rules }),
            _ => None,
        };
        // Warnings about what is in force already are no matter here.
        let findings_of_old = |old: &Result<Loaded, RulesError>| match Findings::new(old) {
            findings if old.is_ok() => Findings { problems: Vec::new(), ..findings },
            findings => findings,
        };
        let report = Report {
            passed: self.passed(),
            warnings: self.warnings,
            new: Findings::new(&self.new),
            old: self.old.as_ref().map(findings_of_old),
            comparison,
        };
        let mut out = BufWriter::new(io::stdout().lock());
        match format {
            Format::Text => text::write(&report, texts, &mut out)?,
            Format::Json => out.write_all(json::document(&report).as_bytes())?,
            Format::Github => github::write(&report, &mut out)?,
            Format::Sarif => {
                out.write_all(sarif::log(&report).as_bytes())?;
                // What is for programs stays alone on standard output, and SARIF has no word for a change.
                report.comparison.map_or(Ok(()), |compared| text::write_changes(compared, &mut io::stderr().lock()))?;
            }
        }
        out.flush()
    }
}

impl Findings {
    fn new(loaded: &Result<Loaded, RulesError>) -> Findings {
        match loaded {
            Ok(Loaded { rules, warnings, hints }) => Findings {
                accepted: Some(Accepted { rules: rules.rules().len(), domains: rules.domains() }),
                problems: warnings.iter().chain(hints).cloned().collect(),
                more: 0,
            },
            Err(RulesError { problems, more }) => Findings { accepted: None, problems: problems.clone(), more: *more },
        }
    }
}

impl Comparison<'_> {
    /// Calls `visit` with every difference until it fails, and tells how many there are.
    fn each<E>(self, mut visit: impl FnMut(&Change<'_>) -> Result<(), E>) -> Result<Totals, E> {
        let (mut totals, mut visited) = (Totals::default(), Ok(()));
        changes::compare(self.old, self.new, &mut |change| {
            totals.add(&change);
            if visited.is_ok() {
                visited = visit(&change);
            }
        });
        visited.map(|()| totals)
    }
}

impl Report<'_> {
    /// How it ends, in one line: `ok: 5 rules in 2 domains`, or `refused: 2 errors, 1 warning`.
    fn conclusion(&self) -> String {
        let findings = [Some(&self.new), self.old.as_ref()].into_iter().flatten();
        let problems = || findings.clone().flat_map(|findings| &findings.problems);
        let of = |severity| problems().filter(|problem| problem.severity == severity).count();
        let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
        let more: usize = findings.clone().map(|findings| findings.more).sum();
        match self.new.accepted {
            Some(Accepted { rules, domains }) if self.passed => {
                format!("ok: {} in {}", counted(rules, "rule"), counted(domains, "domain"))
            }
            _ if errors == 0 && self.warnings == Weight::Errors => {
                format!("refused: {}, and --strict takes warnings for errors", counted(warnings, "warning"))
            }
            _ if more > 0 => format!("refused: {}", counted(errors + warnings + more, "problem")),
            _ if warnings == 0 => format!("refused: {}", counted(errors, "error")),
            _ => format!("refused: {}, {}", counted(errors, "error"), counted(warnings, "warning")),
        }
    }
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
