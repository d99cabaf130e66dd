//! `tollgate counter`: reads counters in Redis without the service, or resets them.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};

use super::adjustment;
use crate::counters::{self, Action, CounterOf};
use crate::descriptor::Override;
use crate::plan::PlanOptions;
use crate::rules::load;
use crate::settings::{Reading, RulesSettings, SettingsError, StoreSettings};
use crate::store::redis::{self, RedisReplicas, RedisStore};
use crate::telemetry::{self, LogFormat, LogLevels};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Show what the counters of a descriptor say; nothing is counted.
    ///
    /// Exits with 0 if it shows them, and with 1 otherwise.
    Get(Box<Get>),
    /// Make the counters of a descriptor as fresh.
    ///
    /// A running service may deny for up to a second more what Redis has just denied. Exits with 0 if the counters are
    /// fresh, and with 1 otherwise.
    Reset(Box<Reset>),
}

#[derive(Args)]
pub(super) struct Get {
    #[command(flatten)]
    which: Which,

    /// Ask a replica of Redis, which may be behind: each counter says which, and when that heard from its master.
    ///
    /// The master of a cluster, or one that Sentinels watch, need not answer. A single Redis is asked for its replicas;
    /// where it does not answer, name a replica in REDIS_URL.
    #[arg(long)]
    replica: bool,
}

#[derive(Args)]
pub(super) struct Reset {
    #[command(flatten)]
    which: Which,

    /// Is refused.
    #[arg(long, hide = true)]
    replica: bool,
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

/// Who is asked, and for what.
enum Asked {
    Store(Action),
    /// For what it knows.
    Replica,
}

impl Command {
    fn which(&self) -> &Which {
        match self {
            Command::Get(get) => &get.which,
            Command::Reset(reset) => &reset.which,
        }
    }

    /// What is wrong with settings that can be read.
    pub(super) fn errors(&self) -> Vec<SettingsError> {
        let which = self.which();
        [which.rules.sources().err(), which.store.redis().err()].into_iter().flatten().collect()
    }
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    let _logs = telemetry::init(&LogLevels::of_command(&[redis::LOG_TARGET]), LogFormat::Text);
    let (asked, which) = match command {
        Command::Get(get) => (if get.replica { Asked::Replica } else { Asked::Store(Action::Get) }, get.which),
        Command::Reset(reset) if reset.replica => {
            bail!("a replica takes no writes, and would lose them: leave --replica out, the master is reset")
        }
        Command::Reset(reset) => (Asked::Store(Action::Reset), reset.which),
    };
    let Some(redis) = which.store.redis()? else {
        bail!("counters in memory are the service's own: set REDIS_URL, or ask the service itself (see ADMIN_API)");
    };
    let rules = load::load(&which.rules.sources()?, &which.reading.load_options())?.rules;
    let timeout = redis.timeout;
    let (key_prefix, counter_keys) = (redis.key_prefix.clone(), which.store.counter_keys());
    let options = PlanOptions { key_prefix, counter_keys, ..PlanOptions::default() };
    let entries = counters::entries(&which.entries)?;
    let descriptor = CounterOf { domain: which.domain, entries, limit: which.limit };
    match asked {
        Asked::Store(action) => {
            let adjustments = adjustment::in_force(&redis).await;
            let store = RedisStore::start(redis, Box::new(|_| {})).await?;
            let rules = (&rules, Some(&adjustments));
            print(&counters::act(action, rules, &options, &store, descriptor, timeout).await?);
        }
        Asked::Replica => {
            let replicas = RedisReplicas::new(redis)?;
            print(&counters::peek_at_replicas(&rules, &options, &replicas, descriptor).await?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print<C: Display>(counters: &[C]) {
    counters.iter().for_each(|counter| println!("{counter}"));
}
