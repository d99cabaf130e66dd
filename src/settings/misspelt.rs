//! Variables with names that resemble a setting. Without a warning they would silently do nothing.
//!
//! False alarms cost trust, so only close names count: one wrong letter in a short name and two in a long one, another
//! case, other or missing underscores, a prefix, and the names that other programs use for the same setting.

use std::collections::BTreeSet;

use super::Environment;
use super::given::on_one_line;
use super::links::is_service_link;
use super::reference;

/// A variable without effect, and the settings that were probably meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misspelt {
    /// The name that is set.
    pub variable: String,
    /// Existing names; several if they are equally close.
    pub meant: Vec<String>,
}

/// Prefixes that people add to the names of one program's settings.
const PREFIXES: &[&str] = &["TOLLGATE", "RATELIMIT"];

/// Names in other programs, and the setting here.
const SYNONYMS: &[(&[&str], &str)] = &[
    (
        &[
            "REDIS_ADDR",
            "REDIS_ADDRESS",
            "REDIS_CONNECTION_STRING",
            "REDIS_DATABASE",
            "REDIS_DB",
            "REDIS_DSN",
            "REDIS_ENDPOINT",
            "REDIS_HOST",
            "REDIS_HOSTNAME",
            "REDIS_PORT",
            "REDIS_SERVER",
            "REDIS_SOCKET",
            "REDISCLOUD_URL",
        ],
        "REDIS_URL",
    ),
    (&["REDIS_PASS", "REDIS_PASSWORD", "REDIS_USER", "REDIS_USERNAME"], "REDIS_AUTH"),
    (&["REDIS_SSL", "REDIS_TLS_ENABLED", "REDIS_USE_SSL", "REDIS_USE_TLS"], "REDIS_TLS"),
    (&["REDIS_CA_CERT", "REDIS_TLS_CA", "REDIS_TLS_CA_CERT", "REDIS_TLS_CA_FILE"], "REDIS_TLS_CACERT"),
    (&["REDIS_TLS_SAN", "REDIS_TLS_SNI"], "REDIS_TLS_SERVER_NAME"),
    (&["REDIS_PASSWORD_FILE", "REDIS_TOKEN_FILE"], "REDIS_AUTH_FILE"),
    (&["REDIS_SENTINEL_PASSWORD"], "REDIS_SENTINEL_AUTH"),
    (&["REDIS_CLUSTER", "REDIS_MODE"], "REDIS_TYPE"),
    (&["KEY_PREFIX", "REDIS_KEY_PREFIX", "REDIS_PREFIX"], "CACHE_KEY_PREFIX"),
    (&["REDIS_CONNECTIONS", "REDIS_MAX_CONNECTIONS"], "REDIS_POOL_SIZE"),
    (&["RULES_DIR", "RULES_DIRECTORY", "RULES_FILE", "RULES_FOLDER", "RULES_PATH"], "RULES"),
    (&["STORE_TYPE", "STORAGE_BACKEND"], "BACKEND_TYPE"),
    (&["LOGGING_LEVEL", "LOG_VERBOSITY", "RUST_LOG"], "LOG_LEVEL"),
    (&["LOGGING_FORMAT"], "LOG_FORMAT"),
    (&["GRPC_ADDR", "GRPC_ADDRESS", "GRPC_BIND", "GRPC_LISTEN"], "GRPC_HOST"),
    (&["GRPC_SERVER_PORT"], "GRPC_PORT"),
    (&["HTTP_ADDR", "HTTP_ADDRESS"], "HOST"),
    (&["HTTP_PORT", "METRICS_PORT", "ADMIN_PORT"], "PORT"),
    (&["REPLICAS", "REPLICA_COUNT"], "EXPECTED_REPLICAS"),
    (&["TOKIO_WORKER_THREADS", "WORKERS"], "WORKER_THREADS"),
    (&["DEFAULT_FAILURE_MODE", "FAILURE_MODE_DENY"], "FAILURE_MODE"),
    (&["SHUTDOWN_GRACE_PERIOD", "DRAIN_TIMEOUT"], "SHUTDOWN_TIMEOUT"),
    (&["DRY_RUN"], "SHADOW_MODE"),
];

/// Prefix of OpenTelemetry's names for logs: one letter away from those for spans.
const OF_LOGS: &str = "OTEL_BLRP_";

/// Returns the variables that were probably meant for one of `concerned`, the settings that a command reads, in the
/// order of the names.
pub fn misspelt(environment: &Environment, concerned: &BTreeSet<String>) -> Vec<Misspelt> {
    let settings = super::names();
    let known: Vec<String> = settings.iter().cloned().chain(reference::names().map(str::to_owned)).collect();
    let is_known = |name: &str| settings.contains(name) || reference::is_name(name) || name.starts_with(OF_LOGS);
    let is_read = |name: &String| concerned.contains(reference::closest(name).unwrap_or(name));
    let unknown = environment.iter().filter(|(name, value)| !is_known(name) && !is_service_link(name, value));
    let meant = |variable: &str| {
        let given = without_prefix(variable);
        match synonym(&given) {
            // If the setting itself is set, the other variable belongs to another program.
            Some(meant) if environment.get(meant).is_some() => Vec::new(),
            Some(meant) => vec![meant.to_owned()],
            None => nearest(&given, &known),
        }
    };
    let found = unknown.map(|(variable, _)| Misspelt { variable: on_one_line(variable), meant: meant(variable) });
    found.filter(|found| found.meant.iter().any(is_read)).collect()
}

/// Returns the letters of a name without the prefix of the program.
fn without_prefix(variable: &str) -> String {
    let squeezed = squeezed(variable);
    PREFIXES.iter().find_map(|prefix| squeezed.strip_prefix(prefix)).unwrap_or(&squeezed).to_owned()
}

fn synonym(given: &str) -> Option<&'static str> {
    let is_given = |names: &[&str]| names.iter().any(|name| squeezed(name) == given);
    SYNONYMS.iter().find(|(names, _)| is_given(names)).map(|(_, meant)| *meant)
}

/// Returns the closest known names, if they are close enough.
fn nearest(given: &str, known: &[String]) -> Vec<String> {
    /// Longer than every name. Comparing takes time.
    const LONGEST: usize = 100;
    // Names of settings have no digits, so a name with a digit belongs to another program.
    if given.len() > LONGEST || given.bytes().any(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    let near = known.iter().filter_map(|name| Some((distance(given, &squeezed(name))?, name)));
    let mut near: Vec<_> = near.collect();
    let least = near.iter().map(|(distance, _)| *distance).min();
    near.retain(|(distance, _)| Some(*distance) == least);
    near.into_iter().map(|(_, name)| name.clone()).collect()
}

/// Returns the number of wrong letters; `None` if there are too many.
fn distance(given: &str, name: &str) -> Option<usize> {
    let wrong = strsim::osa_distance(given, name);
    let near_enough = match name.len() {
        // `HOST` is close to many words: only swapped letters count.
        0..=4 => wrong == 0 || wrong == 1 && sorted(given) == sorted(name),
        5..=11 => wrong <= 1,
        _ => wrong <= 2,
    };
    near_enough.then_some(wrong)
}

/// Returns the letters alone: `redis-url`, `REDISURL` and `REDIS__URL` are equal.
fn squeezed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|char| char.to_ascii_uppercase()).collect()
}

fn sorted(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.sort_unstable();
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::*;
    use crate::settings;

    fn meant(variable: &str, value: &str) -> Vec<String> {
        let environment = [(variable, value)].into_iter().collect();
        misspelt(&environment, &settings::names()).into_iter().flat_map(|found| found.meant).collect()
    }

    #[test]
    fn what_people_write_is_understood() {
        for (variable, value, name) in [
            ("REDIS_ULR", "a:1", "REDIS_URL"),
            ("REDIS_URI", "a:1", "REDIS_URL"),
            ("REDISURL", "a:1", "REDIS_URL"),
            ("redis_url", "a:1", "REDIS_URL"),
            ("TOLLGATE_REDIS_URL", "a:1", "REDIS_URL"),
            ("TOLLGATE_REDIS_ULR", "a:1", "REDIS_URL"),
            ("TOLLGATE_REDIS_HOST", "a", "REDIS_URL"),
            ("redis_password", "x", "REDIS_AUTH"),
            ("REDIS_HOST", "a", "REDIS_URL"),
            ("REDIS_PORT", "6379", "REDIS_URL"),
            ("REDIS_PASSWORD", "x", "REDIS_AUTH"),
            ("REDIS_SSL", "true", "REDIS_TLS"),
            ("RULE", "rules", "RULES"),
            ("RULES_PATH", "rules", "RULES"),
            ("LOGLEVEL", "debug", "LOG_LEVEL"),
            ("RUST_LOG", "debug", "LOG_LEVEL"),
            ("PROT", "80", "PORT"),
            ("TOLLGATE_PORT", "80", "PORT"),
            ("RATELIMIT_GRPC_PORT", "80", "GRPC_PORT"),
            ("EXPECTED_REPLICA", "2", "EXPECTED_REPLICAS"),
            ("REDIS_PRESECOND_URL", "a:1", "REDIS_PERSECOND_URL"),
        ] {
            assert_eq!(meant(variable, value), [name], "{variable}");
        }
    }

    #[test]
    fn what_an_application_calls_it_is_no_mistake_beside_the_right_name() {
        let environment = [("REDIS_HOST", "a"), ("REDIS_URL", "a:1")].into_iter().collect();
        assert_eq!(misspelt(&environment, &settings::names()), []);
    }

    /// Variables that other programs, shells, orchestrators and CI set where Tollgate runs.
    const ELSEWHERE: &str = include_str!("../../tests/settings/elsewhere.env");

    #[test]
    fn what_others_set_for_themselves_is_no_mistake() {
        let lines = ELSEWHERE.lines().filter(|line| !line.starts_with('#'));
        let environment: Environment = lines.filter_map(|line| line.split_once('=')).collect();
        assert!(environment.iter().count() > 150);
        assert_eq!(misspelt(&environment, &settings::names()), []);
    }

    /// A kind of typing mistake in a name.
    #[derive(Clone, Debug)]
    enum Slip {
        Swap(Index),
        Lose(Index),
        Twice(Index),
        Case,
        NoUnderscore,
        Prefix,
    }

    fn slipped(name: &str, slip: Slip) -> String {
        let mut letters: Vec<char> = name.chars().collect();
        match slip {
            Slip::Swap(at) => {
                let at = at.index(letters.len() - 1);
                letters.swap(at, at + 1);
            }
            // A short name without one letter is another word.
            Slip::Lose(at) if letters.len() > 4 => drop(letters.remove(at.index(letters.len()))),
            Slip::Twice(at) if letters.len() > 4 => {
                let at = at.index(letters.len());
                letters.insert(at, letters[at]);
            }
            Slip::Lose(_) | Slip::Twice(_) | Slip::Case => return name.to_lowercase(),
            Slip::NoUnderscore => letters.retain(|char| *char != '_'),
            Slip::Prefix => return format!("TOLLGATE_{name}"),
        }
        letters.into_iter().collect()
    }

    proptest! {
        #[test]
        fn a_slip_in_any_setting_is_noticed(
            name in select(settings::names().into_iter().collect::<Vec<_>>()),
            slip in prop_oneof![
                any::<Index>().prop_map(Slip::Swap),
                any::<Index>().prop_map(Slip::Lose),
                any::<Index>().prop_map(Slip::Twice),
                Just(Slip::Case),
                Just(Slip::NoUnderscore),
                Just(Slip::Prefix),
            ],
        ) {
            let wrong = slipped(&name, slip);
            prop_assume!(!settings::names().contains(&wrong));
            let meant = meant(&wrong, "1");
            prop_assert!(meant.contains(&name), "{wrong}: {meant:?}");
        }
    }
}
