//! `tollgate usage`: the recorded usage of limits, and its ledger.

mod check;
mod close;
mod text;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use crate::command::live::admin_port::{Administered, missed};
use crate::command::output::{Format, NOTHING_APPLIES, RowsOutput, errln, print};
use crate::engine::algorithm::TimeZone;
use crate::engine::usage::Time;
use crate::ledger::answer::Wanted;
use crate::ledger::statement::{By, CLOSED_AFTER_MS, StatementOptions};
use crate::settings::named;

/// Show the recorded usage of limits: admitted, denied and cost for each counter and period.
///
/// Covers limits with `usage` in their rules. Times are in UTC. A period is left out until five minutes after its end:
/// no bill contains part of an hour, a day or a month. Needs ADMIN_API=true at the service, and a token here.
///
/// Exits with 0 if the usage was shown, 3 if there is none of that domain or rule, and with 1 if there is no answer.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Usage {
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
    /// Only this domain. Unset: all.
    #[arg(long, short)]
    domain: Option<String>,

    /// Only this rule, by its current name in metrics. Unset: all, including removed rules.
    #[arg(long, short)]
    rule: Option<String>,

    /// Only descriptors that have this entry. May be given several times; descriptors must have all of them.
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    key: Vec<(String, String)>,

    /// Only the descriptor of these entries in their order, by the rules in force. It is read by name: at once, however
    /// many keys there are.
    #[arg(long, requires_all = ["domain", "key"])]
    exact: bool,

    /// Only periods that begin at this time or later: a date, a time (RFC 3339) or milliseconds. Unset: all.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Only periods that begin before this time. Unset: all.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    /// Sum the periods of each calendar month, or all periods. Records with a longer period remain as they are. Unset:
    /// as recorded.
    #[arg(long, value_name = "TIME", value_parser = named(&By::ALL, By::name))]
    by: Option<By>,

    /// Time zone of days, months and dates, such as Europe/Berlin. Unset: UTC.
    #[arg(long, value_name = "ZONE", value_parser = zone)]
    time_zone: Option<TimeZone>,

    /// Also show unfinished periods, and mark them.
    #[arg(long)]
    open: bool,

    /// The same as --format csv.
    #[arg(long, conflicts_with_all = ["format", "json"])]
    csv: bool,

    #[command(flatten)]
    output: RowsOutput,

    #[command(flatten)]
    service: Administered,
}

pub(crate) fn run(usage: Usage) -> anyhow::Result<ExitCode> {
    match usage.command {
        Some(Command::Close(close)) => close::run(close),
        Some(Command::Check(check)) => check::run(check),
        None => show(usage.show),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn show(show: Show) -> anyhow::Result<ExitCode> {
    let time = |text: Option<&String>| {
        let read = |text: &String| show.time_zone.map_or_else(|| text.parse(), |zone| Time::read_in(text, zone));
        text.map(read).transpose()
    };
    let from = time(show.from.as_ref()).context("--from")?.unwrap_or_default();
    let to = time(show.to.as_ref()).context("--to")?.unwrap_or(Time::END);
    if from >= to {
        bail!("{from} to {to} is not a time range: --to must be later than --from");
    }
    let wanted = Wanted { domain: show.domain, rule: show.rule, entries: show.key, is_exact: show.exact, from, to };
    let by = show.by.unwrap_or_default();
    let options =
        StatementOptions { by, from, to, open: show.open, closed_after_ms: CLOSED_AFTER_MS, zone: show.time_zone };
    let statement = show.service.usage(&wanted, &options).await?;
    if let Some(crossing) = statement.crossing() {
        bail!("{crossing}");
    }
    let (damaged, left_out) = (statement.damaged(), statement.left_out());
    let missed_rules = statement.missed().map(str::to_owned);
    let rows = statement.rows();
    let printed = match show.output.format() {
        _ if show.csv => text::csv(&rows, show.time_zone)?,
        Format::Csv => text::csv(&rows, show.time_zone)?,
        Format::Json => text::json((&rows, show.time_zone), left_out, damaged)? + "\n",
        Format::Text => text::table(&rows, show.time_zone),
    };
    let done = print(&printed)?;
    if left_out > 0 {
        errln!("{left_out} records of periods that are not over are omitted: --open shows them");
    }
    warn_of_damage(damaged);
    if !rows.is_empty() || left_out > 0 {
        return Ok(done);
    }
    if wanted.is_exact {
        return Ok(match missed_rules {
            Some(missed) => {
                errln!("{missed}");
                ExitCode::from(NOTHING_APPLIES)
            }
            None => done,
        });
    }
    let all = show.service.usage(&Wanted::within(from, to), &options).await?.rows();
    let names = all.iter().map(|row| (&*row.counter.owner.domain, row.counter.rule.as_deref().unwrap_or_default()));
    // Without any record, the rules in force say what can be named. Records may also be of removed rules.
    let missed = match all.is_empty() {
        true => missed_rules,
        false => missed(names, wanted.domain.as_deref(), wanted.rule.as_deref()),
    };
    match missed {
        Some(missed) => {
            errln!("{missed}");
            Ok(ExitCode::from(NOTHING_APPLIES))
        }
        None => Ok(done),
    }
}

fn warn_of_damage(damaged: u64) {
    if damaged > 0 {
        errln!("warning: {damaged} records in the store are damaged and not counted");
    }
}

fn zone(name: &str) -> Result<TimeZone, &'static str> {
    TimeZone::named(name).ok_or("write a name of the IANA database, such as Europe/Berlin")
}

fn entry(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, for example user=ann"),
    }
}
