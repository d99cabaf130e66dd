//! Workflow commands, which GitHub Actions shows beside the lines of a pull request:
//! `::error file=rules/shop.yaml,line=5,col=13::message`.

use std::fmt::Write as _;

use super::Findings;
use crate::rules::report::{Problem, Severity};

pub(super) fn commands(findings: &Findings) -> String {
    let mut commands = String::new();
    for problem in &findings.problems {
        let Problem { severity, file, position, path, message } = problem;
        let file = property(&file.display().to_string());
        let place = position.map(|at| format!(",line={},col={}", at.line, at.column)).unwrap_or_default();
        let message = if path.is_empty() { data(message) } else { data(&format!("{path}: {message}")) };
        // Writing to a string cannot fail.
        let _ = writeln!(commands, "::{} file={file}{place}::{message}", command(*severity));
    }
    if findings.more > 0 {
        let _ = writeln!(commands, "::error::and {} more", findings.more);
    }
    commands
}

fn command(severity: Severity) -> &'static str {
    match severity {
        Severity::Hint => "notice",
        Severity::Error | Severity::Warning => severity.name(),
    }
}

/// What ends a command or begins an escape.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// And what ends a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::rules::report::Position;

    #[test]
    fn nothing_in_a_file_ends_its_command() {
        let problem = Problem {
            severity: Severity::Warning,
            file: Path::new("50%,a:b\n/rules.yaml").into(),
            position: Some(Position { line: 5, column: 13 }),
            path: "descriptors[0]".to_owned(),
            message: "100%\r\n::error::not ours".to_owned(),
        };
        let findings = Findings { passed: true, accepted: None, problems: vec![problem], more: 0 };
        let command = "::warning file=50%25%2Ca%3Ab%0A/rules.yaml,line=5,col=13::descriptors[0]: 100%25%0D%0A::error::\
                       not ours\n";
        assert_eq!(commands(&findings), command);
    }
}
