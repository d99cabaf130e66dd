//! `tollgate check`: reads rules files as the service would, and says what is wrong with them.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::report::{Findings, Format, Texts};
use crate::rules::load::{self, MAX_FILE_BYTES, NamedText, Sources};
use crate::settings::Reading;

/// What stands for standard input.
const STDIN: &str = "-";

/// Say what is wrong with rules files; exits with 0 if nothing is, and with 1 otherwise.
///
/// It reads rules as the service would, and also those in the ConfigMaps of Kubernetes manifests, with the manifest's
/// own lines: `helm template ... | tollgate check -`.
#[derive(Args)]
pub(super) struct Check {
    /// Files or folders of rules, or of Kubernetes manifests with rules in ConfigMaps; - is standard input.
    #[arg(required = true)]
    paths: Vec<PathBuf>,

    /// Take warnings for errors.
    #[arg(long)]
    strict: bool,

    /// How to report: text for people; json; github, which GitHub Actions shows beside the lines; sarif, for code
    /// scanning.
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(check: &Check) -> anyhow::Result<ExitCode> {
    let (stdin, paths): (Vec<_>, Vec<_>) = check.paths.iter().cloned().partition(|path| path == Path::new(STDIN));
    let texts = if stdin.is_empty() { Vec::new() } else { vec![standard_input()?] };
    let loaded = load::check(&Sources { paths }, &texts, &check.reading.load_options());
    let findings = Findings::new(&loaded, check.strict);
    let given = texts.into_iter().map(|text| (text.name, text.bytes)).collect::<HashMap<_, _>>();
    findings.print(check.format, &mut Texts::new(given));
    Ok(if findings.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn standard_input() -> anyhow::Result<NamedText> {
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to see that it is too long.
    let read = std::io::stdin().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.context("standard input cannot be read")?;
    Ok(NamedText { name: STDIN.into(), bytes })
}
