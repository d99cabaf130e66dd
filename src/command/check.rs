//! `tollgate check`: reads rules files as the service would, and says what is wrong with them.

use std::collections::HashMap;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::report::{Findings, Format, Texts};
use crate::changes::{self, Summary};
use crate::rules::Rules;
use crate::rules::load::{self, Loaded, NamedText, Sources};
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
    #[arg(required_unless_present = "env")]
    paths: Vec<PathBuf>,

    /// Check no rules: say what the service would take from the environment as it is now, setting by setting, and what
    /// is wrong with it.
    #[arg(long, conflicts_with_all = ["paths", "against", "strict"])]
    pub(super) env: bool,

    /// Take warnings for errors; hints are none.
    #[arg(long)]
    strict: bool,

    /// Files or folders of the rules in force: say what changes, and whose counters start afresh. May be given several
    /// times.
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
    let (stdin, paths): (Vec<_>, Vec<_>) = check.paths.iter().cloned().partition(|path| path == Path::new(STDIN));
    let texts = if stdin.is_empty() { Vec::new() } else { vec![standard_input(options.max_file_bytes)?] };
    let loaded = load::check(&Sources { paths }, &texts, &options);
    let findings = Findings::new(&loaded, check.strict);
    let given = texts.into_iter().map(|text| (text.name, text.bytes)).collect::<HashMap<_, _>>();
    findings.print(check.format, &mut Texts::new(given));
    if let Ok(Loaded { rules, .. }) = &loaded
        && findings.passed
        && !check.against.is_empty()
    {
        print_changes(check, rules)?;
    }
    Ok(if findings.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn standard_input(max_bytes: u64) -> anyhow::Result<NamedText> {
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to see that it is too long.
    let read = std::io::stdin().take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.context("standard input cannot be read")?;
    Ok(NamedText { name: STDIN.into(), bytes })
}

/// Prints every change, and how many there are.
fn print_changes(check: &Check, new: &Rules) -> anyhow::Result<()> {
    let old = load::check(&Sources { paths: check.against.clone() }, &[], &check.reading.load_options());
    let old = old.context("--against: these rules are refused")?.rules;
    // What is for programs stays alone on standard output.
    let out: Box<dyn io::Write> = match check.format {
        Format::Text => Box::new(io::stdout().lock()),
        _ => Box::new(io::stderr().lock()),
    };
    let (mut summary, mut out, mut written) = (Summary::default(), BufWriter::new(out), Ok(()));
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
