//! Shapes `--help`: the commands in groups, examples for each command, and the settings of the service only on request.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};

/// Flag that shows the settings that `--help` leaves out.
pub(super) const SETTINGS: &str = "help-settings";

/// Commands in the order of the overview, by what they are for.
const GROUPS: &[(&str, &[&str])] = &[
    ("Serve", &["serve", "demo", "health"]),
    ("Ask", &["ask", "explain", "why"]),
    ("See", &["top", "bans", "candidates", "replicas", "usage", "counter", "adjustments", "audit"]),
    ("Change", &["adjust", "scale", "budget", "promote"]),
    ("Work with files", &["check", "replay", "schema"]),
    ("Look up", &["settings", "metrics", "completions", "man"]),
];

/// Settings that `--help` shows, because a command is rarely of use without them.
const SHOWN: &[&str] = &["RULES", "REDIS_URL", "PORT", "GRPC_PORT", "ADMIN_API", "ADMIN_TOKEN"];

/// An example: what it does, and the command line.
type Example = (&'static str, &'static str);

/// Examples of each command.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "tollgate",
        &[
            ("Serve the rules of a folder, with counters in memory", "tollgate serve --rules rules"),
            ("Ask for one hit of user ann", "tollgate ask --domain shop user=ann"),
        ],
    ),
    (
        "tollgate serve",
        &[
            ("Serve the rules of a folder, with counters in memory", "tollgate serve --rules rules"),
            ("Share counters in Redis", "tollgate serve --rules rules --redis-url redis://localhost:6379"),
        ],
    ),
    (
        "tollgate demo",
        &[
            ("See example rules under simulated traffic", "tollgate demo"),
            ("Choose other ports", "tollgate demo --port 9080 --grpc-port 9081"),
        ],
    ),
    (
        "tollgate check",
        &[
            ("Check a folder, and treat warnings as errors", "tollgate check --strict rules"),
            ("Show what a change does", "tollgate check --against rules.old.yaml rules.yaml"),
            ("Show each setting of the current environment, and where it comes from", "tollgate check --env"),
        ],
    ),
    (
        "tollgate ask",
        &[
            ("Ask for one hit of user ann", "tollgate ask --domain shop user=ann"),
            ("Peek without counting", "tollgate ask --domain shop --hits 0 user=ann"),
        ],
    ),
    (
        "tollgate explain",
        &[
            ("Explain by rules files", "tollgate explain --rules rules --domain shop user=ann"),
            ("Explain by a running service", "tollgate explain --address localhost:8080 --domain shop user=ann"),
        ],
    ),
    (
        "tollgate replay",
        &[
            ("Replay a log in JSON", "tollgate replay --rules rules --map user=%x_user% access.log"),
            (
                "Find a number that denies few",
                "tollgate replay --rules rules --map user=%x_user% --suggest 'deny at most 1 % of users' log.gz",
            ),
        ],
    ),
    (
        "tollgate promote",
        &[(
            "Put the candidates in place of the rules",
            "tollgate promote --rules rules.yaml --candidate-rules next.yaml",
        )],
    ),
    (
        "tollgate health",
        &[
            ("Check the service on this machine", "tollgate health"),
            ("Check another one over TLS", "tollgate health --address limits.example.com:8081 --tls"),
        ],
    ),
    (
        "tollgate counter",
        &[("Show the counter of user ann", "tollgate counter get --rules rules --domain shop user=ann")],
    ),
    (
        "tollgate counter get",
        &[(
            "Show the counter of user ann",
            "tollgate counter get --rules rules --redis-url redis://localhost:6379 --domain shop user=ann",
        )],
    ),
    (
        "tollgate counter reset",
        &[(
            "Give user ann a fresh allowance",
            "tollgate counter reset --rules rules --redis-url redis://localhost:6379 --domain shop user=ann",
        )],
    ),
    (
        "tollgate budget",
        &[(
            "Show what is left of the budgets of a tenant",
            "tollgate budget show --rules rules --domain llm tenant=acme",
        )],
    ),
    (
        "tollgate budget show",
        &[(
            "Show what is left of the budgets of a tenant",
            "tollgate budget show --rules rules --redis-url redis://localhost:6379 --domain llm tenant=acme",
        )],
    ),
    (
        "tollgate budget top-up",
        &[(
            "Add what a tenant has paid, by the service",
            "tollgate budget top-up --address localhost:8080 --domain llm tenant=acme --hits 5000000 --id invoice-17",
        )],
    ),
    (
        "tollgate budget refund",
        &[(
            "Give back what a failed answer has cost",
            "tollgate budget refund --address localhost:8080 --domain llm tenant=acme --hits 1200 --id ticket-4",
        )],
    ),
    (
        "tollgate top",
        &[
            ("Watch the keys that are denied most", "tollgate top --by denied"),
            ("Print the ten busiest keys of one rule", "tollgate top --once -n 10 --domain shop --rule per-user"),
        ],
    ),
    ("tollgate bans", &[("Show the bans of one rule", "tollgate bans --domain shop --rule logins")]),
    (
        "tollgate why",
        &[("Why did user ann get a 429 at 14:03 UTC?", "tollgate why --log decisions.jsonl --at 14:03 user=ann")],
    ),
    ("tollgate candidates", &[("Show what the candidates would deny", "tollgate candidates --address localhost:8080")]),
    (
        "tollgate replicas",
        &[
            ("Show all instances", "tollgate replicas"),
            ("Wait until five instances are ready", "tollgate replicas --expect 5 --wait 2m"),
        ],
    ),
    (
        "tollgate usage",
        &[(
            "Print the months of user ann as CSV",
            "tollgate usage --domain shop --key user=ann --by month --format csv",
        )],
    ),
    (
        "tollgate usage close",
        &[("Close all finished days", "tollgate usage close --ledger usage.jsonl --key ledger.pem")],
    ),
    (
        "tollgate usage check",
        &[("Check a ledger and the store", "tollgate usage check --ledger usage.jsonl --public-key ledger.pub.pem")],
    ),
    (
        "tollgate scale",
        &[("Halve all limits of a domain", "tollgate scale 50% --domain shop --for 10m --why incident")],
    ),
    (
        "tollgate adjust",
        &[("Deny no request for half an hour", "tollgate adjust shadow --all --for 30m --why incident")],
    ),
    (
        "tollgate adjust number",
        &[(
            "Allow user ann 100 for an hour",
            "tollgate adjust number 100 --domain shop user=ann --for 1h --why migration",
        )],
    ),
    (
        "tollgate adjust pass",
        &[("Let user ann pass for an hour", "tollgate adjust pass --domain shop user=ann --for 1h --why migration")],
    ),
    (
        "tollgate adjust block",
        &[("Block user eve for a day", "tollgate adjust block --domain shop user=eve --for 1d --why abuse")],
    ),
    (
        "tollgate adjust enforce",
        &[(
            "Try a rule that is in shadow mode",
            "tollgate adjust enforce --domain shop --rule trial --for 1h --why test",
        )],
    ),
    (
        "tollgate adjust shadow",
        &[("Deny no request for half an hour", "tollgate adjust shadow --all --for 30m --why incident")],
    ),
    ("tollgate adjust end", &[("End an adjustment", "tollgate adjust end halved --why recovered")]),
    (
        "tollgate adjustments",
        &[("List the adjustments of a Redis", "tollgate adjustments --rules rules --redis-url redis://localhost:6379")],
    ),
    (
        "tollgate audit",
        &[
            (
                "Show who changed what in the last week, from Redis",
                "tollgate audit --days 7 --redis-url localhost:6379",
            ),
            ("Ask a running service", "tollgate audit --address localhost:8080"),
        ],
    ),
    ("tollgate schema", &[("Save the schema for editors", "tollgate schema > rules.schema.json")]),
    ("tollgate settings", &[("Read about a setting", "tollgate settings | grep REDIS_POOL")]),
    ("tollgate metrics", &[("Read about a metric", "tollgate metrics | grep store_up")]),
    ("tollgate completions", &[("Complete commands in this shell", "source <(tollgate completions bash)")]),
    (
        "tollgate man",
        &[
            ("Read the manual", "tollgate man | man -l -"),
            ("Install all pages", "tollgate man ~/.local/share/man/man1"),
        ],
    ),
];

/// Returns the examples of a command, by its whole name.
pub(super) fn examples(name: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(known, _)| *known == name).map_or(&[], |(_, examples)| examples)
}

/// Adds the examples to the help of all commands.
pub(super) fn with_examples(command: Command) -> Command {
    each(command, "", &|name, command| {
        let examples = examples(name).iter().map(|(what, line)| format!("  # {what}\n  {line}\n"));
        let examples = examples.collect::<String>();
        if examples.is_empty() { command } else { command.after_help(format!("Examples:\n{}", examples.trim_end())) }
    })
}

/// Returns the command as `--help` shows it.
pub(super) fn shaped(tollgate: Command) -> Command {
    let groups = overview(&tollgate);
    let note = tollgate.get_after_help().map(ToString::to_string).unwrap_or_default();
    let shaped = each(with_examples(tollgate), "", &|_, command| {
        let hides = command.get_arguments().any(is_hidden);
        let command = compact(command.mut_args(|arg| if is_hidden(&arg) { hidden(arg, true) } else { arg }));
        match hides {
            true => command.arg(
                Arg::new("help_settings")
                    .long(SETTINGS)
                    .action(ArgAction::SetTrue)
                    .help("Print help for the settings of the service that this command accepts")
                    .display_order(1_000),
            ),
            false => command,
        }
    });
    let examples = shaped.get_after_help().map(ToString::to_string).unwrap_or_default();
    shaped.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}\n\n{note}\n\
         `tollgate COMMAND --help` describes a command.\n\n{examples}\n"
    ))
}

/// Makes `--help` as compact as `-h`, below the whole description.
fn compact(command: Command) -> Command {
    let about = command.get_long_about().or(command.get_about()).cloned().unwrap_or_default();
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
    command
        .before_help(about)
        .help_template("{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}\n")
        .disable_help_flag(true)
        .arg(help.display_order(1_001))
}

/// Returns the help for the settings of a command, if the words ask for it.
pub(super) fn of_settings(tollgate: &Command, words: &[OsString]) -> Option<Command> {
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    if !words.clone().any(|word| word.strip_prefix("--") == Some(SETTINGS)) {
        return None;
    }
    let (mut command, mut name) = (tollgate, tollgate.get_name().to_owned());
    while let Some(next) = words.next().and_then(|word| command.find_subcommand(&*word)) {
        (command, name) = (next, format!("{name} {}", next.get_name()));
    }
    let is_setting = |arg: &Arg| arg.get_env().is_some() && arg.get_help_heading().is_some();
    let about = format!(
        "Settings of the service that `{name}` accepts, as flags or environment variables. `{name} --help` describes \
         the command."
    );
    let command = command.clone().disable_help_subcommand(true);
    let shown = command.mut_args(|arg| {
        let is_shown = is_setting(&arg);
        hidden(arg, !is_shown)
    });
    Some(shown.help_template(format!("{about}\n\n{{all-args}}\n")))
}

/// Returns the commands in groups, each with what it does.
fn overview(tollgate: &Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS {
        text += &format!("{group}:\n");
        for command in names.iter().filter_map(|name| tollgate.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text += &format!("  {:<13}{}\n", command.get_name(), about.trim_end_matches('.'));
        }
        text.push('\n');
    }
    text
}

/// Removes the commands that help hides from what an error suggests.
pub(super) fn without_hidden(mut error: clap::Error, tollgate: &Command) -> clap::Error {
    let is_public = |name: &String| !tollgate.find_subcommand(name).is_some_and(Command::is_hide_set);
    let suggested: Vec<String> = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.iter().filter(|name| is_public(name)).cloned().collect(),
        _ => return error,
    };
    let suggested = if suggested.is_empty() { ContextValue::None } else { ContextValue::Strings(suggested) };
    error.insert(ContextKind::SuggestedSubcommand, suggested);
    error
}

fn is_hidden(arg: &Arg) -> bool {
    let is_shown = |name: &&str| arg.get_env().is_some_and(|variable| variable == *name);
    arg.get_env().is_some() && arg.get_help_heading().is_some() && !SHOWN.iter().any(is_shown)
}

/// Hides an argument in help, and nowhere else.
fn hidden(arg: Arg, is_hidden: bool) -> Arg {
    arg.hide_short_help(is_hidden).hide_long_help(is_hidden)
}

/// Changes a command and all its subcommands, each with its whole name.
fn each(command: Command, before: &str, change: &dyn Fn(&str, Command) -> Command) -> Command {
    let name = format!("{before}{}", command.get_name());
    let command = command.mut_subcommands(|command| each(command, &format!("{name} "), change));
    change(&name, command)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::command::Cli;
    use crate::command::arguments::each_arg;

    #[test]
    fn every_command_is_in_one_group() {
        let tollgate = Cli::command();
        for command in tollgate.get_subcommands().filter(|command| !command.is_hide_set()) {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&command.get_name())).count();
            assert_eq!(groups, 1, "{} belongs in one of the groups of the overview", command.get_name());
        }
    }

    #[test]
    fn every_command_has_examples_and_they_are_accepted() {
        each(Cli::command(), "", &|name, command| {
            assert!(command.is_hide_set() || !examples(name).is_empty(), "{name} needs an example");
            command
        });
        for (_, line) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let line = line.strip_prefix("source <(").and_then(|line| line.strip_suffix(')')).unwrap_or(line);
            let line = line.split(" | ").next().unwrap().split(" > ").next().unwrap();
            // Its default is the variable USER.
            let tollgate =
                each_arg(&Cli::command(), &|arg| if arg.get_id() == "who" { arg.required(false) } else { arg });
            let read = tollgate.try_get_matches_from(shell_words(line));
            assert!(read.is_ok(), "{line}: {:?}", read.map_err(|error| error.to_string()));
        }
    }

    /// Splits a line at blanks that are not between single quotes.
    fn shell_words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for char in line.trim().chars() {
            match char {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                char => words.last_mut().unwrap().push(char),
            }
        }
        words
    }
}
