//! The JSON Schema of rules files, for editors: built from the reader's list of keys, and from the table of conflicts.
//! It accepts everything that `tollgate check` accepts without a warning.
//!
//! Uses draft 7, which every editor's YAML extension supports.

use serde_json::{Map, Value, json};

use crate::engine::algorithm::{Algorithm, MAX_NUMBER};
use crate::engine::descriptor::Unit;
use crate::engine::price::Price;
use crate::engine::rules::keys::{DESCRIPTOR, RATE_LIMIT, ROOT, SECTIONS};
use crate::engine::rules::options::{denied_body, notify};
use crate::engine::rules::pairs::{self, Conflict, ConflictKind};
use crate::engine::rules::section::{Key, Section, Takes};
use crate::engine::rules::validate::holder_key;

/// Returns the schema.
pub fn schema() -> Value {
    let mut definitions: Map<String, Value> =
        SECTIONS.iter().map(|section| (name(section).to_owned(), object(section))).collect();
    let root = definitions.remove(name(&ROOT)).unwrap_or_default();
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Rules of Tollgate",
        "definitions": definitions,
    });
    if let (Value::Object(schema), Value::Object(root)) = (&mut schema, root) {
        schema.extend(root);
    }
    schema
}

/// Returns a section's name in the schema: the key that it belongs to.
fn name(section: &Section) -> &'static str {
    let owner = |key: &&Key| matches!(key.takes, Takes::One(found) | Takes::Many(found) if found.is(section));
    let key = SECTIONS.iter().find_map(|home| home.keys().find(owner));
    key.map_or("file", |key| key.name)
}

fn object(section: &'static Section) -> Value {
    let properties: Map<String, Value> = section.keys().map(|key| (key.name.to_owned(), property(key))).collect();
    let mut object = json!({
        "description": section.about,
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if !section.required.is_empty() {
        // An empty key counts as missing.
        let said: Vec<Value> = section.required.iter().map(|key| said(key)).collect();
        object["required"] = json!(section.required);
        object["allOf"] = json!(said);
    }
    let more = if section.is(&DESCRIPTOR) {
        of_a_descriptor()
    } else if section.is(&RATE_LIMIT) {
        of_a_limit()
    } else if section.is(&denied_body::SECTION) {
        of_a_body()
    } else if section.is(&notify::SECTION) {
        vec![json!({"properties": {"at": {"items": share(), "minItems": 1, "maxItems": notify::MOST}}})]
    } else {
        Vec::new()
    };
    if !more.is_empty() {
        match &mut object["allOf"] {
            Value::Array(all) => all.extend(more),
            none => *none = json!(more),
        }
    }
    object
}

fn property(key: &Key) -> Value {
    let mut property = match &key.takes {
        Takes::Text => json!({"type": ["string", "integer", "boolean", "null"]}),
        Takes::Name => json!({"type": ["string", "integer", "boolean"], "minLength": 1}),
        Takes::Number => json!({"type": ["integer", "null"], "minimum": 0, "maximum": u32::MAX}),
        Takes::Wide => json!({"type": ["integer", "null"], "minimum": 0, "maximum": MAX_NUMBER}),
        Takes::Flag => json!({"type": ["boolean", "null"]}),
        // Humantime accepts many units; the schema checks only for repeated numbers with a word.
        Takes::Length => json!({
            "type": ["string", "null"],
            "pattern": "^\\s*$|^\\s*0\\s*$|^(\\s*[0-9][0-9 ]*\\s*[a-zA-Zµ]+)+\\s*$",
            "examples": ["500ms", "90s", "15m", "1h30m"],
        }),
        Takes::Unit => unit(),
        Takes::Choice(names) => {
            let mut names: Vec<Value> = names().into_iter().map(Value::from).collect();
            names.push(Value::Null);
            json!({"enum": names})
        }
        Takes::Names => json!({
            "type": ["array", "null"],
            "items": {"type": ["string", "integer", "boolean"], "minLength": 1},
            "maxItems": 16,
            "uniqueItems": true,
        }),
        Takes::Prices => prices(),
        Takes::Mapping => json!({"type": ["object", "null"]}),
        Takes::One(section) => json!({"anyOf": [reference(section), {"type": "null"}]}),
        Takes::Many(section) => json!({"type": ["array", "null"], "items": reference(section)}),
    };
    property["description"] = Value::from(key.about);
    property
}

fn reference(section: &Section) -> Value {
    json!({"$ref": format!("#/definitions/{}", name(section))})
}

/// Any letter case is accepted; an editor offers the usual one.
fn unit() -> Value {
    let names: Vec<_> = Unit::ALL.into_iter().map(Unit::name).chain([Unit::NEVER]).collect();
    let any_case =
        |name: &str| name.chars().map(|char| format!("[{}{char}]", char.to_ascii_uppercase())).collect::<String>();
    let pattern = format!("^({})?$", names.iter().map(|name| any_case(name)).collect::<Vec<_>>().join("|"));
    json!({"anyOf": [{"enum": names}, {"type": "string", "pattern": pattern}, {"type": "null"}]})
}

/// Requires that the key exists and is not null.
fn said(key: &str) -> Value {
    json!({"required": [key], "properties": {key: {"not": {"type": "null"}}}})
}

fn is(key: &str, value: Value) -> Value {
    json!({"required": [key], "properties": {key: {"const": value}}})
}

fn not_both(one: &str, other: &str) -> Value {
    json!({"not": {"allOf": [said(one), said(other)]}})
}

/// Returns conditions for algorithms that count requests in progress.
fn in_progress() -> Vec<Value> {
    let algorithms = Algorithm::ALL.iter().filter(|algorithm| algorithm.counts_in_progress());
    algorithms.map(|algorithm| is("algorithm", json!(algorithm.name()))).collect()
}

/// Returns what a limit whose descriptor names a stream requires of its key.
fn of_holders() -> impl Iterator<Item = Value> {
    let keys = Algorithm::ALL.iter().filter_map(|algorithm| Some((algorithm, holder_key(*algorithm)?)));
    keys.map(|(algorithm, key)| {
        json!({
            "if": {"required": ["rate_limit"], "properties": {"rate_limit": {
                "allOf": [is("algorithm", json!(algorithm.name()))], "not": is("unlimited", json!(true)),
                "type": "object",
            }}},
            "then": {"properties": {"key": {"const": key}, "value": {"enum": ["", null]}}},
        })
    })
}

fn of_a_descriptor() -> Vec<Value> {
    let wildcard = |key: &str| json!({"required": [key], "properties": {key: {"type": "string", "pattern": "\\*"}}});
    let among_several: Vec<Value> = refused()
        .filter_map(|conflict| conflict.other_than("rate_limits"))
        .map(|other| json!({"not": in_effect(other)}))
        .collect();
    vec![
        not_both("rate_limit", "rate_limits"),
        json!({"properties": {"rate_limits": {"minItems": 1, "items": {"allOf": among_several}}}}),
        json!({"allOf": of_holders().collect::<Vec<_>>()}),
        json!({"if": is("shadow_mode", json!(true)), "then": {"properties": {
            "rate_limit": {"not": said("enforce")},
            "rate_limits": {"items": {"not": said("enforce")}},
        }}}),
        json!({"if": is("share_threshold", json!(true)), "then": {"anyOf": [wildcard("key"), wildcard("value")]}}),
    ]
}

/// Returns the conflicts for which a limit is rejected. The unit of an unlimited rule is not among them, as it is
/// rejected only if it is valid.
fn refused() -> impl Iterator<Item = &'static Conflict> {
    let refused = pairs::conflicts().filter(|conflict| conflict.kind == ConflictKind::Refused);
    refused.filter(|conflict| !(conflict.is_of("unit") && conflict.is_of("unlimited")))
}

/// Requires an option with an effective value, or an algorithm.
fn in_effect(name: &str) -> Value {
    match RATE_LIMIT.key(name) {
        None => is("algorithm", json!(name)),
        Some(key) if matches!(key.takes, Takes::Flag) => is(name, json!(key.example == "true")),
        Some(_) => said(name),
    }
}

/// Returns the values of a key that have no effect.
fn without(name: &str) -> Value {
    match RATE_LIMIT.key(name) {
        Some(key) if matches!(key.takes, Takes::Flag) => json!({"not": {"const": key.example == "true"}}),
        _ => json!({"type": "null"}),
    }
}

/// A body has a format or a text, and only a text has a content type.
fn of_a_body() -> Vec<Value> {
    let with_text = json!({"if": said("content_type"), "then": said("text")});
    vec![json!({"oneOf": [said("format"), said("text")]}), with_text]
}

/// A percentage with its sign, from 0.01% to 100%.
fn share() -> Value {
    json!({
        "pattern": r"^$|^0*(100(\.0{1,2})?|[0-9]{1,2}(\.[0-9]{1,2})?)%$",
        "not": {"anyOf": [{"pattern": r"^0+(\.0{1,2})?%$"}, {"type": ["number", "boolean"]}]},
    })
}

/// Prices are nested, and each is a decimal number.
fn prices() -> Value {
    let price = json!({"type": "number", "minimum": 0, "maximum": Price::MOST});
    let nested = json!({"type": "object", "minProperties": 1});
    json!({"type": ["object", "null"], "minProperties": 1, "additionalProperties": {"anyOf": [price, nested]}})
}

fn of_a_limit() -> Vec<Value> {
    let unlimited = is("unlimited", json!(true));
    let has_length =
        [unlimited.clone(), said("unit"), said("period")].into_iter().chain(in_progress()).collect::<Vec<_>>();
    let mut all = vec![
        json!({"anyOf": has_length}),
        json!({"properties": {"cost": {"not": {"const": 0}}, "enforce": share(), "soft": share()}}),
    ];
    let is_of_limits = |conflict: &Conflict| !conflict.is_of("rate_limits") && !conflict.is_of("shadow_mode");
    let is_algorithm = |name: &str| Algorithm::ALL.iter().any(|algorithm| algorithm.name() == name);
    // Other options of an unlimited rule do not count.
    let counts = json!({"not": unlimited});
    for conflict in refused().filter(|conflict| is_of_limits(conflict) && !is_algorithm(conflict.with)) {
        let both = [in_effect(conflict.at), in_effect(conflict.with)];
        let counts = (!conflict.is_of("unlimited")).then(|| counts.clone());
        all.push(json!({"not": {"allOf": both.into_iter().chain(counts).collect::<Vec<_>>()}}));
    }
    for algorithm in Algorithm::ALL {
        let of_it = refused().filter(|conflict| conflict.with == algorithm.name());
        let foreign: Map<String, Value> =
            of_it.map(|conflict| (conflict.at.to_owned(), without(conflict.at))).collect();
        let counts_by_it = json!({"allOf": [is("algorithm", json!(algorithm.name())), counts]});
        all.push(json!({"if": counts_by_it, "then": {"properties": foreign}}));
    }
    all
}
