//! The version of rules: a short hash of their contents, for comparing instances. The same rules have the same version
//! regardless of their files and comments.
//!
//! It covers everything that decides requests: domains, the keys and values of rules in order, and the settings of
//! their limits, but not the places of limits. Another release may compute a different version for the same rules.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write as _};
use std::sync::Arc;

use super::compiled::{Level, Node, Pattern};
use super::{Domain, LimitConfig, Rule, Rules};

/// Number of hexadecimal digits: enough that two versions in a fleet are hardly ever equal by chance.
const DIGITS: usize = 12;

/// Returns the version of these rules.
pub(super) fn of(rules: &Rules) -> String {
    let mut text = Text::default();
    let mut domains: Vec<_> = rules.domain_names().filter_map(|name| rules.domain(name)).collect();
    domains.sort_unstable_by_key(|domain| &domain.name);
    domains.into_iter().for_each(|domain| text.add_domain(rules, domain));
    let mut configs = Configs::default();
    rules.rules().iter().for_each(|rule| text.add_rule(rule, &mut configs));
    let mut version = text.0.finalize().to_hex().to_string();
    version.truncate(DIGITS);
    version
}

/// Returns a digest of the rules of each of these domains, by its name.
pub(super) fn of_domains<'r>(rules: &'r Rules, names: impl IntoIterator<Item = &'r str>) -> HashMap<&'r str, u64> {
    let of_name = |name: &'r str| {
        let mut text = Text::default();
        rules.domain(name).into_iter().for_each(|domain| text.add_domain(rules, domain));
        (name, text)
    };
    let mut texts: HashMap<&str, Text> = names.into_iter().map(of_name).collect();
    let mut configs = Configs::default();
    for rule in rules.rules() {
        if let Some(text) = texts.get_mut(&*rule.domain) {
            text.add_rule(rule, &mut configs);
        }
    }
    let digest = |text: Text| text.0.finalize().as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    texts.into_iter().map(|(name, text)| (name, digest(text))).collect()
}

/// The hashes of settings, by their place in memory: limits with equal settings usually share them, and hashing a
/// million would take a while.
type Configs = HashMap<*const LimitConfig, blake3::Hash>;

/// Hashes the settings of a limit, regardless of where they were set.
fn hash(config: &LimitConfig) -> blake3::Hash {
    let LimitConfig { origins: _, allowance, failure_mode, options, replaces } = config;
    let mut text = Text::default();
    text.add(&(allowance, failure_mode, options, replaces));
    text.0.finalize()
}

/// Collects the nodes without a rule that still keep requests from matching another node.
fn note_barren(rules: &Rules, level: &Level, path: &str, barren: &mut Vec<String>) {
    // Most of a million nodes have a rule, and need no name.
    let mut note = |name: &dyn Fn() -> String, node: &Node| match &node.level {
        Some(level) => note_barren(rules, level, &format!("{path}|{}", name()), barren),
        None if rules.of(node).is_none() => barren.push(format!("{path}|{}", name())),
        None => {}
    };
    for (key, nodes) in &level.keys {
        nodes.values.iter().for_each(|(value, node)| note(&|| format!("{key:?}={value:?}"), node));
        nodes.default.iter().for_each(|node| note(&|| format!("{key:?}"), node));
    }
    for Pattern { order, key, value, node } in
        level.patterns.iter().chain(level.keys.values().flat_map(|nodes| &nodes.patterns))
    {
        note(&|| format!("{order}: {key:?}={value:?}"), node);
    }
}

/// The text hashed so far.
#[derive(Default)]
struct Text(blake3::Hasher);

impl Text {
    /// Adds a domain without its rules.
    fn add_domain(&mut self, rules: &Rules, domain: &Domain) {
        let mut barren = Vec::new();
        note_barren(rules, &domain.root, "", &mut barren);
        barren.sort_unstable();
        self.add(&(&domain.name, &domain.defaults, barren));
        // Few domains have this.
        domain.expect.iter().for_each(|expect| self.add(expect));
    }

    fn add_rule(&mut self, rule: &Rule, configs: &mut Configs) {
        self.add_words([&*rule.domain]);
        for (key, value) in rule.keys_and_values() {
            self.add_words([key].into_iter().chain(value));
        }
        self.add(&(rule.role, rule.limits.len()));
        // Few rules have these.
        if rule.metadata.is_some() || !rule.shared.is_empty() || !rule.stat_names.is_empty() {
            self.add(&(&rule.metadata, &rule.shared, &rule.stat_names));
        }
        for limit in &rule.limits {
            let config = configs.entry(Arc::as_ptr(&limit.config)).or_insert_with(|| hash(&limit.config));
            self.add_words(limit.name.as_deref());
            self.0.update(config.as_bytes());
        }
    }

    /// Adds a list of words with their lengths and an end mark, to distinguish different lists.
    fn add_words<'w>(&mut self, words: impl IntoIterator<Item = &'w str>) {
        for word in words {
            self.0.update(&(word.len() as u64).to_le_bytes()).update(word.as_bytes());
        }
        self.0.update(&u64::MAX.to_le_bytes());
    }

    /// Adds a value. Its text must show where it ends.
    fn add(&mut self, value: &impl Debug) {
        // Writing to the hasher cannot fail.
        let _ = write!(self, "{value:?}");
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0.update(part.as_bytes());
        Ok(())
    }
}
