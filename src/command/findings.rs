//! What there is to say of the settings before a command does anything: all at once, and only what concerns it.

use std::collections::BTreeSet;

use super::arguments::Read;
use crate::settings::{self, Environment, Given, Misspelt, Mistake, SettingsError, Unsupported, Weight};

/// What was given, and what of it has no effect or cannot be.
pub(super) struct Findings {
    pub given: Vec<Given>,
    pub warnings: Vec<String>,
    pub mistakes: Vec<String>,
}

impl Findings {
    /// `errors` are those of settings that clap could read.
    pub fn new(read: Read, errors: &[SettingsError], environment: &Environment) -> Findings {
        let Read { given, mistakes, variables, .. } = read;
        let errors = errors.iter().map(|error| Mistake::of(error, &given));
        let mut mistakes: Vec<_> = mistakes.into_iter().chain(errors).map(|mistake| mistake.to_string()).collect();
        let mut warnings = misspelt(environment, &variables);
        for unsupported in settings::unsupported(environment, &variables) {
            let Unsupported { setting, advice, weight } = unsupported;
            match weight {
                Weight::Refused => mistakes.push(format!("{setting} (environment): {advice}")),
                Weight::Told => warnings.push(format!("{setting} (environment) does nothing: {advice}")),
            }
        }
        Findings { given, warnings, mistakes }
    }

    /// Says it on standard error. `false`: there is a mistake.
    #[must_use]
    pub fn tell(&self) -> bool {
        self.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        self.mistakes.iter().for_each(|mistake| eprintln!("error: {mistake}"));
        self.mistakes.is_empty()
    }
}

fn misspelt(environment: &Environment, variables: &BTreeSet<String>) -> Vec<String> {
    let line = |Misspelt { variable, meant }| {
        format!("{variable} (environment) does nothing: did you mean {}?", meant.join(" or "))
    };
    settings::misspelt(environment, variables).into_iter().map(line).collect()
}
