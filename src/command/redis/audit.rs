//! `tollgate audit`: who changed what, from Redis or from a running service.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Deserialize;

use crate::command::live::admin_port::{AdminPort, Service};
use crate::command::output::{Format, RowsOutput, csv, print};
use crate::engine::printable::printable;
use crate::settings::{SettingsError, StoreSettings};
use crate::shared::adjustment::audit::{DAY, KEPT_DAYS, MOST_CHANGES, Record, Shown, newest};
use crate::shared::adjustment::redis::RedisAdjustments;
use crate::store::redis::topology::route::Route;

/// Fields of a record in CSV.
const FIELDS: [&str; 10] = ["at", "action", "target", "effect", "who", "role", "why", "reason", "id", "instance"];

/// Show who changed what in the last 30 days, and whom it was refused.
///
/// Lists adjustments that began, were ended or expired, resets of counters, changes of the log level, and tries that a
/// token did not permit. Reads Redis, or with --address a running service, which needs ADMIN_API=true there and a token
/// here.
///
/// Exits with 0 if they were listed, and with 1 if not.
#[derive(Args)]
pub(crate) struct Audit {
    /// Number of days.
    #[arg(long, value_name = "DAYS", default_value = "30",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(KEPT_DAYS)))]
    days: u32,

    /// Number of records, the newest first.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value = "200",
        value_parser = clap::value_parser!(u16).range(1..=MOST_CHANGES as i64))]
    limit: u16,

    #[command(flatten)]
    output: RowsOutput,

    #[command(flatten)]
    service: Service,

    #[command(flatten)]
    store: StoreSettings,
}

/// The answer of `GET /audit`.
#[derive(Deserialize)]
struct Answer {
    entries: Vec<Shown>,
    unavailable: Option<String>,
}

impl Audit {
    /// Returns the errors in settings that clap does not detect.
    pub(crate) fn errors(&self) -> Vec<SettingsError> {
        self.store.redis().err().filter(|_| !self.service.is_given()).into_iter().collect()
    }

    async fn of_service(&self, port: &AdminPort<'_>) -> anyhow::Result<Vec<Shown>> {
        let path = format!("/audit?days={}&limit={}", self.days, self.limit);
        let Some(Answer { entries, unavailable }) = port.get(&path).await? else {
            bail!("{} does not serve the audit trail: start the service with ADMIN_API=true", port.address);
        };
        match unavailable {
            Some(why) => bail!("the audit trail cannot be read: {why}"),
            None => Ok(entries),
        }
    }

    async fn of_redis(&self) -> anyhow::Result<Vec<Shown>> {
        let Some(redis) = self.store.redis()? else {
            bail!(
                "no REDIS_URL: the trail is in the service's memory; set REDIS_URL, or name the service by --address"
            );
        };
        let adjustments = RedisAdjustments::new(&Route::start(redis)?);
        let trail = adjustments.trail(self.limit.into()).await.context("the audit trail cannot be read")?;
        let records: Vec<Record> = newest(trail, DAY * self.days, self.limit.into());
        Ok(records.iter().map(|record| record.shown(|value| Some(value.into()))).collect())
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(audit: Audit) -> anyhow::Result<ExitCode> {
    let records = match audit.service.port() {
        Some(port) => audit.of_service(&port).await?,
        None => audit.of_redis().await?,
    };
    print(&match audit.output.format() {
        Format::Json => serde_json::to_string(&records)? + "\n",
        Format::Csv => csv(&FIELDS, &records)?,
        Format::Text if records.is_empty() => format!("nothing was changed in the last {} days\n", audit.days),
        Format::Text => records.iter().map(line).collect(),
    })
}

/// Returns the record in one line.
fn line(Shown { at, who, role, action, target, effect, why, reason, .. }: &Shown) -> String {
    let words = [
        Some(at.clone()),
        Some(action.clone()),
        effect.clone(),
        Some(target.clone()),
        who.as_ref().map(|who| format!("by {who}")),
        role.as_ref().map(|role| format!("({role})")),
    ];
    let words: Vec<String> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
    let cause = reason.as_ref().or(why.as_ref()).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{}\n", printable(&format!("{}{cause}", words.join("  "))))
}
