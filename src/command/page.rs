//! The reference page of the command line.

use std::fmt::Write as _;

use clap::{Arg, Args as _, Command};

use crate::settings::Settings;

/// Returns the page in Markdown, from clap's declarations.
pub(super) fn page(tollgate: &Command) -> String {
    let mut page = String::from(
        "# Command line\n\n\
         What the ports answer is in [HTTP and gRPC](http.md). Each command tells the same by `--help`.\n\
         This page is made by `tollgate command-line`.\n\n\
         | Command | What it does |\n| --- | --- |\n",
    );
    let commands = commands("", tollgate);
    for (name, command) in &commands {
        let _ = writeln!(page, "| [`{name}`](#{}) | {} |", name.replace(' ', "-"), sentence(command.get_about()));
    }
    let _ = writeln!(page, "\n{}", sentence(tollgate.get_after_help()));
    for (name, command) in &commands {
        describe(&mut page, name, command);
    }
    page
}

/// Returns the commands without subcommands, with their whole names.
fn commands<'c>(before: &str, command: &'c Command) -> Vec<(String, &'c Command)> {
    let name = format!("{before}{}", command.get_name());
    let shown: Vec<_> = command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    if shown.is_empty() {
        return vec![(name, command)];
    }
    let before = format!("{name} ");
    let own = (!command.is_subcommand_required_set()).then_some((name, command));
    own.into_iter().chain(shown.into_iter().flat_map(|command| commands(&before, command))).collect()
}

fn describe(page: &mut String, name: &str, command: &Command) {
    let about = command.get_long_about().or(command.get_about());
    let _ = write!(page, "\n## {name}\n\n{}\n", sentence(about));
    let (settings, own): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(|arg| !arg.is_hide_set()).partition(|arg| is_setting(arg));
    if !own.is_empty() {
        page.push_str("\n| Argument | Default | Meaning |\n| --- | --- | --- |\n");
    }
    for arg in own {
        let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match default.join(" ") {
            _ if arg.is_required_set() => "required".to_owned(),
            default if default.is_empty() || !takes_a_value(arg) => String::new(),
            default => format!("`{default}`"),
        };
        let _ = writeln!(page, "| `{}` | {default} | {}{} |", spelling(arg), meaning(arg), choices(arg));
    }
    if name == "tollgate serve" {
        page.push_str("\nIt takes all [settings](settings.md), as flags or variables.\n");
    } else if !settings.is_empty() {
        let names: Vec<_> = settings.iter().map(|arg| format!("`{}`", variable(arg))).collect();
        let _ =
            writeln!(page, "\nIt takes these [settings](settings.md), as flags or variables: {}.", names.join(", "));
    }
}

fn variable(arg: &Arg) -> String {
    arg.get_env().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns whether the argument is on the settings page.
fn is_setting(arg: &Arg) -> bool {
    let settings = Settings::augment_args(Command::new("tollgate"));
    arg.get_env().is_some() && settings.get_arguments().any(|setting| setting.get_env() == arg.get_env())
}

fn takes_a_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// Returns the spelling: `-d`, `--domain DOMAIN`, or `KEY=VALUE...`.
fn spelling(arg: &Arg) -> String {
    let value = match arg.get_value_names() {
        Some([name, ..]) if takes_a_value(arg) => name.to_string(),
        _ => String::new(),
    };
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    match arg.get_long() {
        Some(long) => format!("{short}--{long} {value}").trim_end().to_owned(),
        None if arg.get_num_args().is_some_and(|number| number.max_values() > 1) => format!("{value}..."),
        None => value,
    }
}

fn meaning(arg: &Arg) -> String {
    sentence(arg.get_long_help().or(arg.get_help())).replace("\n\n", "<br>").replace('|', "\\|")
}

fn choices(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    let shown: Vec<_> =
        values.iter().filter(|value| !value.is_hide_set()).map(|value| format!("`{}`", value.get_name())).collect();
    match takes_a_value(arg) && !shown.is_empty() {
        true => format!(" One of {}.", shown.join(", ")),
        false => String::new(),
    }
}

/// Returns the help with a full stop, which clap removes from help of a single paragraph.
fn sentence(text: Option<&clap::builder::StyledStr>) -> String {
    let mut text = text.map(ToString::to_string).unwrap_or_default().trim().to_owned();
    if !text.is_empty() && !text.ends_with('.') {
        text.push('.');
    }
    text
}
