//! The meaning of a result, given the marks of its case; and the report.

use std::collections::{BTreeMap, BTreeSet};

use super::Outcome;
use super::case::Case;
use super::sink;

/// The server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Tollgate,
    Reference,
}

/// The result of a case.
#[derive(Clone, Debug)]
pub enum Judged {
    Passed,
    /// Skipped, because Tollgate lacks a feature that it needs.
    Pending,
    /// A known failure, with its reason.
    Known(&'static str),
    /// An unexpected result, with its description.
    Wrong(String),
}

impl Judged {
    pub fn is_wrong(&self) -> bool {
        matches!(self, Judged::Wrong(_))
    }
}

/// Returns the meaning of a result.
pub fn judge(case: &Case, side: Side, result: &Result<(), String>) -> Judged {
    let known = match side {
        Side::Tollgate => case.pending.as_ref().map(|feature| ("pending", feature, Judged::Pending)),
        Side::Reference => {
            let flaw = case.flaw.as_ref().map(|flaw| ("flaw", flaw, Judged::Known("flaws")));
            flaw.or_else(|| case.newer.as_ref().map(|newer| ("newer", newer, Judged::Known("newer"))))
        }
    };
    match (known, result) {
        (None, Ok(())) => Judged::Passed,
        (None, Err(wrong)) => Judged::Wrong(wrong.clone()),
        (Some((.., judged)), Err(_)) => judged,
        (Some((mark, why, _)), Ok(())) => Judged::Wrong(format!("it passes: remove its mark `{mark}: {why}`")),
    }
}

/// Returns whether the statistics match the case.
pub fn counted(case: &Case, side: Side, sums: &BTreeMap<String, f64>) -> Result<(), String> {
    let own = side == Side::Tollgate;
    let stats = case.tollgate.stats.as_ref().filter(|_| own).unwrap_or(&case.stats);
    let series = case.tollgate.series.as_ref().filter(|_| own).unwrap_or(&case.series);
    let mut wrong = Vec::new();
    if !stats.is_empty() {
        let expected = stats.iter().flat_map(|(path, stats)| {
            stats.iter().map(move |(stat, number)| (format!("{path}.{stat}"), *number as f64))
        });
        let expected: BTreeMap<String, f64> = expected.filter(|(_, number)| *number != 0.0).collect();
        let domain = case.domain().unwrap_or_default();
        let of_case = |name: &str| {
            let name = name.strip_prefix("ratelimit.service.rate_limit.")?.to_owned();
            name.strip_prefix(domain).is_some_and(|rest| rest.starts_with('.')).then_some(name)
        };
        let found = sums.iter().filter_map(|(name, number)| Some((of_case(name)?, *number)));
        let found: BTreeMap<String, f64> = found.filter(|(_, number)| *number != 0.0).collect();
        if expected != found {
            wrong.push(format!("must count {expected:?}\n  and counts {found:?}"));
        }
    }
    for (name, number) in series {
        let found = sums.get(&sink::sorted(name)).copied().unwrap_or_default();
        if found != *number {
            let part: String = name.chars().take_while(|char| *char != '{').collect();
            let near: Vec<_> = sums.iter().filter(|(name, _)| name.starts_with(&part)).collect();
            wrong.push(format!("{name} must be {number} and is {found}, among {near:?}"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Prints a line for each file and the pending features; returns the failures.
pub fn report(outcomes: &[Outcome]) -> Vec<String> {
    let files: BTreeSet<&str> = outcomes.iter().map(|outcome| &*outcome.file).collect();
    let count = |file: Option<&str>, is: fn(&Judged) -> bool| {
        let of_file = outcomes.iter().filter(|outcome| file.is_none_or(|file| outcome.file == file));
        of_file.filter(|outcome| is(&outcome.judged)).count()
    };
    let line = |name: &str, file: Option<&str>| {
        let mut text = format!("{name:24}{:4} passed", count(file, |judged| matches!(judged, Judged::Passed)));
        type Is = fn(&Judged) -> bool;
        let others: [(&str, Is); 4] = [
            ("flaws of its own", |judged| matches!(judged, Judged::Known("flaws"))),
            ("newer than it", |judged| matches!(judged, Judged::Known("newer"))),
            ("pending", |judged| matches!(judged, Judged::Pending)),
            ("wrong", Judged::is_wrong),
        ];
        for (what, is) in others {
            let number = count(file, is);
            if number > 0 {
                text.push_str(&format!(", {number} {what}"));
            }
        }
        text
    };
    for file in files {
        println!("{}", line(file, Some(file)));
    }
    println!("{}", line("all", None));
    let mut pending: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| matches!(outcome.judged, Judged::Pending)) {
        *pending.entry(outcome.case.pending.as_deref().unwrap_or_default()).or_default() += 1;
    }
    for (feature, cases) in pending {
        println!("pending: {feature}: {cases} cases");
    }
    let wrong = outcomes.iter().filter_map(|Outcome { file, case, judged }| match judged {
        Judged::Wrong(why) => Some(format!("{file}: {}\n  {why}", case.name)),
        _ => None,
    });
    wrong.collect()
}
