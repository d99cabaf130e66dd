//! `tollgate man`: the manual, from the declarations of the commands.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::output::print;
use crate::version;

#[derive(Args)]
pub(super) struct Man {
    /// Folder for the pages of all commands. Unset: print the page of tollgate itself.
    folder: Option<PathBuf>,
}

pub(super) fn run(man: &Man, tollgate: clap::Command) -> anyhow::Result<ExitCode> {
    // All targets share one manual, which a release builds once.
    let mut tollgate = tollgate.version(version::VERSION).disable_help_subcommand(true);
    if let Some(folder) = &man.folder {
        let refused = || format!("cannot write the man pages to {}", folder.display());
        std::fs::create_dir_all(folder).with_context(refused)?;
        tollgate.build();
        write_all(&tollgate, folder).with_context(refused)?;
        return Ok(ExitCode::SUCCESS);
    }
    tollgate.build();
    print(&page(&clap_mangen::Man::new(tollgate))?)
}

/// Writes the pages of a command and of its subcommands.
fn write_all(command: &clap::Command, folder: &Path) -> anyhow::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_all(command, folder)?;
    }
    let man = clap_mangen::Man::new(command.clone());
    Ok(std::fs::write(folder.join(man.get_filename()), page(&man)?)?)
}

/// Returns a page. What follows the help are examples.
fn page(man: &clap_mangen::Man) -> anyhow::Result<String> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    Ok(String::from_utf8(page)?.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n.nf\n"))
}
