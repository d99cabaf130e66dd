//! What the command line does: a file for each command.

mod ask;
mod check;
mod client;
mod completions;
mod counter;
mod health;
mod man;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::settings::{self, Settings};
use crate::version;

/// A rate-limit service for Envoy: exact limits, decided in Redis or in memory.
#[derive(Parser)]
#[command(
    version = version::IN_FULL,
    after_help = "Without a command, `tollgate` serves: `tollgate --rules PATH` is `tollgate serve --rules PATH`."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer Envoy by the rules (this is the default).
    Serve(Box<Settings>),
    /// Say what is wrong with rules files; exits with 0 if nothing is, and with 1 otherwise.
    Check(check::Check),
    Ask(ask::Ask),
    Health(health::Health),
    /// Show counters in Redis, or reset them.
    #[command(subcommand)]
    Counter(counter::Command),
    /// Print the reference page of all settings, in Markdown.
    Settings,
    /// Print a script that lets a shell complete this command.
    Completions(completions::Completions),
    /// Print the manual page, or write the pages of all commands into a folder.
    Man(man::Man),
}

/// Does what the arguments and the environment say; what goes wrong is on standard error.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match parse(with_default_command(arguments.into_iter().collect())) {
        Ok(cli) => cli,
        Err(error) => {
            // Not clap's own exit: its 2 means "limited" here.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let done = match cli.command {
        Command::Serve(settings) => Ok(serve::run(*settings)),
        Command::Check(check) => check::run(&check),
        Command::Ask(ask) => ask::run(ask),
        Command::Health(health) => health::run(health),
        Command::Counter(command) => counter::run(command),
        Command::Settings => {
            print!("{}", settings::page());
            Ok(ExitCode::SUCCESS)
        }
        Command::Completions(completions) => completions::run(&completions, Cli::command()),
        Command::Man(man) => man::run(&man, Cli::command()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Parses the arguments and the environment, in which an empty variable is as good as none: Helm and compose leave
/// such.
fn parse(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    let is_empty =
        |arg: &Arg| arg.get_env().is_some_and(|name| std::env::var_os(name).is_some_and(|value| value.is_empty()));
    let ignore_empty = |arg: Arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg };
    let command = Cli::command().mut_subcommands(|command| {
        command.mut_args(ignore_empty).mut_subcommands(|command| command.mut_args(ignore_empty))
    });
    Cli::from_arg_matches(&command.try_get_matches_from(arguments)?)
}

/// `tollgate --rules x` means `tollgate serve --rules x`.
fn with_default_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let first = arguments.get(1).and_then(|argument| argument.to_str());
    let serves = match first {
        None => true,
        Some("-h" | "--help" | "-V" | "--version") => false,
        Some(argument) => argument.starts_with('-'),
    };
    if serves {
        arguments.insert(1.min(arguments.len()), "serve".into());
    }
    arguments
}
