//! Every key that a rules file may have, once: where it stands, what it takes, what it means. The reader looks keys up
//! here, hints draw on it, and the JSON Schema for editors is made of it.

use crate::algorithm::{Algorithm, Initial, Weighting};
use crate::rules::checked::FailureMode;
use crate::usage::Period;

/// A mapping of the file, and the keys that mean something in it.
#[derive(Debug)]
pub(super) struct Section {
    /// What a message calls it.
    pub(super) name: &'static str,
    /// What it is, for an editor.
    pub(super) about: &'static str,
    pub(super) keys: &'static [Key],
}

/// A key of a mapping.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    /// What it means, for an editor.
    pub(super) about: &'static str,
}

/// What stands behind a key.
#[derive(Debug)]
pub(super) enum Takes {
    /// A text, a whole number or a truth value: it counts as it is written.
    Text,
    /// A text that must be there.
    Name,
    Number,
    Flag,
    /// A length of time.
    Length,
    /// The name of a unit, in any letter case.
    Unit,
    /// One of these names.
    Choice(fn() -> Vec<&'static str>),
    /// A mapping of whatever there is.
    Mapping,
    One(&'static Section),
    Many(&'static Section),
}

const fn key(name: &'static str, takes: Takes, about: &'static str) -> Key {
    Key { name, takes, about }
}

pub(super) static ROOT: Section = Section {
    name: "the file's top level",
    about: "The rules of one domain.",
    keys: &[
        key(
            "domain",
            Takes::Name,
            "What requests call it: the domain that Envoy's rate-limit filter is configured with.",
        ),
        key("defaults", Takes::One(&DEFAULTS), "What holds for the limits of this file that do not say otherwise."),
        key("descriptors", Takes::Many(&DESCRIPTOR), "The first entry of a request's descriptor is looked up here."),
    ],
};

pub(super) static DEFAULTS: Section = Section {
    name: "defaults",
    about: "What holds for the limits of this file that do not say otherwise.",
    keys: &[
        key(
            "algorithm",
            Takes::Choice(default_algorithms),
            "How limits count. Without it the setting DEFAULT_ALGORITHM \
            says so.",
        ),
        key(
            "failure_mode",
            Takes::Choice(failure_modes),
            "What limits answer while the store is unavailable. Without \
            it the setting FAILURE_MODE says so.",
        ),
    ],
};

pub(super) static DESCRIPTOR: Section = Section {
    name: "a descriptor",
    about: "Matches one entry of a request's descriptor, and says what holds where that is the last one.",
    keys: &[
        key("key", Takes::Name, "The entry's key. It matches exactly; * stands for any characters."),
        key(
            "value",
            Takes::Text,
            "The entry's value. It matches exactly; * stands for any characters. Without it every \
            value matches, and each is counted for itself.",
        ),
        key("rate_limit", Takes::One(&RATE_LIMIT), "The limit of requests whose last entry this is."),
        key(
            "rate_limits",
            Takes::Many(&RATE_LIMIT),
            "Several limits instead of one: each must let a request pass, and \
            what one of them denies is charged to none.",
        ),
        key("descriptors", Takes::Many(&DESCRIPTOR), "The next entry is looked up here."),
        key(
            "share_threshold",
            Takes::Flag,
            "All values that match the wildcard share one counter, instead of one for \
            each value.",
        ),
        key(
            "shadow_mode",
            Takes::Flag,
            "A dry run: the limit denies nothing, and what it would have denied is counted \
            and reported.",
        ),
        key("quota_mode", Takes::Flag, "Of a request's limits with quota_mode, all must deny it; one alone does not."),
        key(
            "detailed_metric",
            Takes::Flag,
            "The statistics that have envoyproxy/ratelimit's names tell the requests of this \
            limit apart by the values of all entries.",
        ),
        key(
            "value_to_metric",
            Takes::Flag,
            "The statistics that have envoyproxy/ratelimit's names tell the requests of the \
            limits here and below apart by the value of this entry.",
        ),
        key(
            "metadata",
            Takes::Mapping,
            "Whatever there is; an answer's dynamic metadata have it where \
            the descriptor passes and RESPONSE_DYNAMIC_METADATA is on.",
        ),
    ],
};

pub(super) static RATE_LIMIT: Section = Section {
    name: "rate_limit",
    about: "So many requests in a unit or period.",
    keys: &[
        key("name", Takes::Text, "What answers and `replaces` call this limit."),
        key(
            "unit",
            Takes::Unit,
            "The period by a name: a month has 30 days, a year 365; with time_zone both are as long as in \
            the calendar.",
        ),
        key(
            "period",
            Takes::Length,
            "The period by its length, instead of a unit: 500ms, 90s, 15m or 1h30m; from 1ms to \
            366d.",
        ),
        key(
            "requests_per_unit",
            Takes::Number,
            "How many pass in the unit or period; of concurrency, how many may be in \
            progress at once. 0 lets nothing pass.",
        ),
        key("unlimited", Takes::Flag, "Requests that reach this are not limited."),
        key(
            "replaces",
            Takes::Many(&REPLACES),
            "While this limit applies to a request, these limits of its other \
            descriptors do not.",
        ),
        key(
            "algorithm",
            Takes::Choice(algorithms),
            "How it counts. Without it the file's defaults say so, and then the \
            setting DEFAULT_ALGORITHM.",
        ),
        key(
            "burst",
            Takes::Number,
            "Of a bucket: how many may come at once. Without it a token bucket holds \
            requests_per_unit, and a leaky bucket 1.",
        ),
        key("initial", Takes::Choice(initials), "Of a token bucket: what a new one holds. Without it, full."),
        key(
            "max_delay",
            Takes::Length,
            "Of a leaky bucket: a request that comes too early is delayed until its release \
            time, for so long at most; up to 60s.",
        ),
        key("segments", Takes::Number, "Of a sliding window: how many sub-windows it has, from 1 to 60."),
        key(
            "weighting",
            Takes::Choice(weightings),
            "Of a sliding window: what the sub-window counts that is partly over. \
            Without it, strict.",
        ),
        key(
            "time_zone",
            Takes::Text,
            "Of a fixed window: its windows are the days, weeks, months or years of this time zone, such as \
            Asia/Shanghai or UTC. Without it, a window has the length of its unit, and all are aligned to the epoch.",
        ),
        key(
            "hold",
            Takes::Length,
            "Of concurrency: how long a slot stays taken that nothing releases. Without it, 1m.",
        ),
        key("cost", Takes::Number, "Every hit counts so many. Without it, 1."),
        key("count_denied", Takes::Flag, "A denied request is charged, too. Without it only a fixed window does that."),
        key("give_back", Takes::Flag, "Whether a client may refund hits by negative ones. Without it, true."),
        key("penalty", Takes::One(&PENALTY), "A client that is denied again and again is banned for a while."),
        key(
            "lease",
            Takes::One(&LEASE),
            "A replica takes hits in advance and decides by them without asking the store: \
            for counters that are asked very often.",
        ),
        key(
            "durable",
            Takes::Flag,
            "A request passes only when a replica of Redis has heard of it, so that a failover admits nothing twice. \
            Without it, false.",
        ),
        key(
            "usage",
            Takes::One(&USAGE),
            "What each counter was used is kept, by minute, hour or day, so that it can be billed.",
        ),
        key(
            "failure_mode",
            Takes::Choice(failure_modes),
            "What it answers while the store is unavailable: open lets \
            pass, closed denies, local decides in this process, error fails the call. Without it the file's defaults \
            say so, and then the setting FAILURE_MODE.",
        ),
    ],
};

pub(super) static REPLACES: Section = Section {
    name: "an item of replaces",
    about: "A limit of the same domain, by its name.",
    keys: &[key("name", Takes::Name, "The limit's name.")],
};

pub(super) static PENALTY: Section = Section {
    name: "penalty",
    about: "So many denials within a while bring a ban.",
    keys: &[
        key("after", Takes::Number, "How many denials bring a ban."),
        key("within", Takes::Length, "The time in which denials are counted."),
        key("ban", Takes::Length, "How long a ban lasts."),
        key("extend", Takes::Flag, "Every request during a ban begins it anew."),
    ],
};

pub(super) static LEASE: Section = Section {
    name: "lease",
    about: "What a replica takes in advance.",
    keys: &[
        key("size", Takes::Number, "How many hits it takes at once."),
        key("ttl", Takes::Length, "How long it may use them."),
    ],
};

pub(super) static USAGE: Section = Section {
    name: "usage",
    about: "What is kept of a limit's use.",
    keys: &[
        key("by", Takes::Choice(periods), "How long a time one record is about."),
        key("keep", Takes::Length, "How long it is kept after that, up to 3660d."),
    ],
};

pub(super) static SECTIONS: [&Section; 8] =
    [&ROOT, &DEFAULTS, &DESCRIPTOR, &RATE_LIMIT, &REPLACES, &PENALTY, &LEASE, &USAGE];

impl Section {
    /// The place of a key in it.
    pub(super) fn index(&self, name: &str) -> Option<usize> {
        self.keys.iter().position(|key| key.name == name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }
}

fn algorithms() -> Vec<&'static str> {
    Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect()
}

fn default_algorithms() -> Vec<&'static str> {
    Algorithm::ALL
        .iter()
        .filter(|algorithm| algorithm.no_default().is_none())
        .map(|algorithm| algorithm.name())
        .collect()
}

fn failure_modes() -> Vec<&'static str> {
    FailureMode::ALL.map(FailureMode::name).to_vec()
}

fn initials() -> Vec<&'static str> {
    Initial::ALL.map(Initial::name).to_vec()
}

fn periods() -> Vec<&'static str> {
    Period::ALL.map(Period::name).to_vec()
}

fn weightings() -> Vec<&'static str> {
    Weighting::ALL.map(Weighting::name).to_vec()
}
