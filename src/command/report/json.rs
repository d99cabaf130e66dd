//! For programs: one JSON object on a line.
//!
//! ```json
//! {"passed": false, "rules": null, "domains": null, "more": 0, "problems": [
//!   {"severity": "error", "file": "rules/shop.yaml", "line": 5, "column": 13,
//!    "path": "descriptors[0].rate_limit.unit", "message": "unknown unit \"minuets\", did you mean \"minute\"?"}]}
//! ```
//!
//! `passed` is what the exit code says. `rules` and `domains` are how much there is, and null where the rules are
//! refused. `line` and `column` count from 1, and are null where the whole file is meant; `path` is empty there. There
//! are a hundred problems at most; `more` tells how many are left out.

use serde_json::{Value, json};

use super::Findings;
use crate::rules::report::Problem;

pub(super) fn document(findings: &Findings) -> String {
    let Findings { passed, accepted, problems, more } = findings;
    let document = json!({
        "passed": passed,
        "rules": accepted.map(|accepted| accepted.rules),
        "domains": accepted.map(|accepted| accepted.domains),
        "problems": problems.iter().map(problem).collect::<Vec<_>>(),
        "more": more,
    });
    format!("{document}\n")
}

fn problem(problem: &Problem) -> Value {
    json!({
        "severity": problem.severity.name(),
        "file": problem.file.display().to_string(),
        "line": problem.position.map(|position| position.line),
        "column": problem.position.map(|position| position.column),
        "path": problem.path,
        "message": problem.message,
    })
}
