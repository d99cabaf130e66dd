//! The parts of a limit and their origins.

use serde::{Deserialize, Serialize};

use super::At;
use crate::algorithm::{Limit, Options};
use crate::descriptor;
use crate::price::Price;
use crate::rules::options::{denied_body, lease, own_share};
use crate::rules::{Allowance, Domain, LimitConfig, Line, OriginConfig, Place, Rule, RuleLimit, Rules, SettingOrigin};

/// A part of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Key in rules.
    pub key: String,
    /// Value of the part.
    pub value: String,
    /// Origin of the part.
    pub from: From,
    /// Name of the setting, if the part comes from one.
    pub setting: Option<String>,
    /// Place of the part in a file.
    pub at: Option<At>,
}

/// The origin of a part of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    /// The limit in the rules.
    Limit,
    /// The request that sets the limit.
    Request,
    /// The `defaults` of the limit's file.
    Defaults,
    /// A setting.
    Setting,
    /// The built-in default.
    BuiltIn,
}

/// Returns the parts of a limit, the most important first. `brought` is the limit in force if the request has brought
/// its number along, and `price` what its entries choose.
pub(super) fn of(
    rules: &Rules,
    rule: &Rule,
    (limit, brought, price): (&RuleLimit, Option<&Limit>, Option<Price>),
) -> Vec<Part> {
    let mut parts = Parts { rules, rule, line: limit.line, list: Vec::new() };
    let config = &limit.config;
    match &config.allowance {
        Allowance::Unlimited => parts.add_own("unlimited", "true".to_owned()),
        Allowance::Limited(limit) => parts.of_limit((limit, brought), config),
    }
    let asked = matches!(config.allowance, Allowance::Limited(_));
    if asked {
        let by = config.origins.failure_mode;
        parts.add_with_origin("failure_mode", config.failure_mode.name(), (by, "FAILURE_MODE"), |origin| {
            origin.failure_mode
        });
    }
    for (key, value) in config.options.explained() {
        let origins = &config.origins;
        match key {
            denied_body::KEY_NAME => {
                let by = (origins.denied_body, "DENIED_BODY");
                parts.add_with_origin(key, &value, by, |origin| origin.denied_body);
            }
            lease::KEY_NAME => parts.add_with_origin(key, &value, (origins.lease, ""), |origin| origin.lease),
            own_share::KEY_NAME => {
                parts.add_with_origin(key, &value, (origins.own_share, ""), |origin| origin.own_share);
            }
            _ => parts.add_own(key, value),
        }
    }
    if let Some(price) = price {
        parts.add_own("price", format!("{price} per million units"));
    }
    if !config.replaces.is_empty() {
        parts.add_own("replaces", config.replaces.join(", "));
    }
    parts.list
}

/// Returns the parts of a limit that a request sets in this domain.
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
        // The number is too large for a log.
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
    fn of_limit(&mut self, (limit, brought): (&Limit, Option<&Limit>), config: &LimitConfig) {
        let number = |limit: &Limit| format!("{} {}", limit.number(), descriptor::per_of(limit));
        match brought {
            Some(brought) => self.add("requests_per_unit", number(brought), From::Request, (None, None)),
            None => self.add_own("requests_per_unit", number(limit)),
        }
        let limit = brought.unwrap_or(limit);
        let algorithm = limit.algorithm();
        let by = (config.origins.algorithm, "DEFAULT_ALGORITHM");
        self.add_with_origin("algorithm", algorithm.name(), by, |origin| origin.algorithm);
        if algorithm.counts_in_progress() {
            let hold = descriptor::length(limit.period());
            self.add_with_origin("hold", &hold, (config.origins.hold, ""), |_| None);
        }
        let (said, in_force) = (limit.options().written(), limit.in_force().written());
        for (option, (said, in_force)) in Options::ALL.iter().zip(said.into_iter().zip(in_force)) {
            // A flag that is off needs no word.
            let built_in = in_force.filter(|value| option.is_explained && value != "false");
            match (said, built_in) {
                (Some(value), _) => self.add_own(option.name, value),
                (None, Some(built_in)) => self.add(option.name, built_in, From::BuiltIn, (None, None)),
                (None, None) => {}
            }
        }
    }

    /// Adds a part that the limit sets.
    fn add_own(&mut self, key: &str, value: String) {
        self.add(key, value, From::Limit, (None, self.line));
    }

    /// Adds a part that can come from the limit, from the `defaults` of its file, or from a setting.
    fn add_with_origin(
        &mut self,
        key: &str,
        value: &str,
        (by, setting): (SettingOrigin, &'static str),
        in_defaults: impl Fn(&OriginConfig) -> Line,
    ) {
        let origin = self.rules.origin(self.rule.place);
        let (from, setting, line) = match by {
            SettingOrigin::Limit => (From::Limit, None, self.line),
            SettingOrigin::Defaults => (From::Defaults, None, origin.and_then(in_defaults)),
            SettingOrigin::Setting => (From::Setting, Some(setting), None),
            SettingOrigin::BuiltIn => (From::BuiltIn, None, None),
        };
        self.add(key, value.to_owned(), from, (setting, line));
    }

    fn add(&mut self, key: &str, value: String, from: From, (setting, line): (Option<&str>, Line)) {
        let place = Place { line, ..self.rule.place };
        let at = line.and_then(|_| At::of(self.rules, place));
        self.list.push(Part { key: key.to_owned(), value, from, setting: setting.map(str::to_owned), at });
    }
}
