//! Details of an answer beyond Envoy's protocol, in its dynamic metadata under a separate key.
//!
//! An answer that the store has not decided names the cause of its decision. A client that asks for details gets each
//! limit of each descriptor, as shown by `tollgate ask`.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde::{Deserialize, Serialize};

/// The key in the dynamic metadata.
pub const KEY: &str = "tollgate";

/// The gRPC metadata that asks for details, with any value.
pub const REQUEST_KEY: &str = "x-tollgate-details";

/// The value under the key. Readers skip fields they do not know, so versions can differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Details {
    /// The cause of the decision: names of `DecidedBy`, joined by `, `. Empty if no limit applies.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub decided_by: String,
    /// Whether one more hit of each descriptor would pass now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_passes: Option<bool>,
    /// For each descriptor of the request, in order, whether it passes. Set only if dynamic metadata is sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<bool>,
    /// One entry for each descriptor of the request, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub descriptors: Vec<DescriptorDetails>,
    /// Why `descriptors` is empty if the request has too many descriptors or limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// The rule and limits of a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DescriptorDetails {
    /// The path of the rule that it matches, if a limit applies or the rule is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Whether the rule sets no limit.
    pub unlimited: bool,
    /// If it matches no rule: the entry that fails to match, and the nearest rule's location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
    /// The limits that were checked.
    pub limits: Vec<LimitDetails>,
}

/// The state of one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitDetails {
    /// Its name in metrics, headers, logs and answers.
    pub name: String,
    pub algorithm: String,
    /// Number of hits in a period, or at once.
    pub number: u64,
    /// `None` for a limit without a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<u64>,
    /// The time zone, if its windows follow the calendar. Then the period is nominal: 30 days for a month, 365 for a
    /// year.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The date on which one of its windows begins, if the limit sets it, such as `2026-01-15`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_on: Option<String>,
    /// The period is a number of days, counted from `starts_on`, and not nominal.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub counts_days: bool,
    /// Largest number of hits that can pass at one moment.
    pub capacity: u64,
    /// Number of hits that would still pass now. This and the following are `None` if they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// Time until the counter is as good as new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_after_ms: Option<u64>,
    /// If it is over the limit: the time until the same request passes, or `None` if it never will.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// If it is over the limit and the same request never passes: the reason, a name of `Never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub never: Option<String>,
    /// Whether one more hit of each descriptor would be over the limit, or banned.
    pub used_up: bool,
    /// For a peek that finds it used up: the time until one more hit passes, or `None` if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after_ms: Option<u64>,
    /// Remaining time of a ban.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banned_ms: Option<u64>,
    /// Delay of the request before it passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Whether the limit is exceeded, or its penalty bans the request.
    pub over: bool,
    /// Whether it denies nothing, as the rule or the process is in shadow mode.
    pub shadow: bool,
    /// A name of `DecidedBy`.
    pub decided_by: String,
    /// Whether a replica of Redis must confirm its hits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub durable: bool,
    /// ID of the adjustment that lets the request pass this limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_by: Option<String>,
    /// ID of the adjustment that blocks the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
}

impl Details {
    /// Returns dynamic metadata with these details.
    pub fn to_metadata(&self) -> Struct {
        // Cannot fail: the fields are only texts, flags and numbers below 2^53.
        let value = serde_json::to_value(self).map_or_else(|_| Value::default(), |json| value(&json));
        Struct { fields: [(KEY.to_owned(), value)].into() }
    }

    /// Reads details from dynamic metadata. Returns `None` if there are none, or they do not have this form.
    pub fn of_metadata(metadata: &Struct) -> Option<Details> {
        serde_json::from_value(json(metadata.fields.get(KEY)?)).ok()
    }
}

/// Adds to the dynamic metadata which descriptors pass, and keeps the details already there.
pub fn tell_passed(metadata: &mut Struct, passed: impl IntoIterator<Item = bool>) {
    let values: Vec<Value> = passed.into_iter().map(Value::from).collect();
    tell(metadata, "passed", Value::from(values));
}

/// Adds to the dynamic metadata what the upstream is told: the limit with the least remaining hits, their number, and
/// whether the request is near one of its limits.
pub fn tell_upstream(metadata: &mut Struct, (rule, remaining, is_soft): (&str, u64, bool)) {
    let fields = [
        ("rule".to_owned(), Value::from(rule)),
        ("remaining".to_owned(), Value::from(remaining as f64)),
        ("soft".to_owned(), Value::from(is_soft)),
    ];
    tell(metadata, "upstream", Value { kind: Some(Kind::StructValue(Struct { fields: fields.into() })) });
}

fn tell(metadata: &mut Struct, name: &str, value: Value) {
    let told = metadata.fields.entry(KEY.to_owned()).or_default();
    if !matches!(told.kind, Some(Kind::StructValue(_))) {
        told.kind = Some(Kind::StructValue(Struct::default()));
    }
    if let Some(Kind::StructValue(told)) = &mut told.kind {
        told.fields.insert(name.to_owned(), value);
    }
}

/// Converts JSON to a value of a protobuf `Struct`.
pub fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(*flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::MAX)),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(values) => Kind::ListValue(ListValue { values: values.iter().map(value).collect() }),
        Json::Object(fields) => {
            let fields = fields.iter().map(|(key, json)| (key.clone(), value(json)));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    };
    Value { kind: Some(kind) }
}

/// Converts a value back to JSON. A `Struct` has only floating-point numbers, so whole ones become integers again.
fn json(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(flag)) => Json::Bool(*flag),
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && (0.0..=MAX_WHOLE).contains(number) => {
            Json::from(*number as u64)
        }
        Some(Kind::NumberValue(number)) => Json::from(*number),
        Some(Kind::StringValue(text)) => Json::from(text.as_str()),
        Some(Kind::ListValue(list)) => list.values.iter().map(json).collect(),
        Some(Kind::StructValue(fields)) => {
            Json::Object(fields.fields.iter().map(|(key, value)| (key.clone(), json(value))).collect())
        }
    }
}

/// 2^53.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_come_back_from_the_metadata_as_they_were() {
        let limit = LimitDetails {
            name: "per-user".into(),
            algorithm: "sliding_window".into(),
            number: (1 << 53) - 1,
            period_ms: Some(1_500),
            remaining: Some(0),
            reset_after_ms: Some((1 << 53) - 1),
            over: true,
            decided_by: "store".into(),
            ..LimitDetails::default()
        };
        let descriptor = DescriptorDetails {
            rule: Some("user".into()),
            unlimited: false,
            missed: Some("key \"usr\"".into()),
            limits: vec![limit],
        };
        let details = Details {
            decided_by: "store, skipped".into(),
            next_passes: Some(false),
            passed: vec![false, true],
            descriptors: vec![descriptor, DescriptorDetails::default()],
            left_out: Some("too many".into()),
        };
        assert_eq!(Details::of_metadata(&details.to_metadata()), Some(details));
        assert_eq!(Details::of_metadata(&Struct::default()), None);
    }

    #[test]
    fn what_another_version_says_beside_is_skipped() {
        let mut metadata = Details { decided_by: "store".into(), ..Details::default() }.to_metadata();
        let Some(Kind::StructValue(inner)) = &mut metadata.fields.get_mut(KEY).unwrap().kind else { unreachable!() };
        inner.fields.insert("mood".into(), Value { kind: Some(Kind::NumberValue(0.5)) });
        assert_eq!(Details::of_metadata(&metadata).unwrap().decided_by, "store");
    }
}
