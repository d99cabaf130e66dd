//! `prices`: what units cost, by the values of the entries that limits name in `weigh_by`. Limits of the same file use
//! them.
//!
//! A value that the table does not have, and an entry that a request does not bring, cost the most that is possible:
//! where doubt remains, hits are charged.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};

use super::complaints::Complaints;
use super::config::{FieldPath, Raw, RawPrices, Text};
use super::report::escaped;
use super::section::{Key, Takes, key};
use crate::descriptor::counted;
use crate::price::Price;
use crate::wildcard::Wildcard;

pub(super) const KEY: Key = key(
    "prices",
    Takes::Prices,
    "Prices for a million units, nested by the values of the entries in weigh_by. * in a value matches any characters.",
);

/// The deepest nesting of prices, and the most entries that choose one.
pub const MAX_LEVELS: usize = 8;

/// Number of changed prices that a comparison writes out.
const SHOWN: usize = 3;

/// The prices of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    top: Table,
    levels: usize,
}

/// The prices by the value of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    values: BTreeMap<Box<str>, Node>,
    /// Values with a wildcard, in the order of the file: the first that matches counts.
    patterns: Vec<(Wildcard, Node)>,
    /// The highest price in the table.
    highest: Price,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Price(Price),
    Table(Table),
}

/// Equal tables have equal hashes. There are few tables, and they may be large.
impl Hash for Prices {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.levels, self.top.values.len(), self.top.highest).hash(state);
    }
}

impl Prices {
    /// Returns the number of values that choose a price.
    pub fn levels(&self) -> usize {
        self.levels
    }

    /// Returns the price by these values, the first of which is that of the top level; there may be fewer than levels.
    ///
    /// At each level an exact value takes precedence over a wildcard. A value that nothing matches, and a missing one,
    /// cost the highest price of those that are left.
    pub fn price<'v>(&self, values: impl IntoIterator<Item = &'v str>) -> Price {
        let mut table = &self.top;
        for value in values {
            match table.find(value) {
                Some(Node::Price(price)) => return *price,
                Some(Node::Table(below)) => table = below,
                None => break,
            }
        }
        table.highest
    }

    /// Returns the lowest and the highest price.
    pub fn range(&self) -> (Price, Price) {
        let all = self.all();
        let lowest = all.values().min().copied().unwrap_or(self.top.highest);
        (lowest, self.top.highest)
    }

    /// Describes the differences from other prices: `gpt-4o.output 10 -> 12`, and `gpt-* before gpt-4o-*` where
    /// wildcards, of which the first that matches counts, have changed places. Empty if the prices are equal.
    pub fn changes_since(&self, old: &Prices) -> String {
        let (before, after) = (old.all(), self.all());
        let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| before.get(*name) != after.get(*name));
        let shown = |price: Option<&Price>| price.map_or_else(|| "none".to_owned(), Price::to_string);
        let change = |name: &&String| format!("{name} {} -> {}", shown(before.get(*name)), shown(after.get(*name)));
        let old_tables = old.tables();
        let moves =
            self.tables().into_iter().filter_map(|(path, table)| table.first_move(old_tables.get(&path)?, &path));
        let moves: Vec<String> = moves.collect();
        let all = names.len() + moves.len();
        let mut words: Vec<String> = names.iter().map(change).chain(moves).take(SHOWN).collect();
        if all > SHOWN {
            words.push(format!("and {} more", all - SHOWN));
        }
        words.join(", ")
    }

    /// Returns every price by its values, joined by points.
    fn all(&self) -> BTreeMap<String, Price> {
        let mut all = BTreeMap::new();
        for (path, table) in self.tables() {
            for (value, node) in table.nodes() {
                if let Node::Price(price) = node {
                    all.insert(joined(&path, &value), *price);
                }
            }
        }
        all
    }

    /// Returns every table by the values that lead to it, joined by points.
    fn tables(&self) -> BTreeMap<String, &Table> {
        let (mut tables, mut left) = (BTreeMap::new(), vec![(String::new(), &self.top)]);
        while let Some((path, table)) = left.pop() {
            for (value, node) in table.nodes() {
                if let Node::Table(below) = node {
                    left.push((joined(&path, &value), below));
                }
            }
            tables.insert(path, table);
        }
        tables
    }
}

/// Returns the path of a value below another path.
fn joined(path: &str, value: &str) -> String {
    if path.is_empty() { value.to_owned() } else { format!("{path}.{value}") }
}

/// Formats the range of the prices.
impl fmt::Display for Prices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range() {
            (lowest, highest) if lowest == highest => write!(f, "{lowest}"),
            (lowest, highest) => write!(f, "{lowest} to {highest}"),
        }
    }
}

impl Table {
    fn find(&self, value: &str) -> Option<&Node> {
        let by_pattern = || self.patterns.iter().find(|(pattern, _)| pattern.matches(value)).map(|(_, node)| node);
        self.values.get(value).or_else(by_pattern)
    }

    fn nodes(&self) -> impl Iterator<Item = (String, &Node)> {
        let patterns = self.patterns.iter().map(|(pattern, node)| (pattern.to_string(), node));
        self.values.iter().map(|(value, node)| (value.to_string(), node)).chain(patterns)
    }

    /// Describes the first wildcard that has moved before others, of those that the table at this path had already.
    fn first_move(&self, old: &Table, path: &str) -> Option<String> {
        let common = |table: &Table, other: &Table| {
            let known: HashSet<&Wildcard> = other.patterns.iter().map(|(pattern, _)| pattern).collect();
            let patterns = table.patterns.iter().map(|(pattern, _)| pattern.clone());
            patterns.filter(|pattern| known.contains(pattern)).collect::<Vec<_>>()
        };
        let (before, after) = (common(old, self), common(self, old));
        let (was, is) = before.iter().zip(&after).find(|(was, is)| was != is)?;
        Some(format!("{} before {}", joined(path, &is.to_string()), joined(path, &was.to_string())))
    }
}

impl Node {
    fn highest(&self) -> Price {
        match self {
            Node::Price(price) => *price,
            Node::Table(table) => table.highest,
        }
    }
}

/// Reads the prices of a file. Missing and empty prices are none.
pub(super) fn read(raw: &Raw<RawPrices<'_>>, complaints: &mut Complaints<'_>) -> Raw<Prices> {
    let path = FieldPath::Root.key(KEY.name);
    let raw = match raw {
        Raw::Missing => return Raw::Missing,
        Raw::Unreadable => return Raw::Unreadable,
        Raw::Given(raw) => raw,
    };
    let mut reader = Reader { complaints, levels: None };
    match (reader.node(raw, (path, 0)), reader.levels) {
        (Some(Node::Table(top)), Some(levels)) => Raw::Given(Prices { top, levels }),
        _ => Raw::Unreadable,
    }
}

struct Reader<'c, 'r> {
    complaints: &'c mut Complaints<'r>,
    /// The depth of the first price. All others must have the same.
    levels: Option<usize>,
}

impl Reader<'_, '_> {
    /// Reads a price or a table below this number of values. Returns `None` if it has reported a mistake.
    fn node(&mut self, raw: &RawPrices<'_>, (path, depth): (FieldPath<'_>, usize)) -> Option<Node> {
        match raw {
            RawPrices::Price(_) if depth == 0 => {
                self.complaints.error(path, "must be a mapping of values to prices, such as {gpt-4o: 2.5}");
                None
            }
            RawPrices::Price(text) => {
                let price = Price::parse(text);
                if let Err(error) = &price {
                    self.complaints.error(path, format!("{} {error}", escaped(text)));
                }
                let levels = *self.levels.get_or_insert(depth);
                if levels != depth {
                    let [this, first] = [depth, levels].map(|levels| counted(levels as u64, "level"));
                    let message = format!("is {this} deep, but the first price is {first} deep");
                    self.complaints.error(path, message);
                    return None;
                }
                price.ok().map(Node::Price)
            }
            RawPrices::Table(_) if depth == MAX_LEVELS => {
                self.complaints.error(path, format!("prices may nest up to {MAX_LEVELS} levels deep"));
                None
            }
            RawPrices::Table(entries) if entries.is_empty() => {
                self.complaints.error(path, "is empty: write prices, or remove it");
                None
            }
            RawPrices::Table(entries) => self.table(entries, (path, depth)).map(Node::Table),
        }
    }

    fn table(
        &mut self,
        entries: &[(Text<'_>, Raw<RawPrices<'_>>)],
        (path, depth): (FieldPath<'_>, usize),
    ) -> Option<Table> {
        let (mut values, mut patterns) = (BTreeMap::new(), Vec::new());
        let mut is_complete = true;
        // Reads all of them, to report every mistake.
        for (value, raw) in entries {
            let path = path.key(value);
            let node = match raw {
                Raw::Given(raw) => self.node(raw, (path, depth + 1)),
                Raw::Unreadable => None,
                Raw::Missing => {
                    self.complaints.error(path, "has no price: write one, or remove it");
                    None
                }
            };
            match node {
                None => is_complete = false,
                Some(node) if value.contains('*') => patterns.push((Wildcard::new(value), node)),
                Some(node) => drop(values.insert(value.as_ref().into(), node)),
            }
        }
        let nodes = values.values().chain(patterns.iter().map(|(_, node)| node));
        let highest = nodes.map(Node::highest).max().filter(|_| is_complete)?;
        Some(Table { values, patterns, highest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table<'v>(nodes: impl IntoIterator<Item = (&'v str, Node)>) -> Table {
        let (mut values, mut patterns, mut highest) = (BTreeMap::new(), Vec::new(), Price::parse("0").unwrap());
        for (value, node) in nodes {
            highest = highest.max(node.highest());
            match value.contains('*') {
                true => patterns.push((Wildcard::new(value), node)),
                false => drop(values.insert(value.into(), node)),
            }
        }
        Table { values, patterns, highest }
    }

    fn price(text: &str) -> Price {
        Price::parse(text).unwrap()
    }

    fn prices() -> Prices {
        let of = |input: &str, output: &str| {
            Node::Table(table([("input", Node::Price(price(input))), ("output", Node::Price(price(output)))]))
        };
        let any = Node::Table(table([("input", Node::Price(price("3"))), ("*", Node::Price(price("7")))]));
        let top = table([("gpt-4o", of("2.5", "10")), ("gpt-4o-mini*", of("0.15", "0.6")), ("gpt-*", any)]);
        Prices { top, levels: 2 }
    }

    #[test]
    fn an_exact_value_comes_before_a_wildcard_and_the_first_wildcard_counts() {
        for (values, expected) in [
            (&["gpt-4o", "input"][..], "2.5"),
            (&["gpt-4o", "output"], "10"),
            (&["gpt-4o-mini-2024-07-18", "input"], "0.15"),
            (&["gpt-5", "input"], "3"),
            (&["gpt-5", "cached"], "7"),
        ] {
            assert_eq!(prices().price(values.iter().copied()), price(expected), "{values:?}");
        }
    }

    #[test]
    fn what_is_unknown_or_missing_costs_the_most_that_is_possible() {
        for (values, expected) in [
            (&["gpt-4o", "cached"][..], "10"),
            (&["gpt-4o"], "10"),
            (&["gpt-4o-mini"], "0.6"),
            (&["gpt-5"], "7"),
            (&["claude", "input"], "10"),
            (&["", ""], "10"),
            (&[], "10"),
        ] {
            assert_eq!(prices().price(values.iter().copied()), price(expected), "{values:?}");
        }
    }

    #[test]
    fn a_comparison_names_the_first_prices_that_differ() {
        let (old, mut new) = (prices(), prices());
        assert_eq!(new.changes_since(&old), "");
        let Some(Node::Table(model)) = new.top.values.get_mut("gpt-4o") else { unreachable!() };
        *model = table([("output", Node::Price(price("12"))), ("cached", Node::Price(price("1.25")))]);
        new.top.highest = price("12");
        let expected = "gpt-4o.cached none -> 1.25, gpt-4o.input 2.5 -> none, gpt-4o.output 10 -> 12";
        assert_eq!(new.changes_since(&old), expected);
        new.top.patterns.clear();
        assert_eq!(new.changes_since(&old).rsplit_once(", ").unwrap().1, "and 4 more");
        assert_eq!((old.to_string(), new.to_string()), ("0.15 to 10".to_owned(), "1.25 to 12".to_owned()));
    }

    /// The first wildcard that matches counts, so the same prices in another order are other prices.
    #[test]
    fn a_comparison_tells_which_wildcard_has_moved_before_which() {
        let (old, mut new) = (prices(), prices());
        new.top.patterns.reverse();
        assert_ne!(new.price(["gpt-4o-mini-2024", "input"]), old.price(["gpt-4o-mini-2024", "input"]));
        assert_eq!(new.changes_since(&old), "gpt-* before gpt-4o-mini*");
        let Some(Node::Table(model)) = new.top.values.get_mut("gpt-4o") else { unreachable!() };
        model.values.insert("output".into(), Node::Price(price("9")));
        assert_eq!(new.changes_since(&old), "gpt-4o.output 10 -> 9, gpt-* before gpt-4o-mini*");
        new.top.patterns.insert(1, (Wildcard::new("o3*"), Node::Price(price("1"))));
        new.top.patterns.remove(0);
        let told = new.changes_since(&old);
        assert!(!told.contains("before"), "{told}: of one that is left, none has moved");
    }
}
