//! `tollgate budget`: shows, tops up and refunds budgets, in Redis without the service, or through a running service.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use hyper::Method;

use super::counter;
use super::place::Place;
use crate::command::live::admin_port::{Service, question};
use crate::command::output::{Output, print};
use crate::engine::algorithm::CreditKind;
use crate::engine::printable::printable_lines;
use crate::inspect::credit::{CreditError, Credited, Written, credit, of_budget};
use crate::inspect::{self, Action, Counter, CounterOf};
use crate::settings::SettingsError;
use crate::shared::adjustment::audit::{self, Note};
use crate::store::redis;
use crate::telemetry::{self, LogFormat, LogLevels};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show what is used, held and left of the budgets of a descriptor.
    ///
    /// Exits with 0 if they were shown, and with 1 if not.
    Show(Box<Show>),
    /// Add hits to a balance, or to the present window of a budget with a time_zone.
    ///
    /// With the same --id, hits are added once, so a top-up whose answer was lost can be repeated. Exits with 0 if the
    /// hits are added, now or before, and with 1 if not.
    #[command(name = "top-up")]
    TopUp(Box<Change>),
    /// Refund hits that were used in the present window, as far as there are any.
    ///
    /// With the same --id, hits are refunded once, so a refund whose answer was lost can be repeated. Exits with 0 if
    /// hits are refunded, now or before, and with 1 if not.
    Refund(Box<Change>),
}

#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    which: Which,
}

#[derive(Args)]
pub(crate) struct Change {
    #[command(flatten)]
    which: Which,

    /// Hits: tokens, bytes, or billionths of a currency unit, as the budget counts them.
    #[arg(long, short = 'n', value_name = "N")]
    hits: u64,

    /// ID, such as that of an invoice.
    #[arg(long, value_name = "ID")]
    id: String,

    /// Name of the budget, if there are several for the descriptor.
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,

    /// Reason, for the audit trail.
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
}

/// The budgets to work on.
#[derive(Args)]
pub(crate) struct Which {
    /// Entries of the descriptor, without those of streams: tenant=acme.
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<String>,

    /// Domain of the rules.
    #[arg(long, short)]
    domain: String,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    service: Service,

    #[command(flatten)]
    place: Place,
}

impl Command {
    fn which(&self) -> &Which {
        match self {
            Command::Show(show) => &show.which,
            Command::TopUp(change) | Command::Refund(change) => &change.which,
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
    let (kind, change) = match command {
        Command::Show(show) => return show.which.show().await,
        Command::TopUp(change) => (CreditKind::TopUp, change),
        Command::Refund(change) => (CreditKind::Refund, change),
    };
    let Change { which, hits, id, rule, why } = *change;
    let written = Written { kind: kind.name().to_owned(), hits, id, rule, why };
    written.read()?;
    let credited = which.credit(&written).await?;
    print(&match which.output.is_json() {
        true => serde_json::to_string(&credited)? + "\n",
        false => printable_lines(&format!("{credited}\n")),
    })
}

impl Which {
    /// Shows the budgets.
    async fn show(self) -> anyhow::Result<ExitCode> {
        let CounterOf { domain, entries, limit } = self.descriptor()?;
        let descriptor = CounterOf { domain, entries: of_budget(entries), limit };
        let counters = match self.service.port() {
            Some(port) => counter::by_service(&port, Action::Get, &descriptor).await?,
            None => {
                let opened = self.place.open()?;
                let (adjustments, store) = (opened.adjustments().await, opened.store().await?);
                let rules = (&opened.rules, Some(&adjustments));
                inspect::act(Action::Get, rules, &opened.options, &store, descriptor, opened.timeout()).await?
            }
        };
        let budgets: Vec<Counter> = counters.into_iter().filter(|counter| counter.budget.is_some()).collect();
        if budgets.is_empty() {
            bail!(CreditError::NoBudget(String::new()));
        }
        print(&match self.output.is_json() {
            true => serde_json::to_string(&budgets)? + "\n",
            false => budgets.iter().map(|budget| printable_lines(&format!("{budget}\n"))).collect(),
        })
    }

    /// Credits hits, and records it in the audit trail.
    async fn credit(&self, written: &Written) -> anyhow::Result<Credited> {
        let descriptor = self.descriptor()?;
        if let Some(port) = self.service.port() {
            let query = question(&descriptor.domain, None, std::slice::from_ref(&descriptor.entries));
            let body = serde_json::to_string(written)?;
            let answer = port.change(Method::POST, &format!("/credits?{query}"), body).await?;
            return serde_json::from_value(answer)
                .with_context(|| format!("{} sent a response that this version cannot read", port.address));
        }
        let opened = self.place.open()?;
        let (adjustments, store) = (opened.adjustments().await, opened.store().await?);
        let rules = (&opened.rules, Some(&adjustments));
        let CounterOf { domain, entries, .. } = descriptor.clone();
        let credited = credit(written, rules, &opened.options, &store, descriptor, opened.timeout()).await;
        if let Some(effect) = written.effect(&credited) {
            let (domain, why, effect) = (Some(domain), written.why.clone(), Some(effect));
            opened.record(audit::Action::Credited, Note { domain, entries, why, effect, ..Note::default() }).await;
        }
        Ok(credited?)
    }

    fn descriptor(&self) -> anyhow::Result<CounterOf> {
        let entries = inspect::entries(&self.entries)?;
        Ok(CounterOf { domain: self.domain.clone(), entries, limit: None })
    }
}
