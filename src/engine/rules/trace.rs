//! Traces how a descriptor matches the rules or fails to, for people who ask why no limit applies.
//!
//! The matching is that of `compiled`, so a trace shows what really happens. The search for near misses is bounded,
//! regardless of the number of rules: of a million sibling names, some are not compared.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ptr;

use serde::{Deserialize, Serialize};

use super::checked::Place;
use super::compiled::{Domain, Key, Level, Node, Rule, Rules};
use super::report::{nearest, quoted};
use super::validate::MAX_LEVELS;
use crate::descriptor::Entry;

/// Largest number of misses reported for a descriptor.
const TOLD: usize = 4;

/// Number of a level's names to list if none is similar.
const NAMED: usize = 8;

/// Longest name that is compared.
const COMPARED_BYTES: usize = 128;

/// Remaining work for the search of near misses. One unit is about the comparison of two short names.
#[derive(Debug)]
pub struct Budget(usize);

/// The trace of one descriptor.
#[derive(Debug)]
pub struct Trace<'r> {
    /// The nodes that its entries matched, from the top level on.
    pub steps: Vec<Step>,
    /// The rule that the last entry reaches.
    pub rule: Option<&'r Rule>,
    /// Without a rule: the reasons, the likeliest first, at least one.
    pub misses: Vec<Miss>,
}

/// A node that an entry matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The node as written in its file: `key` or `key=value`.
    pub node: String,
    /// The reason for the match.
    pub by: MatchedBy,
    /// The node's place.
    pub place: Place,
}

/// Reasons for a node to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchedBy {
    /// It has the value.
    Value,
    /// Its key or its value has a wildcard.
    Wildcard,
    /// It has the key and no value.
    Key,
}

/// A reason why a descriptor reaches no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The part of the descriptor that is wrong.
    pub what: Missed,
    /// An explanation, with what would be right.
    pub words: String,
    /// The place of the rule that was missed.
    pub place: Option<Place>,
}

/// The part of a descriptor that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// The domain.
    Domain,
    /// An entry's key.
    Key,
    /// An entry's value.
    Value,
    /// The order of its entries.
    Order,
    /// The number of entries.
    Depth,
    /// Its entries match a rule, but a node with precedence leads elsewhere.
    Hidden,
    /// It reaches a node without a limit.
    NoLimit,
}

impl Budget {
    /// Budget of an answer to a person who waits for it: some milliseconds.
    pub const PERSON: usize = 40_000;

    /// Budget of an answer during other requests: some tenths of a millisecond.
    pub const REQUEST: usize = 2_000;

    /// Creates a budget of this much work.
    pub fn new(work: usize) -> Budget {
        Budget(work)
    }

    /// Spends some work. Returns `false` if too little was left.
    fn spend(&mut self, work: usize) -> bool {
        let left = self.0.checked_sub(work);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

impl Rules {
    /// Traces a descriptor with these entries, by the same path as [`Rules::find`].
    pub fn trace(&self, domain: &Domain, entries: &[Entry], budget: &mut Budget) -> Trace<'_> {
        let domain = self.domain(&domain.name).unwrap_or(domain);
        let mut passed: Vec<(&Level, &Node)> = Vec::new();
        let mut next = Some(&domain.root);
        for entry in entries {
            let Some((level, node)) = next.and_then(|level| Some((level, level.find(entry)?))) else { break };
            passed.push((level, node));
            next = node.level.as_deref();
        }
        let steps = passed.iter().zip(entries).map(|((level, node), entry)| step(level, node, entry)).collect();
        let last = passed.last().filter(|_| passed.len() == entries.len());
        let rule = last.and_then(|(_, node)| self.of(node));
        let misses = match rule {
            Some(_) => Vec::new(),
            None => {
                let mut search = Search { rules: self, entries, passed, root: &domain.root, budget, found: Vec::new() };
                search.search();
                search.found.truncate(TOLD);
                search.found
            }
        };
        Trace { steps, rule, misses }
    }

    /// Explains a domain that the rules do not have.
    pub fn missed_domain(&self, name: &str, budget: &mut Budget) -> Miss {
        let names = some(self.domain_names(), name, budget);
        let lead = format!("domain {}", quoted(name));
        let mut miss = Miss { what: Missed::Domain, words: String::new(), place: None };
        let place = |near: &str| self.domain(near).map(|domain| domain.place);
        if let Some((near, why)) = spelled(name).iter().find(|(near, _)| self.domain(near).is_some()) {
            (miss.words, miss.place) = (format!("{lead} {why}: the rules have {}", quoted(near)), place(near));
        } else if let Some(near) = same_letters(name, &names).or_else(|| nearest(name, &names)) {
            (miss.words, miss.place) = (format!("{lead}: did you mean {}?", quoted(near)), place(near));
        } else if names.is_empty() {
            miss.words = format!("{lead}: no rules are in force");
        } else {
            miss.words = format!("{lead}: the rules have {}", list(&names, self.domains()));
        }
        miss
    }

    /// Explains a filter that selects no limit: a domain that the rules do not have, or a label that no limit has, in
    /// that domain if one is given. `None` if the filter selects a limit.
    pub fn missed_filter(&self, domain: Option<&str>, label: Option<&str>, budget: &mut Budget) -> Option<String> {
        if let Some(domain) = domain.filter(|name| self.domain(name).is_none()) {
            return Some(self.missed_domain(domain, budget).words);
        }
        let label = label?;
        let limits = self.limits().filter(|(rule, _)| domain.is_none_or(|domain| domain == &*rule.domain));
        let labels: BTreeSet<&str> = limits.map(|(_, limit)| &*limit.label).collect();
        if labels.contains(label) {
            return None;
        }
        let names = some(labels.iter().copied(), label, budget);
        let lead = format!("rule {}", quoted(label));
        Some(match same_letters(label, &names).or_else(|| nearest(label, &names)) {
            Some(near) => format!("{lead}: did you mean {}?", quoted(near)),
            None => format!("{lead}: the rules have {}", list(&names, labels.len())),
        })
    }
}

/// Describes the node that an entry matched.
fn step(level: &Level, node: &Node, entry: &Entry) -> Step {
    let key = level.keys.get(entry.key.as_str());
    let is_it = |found: Option<&Node>| found.is_some_and(|found| ptr::eq(found, node));
    let (node_words, by) = if is_it(key.and_then(|key| key.values.get(entry.value.as_str()))) {
        (Named { key: &entry.key, value: Some(&entry.value) }.to_string(), MatchedBy::Value)
    } else if is_it(key.and_then(|key| key.default.as_deref())) {
        (entry.key.to_string(), MatchedBy::Key)
    } else {
        let patterns = key.map_or(&[][..], |key| &key.patterns).iter().chain(&level.patterns);
        let pattern = patterns.into_iter().find(|pattern| ptr::eq(&raw const pattern.node, node));
        (pattern.map_or_else(|| entry.key.to_string(), ToString::to_string), MatchedBy::Wildcard)
    };
    Step { node: node_words, by, place: node.place }
}

/// The search for the rules that a descriptor probably meant.
struct Search<'r, 'b> {
    rules: &'r Rules,
    entries: &'b [Entry],
    /// The levels and nodes of the entries that matched.
    passed: Vec<(&'r Level, &'r Node)>,
    root: &'r Level,
    budget: &'b mut Budget,
    found: Vec<Miss>,
}

impl<'r> Search<'r, '_> {
    fn search(&mut self) {
        let entries = self.entries;
        if entries.is_empty() {
            return self.add(Missed::Depth, "it has no entries, but a rule needs at least one".into(), None);
        }
        let at = self.passed.len();
        let level = match self.passed.last() {
            None => Some(self.root),
            Some((_, node)) => node.level.as_deref(),
        };
        self.with_half(Search::hidden);
        match (level, entries.get(at)) {
            (Some(level), Some(entry)) => self.no_match(level, entry),
            (None, Some(entry)) => {
                self.with_half(Search::order);
                self.too_deep(entry);
            }
            (_, None) => {
                self.with_half(Search::order);
                self.no_limit();
            }
        }
    }

    /// Runs a search with half of the remaining budget, and keeps the rest for later searches.
    fn with_half(&mut self, search: impl FnOnce(&mut Self)) {
        let kept = self.budget.0 / 2;
        self.budget.0 -= kept;
        search(self);
        self.budget.0 += kept;
    }

    fn add(&mut self, what: Missed, words: String, place: Option<Place>) {
        self.found.push(Miss { what, words, place });
    }

    /// Finds a rule hidden by a node with precedence over another, below which the remaining entries would match.
    fn hidden(&mut self) {
        for at in (0..self.passed.len()).rev() {
            let ((level, winner), (entry, rest)) = (self.passed[at], (&self.entries[at], &self.entries[at + 1..]));
            let others = self.others(level, winner, entry);
            let found = others.into_iter().find_map(|(name, node)| Some((name, self.rule_below(node, rest)?)));
            if let Some((other, rule)) = found {
                let words = format!(
                    "{} takes precedence over {}, under which {} would match; other branches are not tried",
                    quoted(&step(level, winner, entry).node),
                    quoted(&other),
                    quoted(&rule.path)
                );
                return self.add(Missed::Hidden, words, Some(rule.place));
            }
        }
    }

    /// Returns the other nodes of a level that would match an entry if `winner` did not have precedence.
    fn others(&mut self, level: &'r Level, winner: &Node, entry: &Entry) -> Vec<(String, &'r Node)> {
        let key = level.keys.get(entry.key.as_str());
        let mut others = Vec::new();
        for pattern in key.map_or(&[][..], |key| &key.patterns).iter().chain(&level.patterns) {
            if !self.budget.spend(1) {
                break;
            }
            if pattern.key.matches(&entry.key) && pattern.value.matches(&entry.value) {
                others.push((pattern.order, pattern.to_string(), &pattern.node));
            }
        }
        others.sort_unstable_by_key(|(order, ..)| *order);
        let mut others: Vec<_> = others.into_iter().map(|(_, name, node)| (name, node)).collect();
        others.extend(key.and_then(|key| Some((entry.key.to_string(), key.default.as_deref()?))));
        others.retain(|(_, node)| !ptr::eq(*node, winner));
        others
    }

    /// Returns the rule that these entries reach from below a node.
    fn rule_below(&mut self, node: &'r Node, entries: &[Entry]) -> Option<&'r Rule> {
        let mut node = node;
        for entry in entries {
            node = self.find(node.level.as_deref()?, entry)?;
        }
        self.rules.of(node)
    }

    /// Finds the node that an entry matches on a level. Costs as much as there are patterns.
    fn find(&mut self, level: &'r Level, entry: &Entry) -> Option<&'r Node> {
        let patterns = level.keys.get(entry.key.as_str()).map_or(0, |key| key.patterns.len());
        self.budget.spend(1 + patterns + level.patterns.len()).then(|| level.find(entry))?
    }

    /// Explains an entry that matches nothing on its level.
    fn no_match(&mut self, level: &'r Level, entry: &Entry) {
        let key = level.keys.get(entry.key.as_str());
        let before = self.found.len();
        match key {
            Some(_) => self.other_spelling(level, entry, Missed::Value),
            None => self.other_spelling(level, entry, Missed::Key),
        }
        if self.found.len() > before {
            return;
        }
        self.with_half(Search::order);
        self.with_half(|search| search.one_entry_more_or_less(level, entry));
        match key {
            Some(key) => self.unknown_value(key, entry),
            None => self.unknown_key(level, entry),
        }
    }

    /// Checks whether the entry matches with a slightly different spelling of its key or value.
    fn other_spelling(&mut self, level: &'r Level, entry: &Entry, what: Missed) {
        let given = if what == Missed::Key { &entry.key } else { &entry.value };
        for (other, why) in spelled(given) {
            let mut other_entry = entry.clone();
            if what == Missed::Key {
                if !level.keys.contains_key(&*other) {
                    continue;
                }
                other_entry.key = other.into();
            } else {
                other_entry.value = other.into();
            }
            if let Some(node) = self.find(level, &other_entry) {
                let found = step(level, node, &other_entry).node;
                let (name, of) = self.named(entry, what);
                let words = format!("{name} {}{of} {why}: the rules have {}", quoted(given), quoted(&found));
                return self.add(what, words, Some(node.place));
            }
        }
    }

    /// Returns the name of an entry's key or value for a message.
    fn named(&self, entry: &Entry, what: Missed) -> (&'static str, String) {
        match what {
            Missed::Key => ("key", String::new()),
            _ => ("value", format!(" of {}", quoted(&entry.key))),
        }
    }

    fn unknown_key(&mut self, level: &'r Level, entry: &Entry) {
        let names = some(level.keys.keys().map(|key| &**key), &entry.key, self.budget);
        let near = same_letters(&entry.key, &names).or_else(|| nearest(&entry.key, &names));
        let place = near.and_then(|near| level.keys.get(near)).and_then(Key::first).map(|node| node.place);
        let lead = format!("key {}", quoted(&entry.key));
        let case =
            if near.is_some_and(|near| near.eq_ignore_ascii_case(&entry.key)) { ", the case differs" } else { "" };
        let patterns = level.patterns.iter().take(NAMED).map(ToString::to_string);
        let patterns: Vec<String> = patterns.collect();
        let all: Vec<&str> = names.iter().copied().chain(patterns.iter().map(|pattern| &**pattern)).collect();
        let count = level.keys.len() + level.patterns.len();
        let names = list(&all, count);
        let words = match near {
            Some(near) if count > 1 => format!("{lead}: did you mean {}{case}? this level has {names}", quoted(near)),
            _ => format!("{lead}: this level has {names}{case}"),
        };
        self.add(Missed::Key, words, place);
    }

    fn unknown_value(&mut self, key: &'r Key, entry: &Entry) {
        let names = some(key.values.keys().map(|value| &**value), &entry.value, self.budget);
        let near = same_letters(&entry.value, &names).or_else(|| nearest(&entry.value, &names));
        let place = near.and_then(|near| key.values.get(near)).or_else(|| key.first()).map(|node| node.place);
        let lead = format!("value {} of {}", quoted(&entry.value), quoted(&entry.key));
        let words = match near {
            Some(near) if near.eq_ignore_ascii_case(&entry.value) => {
                format!("{lead}: the case differs: the rules have {}", quoted(near))
            }
            Some(near) => format!("{lead}: did you mean {}?", quoted(near)),
            None => {
                let patterns: Vec<String> =
                    key.patterns.iter().take(NAMED).map(|pattern| pattern.value.to_string()).collect();
                let all: Vec<&str> = names.into_iter().chain(patterns.iter().map(|pattern| &**pattern)).collect();
                format!("{lead}: this level has {}", list(&all, key.values.len() + key.patterns.len()))
            }
        };
        self.add(Missed::Value, words, place);
    }

    /// Checks whether the entries reach a rule in another order.
    fn order(&mut self) {
        // Rules are no deeper than this, and each entry takes one level.
        if self.entries.len() > MAX_LEVELS {
            return;
        }
        let mut order = Vec::with_capacity(self.entries.len());
        let mut left: Vec<usize> = (0..self.entries.len()).collect();
        if let Some(rule) = self.reordered(self.root, &mut left, &mut order) {
            let keys: Vec<&str> = order.iter().map(|index| &*self.entries[*index].key).collect();
            let words = format!("the rule's order is {}", keys.join(", "));
            self.add(Missed::Order, words, Some(rule.place));
        }
    }

    /// Tries each remaining entry on a level, and the others below it.
    fn reordered(&mut self, level: &'r Level, left: &mut Vec<usize>, order: &mut Vec<usize>) -> Option<&'r Rule> {
        for place in 0..left.len() {
            let index = left.remove(place);
            order.push(index);
            let rule = self.find(level, &self.entries[index]).and_then(|node| {
                if left.is_empty() {
                    return self.rules.of(node);
                }
                self.reordered(node.level.as_deref()?, left, order)
            });
            if rule.is_some() {
                return rule;
            }
            order.pop();
            left.insert(place, index);
        }
        None
    }

    /// Checks whether a rule is reached with one more entry before this one, or without this one.
    fn one_entry_more_or_less(&mut self, level: &'r Level, entry: &Entry) {
        let rest = &self.entries[self.passed.len() + 1..];
        let below = self.nodes(level).into_iter().find_map(|(name, node)| {
            let found = self.find(node.level.as_deref()?, entry)?;
            Some((name, self.rule_below(found, rest)?))
        });
        if let Some((parent, rule)) = below {
            let key = quoted(&entry.key);
            let words = format!("{key} is one level below {}: send that entry first", quoted(&parent));
            self.add(Missed::Depth, words, Some(rule.place));
        }
        if let Some((first, rest)) = rest.split_first()
            && let Some(node) = self.find(level, first)
            && let Some(rule) = self.rule_below(node, rest)
        {
            let words = format!("without {} it matches {}", quoted(&entry.key), quoted(&rule.path));
            self.add(Missed::Depth, words, Some(rule.place));
        }
    }

    /// Explains entries left over after the rules end.
    fn too_deep(&mut self, entry: &Entry) {
        let Some((_, node)) = self.passed.last() else { return };
        let last = &self.entries[self.passed.len() - 1];
        let words = format!("the rules end at {}, and {} comes after it", quoted(&last.key), quoted(&entry.key));
        self.add(Missed::Depth, words, Some(node.place));
    }

    /// Explains entries that all match, but end at a node without a limit.
    fn no_limit(&mut self) {
        let Some((_, node)) = self.passed.last() else { return };
        let node = *node;
        match self.first_rule_below(node) {
            Some((levels, names, rule)) => {
                let below = match levels {
                    1 => "one level".to_owned(),
                    levels => format!("{levels} levels"),
                };
                let words = format!("the rule ends {below} below, at {}", quoted(&names));
                self.add(Missed::Depth, words, Some(rule.place));
            }
            None => self.add(
                Missed::NoLimit,
                "the node that matches the last entry has no limit: write a rate_limit there".into(),
                Some(node.place),
            ),
        }
    }

    /// Finds the rule that is the fewest levels below a node, with the number of levels and the nodes leading to it.
    /// Among several, the one that comes first in its file.
    fn first_rule_below(&mut self, node: &'r Node) -> Option<(usize, String, &'r Rule)> {
        let mut nodes = vec![(String::new(), node)];
        for levels in 1.. {
            let mut below = Vec::new();
            for (path, node) in nodes {
                let Some(level) = node.level.as_deref() else { continue };
                let names = self.nodes(level).into_iter();
                let join = |name: String| if path.is_empty() { name } else { format!("{path}|{name}") };
                below.extend(names.map(|(name, node)| (join(name), node)));
            }
            let rules = below.iter().filter_map(|(path, node)| Some((path, self.rules.of(node)?)));
            if let Some((path, rule)) = rules.min_by_key(|(_, rule)| (rule.place.origin, rule.place.line)) {
                return Some((levels, path.clone(), rule));
            }
            if below.is_empty() {
                break;
            }
            nodes = below;
        }
        None
    }

    /// Returns the nodes of a level with their names, as far as the budget allows.
    fn nodes(&mut self, level: &'r Level) -> Vec<(String, &'r Node)> {
        let mut nodes = Vec::new();
        for (key, of_key) in &level.keys {
            let values = of_key.values.iter().map(|(value, node)| (Some(&**value), node));
            let default = of_key.default.iter().map(|node| (None, &**node));
            for (value, node) in default.chain(values) {
                if !self.budget.spend(1) {
                    return nodes;
                }
                nodes.push((Named { key, value }.to_string(), node));
            }
            let patterns = of_key.patterns.iter().take_while(|_| self.budget.spend(1));
            nodes.extend(patterns.map(|pattern| (pattern.to_string(), &pattern.node)));
        }
        let patterns = level.patterns.iter().take_while(|_| self.budget.spend(1));
        nodes.extend(patterns.map(|pattern| (pattern.to_string(), &pattern.node)));
        // A map has no order, and the same question should get the same answer.
        nodes.sort_by_key(|(_, node)| (node.place.origin, node.place.line));
        nodes
    }
}

/// The name of a node.
struct Named<'n> {
    key: &'n str,
    value: Option<&'n str>,
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key)?;
        match self.value {
            Some(value) => write!(f, "={value}"),
            None => Ok(()),
        }
    }
}

/// Returns likely alternatives to a text, each with the fault of the given one.
fn spelled(given: &str) -> Vec<(Cow<'_, str>, &'static str)> {
    let trimmed = given.trim();
    let cut = [
        (trimmed, "has spaces around it"),
        (trimmed.trim_matches(['"', '\'']), "has quotes around it"),
        (given.split(['?', '#']).next().unwrap_or_default(), "has a query"),
        (given.strip_suffix('/').unwrap_or_default(), "has a slash at its end"),
        (given.strip_prefix('/').unwrap_or_default(), "has a slash before it"),
    ];
    let grown = [
        (given.to_lowercase(), "differs in case"),
        (format!("{given}/"), "has no slash at its end"),
        (format!("/{given}"), "has no slash before it"),
    ];
    let cut = cut.map(|(other, why)| (Cow::Borrowed(other), why));
    let grown = grown.map(|(other, why)| (Cow::Owned(other), why));
    cut.into_iter().chain(grown).filter(|(other, _)| *other != given && !other.is_empty()).collect()
}

/// Returns as many of the names as the budget allows to compare with the given one, sorted.
fn some<'n>(names: impl Iterator<Item = &'n str>, given: &str, budget: &mut Budget) -> Vec<&'n str> {
    let work = |name: &str| 2 + given.len().min(COMPARED_BYTES) * name.len() / 64;
    let short = names.filter(|name| name.len() <= COMPARED_BYTES);
    let mut some: Vec<&str> = short.take_while(|name| budget.spend(work(name))).collect();
    // A map has no order, and the same question should get the same answer.
    some.sort_unstable();
    some
}

/// Returns the name that differs only in letter case.
fn same_letters<'n>(given: &str, names: &[&'n str]) -> Option<&'n str> {
    names.iter().find(|name| name.eq_ignore_ascii_case(given)).copied()
}

/// Lists the first names, and how many more there are.
fn list(names: &[&str], all: usize) -> String {
    let mut words: Vec<String> = names.iter().take(NAMED).map(|name| quoted(name)).collect();
    match all.saturating_sub(words.len()) {
        0 if words.is_empty() => words.push("no rules".to_owned()),
        0 => {}
        more if words.is_empty() => words.push(format!("{more} others")),
        more => words.push(format!("and {more} more")),
    }
    words.join(", ")
}
