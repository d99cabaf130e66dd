//! The `tollgate` command: serves, checks rules, asks a running service, prints the settings.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Parser, Subcommand};
use tollgate::ask::{self, Ask};
use tollgate::health::{self, Health};
use tollgate::rules::load::{self, LoadOptions, Sources};
use tollgate::settings::{self, Settings};
use tollgate::{server, telemetry};

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
    /// Print the reference page of all settings, in Markdown.
    Settings,
}

#[derive(clap::Args)]
struct Check {
    /// Files or folders of rules.
    #[arg(required = true)]
    paths: Vec<PathBuf>,

    /// Take warnings for errors.
    #[arg(long)]
    strict: bool,

    /// Several files may have the same domain, as with MERGE_DOMAIN_CONFIG.
    #[arg(long)]
    merge_domain_config: bool,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(with_default_command(std::env::args_os().collect())) {
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

#[tokio::main]
async fn serve(settings: Settings) -> anyhow::Result<ExitCode> {
    telemetry::init(settings.log_level, settings.log_format);
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
    server::serve(settings).await?;
    Ok(ExitCode::SUCCESS)
}

fn check(check: &Check) -> anyhow::Result<ExitCode> {
    let options = LoadOptions { merge_domains: check.merge_domain_config, ..LoadOptions::default() };
    let loaded = match load::load(&Sources { paths: check.paths.clone() }, &options) {
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
    println!("ok: {} rules in {} domains", loaded.rules.rules().len(), loaded.rules.domains());
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
