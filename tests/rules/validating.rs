//! Rules from anywhere: what another source than YAML says is refused in the same words, at the same paths.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate::rules::config::{FieldPath, Raw, RawDescriptor, RawDomain, RawLimit};
use tollgate::rules::report::{Position, Report};
use tollgate::rules::validate::{Origin, Validation};

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
    let (mut report, mut validation) = (Report::default(), Validation::new(options));
    for (name, raw) in parts {
        validation.add(&Resource(Path::new(name).into()), raw, &mut report);
    }
    let configs = validation.finish(&mut report);
    report.finish().map(|_| Rules::new(configs))
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
    RawLimit { unit: text(unit), requests_per_unit: Raw::Given(5), ..RawLimit::default() }
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
    let limit = RawLimit { unit: Raw::Unreadable, requests_per_unit: Raw::Unreadable, ..RawLimit::default() };
    let raw = RawDomain { domain: Raw::Unreadable, ..domain("", "user", limit) };
    assert!(validate(&[("resource", raw)], OPTIONS).is_ok(), "the source has reported it, and here it did not");
}

#[test]
fn parts_of_a_domain_that_have_no_lines_are_told_apart_by_their_names() {
    let parts = [("a", domain("shop", "user", five_a("minute"))), ("b", domain("shop", "user", five_a("hour")))];
    let error = validate(&parts, MERGED).unwrap_err().to_string();
    assert_eq!(error, "b: descriptors[0]: has the same key and value as descriptors[0] at a");
    let error = validate(&parts, OPTIONS).unwrap_err().to_string();
    assert!(error.starts_with("b: domain: \"shop\" is already the domain of a;"), "{error}");
}
