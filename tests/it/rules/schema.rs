//! The JSON Schema for editors is the reader's own: it knows the same keys and names, and refuses nothing right.

use std::collections::BTreeSet;

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Value, json};

use super::validating::drawn_domain;
use super::*;

const FILE: &str = "config/rules.schema.json";

struct Validator {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Validator {
    fn new() -> Validator {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("file:///rules.json", tollgate::sources::files::schema()).unwrap();
        let index = compiler.compile("file:///rules.json", &mut schemas).unwrap();
        Validator { schemas, index }
    }

    fn refusal(&self, value: &Value) -> Option<String> {
        self.schemas.validate(value, self.index).err().map(|error| error.to_string())
    }
}

/// Returns a file as an editor reads it; `None` if it is not valid YAML for an editor.
fn as_json(text: &str) -> Option<Value> {
    serde_saphyr::from_str(text).ok()
}

#[test]
fn the_file_is_current() {
    let printed = format!("{:#}\n", tollgate::sources::files::schema());
    let hint = format!("cargo run -- schema > {FILE}");
    assert_eq!(fs::read_to_string(FILE).unwrap_or_default(), printed, "{hint}");
}

#[test]
fn every_rules_file_of_the_project_is_valid() {
    let validator = Validator::new();
    let mut texts: Vec<(String, String)> = Vec::new();
    for folder in ["config/rules", "tests/rules/accepted"] {
        for file in files_in(folder) {
            texts.push((file.display().to_string(), fs::read_to_string(file).unwrap()));
        }
    }
    let mut pages = files_in("docs");
    pages.push("README.md".into());
    for page in pages.into_iter().filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let rules = blocks.filter(|block| block.starts_with("domain:"));
        texts.extend(rules.map(|block| (page.display().to_string(), block.to_owned())));
    }
    assert!(texts.len() > 15, "{}", texts.len());
    for (name, text) in texts {
        // Merge keys, directives and numbers of YAML 1.1 are no matter of JSON.
        if ["anchors", "scalars", "byte_order", "version_and_end", "empty_last", "flags", "reference.yaml"]
            .iter()
            .any(|not| name.contains(not))
        {
            continue;
        }
        let value = as_json(&text).unwrap_or_else(|| panic!("{name} is no YAML"));
        assert_eq!(validator.refusal(&value), None, "{name}");
    }
}

/// Rules that `check` rejects but a schema cannot: they depend on several mappings.
const BEYOND: &[&str] = &["duplicates", "weigh_by_alone", "weigh_by_below"];

#[test]
fn it_refuses_what_check_refuses() {
    let validator = Validator::new();
    let mut unseen = BTreeSet::new();
    for file in files_in("tests/rules/refused") {
        let Some(value) = as_json(&fs::read_to_string(&file).unwrap()) else { continue };
        if validator.refusal(&value).is_none() {
            unseen.insert(file.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    let beyond: BTreeSet<String> = BEYOND.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(unseen, beyond);
}

/// Every object that describes a mapping of the file.
fn sections(schema: &Value) -> Vec<&Value> {
    let definitions = schema["definitions"].as_object().unwrap().values();
    definitions.chain([schema]).collect()
}

#[test]
fn every_key_and_every_name_in_it_means_something_to_the_reader_and_is_described() {
    let schema = tollgate::sources::files::schema();
    let mut keys = BTreeSet::new();
    for section in sections(&schema) {
        assert!(section["description"].as_str().is_some_and(|text| text.ends_with('.')), "{section}");
        for (key, property) in section["properties"].as_object().unwrap() {
            assert!(property["description"].as_str().is_some_and(|text| text.ends_with('.')), "{key}");
            keys.insert(key.clone());
        }
    }
    // A key that the reader does not know is refused by name.
    for key in &keys {
        let text = format!("domain: d\n{key}: {{}}\ndescriptors: []\n");
        let told = load_text(&text).err().map_or(String::new(), |error| error.to_string());
        assert!(!told.contains("unknown key"), "{key}: {told}");
    }
    let algorithms = &schema["definitions"]["rate_limit"]["properties"]["algorithm"]["enum"];
    let names: BTreeSet<_> = algorithms.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(names, Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect());
    let modes = &schema["definitions"]["rate_limit"]["properties"]["failure_mode"]["enum"];
    let names: BTreeSet<_> = modes.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(names, FailureMode::ALL.map(FailureMode::name).into());
}

/// A value of each type for each key, and the reader's verdict.
#[test]
fn what_a_key_takes_is_what_the_reader_takes() {
    let validator = Validator::new();
    let values = [
        ("a text", json!("x")),
        ("a number", json!(5)),
        ("a truth value", json!(true)),
        ("a fraction", json!(0.5)),
        ("a list", json!([])),
        ("a mapping", json!({})),
        ("a length", json!("90s")),
        ("nothing", Value::Null),
        ("less than nothing", json!(-1)),
        ("too much", json!(4_294_967_296_u64)),
    ];
    // For a value of a wrong type, the reader names the right type.
    let wrong_type = |text: &str| {
        let told = load_text(text).err().map_or(String::new(), |error| error.to_string());
        told.contains(" must be a ")
            || told.contains("must be true or false")
            || told.contains("floating-point")
            || told.contains("is not a duration")
    };
    let limit = json!({"unit": "minute", "requests_per_unit": 5});
    let schema = tollgate::sources::files::schema();
    let keys = |section: &str| schema["definitions"][section]["properties"].as_object().unwrap().keys().cloned();
    for (what, value) in &values {
        for key in keys("rate_limit").filter(|key| key != "unit") {
            let mut of = json!({"requests_per_unit": 5, "unit": "minute"});
            of[&key] = value.clone();
            let file = json!({"domain": "d", "descriptors": [{"key": "k", "rate_limit": of}]});
            if wrong_type(&file.to_string()) {
                assert!(validator.refusal(&file).is_some(), "the schema takes {what} for {key}");
            }
        }
        for key in keys("descriptors") {
            let mut of = json!({"key": "k", "rate_limit": limit});
            of[&key] = value.clone();
            let file = json!({"domain": "d", "descriptors": [of]});
            if wrong_type(&file.to_string()) {
                assert!(validator.refusal(&file).is_some(), "the schema takes {what} for {key}");
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn it_refuses_nothing_that_check_accepts(drawn in drawn_domain()) {
        let accepted = load_text(drawn.to_string()).is_ok_and(|loaded| loaded.warnings.is_empty());
        if accepted {
            proptest::prop_assert_eq!(Validator::new().refusal(&drawn), None);
        }
    }
}
