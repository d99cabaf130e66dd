//! Rules inside Kubernetes manifests: `check` reads them with the manifest's own lines, the service does not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use tollgate::engine::rules::report::Position;
use tollgate::sources::files::load::{NamedText, check};

use super::*;

fn check_text(text: &str) -> Result<Loaded, RulesError> {
    let text = NamedText { name: "-".into(), bytes: text.as_bytes().to_vec() };
    check(&Sources::default(), &[text], &OPTIONS)
}

fn said(text: &str) -> String {
    match check_text(text) {
        Ok(loaded) => loaded.warnings.iter().map(|problem| format!("{problem}\n")).collect(),
        Err(error) => format!("{error}\n"),
    }
}

/// A ConfigMap that holds these files.
fn config_map(files: &[(&str, &str)]) -> String {
    let mut text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rules}\ndata:\n".to_owned();
    for (name, file) in files {
        text += &format!("  {name}: |\n");
        file.lines().for_each(|line| text += &format!("    {line}\n"));
    }
    text
}

const SHOP: &str = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5}\n";

#[test]
fn every_config_map_of_a_manifest_is_read_and_all_else_is_passed_over() {
    let api = SHOP.replace("shop", "api");
    let one = config_map(&[("shop.yaml", SHOP), ("api.yml", &api), ("envoy.yaml", "static_resources: {}")]);
    let other = SHOP.replace("shop", "other");
    let list: String = config_map(&[("o.json", &other)]).lines().map(|line| format!("    {line}\n")).collect();
    let list = format!("apiVersion: v1\nkind: List\nitems:\n  -\n{list}");
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n";
    let loaded = check_text(&format!("---\n# Source: a chart\n{one}---\n{deployment}---\n{list}---\n")).unwrap();
    assert_eq!(loaded.warnings, []);
    for domain in ["shop", "api", "other"] {
        assert!(find(&loaded.rules, domain, "user=ann").is_some(), "{domain}");
    }
    assert_eq!(loaded.rules.domains(), 3);
}

#[test]
fn the_manifest_for_kubernetes_in_this_project_holds_rules() {
    let loaded = check(&sources("deploy/kustomize/base"), &[], &OPTIONS).unwrap();
    assert_eq!(loaded.warnings, []);
    assert!(!loaded.rules.rules().is_empty());
}

#[test]
fn a_mistake_stands_where_it_is_in_the_manifest() {
    let text =
        config_map(&[("shop.yaml", &SHOP.replace("minute", "minuets")), ("b.yaml", "domain: b\ndescriptors: *")]);
    assert_eq!(
        said(&text),
        "-:9:28: ConfigMap \"rules\", \"shop.yaml\": descriptors[0].rate_limit.unit: unknown unit \"minuets\", did you \
         mean \"minute\"?\n\
         -:12:18: ConfigMap \"rules\", \"b.yaml\": not YAML: * begins an alias in YAML; a string that begins with it \
         needs quotes: \"*\"\n"
    );
}

#[test]
fn in_a_text_that_is_no_block_the_place_is_that_of_the_text_and_its_own_line_is_told() {
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "data": {"a.yaml": SHOP.replace("minute", "minuets"), "b.yaml": "domain: b\ndescriptors: *\n"},
    });
    assert_eq!(
        said(&text.to_string()),
        "-:1:37: a \"ConfigMap\", \"a.yaml\", line 4: descriptors[0].rate_limit.unit: unknown unit \"minuets\", did \
         you mean \"minute\"?\n\
         -:1:147: a \"ConfigMap\", \"b.yaml\", line 2: not YAML: * begins an alias in YAML; a string that begins with \
         it needs quotes: \"*\"\n"
    );
}

#[test]
fn a_secret_is_read_as_a_config_map_is() {
    let wrong = SHOP.replace("minute", "minuets");
    let encoded = STANDARD.encode(&wrong);
    let in_lines: Vec<String> =
        encoded.as_bytes().chunks(40).map(|line| format!("    {}\n", str::from_utf8(line).unwrap())).collect();
    let secret = |data: &str| format!("---\napiVersion: v1\nkind: Secret\nmetadata: {{name: hidden}}\n{data}");
    let beside = config_map(&[("b.yaml", &SHOP.replace("shop", "b"))]);
    let words = "descriptors[0].rate_limit.unit: unknown unit \"minuets\", did you mean \"minute\"?\n";
    for (data, place) in [
        (format!("data:\n  shop.yaml: {encoded}\n"), "15:14: Secret \"hidden\", \"shop.yaml\", line 4"),
        (format!("data:\n  shop.yaml: |\n{}", in_lines.concat()), "16:5: Secret \"hidden\", \"shop.yaml\", line 4"),
        (
            format!("stringData:\n  shop.yaml: {}\n", serde_json::json!(wrong)),
            "15:14: Secret \"hidden\", \"shop.yaml\", line 4",
        ),
    ] {
        assert_eq!(said(&format!("{beside}{}", secret(&data))), format!("-:{place}: {words}"));
    }
    let others = secret("data: {password: aGlkZGVu, binary: /w==, no-base64.yaml: '*'}\n");
    assert_eq!(said(&format!("{beside}{others}")), "");
    assert!(said(&others).contains("there are Secret \"hidden\""));
}

#[test]
fn a_manifest_without_rules_says_what_it_holds() {
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n";
    let service = "---\napiVersion: v1\nkind: Service\n";
    let other = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a.yaml: 'colour: red'}\n";
    assert_eq!(
        said(&format!("{deployment}{service}{other}")),
        "-:1:1: no ConfigMap or Secret in this manifest holds rules: there are Deployment \"web\", a \"Service\", \
         ConfigMap \"other\"\n"
    );
    let folder = folder(&[("a.yaml", deployment), ("b.yaml", SHOP)]);
    assert!(check(&sources(folder.path()), &[], &OPTIONS).is_ok(), "beside rules it may stand");
    let broken = said(&format!("{deployment}spec: {{\n"));
    assert!(broken.contains("not YAML"), "{broken}");
    assert!(said(&format!("{deployment}---\nkind: ConfigMap\n")).contains("needs an apiVersion and a kind"));
}

#[test]
fn rules_by_a_name_that_a_folder_passes_over_are_told() {
    let told = said(&config_map(&[("config", SHOP)]));
    assert_eq!(told, "warning: -:6:5: \"config\" is skipped in a folder: name rules files *.yaml, *.yml or *.json\n");
}

#[test]
fn the_service_reads_no_manifest() {
    let error = load_text(config_map(&[("shop.yaml", SHOP)])).unwrap_err().to_string();
    assert!(error.contains("this is a Kubernetes \"ConfigMap\", not rules: mount it as a volume"), "{error}");
}

#[test]
fn two_files_of_a_config_map_have_no_domain_in_common() {
    let told = said(&config_map(&[("a.yaml", SHOP), ("b.yaml", SHOP)]));
    let words = "-:11:13: ConfigMap \"rules\", \"b.yaml\": domain: \"shop\" is already the domain of ConfigMap \
                 \"rules\", \
                 \"a.yaml\": -;";
    assert!(told.starts_with(words), "{told}");
}

proptest::proptest! {
    /// Every message about a file is also reported for it inside a ConfigMap, with shifted lines.
    #[test]
    fn a_file_in_a_config_map_gets_the_same_words_at_its_own_lines(
        file in prop::sample::select(files_in("tests/rules/refused")),
        blank_lines in 0..3_usize,
    ) {
        let text = format!("{}{}", "\n".repeat(blank_lines), fs::read_to_string(&file).unwrap());
        let manifest = config_map(&[("rules.yaml", &text)]);
        // Skips texts that are not rules, or that a YAML block cannot contain.
        prop_assume!(text.contains("domain:") && !text.contains("kind:") && text.is_ascii() && !text.contains('\t'));
        let problems = |text: &str| check_text(text).unwrap_err().problems;
        let moved: Vec<_> = problems(&text).into_iter().map(|mut problem| {
            let at = problem.position.unwrap();
            problem.position = Some(Position { line: at.line + 5, column: at.column + 4 });
            // A message can name another place.
            (problem.position, problem.path, problem.message.split(" at ").next().unwrap().to_owned())
        }).collect();
        let found: Vec<_> = problems(&manifest).into_iter().map(|problem| {
            let path = problem.path.strip_prefix("ConfigMap \"rules\", \"rules.yaml\"").unwrap();
            let path = path.strip_prefix(": ").unwrap_or(path).to_owned();
            (problem.position, path, problem.message.split(" at ").next().unwrap().to_owned())
        }).collect();
        prop_assert_eq!(moved, found);
    }

    #[test]
    fn no_manifest_however_broken_does_worse_than_be_refused(
        edits in proptest::collection::vec(
            (0..900_usize, 0..9_usize, "[-&*!|>'\"%@#?:,{}\\[\\] \n\t0-9a-z<~.]{0,4}"),
            1..6,
        ),
    ) {
        let mut text: Vec<char> = config_map(&[("a.yaml", SHOP), ("b.yaml", "domain: b")]).chars().collect();
        for (at, length, with) in edits {
            let at = at % text.len();
            let end = (at + length).min(text.len());
            text.splice(at..end, with.chars());
            text.push('\n');
        }
        let _ = check_text(&text.into_iter().collect::<String>());
    }
}
