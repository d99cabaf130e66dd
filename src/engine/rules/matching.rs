//! The rules that descriptors of a pattern reach.

use super::compiled::{Domain, Key, Level, Node, Rule, Rules};
use crate::adjustment::{DescriptorPattern, EntryPattern, ValuePattern};
use crate::descriptor::Entry;
use crate::wildcard::Wildcard;

impl Rules {
    /// Returns the rules that descriptors of this pattern may reach, each once. A rule is among them even if another
    /// one takes precedence for each of its values.
    pub fn reached_by(&self, domain: &Domain, DescriptorPattern(entries): &DescriptorPattern) -> Vec<&Rule> {
        let Some((last, path)) = entries.split_last() else { return Vec::new() };
        let mut levels = vec![&domain.root];
        for entry in path {
            levels = levels.into_iter().flat_map(|level| level.reached(entry)).filter_map(below).collect();
        }
        levels.into_iter().flat_map(|level| level.reached(last)).filter_map(|node| self.of(node)).collect()
    }
}

fn below(node: &Node) -> Option<&Level> {
    node.level.as_deref()
}

impl Level {
    /// Returns the nodes that entries of a pattern may reach.
    fn reached(&self, entry: &EntryPattern) -> Vec<&Node> {
        let wildcard = match &entry.value {
            ValuePattern::Like(wildcard) => wildcard,
            ValuePattern::Exactly(value) => {
                let exact = Entry { key: entry.key.clone(), value: value.clone() };
                return self.find(&exact).into_iter().collect();
            }
        };
        let overlaps = |other: &Wildcard| other.overlaps(wildcard);
        let mut found = Vec::new();
        if let Some(Key { values, patterns, default }) = self.keys.get(entry.key.as_str()) {
            found.extend(values.iter().filter(|(value, _)| wildcard.matches(value)).map(|(_, node)| node));
            found.extend(patterns.iter().filter(|pattern| overlaps(&pattern.value)).map(|pattern| &pattern.node));
            found.extend(default.as_deref());
        }
        let by_key = self.patterns.iter().filter(|pattern| pattern.key.matches(&entry.key) && overlaps(&pattern.value));
        found.extend(by_key.map(|pattern| &pattern.node));
        found
    }
}
