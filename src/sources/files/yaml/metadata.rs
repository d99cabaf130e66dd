//! Values below the key `metadata`, of any form, as the JSON that answers carry.

use serde_json::{Number, Value as Json};

use super::document::{Node, Value};
use super::fields::{File, Spot, kind};
use super::scalar::Plain;
use crate::engine::rules::config::{Metadata, Raw};
use crate::engine::rules::report::escaped;

/// Deepest nesting of lists and mappings: each level is three nested messages, and Envoy reads no answer with more than
/// a hundred.
const MAX_LEVELS: usize = 24;

/// Reads a mapping of any values, and reports those that JSON cannot express.
pub(super) fn of(file: &mut File<'_>, spot: Spot<'_, '_>) -> Raw<Box<Metadata>> {
    if !matches!(spot.node.value, Value::Map(_)) {
        file.error(spot, format!("must be a mapping, not {}", kind(spot.node)));
        return Raw::Unreadable;
    }
    match json(file, spot, MAX_LEVELS) {
        Some(Json::Object(metadata)) => Raw::Given(Box::new(metadata)),
        _ => Raw::Unreadable,
    }
}

/// Reads a value with at most `levels` below it. Returns `None` if it has reported an error.
fn json(file: &mut File<'_>, spot: Spot<'_, '_>, levels: usize) -> Option<Json> {
    let is_scalar = matches!(spot.node.value, Value::Plain(_) | Value::Quoted(_));
    if levels == 0 && !is_scalar {
        file.error(
            spot,
            format!("metadata may nest up to {MAX_LEVELS} levels deep: Envoy rejects responses that nest deeper"),
        );
        return None;
    }
    match &spot.node.value {
        Value::Quoted(text) => Some(Json::from(&**text)),
        Value::Plain(text) => {
            let scalar = scalar(text);
            if scalar.is_none() {
                file.error(
                    spot,
                    format!("metadata may contain JSON values, not {}; a string needs quotes", escaped(text)),
                );
            }
            scalar
        }
        Value::List(items) => {
            // Reads all items, to report every mistake.
            let items = items.iter().enumerate();
            let all: Vec<_> =
                items.map(|(index, node)| json(file, Spot { node, path: spot.path.item(index) }, levels - 1)).collect();
            all.into_iter().collect::<Option<Vec<_>>>().map(Json::Array)
        }
        // Never occurs below metadata: a visitor takes only lists of descriptors.
        Value::Visited(_) => None,
        Value::Map(entries) => {
            let mut complete = true;
            let mut metadata = Metadata::new();
            for entry in entries.iter() {
                let Some(name) = name(&entry.key) else {
                    let message = format!("a key must be a name, not {}", kind(&entry.key));
                    file.error(Spot { node: &entry.key, ..spot }, message);
                    complete = false;
                    continue;
                };
                let shown = escaped(&name);
                match json(file, Spot { node: &entry.value, path: spot.path.key(&shown) }, levels - 1) {
                    // For a repeated key the last value counts, as everywhere in YAML 1.1.
                    Some(value) => drop(metadata.insert(name, value)),
                    None => complete = false,
                }
            }
            complete.then_some(Json::Object(metadata))
        }
    }
}

/// Returns the name of a key. A number or a truth value becomes the text that it has in JSON.
fn name(key: &Node<'_>) -> Option<String> {
    match &key.value {
        Value::Quoted(text) => Some(text.to_string()),
        Value::Plain(text) => Some(match Plain::of(text) {
            Plain::Bool(flag) => flag.to_string(),
            Plain::Integer(number) => number.to_string(),
            Plain::Null | Plain::Float | Plain::Text => text.to_string(),
        }),
        Value::List(_) | Value::Visited(_) | Value::Map(_) => None,
    }
}

/// Interprets a plain scalar by YAML 1.1. Returns `None` for a number that JSON cannot express.
fn scalar(text: &str) -> Option<Json> {
    Some(match Plain::of(text) {
        Plain::Null => Json::Null,
        Plain::Bool(flag) => Json::from(flag),
        Plain::Integer(number) => Json::from(number),
        // JSON has no number for `.inf` and `.nan`.
        Plain::Float => Json::Number(Number::from_f64(text.replace('_', "").parse().ok()?)?),
        Plain::Text => Json::from(text),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_scalar_is_what_yaml_1_1_takes_it_for() {
        for (text, value) in [
            ("", json!(null)),
            ("~", json!(null)),
            ("y", json!(true)),
            ("Off", json!(false)),
            ("0x10", json!(16)),
            ("010", json!(8)),
            ("1_000", json!(1000)),
            ("1_0.5", json!(10.5)),
            ("1.", json!(1.0)),
            (".5", json!(0.5)),
            ("-1e3", json!(-1000.0)),
            ("99999999999999999999", json!(1e20)),
            ("2020-01-01", json!("2020-01-01")),
            ("gold", json!("gold")),
        ] {
            assert_eq!(scalar(text), Some(value), "{text}");
        }
        for text in [".inf", "-.INF", ".nan", "1e999"] {
            assert_eq!(scalar(text), None, "{text}");
        }
    }
}
