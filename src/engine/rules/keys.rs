//! Declares every key of rules once: its section, the values it takes, its meaning, and the options that it conflicts
//! with.
//!
//! Sources look keys up here, hints and the table of [`pairs`](super::pairs) use them, and the JSON Schema for editors
//! is built from them. The options of a limit declare their own keys, in `options` and in `algorithm::options`.

use std::sync::LazyLock;

use super::checked::FailureMode;
use super::expect;
use super::options::{self, RuleOptions};
use super::prices;
use super::section::{Key, Section, Takes, key};
use crate::algorithm::{Algorithm, Kind, Options};

/// The top level of a file.
pub static ROOT: Section = Section {
    name: "the file's top level",
    about: "The rules of one domain.",
    keys: &[&[
        key("domain", Takes::Name, "The domain, as configured in Envoy's rate-limit filter."),
        key("defaults", Takes::One(&DEFAULTS), "Defaults for the limits of this file."),
        expect::EXPECT,
        expect::ON_MISSING,
        prices::KEY,
        key("descriptors", Takes::Many(&DESCRIPTOR), "Matched against the first entry of a request's descriptor."),
    ]],
    required: &["domain"],
};

/// `defaults`.
pub static DEFAULTS: Section = Section {
    name: "defaults",
    about: "Defaults for the limits of this file.",
    keys: &[&[
        key(
            "algorithm",
            Takes::Choice(default_algorithms),
            "Algorithm of limits that set none. Default: the setting DEFAULT_ALGORITHM.",
        ),
        key(
            "failure_mode",
            Takes::Choice(failure_modes),
            "Failure mode of limits that set none. Default: the setting FAILURE_MODE.",
        ),
        key(
            options::denied_body::KEY.name,
            options::denied_body::KEY.takes,
            "Body of the answer to a denied request, for limits that set none, and where no limit denies. Default: the \
             setting DENIED_BODY.",
        ),
        key(
            options::lease::KEY.name,
            options::lease::KEY.takes,
            "Lease of limits that set none and for which it saves calls to the store.",
        ),
        key(
            options::own_share::KEY.name,
            options::own_share::KEY.takes,
            "Own share of limits that set none and can have it.",
        ),
    ]],
    required: &[],
};

/// An item of `descriptors`.
pub static DESCRIPTOR: Section = Section {
    name: "a descriptor",
    about: "Matches one entry of a request's descriptor; its limits apply if that entry is the last one.",
    keys: &[&[
        key("key", Takes::Name, "The entry's key. Matched exactly; * matches any characters."),
        key(
            "value",
            Takes::Text,
            "The entry's value. Matched exactly; * matches any characters. Without it every value matches and has its \
             own counter.",
        ),
        key("rate_limit", Takes::One(&RATE_LIMIT), "The limit of descriptors that end with this entry."),
        key(
            "rate_limits",
            Takes::Many(&RATE_LIMIT),
            "Several limits instead of one: a request must pass all of them; if one denies it, none is charged.",
        )
        .example("[...]")
        .conflicts(&[(
            "concurrency",
            "a limit of several cannot be a concurrency limit: with the key stream the others would count each request \
             on its own; put them on a descriptor without that key",
        )]),
        key("descriptors", Takes::Many(&DESCRIPTOR), "Matched against the next entry."),
        key(
            "share_threshold",
            Takes::Flag,
            "All values that match the wildcard share one counter. Without it each value has its own counter.",
        ),
        key(
            "shadow_mode",
            Takes::Flag,
            "Dry run: the limit denies nothing; requests that it would deny are counted and reported.",
        )
        .example("true"),
        key("quota_mode", Takes::Flag, "A request is denied only if all of its limits with quota_mode deny it.")
            .example("true"),
        key(
            "detailed_metric",
            Takes::Flag,
            "Statistics with envoyproxy/ratelimit's names are kept per value of all entries for this limit.",
        ),
        key(
            "value_to_metric",
            Takes::Flag,
            "Statistics with envoyproxy/ratelimit's names are kept per value of this entry for the limits here and \
             below.",
        ),
        key(
            "metadata",
            Takes::Mapping,
            "Arbitrary data, returned as dynamic metadata if the descriptor passes and RESPONSE_DYNAMIC_METADATA is \
             on.",
        ),
    ]],
    required: &["key"],
};

/// `rate_limit`, and an item of `rate_limits`.
pub static RATE_LIMIT: Section = Section {
    name: "rate_limit",
    about: "A number of requests per unit or period.",
    keys: &[OF_EVERY_LIMIT, &OF_ALGORITHMS, RuleOptions::KEYS],
    // Which keys are required depends on the others.
    required: &[],
};

/// Keys of every limit, with any algorithm.
const OF_EVERY_LIMIT: &[Key] = &[
    key("name", Takes::Text, "Name of the limit in responses and in `replaces`.").example("per-user"),
    key(
        "unit",
        Takes::Unit,
        "The period as a unit. A month has 30 days and a year 365; with time_zone both follow the calendar. For a \
         budget also never: a balance, which does not start over.",
    )
    .example("day")
    .conflicts(&[
        ("unlimited", "an unlimited rule takes no unit: remove one of the two"),
        (
            "concurrency",
            "concurrency takes no unit: requests_per_unit is the number of requests in progress at once; hold is the \
             time after which an unreleased slot expires",
        ),
    ]),
    key(
        "period",
        Takes::Length,
        "The period as a duration instead of a unit: 500ms, 90s, 15m or 1h30m; from 1ms to 366d. With time_zone and \
         starts_on, a number of days.",
    )
    .example("90s")
    .conflicts(&[
        ("unit", "a limit takes a unit or a period, not both: remove one of the two"),
        ("unlimited", "an unlimited rule takes no period: remove one of the two"),
        (
            "concurrency",
            "concurrency takes no period: requests_per_unit is the number of requests in progress at once; hold is the \
             time after which an unreleased slot expires",
        ),
    ]),
    key(
        "requests_per_unit",
        Takes::Wide,
        "Number of requests allowed per unit or period; for concurrency, number in progress at once. 0 denies all \
         requests.",
    ),
    key("unlimited", Takes::Flag, "Requests that match are not limited.")
        .example("true")
        .conflicts(&[("rate_limits", "a limit of several cannot be unlimited: remove it")]),
    key(
        "replaces",
        Takes::Many(&REPLACES),
        "If this limit applies to a request, these limits of the request's other descriptors do not.",
    )
    .example("[{name: other}]"),
    key(
        "algorithm",
        Takes::Choice(algorithms),
        "Algorithm. Default: the file's defaults, then the setting DEFAULT_ALGORITHM.",
    ),
    key("hold", Takes::Length, "For concurrency: time after which an unreleased slot expires. Default: 1m.")
        .example("5m"),
    key(
        "failure_mode",
        Takes::Choice(failure_modes),
        "Answer while the store is unavailable: open allows, closed denies, local decides in this process, error fails \
         the call. Default: the file's defaults, then the setting FAILURE_MODE.",
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
            Kind::Wide => Takes::Wide,
            Kind::Flag => Takes::Flag,
            Kind::Length => Takes::Length,
            Kind::Choice(names) => Takes::Choice(names),
            Kind::TimeZone | Kind::Date => Takes::Text,
        };
        keys[index] = key(option.name, takes, option.about).example(option.example).conflicts(option.conflicts);
        index += 1;
    }
    keys
};

/// An item of `replaces`.
pub static REPLACES: Section = Section {
    name: "an item of replaces",
    about: "Another limit of the same domain.",
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
