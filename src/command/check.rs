//! `tollgate check`: reads rules files as the service would, and says what is wrong with them.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;

use super::report::{Checked, Format, Texts, Weight};
use crate::rules::load::{self, LoadOptions, Loaded, NamedText, Sources};
use crate::rules::report::RulesError;
use crate::settings::Reading;

/// What stands for standard input.
const STDIN: &str = "-";

/// Say what is wrong with rules files; exits with 0 if nothing is, and with 1 otherwise.
///
/// It reads rules as the service would, and also those in the ConfigMaps and Secrets of Kubernetes manifests, with the
/// manifest's own lines: `helm template ... | tollgate check -`.
#[derive(Args)]
pub(super) struct Check {
    /// Files or folders of rules, or of Kubernetes manifests with rules in ConfigMaps or Secrets; - is standard input.
    #[arg(required_unless_present_any = ["env", "redis"])]
    paths: Vec<PathBuf>,

    /// Check no rules: say what the service would take from the environment as it is now, setting by setting, and what
    /// is wrong with it.
    #[arg(long, conflicts_with_all = ["paths", "against", "strict"])]
    pub(super) env: bool,

    /// Check no rules: connect to Redis as the service would by the environment as it is now, and say what is there,
    /// how far away it is, and what would endanger limits. Nothing is counted but in a counter of its own.
    #[arg(long, conflicts_with_all = ["paths", "against", "env"])]
    pub(super) redis: bool,

    /// Take warnings for errors; hints are none.
    #[arg(long)]
    pub(super) strict: bool,

    /// Files or folders of the rules in force: say what changes, and whose counters start afresh. May be given several
    /// times; - is standard input.
    #[arg(long, value_name = "OLD")]
    against: Vec<PathBuf>,

    /// How to report: text for people; json; github, which GitHub Actions shows beside the lines; sarif, for code
    /// scanning.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,

    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(check: &Check) -> anyhow::Result<ExitCode> {
    let options = check.reading.load_options();
    if is_standard_input(&check.paths) && is_standard_input(&check.against) {
        bail!("standard input is read once: write a file for PATHS or for --against");
    }
    let mut texts = HashMap::new();
    let mut load = |paths: &[PathBuf]| load(paths, &options, &mut texts);
    let new = load(&check.paths)?;
    let old = if check.against.is_empty() { None } else { Some(load(&check.against)?) };
    let warnings = if check.strict { Weight::Errors } else { Weight::Warnings };
    let checked = Checked { new, old, warnings };
    checked.print(check.format, &mut Texts::new(texts))?;
    Ok(if checked.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_standard_input(paths: &[PathBuf]) -> bool {
    paths.iter().any(|path| path == Path::new(STDIN))
}

/// Reads rules, and keeps the text of those that are in no file.
fn load(
    paths: &[PathBuf],
    options: &LoadOptions,
    texts: &mut HashMap<PathBuf, Vec<u8>>,
) -> anyhow::Result<Result<Loaded, RulesError>> {
    let files = paths.iter().filter(|path| *path != Path::new(STDIN)).cloned().collect();
    let given = if is_standard_input(paths) { vec![standard_input(options.max_file_bytes)?] } else { Vec::new() };
    let loaded = load::check(&Sources { paths: files }, &given, options);
    texts.extend(given.into_iter().map(|text| (text.name, text.bytes)));
    Ok(loaded)
}

fn standard_input(max_bytes: u64) -> anyhow::Result<NamedText> {
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to see that it is too long.
    let read = std::io::stdin().take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.context("standard input cannot be read")?;
    Ok(NamedText { name: STDIN.into(), bytes })
}
