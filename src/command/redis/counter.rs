//! `tollgate counter`: reads or resets counters, in Redis without the service, or through a running service.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use serde::Serialize;

use super::place::Place;
use crate::command::live::admin_port::{AdminPort, Service, question};
use crate::command::output::{Format, RowsOutput, csv, print};
use crate::engine::descriptor::Override;
use crate::engine::printable::printable_lines;
use crate::inspect::{self, Action, Counter, CounterOf};
use crate::settings::SettingsError;
use crate::shared::adjustment::audit::{self, Note};
use crate::store::redis;
use crate::store::redis::replicas::RedisReplicas;
use crate::telemetry::{self, LogFormat, LogLevels};

/// Fields of a counter in CSV.
const FIELDS: [&str; 9] =
    ["rule", "limit", "capacity", "remaining", "leased", "reset_after_ms", "banned_ms", "key", "replica"];

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show the counters of a descriptor; nothing is counted.
    ///
    /// Exits with 0 if they were shown, and with 1 if not.
    Get(Box<Get>),
    /// Reset the counters of a descriptor.
    ///
    /// A running service may repeat a denial that it has just received from Redis for up to a second more. Exits with 0
    /// if the counters were reset, and with 1 if not.
    Reset(Box<Reset>),
}

#[derive(Args)]
pub(crate) struct Get {
    #[command(flatten)]
    which: Which,

    /// Read from a replica of Redis, which may lag: each counter shows its replica, and when that last heard from the
    /// master.
    ///
    /// In a cluster or with Sentinels, the master need not answer. A single Redis is asked for its replicas; if it does
    /// not answer, name a replica in REDIS_URL.
    #[arg(long, conflicts_with = "address")]
    replica: bool,
}

#[derive(Args)]
pub(crate) struct Reset {
    #[command(flatten)]
    which: Which,

    /// Rejected: a replica cannot reset counters.
    #[arg(long, hide = true)]
    replica: bool,
}

/// Counters to work on.
#[derive(Args)]
pub(crate) struct Which {
    /// Entries of the descriptor.
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<String>,

    /// Domain of the rules.
    #[arg(long, short)]
    domain: String,

    /// Limit that the requests carry, to find its counter: 5/minute, or 5/30second.
    #[arg(long, value_name = "N/UNIT", value_parser = crate::command::ask::limit)]
    limit: Option<Override>,

    #[command(flatten)]
    output: RowsOutput,

    #[command(flatten)]
    service: Service,

    #[command(flatten)]
    place: Place,
}

/// Where to send the question, and what to do.
enum Asked {
    Store(Action),
    /// A replica, to read its copy.
    Replica,
}

impl Command {
    fn which(&self) -> &Which {
        match self {
            Command::Get(get) => &get.which,
            Command::Reset(reset) => &reset.which,
        }
    }

    /// Returns the errors in settings that clap does not detect.
    pub(crate) fn errors(&self) -> Vec<SettingsError> {
        let Which { service, place, .. } = self.which();
        if service.is_given() { Vec::new() } else { place.errors() }
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    let _logs = telemetry::init(&LogLevels::of_command(&[redis::LOG_TARGET]), LogFormat::Text);
    let (asked, which) = match command {
        Command::Get(get) => (if get.replica { Asked::Replica } else { Asked::Store(Action::Get) }, get.which),
        Command::Reset(reset) if reset.replica => {
            bail!("a replica accepts no writes: omit --replica to reset the counter on the master")
        }
        Command::Reset(reset) => (Asked::Store(Action::Reset), reset.which),
    };
    let format = which.output.format();
    let entries = inspect::entries(&which.entries)?;
    let descriptor = CounterOf { domain: which.domain, entries, limit: which.limit };
    if let (Some(port), Asked::Store(action)) = (which.service.port(), &asked) {
        return show(&by_service(&port, *action, &descriptor).await?, format);
    }
    let opened = which.place.open()?;
    match asked {
        Asked::Store(action) => {
            let adjustments = opened.adjustments().await;
            let store = opened.store().await?;
            let (domain, entries) = (descriptor.domain.clone(), descriptor.entries.clone());
            let rules = (&opened.rules, Some(&adjustments));
            let counters = inspect::act(action, rules, &opened.options, &store, descriptor, opened.timeout()).await?;
            if action == Action::Reset {
                let rules: Vec<&str> = counters.iter().map(|counter| counter.rule.as_str()).collect();
                let effect = Some(format!("counters of {}", rules.join(", ")));
                let note = Note { domain: Some(domain), entries, effect, ..Note::default() };
                opened.record(audit::Action::Reset, note).await;
            }
            show(&counters, format)
        }
        Asked::Replica => {
            let replicas = RedisReplicas::new(opened.redis)?;
            show(&inspect::peek_at_replicas(&opened.rules, &opened.options, &replicas, descriptor).await?, format)
        }
    }
}

/// Reads or resets the counters through a service, which records a reset in the audit trail.
pub(super) async fn by_service(
    port: &AdminPort<'_>,
    action: Action,
    CounterOf { domain, entries, limit }: &CounterOf,
) -> anyhow::Result<Vec<Counter>> {
    let query = question(domain, *limit, std::slice::from_ref(entries));
    let method = match action {
        Action::Get => Method::GET,
        Action::Reset => Method::DELETE,
    };
    let answer = port.change(method, &format!("/counters?{query}"), String::new()).await?;
    serde_json::from_value(answer)
        .with_context(|| format!("{} sent a response that this version of the command cannot read", port.address))
}

fn show<C: Display + Serialize>(counters: &[C], format: Format) -> anyhow::Result<ExitCode> {
    let lines = || counters.iter().map(|counter| printable_lines(&format!("{counter}\n"))).collect();
    print(&match format {
        Format::Text => lines(),
        Format::Json => serde_json::to_string(counters)? + "\n",
        Format::Csv => csv(&FIELDS, counters)?,
    })
}
