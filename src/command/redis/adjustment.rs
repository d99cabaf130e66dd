//! `tollgate scale`, `tollgate adjust` and `tollgate adjustments`: temporary changes to limits, made in Redis without
//! the service, or by running services.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};

use super::place::Place;
use crate::command::live::instances::{Instances, Told, by_instance, shown};
use crate::command::output::{Format, NOTHING_APPLIES, Output, RowsOutput, csv, print};
use crate::engine::adjustment::{Id, InForce, Shown, Written, WrittenEntry};
use crate::engine::rules::Budget;
use crate::limiter::{Limiter, LimiterOptions};
use crate::metrics::Metrics;
use crate::settings::SettingsError;
use crate::shared::adjustment::board::Command;
use crate::shared::adjustment::redis::RedisAdjustments;
use crate::shared::adjustment::{self, AdjustmentStore, By};
use crate::store::any::AnyStore;
use crate::store::memory::MemoryStore;
use crate::store::redis;
use crate::store::redis::topology::config::RedisConfig;
use crate::store::redis::topology::route::Route;
use crate::telemetry::{self, LogFormat, LogLevels, Logs};

/// Role of commands in the log.
pub(super) const ROLE: &str = "command";

/// Fields of an adjustment in CSV.
const FIELDS: [&str; 18] = [
    "id",
    "effect",
    "share",
    "number",
    "everything",
    "domain",
    "rule",
    "entries",
    "descriptors",
    "hours",
    "time_zone",
    "since",
    "until",
    "paused_until",
    "who",
    "why",
    "unmatched",
    "only_here",
];

/// Scale limits for a while: 10% lets a tenth pass.
///
/// Takes effect on all instances within a second, through Redis, or with --address through a running service. A limit
/// always lets at least one hit pass.
///
/// Exits with 0 on success, 3 if it matches no rule and so changes only limits that requests supply, and with 1 if
/// nothing was changed.
#[derive(Args)]
pub(crate) struct Scale {
    /// Share of the numbers in the rules, such as 10% or 2.5%, from 0.01% to 10000%.
    #[arg(value_name = "SHARE")]
    share: String,

    #[command(flatten)]
    of: Of,
}

#[derive(Subcommand)]
pub(crate) enum Adjust {
    /// Set another number for a rule or one descriptor.
    Number(Number),
    /// Let all requests pass; nothing is counted.
    Pass(Of),
    /// Deny all requests, whatever mode their rule has; nothing is counted.
    Block(Of),
    /// Enforce denials, whatever mode the rule has.
    Enforce(Of),
    /// Count denials, but deny no request.
    Shadow(Of),
    /// End an adjustment early.
    End(End),
}

#[derive(Args)]
pub(crate) struct Number {
    /// The number, 1 or more.
    #[arg(value_name = "NUMBER")]
    number: u64,

    #[command(flatten)]
    of: Of,
}

/// Target, duration and reason of an adjustment.
#[derive(Args)]
#[command(group(ArgGroup::new("target").required(true).args(["domain", "all"])))]
pub(crate) struct Of {
    /// Entries of the descriptor to adjust. KEY~PATTERN is for all values that match, such as user~acme_*, and a + is
    /// between two descriptors.
    #[arg(value_name = "KEY=VALUE", requires = "domain", conflicts_with = "rule")]
    entries: Vec<String>,

    /// Domain to adjust.
    #[arg(long, short)]
    domain: Option<String>,

    /// Adjust every limit of every domain.
    #[arg(long)]
    all: bool,

    /// Rule to adjust: its path, or the name of a limit in metrics.
    #[arg(long, requires = "domain")]
    rule: Option<String>,

    /// How long the adjustment lasts, from 1s to 7d.
    #[arg(long = "for", value_name = "DURATION")]
    lasts: String,

    /// Hours of each day in which it takes effect: 22:00-06:00. Unset: all.
    #[arg(long, value_name = "FROM-TO")]
    hours: Option<String>,

    /// Time zone of the hours, such as Europe/Berlin. Unset: UTC.
    #[arg(long, value_name = "ZONE", requires = "hours")]
    time_zone: Option<String>,

    #[command(flatten)]
    reason: Reason,

    /// An ID of your choice; repeating the command with it has no second effect. Unset: a new ID.
    #[arg(long)]
    id: Option<String>,

    #[command(flatten)]
    output: Output,

    /// If Redis is away, publish the adjustment to all instances when it is back. Unset: it holds only at the instances
    /// that are asked.
    #[arg(long, requires = "address")]
    fleet: bool,

    /// Change nothing, and show what the adjustment would have done to the requests of the last minutes.
    #[arg(long, requires = "address", conflicts_with = "fleet")]
    dry_run: bool,

    #[command(flatten)]
    instances: Box<Instances>,

    #[command(flatten)]
    place: Box<Place>,
}

#[derive(Args)]
pub(crate) struct End {
    /// ID of the adjustment.
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    reason: Reason,

    #[command(flatten)]
    output: Output,

    /// If Redis is away, end the adjustment at all instances when it is back. Unset: it ends only at the instances that
    /// are asked.
    #[arg(long, requires = "address")]
    fleet: bool,

    #[command(flatten)]
    instances: Box<Instances>,

    #[command(flatten)]
    place: Box<Place>,
}

/// List the adjustments in force.
///
/// Exits with 0 if they were listed, and with 1 if not.
#[derive(Args)]
pub(crate) struct Adjustments {
    #[command(flatten)]
    output: RowsOutput,

    #[command(flatten)]
    instances: Instances,

    #[command(flatten)]
    place: Box<Place>,
}

/// Reason and author, for the log and every list.
#[derive(Args)]
pub(crate) struct Reason {
    /// Reason, in a few words.
    #[arg(long)]
    why: String,

    /// Name of the person who makes the change. Unset: $USER.
    #[arg(long, env = "USER", value_name = "NAME")]
    who: String,
}

impl Adjust {
    /// Returns the errors in settings that clap does not detect.
    pub(crate) fn errors(&self) -> Vec<SettingsError> {
        let (instances, place) = match self {
            Adjust::Number(Number { of, .. })
            | Adjust::Pass(of)
            | Adjust::Block(of)
            | Adjust::Enforce(of)
            | Adjust::Shadow(of) => (&of.instances, &of.place),
            Adjust::End(End { instances, place, .. }) => (instances, place),
        };
        errors(instances, place)
    }
}

/// Returns the errors in settings that clap does not detect. A service that is asked has its own.
fn errors(instances: &Instances, place: &Place) -> Vec<SettingsError> {
    if instances.are_given() { Vec::new() } else { place.errors() }
}

impl Scale {
    /// Returns the errors in settings that clap does not detect.
    pub(crate) fn errors(&self) -> Vec<SettingsError> {
        errors(&self.of.instances, &self.of.place)
    }
}

impl Adjustments {
    /// Returns the errors in settings that clap does not detect.
    pub(crate) fn errors(&self) -> Vec<SettingsError> {
        errors(&self.instances, &self.place)
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn scale(Scale { share, of }: Scale) -> anyhow::Result<ExitCode> {
    let _logs = logs();
    let effect = Written { effect: "scale".to_owned(), share: Some(share), ..Written::default() };
    of.begin(effect).await
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn adjust(adjust: Adjust) -> anyhow::Result<ExitCode> {
    let _logs = logs();
    let effect = |name: &str| Written { effect: name.to_owned(), ..Written::default() };
    match adjust {
        Adjust::Number(Number { number, of }) => of.begin(Written { number: Some(number), ..effect("number") }).await,
        Adjust::Pass(of) => of.begin(effect("pass")).await,
        Adjust::Block(of) => of.begin(effect("block")).await,
        Adjust::Enforce(of) => of.begin(effect("enforce")).await,
        Adjust::Shadow(of) => of.begin(effect("shadow")).await,
        Adjust::End(end) => end.run().await,
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn list(Adjustments { output, instances, place }: Adjustments) -> anyhow::Result<ExitCode> {
    let _logs = logs();
    if instances.are_given() {
        return list_of(&instances, output.format()).await;
    }
    let adjustments = adjustments_of(&place)?;
    adjustments.read().await.context("the adjustments cannot be read")?;
    print(&written(&adjustments.list(), output.format())?)
}

fn written(list: &[Shown], format: Format) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json => serde_json::to_string(&list)? + "\n",
        Format::Csv => csv(&FIELDS, list)?,
        Format::Text if list.is_empty() => "no adjustment is in force\n".to_owned(),
        Format::Text => list.iter().map(|shown| format!("{shown}\n")).collect::<String>(),
    })
}

/// Lists the adjustments of running services.
async fn list_of(instances: &Instances, format: Format) -> anyhow::Result<ExitCode> {
    let told = instances.list().await?;
    match (&*told, format) {
        ([one], _) if !instances.all() => print(&written(&one.adjustments()?, format)?),
        (_, Format::Csv) => bail!("--all-instances has no CSV: use --format json"),
        (_, Format::Json) => {
            print(&(serde_json::to_string(&told)? + "\n"))?;
            Ok(listed(&told))
        }
        (_, Format::Text) => {
            let text = |list: &Value| {
                let list: Vec<Shown> =
                    list.as_array().into_iter().flatten().cloned().map(shown).collect::<anyhow::Result<_>>()?;
                written(&list, Format::Text)
            };
            print(&by_instance(&told, text)?)?;
            Ok(listed(&told))
        }
    }
}

/// Fails the command if an instance did not list its adjustments.
fn listed(told: &[Told]) -> ExitCode {
    if told.iter().all(Told::is_answered) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the adjustments that instances with this Redis have in force. Returns none if Redis does not answer; reading
/// its counters then reports the reason.
pub(crate) async fn in_force(redis: &RedisConfig) -> InForce {
    let Ok(route) = Route::start(redis.clone()) else { return InForce::default() };
    RedisAdjustments::new(&route).ask(0, Command::Read).await.map(|reply| reply.in_force()).unwrap_or_default()
}

/// Logs errors as the service does, until the value is dropped.
fn logs() -> Logs {
    telemetry::init(&LogLevels::of_command(&[redis::LOG_TARGET, adjustment::LOG_TARGET]), LogFormat::Text)
}

impl Of {
    async fn begin(self, effect: Written) -> anyhow::Result<ExitCode> {
        let Of { entries, domain, all, rule, lasts, hours, time_zone, reason, id, output, fleet, dry_run, .. } = self;
        let (instances, place) = (self.instances, self.place);
        let (id, lasts) = (id.or_else(|| Some(adjustment::fresh_id().to_string())), Some(lasts));
        let (Reason { why, who }, descriptors) = (reason, descriptors(&entries)?);
        let written =
            Written { id, everything: all, domain, rule, descriptors, lasts, hours, time_zone, who, why, ..effect };
        if instances.are_given() {
            return match dry_run {
                true => instances.preview(&written, output.is_json()).await,
                false => instances.begin(&written, fleet, output.is_json()).await,
            };
        }
        if written.number.is_some() && written.rule.is_none() && written.descriptors.is_empty() {
            let rules = place.rules()?;
            let missed = rules.missed_filter(written.domain.as_deref(), None, &mut Budget::new(Budget::PERSON));
            let missed = missed.map(|missed| format!("; {missed}")).unwrap_or_default();
            bail!(
                "a number is for one rule or one descriptor: name it with --domain and --rule NAME or KEY=VALUE, or \
                 change all limits with tollgate scale{missed}"
            );
        }
        let shown: Shown = adjustments_of(&place)?.begin(&written, ROLE, true).await?;
        print(&if output.is_json() { serde_json::to_string(&shown)? + "\n" } else { format!("{shown}\n") })?;
        Ok(if shown.unmatched.is_some() { ExitCode::from(NOTHING_APPLIES) } else { ExitCode::SUCCESS })
    }
}

/// Parses descriptors, with a `+` between two of them.
fn descriptors(words: &[String]) -> anyhow::Result<Vec<Vec<WrittenEntry>>> {
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let all: Vec<Vec<WrittenEntry>> = words
        .split(|word| word == "+")
        .map(|words| words.iter().map(|word| entry(word)).collect())
        .collect::<Result<_, _>>()?;
    if all.iter().any(Vec::is_empty) {
        bail!("a + is between two descriptors: write user=ann + user=bob");
    }
    Ok(all)
}

/// Parses an entry: `KEY=VALUE`, or `KEY~PATTERN`, whichever sign comes first.
fn entry(word: &str) -> anyhow::Result<WrittenEntry> {
    let sign = word.find(['=', '~']).filter(|at| *at > 0);
    let Some(at) = sign else {
        bail!(
            "{word:?} is not an entry: write KEY=VALUE, for example user=ann, or KEY~PATTERN, for example user~acme_*"
        );
    };
    let (key, text) = (word[..at].into(), Some(word[at + 1..].into()));
    Ok(match &word[at..=at] {
        "=" => WrittenEntry { key, value: text, pattern: None },
        _ => WrittenEntry { key, value: None, pattern: text },
    })
}

impl End {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let End { id, reason: Reason { why, who }, output, fleet, instances, place } = self;
        let id = Id::parse(&id).ok_or_else(|| anyhow!("no adjustment has this id: see tollgate adjustments"))?;
        if instances.are_given() {
            return instances.end(id.as_str(), (&who, &why), fleet, output.is_json()).await;
        }
        adjustments_of(&place)?.end(&id, By { who: &who, why: &why, role: ROLE }, true).await?;
        print(&match output.is_json() {
            true => format!("{}\n", json!({ "ended": id.as_str() })),
            false => format!("ended {id}\n"),
        })
    }
}

/// Creates the part of the service that handles adjustments. It decides no requests here.
fn adjustments_of(place: &Place) -> anyhow::Result<adjustment::Adjustments<AnyStore>> {
    let Some(redis) = place.store.redis()? else {
        bail!("no REDIS_URL: adjustments are in the service's memory; set REDIS_URL, or name the service by --address");
    };
    let rules = place.rules()?;
    let metrics = Arc::new(Metrics::new(1.0)?);
    let local = Arc::new(MemoryStore::default());
    let store = Arc::new(AnyStore::new(Arc::clone(&local)));
    let limiter = Limiter::new(LimiterOptions::default(), store, local, Arc::clone(&metrics));
    limiter.put_in_force(rules);
    let adjustments = AdjustmentStore::Redis(Box::new(RedisAdjustments::new(&Route::start(redis)?)));
    Ok(adjustment::Adjustments::new(Arc::new(limiter), metrics, adjustments))
}
