//! `tollgate counter`: reads counters in Redis without the service, or resets them.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::counters::{self, Action, CounterOf};
use crate::descriptor::Override;
use crate::plan::PlanOptions;
use crate::rules::load;
use crate::settings::{Reading, RulesSettings, SettingsError, StoreSettings};
use crate::store::redis::{self, RedisStore};
use crate::telemetry::{self, LogFormat, LogLevels};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Show what the counters of a descriptor say; nothing is counted.
    ///
    /// Exits with 0 if it shows them, and with 1 otherwise.
    Get(Box<Which>),
    /// Make the counters of a descriptor as fresh.
    ///
    /// A running service may deny for up to a second more what Redis has just denied. Exits with 0 if the counters are
    /// fresh, and with 1 otherwise.
    Reset(Box<Which>),
}

/// Which counters, by which rules, in which Redis: with the settings of the service they are the service's.
#[derive(Args)]
pub(super) struct Which {
    /// The entries of the descriptor.
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<String>,

    /// The domain of the rules.
    #[arg(long, short)]
    domain: String,

    /// The counter of a limit that requests bring along: 5/minute, or 5/30second.
    #[arg(long, value_name = "N/UNIT", value_parser = super::ask::limit)]
    limit: Option<Override>,

    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    store: StoreSettings,
}

impl Command {
    /// What is wrong with settings that can be read.
    pub(super) fn errors(&self) -> Vec<SettingsError> {
        let (Command::Get(which) | Command::Reset(which)) = self;
        [which.rules.sources().err(), which.store.redis().err()].into_iter().flatten().collect()
    }
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    let _logs = telemetry::init(&LogLevels::of_command(redis::LOG_TARGET), LogFormat::Text);
    let (action, which) = match command {
        Command::Get(which) => (Action::Get, which),
        Command::Reset(which) => (Action::Reset, which),
    };
    let Some(redis) = which.store.redis()? else {
        bail!("counters in memory are the service's own: set REDIS_URL, or ask the service itself (see ADMIN_API)");
    };
    let rules = load::load(&which.rules.sources()?, &which.reading.load_options())?.rules;
    let timeout = redis.timeout;
    let (key_prefix, counter_keys) = (redis.key_prefix.clone(), which.store.counter_keys());
    let options = PlanOptions { key_prefix, counter_keys, ..PlanOptions::default() };
    let store = RedisStore::start(redis, Box::new(|_| {})).await?;
    let entries = counters::entries(&which.entries)?;
    let descriptor = CounterOf { domain: which.domain, entries, limit: which.limit };
    for counter in counters::act(action, &rules, &options, &store, descriptor, timeout).await? {
        println!("{counter}");
    }
    Ok(ExitCode::SUCCESS)
}
