//! Remarks on the settings before a command runs: all at once, and only those about settings that the command reads.

use std::collections::BTreeSet;

use super::arguments::Read;
use crate::engine::plan::CounterKeys;
use crate::settings::{
    self, Backend, ConfigType, Environment, Given, KeyNames, Misspelt, Mistake, RedisTlsSettings, Settings,
    SettingsError, Unsupported,
};
use crate::store::redis::topology::address::RedisAddress;

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
        let redis = set("REDIS_URL").filter(|_| settings.store.backend_type == Some(Backend::Memory));
        let redis = redis
            .map(|given| format!("{given} does nothing: BACKEND_TYPE is memory, so each instance counts on its own"));
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
        let idle = settings.tls.without_effect();
        let idle = self.given.iter().filter(|given| given.is_one_of(&idle));
        let idle: Vec<_> =
            idle.map(|given| format!("{given} ({}) does nothing: GRPC_SERVER_USE_TLS is off", given.origin)).collect();
        let traces = settings.tracing.remarks();
        let traces = traces.iter().filter_map(|(name, remark)| {
            let given = set(name)?;
            Some(format!("{given} ({}) {remark}", given.origin))
        });
        let decisions = settings.decisions.without_effect();
        let decisions = decisions.iter().filter_map(|(name, why)| {
            let given = set(name)?;
            Some(format!("{given} ({}) does nothing: {why}", given.origin))
        });
        let tolerated = self.given.iter().filter_map(|given| {
            let remark = settings::tolerated(given.variable.as_deref()?, &given.value())?;
            Some(format!("{given} ({}) {remark}", given.origin))
        });
        let tolerated: Vec<_> = tolerated.collect();
        let elsewhere = self.rules_elsewhere(settings);
        let elsewhere = elsewhere.into_iter().chain(self.of_redis(settings)).chain(decisions);
        let elsewhere: Vec<_> = elsewhere.collect();
        let warnings =
            redis.into_iter().chain(replicas).chain(idle).chain(names).chain(elsewhere).chain(tolerated).chain(traces);
        self.warnings.extend(warnings);
        self
    }

    /// Returns warnings about settings of a connection to Redis that is made in another way.
    fn of_redis(&self, settings: &Settings) -> Vec<String> {
        let Ok(Some(redis)) = settings.store.redis() else { return Vec::new() };
        let second = redis.per_second.as_ref().map(|second| &second.address);
        let tls = redis.address.is_secure() || second.is_some_and(RedisAddress::is_secure);
        let sentinel = redis.address.has_sentinels();
        let idle = self.given.iter().filter_map(|given| {
            let why = match given.variable.as_deref()? {
                name if RedisTlsSettings::FILES.contains(&name) && !tls => "neither REDIS_TLS nor REDIS_URL says TLS",
                "REDIS_SENTINEL_AUTH" if !sentinel => "REDIS_URL names no Sentinels",
                "REDIS_PERSECOND_SENTINEL_AUTH" if second.is_some_and(|second| !second.has_sentinels()) => {
                    "REDIS_PERSECOND_URL names no Sentinels"
                }
                "REDIS_PERSECOND" => return None,
                name if name.starts_with("REDIS_PERSECOND_") && second.is_none() => "REDIS_PERSECOND is off",
                _ => return None,
            };
            Some(format!("{given} ({}) does nothing: {why}", given.origin))
        });
        idle.collect()
    }

    /// Returns warnings about settings of a source of rules that is not in use.
    fn rules_elsewhere(&self, settings: &Settings) -> Vec<String> {
        let is_of_server = |name: &str| name.starts_with("CONFIG_GRPC_XDS_") || name.starts_with("XDS_CLIENT_");
        // Deployments of envoyproxy/ratelimit set its folders in any case, so those cause no warning.
        let is_of_files = |name: &str| name == "RULES";
        let (kind, is_idle): (_, &dyn Fn(&str) -> bool) = match settings.rules.config_type {
            ConfigType::File => ("FILE", &is_of_server),
            ConfigType::GrpcXdsSotw => ("GRPC_XDS_SOTW", &is_of_files),
        };
        let idle = self.given.iter().filter(|given| given.variable.as_deref().is_some_and(is_idle));
        idle.map(|given| format!("{given} does nothing: CONFIG_TYPE is {kind}")).collect()
    }

    /// Returns warnings about settings of counter names that have no effect with these names.
    fn of_names(&self, settings: &Settings) -> Vec<String> {
        let set = |name| self.given.iter().find(|given| given.variable.as_deref() == Some(name));
        let (keys, jitter) = (set("COUNTER_KEYS"), set("EXPIRATION_JITTER_MAX_SECONDS"));
        let jitter = jitter.filter(|_| settings.store.expiration_jitter_max_seconds > 0);
        let is_fixed = settings.reading.counts_by_fixed_windows();
        let keys = match (settings.store.counter_keys, settings.store.counter_keys()) {
            (KeyNames::Tollgate, _) => None,
            (KeyNames::Reference, CounterKeys::Tollgate) => keys.map(|given| {
                format!(
                    "{given} does nothing: envoyproxy/ratelimit cannot share counters in the memory of this process"
                )
            }),
            (KeyNames::Reference, CounterKeys::Reference { .. }) => keys.filter(|_| !is_fixed).map(|given| {
                format!(
                    "{given} does little: only limits with algorithm: fixed_window share their counters with \
                     envoyproxy/ratelimit; set DEFAULT_ALGORITHM=fixed_window"
                )
            }),
        };
        let jitter = jitter.filter(|_| settings.store.counter_keys() == CounterKeys::Tollgate).map(|given| {
            format!(
                "{given} does nothing: without COUNTER_KEYS=reference each counter expires soon after its own window"
            )
        });
        keys.into_iter().chain(jitter).collect()
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
