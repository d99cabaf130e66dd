//! What the command line does: a file for each command.

mod admin_port;
mod adjustment;
mod answer;
mod arguments;
mod ask;
mod bans;
mod check;
mod client;
mod completions;
mod connector;
mod counter;
mod environment;
mod explain;
mod findings;
mod health;
mod man;
mod page;
mod promote;
mod redis;
mod reference;
mod replay;
mod replicas;
mod report;
mod secrecy;
mod serve;
mod top;
mod usage;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::findings::Findings;
use self::reference::Translated;
use crate::metrics;
use crate::settings::{self, Environment, Settings, SettingsError};
use crate::version;

/// The exit code where no limit applies to a request.
const NOTHING_APPLIES: u8 = 3;

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
    ///
    /// Exits with 0 after SIGTERM or SIGINT, and with 1 if it cannot serve.
    Serve(Box<Settings>),
    Check(check::Check),
    Ask(ask::Ask),
    Explain(Box<explain::Explain>),
    Replay(Box<replay::Replay>),
    Promote(promote::Promote),
    Health(health::Health),
    /// Show counters in Redis, or reset them.
    #[command(subcommand)]
    Counter(counter::Command),
    Top(top::Top),
    Bans(bans::Bans),
    Replicas(replicas::Replicas),
    Usage(Box<usage::Usage>),
    Scale(Box<adjustment::Scale>),
    /// Change limits for a while, without an edit of the rules.
    ///
    /// For all replicas within a second, through Redis: `tollgate adjustments` lists what holds. Each exits with 0 if
    /// it is done, and with 1 otherwise.
    #[command(subcommand)]
    Adjust(adjustment::Adjust),
    #[command(visible_alias = "overrides")]
    Adjustments(adjustment::Adjustments),
    /// Print the JSON Schema of rules files, by which editors complete and check them.
    ///
    /// An editor with yaml-language-server takes it from a comment in the file's first line:
    /// # yaml-language-server: $schema=PATH
    Schema,
    /// Print the reference page of all settings, in Markdown.
    Settings,
    /// Print the reference page of all metrics, in Markdown.
    Metrics,
    /// Print the reference page of the command line, in Markdown.
    #[command(name = "command-line", hide = true)]
    Reference,
    /// Print a script that lets a shell complete this command.
    Completions(completions::Completions),
    /// Print the manual page, or write the pages of all commands into a folder.
    Man(man::Man),
}

/// Does what the arguments and the environment say; what goes wrong is on standard error.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let environment = Environment::of_process();
    let Translated { words, ignored } = reference::translate(arguments.into_iter().collect(), &Cli::command());
    let words = with_default_command(words);
    let read = arguments::read(&Cli::command(), words, &environment)
        .and_then(|read| Ok((Cli::from_arg_matches(&read.matches)?.command, read)));
    let (command, read) = match read {
        Ok(read) => read,
        Err(error) => {
            // Not clap's own exit: its 2 means "limited" here.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    if let Command::Check(check) = &command {
        match check {
            _ if check.env => return told(environment::run(check.format, &environment)),
            _ if check.redis => return told(redis::run(check, &environment)),
            _ => {}
        }
    }
    let findings = Findings::new(read, &command.errors(&environment), &environment).without_effect(&ignored);
    if !matches!(command, Command::Serve(_)) && !findings.tell() {
        return ExitCode::FAILURE;
    }
    let done = match command {
        Command::Serve(settings) => {
            let findings = findings.of_service(&settings, &environment);
            Ok(serve::run(*settings, &findings))
        }
        Command::Check(check) => check::run(&check),
        Command::Ask(ask) => ask::run(ask),
        Command::Explain(explain) => explain::run(*explain),
        Command::Replay(replay) => replay::run(&replay),
        Command::Promote(promote) => promote::run(&promote),
        Command::Health(health) => health::run(health),
        Command::Counter(command) => counter::run(command),
        Command::Top(top) => top::run(top),
        Command::Bans(bans) => bans::run(bans),
        Command::Replicas(replicas) => replicas::run(replicas),
        Command::Usage(usage) => usage::run(*usage),
        Command::Scale(scale) => adjustment::scale(*scale),
        Command::Adjust(adjust) => adjustment::adjust(adjust),
        Command::Adjustments(adjustments) => adjustment::list(adjustments),
        Command::Schema => print(&format!("{:#}\n", crate::rules::schema())),
        Command::Settings => print(&settings::page()),
        Command::Metrics => metrics::page().map_err(Into::into).and_then(|page| print(&page)),
        Command::Reference => print(&page::page(&Cli::command())),
        Command::Completions(completions) => completions::run(&completions, Cli::command()),
        Command::Man(man) => man::run(&man, Cli::command()),
    };
    told(done)
}

/// Prints all that a command has to say. It succeeds, too, where the reader has seen enough, as `head` has.
///
/// # Errors
/// Where standard output cannot be written otherwise.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output cannot be written")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn told(done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

impl Command {
    /// What is wrong with settings that can be read.
    fn errors(&self, environment: &Environment) -> Vec<SettingsError> {
        match self {
            Command::Serve(settings) => settings.errors(environment),
            Command::Counter(command) => command.errors(),
            Command::Scale(scale) => scale.errors(),
            Command::Adjust(adjust) => adjust.errors(),
            Command::Adjustments(adjustments) => adjustments.errors(),
            Command::Explain(explain) => explain.errors(),
            _ => Vec::new(),
        }
    }
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
