//! For people: each problem with a location that editors and terminals can open, and its line of the file below it.

use std::io::{self, Write};

use super::{Comparison, Findings, Report};
use crate::command::output::{err, errln};
use crate::sources::files::excerpt::{Texts, excerpts};

/// Writes the report. Problems go to standard error.
pub(crate) fn write(report: &Report<'_>, texts: &mut Texts, out: &mut impl Write) -> io::Result<()> {
    err!("{}", problems(&report.new, texts));
    if let Some(old) = report.old.as_ref().filter(|old| old.accepted.is_none()) {
        err!("the rules of --against are invalid:\n{}", problems(old, texts));
    }
    match report.passed {
        true => writeln!(out, "{}", report.conclusion())?,
        false => errln!("{}", report.conclusion()),
    }
    report.comparison.map_or(Ok(()), |comparison| write_changes(comparison, out))
}

/// Writes every change and the totals.
pub(crate) fn write_changes(comparison: Comparison<'_>, out: &mut impl Write) -> io::Result<()> {
    let totals = comparison.each(|change| writeln!(out, "{change}"))?;
    writeln!(out, "{totals}")
}

fn problems(findings: &Findings, texts: &mut Texts) -> String {
    excerpts(&findings.problems, findings.more, texts)
}
