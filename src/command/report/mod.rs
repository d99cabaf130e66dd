//! How `tollgate check` reports what it has found: for people, for programs, for GitHub, and for whatever reads SARIF.

mod github;
mod json;
mod sarif;
mod text;

pub(super) use text::Texts;

use clap::ValueEnum;

use crate::rules::load::Loaded;
use crate::rules::report::{Problem, RulesError};

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

/// What a check has found.
#[derive(Debug)]
pub(super) struct Findings {
    /// The rules can be put in force; where the check is strict, without a warning.
    pub(super) passed: bool,
    /// What can be put in force.
    accepted: Option<Accepted>,
    /// At most a hundred and one.
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

impl Findings {
    pub(super) fn new(loaded: &Result<Loaded, RulesError>, strict: bool) -> Findings {
        match loaded {
            Ok(Loaded { rules, warnings }) => Findings {
                passed: !strict || warnings.is_empty(),
                accepted: Some(Accepted { rules: rules.rules().len(), domains: rules.domains() }),
                problems: warnings.clone(),
                more: 0,
            },
            Err(RulesError { problems, more }) => {
                Findings { passed: false, accepted: None, problems: problems.clone(), more: *more }
            }
        }
    }

    /// Prints them. Text goes where errors go, all else to standard output, whole.
    pub(super) fn print(&self, format: Format, texts: &mut Texts) {
        match format {
            Format::Text => eprint!("{}", text::problems(self, texts)),
            Format::Json => print!("{}", json::document(self)),
            Format::Github => print!("{}", github::commands(self)),
            Format::Sarif => print!("{}", sarif::log(self)),
        }
        if let (Format::Text | Format::Github, Some(accepted), true) = (format, self.accepted, self.passed) {
            println!("{}", text::summary(accepted));
        }
    }
}
