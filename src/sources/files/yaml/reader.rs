//! Reads the tree of a file as a raw domain, with a type for each key.

use std::path::Path;

use super::document::{Entry, Node, Value};
use super::fields::{self, Fields, File, Spot};
use super::metadata;
use super::place::Place;
use super::prices;
use crate::engine::algorithm::MAX_NUMBER;
use crate::engine::rules::config::{
    FieldPath, List, Raw, RawDefaults, RawDescriptor, RawDomain, RawLimit, RawMapping, RawValue, Text,
};
use crate::engine::rules::keys;
use crate::engine::rules::options::{denied_body, lease};
use crate::engine::rules::report::Report;
use crate::engine::rules::section::{Key, Section, Takes};
use crate::engine::rules::validate::MAX_LEVELS;

/// Reads a file's domain. Returns `None` if the root is not a mapping.
pub(super) fn domain<'n>(file: &mut File<'_>, root: &'n Node<'n>) -> Option<RawDomain<'n>> {
    let fields = file.fields(Spot { node: root, path: FieldPath::Root }, &keys::ROOT)?;
    Some(RawDomain {
        domain: required_text(file, &fields, "domain"),
        defaults: section(file, fields.get("defaults"), &keys::DEFAULTS, defaults),
        expect: texts(file, fields.get("expect")),
        on_missing: text(file, &fields, "on_missing"),
        prices: fields.get("prices").map_or(Raw::Missing, |spot| prices::of(file, spot)),
        descriptors: match fields.get("descriptors") {
            None => fields.missing("descriptors"),
            found => list(file, found, |file, spot| descriptor(file, spot, 1)),
        },
    })
}

/// Reads the `defaults` and `prices` among some entries of a file, without reporting mistakes.
pub(super) fn beside_among<'n>(entries: &'n [Entry<'n>]) -> RawDomain<'n> {
    let of = |name: &str| {
        let entry = entries.iter().rev().find(|entry| fields::name(&entry.key) == Some(name));
        let spot = entry.map(|entry| Spot { node: &entry.value, path: FieldPath::Root });
        spot.filter(|spot| !spot.node.is_null())
    };
    let mut file = File { place: Place::whole(Path::new("")), report: &mut Report::default() };
    RawDomain {
        defaults: section(&mut file, of("defaults"), &keys::DEFAULTS, defaults),
        prices: of("prices").map_or(Raw::Missing, |spot| prices::of(&mut file, spot)),
        ..RawDomain::default()
    }
}

/// Returns the number of the visited list that a mapping has under the key `descriptors`.
pub(super) fn visited(node: &Node<'_>) -> Option<usize> {
    let Value::Map(entries) = &node.value else { return None };
    let entry = entries.iter().rev().find(|entry| fields::name(&entry.key) == Some("descriptors"))?;
    match entry.value.value {
        Value::Visited(list) => Some(list),
        _ => None,
    }
}

fn defaults<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>) -> RawDefaults<'n> {
    RawDefaults {
        algorithm: text(file, fields, "algorithm"),
        failure_mode: text(file, fields, "failure_mode"),
        denied_body: mapping(file, fields.get("denied_body"), &denied_body::SECTION),
        lease: mapping(file, fields.get("lease"), &lease::SECTION),
        own_share: text(file, fields, "own_share"),
    }
}

pub(super) fn descriptor<'n>(file: &mut File<'_>, spot: Spot<'n, '_>, level: usize) -> Raw<RawDescriptor<'n>> {
    section(file, Some(spot), &keys::DESCRIPTOR, |file, fields| {
        // Every value must have the right type, even if nothing depends on it yet.
        RawDescriptor {
            key: required_text(file, fields, "key"),
            value: text(file, fields, "value"),
            share_threshold: flag(file, fields, "share_threshold"),
            detailed_metric: flag(file, fields, "detailed_metric"),
            value_to_metric: flag(file, fields, "value_to_metric"),
            shadow_mode: flag(file, fields, "shadow_mode"),
            quota_mode: flag(file, fields, "quota_mode"),
            metadata: fields.get("metadata").map_or(Raw::Missing, |spot| metadata::of(file, spot)),
            rate_limit: match limit(file, fields.get("rate_limit")) {
                Raw::Missing => Raw::Missing,
                Raw::Unreadable => Raw::Unreadable,
                Raw::Given(limit) => Raw::Given(Box::new(limit)),
            },
            rate_limits: list(file, fields.get("rate_limits"), |file, spot| limit(file, Some(spot))),
            descriptors: match fields.get("descriptors") {
                // The level is too deep and is rejected for that, so its contents are not read; aliases can make a tree
                // deeper than any stack.
                Some(_) if level == MAX_LEVELS => Raw::Given(Vec::new()),
                found => list(file, found, |file, spot| descriptor(file, spot, level + 1)),
            },
        }
    })
}

fn limit<'n>(file: &mut File<'_>, spot: Option<Spot<'n, '_>>) -> Raw<RawLimit<'n>> {
    mapping(file, spot, &keys::RATE_LIMIT)
}

/// Reads a mapping of known keys, each with a value of its type.
fn mapping<'n>(file: &mut File<'_>, spot: Option<Spot<'n, '_>>, of: &'static Section) -> Raw<RawMapping<'n>> {
    section(file, spot, of, |file, fields| {
        let mut read = RawMapping::default();
        for (key, spot) in fields.given() {
            read.set(key.name, value(file, key, spot));
        }
        let of_a_limit: &[_] = if read.get("unlimited").is_missing() { &["unit", "requests_per_unit"] } else { &[] };
        let required = if of.is(&keys::RATE_LIMIT) { of_a_limit } else { of.required };
        for key in required {
            if read.get(key).is_missing() {
                read.set(key, fields.missing(key));
            }
        }
        read
    })
}

fn value<'n>(file: &mut File<'_>, key: &Key, spot: Spot<'n, '_>) -> Raw<RawValue<'n>> {
    match key.takes {
        Takes::Text | Takes::Name | Takes::Unit | Takes::Choice(_) => file.text(spot).map(RawValue::Text),
        Takes::Number => file.number(spot, u32::MAX.into()).map(RawValue::Number),
        Takes::Wide => file.number(spot, MAX_NUMBER).map(RawValue::Number),
        Takes::Flag => file.flag(spot).map(RawValue::Flag),
        Takes::Length => file.length(spot).map(RawValue::Text),
        Takes::Names => texts(file, Some(spot)).map(RawValue::Names),
        // Only the top level of a file has prices.
        Takes::Prices => Raw::Unreadable,
        Takes::Mapping => metadata::of(file, spot).map(RawValue::Any),
        Takes::One(section) => mapping(file, Some(spot), section).map(RawValue::Mapping),
        Takes::Many(section) => {
            list(file, Some(spot), |file, spot| mapping(file, Some(spot), section)).map(RawValue::List)
        }
    }
}

fn text<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>, key: &'static str) -> Raw<Text<'n>> {
    fields.get(key).map_or(Raw::Missing, |spot| file.text(spot))
}

fn texts<'n>(file: &mut File<'_>, spot: Option<Spot<'n, '_>>) -> List<Text<'n>> {
    list(file, spot, |file, spot| file.text(spot))
}

fn required_text<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>, key: &'static str) -> Raw<Text<'n>> {
    fields.get(key).map_or_else(|| fields.missing(key), |spot| file.text(spot))
}

fn flag(file: &mut File<'_>, fields: &Fields<'_, '_>, key: &'static str) -> Raw<bool> {
    fields.get(key).map_or(Raw::Missing, |spot| file.flag(spot))
}

/// Reads a mapping after looking up its keys.
fn section<'n, T>(
    file: &mut File<'_>,
    spot: Option<Spot<'n, '_>>,
    section: &'static Section,
    read: impl FnOnce(&mut File<'_>, &Fields<'n, '_>) -> T,
) -> Raw<T> {
    let Some(spot) = spot else { return Raw::Missing };
    match file.fields(spot, section) {
        Some(fields) => Raw::Given(read(file, &fields)),
        None => Raw::Unreadable,
    }
}

fn list<'n, T>(
    file: &mut File<'_>,
    spot: Option<Spot<'n, '_>>,
    mut read: impl FnMut(&mut File<'_>, Spot<'n, '_>) -> Raw<T>,
) -> List<T> {
    let Some(spot) = spot else { return Raw::Missing };
    let Some(items) = file.items(spot) else { return Raw::Unreadable };
    let items = items.iter().enumerate();
    Raw::Given(items.map(|(index, node)| read(file, Spot { node, path: spot.path.item(index) })).collect())
}
