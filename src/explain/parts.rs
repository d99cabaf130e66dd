//! What a limit says, part by part, and where each comes from.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::At;
use crate::algorithm::{Limit, Options};
use crate::descriptor;
use crate::rules::{Allowance, Domain, LimitConfig, Line, OriginConfig, Place, Rule, RuleLimit, Rules, SaidBy};

/// A part of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its key in rules.
    pub key: String,
    /// What it is.
    pub value: String,
    /// Who says so.
    pub from: From,
    /// The name of the setting, where one says so.
    pub setting: Option<String>,
    /// Where it is said.
    pub at: Option<At>,
}

/// Who says a part of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    /// The limit.
    Limit,
    /// The request, which brings the limit along.
    Request,
    /// The `defaults` of its file.
    Defaults,
    /// A setting.
    Setting,
    /// Nobody: it is so where nobody says otherwise.
    BuiltIn,
}

/// The parts of a limit, the important first.
pub(super) fn of(rules: &Rules, rule: &Rule, limit: &RuleLimit) -> Vec<Part> {
    let mut parts = Parts { rules, rule, line: limit.line, list: Vec::new() };
    let config = &limit.config;
    match &config.allowance {
        Allowance::Unlimited => parts.said("unlimited", "true".to_owned()),
        Allowance::Limited(limit) => parts.of_limit(limit, config),
    }
    let asked = matches!(config.allowance, Allowance::Limited(_));
    if asked {
        let by = config.said.failure_mode;
        parts.said_by("failure_mode", config.failure_mode.name(), (by, "FAILURE_MODE"), |origin| origin.failure_mode);
    }
    if config.cost != 1 {
        parts.said("cost", config.cost.to_string());
    }
    if !config.give_back {
        parts.said("give_back", "false".to_owned());
    }
    if let Some(penalty) = &config.penalty {
        let [after, within_ms, ban_ms, extend] = penalty.figures();
        let length = |ms| descriptor::length(Duration::from_millis(ms));
        let extend = if extend == 1 { ", each request begins it anew" } else { "" };
        let denials = if after == 1 { "denial" } else { "denials" };
        let ban = format!("{after} {denials} within {} ban for {}{extend}", length(within_ms), length(ban_ms));
        parts.said("penalty", ban);
    }
    if let Some(lease) = &config.lease {
        parts.said("lease", format!("{} hits for {}", lease.size(), descriptor::length(lease.ttl())));
    }
    if config.durable {
        parts.said("durable", "true".to_owned());
    }
    if let Some(usage) = &config.usage {
        parts.said("usage", format!("by the {}, kept for {}", usage.period(), descriptor::length(usage.keep())));
    }
    if !config.replaces.is_empty() {
        parts.said("replaces", config.replaces.join(", "));
    }
    parts.list
}

/// The parts of a limit that a request brings along in this domain.
pub(super) fn of_override(rules: &Rules, domain: &Domain, limit: &Limit) -> Vec<Part> {
    let origin = rules.origin(domain.place);
    let part = |key: &str, value: &str, (from, setting, line): (From, Option<&str>, Line)| {
        let at = line.and_then(|_| At::of(rules, Place { line, ..domain.place }));
        Part { key: key.to_owned(), value: value.to_owned(), from, setting: setting.map(str::to_owned), at }
    };
    let by_domain = |setting, line: Line| match line {
        Some(_) => (From::Defaults, None, line),
        None => (From::Setting, Some(setting), None),
    };
    let defaults = &domain.defaults;
    let algorithm = match limit.algorithm() == defaults.algorithm {
        true => by_domain("DEFAULT_ALGORITHM", origin.and_then(|origin| origin.algorithm)),
        // More hits than a log keeps.
        false => (From::BuiltIn, None, None),
    };
    let number = format!("{} {}", limit.number(), descriptor::per_of(limit));
    let failure_mode = by_domain("FAILURE_MODE", origin.and_then(|origin| origin.failure_mode));
    vec![
        part("requests_per_unit", &number, (From::Request, None, None)),
        part("algorithm", limit.algorithm().name(), algorithm),
        part("failure_mode", defaults.failure_mode.name(), failure_mode),
    ]
}

struct Parts<'r> {
    rules: &'r Rules,
    rule: &'r Rule,
    line: Line,
    list: Vec<Part>,
}

impl Parts<'_> {
    fn of_limit(&mut self, limit: &Limit, config: &LimitConfig) {
        let algorithm = limit.algorithm();
        self.said("requests_per_unit", format!("{} {}", limit.number(), descriptor::per_of(limit)));
        let by = (config.said.algorithm, "DEFAULT_ALGORITHM");
        self.said_by("algorithm", algorithm.name(), by, |origin| origin.algorithm);
        if algorithm.has_holders() {
            let hold = descriptor::length(limit.period());
            self.said_by("hold", &hold, (config.said.hold, ""), |_| None);
        }
        let Options { count_denied, burst, max_delay, initial, segments, weighting, time_zone } = limit.options();
        let options = [
            ("burst", burst.map(|burst| burst.to_string()), limit.in_force().burst.map(|burst| burst.to_string())),
            ("max_delay", max_delay.map(descriptor::length), None),
            ("initial", initial.map(|initial| initial.name().to_owned()), None),
            ("segments", segments.map(|segments| segments.to_string()), None),
            ("weighting", weighting.map(|weighting| weighting.name().to_owned()), None),
            ("time_zone", time_zone.map(|time_zone| time_zone.to_string()), None),
            (
                "count_denied",
                count_denied.map(|flag| flag.to_string()),
                limit.count_denied().then(|| "true".to_owned()),
            ),
        ];
        for (key, given, built_in) in options {
            match (given, built_in) {
                (Some(given), _) => self.said(key, given),
                (None, Some(built_in)) => self.add(key, built_in, From::BuiltIn, (None, None)),
                (None, None) => {}
            }
        }
    }

    /// The limit says it.
    fn said(&mut self, key: &str, value: String) {
        self.add(key, value, From::Limit, (None, self.line));
    }

    /// The limit may say it, or the file's defaults at a line of theirs, or this setting.
    fn said_by(
        &mut self,
        key: &str,
        value: &str,
        (by, setting): (SaidBy, &'static str),
        in_defaults: impl Fn(&OriginConfig) -> Line,
    ) {
        let origin = self.rules.origin(self.rule.place);
        let (from, setting, line) = match by {
            SaidBy::Limit => (From::Limit, None, self.line),
            SaidBy::Defaults => (From::Defaults, None, origin.and_then(in_defaults)),
            SaidBy::Setting => (From::Setting, Some(setting), None),
            SaidBy::Nobody => (From::BuiltIn, None, None),
        };
        self.add(key, value.to_owned(), from, (setting, line));
    }

    fn add(&mut self, key: &str, value: String, from: From, (setting, line): (Option<&str>, Line)) {
        let place = Place { line, ..self.rule.place };
        let at = line.and_then(|_| At::of(self.rules, place));
        self.list.push(Part { key: key.to_owned(), value, from, setting: setting.map(str::to_owned), at });
    }
}
