//! The reference page of all settings, and their names.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::{Args as _, Command};

use super::Settings;

/// Returns the page in Markdown, from the declarations.
pub fn page() -> String {
    let command = Settings::augment_args(Command::new("tollgate"));
    let mut page = String::from(
        "# Settings\n\n\
         Every setting is an environment variable and a flag of `tollgate serve`; the flag goes before the variable.\n\
         Durations read like `150us`, `20ms`, `1h30m`. This page is made by `tollgate settings`.\n",
    );
    let mut heading = None;
    for arg in command.get_arguments() {
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            let _ = write!(page, "\n## {}\n\n", heading.unwrap_or_default());
            page.push_str("| Variable and flag | Default | Meaning |\n| --- | --- | --- |\n");
        }
        let variable = arg.get_env().unwrap_or_default().to_string_lossy();
        let flag = arg.get_long().unwrap_or_default();
        let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match default.join(",") {
            default if default.is_empty() => "unset".to_owned(),
            default => format!("`{default}`"),
        };
        let mut meaning = arg.get_help().map(|help| help.to_string().replace('\n', " ")).unwrap_or_default();
        if !meaning.ends_with('.') {
            meaning.push('.');
        }
        let values = arg.get_possible_values();
        let shown: Vec<_> =
            values.iter().filter(|value| !value.is_hide_set()).map(|value| format!("`{}`", value.get_name())).collect();
        if !shown.is_empty() {
            let _ = write!(meaning, " One of {}.", shown.join(", "));
        }
        let _ = writeln!(page, "| `{variable}`<br>`--{flag}` | {default} | {meaning} |");
    }
    page
}

/// Returns the variables of all settings.
pub fn names() -> BTreeSet<String> {
    let command = Settings::augment_args(Command::new("tollgate"));
    let variables = command.get_arguments().filter_map(|arg| arg.get_env());
    variables.map(|name| name.to_string_lossy().into_owned()).collect()
}
