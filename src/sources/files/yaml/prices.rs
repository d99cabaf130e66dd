//! Values below the key `prices`: decimal numbers as in the text, never read as floating-point numbers.

use std::collections::HashMap;

use super::document::Value;
use super::fields::{File, Spot, kind, name};
use crate::engine::rules::config::{Raw, RawPrices, Text};
use crate::engine::rules::prices::MAX_LEVELS;
use crate::engine::rules::report::{Severity, escaped};

/// Reads prices that are nested in mappings of any keys.
pub(super) fn of<'n>(file: &mut File<'_>, spot: Spot<'n, '_>) -> Raw<RawPrices<'n>> {
    // Deeper ones are rejected for that; aliases can make a tree deeper than any stack.
    node(file, spot, MAX_LEVELS)
}

/// Reads prices with at most `levels` of values.
fn node<'n>(file: &mut File<'_>, spot: Spot<'n, '_>, levels: usize) -> Raw<RawPrices<'n>> {
    match &spot.node.value {
        Value::Plain(text) => Raw::Given(RawPrices::Price(Text::Borrowed(text))),
        Value::Map(_) if levels == 0 => Raw::Given(RawPrices::Table(Vec::new())),
        Value::Map(entries) => {
            let mut read: Vec<(Text<'n>, Raw<RawPrices<'n>>)> = Vec::with_capacity(entries.len());
            // The place of each value, and whether it comes from a merge key.
            let mut known: HashMap<&str, (usize, bool)> = HashMap::new();
            for entry in entries.iter() {
                let Some(value) = name(&entry.key) else {
                    let message = format!("a key must be a value of an entry, not {}", kind(&entry.key));
                    file.error(Spot { node: &entry.key, ..spot }, message);
                    continue;
                };
                let shown = escaped(value);
                let path = spot.path.key(&shown);
                let before = known.get(value).copied();
                if before.is_some_and(|(_, is_merged)| !is_merged) {
                    let message = "the key occurs above as well; only this last occurrence counts".to_owned();
                    file.add(Severity::Warning, entry.key.position, path, message);
                }
                let place = before.map_or(read.len(), |(place, _)| place);
                known.insert(value, (place, entry.merged));
                let of_value = (Text::Borrowed(value), below(file, Spot { node: &entry.value, path }, levels));
                match read.get_mut(place) {
                    Some(earlier) => *earlier = of_value,
                    None => read.push(of_value),
                }
            }
            Raw::Given(RawPrices::Table(read))
        }
        Value::Quoted(_) | Value::List(_) | Value::Visited(_) => {
            let what = if levels == MAX_LEVELS { "" } else { "a price, or " };
            file.error(spot, format!("must be {what}a mapping of values to prices, not {}", kind(spot.node)));
            Raw::Unreadable
        }
    }
}

fn below<'n>(file: &mut File<'_>, spot: Spot<'n, '_>, levels: usize) -> Raw<RawPrices<'n>> {
    if spot.node.is_null() { Raw::Missing } else { node(file, spot, levels - 1) }
}
