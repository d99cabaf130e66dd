//! The `tollgate` command: serves, checks rules, asks a running service, prints the settings.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::builder::Resettable;
use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tollgate::ask::{self, Ask};
use tollgate::counters::{self, Action};
use tollgate::health::{self, Health};
use tollgate::plan::PlanOptions;
use tollgate::rules::load::{self, Sources};
use tollgate::server;
use tollgate::settings::{self, Reading, RulesSettings, Settings, StoreSettings};
use tollgate::store::redis::RedisStore;
use tollgate::telemetry::{self, LogFormat, Logs};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A rate-limit service for Envoy: exact limits, decided in Redis or in memory.
#[derive(Parser)]
#[command(
    version,
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
    Check(Check),
    Ask(Ask),
    Health(Health),
    /// Look at counters in Redis, or reset them.
    #[command(subcommand)]
    Counter(Counter),
    /// Print the reference page of all settings, in Markdown.
    Settings,
}

#[derive(Subcommand)]
enum Counter {
    /// Show what the counters of a descriptor say; nothing is counted.
    Get(Box<Which>),
    /// Make the counters of a descriptor as fresh. A running service may deny for up to a second more what Redis has just denied.
    Reset(Box<Which>),
}

/// Which counters, by which rules, in which Redis: with the settings of the service they are the service's.
#[derive(clap::Args)]
struct Which {
    /// The entries of the descriptor.
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<String>,

    /// The domain of the rules.
    #[arg(long, short)]
    domain: String,

    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    store: StoreSettings,
}

#[derive(clap::Args)]
struct Check {
    /// Files or folders of rules.
    #[arg(required = true)]
    paths: Vec<PathBuf>,

    /// Take warnings for errors.
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    reading: Reading,
}

fn main() -> ExitCode {
    forgo_huge_pages();
    let cli = match parse(with_default_command(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(error) => {
            // Not clap's own exit: its 2 means "limited" here.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let done = match cli.command {
        Command::Serve(settings) => serve(*settings),
        Command::Check(check) => self::check(&check),
        Command::Ask(question) => self::ask(question),
        Command::Health(question) => self::health(question),
        Command::Counter(Counter::Get(which)) => counter(Action::Get, which),
        Command::Counter(Counter::Reset(which)) => counter(Action::Reset, which),
        Command::Settings => {
            print!("{}", settings::page());
            Ok(ExitCode::SUCCESS)
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Does without transparent huge pages, which mimalloc asks for: who is the first to touch one waits until the kernel has cleared 2 MiB, and that
/// would be a decision.
#[cfg(target_os = "linux")]
fn forgo_huge_pages() {
    // Where the kernel does not know of this, there is nothing to be done.
    let _ = nix::sys::prctl::set_thp_disable(true);
}

#[cfg(not(target_os = "linux"))]
fn forgo_huge_pages() {}

/// Parses the arguments and the environment, in which an empty variable is as good as none: Helm and compose leave such.
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

/// Says why it cannot serve in the log, which waits for no reader.
fn serve(settings: Settings) -> anyhow::Result<ExitCode> {
    let logs = telemetry::init(&settings.log_level, settings.log_format);
    Ok(match serve_with(settings, &logs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

/// What serves has threads of its own; this one looks after them.
#[tokio::main(flavor = "current_thread")]
async fn serve_with(settings: Settings, logs: &Logs) -> anyhow::Result<()> {
    let mut refused = Vec::new();
    for unsupported in settings::unsupported(|name| std::env::var(name).ok()) {
        let line = format!("{}: {}", unsupported.setting, unsupported.advice);
        if unsupported.fatal {
            refused.push(line);
        } else {
            tracing::warn!("{line}");
        }
    }
    if !refused.is_empty() {
        bail!("the environment asks for what is not there:\n{}", refused.join("\n"));
    }
    server::serve(settings, logs.lost()).await
}

fn check(check: &Check) -> anyhow::Result<ExitCode> {
    let loaded = match load::load(&Sources { paths: check.paths.clone() }, &check.reading.load_options()) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::FAILURE);
        }
    };
    for warning in &loaded.warnings {
        eprintln!("{warning}");
    }
    if check.strict && !loaded.warnings.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let count = |number, what| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    println!("ok: {} in {}", count(loaded.rules.rules().len(), "rule"), count(loaded.rules.domains(), "domain"));
    Ok(ExitCode::SUCCESS)
}

#[tokio::main(flavor = "current_thread")]
async fn ask(question: Ask) -> anyhow::Result<ExitCode> {
    let answered = ask::ask(question).await?;
    print!("{}", answered.text);
    Ok(if answered.limited { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

#[tokio::main(flavor = "current_thread")]
async fn health(question: Health) -> anyhow::Result<ExitCode> {
    let serving = health::health(question).await?;
    println!("{}", if serving { "SERVING" } else { "NOT_SERVING" });
    Ok(if serving { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[tokio::main(flavor = "current_thread")]
async fn counter(action: Action, which: Box<Which>) -> anyhow::Result<ExitCode> {
    let _logs = telemetry::init(&tracing::Level::WARN.into(), LogFormat::Text);
    let Some(redis) = which.store.redis()? else {
        bail!("counters in memory are the service's own: set REDIS_URL, or ask the service itself (see ADMIN_API)");
    };
    let rules = load::load(&which.rules.sources()?, &which.reading.load_options())?.rules;
    let patience = redis.timeout;
    let options = PlanOptions { key_prefix: redis.key_prefix.clone(), ..PlanOptions::default() };
    let store = RedisStore::start(redis, Box::new(|_| {})).await?;
    let descriptor = (which.domain.as_str(), counters::entries(&which.entries)?);
    for counter in counters::act(action, &rules, &options, &store, descriptor, patience).await? {
        println!("{counter}");
    }
    Ok(ExitCode::SUCCESS)
}
