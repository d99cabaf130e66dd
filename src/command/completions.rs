//! `tollgate completions`: a script with which a shell completes the command.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::output::print;

#[derive(Args)]
pub(super) struct Completions {
    /// The shell to write the script for.
    shell: Shell,
}

pub(super) fn run(completions: &Completions, mut tollgate: clap::Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut tollgate, "tollgate", &mut script);
    print(&String::from_utf8(script)?)
}
