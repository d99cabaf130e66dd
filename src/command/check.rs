//! `tollgate check`: reads rules files as the service would, and says what is wrong with them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::rules::load::{self, Sources};
use crate::settings::Reading;

#[derive(Args)]
pub(super) struct Check {
    /// Files or folders of rules.
    #[arg(required = true)]
    paths: Vec<PathBuf>,

    /// Take warnings for errors.
    #[arg(long)]
    strict: bool,

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
    for warning in &loaded.warnings {
        eprintln!("{warning}");
    }
    if check.strict && !loaded.warnings.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let count = |number, what| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    println!("ok: {} in {}", count(loaded.rules.rules().len(), "rule"), count(loaded.rules.domains(), "domain"));
    Ok(ExitCode::SUCCESS)
}
