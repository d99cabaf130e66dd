//! `weigh_by: [model, direction]`: the budget is kept in money. Each unit counts as its price, which depends on entries
//! that come after `hold` or `settle`.

use std::sync::Arc;

use super::Validation;
use crate::descriptor::{Entry, HOLD_KEY, SETTLE_KEY, counted};
use crate::price::Price;
use crate::rules::config::{FieldPath, Raw, RawValue, Text};
use crate::rules::prices::{MAX_LEVELS, Prices};
use crate::rules::report::quoted;
use crate::rules::section::{Key, Takes, key};

/// Why no other algorithm has it.
const COUNTS_REQUESTS: &str = "only a budget can be kept in money, as only streams report what they have used: write \
                               algorithm: budget, or remove it";

pub(in crate::rules) const KEY: Key = key(
    "weigh_by",
    Takes::Names,
    "For budgets: keys of the entries after hold or settle that choose the price of a unit, in the order of the file's \
     prices. The number and the estimates are then billionths of the currency unit.",
)
.example("[model]")
.conflicts(&[
    ("fixed_window", COUNTS_REQUESTS),
    ("sliding_window", COUNTS_REQUESTS),
    ("sliding_log", COUNTS_REQUESTS),
    ("token_bucket", COUNTS_REQUESTS),
    ("leaky_bucket", COUNTS_REQUESTS),
    ("concurrency", COUNTS_REQUESTS),
    ("cost", "a unit counts as its price, and not a number of times: remove cost, or raise the prices"),
]);

/// The choice of a price, if the limit is kept in money.
pub type Value = Option<Arc<Weights>>;

pub(super) const UNSAID: Value = None;

/// The entries that choose a price, and the prices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    /// Keys of the entries, at least one. There are as many as levels of the prices.
    pub keys: Box<[Box<str>]>,
    /// The prices of the limit's file.
    pub prices: Arc<Prices>,
}

impl Weights {
    /// Returns the price that these entries choose: those after `hold` or `settle`, which have some of the keys. Behind
    /// one that is missing, the highest price is taken.
    pub fn price(&self, entries: &[Entry]) -> Price {
        let values = self.keys.iter().map_while(|key| {
            let entry = entries.iter().find(|entry| *entry.key == **key)?;
            Some(entry.value.as_str())
        });
        self.prices.price(values)
    }
}

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let Raw::Given(RawValue::Names(list)) = validation.raw.get(KEY.name) else { return None };
    let keys = keys(validation, list, path)?;
    let prices = match validation.prices {
        // Reported at the prices.
        Raw::Unreadable => return None,
        Raw::Missing => {
            let message = "needs prices, at the top level of the same file, such as prices: {gpt-4o: 2.5}";
            validation.complaints.error(path, message);
            return None;
        }
        Raw::Given(prices) => Arc::clone(prices),
    };
    if keys.len() != prices.levels() {
        let levels = counted(prices.levels() as u64, "level");
        let message = format!(
            "names {} of the entries that choose the price, but the prices of this file are {levels} deep",
            keys.len()
        );
        validation.complaints.error(path, message);
        return None;
    }
    Some(Some(Arc::new(Weights { keys, prices })))
}

/// Reads the keys. Returns `None` if it has reported a mistake.
fn keys(
    validation: &mut Validation<'_, '_>,
    list: &[Raw<Text<'_>>],
    path: FieldPath<'_>,
) -> Option<Box<[Box<str>]>> {
    let complaints = &mut *validation.complaints;
    if list.is_empty() {
        complaints.error(path, "is empty: name the entries that choose the price, such as [model, direction]");
        return None;
    }
    if list.len() > MAX_LEVELS {
        complaints.error(path, format!("names {} entries; there may be up to {MAX_LEVELS}", list.len()));
        return None;
    }
    let mut keys: Vec<Box<str>> = Vec::with_capacity(list.len());
    for (index, raw) in list.iter().enumerate() {
        let path = path.item(index);
        let key = complaints.required_text(raw, path)?;
        let mistake = match key {
            HOLD_KEY | SETTLE_KEY => {
                format!("{key} names the stream, and chooses no price: name an entry that comes after it")
            }
            _ if key.contains('*') => "is a key without wildcards: the values in prices may have some".to_owned(),
            _ if keys.iter().any(|known| **known == *key) => format!("{} is named above as well", quoted(key)),
            _ => {
                keys.push(key.into());
                continue;
            }
        };
        complaints.error(path, mistake);
        return None;
    }
    Some(keys.into())
}

pub(super) fn written(weights: &Value) -> String {
    weights.as_ref().map_or_else(|| "none".to_owned(), |weights| format!("[{}]", weights.keys.join(", ")))
}

pub(super) fn explained(weights: &Value) -> String {
    match weights {
        Some(weights) => {
            format!("{}, for {} per million units", weights.keys.join(", "), weights.prices)
        }
        None => written(weights),
    }
}
