//! What an answer says beyond Envoy's protocol: in its dynamic metadata, under a key of its own.
//!
//! An answer that the store has not decided says by what it was decided. A client that asks for details learns each
//! limit of each descriptor, as `tollgate ask` does.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde::{Deserialize, Serialize};

/// The key in the dynamic metadata.
pub const KEY: &str = "tollgate";

/// A call that carries this gRPC metadata, with any value, asks for details.
pub const REQUEST_KEY: &str = "x-tollgate-details";

/// What stands under the key. What a version does not know it leaves out, and skips where it reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Details {
    /// Where the decision comes from: the names of `DecidedBy`, joined by `, `. Empty where no limit applies.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub decided_by: String,
    /// Whether one more hit of each descriptor would pass now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_passes: Option<bool>,
    /// For each descriptor of the request, in its order, whether it passes. Where dynamic metadata are sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<bool>,
    /// One for each descriptor of the request, in its order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub descriptors: Vec<DescriptorDetails>,
}

/// What applies to a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DescriptorDetails {
    /// The path of the rule that it reaches, where a limit applies or the rule says that none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The rule says that nothing is limited.
    pub unlimited: bool,
    /// Where it reaches no rule: by what it misses one, and where that stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
    /// The limits that were asked.
    pub limits: Vec<LimitDetails>,
}

/// What one limit says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitDetails {
    /// What it is called everywhere.
    pub name: String,
    pub algorithm: String,
    /// So many hits in a period, or at once.
    pub number: u32,
    /// Of a limit without a period: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<u64>,
    /// Where its windows follow the calendar of a time zone: which. Then the period stands for a unit: 30 days for a
    /// month, 365 for a year.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// So many hits can pass at one moment.
    pub capacity: u32,
    /// So many more would pass now. None where nobody knows, as with what follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u32>,
    /// From then on the counter is as fresh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_after_ms: Option<u64>,
    /// Where it is over: when the same request passes; none if never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Where it is over and the same request never passes: why, one of the names of `Never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub never: Option<String>,
    /// One more hit of each descriptor would be over it, or banned.
    pub used_up: bool,
    /// To a peek that finds it used up: when one more hit passes; none where nobody can say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after_ms: Option<u64>,
    /// How long a ban still lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banned_ms: Option<u64>,
    /// How long the request is delayed before it passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// It is exceeded, or its penalty bans.
    pub over: bool,
    /// It denies no request: shadow mode, of the rule or of the process.
    pub shadow: bool,
    /// One of the names of `DecidedBy`.
    pub decided_by: String,
}

impl Details {
    /// The dynamic metadata of an answer that says this.
    pub fn to_metadata(&self) -> Struct {
        // Of texts, flags and numbers below 2^53 alone.
        let value = serde_json::to_value(self).map_or_else(|_| Value::default(), |json| value(&json));
        Struct { fields: [(KEY.to_owned(), value)].into() }
    }

    /// What dynamic metadata say; `None` where nothing is said in these words.
    pub fn of_metadata(metadata: &Struct) -> Option<Details> {
        serde_json::from_value(json(metadata.fields.get(KEY)?)).ok()
    }
}

/// Says under the key which descriptors pass, beside whatever stands there.
pub fn tell_passed(metadata: &mut Struct, passed: impl IntoIterator<Item = bool>) {
    let told = metadata.fields.entry(KEY.to_owned()).or_default();
    if !matches!(told.kind, Some(Kind::StructValue(_))) {
        told.kind = Some(Kind::StructValue(Struct::default()));
    }
    if let Some(Kind::StructValue(told)) = &mut told.kind {
        let values: Vec<Value> = passed.into_iter().map(Value::from).collect();
        told.fields.insert("passed".to_owned(), Value::from(values));
    }
}

/// JSON as what a struct holds.
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

/// A struct knows no whole numbers: what is one here was one there.
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
            number: u32::MAX,
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
