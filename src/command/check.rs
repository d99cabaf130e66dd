//! `tollgate check`: reads rules files as the service would, and says what is wrong with them.

use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use crate::changes::{self, Summary};
use crate::rules::Rules;
use crate::rules::load::{self, Sources};
use crate::settings::Reading;

#[derive(Args)]
pub(super) struct Check {
    /// Files or folders of rules.
    #[arg(required = true)]
    paths: Vec<PathBuf>,

    /// Take warnings for errors; hints are none.
    #[arg(long)]
    strict: bool,

    /// Files or folders of the rules in force: say what changes, and whose counters start afresh. May be given several
    /// times.
    #[arg(long, value_name = "OLD")]
    against: Vec<PathBuf>,

    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(check: &Check) -> anyhow::Result<ExitCode> {
    let loaded = match load::load(&Sources { paths: check.paths.clone() }, &check.reading.load_options()) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::FAILURE);
        }
    };
    for problem in loaded.warnings.iter().chain(&loaded.hints) {
        eprintln!("{problem}");
    }
    if check.strict && !loaded.warnings.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let count = |number, what| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    println!("ok: {} in {}", count(loaded.rules.rules().len(), "rule"), count(loaded.rules.domains(), "domain"));
    if !check.against.is_empty() {
        print_changes(check, &loaded.rules)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints every change, and how many there are.
fn print_changes(check: &Check, new: &Rules) -> anyhow::Result<()> {
    let old = load::load(&Sources { paths: check.against.clone() }, &check.reading.load_options());
    let old = old.context("--against: these rules are refused")?.rules;
    let (mut summary, mut out, mut written) = (Summary::default(), BufWriter::new(io::stdout().lock()), Ok(()));
    changes::compare(&old, new, &mut |change| {
        summary.add(&change);
        if written.is_ok() {
            written = writeln!(out, "{change}");
        }
    });
    written?;
    let Summary { added, removed, changed, afresh, .. } = summary;
    writeln!(out, "{added} added, {removed} removed, {changed} changed; counters of {afresh} start afresh")?;
    out.flush()?;
    Ok(())
}
