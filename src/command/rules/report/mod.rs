//! The reports of `tollgate check`: for people, for programs, for GitHub, and for readers of SARIF.

mod github;
mod json;
mod sarif;
mod text;

use std::io::{self, BufWriter, Write};

use clap::ValueEnum;

use crate::engine::rules::Rules;
use crate::engine::rules::diff::{self, Change, Totals};
use crate::engine::rules::report::{Problem, RulesError, Severity};
use crate::sources::files::excerpt::Texts;
use crate::sources::files::load::Loaded;

/// Format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people: problems on standard error, each with its line.
    #[default]
    Text,
    /// One JSON object.
    Json,
    /// Workflow commands of GitHub Actions.
    Github,
    /// SARIF 2.1.0.
    Sarif,
}

/// Whether warnings count as errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    Warnings,
    Errors,
}

/// The rules that were read.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) new: Result<Loaded, RulesError>,
    /// The rules to compare with.
    pub(crate) old: Option<Result<Loaded, RulesError>>,
    pub(crate) warnings: Weight,
}

/// Problems of a set of rules.
#[derive(Debug)]
struct Findings {
    /// Size of the rules, if they are valid.
    accepted: Option<Accepted>,
    /// Problems found: at most a hundred and one, and as many hints.
    problems: Vec<Problem>,
    /// Number of problems left out.
    more: usize,
}

/// Size of a valid set of rules.
#[derive(Clone, Copy, Debug)]
struct Accepted {
    rules: usize,
    domains: usize,
}

/// Two valid sets of rules to compare.
#[derive(Clone, Copy, Debug)]
struct Comparison<'c> {
    old: &'c Rules,
    new: &'c Rules,
}

/// All facts of a report.
#[derive(Debug)]
struct Report<'c> {
    passed: bool,
    warnings: Weight,
    new: Findings,
    /// Problems of the rules to compare with, if there are any.
    old: Option<Findings>,
    /// Present if both sets are valid.
    comparison: Option<Comparison<'c>>,
}

impl Checked {
    /// Returns whether the rules are valid, in a strict check without warnings, and so are the rules to compare with.
    pub(crate) fn passed(&self) -> bool {
        let is_accepted = |loaded: &Loaded| self.warnings == Weight::Warnings || loaded.warnings.is_empty();
        self.new.as_ref().is_ok_and(is_accepted) && self.old.as_ref().is_none_or(Result::is_ok)
    }

    /// Prints the report. In text, problems go to standard error. Everything else goes to standard output.
    pub(crate) fn print(&self, format: Format, texts: &mut Texts) -> io::Result<()> {
        let comparison = match (&self.old, &self.new) {
            (Some(Ok(old)), Ok(new)) => Some(Comparison { old: &old.rules, new: &new.rules }),
            _ => None,
        };
        // Warnings about the rules in force do not matter here.
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
                // Standard output is for programs, and SARIF cannot describe a change.
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
    /// Calls `visit` with every difference until it fails, and returns the totals.
    fn each<E>(self, mut visit: impl FnMut(&Change<'_>) -> Result<(), E>) -> Result<Totals, E> {
        let (mut totals, mut visited) = (Totals::default(), Ok(()));
        diff::compare(self.old, self.new, &mut |change| {
            totals.add(&change);
            if visited.is_ok() {
                visited = visit(&change);
            }
        });
        visited.map(|()| totals)
    }
}

impl Report<'_> {
    /// Returns the result in one line: `ok: 5 rules in 2 domains`, or `refused: 2 errors, 1 warning`.
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
                format!("refused: {}, and --strict treats warnings as errors", counted(warnings, "warning"))
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
