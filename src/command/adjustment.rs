//! `tollgate scale`, `tollgate adjust` and `tollgate adjustments`: what is changed about limits for a while, in Redis
//! and without the service.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use clap::{ArgGroup, Args, Subcommand};

use crate::adjustment::{Id, InForce, Shown, Written};
use crate::counters;
use crate::limiter::{Limiter, LimiterOptions};
use crate::metrics::Metrics;
use crate::rules::load;
use crate::settings::{Reading, RulesSettings, SettingsError, StoreSettings};
use crate::steering::{self, By, Steering};
use crate::store::adjustments::{AdjustmentStore, Command};
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, RedisAdjustments, RedisConfig};
use crate::telemetry::{self, LogFormat, LogLevels, Logs};

/// What the log calls the right by which a command changes something.
const ROLE: &str = "command";

/// Scale limits for a while: 10% lets a tenth pass.
///
/// For all replicas within a second, through Redis. A limit lets at least one hit pass whatever the share. Exits
/// with 0 if it holds, and with 1 otherwise.
#[derive(Args)]
pub(super) struct Scale {
    /// The share of what the rules say, such as 10% or 2.5%, from 0.01% to 10000%.
    #[arg(value_name = "SHARE")]
    share: String,

    #[command(flatten)]
    of: Of,
}

#[derive(Subcommand)]
pub(super) enum Adjust {
    /// Give a rule, or one descriptor, another number.
    Number(Number),
    /// Let requests pass whatever they ask; nothing is counted.
    Pass(Of),
    /// Deny requests, whatever mode their rule is in; nothing is counted.
    Block(Of),
    /// Let denials deny requests, whatever mode their rule is in.
    Enforce(Of),
    /// Let denials deny no request.
    Shadow(Of),
    /// End an adjustment before its time.
    End(End),
}

#[derive(Args)]
pub(super) struct Number {
    /// The number, from 1 on.
    #[arg(value_name = "NUMBER")]
    number: u32,

    #[command(flatten)]
    of: Of,
}

/// What an adjustment is for, and what there is to say about it.
#[derive(Args)]
#[command(group(ArgGroup::new("target").required(true).args(["domain", "all"])))]
pub(super) struct Of {
    /// The entries of the one descriptor that it is for.
    #[arg(value_name = "KEY=VALUE", requires = "domain", conflicts_with = "rule")]
    entries: Vec<String>,

    /// The domain that it is for.
    #[arg(long, short)]
    domain: Option<String>,

    /// It is for everything: every limit of every domain.
    #[arg(long)]
    all: bool,

    /// The rule that it is for: its path, or what a limit is called in metrics.
    #[arg(long, requires = "domain")]
    rule: Option<String>,

    /// How long it holds, from 1s to 7d.
    #[arg(long = "for", value_name = "DURATION")]
    lasts: String,

    #[command(flatten)]
    said: Said,

    /// What it is called. Given again, it is begun once. Unset: one is chosen.
    #[arg(long)]
    id: Option<String>,

    #[command(flatten)]
    place: Box<Place>,
}

#[derive(Args)]
pub(super) struct End {
    /// What it is called.
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    said: Said,

    #[command(flatten)]
    place: Box<Place>,
}

/// List the adjustments in force.
///
/// Exits with 0 if it lists them, and with 1 otherwise.
#[derive(Args)]
pub(super) struct Adjustments {
    /// Print them as a JSON array.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Box<Place>,
}

/// What the log and every list tell.
#[derive(Args)]
pub(super) struct Said {
    /// Why, in a few words.
    #[arg(long)]
    why: String,

    /// Who does it. Unset: $USER.
    #[arg(long, env = "USER", value_name = "NAME")]
    who: String,
}

/// By which rules, in which Redis: with the settings of the service they are the service's.
#[derive(Args)]
pub(super) struct Place {
    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    store: StoreSettings,
}

impl Adjust {
    fn place(&self) -> &Place {
        match self {
            Adjust::Number(Number { of, .. })
            | Adjust::Pass(of)
            | Adjust::Block(of)
            | Adjust::Enforce(of)
            | Adjust::Shadow(of) => &of.place,
            Adjust::End(End { place, .. }) => place,
        }
    }

    /// What is wrong with settings that can be read.
    pub(super) fn errors(&self) -> Vec<SettingsError> {
        self.place().errors()
    }
}

impl Scale {
    /// What is wrong with settings that can be read.
    pub(super) fn errors(&self) -> Vec<SettingsError> {
        self.of.place.errors()
    }
}

impl Adjustments {
    /// What is wrong with settings that can be read.
    pub(super) fn errors(&self) -> Vec<SettingsError> {
        self.place.errors()
    }
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn scale(Scale { share, of }: Scale) -> anyhow::Result<ExitCode> {
    let _logs = logs();
    let effect = Written { effect: "scale".to_owned(), share: Some(share), ..Written::default() };
    of.begin(effect).await
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn adjust(adjust: Adjust) -> anyhow::Result<ExitCode> {
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
pub(super) async fn list(Adjustments { json, place }: Adjustments) -> anyhow::Result<ExitCode> {
    let _logs = logs();
    let steering = place.steering()?;
    steering.read().await.context("the adjustments cannot be read")?;
    let list = steering.list();
    super::print(&match json {
        true => serde_json::to_string(&list)? + "\n",
        false if list.is_empty() => "no adjustment is in force\n".to_owned(),
        false => list.iter().map(|shown| format!("{shown}\n")).collect::<String>(),
    })
}

/// The adjustments that the service has by this Redis; none where that does not tell: then its counters tell why.
pub(super) async fn in_force(redis: &RedisConfig) -> InForce {
    let Ok(adjustments) = RedisAdjustments::new(redis.clone()) else { return InForce::default() };
    adjustments.ask(0, Command::Read).await.map(|reply| reply.in_force()).unwrap_or_default()
}

/// What goes wrong is logged as the service logs it, until this is dropped.
fn logs() -> Logs {
    telemetry::init(&LogLevels::of_command(&[redis::LOG_TARGET, steering::LOG_TARGET]), LogFormat::Text)
}

impl Of {
    async fn begin(self, effect: Written) -> anyhow::Result<ExitCode> {
        let Of { entries, domain, all, rule, lasts, said: Said { why, who }, id, place } = self;
        let entries = counters::entries(&entries)?;
        let written = Written { id, everything: all, domain, rule, entries, who, why, lasts: Some(lasts), ..effect };
        let shown: Shown = place.steering()?.begin(&written, ROLE).await?;
        println!("{shown}");
        Ok(ExitCode::SUCCESS)
    }
}

impl End {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let End { id, said: Said { why, who }, place } = self;
        let id = Id::parse(&id).ok_or_else(|| anyhow!("no adjustment has such an id: see tollgate adjustments"))?;
        place.steering()?.end(&id, By { who: &who, why: &why, role: ROLE }).await?;
        println!("{id} is ended");
        Ok(ExitCode::SUCCESS)
    }
}

impl Place {
    fn errors(&self) -> Vec<SettingsError> {
        [self.rules.sources().err(), self.store.redis().err()].into_iter().flatten().collect()
    }

    /// What the service would do, of which nothing decides here.
    fn steering(&self) -> anyhow::Result<Steering<MemoryStore>> {
        let Some(redis) = self.store.redis()? else {
            bail!("adjustments in memory are the service's own: set REDIS_URL, or ask the service (see ADMIN_API)");
        };
        let rules = load::load(&self.rules.sources()?, &self.reading.load_options())?.rules;
        let metrics = Arc::new(Metrics::new(1.0)?);
        let store = Arc::new(MemoryStore::default());
        let local = Arc::clone(&store);
        let limiter = Limiter::new(LimiterOptions::default(), store, local, Arc::clone(&metrics));
        limiter.put_in_force(rules);
        let adjustments = AdjustmentStore::Redis(Box::new(RedisAdjustments::new(redis)?));
        Ok(Steering::new(Arc::new(limiter), metrics, adjustments))
    }
}
