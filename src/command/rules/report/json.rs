//! For programs: one JSON object on a line.
//!
//! ```json
//! {"passed": false, "rules": null, "domains": null, "more": 0, "against": null, "problems": [
//!   {"severity": "error", "file": "rules/shop.yaml", "line": 5, "column": 13,
//!    "path": "descriptors[0].rate_limit.unit", "message": "unknown unit \"minuets\", did you mean \"minute\"?"}]}
//! ```
//!
//! `passed` agrees with the exit code. `rules` and `domains` are numbers, and null if the rules were rejected. `line`
//! and `column` count from 1, and are null if the problem is about the whole file; `path` is empty then. Of rejected
//! rules, at most a hundred problems are listed, and `more` is the number left out. `against` is null if there are no
//! rules to compare with. Otherwise it has the problems of the old rules and, if both sets are valid, `changes`:
//!
//! ```json
//! {"problems": [], "more": 0, "added": 0, "removed": 0, "changed": 1, "afresh": 1, "changes": [
//!   {"kind": "changed", "domain": "shop", "rule": "user", "counters": "afresh",
//!    "words": "changed: shop: user: period minute -> hour: counters are reset"}]}
//! ```

use std::convert::Infallible;

use serde_json::{Value, json};

use super::{Comparison, Findings, Report};
use crate::engine::rules::diff::Totals;
use crate::engine::rules::report::Problem;

pub(crate) fn document(report: &Report<'_>) -> String {
    let Findings { accepted, problems, more } = &report.new;
    let document = json!({
        "passed": report.passed,
        "rules": accepted.map(|accepted| accepted.rules),
        "domains": accepted.map(|accepted| accepted.domains),
        "problems": problems.iter().map(problem).collect::<Vec<_>>(),
        "more": more,
        "against": report.old.as_ref().map(|old| against(old, report.comparison)),
    });
    format!("{document}\n")
}

fn against(old: &Findings, comparison: Option<Comparison<'_>>) -> Value {
    let mut against = json!({"problems": old.problems.iter().map(problem).collect::<Vec<_>>(), "more": old.more});
    let Some(comparison) = comparison else { return against };
    let mut changes = Vec::new();
    let Ok(totals) = comparison.each(|change| -> Result<(), Infallible> {
        changes.push(json!({
            "kind": change.kind.name(),
            "domain": change.domain,
            "rule": change.kind.rule(),
            "counters": change.counters.name(),
            "words": change.to_string(),
        }));
        Ok(())
    });
    let Totals { added, removed, changed, afresh } = totals;
    let counts = [("added", added), ("removed", removed), ("changed", changed), ("afresh", afresh)];
    counts.into_iter().for_each(|(name, count)| against[name] = count.into());
    against["changes"] = changes.into();
    against
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
