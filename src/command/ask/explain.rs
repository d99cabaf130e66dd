//! `tollgate explain`: why a request is limited or not, by rules files or by a running service.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::time::Instant;

use crate::command::live::admin_port::{AdminPort, Service, question};
use crate::command::output::{NOTHING_APPLIES, Output, print};
use crate::command::redis::adjustment;
use crate::engine::adjustment::InForce;
use crate::engine::check::StoreError;
use crate::engine::clock::Clock as _;
use crate::engine::descriptor::{Entry, Override};
use crate::engine::explain::{self, Explanation, Verdict};
use crate::engine::plan::{Plan, PlanOptions};
use crate::engine::printable::printable_lines;
use crate::inspect;
use crate::inspect::next_pass;
use crate::settings::{Deciding, Reading, RulesSettings, SettingsError, StoreSettings};
use crate::sources::files::load;
use crate::store::Store as _;
use crate::store::lease::Leases;
use crate::store::memory::SystemClock;
use crate::store::redis::topology::config::RedisConfig;
use crate::store::redis::{self, RedisStore};
use crate::store::share::Shares;
use crate::telemetry::{self, LogFormat, LogLevels};

/// Explain why a request is limited or not; nothing is counted.
///
/// Shows level by level which rules the entries match, the nearest miss if they match none, the limits that apply and
/// the origin of each of their parts, their counters, and the answer that a request would get. Reads rules files with
/// the settings of the service, and counters in Redis if REDIS_URL is set. With --address, it asks a running service
/// instead.
///
/// Exits with 0 if the request would pass, 2 if it would be limited, 3 if no limit applies, and 1 if there is no
/// explanation or the call would fail.
#[derive(Args)]
pub(crate) struct Explain {
    /// Entries of the descriptor; a lone + starts another descriptor.
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<String>,

    /// Domain of the rules.
    #[arg(long, short)]
    domain: String,

    /// Limit that the request brings along for each descriptor, in place of the rules: 5/minute, or 5/30second.
    #[arg(long, value_name = "N/UNIT", value_parser = super::limit)]
    limit: Option<Override>,

    #[command(flatten)]
    service: Service,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    deciding: Deciding,

    #[command(flatten)]
    store: StoreSettings,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(explain: Explain) -> anyhow::Result<ExitCode> {
    let _logs = telemetry::init(&LogLevels::of_command(&[redis::LOG_TARGET]), LogFormat::Text);
    let descriptors = explain.entries.split(|word| word == "+").map(inspect::entries).collect::<Result<Vec<_>, _>>()?;
    if descriptors.iter().any(Vec::is_empty) {
        bail!("a descriptor needs at least one entry: write KEY=VALUE before and after each +");
    }
    let explanation = match explain.service.port() {
        Some(port) => explain.by_service(&port, &descriptors).await?,
        None => explain.by_files(descriptors).await?,
    };
    print(&match explain.output.is_json() {
        true => serde_json::to_string(&explanation)? + "\n",
        false => printable_lines(&explanation.to_string()),
    })?;
    Ok(match explanation.answer {
        Verdict::Deny => ExitCode::from(2),
        Verdict::Pass | Verdict::Unknown if !explanation.applies() => ExitCode::from(NOTHING_APPLIES),
        Verdict::Pass => ExitCode::SUCCESS,
        // A script asks before it acts, so an unknown verdict is not a yes.
        Verdict::Fail | Verdict::Unknown => ExitCode::FAILURE,
    })
}

impl Explain {
    /// Returns the errors in settings that clap does not detect.
    pub(crate) fn errors(&self) -> Vec<SettingsError> {
        self.store.redis().err().filter(|_| !self.service.is_given()).into_iter().collect()
    }

    async fn by_files(&self, descriptors: Vec<Vec<Entry>>) -> anyhow::Result<Explanation> {
        let sources = self.rules.sources().context("or ask a running service: --address http://localhost:8080")?;
        let rules = load::load(&sources, &self.reading.load_options())?.rules;
        let options = PlanOptions {
            key_prefix: self.store.cache_key_prefix.clone(),
            counter_keys: self.store.counter_keys(),
            ..self.deciding.plan_options()
        };
        let request = explain::request(&self.domain, descriptors, self.limit);
        let names = options.counter_keys.names(|| SystemClock.now());
        let redis = self.store.redis()?;
        let adjustments = match &redis {
            Some(redis) => adjustment::in_force(redis).await,
            None => InForce::default(),
        };
        let explanation = Explanation::adjusted((&rules, Some(&adjustments)), &options, &request, names);
        let plan = Plan::adjusted(&options, (&rules, Some(&adjustments)), &request, names).peek();
        Ok(match redis {
            _ if !explanation.reads() => explanation,
            None => explanation.without_state(
                "counters are in the service's memory unless REDIS_URL is set: ask the service, see --address",
            ),
            Some(redis) => with_redis(explanation, plan, redis).await?,
        })
    }

    async fn by_service(&self, port: &AdminPort<'_>, descriptors: &[Vec<Entry>]) -> anyhow::Result<Explanation> {
        let query = question(&self.domain, self.limit, descriptors);
        match port.get(&format!("/explain?{query}")).await? {
            Some(explanation) => Ok(explanation),
            None => bail!("{} does not serve /explain: start the service with ADMIN_API=true", port.address),
        }
    }
}

/// Reads the counters. The service may be able to read counters that this command cannot, so failure modes are left out
/// here.
async fn with_redis(explanation: Explanation, plan: Plan<'_>, redis: RedisConfig) -> anyhow::Result<Explanation> {
    let timeout = redis.timeout;
    let store = Shares::of_command(Leases::of_command(RedisStore::start(redis, Box::new(|_| {})).await?));
    Ok(match store.check(plan.asked(), Instant::now() + timeout).await {
        Ok(verdicts) => {
            let decision = plan.conclude(&verdicts);
            let next_after_ms = next_pass::next_after_ms(&decision, &store, Instant::now() + timeout).await;
            explanation.answered(&decision, &next_after_ms)
        }
        Err(StoreError::Down(cause)) => explanation.without_state(&format!("Redis is down, {cause}")),
        Err(error) => explanation.without_state(&format!("Redis did not answer: {error}")),
    })
}
