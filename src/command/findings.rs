//! Remarks on the settings before a command runs: all at once, and only those about settings that the command reads.

use std::collections::BTreeSet;

use super::arguments::Read;
use super::output::errln;
use crate::engine::plan::CounterKeys;
use crate::settings::{self, Environment, Given, Misspelt, Mistake, Settings, SettingsError, Unsupported};

/// Given values, with their warnings and mistakes.
pub(super) struct Findings {
    pub given: Vec<Given>,
    pub warnings: Vec<String>,
    pub mistakes: Vec<String>,
}

impl Findings {
    /// Collects the findings. `errors` are those of settings that clap could read.
    pub fn new(read: Read, errors: &[SettingsError], environment: &Environment) -> Findings {
        Findings::of_errors(read, &errors.iter().collect::<Vec<_>>(), environment)
    }

    /// Collects the findings of borrowed errors.
    pub fn of_errors(read: Read, errors: &[&SettingsError], environment: &Environment) -> Findings {
        let Read { given, mistakes, variables, .. } = read;
        let errors = errors.iter().map(|error| Mistake::of(error, &given));
        let mistakes: Vec<_> = mistakes.into_iter().chain(errors).map(|mistake| mistake.to_string()).collect();
        let mut warnings = misspelt(environment, &variables);
        for unsupported in settings::unsupported(environment, &variables) {
            let Unsupported { setting, advice } = unsupported;
            warnings.push(format!("{setting} (environment) does nothing: {advice}"));
        }
        Findings { given, warnings, mistakes }
    }

    /// Adds conflicts between the service's settings.
    pub fn of_service(mut self, settings: &Settings, environment: &Environment) -> Findings {
        let set = |name| self.given.iter().find(|given| given.variable.as_deref() == Some(name));
        let expected = set("EXPECTED_REPLICAS").map(|_| settings.deciding.expected_replicas);
        let in_memory = self.mistakes.is_empty() && matches!(settings.store.redis(), Ok(None));
        let sign = in_memory.then(|| settings::sign_of_replicas(environment, expected)).flatten();
        let replicas = sign.map(|sign| {
            format!(
                "counters are in the memory of this process, but {sign}: each instance counts on its own, so N \
                 instances allow N times each limit; set REDIS_URL, or EXPECTED_REPLICAS=1 if there is only one"
            )
        });
        let names = self.of_names(settings);
        let idle = settings::without_effect(settings, &self.given).into_iter();
        let idle: Vec<_> = idle.map(|(given, why)| format!("{given} ({}) does nothing: {why}", given.origin)).collect();
        let traces = settings.tracing.remarks();
        let traces = traces.iter().filter_map(|(name, remark)| {
            let given = set(name)?;
            Some(format!("{given} ({}) {remark}", given.origin))
        });
        let tolerated = self.given.iter().filter_map(|given| {
            let remark = settings::tolerated(given.variable.as_deref()?, &given.value())?;
            Some(format!("{given} ({}) {remark}", given.origin))
        });
        let tolerated: Vec<_> = tolerated.collect();
        let warnings = replicas.into_iter().chain(idle).chain(names).chain(tolerated).chain(traces);
        self.warnings.extend(warnings);
        self
    }

    /// Returns a warning if the names of counters have little effect with these rules.
    fn of_names(&self, settings: &Settings) -> Option<String> {
        let given = self.given.iter().find(|given| given.is_one_of(&["COUNTER_KEYS"]))?;
        let shares = settings.store.counter_keys() != CounterKeys::Tollgate;
        (shares && !settings.reading.counts_by_fixed_windows()).then(|| {
            format!(
                "{given} does little: only limits with algorithm: fixed_window share their counters with \
                 envoyproxy/ratelimit; set DEFAULT_ALGORITHM=fixed_window"
            )
        })
    }

    /// Adds words that the service ignores.
    pub fn without_effect(mut self, ignored: &[String]) -> Findings {
        self.warnings
            .extend(ignored.iter().map(|word| format!("{word} (command line) does nothing: no such argument")));
        self
    }

    /// Prints the findings on standard error. Returns `false` if there is a mistake.
    #[must_use]
    pub fn tell(&self) -> bool {
        self.warnings.iter().for_each(|warning| errln!("warning: {warning}"));
        self.mistakes.iter().for_each(|mistake| errln!("error: {mistake}"));
        self.mistakes.is_empty()
    }
}

fn misspelt(environment: &Environment, variables: &BTreeSet<String>) -> Vec<String> {
    let line = |Misspelt { variable, meant }| {
        format!("{variable} (environment) does nothing: did you mean {}?", meant.join(" or "))
    };
    settings::misspelt(environment, variables).into_iter().map(line).collect()
}
