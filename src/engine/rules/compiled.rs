//! The rules in force: a compiled snapshot that never changes, and the search of a descriptor's rule.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, OnceLock};

// Uses a fast hash that does not resist chosen names; the names come only from the rules, not from clients.
use hashbrown::HashMap;

use super::checked::{
    Allowance, Defaults, DescriptorConfig, DomainConfig, LimitConfig, OriginConfig, Place, RuleConfig, RuleLimitConfig,
};
use super::config::Metadata;
use super::expect::Expect;
use super::report::Line;
use super::shares::DomainShares;
use super::version;
use crate::algorithm::Algorithm;
use crate::descriptor::{Descriptor, Entry, HOLD_KEY, Role, SETTLE_KEY};
use crate::wildcard::Wildcard;

/// A rule in force.
#[derive(Debug)]
pub struct Rule {
    /// The domain of the rule.
    pub domain: Arc<str>,
    /// Its path in the tree, as in its file: `key=value` for each level, joined by `|`.
    pub path: Arc<str>,
    /// The place of its descriptor.
    pub place: Place,
    /// The effect of a denial on the request.
    pub role: Role,
    /// Metadata of an answer if the descriptor passes.
    pub metadata: Option<Box<Metadata>>,
    /// The limits, all of which must allow the request.
    pub limits: Box<[RuleLimit]>,
    levels: u32,
    /// For each level, the pattern if its values share one counter; empty if no level has one.
    pub(super) shared: Box<[Option<Box<str>>]>,
    /// For each level, its name in statistics; empty if all levels have the rule's name.
    pub(super) stat_names: Box<[StatName]>,
    /// For each level, the ends of its key and of the level in the path; empty if `|` and `=` show them.
    ends: Box<[Ends]>,
}

/// The ends of a level and of its key in a path.
#[derive(Clone, Copy, Debug)]
struct Ends {
    key: u32,
    level: u32,
}

/// The name of a level in the statistics named after `envoyproxy/ratelimit`'s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatName {
    /// The key and value of the rule.
    #[default]
    Rule,
    /// The request's value, unless it is empty.
    Value,
    /// The request's value, which may be empty.
    AnyValue,
}

/// A limit of a rule in force.
#[derive(Debug)]
pub struct RuleLimit {
    /// Index among all limits.
    pub id: usize,
    /// The name in metrics, headers, logs and answers: the limit's name if nothing else in its domain has it, or else
    /// the rule's path, followed by `#name`, or by `#0` if the rule has several limits and this one has no name.
    pub label: Arc<str>,
    /// Its line, in the same origin as its rule.
    pub line: Line,
    /// The name from the rules.
    pub name: Option<Arc<str>>,
    /// The settings of the limit. Limits with equal settings usually share them, to keep many rules small.
    pub config: Arc<LimitConfig>,
}

impl RuleLimit {
    /// Returns the name from the rules, or an empty text.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }
}

impl Rule {
    /// Returns the number of entries in a descriptor that reaches the rule, apart from those that choose a price.
    pub fn levels(&self) -> usize {
        self.levels as usize
    }

    /// Returns the rule's key at each level, and the value if it has one.
    pub fn keys_and_values(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let plain = self.path.splitn(self.levels().max(1), '|').filter(|_| self.ends.is_empty());
        let plain = plain.map(|level| level.split_once('=').map_or((level, None), |(key, value)| (key, Some(value))));
        let starts = std::iter::once(0).chain(self.ends.iter().map(|ends| ends.level as usize + 1));
        let by_ends = self.ends.iter().zip(starts).map(|(ends, start)| {
            let (key, level) = (ends.key as usize, ends.level as usize);
            (&self.path[start..key], (key < level).then(|| &self.path[key + 1..level]))
        });
        plain.chain(by_ends)
    }

    /// Returns the kind of name that statistics use for a level.
    pub fn stat_name(&self, level: usize) -> StatName {
        self.stat_names.get(level).copied().unwrap_or_default()
    }

    /// Returns whether its limit takes the number of one that a request brings along.
    pub fn takes_number(&self) -> bool {
        self.limits.iter().any(|limit| limit.config.options.number.is_some())
    }

    /// Returns whether its limits are budgets. Descriptors that settle end with another key than those that hold.
    pub fn is_budget(&self) -> bool {
        let algorithm = |limit: &RuleLimit| match &limit.config.allowance {
            Allowance::Limited(limit) => Some(limit.algorithm()),
            Allowance::Unlimited => None,
        };
        self.limits.iter().any(|limit| algorithm(limit) == Some(Algorithm::Budget))
    }

    /// Returns the keys of the entries that choose the price of a unit, which may follow those of the rule. All its
    /// limits that have a price name the same ones.
    pub fn weigh_by(&self) -> &[Box<str>] {
        let mut weights = self.limits.iter().filter_map(|limit| limit.config.options.weigh_by.as_ref());
        weights.next().map_or(&[], |weights| &weights.keys)
    }

    /// Splits the entries of a descriptor that reaches the rule into those that name the counter, and those that choose
    /// the price of a unit.
    pub fn split<'e>(&self, entries: &'e [Entry]) -> (&'e [Entry], &'e [Entry]) {
        entries.split_at(self.levels().min(entries.len()))
    }

    /// Returns the entries by which a descriptor that reaches the rule names its counter. Those of a settle end with
    /// another key than the rule, and entries that choose a price are not among them.
    pub fn counted<'e>(&self, entries: &'e [Entry]) -> Cow<'e, [Entry]> {
        let (counted, _) = self.split(entries);
        match counted.split_last() {
            Some((last, path)) if self.settles(entries) => {
                let held = Entry { key: HOLD_KEY.into(), value: last.value.clone() };
                Cow::Owned(path.iter().cloned().chain([held]).collect())
            }
            _ => Cow::Borrowed(counted),
        }
    }

    /// Returns whether a descriptor that reaches the rule settles what a stream has used.
    pub fn settles(&self, entries: &[Entry]) -> bool {
        let (counted, _) = self.split(entries);
        counted.last().is_some_and(|last| last.key == SETTLE_KEY) && self.is_budget()
    }

    /// Returns whether statistics distinguish its requests by their values.
    pub fn has_values(&self) -> bool {
        !self.stat_names.is_empty()
    }

    /// Returns the pattern that replaces the entry's value in the counter's name, if all its values share one counter.
    pub fn shared_pattern(&self, level: usize) -> Option<&str> {
        self.shared.get(level)?.as_deref()
    }
}

/// The rules of all domains.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<Arc<str>, Domain>,
    rules: Vec<Rule>,
    origins: Vec<OriginConfig>,
    version: OnceLock<String>,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// Index among all domains.
    pub id: usize,
    /// The name in requests.
    pub name: Arc<str>,
    /// Settings of limits that requests send.
    pub defaults: Defaults,
    /// The entries that each request must bring.
    pub expect: Option<Expect>,
    /// Whether limits of rules take their numbers from requests.
    pub takes_numbers: bool,
    /// The shares that instances have of its limits.
    pub shares: DomainShares,
    /// The place where it is first named.
    pub place: Place,
    pub(super) root: Level,
}

/// The sibling nodes under one parent.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// Number of nodes.
    width: usize,
    pub(super) keys: HashMap<Box<str>, Key>,
    /// Nodes with a wildcard in the key.
    pub(super) patterns: Vec<Pattern>,
}

/// The nodes of one level with the same key, without wildcards.
#[derive(Debug, Default)]
pub(super) struct Key {
    pub(super) values: HashMap<Box<str>, Node>,
    /// Nodes with a wildcard in the value.
    pub(super) patterns: Vec<Pattern>,
    /// The node without a value.
    pub(super) default: Option<Box<Node>>,
}

/// A node with wildcards.
#[derive(Debug)]
pub(super) struct Pattern {
    /// Its rank among the wildcards of its level: the first that matches wins.
    pub(super) order: usize,
    pub(super) key: Wildcard,
    pub(super) value: Wildcard,
    pub(super) node: Node,
}

#[derive(Debug)]
pub(super) struct Node {
    rule: Option<RuleId>,
    pub(super) place: Place,
    pub(super) level: Option<Box<Level>>,
}

/// The index of a rule plus one: `Option` of it is half as large as an index, and every node has one.
#[derive(Clone, Copy, Debug)]
struct RuleId(NonZeroU32);

impl Rules {
    /// Compiles domains. They must have different names, and siblings must differ in key or value, as `validate`
    /// ensures.
    pub fn new(configs: Vec<DomainConfig>) -> Rules {
        let compiled = configs.into_iter().map(|config| {
            let DomainConfig { name, defaults, expect, origins, descriptors } = config;
            let parts = vec![CompiledPart { subtree: Subtree::compile(&name, descriptors), origins }];
            CompiledDomain { name, defaults, expect, parts }
        });
        Rules::join(compiled.collect())
    }

    /// Joins domains with parts that were compiled in parallel.
    pub(super) fn join(domains: Vec<CompiledDomain>) -> Rules {
        let mut rules = Rules::default();
        let parts = || domains.iter().flat_map(|domain| &domain.parts);
        rules.rules.reserve_exact(parts().map(|part| part.subtree.rules.len()).sum());
        rules.origins.reserve_exact(parts().map(|part| part.origins.len()).sum());
        for (id, CompiledDomain { name, defaults, expect, parts }) in domains.into_iter().enumerate() {
            let name: Arc<str> = name.into();
            let (first_rule, first_origin) = (rules.rules.len(), rules.origins.len());
            let mut root = Level::default();
            for CompiledPart { subtree, origins } in parts {
                rules.add(subtree, &mut root);
                rules.origins.extend(origins);
            }
            call_by_name(&mut rules.rules[first_rule..]);
            let mut limits = rules.rules[first_rule..].iter().flat_map(|rule| &rule.limits);
            let takes_numbers = limits.any(|limit| limit.config.options.number.is_some());
            let line = rules.origins.get(first_origin).and_then(|origin| origin.domain);
            let place = Place { origin: first_origin as u32, line };
            let shares = DomainShares::default();
            let domain = Domain { id, name, defaults, expect, takes_numbers, shares, place, root };
            rules.domains.insert(Arc::clone(&domain.name), domain);
        }
        for (id, limit) in rules.rules.iter_mut().flat_map(|rule| &mut rule.limits).enumerate() {
            limit.id = id;
        }
        let shares = rules.domain_shares();
        for (name, domain) in &mut rules.domains {
            domain.shares = shares.get(&**name).copied().unwrap_or_default();
        }
        rules
    }

    /// Adds the rules of a part to those of its domain. The part's indexes start from its own first ones.
    fn add(&mut self, mut subtree: Subtree, root: &mut Level) {
        let origin = self.origins.len() as u32;
        subtree.root.shift(&Shift { rules: self.rules.len() as u32, origin });
        subtree.rules.iter_mut().for_each(|rule| rule.place.origin += origin);
        self.rules.extend(subtree.rules);
        root.join(subtree.root);
    }

    /// Returns the domain of this name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// Finds the rule that a descriptor with these entries reaches.
    ///
    /// At each level an exact value takes precedence over a wildcard, and a wildcard over a key without a value. The
    /// search never backtracks, and only the node that the last entry reaches counts.
    pub fn find(&self, domain: &Domain, entries: &[Entry]) -> Option<&Rule> {
        let (last, path) = entries.split_last()?;
        let mut level = &domain.root;
        for entry in path {
            level = level.find(entry)?.level.as_deref()?;
        }
        self.of(level.find(last)?)
    }

    /// Finds the rule that a descriptor reaches. One that brings a limit along reaches only a rule whose limit takes
    /// its number.
    pub fn find_for(&self, domain: &Domain, descriptor: &Descriptor) -> Option<&Rule> {
        match descriptor.limit {
            None => self.find(domain, &descriptor.entries),
            Some(_) if !domain.takes_numbers => None,
            Some(_) => self.find(domain, &descriptor.entries).filter(|rule| rule.takes_number()),
        }
    }

    /// Returns the rule of requests that end at a node.
    pub(super) fn of(&self, node: &Node) -> Option<&Rule> {
        node.rule.map(|RuleId(id)| &self.rules[id.get() as usize - 1])
    }

    /// Returns the origin of a place, or `None` if the rules have no recorded origin.
    pub fn origin(&self, place: Place) -> Option<&OriginConfig> {
        self.origins.get(place.origin as usize)
    }

    /// Returns the names of the files or other sources that a domain is in, in their order.
    pub fn files_of(&self, domain: &str) -> Vec<&Path> {
        let Some(Domain { place, .. }) = self.domain(domain) else { return Vec::new() };
        let rules = self.rules.iter().filter(|rule| *rule.domain == *domain);
        let mut places: Vec<u32> = rules.map(|rule| rule.place.origin).chain([place.origin]).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().filter_map(|place| self.origins.get(place as usize)).map(|origin| &*origin.name).collect()
    }

    /// Returns every rule, in the order of the files.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns every limit with its rule, in the order of the limits' IDs.
    pub fn limits(&self) -> impl Iterator<Item = (&Rule, &RuleLimit)> {
        self.rules.iter().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)))
    }

    /// Returns the version of the rules, twelve hexadecimal digits; see `version`.
    pub fn version(&self) -> &str {
        self.version.get_or_init(|| version::of(self))
    }

    /// Returns the number of domains.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// Returns the names of the domains, in no particular order.
    pub fn domain_names(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(|name| &**name)
    }
}

impl AsRef<Rules> for Rules {
    fn as_ref(&self) -> &Rules {
        self
    }
}

/// The shift of a part's indexes when it follows other parts.
struct Shift {
    rules: u32,
    origin: u32,
}

impl Level {
    fn shift(&mut self, by: &Shift) {
        self.patterns.iter_mut().for_each(|pattern| pattern.node.shift(by));
        for Key { values, patterns, default } in self.keys.values_mut() {
            values.values_mut().for_each(|node| node.shift(by));
            patterns.iter_mut().for_each(|pattern| pattern.node.shift(by));
            default.iter_mut().for_each(|node| node.shift(by));
        }
    }

    fn key(&mut self, key: Box<str>) -> &mut Key {
        self.keys.entry(key).or_default()
    }

    /// Adds the nodes of another level after its own.
    fn join(&mut self, other: Level) {
        if self.width == 0 {
            *self = other;
            return;
        }
        let after = |mut pattern: Pattern| {
            pattern.order += self.width;
            pattern
        };
        self.patterns.extend(other.patterns.into_iter().map(after));
        for (name, Key { values, patterns, default }) in other.keys {
            let key = self.keys.entry(name).or_default();
            key.values.extend(values);
            key.patterns.extend(patterns.into_iter().map(after));
            key.default = key.default.take().or(default);
        }
        self.width += other.width;
    }

    pub(super) fn find(&self, entry: &Entry) -> Option<&Node> {
        let key = self.keys.get(entry.key.as_str());
        if let Some(node) = key.and_then(|key| key.values.get(entry.value.as_str())) {
            return Some(node);
        }
        let by_value = key.and_then(|key| key.patterns.iter().find(|pattern| pattern.value.matches(&entry.value)));
        let by_key =
            self.patterns.iter().find(|pattern| pattern.key.matches(&entry.key) && pattern.value.matches(&entry.value));
        let pattern = match (by_value, by_key) {
            (Some(a), Some(b)) => Some(if a.order < b.order { a } else { b }),
            (a, b) => a.or(b),
        };
        pattern.map(|pattern| &pattern.node).or_else(|| key?.default.as_deref())
    }
}

impl Node {
    fn shift(&mut self, by: &Shift) {
        self.place.origin += by.origin;
        self.rule = self.rule.map(|RuleId(id)| RuleId(id.saturating_add(by.rules)));
        self.level.iter_mut().for_each(|level| level.shift(by));
    }
}

impl Key {
    /// Returns one of its nodes: the one without a value if there is one, or else the first pattern, or the value that
    /// comes first in its file among a few.
    pub(super) fn first(&self) -> Option<&Node> {
        /// Bounds the search, as there may be a million.
        const LOOKED_AT: usize = 64;
        let pattern = self.patterns.first().map(|pattern| &pattern.node);
        let values = self.values.values().take(LOOKED_AT);
        let default = self.default.as_deref();
        default.or(pattern).or_else(|| values.min_by_key(|node| (node.place.origin, node.place.line)))
    }
}

impl fmt::Display for Pattern {
    /// Writes the pattern as in its file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value.to_string().as_str() {
            "*" if self.key.is_wild() => write!(f, "{}", self.key),
            value => write!(f, "{}={value}", self.key),
        }
    }
}

/// A domain with compiled parts.
#[derive(Debug)]
pub(super) struct CompiledDomain {
    pub(super) name: String,
    pub(super) defaults: Defaults,
    pub(super) expect: Option<Expect>,
    /// Parts in order of precedence. No two have top nodes with the same key and value.
    pub(super) parts: Vec<CompiledPart>,
}

/// The part of a domain that comes from one origin.
#[derive(Debug)]
pub(super) struct CompiledPart {
    pub(super) subtree: Subtree,
    /// Usually one.
    pub(super) origins: Vec<OriginConfig>,
}

/// Compiled descriptors. Their indexes of rules, limits and origins start from their own first ones.
#[derive(Debug, Default)]
pub(super) struct Subtree {
    root: Level,
    rules: Vec<Rule>,
}

impl Subtree {
    /// Compiles the descriptors of a domain.
    pub(super) fn compile(domain: &str, descriptors: Vec<DescriptorConfig>) -> Subtree {
        let mut compiler = Compiler {
            domain: domain.into(),
            rules: Vec::new(),
            path: String::new(),
            shared: Vec::new(),
            stat_names: Vec::new(),
            ends: Vec::new(),
        };
        let root = compiler.level(descriptors);
        let mut rules = compiler.rules;
        rules.shrink_to_fit();
        Subtree { root, rules }
    }
}

/// Walks descriptors and collects their rules.
struct Compiler {
    domain: Arc<str>,
    rules: Vec<Rule>,
    path: String,
    shared: Vec<Option<Box<str>>>,
    /// The names of the levels, for rules without `detailed_metric`.
    stat_names: Vec<StatName>,
    /// The ends of each level, and whether `|` and `=` are ambiguous there.
    ends: Vec<(Ends, bool)>,
}

impl Compiler {
    fn level(&mut self, descriptors: Vec<DescriptorConfig>) -> Level {
        let mut level = Level { width: descriptors.len(), ..Level::default() };
        for (order, descriptor) in descriptors.into_iter().enumerate() {
            let DescriptorConfig { place, key, value, share_threshold, detailed_metric, value_to_metric, .. } =
                descriptor;
            let (path, depth) = (self.path.len(), self.shared.len());
            if !self.path.is_empty() {
                self.path.push('|');
            }
            self.path.push_str(&key);
            let key_end = self.path.len();
            if let Some(value) = &value {
                self.path.push('=');
                self.path.push_str(value);
            }
            let is_odd = key.contains(['=', '|']) || value.as_deref().is_some_and(|value| value.contains('|'));
            self.ends.push((Ends { key: key_end as u32, level: self.path.len() as u32 }, is_odd));
            self.shared.push(share_threshold.then(|| value.as_deref().unwrap_or("*").into()));
            self.stat_names.push(if value_to_metric { StatName::Value } else { StatName::Rule });
            let names = self.stat_names(detailed_metric);
            let mut node = self.node(place, names, descriptor.rule, descriptor.descriptors);
            self.stat_names.truncate(depth);
            self.ends.truncate(depth);
            self.path.truncate(path);
            self.shared.truncate(depth);

            let rule = |RuleId(id): RuleId| &self.rules[id.get() as usize - 1];
            if let Some(id) = node.rule.filter(|id| rule(*id).is_budget()).filter(|_| value.is_none()) {
                let weigh_by = rule(id).weigh_by();
                let settles = Node { rule: Some(id), place, level: weighing(weigh_by, id, place) };
                level.key(SETTLE_KEY.into()).default = Some(Box::new(settles));
                // Validation leaves no descriptors there.
                node.level = node.level.or_else(|| weighing(weigh_by, id, place));
            }

            let wild_key = key.contains('*');
            if !wild_key && !value.as_deref().is_some_and(|value| value.contains('*')) {
                let key = level.key(key);
                match value {
                    Some(value) => drop(key.values.insert(value, node)),
                    None => key.default = Some(Box::new(node)),
                }
                continue;
            }
            let pattern = Pattern {
                order,
                key: Wildcard::new(&key),
                value: Wildcard::new(value.as_deref().unwrap_or("*")),
                node,
            };
            if wild_key {
                level.patterns.push(pattern);
            } else {
                level.key(key).patterns.push(pattern);
            }
        }
        level
    }

    /// Returns the names of the levels of a node, with or without `detailed_metric`. A shared value is never named.
    fn stat_names(&self, detailed_metric: bool) -> Box<[StatName]> {
        let name = |(own, shared): (&StatName, &Option<Box<str>>)| match (own, shared) {
            (_, Some(_)) => StatName::Rule,
            _ if detailed_metric => StatName::AnyValue,
            (own, None) => *own,
        };
        let names = || self.stat_names.iter().zip(&self.shared).map(name);
        if names().all(|name| name == StatName::Rule) { Box::default() } else { names().collect() }
    }

    fn node(
        &mut self,
        place: Place,
        stat_names: Box<[StatName]>,
        rule: Option<RuleConfig>,
        descriptors: Vec<DescriptorConfig>,
    ) -> Node {
        let rule = rule.and_then(|RuleConfig { role, metadata, limits }| {
            let (path, several): (Arc<str>, _) = (self.path.as_str().into(), limits.len() > 1);
            let limits = limits.into_iter().enumerate().map(|(i, config)| limit(&path, several.then_some(i), config));
            let limits = limits.collect();
            let any_shared = self.shared.iter().any(Option::is_some);
            let is_odd = self.ends.iter().any(|(_, is_odd)| *is_odd);
            let ends = self.ends.iter().filter(|_| is_odd).map(|(ends, _)| *ends).collect();
            self.rules.push(Rule {
                domain: Arc::clone(&self.domain),
                path,
                place,
                role,
                metadata,
                limits,
                levels: self.shared.len() as u32,
                shared: if any_shared { self.shared.clone().into() } else { Box::default() },
                stat_names,
                ends,
            });
            // A file with four billion rules does not fit in memory.
            u32::try_from(self.rules.len()).ok().and_then(NonZeroU32::new).map(RuleId)
        });
        let level = (!descriptors.is_empty()).then(|| Box::new(self.level(descriptors)));
        Node { rule, place, level }
    }
}

/// Builds the levels of the entries that choose a price: each of them reaches the rule, with any value, and any of them
/// may be missing. Envoy leaves out an entry whose header is absent, and a settle must not be free for it.
fn weighing(keys: &[Box<str>], id: RuleId, place: Place) -> Option<Box<Level>> {
    let mut level = Level { width: keys.len(), ..Level::default() };
    for (at, key) in keys.iter().enumerate() {
        let node = Node { rule: Some(id), place, level: weighing(&keys[at + 1..], id, place) };
        level.key(key.clone()).default = Some(Box::new(node));
    }
    (!keys.is_empty()).then(|| Box::new(level))
}

/// Builds a limit of the rule with this path. `place` is its index among the rule's limits if there are several.
fn limit(path: &Arc<str>, place: Option<usize>, RuleLimitConfig { line, name, config }: RuleLimitConfig) -> RuleLimit {
    let label = match (&name, place) {
        (Some(name), _) => format!("{path}#{name}").into(),
        (None, None) => Arc::clone(path),
        (None, Some(place)) => format!("{path}#{place}").into(),
    };
    // IDs are assigned once all limits are known.
    RuleLimit { id: 0, label, line, name, config }
}

/// Labels each limit of a domain by its name if nothing else in the domain has that name.
fn call_by_name(rules: &mut [Rule]) {
    let mut called: HashMap<Arc<str>, u32> = HashMap::new();
    for name in rules.iter().flat_map(|rule| &rule.limits).filter_map(|limit| limit.name.as_ref()) {
        *called.entry(Arc::clone(name)).or_default() += 1;
    }
    if called.is_empty() {
        return;
    }
    for limit in rules.iter().flat_map(|rule| &rule.limits).filter(|limit| limit.name.is_none()) {
        if let Some(times) = called.get_mut(&limit.label) {
            *times += 1;
        }
    }
    for limit in rules.iter_mut().flat_map(|rule| &mut rule.limits) {
        if let Some(name) = limit.name.as_ref().filter(|name| called.get(*name) == Some(&1)) {
            limit.label = Arc::clone(name);
        }
    }
}
