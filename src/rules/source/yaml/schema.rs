//! The JSON Schema of rules files, for editors: made of the reader's own list of keys, and of what algorithms say of
//! their options. It refuses nothing that `tollgate check` accepts without a warning.
//!
//! Draft 7, which every YAML extension of an editor knows.

use serde_json::{Map, Value, json};

use super::keys::{DESCRIPTOR, Key, LEASE, PENALTY, RATE_LIMIT, ROOT, SECTIONS, Section, Takes, USAGE};
use crate::algorithm::Algorithm;
use crate::descriptor::Unit;
use crate::rules::validate::HOLDER_KEY;

/// What editors hold a rules file to.
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

/// What the schema calls a section: the key that it stands behind.
fn name(section: &Section) -> &'static str {
    let owner =
        |key: &&Key| matches!(key.takes, Takes::One(found) | Takes::Many(found) if std::ptr::eq(found, section));
    let key = SECTIONS.iter().find_map(|home| home.keys.iter().find(owner));
    key.map_or("file", |key| key.name)
}

fn object(section: &'static Section) -> Value {
    let properties: Map<String, Value> = section.keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    let mut object = json!({
        "description": section.about,
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    let mut required: Vec<_> =
        section.keys.iter().filter(|key| matches!(key.takes, Takes::Name)).map(|key| key.name).collect();
    if std::ptr::eq(section, &PENALTY) {
        required = vec!["after", "within", "ban"];
    } else if std::ptr::eq(section, &LEASE) {
        required = vec!["size", "ttl"];
    } else if std::ptr::eq(section, &USAGE) {
        required = vec!["by", "keep"];
    }
    if !required.is_empty() {
        // A key that says nothing is as good as none.
        let said: Vec<Value> = required.iter().map(|key| said(key)).collect();
        object["required"] = json!(required);
        object["allOf"] = json!(said);
    }
    let more = if std::ptr::eq(section, &DESCRIPTOR) {
        of_a_descriptor()
    } else if std::ptr::eq(section, &RATE_LIMIT) {
        of_a_limit()
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
        Takes::Flag => json!({"type": ["boolean", "null"]}),
        // Humantime's words for units are many; that it is a number and a word, several times, is what a glance tells.
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

/// Any letter case is right; an editor offers the usual one.
fn unit() -> Value {
    let names: Vec<_> = Unit::ALL.into_iter().map(Unit::name).collect();
    let any_case =
        |name: &str| name.chars().map(|char| format!("[{}{char}]", char.to_ascii_uppercase())).collect::<String>();
    let pattern = format!("^({})?$", names.iter().map(|name| any_case(name)).collect::<Vec<_>>().join("|"));
    json!({"anyOf": [{"enum": names}, {"type": "string", "pattern": pattern}, {"type": "null"}]})
}

/// The key is there and is not null.
fn said(key: &str) -> Value {
    json!({"required": [key], "properties": {key: {"not": {"type": "null"}}}})
}

fn is(key: &str, value: Value) -> Value {
    json!({"required": [key], "properties": {key: {"const": value}}})
}

fn not_both(one: &str, other: &str) -> Value {
    json!({"not": {"allOf": [said(one), said(other)]}})
}

/// It counts what is in progress.
fn holders() -> Vec<Value> {
    let algorithms = Algorithm::ALL.iter().filter(|algorithm| algorithm.has_holders());
    algorithms.map(|algorithm| is("algorithm", json!(algorithm.name()))).collect()
}

fn of_a_descriptor() -> Vec<Value> {
    let wildcard = |key: &str| json!({"required": [key], "properties": {key: {"type": "string", "pattern": "\\*"}}});
    vec![
        not_both("rate_limit", "rate_limits"),
        json!({"properties": {"rate_limits": {"minItems": 1, "items": {"allOf": [
            {"not": is("unlimited", json!(true))}, {"not": said("lease")}, {"not": {"anyOf": holders()}},
        ]}}}}),
        json!({
            "if": {"required": ["rate_limit"], "properties": {"rate_limit": {
                "anyOf": holders(), "not": is("unlimited", json!(true)), "type": "object",
            }}},
            "then": {"properties": {"key": {"const": HOLDER_KEY}, "value": {"enum": ["", null]}}},
        }),
        json!({"if": is("share_threshold", json!(true)), "then": {"anyOf": [wildcard("key"), wildcard("value")]}}),
    ]
}

fn of_a_limit() -> Vec<Value> {
    let unlimited = is("unlimited", json!(true));
    let has_length = [unlimited.clone(), said("unit"), said("period")].into_iter().chain(holders()).collect::<Vec<_>>();
    let mut all = vec![
        not_both("unit", "period"),
        not_both("time_zone", "period"),
        json!({"anyOf": has_length}),
        not_both("penalty", "lease"),
        not_both("usage", "lease"),
        json!({"if": said("usage"), "then": {"not": {"anyOf": holders()}}}),
        json!({"properties": {"cost": {"not": {"const": 0}}}}),
        json!({"if": unlimited, "then": {"not": {"anyOf": [said("period"), said("usage")]}}}),
    ];
    let options = Algorithm::ALL.iter().flat_map(|algorithm| algorithm.options()).copied();
    let options: std::collections::BTreeSet<&str> = options.chain(["hold", "unit", "period"]).collect();
    for algorithm in Algorithm::ALL {
        let has = |option: &str| match option {
            "hold" => algorithm.has_holders(),
            "unit" | "period" => !algorithm.has_holders(),
            _ => algorithm.options().contains(&option),
        };
        let foreign: Map<String, Value> = options
            .iter()
            .filter(|option| !has(option))
            .map(|option| ((*option).to_owned(), json!({"type": "null"})))
            .collect();
        let counts =
            json!({"allOf": [is("algorithm", json!(algorithm.name())), {"not": is("unlimited", json!(true))}]});
        all.push(json!({"if": counts, "then": {"properties": foreign}}));
    }
    all
}
