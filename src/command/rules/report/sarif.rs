//! SARIF 2.1.0, which code scanning reads.

use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{Findings, Report};
use crate::engine::rules::report::{Problem, Severity};

/// All characters except those that the path of a URI may contain.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// URL of the format's schema.
const SCHEMA: &str = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

pub(crate) fn log(report: &Report<'_>) -> String {
    let all = [(Some(&report.new), ""), (report.old.as_ref(), "--against: ")];
    let all = all.into_iter().filter_map(|(findings, lead)| Some((findings?, lead)));
    let more: usize = all.clone().map(|(Findings { more, .. }, _)| more).sum();
    let results = all.flat_map(|(findings, lead)| findings.problems.iter().map(move |problem| result(problem, lead)));
    let rule = |severity: Severity, text: &str| {
        let level = level(severity);
        json!({"id": id(severity), "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}})
    };
    let notes = match more {
        0 => json!([]),
        more => json!([{"level": "error", "message": {"text": format!("and {more} more problems")}}]),
    };
    let log = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "tollgate",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [
                    rule(Severity::Error, "The rules are rejected."),
                    rule(Severity::Warning, "The rules are accepted, but may not do what they seem to."),
                    rule(Severity::Hint, "The rules are accepted, but could be improved."),
                ],
            }},
            "columnKind": "unicodeCodePoints",
            "invocations": [{"executionSuccessful": true, "toolExecutionNotifications": notes}],
            "results": results.collect::<Vec<_>>(),
        }],
    });
    format!("{log}\n")
}

fn id(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "rules-refused",
        Severity::Warning => "rules-doubtful",
        Severity::Hint => "rules-improvable",
    }
}

/// Returns the level of a severity in SARIF.
fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Hint => "note",
        Severity::Error | Severity::Warning => severity.name(),
    }
}

/// Returns a problem as a result, with `lead` before its message.
fn result(problem: &Problem, lead: &str) -> Value {
    let Problem { severity, file, position, path, message } = problem;
    let mut location = json!({"physicalLocation": {"artifactLocation": {"uri": uri(file)}}});
    if let Some(at) = position {
        location["physicalLocation"]["region"] = json!({"startLine": at.line, "startColumn": at.column});
    }
    let mut text = format!("{lead}{message}");
    if !path.is_empty() {
        location["logicalLocations"] = json!([{"fullyQualifiedName": path}]);
        text = format!("{lead}{path}: {message}");
    }
    json!({
        "ruleId": id(*severity),
        "level": level(*severity),
        "message": {"text": text},
        "locations": [location],
    })
}

/// Returns the URI of a path: relative to the folder of the check, or absolute if the path is absolute.
fn uri(file: &Path) -> String {
    let path = file.to_string_lossy();
    let path = utf8_percent_encode(path.strip_prefix("./").unwrap_or(&path), ESCAPED);
    if file.is_absolute() { format!("file://{path}") } else { path.to_string() }
}
