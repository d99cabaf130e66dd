//! `tollgate check --env`: what the service would take from the environment as it is, and from where.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args as _, Command, CommandFactory as _, FromArgMatches as _};
use serde_json::json;

use super::arguments::Read;
use super::findings::Findings;
use super::report::Format;
use super::{Cli, arguments};
use crate::settings::{Environment, Given, Origin, Settings};

/// A setting as it would be in force.
struct InForce {
    heading: String,
    variable: String,
    /// `None`: it is not set, and has no default.
    value: Option<String>,
    origin: Option<Origin>,
}

impl InForce {
    fn origin(&self) -> String {
        self.origin.map_or_else(|| "default".into(), |origin| origin.to_string())
    }
}

pub(super) fn run(format: Format, environment: &Environment) -> anyhow::Result<ExitCode> {
    let read = read(environment)?;
    let super::Command::Serve(settings) = Cli::from_arg_matches(&read.matches)?.command else {
        bail!("these words are those of `tollgate serve`");
    };
    let findings = Findings::new(read, &settings.errors(environment), environment).of_service(&settings, environment);
    let all = in_force(&findings.given);
    match format {
        Format::Text => print_text(&all, &findings),
        Format::Json => print_json(&all, &findings),
        Format::Github | Format::Sarif => bail!("--env has no place in a file to point at: use --format text or json"),
    }
    Ok(if findings.mistakes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the service would read, started without arguments.
pub(super) fn read(environment: &Environment) -> Result<Read, clap::Error> {
    let words = ["tollgate", "serve"].map(OsString::from).to_vec();
    arguments::read(&Cli::command(), words, environment)
}

/// All settings, in the order of their page.
fn in_force(given: &[Given]) -> Vec<InForce> {
    let declared = Settings::augment_args(Command::new("tollgate"));
    let of_arg = |arg: &clap::Arg| {
        let variable = arg.get_env()?.to_string_lossy().into_owned();
        let given = given.iter().find(|given| given.variable.as_deref() == Some(&variable));
        let default = || {
            let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            Some(values.join(",")).filter(|values| !values.is_empty())
        };
        Some(InForce {
            heading: arg.get_help_heading().unwrap_or_default().to_owned(),
            value: given.map(Given::value).or_else(default),
            origin: given.map(|given| given.origin),
            variable,
        })
    };
    declared.get_arguments().filter_map(of_arg).collect()
}

fn print_text(all: &[InForce], findings: &Findings) {
    let width = |text: fn(&InForce) -> usize| all.iter().map(text).max().unwrap_or_default();
    let name = width(|setting| setting.variable.len());
    // A long value pushes its own origin aside, and no other.
    let value = width(|setting| setting.value.as_ref().map_or(0, String::len)).min(40);
    let mut heading = "";
    for setting in all {
        if setting.heading != heading {
            let gap = if heading.is_empty() { "" } else { "\n" };
            heading = &setting.heading;
            println!("{gap}{heading}");
        }
        let InForce { variable, value: shown, .. } = setting;
        println!("  {variable:name$}  {:value$}  {}", shown.as_deref().unwrap_or("unset"), setting.origin());
    }
    println!();
    findings.warnings.iter().for_each(|warning| println!("warning: {warning}"));
    findings.mistakes.iter().for_each(|mistake| println!("error: {mistake}"));
    let (errors, warnings) = (findings.mistakes.len(), findings.warnings.len());
    let set = all.iter().filter(|setting| setting.origin.is_some()).count();
    println!("{set} of {} settings are set; errors: {errors}, warnings: {warnings}", all.len());
}

fn print_json(all: &[InForce], findings: &Findings) {
    let setting =
        |setting: &InForce| json!({ "setting": setting.variable, "value": setting.value, "origin": setting.origin() });
    let settings: Vec<_> = all.iter().map(setting).collect();
    let Findings { warnings, mistakes, .. } = findings;
    println!("{:#}", json!({ "settings": settings, "warnings": warnings, "errors": mistakes }));
}
