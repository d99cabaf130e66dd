//! `tollgate check`: reads rules files as the service would, and reports their problems.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;

use super::report::{Checked, Format, Weight};
use crate::engine::rules::report::RulesError;
use crate::settings::Reading;
use crate::sources::files::excerpt::Texts;
use crate::sources::files::load::{self, LoadOptions, Loaded, NamedText, Sources};

/// Path that means standard input.
const STDIN: &str = "-";

/// Check rules files and report their problems; exits with 0 if there are none, and with 1 if there are.
///
/// Reads rules as the service would. Also reads the rules in ConfigMaps and Secrets of Kubernetes manifests, and
/// reports the lines of the manifest: `helm template ... | tollgate check -`.
#[derive(Args)]
pub(crate) struct Check {
    /// Files or folders of rules, or of Kubernetes manifests with rules in ConfigMaps or Secrets; - is standard input.
    #[arg(required_unless_present_any = ["env", "redis"])]
    paths: Vec<PathBuf>,

    /// Check no rules: show each setting that the service would take from the current environment, and report its
    /// problems.
    #[arg(long, conflicts_with_all = ["paths", "against", "strict"])]
    pub(crate) env: bool,

    /// Check no rules: connect to Redis as the service would with the current environment. Show its topology and
    /// latency, and problems that would endanger limits. Counts only in a counter made for this check.
    #[arg(long, conflicts_with_all = ["paths", "against", "env"])]
    pub(crate) redis: bool,

    /// Treat warnings as errors. Hints remain hints.
    #[arg(long)]
    pub(crate) strict: bool,

    /// Files or folders of the rules in force: show the differences, and which counters are reset. May be given
    /// several times; - is standard input.
    #[arg(long, value_name = "OLD")]
    against: Vec<PathBuf>,

    /// Format of the report: text for people; json; github, which GitHub Actions shows next to the lines; sarif, for
    /// code scanning.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,

    #[command(flatten)]
    reading: Reading,
}

pub(crate) fn run(check: &Check) -> anyhow::Result<ExitCode> {
    let options = check.reading.load_options();
    if is_standard_input(&check.paths) && is_standard_input(&check.against) {
        bail!("standard input can only be read once: name a file for PATHS or for --against");
    }
    let mut texts = HashMap::new();
    let mut load = |paths: &[PathBuf]| load(paths, &options, &mut texts);
    let new = load(&check.paths)?;
    let old = if check.against.is_empty() { None } else { Some(load(&check.against)?) };
    let warnings = if check.strict { Weight::Errors } else { Weight::Warnings };
    let checked = Checked { new, old, warnings };
    match checked.print(check.format, &mut Texts::new(texts)) {
        // A reader that stops early does not change what the check found.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    Ok(if checked.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_standard_input(paths: &[PathBuf]) -> bool {
    paths.iter().any(|path| path == Path::new(STDIN))
}

/// Loads rules, and keeps the text of those that are not in files.
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
