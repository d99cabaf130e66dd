//! Resources from a management server: each holds a domain, or a part of one.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use prost::bytes::Bytes;
use prost::{DecodeError, Message};
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value};
use serde_json::{Number, Value as Json};

use crate::engine::rules::config::{
    FieldPath, List, Metadata, Raw, RawDescriptor, RawDomain, RawLimit, RawMapping, RawValue, Text,
};
use crate::engine::rules::report::{Position, Report, RulesError, quoted};
use crate::engine::rules::validate::{MAX_LEVELS, Origin, Part, Validation};
use crate::sources::files::load::{LoadOptions, Loaded};
use crate::wire::ratelimit_config::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};

/// The type of the requested resources.
pub(super) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A resource as received. Equal resources have equal rules.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resource {
    /// Name used in messages.
    name: String,
    domain: String,
    bytes: Bytes,
}

/// Resources sorted by name, because the order they came in has no meaning.
pub(super) type Resources = Vec<Arc<Resource>>;

/// Only the names in a resource: an unchanged resource need not be decoded further.
#[derive(Message)]
struct Names {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    domain: String,
}

/// A resource with its descriptors left undecoded. prost rejects messages that nest deeper than a hundred levels, and
/// without that limit could overflow the stack.
#[derive(Message)]
struct Unread {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    descriptors: Vec<Bytes>,
}

/// A descriptor with its children left undecoded.
#[derive(Message)]
struct UnreadDescriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<RateLimitPolicy>,
    #[prost(bytes = "bytes", repeated, tag = "4")]
    descriptors: Vec<Bytes>,
    #[prost(bool, tag = "5")]
    shadow_mode: bool,
    #[prost(bool, tag = "6")]
    detailed_metric: bool,
    #[prost(bool, tag = "7")]
    quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    metadata: Option<Struct>,
}

/// Decodes the names of all resources of a response.
///
/// # Errors
/// Lists every resource that is invalid.
pub(super) fn resources(all: Vec<Any>) -> Result<Resources, RulesError> {
    let mut report = Report::default();
    let mut resources = Vec::with_capacity(all.len());
    for (index, Any { type_url, value: bytes }) in all.into_iter().enumerate() {
        let place = format!("resources[{index}]");
        let mut refuse = |message| report.refuse(Path::new(&place), message);
        if type_url != TYPE_URL {
            refuse(format!("has the type {}, and not {TYPE_URL}", quoted(&type_url)));
            continue;
        }
        let bytes = Bytes::from(bytes);
        match Names::decode(bytes.clone()) {
            Ok(Names { name, domain }) => {
                let name = [name, domain.clone(), place].into_iter().find(|name| !name.is_empty());
                resources.push(Arc::new(Resource { name: name.unwrap_or_default(), domain, bytes }));
            }
            Err(error) => refuse(format!("cannot be decoded: {error}")),
        }
    }
    report.finish()?;
    resources.sort();
    Ok(resources)
}

/// Returns the offered resources, plus those in force that the stream has not named yet, unless their domain was
/// offered under another name.
pub(super) fn with_unnamed(
    offered: &[Arc<Resource>],
    in_force: &[Arc<Resource>],
    named: &HashSet<String>,
) -> Resources {
    let domains: HashSet<&str> = offered.iter().map(|resource| &*resource.domain).collect();
    let stays = |resource: &&Arc<Resource>| !named.contains(&resource.name) && !domains.contains(&*resource.domain);
    let mut all: Resources = offered.iter().chain(in_force.iter().filter(stays)).cloned().collect();
    all.sort();
    all
}

/// Compiles the resources to rules, like files.
///
/// # Errors
/// Lists every error in every resource.
pub(super) fn load(resources: &[Arc<Resource>], options: LoadOptions) -> Result<Loaded, RulesError> {
    let (mut report, mut validation) = (Report::default(), Validation::new(options.clone()));
    for resource in resources {
        if let Some(part) = resource.validate(&options, &mut report) {
            let compiled = part.compile(&report);
            validation.join(compiled, &mut report);
        }
    }
    let rules = validation.finish(&mut report);
    let hints = report.take_hints();
    let warnings = report.finish()?;
    Ok(Loaded { rules, warnings, hints })
}

impl Resource {
    /// Returns the name used in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn validate(&self, options: &LoadOptions, report: &mut Report) -> Option<Part> {
        let origin = Named(Path::new(&self.name).into());
        match config(self.bytes.clone()) {
            Ok(config) => Some(Part::validate(&origin, &raw_domain(&config), options, report)),
            Err(error) => {
                report.refuse(&origin.0, format!("cannot be decoded: {error}"));
                None
            }
        }
    }
}

/// Decodes a resource to the deepest level that rules may have.
fn config(bytes: Bytes) -> Result<RateLimitConfig, DecodeError> {
    let Unread { name, domain, descriptors } = Unread::decode(bytes)?;
    Ok(RateLimitConfig { name, domain, descriptors: read(descriptors, 1)? })
}

/// Decodes the descriptors of this level and those below.
fn read(all: Vec<Bytes>, level: usize) -> Result<Vec<RateLimitDescriptor>, DecodeError> {
    // Stands in for descriptors nested too deep, which validation rejects.
    if level > MAX_LEVELS && !all.is_empty() {
        return Ok(vec![RateLimitDescriptor::default()]);
    }
    let descriptor = |bytes| {
        let unread = UnreadDescriptor::decode(bytes)?;
        Ok(RateLimitDescriptor {
            key: unread.key,
            value: unread.value,
            rate_limit: unread.rate_limit,
            descriptors: read(unread.descriptors, level + 1)?,
            shadow_mode: unread.shadow_mode,
            detailed_metric: unread.detailed_metric,
            quota_mode: unread.quota_mode,
            metadata: unread.metadata,
        })
    };
    all.into_iter().map(descriptor).collect()
}

/// The origin of a resource, which has no line numbers.
struct Named(Arc<Path>);

impl Origin for Named {
    fn name(&self) -> &Arc<Path> {
        &self.0
    }

    fn kind(&self) -> &'static str {
        "resource"
    }

    fn position(&self, _: &FieldPath<'_>) -> Option<Position> {
        None
    }
}

/// Treats an empty text as missing, as the wire does not distinguish them.
fn text(text: &str) -> Raw<Text<'_>> {
    if text.is_empty() { Raw::Missing } else { Raw::Given(Cow::Borrowed(text)) }
}

/// Treats `false` as missing, for the same reason.
fn flag(flag: bool) -> Raw<bool> {
    if flag { Raw::Given(true) } else { Raw::Missing }
}

/// Treats an empty list as missing, for the same reason.
fn list<'c, W, R>(wire: &'c [W], raw: impl Fn(&'c W) -> R) -> List<R> {
    match wire {
        [] => Raw::Missing,
        items => Raw::Given(items.iter().map(|item| Raw::Given(raw(item))).collect()),
    }
}

fn raw_domain(config: &RateLimitConfig) -> RawDomain<'_> {
    let RateLimitConfig { name: _, domain, descriptors } = config;
    RawDomain { domain: text(domain), descriptors: list(descriptors, raw_descriptor), ..RawDomain::default() }
}

fn raw_descriptor(descriptor: &RateLimitDescriptor) -> RawDescriptor<'_> {
    let RateLimitDescriptor { key, value, rate_limit, descriptors, .. } = descriptor;
    let RateLimitDescriptor { shadow_mode, detailed_metric, quota_mode, metadata, .. } = descriptor;
    RawDescriptor {
        key: text(key),
        value: text(value),
        detailed_metric: flag(*detailed_metric),
        shadow_mode: flag(*shadow_mode),
        quota_mode: flag(*quota_mode),
        rate_limit: rate_limit.as_ref().map_or(Raw::Missing, |limit| Raw::Given(Box::new(raw_limit(limit)))),
        descriptors: list(descriptors, raw_descriptor),
        metadata: metadata.as_ref().map_or(Raw::Missing, |given| Raw::Given(Box::new(fields(given)))),
        ..RawDescriptor::default()
    }
}

fn fields(given: &Struct) -> Metadata {
    given.fields.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}

/// Converts a value to JSON, in which all numbers are finite.
fn json(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(is)) => Json::Bool(*is),
        Some(Kind::NumberValue(number)) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
        Some(Kind::StringValue(text)) => Json::String(text.clone()),
        Some(Kind::ListValue(list)) => Json::Array(list.values.iter().map(json).collect()),
        Some(Kind::StructValue(given)) => Json::Object(fields(given)),
    }
}

fn raw_limit(limit: &RateLimitPolicy) -> RawLimit<'_> {
    let RateLimitPolicy { unit, requests_per_unit, unlimited, name, replaces } = limit;
    // 0 is a valid number, but for an unlimited rule it means unset.
    let number = match (unlimited, requests_per_unit) {
        (true, 0) => Raw::Missing,
        (_, number) => Raw::Given(u64::from(*number)),
    };
    RawLimit::default()
        .with("name", text(name).map(RawValue::Text))
        .with("unit", raw_unit(*unit).map(RawValue::Text))
        .with("requests_per_unit", number.map(RawValue::Number))
        .with("unlimited", flag(*unlimited).map(RawValue::Flag))
        .with("replaces", list(replaces, raw_replaces).map(RawValue::List))
}

fn raw_replaces(RateLimitReplace { name }: &RateLimitReplace) -> RawMapping<'_> {
    RawMapping::default().with("name", text(name).map(RawValue::Text))
}

/// Names a unit. A number that the protocol does not define is kept as its name, and rejected like any unknown name.
fn raw_unit(unit: i32) -> Raw<Text<'static>> {
    match RateLimitUnit::try_from(unit) {
        Ok(RateLimitUnit::Unknown) => Raw::Missing,
        Ok(unit) => Raw::Given(Cow::Borrowed(unit.as_str_name())),
        Err(_) => Raw::Given(Cow::Owned(unit.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(config: &RateLimitConfig) -> Any {
        Any { type_url: TYPE_URL.into(), value: config.encode_to_vec() }
    }

    fn config(name: &str, domain: &str) -> RateLimitConfig {
        let limit = RateLimitPolicy { unit: 2, requests_per_unit: 5, ..RateLimitPolicy::default() };
        let user = RateLimitDescriptor { key: "user".into(), rate_limit: Some(limit), ..Default::default() };
        RateLimitConfig { name: name.into(), domain: domain.into(), descriptors: vec![user] }
    }

    fn loaded(configs: &[RateLimitConfig]) -> Result<Loaded, String> {
        let resources = resources(configs.iter().map(any).collect()).map_err(|error| error.to_string())?;
        load(&resources, LoadOptions::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn metadata_come_as_they_are() {
        let value = |kind| Value { kind: Some(kind) };
        let list = prost_types::ListValue { values: vec![value(Kind::BoolValue(true)), Value::default()] };
        let inner = [("list".to_owned(), value(Kind::ListValue(list)))];
        let outer = [
            ("route".to_owned(), value(Kind::StructValue(Struct { fields: inner.into() }))),
            ("weight".to_owned(), value(Kind::NumberValue(0.5))),
        ];
        let mut config = config("a", "shop");
        config.descriptors[0].metadata = Some(Struct { fields: outer.into() });
        let raw = raw_domain(&config);
        let descriptor = raw.descriptors.get().and_then(|list| list[0].get()).unwrap();
        let metadata = serde_json::to_value(descriptor.metadata.get().unwrap()).unwrap();
        assert_eq!(metadata, serde_json::json!({"route": {"list": [true, null]}, "weight": 0.5}));
    }

    #[test]
    fn detailed_metric_tells_requests_apart_by_their_values() {
        let mut both = config("a", "shop");
        both.descriptors.push(RateLimitDescriptor {
            key: "ip".into(),
            detailed_metric: true,
            ..both.descriptors[0].clone()
        });
        let rules = loaded(&[both]).unwrap().rules;
        let has_values: Vec<_> = rules.rules().iter().map(|rule| (&*rule.path, rule.has_values())).collect();
        assert_eq!(has_values, [("user", false), ("ip", true)]);
    }

    #[test]
    fn the_order_of_resources_means_nothing() {
        let (shop, mall) = (any(&config("a", "shop")), any(&config("b", "mall")));
        let one = resources(vec![shop.clone(), mall.clone()]).unwrap();
        assert_eq!(one, resources(vec![mall, shop]).unwrap());
        assert_eq!(load(&one, LoadOptions::default()).unwrap().rules.domains(), 2);
    }

    #[test]
    fn a_mistake_names_its_resource_and_its_field() {
        let mut wrong = config("listener-80", "shop");
        let limit = wrong.descriptors[0].rate_limit.as_mut().unwrap();
        limit.unit = 0;
        limit.replaces = vec![RateLimitReplace::default()];
        wrong.descriptors.push(RateLimitDescriptor::default());
        let told = loaded(&[wrong]).unwrap_err();
        assert_eq!(
            told,
            "listener-80: descriptors[0].rate_limit.replaces[0].name: is missing or empty\n\
             listener-80: descriptors[0].rate_limit.unit: is missing: write one of second, minute, hour, day, week, \
             month, year, or a period such as 90s\n\
             listener-80: descriptors[1].key: is missing or empty"
        );
        let mut unit = config("a", "shop");
        unit.descriptors[0].rate_limit.as_mut().unwrap().unit = 9;
        let told = loaded(&[unit]).unwrap_err();
        assert!(told.starts_with("a: descriptors[0].rate_limit.unit: unknown unit \"9\""), "{told}");
    }

    /// Returns a rule of Envoy Gateway that matches this number of headers together.
    fn rule_of_headers(rule: usize, headers: usize) -> RateLimitDescriptor {
        let limit = RateLimitPolicy { unit: 2, requests_per_unit: 5, ..RateLimitPolicy::default() };
        let header = |header| {
            let name = format!("rule-{rule}-match-{header}");
            RateLimitDescriptor { key: name.clone(), value: name, ..RateLimitDescriptor::default() }
        };
        let last = RateLimitDescriptor { rate_limit: Some(limit), ..header(headers - 1) };
        (0..headers - 1).rev().fold(last, |below, at| RateLimitDescriptor { descriptors: vec![below], ..header(at) })
    }

    #[test]
    fn the_largest_policy_of_envoy_gateway_is_read_and_what_is_deeper_than_rules_may_be_is_told() {
        let of = |rules: usize, headers| {
            let mut config = config("eg", "eg");
            let (key, value) = ("route".to_owned(), "route".to_owned());
            let descriptors = (0..rules).map(|rule| rule_of_headers(rule, headers)).collect();
            config.descriptors = vec![RateLimitDescriptor { key, value, descriptors, ..Default::default() }];
            config
        };
        assert_eq!(loaded(&[of(256, 128)]).unwrap().rules.rules().len(), 256);
        assert_eq!(loaded(&[of(1, MAX_LEVELS - 1)]).unwrap().rules.rules().len(), 1);
        let told = loaded(&[of(1, MAX_LEVELS)]).unwrap_err();
        assert!(told.contains("descriptors may nest up to 160 levels deep"), "{told}");
        // Deeper than any stack allows: each level is a bytes field around the one below.
        let (mut below, key) = (Vec::new(), |tag: u32| tag << 3 | 2);
        for _ in 0..5_000 {
            let mut level = Vec::with_capacity(below.len() + 8);
            prost::encoding::encode_varint(key(4).into(), &mut level);
            prost::encoding::encode_varint(below.len() as u64, &mut level);
            level.extend(&below);
            below = level;
        }
        let mut bytes = config("eg", "eg").encode_to_vec();
        prost::encoding::encode_varint(key(3).into(), &mut bytes);
        prost::encoding::encode_varint(below.len() as u64, &mut bytes);
        bytes.extend(&below);
        let all = resources(vec![Any { type_url: TYPE_URL.into(), value: bytes }]).unwrap();
        let told = load(&all, LoadOptions::default()).unwrap_err().to_string();
        assert!(told.contains("levels deep"), "{told}");
    }

    #[test]
    fn two_resources_of_one_domain_are_refused_unless_they_are_to_be_merged() {
        let mut more = config("b", "shop");
        more.descriptors[0].key = "ip".into();
        let both = [config("a", "shop"), more];
        let told = loaded(&both).unwrap_err();
        let words = "b: domain: \"shop\" is already the domain of a; a domain must be in one resource, unless";
        assert!(told.starts_with(words), "{told}");
        let resources = resources(both.iter().map(any).collect()).unwrap();
        let merged = load(&resources, LoadOptions { merge_domains: true, ..LoadOptions::default() }).unwrap();
        assert_eq!((merged.rules.domains(), merged.rules.rules().len()), (1, 2));
    }

    #[test]
    fn what_is_no_resource_is_told_by_its_place() {
        let other = Any { type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".into(), value: Vec::new() };
        let broken = Any { type_url: TYPE_URL.into(), value: vec![0xff] };
        let told = resources(vec![any(&config("a", "shop")), other, broken]).unwrap_err().to_string();
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines[0].starts_with("resources[1]: has the type \"type.googleapis.com/envoy.config.cl"), "{told}");
        assert!(lines[1].starts_with("resources[2]: cannot be decoded"), "{told}");
        // Its names can be decoded, and the rest cannot.
        let broken = Any { type_url: TYPE_URL.into(), value: vec![10, 1, b'a', 26, 1, 0xff] };
        let told = load(&resources(vec![broken]).unwrap(), LoadOptions::default()).unwrap_err().to_string();
        assert!(told.starts_with("a: cannot be decoded"), "{told}");
    }

    #[test]
    fn zero_blocks_and_unlimited_counts_nothing() {
        let mut block = config("a", "shop");
        block.descriptors[0].rate_limit.as_mut().unwrap().requests_per_unit = 0;
        let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
        let vip = RateLimitDescriptor { key: "vip".into(), rate_limit: Some(unlimited), ..Default::default() };
        block.descriptors.push(vip);
        let loaded = loaded(&[block]).unwrap();
        assert_eq!((loaded.warnings, loaded.rules.rules().len()), (Vec::new(), 2));
    }

    #[test]
    fn what_is_not_named_yet_stays_and_what_was_named_goes() {
        let of = |names: &[(&str, &str)]| {
            resources(names.iter().map(|(name, domain)| any(&config(name, domain))).collect()).unwrap()
        };
        let names = |all: Resources| all.iter().map(|resource| resource.name.clone()).collect::<Vec<_>>();
        let in_force = of(&[("a", "shop"), ("b", "mall"), ("c", "kiosk")]);
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<HashSet<_>>();
        assert_eq!(names(with_unnamed(&[], &in_force, &named(&[]))), ["a", "b", "c"]);
        assert_eq!(names(with_unnamed(&of(&[("a", "shop")]), &in_force, &named(&["a", "c"]))), ["a", "b"]);
        // The domain returns under another name, so the old resource goes.
        assert_eq!(names(with_unnamed(&of(&[("d", "mall")]), &in_force, &named(&["d"]))), ["a", "c", "d"]);
    }
}
