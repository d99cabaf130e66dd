//! `tollgate usage`: what limits were used, and the ledger of it.

mod check;
mod close;
mod text;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};

use super::admin_port::Administered;
use crate::settings::named;
use crate::usage::Time;
use crate::usage::answer::Wanted;
use crate::usage::statement::{By, CLOSED_AFTER_MS, Options};

/// Show what limits were used that keep it: admitted, denied and cost for each counter and period.
///
/// It is for limits whose rules say `usage`. Times are in UTC. What is not over is left out until five minutes after
/// its end, so that a bill has no part of an hour, a day or a month. It needs ADMIN_API=true at the service, and a
/// token here.
///
/// Exits with 0 if it shows them, and with 1 otherwise.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Usage {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    show: Show,
}

#[derive(Subcommand)]
enum Command {
    Close(close::Close),
    Check(check::Check),
}

#[derive(Args)]
struct Show {
    /// Of this domain. Unset: of all.
    #[arg(long, short)]
    domain: Option<String>,

    /// Of this rule, by the name that metrics have for it now. Unset: of all, also of those that are no more.
    #[arg(long, short)]
    rule: Option<String>,

    /// Of descriptors that have this entry; of those that have all of them, where there are several.
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    key: Vec<(String, String)>,

    /// Of periods that begin at this time or later: a date, a time (RFC 3339) or milliseconds. Unset: of all.
    #[arg(long, value_name = "TIME")]
    from: Option<Time>,

    /// Of periods that begin before this time. Unset: of all.
    #[arg(long, value_name = "TIME")]
    to: Option<Time>,

    /// Sum what belongs together, by months of the calendar or by all of the time. What is kept by a longer time stays
    /// as it is. Unset: as it is kept.
    #[arg(long, value_name = "TIME", value_parser = named(&By::ALL, By::name))]
    by: Option<By>,

    /// Show, too, what is not over, and mark it.
    #[arg(long)]
    open: bool,

    /// Print CSV.
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    service: Administered,
}

pub(super) fn run(usage: Usage) -> anyhow::Result<ExitCode> {
    match usage.command {
        Some(Command::Close(close)) => close::run(close),
        Some(Command::Check(check)) => check::run(check),
        None => show(usage.show),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn show(show: Show) -> anyhow::Result<ExitCode> {
    let (from, to) = (show.from.unwrap_or_default(), show.to.unwrap_or(Time::END));
    if from >= to {
        bail!("from {from} to {to} is no time: --to is later than --from, and not part of it");
    }
    let wanted = Wanted { domain: show.domain, rule: show.rule, entries: show.key, from, to };
    let by = show.by.unwrap_or_default();
    let options = Options { by, from, to, open: show.open, closed_after_ms: CLOSED_AFTER_MS };
    let statement = show.service.usage(&wanted, &options).await?;
    let (damaged, left_out) = (statement.damaged(), statement.left_out());
    let rows = statement.rows();
    let printed = if show.csv {
        text::csv(&rows)?
    } else if show.json {
        text::json(&rows, left_out, damaged)? + "\n"
    } else {
        text::table(&rows)
    };
    let done = super::print(&printed)?;
    if left_out > 0 {
        eprintln!("{left_out} records of times that are not over are left out: --open shows them");
    }
    warn_of_damage(damaged);
    Ok(done)
}

fn warn_of_damage(damaged: u64) {
    if damaged > 0 {
        eprintln!("warning: {damaged} records in the store cannot be read, and are counted nowhere");
    }
}

fn entry(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, for example user=ann"),
    }
}
