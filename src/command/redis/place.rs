//! The settings that commands on Redis share.

use std::time::Duration;

use anyhow::bail;
use clap::Args;

use super::adjustment;
use crate::command::output::errln;
use crate::engine::adjustment::InForce;
use crate::engine::plan::PlanOptions;
use crate::engine::rules::Rules;
use crate::settings::{Environment, Reading, RulesSettings, SettingsError, StoreSettings};
use crate::shared::adjustment::audit::{self, Note};
use crate::shared::adjustment::redis::RedisAdjustments;
use crate::sources::files::load;
use crate::store::lease::Leases;
use crate::store::redis::RedisStore;
use crate::store::redis::topology::config::RedisConfig;
use crate::store::redis::topology::route::Route;
use crate::store::share::Shares;

/// Rules and Redis to work on. With the settings of the service, they are those of the service.
#[derive(Args)]
pub(crate) struct Place {
    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    pub(super) store: StoreSettings,
}

impl Place {
    /// Returns the errors in settings that clap does not detect.
    pub(super) fn errors(&self) -> Vec<SettingsError> {
        [self.rules.sources().err(), self.store.redis().err()].into_iter().flatten().collect()
    }

    /// Loads the rules.
    pub(super) fn rules(&self) -> anyhow::Result<Rules> {
        Ok(load::load(&self.rules.sources()?, &self.reading.load_options())?.rules)
    }

    /// Opens the place for a command that asks counters as the service does.
    ///
    /// # Errors
    /// If there is no Redis, or the rules cannot be loaded.
    pub(super) fn open(&self) -> anyhow::Result<Opened> {
        let Some(redis) = self.store.redis()? else {
            bail!(
                "no REDIS_URL: counters are in the service's memory; set REDIS_URL, or name the service by --address"
            );
        };
        let (key_prefix, counter_keys) = (redis.key_prefix.clone(), self.store.counter_keys());
        let options = PlanOptions { key_prefix, counter_keys, ..PlanOptions::default() };
        Ok(Opened { rules: self.rules()?, options, redis })
    }
}

/// What a command needs to ask counters.
pub(super) struct Opened {
    pub(super) rules: Rules,
    pub(super) options: PlanOptions,
    pub(super) redis: RedisConfig,
}

impl Opened {
    /// Returns the longest wait for Redis.
    pub(super) fn timeout(&self) -> Duration {
        self.redis.timeout
    }

    /// Returns the adjustments in force.
    pub(super) async fn adjustments(&self) -> InForce {
        adjustment::in_force(&self.redis).await
    }

    /// Connects to Redis.
    pub(super) async fn store(&self) -> anyhow::Result<Shares<Leases<RedisStore>>> {
        let store = RedisStore::start(self.redis.clone(), Box::new(|_| {})).await?;
        Ok(Shares::of_command(Leases::of_command(store)))
    }

    /// Records in the audit trail what the command has done. It is done, even if this fails.
    pub(super) async fn record(&self, action: audit::Action, note: Note) {
        let who = Environment::of_process().get("USER").map(str::to_owned);
        let note = Note { who, role: Some(adjustment::ROLE.to_owned()), ..note };
        let recorded = match Route::start(self.redis.clone()) {
            Ok(route) => RedisAdjustments::new(&route).record(action, Duration::ZERO, &note.ready()).await,
            Err(error) => return errln!("warning: this is not in the audit trail: {error}"),
        };
        if let Err(error) = recorded {
            errln!("warning: this is not in the audit trail: {error}");
        }
    }
}
