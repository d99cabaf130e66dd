//! Dynamic metadata as `envoyproxy/ratelimit` sends it: the request, and the metadata of the rules that its descriptors
//! pass. Envoy passes them to its later filters and its access log.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;

use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::engine::asked::Source;
use crate::engine::decision::{Decision, Status};
use crate::engine::rules::Rule;
use crate::engine::rules::config::Metadata;
use crate::wire::details;
use crate::wire::rate_limit_descriptor::RateLimitOverride;
use crate::wire::rate_limit_response::rate_limit::Unit;
use crate::wire::rate_limit_response::{Code, DescriptorStatus};
use crate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

type Fields = BTreeMap<String, Value>;

/// Returns the request as received.
pub(super) fn asked(request: &RateLimitRequest) -> Struct {
    let RateLimitRequest { domain, descriptors, hits_addend } = request;
    let descriptors: Vec<Value> = descriptors.iter().map(descriptor).collect();
    let mut fields = Fields::new();
    fields.insert("domain".to_owned(), Value::from(domain.as_str()));
    fields.insert("descriptors".to_owned(), Value::from(descriptors));
    if *hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), Value::from(f64::from(*hits_addend)));
    }
    Struct { fields }
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits } = descriptor;
    let entries: Vec<Value> =
        entries.iter().map(|entry| Value::from(format!("{}={}", entry.key, entry.value))).collect();
    let mut fields = Fields::new();
    fields.insert("entries".to_owned(), Value::from(entries));
    if let Some(limit) = limit {
        fields.insert("limit".to_owned(), Value::from(limit_text(limit)));
    }
    if let Some(hits) = hits_addend {
        // Exact up to 2^53, and no request has more hits.
        fields.insert("hitsAddend".to_owned(), Value::from(*hits as f64));
    }
    if *is_negative_hits {
        fields.insert("isNegativeHits".to_owned(), Value::from(true));
    }
    Value::from(fields)
}

/// Writes the protobuf text form of the message, always with the same spacing: `requests_per_unit:5 unit:HOUR`.
fn limit_text(limit: &RateLimitOverride) -> String {
    let RateLimitOverride { requests_per_unit, unit, unit_multiplier } = limit;
    // The response's enum has the same names as the request's, and also a week.
    let unit = Unit::try_from(*unit).map_or_else(|_| unit.to_string(), |unit| unit.as_str_name().to_owned());
    let mut text = match requests_per_unit {
        0 => format!("unit:{unit}"),
        number => format!("requests_per_unit:{number} unit:{unit}"),
    };
    if let Some(multiplier) = unit_multiplier {
        // Writing to a string cannot fail.
        let _ = write!(text, " unit_multiplier:{{value:{multiplier}}}");
    }
    text
}

/// Adds to an answer the request, the metadata of the rules of descriptors that pass, and which descriptors these are.
pub(super) fn add(response: &mut RateLimitResponse, asked: Struct, decision: &Decision<'_>) {
    let passes = |status: &DescriptorStatus| status.code() == Code::Ok;
    let passed = decision.statuses.iter().zip(&response.statuses).filter(|(_, status)| passes(status));
    let mut metadata = Fields::new();
    for of_rule in passed.filter_map(|(status, _)| rule(status, decision)?.metadata.as_deref()) {
        merge(&mut metadata, of_rule);
    }
    let said = response.dynamic_metadata.get_or_insert_default();
    said.fields.extend(asked.fields);
    if !metadata.is_empty() {
        said.fields.insert("metadata".to_owned(), Value::from(metadata));
    }
    details::tell_passed(said, response.statuses.iter().map(passes));
}

/// Returns the rule that a descriptor matches. The metadata of unlimited rules count, too.
fn rule<'a>(status: &Status<'a>, decision: &Decision<'a>) -> Option<&'a Rule> {
    match status {
        Status::NoLimit | Status::Unknown => None,
        Status::Unlimited(rule) => Some(rule),
        Status::Limited(range) => match decision.limits.get(range.start)?.asked.source {
            Source::Rule(rule, _) => Some(rule),
            Source::Override(_) => None,
        },
    }
}

/// Merges metadata: mappings key by key, and of two other values the first wins.
fn merge(into: &mut Fields, from: &Metadata) {
    for (key, json) in from {
        match into.entry(key.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(details::value(json));
            }
            Entry::Occupied(mut entry) => {
                if let (Some(Kind::StructValue(inner)), Some(json)) = (&mut entry.get_mut().kind, json.as_object()) {
                    merge(&mut inner.fields, json);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn merged(all: &[Json]) -> Value {
        let mut fields = Fields::new();
        all.iter().for_each(|one| merge(&mut fields, one.as_object().unwrap()));
        Value::from(fields)
    }

    #[test]
    fn of_two_values_the_first_counts_and_mappings_are_merged() {
        let first = json!({"a": 1, "list": [1], "svc": {"a": 1, "deep": {"x": null}}});
        let second = json!({"a": 2, "list": [2], "svc": {"a": 2, "b": 2, "deep": {"x": 5, "y": 1}}, "c": true});
        let both = json!({"a": 1, "list": [1], "svc": {"a": 1, "b": 2, "deep": {"x": null, "y": 1}}, "c": true});
        assert_eq!(merged(&[first.clone(), second]), details::value(&both));
        // A mapping and a scalar never combine.
        assert_eq!(
            merged(&[first, json!({"svc": 5, "a": {}})]),
            merged(&[json!({"a": 1, "list": [1], "svc": {"a": 1, "deep": {"x": null}}})])
        );
    }

    #[test]
    fn the_text_of_a_limit_is_always_the_same() {
        let text = |requests_per_unit, unit, unit_multiplier| {
            limit_text(&RateLimitOverride { requests_per_unit, unit, unit_multiplier })
        };
        assert_eq!(text(5, 3, None), "requests_per_unit:5 unit:HOUR");
        assert_eq!(text(0, 7, None), "unit:WEEK");
        assert_eq!(text(10, 2, Some(5)), "requests_per_unit:10 unit:MINUTE unit_multiplier:{value:5}");
        assert_eq!(text(10, 99, None), "requests_per_unit:10 unit:99");
    }
}
