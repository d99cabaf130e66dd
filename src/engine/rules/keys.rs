//! Declares every key of rules once: its section, the values it takes, its meaning, and the options that it conflicts
//! with.
//!
//! Sources look keys up here, hints and the table of [`pairs`](super::pairs) use them, and the JSON Schema for editors
//! is built from them. The options of a limit declare their own keys, in `options` and in `algorithm::options`.

use std::sync::LazyLock;

use super::checked::FailureMode;
use super::options::RuleOptions;
use super::section::{Key, Section, Takes, key};
use crate::algorithm::{Algorithm, Kind, Options};

/// The top level of a file.
pub static ROOT: Section = Section {
    name: "the file's top level",
    about: "The rules of one domain.",
    keys: &[&[
        key(
            "domain",
            Takes::Name,
            "What requests call it: the domain that Envoy's rate-limit filter is configured with.",
        ),
        key("defaults", Takes::One(&DEFAULTS), "What holds for the limits of this file that do not say otherwise."),
        key("descriptors", Takes::Many(&DESCRIPTOR), "The first entry of a request's descriptor is looked up here."),
    ]],
    required: &["domain"],
};

/// `defaults`.
pub static DEFAULTS: Section = Section {
    name: "defaults",
    about: "What holds for the limits of this file that do not say otherwise.",
    keys: &[&[
        key(
            "algorithm",
            Takes::Choice(default_algorithms),
            "How limits count. Without it the setting DEFAULT_ALGORITHM says so.",
        ),
        key(
            "failure_mode",
            Takes::Choice(failure_modes),
            "What limits answer while the store is unavailable. Without it the setting FAILURE_MODE says so.",
        ),
    ]],
    required: &[],
};

/// An item of `descriptors`.
pub static DESCRIPTOR: Section = Section {
    name: "a descriptor",
    about: "Matches one entry of a request's descriptor, and says what holds where that is the last one.",
    keys: &[&[
        key("key", Takes::Name, "The entry's key. It matches exactly; * stands for any characters."),
        key(
            "value",
            Takes::Text,
            "The entry's value. It matches exactly; * stands for any characters. Without it every value matches, and \
             each is counted for itself.",
        ),
        key("rate_limit", Takes::One(&RATE_LIMIT), "The limit of requests whose last entry this is."),
        key(
            "rate_limits",
            Takes::Many(&RATE_LIMIT),
            "Several limits instead of one: each must let a request pass, and what one of them denies is charged to \
             none.",
        )
        .example("[...]")
        .conflicts(&[(
            "concurrency",
            "among several limits none can count what is in progress: beside the key stream the others would count \
             each request for itself; let them stand on a descriptor without it",
        )]),
        key("descriptors", Takes::Many(&DESCRIPTOR), "The next entry is looked up here."),
        key(
            "share_threshold",
            Takes::Flag,
            "All values that match the wildcard share one counter, instead of one for each value.",
        ),
        key(
            "shadow_mode",
            Takes::Flag,
            "A dry run: the limit denies nothing, and what it would have denied is counted and reported.",
        )
        .example("true"),
        key("quota_mode", Takes::Flag, "Of a request's limits with quota_mode, all must deny it; one alone does not.")
            .example("true"),
        key(
            "detailed_metric",
            Takes::Flag,
            "The statistics that have envoyproxy/ratelimit's names tell the requests of this limit apart by the \
             values of all entries.",
        ),
        key(
            "value_to_metric",
            Takes::Flag,
            "The statistics that have envoyproxy/ratelimit's names tell the requests of the limits here and below \
             apart by the value of this entry.",
        ),
        key(
            "metadata",
            Takes::Mapping,
            "Whatever there is; an answer's dynamic metadata have it where the descriptor passes and \
             RESPONSE_DYNAMIC_METADATA is on.",
        ),
    ]],
    required: &["key"],
};

/// `rate_limit`, and an item of `rate_limits`.
pub static RATE_LIMIT: Section = Section {
    name: "rate_limit",
    about: "So many requests in a unit or period.",
    keys: &[OF_EVERY_LIMIT, &OF_ALGORITHMS, RuleOptions::KEYS],
    // Which keys are required depends on the others.
    required: &[],
};

/// Keys of every limit, with any algorithm.
const OF_EVERY_LIMIT: &[Key] = &[
    key("name", Takes::Text, "What answers and `replaces` call this limit.").example("per-user"),
    key(
        "unit",
        Takes::Unit,
        "The period by a name: a month has 30 days, a year 365; with time_zone both are as long as in the calendar.",
    )
    .example("day")
    .conflicts(&[
        ("unlimited", "an unlimited rule has no unit: remove one of the two"),
        (
            "concurrency",
            "concurrency has no unit: requests_per_unit is how many may be in progress at once; hold says how long a \
             slot stays taken that no stream releases",
        ),
    ]),
    key(
        "period",
        Takes::Length,
        "The period by its length, instead of a unit: 500ms, 90s, 15m or 1h30m; from 1ms to 366d.",
    )
    .example("90s")
    .conflicts(&[
        ("unit", "a limit has a unit or a period: remove one of the two"),
        ("unlimited", "an unlimited rule has no period: remove one of the two"),
        (
            "concurrency",
            "concurrency has no period: requests_per_unit is how many may be in progress at once; hold says how long \
             a slot stays taken that no stream releases",
        ),
    ]),
    key(
        "requests_per_unit",
        Takes::Number,
        "How many pass in the unit or period; of concurrency, how many may be in progress at once. 0 lets nothing \
         pass.",
    ),
    key("unlimited", Takes::Flag, "Requests that reach this are not limited.")
        .example("true")
        .conflicts(&[("rate_limits", "among several limits none can be unlimited: remove it")]),
    key(
        "replaces",
        Takes::Many(&REPLACES),
        "While this limit applies to a request, these limits of its other descriptors do not.",
    )
    .example("[{name: other}]"),
    key(
        "algorithm",
        Takes::Choice(algorithms),
        "How it counts. Without it the file's defaults say so, and then the setting DEFAULT_ALGORITHM.",
    ),
    key("hold", Takes::Length, "Of concurrency: how long a slot stays taken that nothing releases. Without it, 1m.")
        .example("5m"),
    key(
        "failure_mode",
        Takes::Choice(failure_modes),
        "What it answers while the store is unavailable: open lets pass, closed denies, local decides in this \
         process, error fails the call. Without it the file's defaults say so, and then the setting FAILURE_MODE.",
    )
    .example("closed"),
];

/// The options of algorithms.
static OF_ALGORITHMS: [Key; Options::ALL.len()] = {
    let mut keys = [OF_EVERY_LIMIT[0]; Options::ALL.len()];
    let mut index = 0;
    while index < keys.len() {
        let option = &Options::ALL[index];
        let takes = match option.kind {
            Kind::Number => Takes::Number,
            Kind::Flag => Takes::Flag,
            Kind::Length => Takes::Length,
            Kind::Choice(names) => Takes::Choice(names),
            Kind::TimeZone => Takes::Text,
        };
        keys[index] = key(option.name, takes, option.about).example(option.example).conflicts(option.conflicts);
        index += 1;
    }
    keys
};

/// An item of `replaces`.
pub static REPLACES: Section = Section {
    name: "an item of replaces",
    about: "A limit of the same domain, by its name.",
    keys: &[&[key("name", Takes::Name, "The limit's name.")]],
    required: &["name"],
};

/// Every section: the top level, and those that other keys take.
pub static SECTIONS: LazyLock<Vec<&'static Section>> = LazyLock::new(|| {
    let mut found: Vec<&'static Section> = vec![&ROOT];
    let mut next = 0;
    while let Some(section) = found.get(next).copied() {
        for key in section.keys() {
            if let Takes::One(below) | Takes::Many(below) = key.takes
                && !found.iter().any(|known| known.is(below))
            {
                found.push(below);
            }
        }
        next += 1;
    }
    found
});

fn algorithms() -> Vec<&'static str> {
    Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect()
}

fn default_algorithms() -> Vec<&'static str> {
    let defaults = Algorithm::ALL.iter().filter(|algorithm| algorithm.no_default().is_none());
    defaults.map(|algorithm| algorithm.name()).collect()
}

fn failure_modes() -> Vec<&'static str> {
    FailureMode::ALL.map(FailureMode::name).to_vec()
}
