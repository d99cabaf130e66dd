//! The settings that commands on Redis share.

use clap::Args;

use crate::engine::rules::Rules;
use crate::settings::{Reading, RulesSettings, SettingsError, StoreSettings};
use crate::sources::files::load;

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
}
