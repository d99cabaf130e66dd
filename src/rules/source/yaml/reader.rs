//! From the tree of a file to the domain as it states itself: which key is of which type.

use std::path::Path;

use super::document::{Entry, Node, Value};
use super::fields::{self, Fields, File, Spot};
use super::keys::{self, Section};
use super::metadata;
use super::place::Place;
use crate::rules::config::{
    FieldPath, List, Raw, RawDefaults, RawDescriptor, RawDomain, RawLease, RawLimit, RawPenalty, RawReplaces, RawUsage,
    Text,
};
use crate::rules::report::Report;
use crate::rules::validate::MAX_LEVELS;

/// What a file says; `None` where it is no mapping.
pub(super) fn domain<'n>(file: &mut File<'_>, root: &'n Node<'n>) -> Option<RawDomain<'n>> {
    let fields = file.fields(Spot { node: root, path: FieldPath::Root }, &keys::ROOT)?;
    Some(RawDomain {
        domain: required_text(file, &fields, "domain"),
        defaults: section(file, fields.get("defaults"), &keys::DEFAULTS, defaults),
        descriptors: match fields.get("descriptors") {
            None => fields.missing("descriptors"),
            found => list(file, found, |file, spot| descriptor(file, spot, 1)),
        },
    })
}

/// The `defaults` among some entries of a file. What is wrong with them is not reported.
pub(super) fn defaults_among<'n>(entries: &'n [Entry<'n>]) -> Raw<RawDefaults<'n>> {
    let entry = entries.iter().rev().find(|entry| fields::name(&entry.key) == Some("defaults"));
    let spot = entry.map(|entry| Spot { node: &entry.value, path: FieldPath::Root });
    let mut file = File { place: Place::whole(Path::new("")), report: &mut Report::default() };
    section(&mut file, spot.filter(|spot| !spot.node.is_null()), &keys::DEFAULTS, defaults)
}

/// Which list has been visited that a mapping has under the key `descriptors`.
pub(super) fn visited(node: &Node<'_>) -> Option<usize> {
    let Value::Map(entries) = &node.value else { return None };
    let entry = entries.iter().rev().find(|entry| fields::name(&entry.key) == Some("descriptors"))?;
    match entry.value.value {
        Value::Visited(list) => Some(list),
        _ => None,
    }
}

fn defaults<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>) -> RawDefaults<'n> {
    RawDefaults { algorithm: text(file, fields, "algorithm"), failure_mode: text(file, fields, "failure_mode") }
}

pub(super) fn descriptor<'n>(file: &mut File<'_>, spot: Spot<'n, '_>, level: usize) -> Raw<RawDescriptor<'n>> {
    section(file, Some(spot), &keys::DESCRIPTOR, |file, fields| {
        // What nothing depends on yet must still be of its type.
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
                // It is refused for being there; aliases can make the tree deeper than a stack.
                Some(_) if level == MAX_LEVELS => Raw::Given(Vec::new()),
                found => list(file, found, |file, spot| descriptor(file, spot, level + 1)),
            },
        }
    })
}

fn limit<'n>(file: &mut File<'_>, spot: Option<Spot<'n, '_>>) -> Raw<RawLimit<'n>> {
    section(file, spot, &keys::RATE_LIMIT, |file, fields| RawLimit {
        name: text(file, fields, "name"),
        unit: match fields.get("unlimited") {
            None => required_text(file, fields, "unit"),
            Some(_) => text(file, fields, "unit"),
        },
        requests_per_unit: match fields.get("unlimited") {
            None => required_number(file, fields, "requests_per_unit"),
            Some(_) => number(file, fields, "requests_per_unit"),
        },
        unlimited: flag(file, fields, "unlimited"),
        replaces: list(file, fields.get("replaces"), |file, spot| {
            section(file, Some(spot), &keys::REPLACES, |file, fields| RawReplaces { name: text(file, fields, "name") })
        }),
        period: length(file, fields, "period"),
        algorithm: text(file, fields, "algorithm"),
        cost: number(file, fields, "cost"),
        burst: number(file, fields, "burst"),
        max_delay: length(file, fields, "max_delay"),
        initial: text(file, fields, "initial"),
        segments: number(file, fields, "segments"),
        weighting: text(file, fields, "weighting"),
        time_zone: text(file, fields, "time_zone"),
        hold: length(file, fields, "hold"),
        give_back: flag(file, fields, "give_back"),
        penalty: section(file, fields.get("penalty"), &keys::PENALTY, penalty),
        lease: section(file, fields.get("lease"), &keys::LEASE, lease),
        durable: flag(file, fields, "durable"),
        usage: section(file, fields.get("usage"), &keys::USAGE, usage),
        failure_mode: text(file, fields, "failure_mode"),
        count_denied: flag(file, fields, "count_denied"),
    })
}

fn penalty<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>) -> RawPenalty<'n> {
    RawPenalty {
        after: required_number(file, fields, "after"),
        within: required_length(file, fields, "within"),
        ban: required_length(file, fields, "ban"),
        extend: flag(file, fields, "extend"),
    }
}

fn lease<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>) -> RawLease<'n> {
    RawLease { size: required_number(file, fields, "size"), ttl: required_length(file, fields, "ttl") }
}

fn usage<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>) -> RawUsage<'n> {
    RawUsage { by: required_text(file, fields, "by"), keep: required_length(file, fields, "keep") }
}

fn text<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>, key: &'static str) -> Raw<Text<'n>> {
    fields.get(key).map_or(Raw::Missing, |spot| file.text(spot))
}

fn required_text<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>, key: &'static str) -> Raw<Text<'n>> {
    fields.get(key).map_or_else(|| fields.missing(key), |spot| file.text(spot))
}

fn required_length<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>, key: &'static str) -> Raw<Text<'n>> {
    fields.get(key).map_or_else(|| fields.missing(key), |spot| file.length(spot))
}

fn required_number(file: &mut File<'_>, fields: &Fields<'_, '_>, key: &'static str) -> Raw<u32> {
    fields.get(key).map_or_else(|| fields.missing(key), |spot| file.number(spot))
}

fn length<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>, key: &'static str) -> Raw<Text<'n>> {
    fields.get(key).map_or(Raw::Missing, |spot| file.length(spot))
}

fn number(file: &mut File<'_>, fields: &Fields<'_, '_>, key: &'static str) -> Raw<u32> {
    fields.get(key).map_or(Raw::Missing, |spot| file.number(spot))
}

fn flag(file: &mut File<'_>, fields: &Fields<'_, '_>, key: &'static str) -> Raw<bool> {
    fields.get(key).map_or(Raw::Missing, |spot| file.flag(spot))
}

/// A mapping, once its keys have been looked up.
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
