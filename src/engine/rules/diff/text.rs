//! Formats a difference as one line.

use std::fmt::{self, Write as _};

use super::{Change, Counters, Kind, Side, shares_as};
use crate::algorithm::{self, Limit, Options};
use crate::descriptor::{Role, in_words, unit_of};
use crate::rules::expect::Expect;
use crate::rules::options::denied_body;
use crate::rules::{Allowance, LimitConfig, Rule, RuleLimit};

fn counted(limits: usize) -> String {
    format!("{limits} limit{}", if limits == 1 { "" } else { "s" })
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domain = Short(self.domain);
        match self.kind {
            Kind::DomainAdded(limits) => return write!(f, "added: domain {domain}: {}", counted(limits)),
            Kind::DomainRemoved(limits) => return write!(f, "removed: domain {domain}: {}", counted(limits)),
            Kind::Order => {
                return write!(f, "changed: domain {domain}: the order of its wildcards; the first match wins");
            }
            Kind::Expect(old, new) => {
                let said = |expect: Option<&Expect>| expect.map_or_else(|| "none".to_owned(), Expect::to_string);
                return write!(f, "changed: domain {domain}: expect {} -> {}", said(old), said(new));
            }
            Kind::Defaults(old, new) => {
                write!(f, "changed: defaults of {domain}: ")?;
                let mut differences = Differences::default();
                differences.add("algorithm", old.algorithm.name(), new.algorithm.name());
                differences.add("failure_mode", old.failure_mode.name(), new.failure_mode.name());
                let [before, after] = [old, new].map(|defaults| denied_body::written(&defaults.denied_body));
                differences.add(denied_body::KEY_NAME, before, after);
                write!(f, "{differences}, for limits that requests supply")?;
            }
            Kind::Added(Side { limit, .. }, from) => {
                write!(f, "added: {domain}: {}: {}", Short(&limit.label), words(limit))?;
                if let Some(from) = from {
                    write!(f, "; its requests matched {} before", Short(&from.path))?;
                }
            }
            Kind::Removed(Side { limit, .. }, to) => {
                write!(f, "removed: {domain}: {}: {}", Short(&limit.label), words(limit))?;
                if let Some(to) = to {
                    write!(f, "; its requests now match {}", Short(&to.path))?;
                }
            }
            Kind::Changed(old, new) => {
                write!(f, "changed: {domain}: {}: {}", Short(&new.limit.label), differences(old, new))?;
            }
        }
        f.write_str(match self.counters {
            Counters::None => "",
            Counters::Kept => ": counters are kept",
            Counters::Afresh => ": counters are reset",
            Counters::PenaltyAfresh => ": counters are kept, denials and bans of its penalty are reset",
        })
    }
}

fn words(limit: &RuleLimit) -> String {
    match &limit.config.allowance {
        Allowance::Unlimited => "unlimited".to_owned(),
        Allowance::Limited(limit) => in_words(limit),
    }
}

/// Lists the differences between two limits, by the keys of rules.
fn differences(old: Side<'_>, new: Side<'_>) -> Differences {
    let mut found = Differences::default();
    let LimitConfig { allowance, failure_mode, options, replaces, origins: _ } = &*old.limit.config;
    let config = &new.limit.config;
    match (allowance, &config.allowance) {
        (Allowance::Limited(old), Allowance::Limited(new)) => found.of_limits(old, new),
        _ => found.add("limit", words(old.limit), words(new.limit)),
    }
    found.add("name", Short(old.limit.name()).to_string(), Short(new.limit.name()).to_string());
    if old.limit.name == new.limit.name {
        // A limit is labelled with its name if no other limit of the domain has it, or else by its path.
        let label = |side: &Side<'_>| Short(&side.limit.label).to_string();
        found.add("called", label(&old), label(&new));
    }
    found.add("failure_mode", failure_mode.name(), config.failure_mode.name());
    for ((key, old), (_, new)) in options.written().into_iter().zip(config.options.written()) {
        found.add(key, old, new);
    }
    if let (Some(old), Some(new)) = (&options.weigh_by, &config.options.weigh_by)
        && old.prices != new.prices
    {
        found.add_words("prices", &new.prices.changes_since(&old.prices));
    }
    found.add("replaces", Short(&replaces.join(", ")).to_string(), Short(&config.replaces.join(", ")).to_string());
    found.add("shadow_mode", old.rule.role == Role::Shadow, new.rule.role == Role::Shadow);
    found.add("quota_mode", old.rule.role == Role::Quota, new.rule.role == Role::Quota);
    let metadata = |rule: &Rule| rule.metadata.as_ref().and_then(|metadata| serde_json::to_string(metadata).ok());
    found.add_long("metadata", &metadata(old.rule).unwrap_or_default(), &metadata(new.rule).unwrap_or_default());
    let shares = |rule: &Rule| (0..rule.levels()).any(|level| rule.shared_pattern(level).is_some());
    if !shares_as(old.rule, new.rule) {
        found.add("share_threshold", shares(old.rule), shares(new.rule));
    }
    found
}

/// A list of `key old -> new`, for each key with a different value.
#[derive(Default)]
struct Differences(String);

impl Differences {
    fn add<T: fmt::Display>(&mut self, key: &str, old: impl fmt::Display, new: T) {
        let (old, new) = (old.to_string(), new.to_string());
        if old != new {
            let comma = if self.0.is_empty() { "" } else { ", " };
            let shown = |text: String| if text.is_empty() { "none".to_owned() } else { text };
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{comma}{key} {} -> {}", shown(old), shown(new));
        }
    }

    /// Adds a key with the words for what has changed.
    fn add_words(&mut self, key: &str, words: &str) {
        let comma = if self.0.is_empty() { "" } else { ", " };
        let words = if words.is_empty() { "in another order" } else { words };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{comma}{key} {}", words.escape_debug());
    }

    /// Adds one-line texts, which may be long and differ only at their ends.
    fn add_long(&mut self, key: &str, old: &str, new: &str) {
        const SHOWN: usize = 80;
        let short = |text: &str| match text.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text.to_owned(),
        };
        match (short(old), short(new)) {
            (before, after) if before == after && old != new => self.add(key, before, "another"),
            (before, after) => self.add(key, before, after),
        }
    }

    fn of_limits(&mut self, old: &Limit, new: &Limit) {
        let unit = |limit: &Limit| unit_of(limit.window()?, limit.options().starts_on);
        let length = |limit: &Limit| match unit(limit) {
            Some(unit) => unit.name().to_owned(),
            None => humantime::format_duration(limit.period()).to_string(),
        };
        let period = if new.window().is_some() { "period" } else { "hold" };
        self.add("algorithm", old.algorithm(), new.algorithm());
        self.add("requests_per_unit", old.number(), new.number());
        self.add(period, length(old), length(new));
        // Shows the value in force if either limit sets the option: a built-in value belongs to the algorithm and to
        // the number. Flags are always shown with the value in force.
        let said = old.options().written().into_iter().zip(new.options().written());
        let in_force = old.in_force().written().into_iter().zip(new.in_force().written());
        for (option, (said, (before, now))) in Options::ALL.iter().zip(said.zip(in_force)) {
            if matches!(option.kind, algorithm::Kind::Flag) || said.0.is_some() || said.1.is_some() {
                self.add(option.name, before.as_deref().unwrap_or("none"), now.as_deref().unwrap_or("none"));
            }
        }
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text from a file, shortened and escaped for a line of the log.
struct Short<'t>(&'t str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        match self.0.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{}...", self.0[..end].escape_debug()),
            None => write!(f, "{}", self.0.escape_debug()),
        }
    }
}
