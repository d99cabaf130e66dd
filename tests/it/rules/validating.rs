//! Rules from any source: another source than YAML gets the same messages, at the same paths.

use std::borrow::Cow;
use std::sync::Arc;

use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};
use serde_json::{Map, Value, json};
use tollgate::engine::rules::config::{
    FieldPath, Raw, RawDefaults, RawDescriptor, RawDomain, RawLimit, RawMapping, RawValue,
};
use tollgate::engine::rules::keys::RATE_LIMIT;
use tollgate::engine::rules::options::{denied_body, lease};
use tollgate::engine::rules::report::{Position, Problem, Report};
use tollgate::engine::rules::section::{Section, Takes};
use tollgate::engine::rules::validate::{Origin, Part, Validation};

use super::*;

/// A source that has names and no lines.
struct Resource(Arc<Path>);

impl Origin for Resource {
    fn name(&self) -> &Arc<Path> {
        &self.0
    }

    fn position(&self, _: &FieldPath<'_>) -> Option<Position> {
        None
    }
}

fn validate(parts: &[(&str, RawDomain<'_>)], options: LoadOptions) -> Result<Rules, RulesError> {
    let (mut report, mut validation) = (Report::default(), Validation::new(options.clone()));
    for (name, raw) in parts {
        let part = Part::validate(&Resource(Path::new(name).into()), raw, &options, &mut report);
        let part = part.compile(&report);
        validation.join(part, &mut report);
    }
    let rules = validation.finish(&mut report);
    report.finish().map(|_| rules)
}

fn text<'a>(text: &'a str) -> Raw<Cow<'a, str>> {
    Raw::Given(text.into())
}

fn domain<'a>(name: &'a str, key: &'a str, limit: RawLimit<'a>) -> RawDomain<'a> {
    let descriptor =
        RawDescriptor { key: text(key), rate_limit: Raw::Given(Box::new(limit)), ..RawDescriptor::default() };
    RawDomain { domain: text(name), descriptors: Raw::Given(vec![Raw::Given(descriptor)]), ..RawDomain::default() }
}

fn five_a<'a>(unit: &'a str) -> RawLimit<'a> {
    RawLimit::default()
        .with("unit", text(unit).map(RawValue::Text))
        .with("requests_per_unit", Raw::Given(RawValue::Number(5)))
}

#[test]
fn what_any_source_says_becomes_rules() {
    let rules = validate(&[("shop-resource", domain("shop", "user", five_a("minute")))], OPTIONS).unwrap();
    assert_eq!(&*find(&rules, "shop", "user=ann").unwrap().path, "user");
}

#[test]
fn a_mistake_is_named_by_its_path_and_in_the_words_that_a_file_gets() {
    let raw = domain("shop", "user", five_a("minuets"));
    let error = validate(&[("shop-resource", raw)], OPTIONS).unwrap_err().to_string();
    let words = "descriptors[0].rate_limit.unit: unknown unit \"minuets\", did you mean \"minute\"?";
    assert_eq!(error, format!("shop-resource: {words}"));
    let file = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minuets, requests_per_unit: 5}}]";
    assert!(load_text(file).unwrap_err().to_string().ends_with(words));
}

#[test]
fn what_its_source_could_not_read_is_no_second_mistake() {
    let limit = RawLimit::default().with("unit", Raw::Unreadable).with("requests_per_unit", Raw::Unreadable);
    let raw = RawDomain { domain: Raw::Unreadable, ..domain("", "user", limit) };
    assert!(validate(&[("resource", raw)], OPTIONS).is_ok(), "the source has reported it, and here it did not");
}

#[test]
fn parts_of_a_domain_that_have_no_lines_are_distinct_by_their_names() {
    let parts = [("a", domain("shop", "user", five_a("minute"))), ("b", domain("shop", "user", five_a("hour")))];
    let error = validate(&parts, MERGED).unwrap_err().to_string();
    assert_eq!(error, "b: descriptors[0]: has the same key and value as descriptors[0] at a");
    let error = validate(&parts, OPTIONS).unwrap_err().to_string();
    assert!(error.starts_with("b: domain: \"shop\" is already the domain of a;"), "{error}");
}

/// Generates a domain as JSON; [`raw`] makes a raw domain of it, without a file.
pub(super) fn drawn_domain() -> impl Strategy<Value = Value> {
    let of = |choices: &'static [&'static str]| prop::sample::select(choices).prop_map(|text| json!(text));
    let number = || prop_oneof![Just(0_u32), Just(1), 2..70_u32, Just(20_000), Just(u32::MAX)].prop_map(|n| json!(n));
    let flag = || any::<bool>().prop_map(|flag| json!(flag));
    let length = move || of(&["1ms", "1s", "90s", "2m", "15m", "1h", "367d", "0s", "half an hour", "5", ""]);
    let name = move || of(&["", "a", "b", "stream"]);
    let algorithm = move || {
        of(&["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "concurrency", "tokens"])
    };
    let mode = move || of(&["open", "closed", "local", "error", "ajar"]);
    let metadata = prop::sample::select(vec![json!({}), json!({"plan": "gold", "svc": {"a": [1.5, null, true]}})]);
    let penalty = map([
        ("after", number().boxed()),
        ("within", length().boxed()),
        ("ban", length().boxed()),
        ("extend", flag().boxed()),
    ]);
    let unused = of(&["5%", "50%", "51%", "0%", "8", ""]);
    let lease = map([("unused", unused.boxed()), ("ttl", length().boxed())]);
    let body = map([
        ("format", of(&["problem", "openai", "none", "xml", ""]).boxed()),
        ("text", of(&["", "slow down: {rule}", "{rul}", "[{wait_seconds}]", "[{rule}]"]).boxed()),
        ("content_type", of(&["application/json", "text/html", "text", ""]).boxed()),
    ]);
    let (of_defaults, lease_of_defaults) = (body.clone(), lease.clone());
    let own_share = || of(&["5%", "100%", "0%", "8", ""]);
    let from = map([("from", of(&["request", "rule", ""]).boxed()), ("max", number().boxed())]);
    let marks = prop::collection::vec(of(&["80%", "100%", "0%", "8", ""]), 0..3).prop_map(Value::from);
    let notify = map([("at", marks.boxed())]);
    let replaces = prop::collection::vec(map([("name", name().boxed())]), 0..3).prop_map(Value::from);
    let limit = map([
        ("name", name().boxed()),
        ("unit", of(&["second", "Minute", "hour", "year", "minuets", ""]).boxed()),
        ("requests_per_unit", number().boxed()),
        ("unlimited", flag().boxed()),
        ("replaces", replaces.boxed()),
        ("period", length().boxed()),
        ("algorithm", algorithm().boxed()),
        ("cost", number().boxed()),
        ("burst", number().boxed()),
        ("max_delay", length().boxed()),
        ("initial", of(&["full", "empty", "half"]).boxed()),
        ("segments", number().boxed()),
        ("weighting", of(&["strict", "linear", "heavy"]).boxed()),
        ("starts", of(&["clock", "first_request", "request"]).boxed()),
        ("time_zone", of(&["UTC", "asia/shanghai", "Asia/Shangai"]).boxed()),
        ("starts_on", of(&["2026-01-31", "1970-01-01", "2026-02-30"]).boxed()),
        ("hold", length().boxed()),
        ("give_back", flag().boxed()),
        ("durable", flag().boxed()),
        ("penalty", penalty.boxed()),
        ("lease", lease.boxed()),
        ("own_share", own_share().boxed()),
        ("denied_body", body.boxed()),
        ("number", from.boxed()),
        ("quota_unit", of(&["requests", "content-bytes", "bytes"]).boxed()),
        ("soft", of(&["80%", "0%", "8", ""]).boxed()),
        ("notify", notify.boxed()),
        ("failure_mode", mode().boxed()),
        ("count_denied", flag().boxed()),
    ]);
    let limits = prop::collection::vec(limit.clone(), 0..3).prop_map(Value::from);
    let node = move |children: proptest::strategy::BoxedStrategy<Value>| {
        let keys = map([
            ("key", name().boxed()),
            ("value", of(&["", "*", "x", "x*"]).boxed()),
            ("share_threshold", flag().boxed()),
            ("detailed_metric", flag().boxed()),
            ("value_to_metric", flag().boxed()),
            ("shadow_mode", flag().boxed()),
            ("quota_mode", flag().boxed()),
            ("metadata", metadata.clone().boxed()),
            ("rate_limit", limit.clone().boxed()),
            ("rate_limits", limits.clone().boxed()),
            ("descriptors", children),
        ]);
        prop::collection::vec(keys, 0..3).prop_map(Value::from).boxed()
    };
    let descriptors = node(node(Just(json!([])).boxed()));
    let defaults = map([
        ("algorithm", algorithm().boxed()),
        ("failure_mode", mode().boxed()),
        ("denied_body", of_defaults.boxed()),
        ("lease", lease_of_defaults.boxed()),
        ("own_share", own_share().boxed()),
    ]);
    let expect = prop::collection::vec(of(&["a", "b", "usr"]), 0..3).prop_map(Value::from);
    map([
        ("domain", name().boxed()),
        ("defaults", defaults.boxed()),
        ("expect", expect.boxed()),
        ("on_missing", of(&["count", "deny", "ignore"]).boxed()),
        ("descriptors", descriptors),
    ])
}

/// Some of these keys.
fn map<const N: usize>(
    fields: [(&'static str, proptest::strategy::BoxedStrategy<Value>); N],
) -> impl Strategy<Value = Value> + Clone {
    let field = |(key, value): (&'static str, proptest::strategy::BoxedStrategy<Value>)| {
        prop::option::weighted(0.5, value).prop_map(move |value| value.map(|value| (key.to_owned(), value))).boxed()
    };
    let fields: Vec<_> = fields.into_iter().map(field).collect();
    fields.prop_map(|fields| Value::Object(fields.into_iter().flatten().collect())).boxed()
}

fn given<'v, T>(of: &'v Map<String, Value>, key: &str, read: impl FnOnce(&'v Value) -> T) -> Raw<T> {
    of.get(key).map_or(Raw::Missing, |value| Raw::Given(read(value)))
}

fn words<'v>(of: &'v Map<String, Value>, key: &str) -> Raw<Cow<'v, str>> {
    given(of, key, |value| value.as_str().unwrap().into())
}

fn number(of: &Map<String, Value>, key: &str) -> Raw<u32> {
    given(of, key, |value| value.as_u64().unwrap().try_into().unwrap())
}

fn flag(of: &Map<String, Value>, key: &str) -> Raw<bool> {
    given(of, key, |value| value.as_bool().unwrap())
}

fn list<'v, T>(of: &'v Map<String, Value>, key: &str, read: impl Fn(&'v Map<String, Value>) -> T) -> Raw<Vec<Raw<T>>> {
    given(of, key, |value| {
        value.as_array().unwrap().iter().map(|item| Raw::Given(read(item.as_object().unwrap()))).collect()
    })
}

fn names<'v>(of: &'v Map<String, Value>, key: &str) -> Raw<Vec<Raw<Cow<'v, str>>>> {
    given(of, key, |value| {
        value.as_array().unwrap().iter().map(|item| Raw::Given(item.as_str().unwrap().into())).collect()
    })
}

fn raw(of: &Map<String, Value>) -> RawDomain<'_> {
    RawDomain {
        domain: words(of, "domain"),
        defaults: given(of, "defaults", |value| {
            let of = value.as_object().unwrap();
            RawDefaults {
                algorithm: words(of, "algorithm"),
                failure_mode: words(of, "failure_mode"),
                denied_body: given(of, "denied_body", |value| {
                    raw_mapping(value.as_object().unwrap(), &denied_body::SECTION)
                }),
                lease: given(of, "lease", |value| raw_mapping(value.as_object().unwrap(), &lease::SECTION)),
                own_share: words(of, "own_share"),
            }
        }),
        expect: names(of, "expect"),
        on_missing: words(of, "on_missing"),
        prices: Raw::Missing,
        descriptors: list(of, "descriptors", raw_descriptor),
    }
}

fn raw_descriptor(of: &Map<String, Value>) -> RawDescriptor<'_> {
    RawDescriptor {
        key: words(of, "key"),
        value: words(of, "value"),
        share_threshold: flag(of, "share_threshold"),
        detailed_metric: flag(of, "detailed_metric"),
        value_to_metric: flag(of, "value_to_metric"),
        shadow_mode: flag(of, "shadow_mode"),
        quota_mode: flag(of, "quota_mode"),
        metadata: given(of, "metadata", |value| Box::new(value.as_object().unwrap().clone())),
        rate_limit: given(of, "rate_limit", |value| Box::new(raw_limit(value.as_object().unwrap()))),
        rate_limits: list(of, "rate_limits", raw_limit),
        descriptors: list(of, "descriptors", raw_descriptor),
    }
}

fn raw_limit(of: &Map<String, Value>) -> RawLimit<'_> {
    raw_mapping(of, &RATE_LIMIT)
}

fn raw_mapping<'v>(of: &'v Map<String, Value>, section: &Section) -> RawMapping<'v> {
    let mut raw = RawMapping::default();
    for key in section.keys() {
        let value = match key.takes {
            Takes::Text | Takes::Name | Takes::Unit | Takes::Choice(_) | Takes::Length => {
                words(of, key.name).map(RawValue::Text)
            }
            Takes::Number | Takes::Wide => number(of, key.name).map(|number| RawValue::Number(number.into())),
            Takes::Flag => flag(of, key.name).map(RawValue::Flag),
            Takes::Names => names(of, key.name).map(RawValue::Names),
            Takes::Prices => unreachable!("only the top level has prices"),
            Takes::Mapping => given(of, key.name, |value| RawValue::Any(Box::new(value.as_object().unwrap().clone()))),
            Takes::One(section) => {
                given(of, key.name, |value| RawValue::Mapping(raw_mapping(value.as_object().unwrap(), section)))
            }
            Takes::Many(section) => list(of, key.name, |of| raw_mapping(of, section)).map(RawValue::List),
        };
        raw.set(key.name, value);
    }
    raw
}

proptest::proptest! {
    #[test]
    fn every_source_gets_the_same_words_at_the_same_paths(drawn in drawn_domain()) {
        let (mut report, mut validation) = (Report::default(), Validation::new(OPTIONS));
        let origin = Resource(Path::new("anywhere").into());
        let part = Part::validate(&origin, &raw(drawn.as_object().unwrap()), &OPTIONS, &mut report);
        validation.join(part.compile(&report), &mut report);
        validation.finish(&mut report);
        let from_anywhere = match report.finish() {
            Ok(warnings) => (true, warnings),
            Err(error) => (false, error.problems),
        };
        let from_a_file = match load_text(drawn.to_string()) {
            Ok(loaded) => (true, loaded.warnings),
            Err(error) => (false, error.problems),
        };
        let told = |(accepted, problems): (bool, Vec<Problem>)| {
            // A file names the line of another descriptor, too.
            let message = |text: &str| text.split(" at ").next().unwrap().to_owned();
            let mut told: Vec<_> =
                problems.iter().map(|problem| (problem.path.clone(), message(&problem.message))).collect();
            told.sort();
            (accepted, told)
        };
        // Of more problems than this, each source lists those that it meets first.
        proptest::prop_assume!(from_a_file.1.len() < 100);
        proptest::prop_assert_eq!(told(from_anywhere), told(from_a_file));
    }
}
