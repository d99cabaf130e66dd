//! From the tree of a file to the domain as it states itself: which key is of which type.

use super::document::Node;
use super::fields::{Fields, File, Spot};
use super::keys::{self, Section};
use super::metadata;
use crate::rules::config::{
    FieldPath, List, Raw, RawDefaults, RawDescriptor, RawDomain, RawLease, RawLimit, RawPenalty, RawReplaces, Text,
};
use crate::rules::report::Severity;
use crate::rules::validate::MAX_LEVELS;

/// What a file says; `None` where it is no mapping.
pub(super) fn domain<'n>(file: &mut File<'_>, root: &'n Node<'n>) -> Option<RawDomain<'n>> {
    let fields = file.fields(Spot { node: root, path: FieldPath::Root }, &keys::ROOT)?;
    Some(RawDomain {
        domain: text(file, &fields, "domain"),
        defaults: section(file, fields.get("defaults"), &keys::DEFAULTS, defaults),
        descriptors: list(file, fields.get("descriptors"), |file, spot| descriptor(file, spot, 1)),
    })
}

fn defaults<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>) -> RawDefaults<'n> {
    RawDefaults { algorithm: text(file, fields, "algorithm"), failure_mode: text(file, fields, "failure_mode") }
}

fn descriptor<'n>(file: &mut File<'_>, spot: Spot<'n, '_>, level: usize) -> Raw<RawDescriptor<'n>> {
    section(file, Some(spot), &keys::DESCRIPTOR, |file, fields| {
        // What nothing depends on yet must still be of its type.
        ignored_flag(file, fields, "detailed_metric");
        ignored_flag(file, fields, "value_to_metric");
        RawDescriptor {
            key: text(file, fields, "key"),
            value: text(file, fields, "value"),
            share_threshold: flag(file, fields, "share_threshold"),
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
        unit: text(file, fields, "unit"),
        requests_per_unit: number(file, fields, "requests_per_unit"),
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
        hold: length(file, fields, "hold"),
        give_back: flag(file, fields, "give_back"),
        penalty: section(file, fields.get("penalty"), &keys::PENALTY, penalty),
        lease: section(file, fields.get("lease"), &keys::LEASE, lease),
        failure_mode: text(file, fields, "failure_mode"),
        count_denied: flag(file, fields, "count_denied"),
    })
}

fn penalty<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>) -> RawPenalty<'n> {
    RawPenalty {
        after: number(file, fields, "after"),
        within: length(file, fields, "within"),
        ban: length(file, fields, "ban"),
        extend: flag(file, fields, "extend"),
    }
}

fn lease<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>) -> RawLease<'n> {
    RawLease { size: number(file, fields, "size"), ttl: length(file, fields, "ttl") }
}

fn text<'n>(file: &mut File<'_>, fields: &Fields<'n, '_>, key: &'static str) -> Raw<Text<'n>> {
    fields.get(key).map_or(Raw::Missing, |spot| file.text(spot))
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

/// A flag of `envoyproxy/ratelimit` that would be believed in force.
fn ignored_flag(file: &mut File<'_>, fields: &Fields<'_, '_>, key: &'static str) {
    if let Some(spot) = fields.get(key)
        && file.flag(spot).is_set()
    {
        let message = "does nothing here: metrics are by rule, and never by value".to_owned();
        file.add(Severity::Warning, spot.node.position, spot.path, message);
    }
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
