//! `tollgate check --env`: the settings that the service would take from the current environment, and their origins.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Command, FromArgMatches as _};
use serde_json::json;

use super::arguments;
use super::arguments::Read;
use super::findings::Findings;
use super::output::print;
use crate::command::rules::report::Format;
use crate::settings::{Environment, Given, Origin, Settings};

/// A setting as it would be in force.
struct InForce {
    heading: String,
    variable: String,
    /// `None` if it is unset and has no default.
    value: Option<String>,
    origin: Option<Origin>,
}

impl InForce {
    fn origin(&self) -> String {
        self.origin.map_or_else(|| "default".into(), |origin| origin.to_string())
    }
}

pub(super) fn run(cli: &Command, format: Format, environment: &Environment) -> anyhow::Result<ExitCode> {
    let (settings, read) = read(cli, environment)?;
    let findings = Findings::new(read, &settings.errors(environment), environment).of_service(&settings, environment);
    let all = in_force(cli, &findings.given);
    let notes = notes(&settings, &findings);
    print(&match format {
        Format::Text => text(&all, &findings, &notes),
        Format::Json => json_document(&all, &findings, &notes),
        Format::Github | Format::Sarif => bail!("--env has no file positions to report: use --format text or json"),
    })?;
    Ok(if findings.mistakes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads the settings as the service does when it is started without arguments.
///
/// # Errors
/// If a value cannot be read.
pub(super) fn read(cli: &Command, environment: &Environment) -> anyhow::Result<(Settings, Read)> {
    let words = ["tollgate", "serve"].map(OsString::from).to_vec();
    let read = arguments::read(cli, words, environment)?;
    let serve = read.matches.subcommand_matches("serve").context("`serve` is the command that was read")?;
    Ok((Settings::from_arg_matches(serve)?, read))
}

/// Returns all settings, in the order of their page.
fn in_force(cli: &Command, given: &[Given]) -> Vec<InForce> {
    let declared = cli.find_subcommand("serve").into_iter().flat_map(Command::get_arguments);
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
    declared.filter_map(of_arg).collect()
}

/// Returns notes on defaults that depend on the name of the program, and so not on the environment alone.
fn notes(settings: &Settings, findings: &Findings) -> Vec<&'static str> {
    const FAILURE_MODE: &str = "FAILURE_MODE is not set. While Redis is unavailable, requests pass if the service is \
                                started as `tollgate`; calls fail, as in envoyproxy/ratelimit, if it is started as \
                                `ratelimit`, and Envoy's failure_mode_deny decides. Set it to choose.";
    let is_given = findings.given.iter().any(|given| given.is_one_of(&["FAILURE_MODE"]));
    let may_fail = !matches!(settings.store.redis(), Ok(None));
    if is_given || !may_fail { Vec::new() } else { vec![FAILURE_MODE] }
}

fn text(all: &[InForce], findings: &Findings, notes: &[&str]) -> String {
    let mut text = String::new();
    let width = |text: fn(&InForce) -> usize| all.iter().map(text).max().unwrap_or_default();
    let name = width(|setting| setting.variable.len());
    // A long value shifts only its own origin.
    let value = width(|setting| setting.value.as_ref().map_or(0, String::len)).min(40);
    let mut heading = "";
    for setting in all {
        if setting.heading != heading {
            let gap = if heading.is_empty() { "" } else { "\n" };
            heading = &setting.heading;
            text += &format!("{gap}{heading}\n");
        }
        let InForce { variable, value: shown, .. } = setting;
        let (shown, origin) = (shown.as_deref().unwrap_or("unset"), setting.origin());
        text += &format!("  {variable:name$}  {shown:value$}  {origin}\n");
    }
    text.push('\n');
    text.extend(notes.iter().map(|note| format!("note: {note}\n")));
    text.extend(findings.warnings.iter().map(|warning| format!("warning: {warning}\n")));
    text.extend(findings.mistakes.iter().map(|mistake| format!("error: {mistake}\n")));
    let (errors, warnings) = (findings.mistakes.len(), findings.warnings.len());
    let set = all.iter().filter(|setting| setting.origin.is_some()).count();
    text + &format!("{set} of {} settings are set; errors: {errors}, warnings: {warnings}\n", all.len())
}

fn json_document(all: &[InForce], findings: &Findings, notes: &[&str]) -> String {
    let setting =
        |setting: &InForce| json!({ "setting": setting.variable, "value": setting.value, "origin": setting.origin() });
    let settings: Vec<_> = all.iter().map(setting).collect();
    let Findings { warnings, mistakes, .. } = findings;
    let document = json!({ "settings": settings, "notes": notes, "warnings": warnings, "errors": mistakes });
    format!("{document:#}\n")
}
