//! `tollgate man`: the manual, from the declarations of the commands.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

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
        clap_mangen::generate_to(tollgate, folder).with_context(refused)?;
    } else {
        tollgate.build();
        let mut page = Vec::new();
        clap_mangen::Man::new(tollgate).render(&mut page)?;
        std::io::stdout().write_all(&page)?;
    }
    Ok(ExitCode::SUCCESS)
}
