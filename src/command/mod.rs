//! The command line. `ask` holds the commands that call the gRPC port, `live` those that call the HTTP port, `redis`
//! those that work on Redis without a service, and `rules` those that work on files.

mod arguments;
mod ask;
mod color;
mod completions;
mod demo;
mod environment;
mod findings;
mod help;
mod live;
mod man;
mod output;
mod page;
mod redis;
mod reference;
mod rules;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::ask::{explain, health, why};
use self::findings::Findings;
use self::live::{bans, candidates, top};
use self::output::{errln, print};
use self::redis::{adjustment, audit, budget, counter, fleet, usage};
use self::reference::Translated;
use self::rules::{check, promote, replay};
use crate::engine::printable::printable_lines;
use crate::metrics;
use crate::settings::{self, Environment, Settings, SettingsError};
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
    /// Answer Envoy by the rules (the default command).
    ///
    /// Each setting is a flag or an environment variable; `--help-settings` lists all of them.
    ///
    /// Exits with 0 after SIGTERM or SIGINT, and with 1 if it cannot serve.
    Serve(Box<Settings>),
    Demo(demo::Demo),
    Check(check::Check),
    Ask(ask::Ask),
    Explain(Box<explain::Explain>),
    Why(why::Why),
    Replay(Box<replay::Replay>),
    Promote(promote::Promote),
    Health(health::Health),
    /// Show or reset counters, in Redis or through a running service.
    #[command(subcommand)]
    Counter(counter::Command),
    /// Show, top up or refund budgets, in Redis or through a running service.
    #[command(subcommand)]
    Budget(budget::Command),
    Top(top::Top),
    Bans(bans::Bans),
    Candidates(candidates::Candidates),
    Replicas(fleet::Replicas),
    Usage(Box<usage::Usage>),
    Scale(Box<adjustment::Scale>),
    /// Change limits for a while, without editing the rules.
    ///
    /// Takes effect on all instances within a second, through Redis. `tollgate adjustments` lists the adjustments in
    /// force. Each command exits with 0 on success, 3 if the adjustment matches no rule and so changes only limits that
    /// requests supply, and with 1 if nothing was changed.
    #[command(subcommand)]
    Adjust(adjustment::Adjust),
    #[command(visible_alias = "overrides")]
    Adjustments(adjustment::Adjustments),
    Audit(Box<audit::Audit>),
    /// Print the JSON Schema of rules files, with which editors complete and check them.
    ///
    /// An editor with yaml-language-server reads it if the file's first line is this comment:
    /// # yaml-language-server: $schema=PATH
    Schema,
    /// Print the reference page of all settings, in Markdown.
    Settings,
    /// Print the reference page of all metrics, in Markdown.
    Metrics,
    /// Print the reference page of the command line, in Markdown.
    #[command(name = "command-line", hide = true)]
    Reference,
    /// Print a script with which a shell completes this command.
    Completions(completions::Completions),
    /// Print the manual page, or write the pages of all commands into a folder.
    Man(man::Man),
}

/// Runs the command of these arguments in the environment of the process. Prints errors on standard error.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let environment = Environment::of_process();
    let words: Vec<OsString> = arguments.into_iter().collect();
    let cli = help::shaped(reference::with_defaults(Cli::command(), &words));
    let Translated { words, ignored } = reference::translate(words, &cli);
    let words = with_default_command(words);
    if let Some(mut settings) = help::of_settings(&cli, &words) {
        // A reader that stops early is no error.
        let _ = settings.print_long_help();
        return ExitCode::SUCCESS;
    }
    let read = arguments::read(&cli, words, &environment)
        .and_then(|read| Ok((Cli::from_arg_matches(&read.matches)?.command, read)));
    let (command, read) = match read {
        Ok(read) => read,
        Err(error) => {
            let error = help::without_hidden(error, &cli);
            // Clap's own exit would use 2, which means "limited" here.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    if let Command::Check(check) = &command {
        match check {
            _ if check.env => return exit_code(environment::run(&cli, check.format, &environment)),
            _ if check.redis => return exit_code(redis::check::run(&cli, check, &environment)),
            _ => {}
        }
    }
    if let Command::Serve(settings) = command {
        // Checking the settings reads files.
        let begun = serve::begin(&settings, read.files());
        let findings = Findings::new(read, &settings.errors(&environment), &environment).without_effect(&ignored);
        let findings = findings.of_service(&settings, &environment);
        return serve::run(*settings, &findings, begun);
    }
    let findings = Findings::new(read, &command.errors(), &environment).without_effect(&ignored);
    if !findings.tell() {
        return ExitCode::FAILURE;
    }
    let done = match command {
        Command::Serve(_) => unreachable!("it has returned above"),
        Command::Demo(demo) => demo::run(&demo),
        Command::Check(check) => check::run(&check),
        Command::Ask(ask) => ask::run(ask),
        Command::Explain(explain) => explain::run(*explain),
        Command::Why(why) => why::run(&why),
        Command::Replay(replay) => replay::run(&replay),
        Command::Promote(promote) => promote::run(&promote),
        Command::Health(health) => health::run(health),
        Command::Counter(command) => counter::run(command),
        Command::Budget(command) => budget::run(command),
        Command::Top(top) => top::run(top),
        Command::Bans(bans) => bans::run(bans),
        Command::Candidates(candidates) => candidates::run(candidates),
        Command::Replicas(replicas) => fleet::run(replicas),
        Command::Usage(usage) => usage::run(*usage),
        Command::Scale(scale) => adjustment::scale(*scale),
        Command::Adjust(adjust) => adjustment::adjust(adjust),
        Command::Adjustments(adjustments) => adjustment::list(adjustments),
        Command::Audit(audit) => audit::run(*audit),
        Command::Schema => print(&format!("{:#}\n", crate::sources::files::schema())),
        Command::Settings => print(&settings::page()),
        Command::Metrics => metrics::page().map_err(Into::into).and_then(|page| print(&page)),
        Command::Reference => print(&page::page(&Cli::command())),
        Command::Completions(completions) => completions::run(&completions, Cli::command()),
        Command::Man(man) => man::run(&man, help::with_examples(Cli::command())),
    };
    exit_code(done)
}

fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        errln!("error: {}", printable_lines(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}

impl Command {
    /// Returns the errors in settings that clap does not detect.
    fn errors(&self) -> Vec<SettingsError> {
        match self {
            Command::Counter(command) => command.errors(),
            Command::Budget(command) => command.errors(),
            Command::Scale(scale) => scale.errors(),
            Command::Adjust(adjust) => adjust.errors(),
            Command::Adjustments(adjustments) => adjustments.errors(),
            Command::Explain(explain) => explain.errors(),
            Command::Audit(audit) => audit.errors(),
            _ => Vec::new(),
        }
    }
}

/// Inserts the default command: `tollgate --rules x` means `tollgate serve --rules x`.
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
