//! The rules in force: a compiled snapshot that never changes, and the walk from a descriptor to its rule.

use std::sync::Arc;

// Its hash is fast, and no match for a client that chooses names: these come from the rules alone.
use hashbrown::HashMap;

use super::checked::{Defaults, DescriptorConfig, DomainConfig, LimitConfig, RuleConfig};
use crate::descriptor::{Entry, Role};

/// A rule in force.
#[derive(Debug)]
pub struct Rule {
    /// The domain it belongs to.
    pub domain: Arc<str>,
    /// Its place in the tree, as its file has it: `key=value` for each level, joined by `|`.
    pub path: Box<str>,
    /// What a denial means for the request.
    pub role: Role,
    /// Every one of them must let the request pass.
    pub limits: Box<[RuleLimit]>,
    /// For each level, the pattern whose values share one counter.
    shared: Box<[Option<Box<str>>]>,
}

/// A limit of a rule in force.
#[derive(Debug)]
pub struct RuleLimit {
    /// Its place among all limits.
    pub id: usize,
    /// What metrics call it: the rule's path; of several, `path#name` or, without a name, `path#0`.
    pub label: Box<str>,
    /// What it says.
    pub config: LimitConfig,
}

impl Rule {
    /// How many entries a descriptor has that reaches it.
    pub fn levels(&self) -> usize {
        self.shared.len()
    }

    /// The pattern that stands for the entry's value in the counter's name, where all its values share one counter.
    pub fn shared_pattern(&self, level: usize) -> Option<&str> {
        self.shared.get(level)?.as_deref()
    }
}

/// Every domain's rules.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<Arc<str>, Domain>,
    rules: Vec<Rule>,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// Its place among all domains.
    pub id: usize,
    /// What requests call it.
    pub name: Arc<str>,
    /// What an override is.
    pub defaults: Defaults,
    root: Level,
}

/// The nodes beside each other under one parent.
#[derive(Debug, Default)]
struct Level {
    keys: HashMap<Box<str>, Key>,
    /// Nodes whose key has a wildcard.
    patterns: Vec<Pattern>,
}

/// The nodes of one level whose key is spelled out.
#[derive(Debug, Default)]
struct Key {
    values: HashMap<Box<str>, Node>,
    /// Nodes whose value has a wildcard.
    patterns: Vec<Pattern>,
    /// The node without a value.
    default: Option<Box<Node>>,
}

/// A node found by matching.
#[derive(Debug)]
struct Pattern {
    /// Its place among the wildcards of its level: the first that matches wins.
    order: usize,
    key: Wildcard,
    value: Wildcard,
    node: Node,
}

#[derive(Debug, Default)]
struct Node {
    rule: Option<usize>,
    level: Option<Box<Level>>,
}

impl Rules {
    /// Compiles what the files say. Domains have different names, and siblings differ in key or value: `validate` has
    /// seen to it.
    pub fn new(configs: Vec<DomainConfig>) -> Rules {
        let mut rules = Rules::default();
        let mut limits = 0;
        for (id, config) in configs.into_iter().enumerate() {
            let name: Arc<str> = config.name.into();
            let mut compiler = Compiler {
                domain: &name,
                rules: &mut rules.rules,
                limits: &mut limits,
                path: String::new(),
                shared: Vec::new(),
            };
            let root = compiler.level(config.descriptors);
            let domain = Domain { id, name: Arc::clone(&name), defaults: config.defaults, root };
            rules.domains.insert(name, domain);
        }
        rules
    }

    /// The domain of this name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// The rule that a descriptor of these entries reaches.
    ///
    /// At each level an exact value wins over a wildcard, and a wildcard over a key without value. There is no going
    /// back, and only the node that the last entry reaches counts.
    pub fn find(&self, domain: &Domain, entries: &[Entry]) -> Option<&Rule> {
        let (last, path) = entries.split_last()?;
        let mut level = &domain.root;
        for entry in path {
            level = level.find(entry)?.level.as_deref()?;
        }
        level.find(last)?.rule.map(|id| &self.rules[id])
    }

    /// Every rule, in the order of the files.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Every limit with its rule, in the order of the limits' ids.
    pub fn limits(&self) -> impl Iterator<Item = (&Rule, &RuleLimit)> {
        self.rules.iter().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)))
    }

    /// How many domains there are.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// What requests call the domains, in no order.
    pub fn domain_names(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(|name| &**name)
    }
}

impl Level {
    fn find(&self, entry: &Entry) -> Option<&Node> {
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

/// Walks one domain's configuration and collects its rules.
struct Compiler<'a> {
    domain: &'a Arc<str>,
    rules: &'a mut Vec<Rule>,
    /// How many limits there are yet.
    limits: &'a mut usize,
    path: String,
    shared: Vec<Option<Box<str>>>,
}

impl Compiler<'_> {
    fn level(&mut self, descriptors: Vec<DescriptorConfig>) -> Level {
        let mut level = Level::default();
        for (order, descriptor) in descriptors.into_iter().enumerate() {
            let DescriptorConfig { key, value, share_threshold, rule, descriptors } = descriptor;
            let (path, depth) = (self.path.len(), self.shared.len());
            if !self.path.is_empty() {
                self.path.push('|');
            }
            self.path.push_str(&key);
            if let Some(value) = &value {
                self.path.push('=');
                self.path.push_str(value);
            }
            self.shared.push(share_threshold.then(|| value.as_deref().unwrap_or("*").into()));
            let node = self.node(rule, descriptors);
            self.path.truncate(path);
            self.shared.truncate(depth);

            let wild_key = key.contains('*');
            if !wild_key && !value.as_deref().is_some_and(|value| value.contains('*')) {
                let key = level.keys.entry(key.into()).or_default();
                match value {
                    Some(value) => drop(key.values.insert(value.into(), node)),
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
                level.keys.entry(key.into()).or_default().patterns.push(pattern);
            }
        }
        level
    }

    fn node(&mut self, rule: Option<RuleConfig>, descriptors: Vec<DescriptorConfig>) -> Node {
        let rule = rule.map(|RuleConfig { role, limits }| {
            let id = self.rules.len();
            let several = limits.len() > 1;
            let limits = limits.into_iter().enumerate().map(|(i, config)| self.limit(several.then_some(i), config));
            let limits = limits.collect();
            self.rules.push(Rule {
                domain: Arc::clone(self.domain),
                path: self.path.as_str().into(),
                role,
                limits,
                shared: self.shared.clone().into(),
            });
            id
        });
        let level = (!descriptors.is_empty()).then(|| Box::new(self.level(descriptors)));
        Node { rule, level }
    }

    /// `place` among the limits of the rule, if there are several.
    fn limit(&mut self, place: Option<usize>, config: LimitConfig) -> RuleLimit {
        let id = *self.limits;
        *self.limits += 1;
        let label = match place {
            None => self.path.clone(),
            Some(_) if !config.name.is_empty() => format!("{}#{}", self.path, config.name),
            Some(place) => format!("{}#{place}", self.path),
        };
        RuleLimit { id, label: label.into(), config }
    }
}

/// A text in which each `*` stands for any characters, or none.
#[derive(Debug)]
struct Wildcard {
    /// The pieces between the stars.
    pieces: Box<[Box<str>]>,
}

impl Wildcard {
    fn new(pattern: &str) -> Wildcard {
        Wildcard { pieces: pattern.split('*').map(Into::into).collect() }
    }

    fn matches(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &*self.pieces else {
            return *self.pieces[0] == *text;
        };
        let Some(text) = text.strip_prefix(&**first) else { return false };
        let Some(mut text) = text.strip_suffix(&**last) else { return false };
        middle.iter().all(|piece| match text.find(&**piece) {
            Some(at) => {
                text = &text[at + piece.len()..];
                true
            }
            None => false,
        })
    }
}
