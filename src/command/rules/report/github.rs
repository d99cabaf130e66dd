//! Workflow commands, which GitHub Actions shows next to the lines of a pull request:
//! `::error file=rules/shop.yaml,line=5,col=13::message`.

use std::io::{self, Write};

use super::{Comparison, Findings, Report};
use crate::engine::rules::Place;
use crate::engine::rules::diff::{Change, Kind};
use crate::engine::rules::report::{Problem, Severity};

pub(crate) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    commands(&report.new, "", out)?;
    if let Some(old) = &report.old {
        commands(old, "--against: ", out)?;
    }
    writeln!(out, "{}", report.conclusion())?;
    report.comparison.map_or(Ok(()), |comparison| notices(comparison, out))
}

/// Writes a command for each problem, with `lead` before its message.
fn commands(findings: &Findings, lead: &str, out: &mut impl Write) -> io::Result<()> {
    for problem in &findings.problems {
        let Problem { severity, file, position, path, message } = problem;
        let file = property(&file.display().to_string());
        let place = position.map(|at| format!(",line={},col={}", at.line, at.column)).unwrap_or_default();
        let colon = if path.is_empty() { "" } else { ": " };
        let message = data(&format!("{lead}{path}{colon}{message}"));
        writeln!(out, "::{} file={file}{place}::{message}", command(*severity))?;
    }
    if findings.more > 0 {
        writeln!(out, "::error::{}and {} more", data(lead), findings.more)?;
    }
    Ok(())
}

/// Writes the differences, next to the lines of the new rules if these have any.
fn notices(comparison: Comparison<'_>, out: &mut impl Write) -> io::Result<()> {
    let totals = comparison.each(|change| {
        let place = place(comparison, change).unwrap_or_default();
        writeln!(out, "::notice{place}::{}", data(&change.to_string()))
    })?;
    writeln!(out, "{totals}")
}

fn place(Comparison { new, .. }: Comparison<'_>, change: &Change<'_>) -> Option<String> {
    let (Kind::Added(side, _) | Kind::Changed(_, side)) = change.kind else { return None };
    let at = Place { line: side.limit.line, ..side.rule.place };
    let file = property(&new.origin(at)?.name.display().to_string());
    Some(format!(" file={file}{}", at.line.map(|line| format!(",line={line}")).unwrap_or_default()))
}

fn command(severity: Severity) -> &'static str {
    match severity {
        Severity::Hint => "notice",
        Severity::Error | Severity::Warning => severity.name(),
    }
}

/// Escapes characters that end a command or start an escape.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes the same characters as `data`, and those that end a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::engine::rules::report::Position;

    #[test]
    fn nothing_in_a_file_ends_its_command() {
        let problem = Problem {
            severity: Severity::Warning,
            file: Path::new("50%,a:b\n/rules.yaml").into(),
            position: Some(Position { line: 5, column: 13 }),
            path: "descriptors[0]".to_owned(),
            message: "100%\r\n::error::not ours".to_owned(),
        };
        let findings = Findings { accepted: None, problems: vec![problem], more: 0 };
        let mut said = Vec::new();
        commands(&findings, "", &mut said).unwrap();
        let command = "::warning file=50%25%2Ca%3Ab%0A/rules.yaml,line=5,col=13::descriptors[0]: 100%25%0D%0A::error::\
                       not ours\n";
        assert_eq!(String::from_utf8(said).unwrap(), command);
    }
}
