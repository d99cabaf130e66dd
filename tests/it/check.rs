//! `tollgate check` as people and programs meet it.

use std::io::Write as _;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::support::tollgate;

const WRONG: &str = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: minuets\n      \
                     requests_per_unit: 5\n  - key: path\n    value: ^/api\n    rate_limit: {unit: day, \
                     requests_per_unit: 5}\n";
const RIGHT: &str = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]\n";

/// Runs `tollgate check` in a folder with a file `rules/shop.yaml`.
fn check(rules: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("rules")).unwrap();
    std::fs::write(folder.path().join("rules/shop.yaml"), rules).unwrap();
    tollgate::command().arg("check").args(arguments).current_dir(folder.path()).output().unwrap()
}

fn check_input(rules: &[u8], arguments: &[&str]) -> Output {
    let mut command = tollgate::command();
    command.arg("check").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command stops reading input that is too long.
    let _ = child.stdin.take().unwrap().write_all(rules);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the standard output; asserts that standard error is empty.
fn stdout(output: &Output) -> &str {
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

#[test]
fn a_problem_comes_with_its_line_and_a_mark_under_its_place() {
    let output = check(WRONG, &["rules"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    insta::assert_snapshot!(text(&output.stderr));
}

#[test]
fn wide_characters_tabs_and_endless_lines_leave_the_mark_where_it_belongs() {
    let rule = |number| format!("{{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 5}}}}, ");
    let filler: String = (0..100).map(rule).collect();
    let rules = format!(
        "{{\"domain\": \"d\",\n\t\"descriptors\": [{{\"key\": \"\u{6771}\u{4eac}\",\t\"valeu\": 1, \"rate_limit\": \
         {{\"unlimited\": true}}}},\n{filler}{{kee: b}}, {{key: c}}]}}\n"
    );
    let output = check_input(rules.as_bytes(), &["-"]);
    insta::assert_snapshot!(text(&output.stderr));
}

#[test]
fn standard_input_is_read_and_named_like_a_file() {
    let output = check_input(RIGHT.as_bytes(), &["-"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "ok: 1 rule in 1 domain\n"));
    let output = check_input(WRONG.as_bytes(), &["-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("-:5:13: descriptors[0].rate_limit.unit: "), "{output:?}");
    let output = check_input(b"\xff\xfed\0", &["-"]);
    assert_eq!(text(&output.stderr).lines().next(), Some("-:1:1: is UTF-16: save it as UTF-8"));
    let endless = check_input(&b"# endless\n".repeat(1_700_000), &["-"]);
    assert_eq!(
        text(&endless.stderr),
        "-: is longer than 16 MiB: split it, or raise MAX_RULES_FILE_BYTES\nrefused: 1 error\n"
    );
}

#[test]
fn json_says_the_same_to_programs() {
    let output = check(WRONG, &["--format", "json", "rules"]);
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    let pattern = said["problems"][1]["message"].clone();
    assert!(pattern.as_str().unwrap().contains("regular expression"));
    let problems = json!([
        {
            "severity": "error", "file": "rules/shop.yaml", "line": 5, "column": 13,
            "path": "descriptors[0].rate_limit.unit",
            "message": "unknown unit \"minuets\", did you mean \"minute\"?",
        },
        {
            "severity": "warning", "file": "rules/shop.yaml", "line": 8, "column": 12,
            "path": "descriptors[1].value", "message": pattern,
        },
    ]);
    assert_eq!(
        said,
        json!({
            "passed": false, "rules": null, "domains": null, "problems": problems, "more": 0, "against": null,
        })
    );

    let output = check(RIGHT, &["--format", "json", "rules"]);
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(said, json!({"passed": true, "rules": 1, "domains": 1, "problems": [], "more": 0, "against": null}));

    let missing = check(RIGHT, &["--format", "json", "nowhere"]);
    let said: Value = serde_json::from_str(stdout(&missing)).unwrap();
    assert_eq!((&said["problems"][0]["line"], &said["problems"][0]["path"]), (&Value::Null, &json!("")));
}

#[test]
fn github_gets_workflow_commands() {
    let output = check(WRONG, &["--format", "github", "rules"]);
    let commands: Vec<_> = stdout(&output).lines().collect();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        commands[0],
        "::error file=rules/shop.yaml,line=5,col=13::descriptors[0].rate_limit.unit: unknown unit \"minuets\", did you \
         mean \"minute\"?"
    );
    assert!(commands[1].starts_with("::warning file=rules/shop.yaml,line=8,col=12::descriptors[1].value: looks like"));
    assert_eq!(commands[2..], ["refused: 1 error, 1 warning"]);
    assert_eq!(stdout(&check(RIGHT, &["--format", "github", "rules"])), "ok: 1 rule in 1 domain\n");
}

/// The snapshot is valid against the SARIF 2.1.0 schema that OASIS publishes, which is too large to include here.
#[test]
fn sarif_is_what_code_scanning_reads() {
    let log = |rules: &str, paths: &[&str]| -> Value {
        let mut arguments = vec!["--format", "sarif"];
        arguments.extend(paths);
        let mut log: Value = serde_json::from_str(stdout(&check(rules, &arguments))).unwrap();
        log["runs"][0]["tool"]["driver"]["version"] = "of this build".into();
        log
    };
    insta::assert_snapshot!(format!("{:#}", log(WRONG, &["rules"])));
    assert_eq!(log(RIGHT, &["rules"])["runs"][0]["results"], json!([]));
    let location = |log: &Value| log["runs"][0]["results"][0]["locations"][0]["physicalLocation"].clone();
    assert_eq!(location(&log(RIGHT, &["no where/50%"])), json!({"artifactLocation": {"uri": "no%20where/50%25"}}));
    assert_eq!(location(&log(RIGHT, &["/no/where"])), json!({"artifactLocation": {"uri": "file:///no/where"}}));
    let many = format!("domain: d\ndescriptors: [{}]", "{},".repeat(150));
    let notes = &log(&many, &["rules"])["runs"][0]["invocations"][0]["toolExecutionNotifications"];
    assert_eq!(notes[0]["message"]["text"], "and 50 more problems");
}

#[test]
fn every_format_minds_warnings_where_the_check_is_strict() {
    let doubtful = RIGHT.replace("key: user", "key: user, value: ^a");
    for format in ["text", "json", "github", "sarif"] {
        let output = check(&doubtful, &["--format", format, "rules"]);
        assert_eq!(output.status.code(), Some(0), "{format}");
        let output = check(&doubtful, &["--strict", "--format", format, "rules"]);
        assert_eq!(output.status.code(), Some(1), "{format}");
        assert!(!text(&output.stdout).contains("ok:"), "{format}");
    }
}

#[test]
fn a_check_that_fails_ends_with_how_much_is_wrong() {
    let last = |rules: &str, arguments: &[&str]| {
        text(&check(rules, arguments).stderr).lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(last(WRONG, &["rules"]), "refused: 1 error, 1 warning");
    let doubtful = RIGHT.replace("key: user", "key: user, value: ^a");
    let strict = "refused: 1 warning, and --strict treats warnings as errors";
    assert_eq!(last(&doubtful, &["--strict", "rules"]), strict);
    let github = check(&doubtful, &["--strict", "--format", "github", "rules"]);
    assert_eq!(stdout(&github).lines().last(), Some(strict));
    let many = format!("domain: d\ndescriptors: [{}]", "{},".repeat(150));
    assert_eq!(last(&many, &["rules"]), "refused: 150 problems");
}

/// The rules to compare with are in the file `old`.
fn compared(old: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("old.yaml"), old).unwrap();
    std::fs::write(folder.path().join("new.yaml"), RIGHT).unwrap();
    let arguments = [&["check", "--against", "old.yaml", "new.yaml"], arguments].concat();
    tollgate::command().args(arguments).current_dir(folder.path()).output().unwrap()
}

#[test]
fn every_format_says_what_is_wrong_with_the_rules_to_compare_with() {
    let wrong = "unknown unit \"minuets\", did you mean \"minute\"?";
    for format in ["text", "json", "github", "sarif"] {
        let output = compared(WRONG, &["--format", format]);
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr)).replace('\\', "");
        assert!(output.status.code() == Some(1) && said.contains("old.yaml"), "{format}: {said}");
        assert!(said.contains(wrong) && said.contains("--against") | (format == "json"), "{format}: {said}");
        assert!(!said.contains("ok:"), "{format}: {said}");
    }
    let said: Value = serde_json::from_str(stdout(&compared(WRONG, &["--format", "json"]))).unwrap();
    assert_eq!((&said["passed"], &said["problems"]), (&false.into(), &json!([])));
    assert_eq!((&said["against"]["problems"][0]["line"], &said["against"]["changes"]), (&5.into(), &Value::Null));
}

#[test]
fn programs_read_what_changes_and_so_does_github() {
    let old = RIGHT.replace("minute", "hour");
    let said: Value = serde_json::from_str(stdout(&compared(&old, &["--format", "json"]))).unwrap();
    let words = "changed: shop: user: period hour -> minute: counters are reset";
    let changes = json!([{"kind": "changed", "domain": "shop", "rule": "user", "counters": "afresh", "words": words}]);
    let against = json!({
        "problems": [], "more": 0, "added": 0, "removed": 0, "changed": 1, "afresh": 1, "changes": changes,
    });
    assert_eq!(said["against"], against);
    let github = compared(&old, &["--format", "github"]);
    let expected = format!(
        "ok: 1 rule in 1 domain\n::notice file=new.yaml,line=2::{words}\n0 added, 0 removed, 1 changed; counters of 1 \
         are reset\n"
    );
    assert_eq!(stdout(&github), expected);
}

#[test]
fn the_rules_to_compare_with_may_come_from_standard_input_but_not_both() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.yaml");
    std::fs::write(&new, RIGHT).unwrap();
    let output = check_input(RIGHT.replace("5}", "6}").as_bytes(), &["--against", "-", new.to_str().unwrap()]);
    assert!(stdout(&output).contains("changed: shop: user: requests_per_unit 6 -> 5: counters are kept\n"));
    let output = check_input(RIGHT.as_bytes(), &["--against", "-", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("standard input can only be read once"), "{output:?}");
}

#[test]
fn the_schema_is_printed_for_editors() {
    let output = tollgate::command().arg("schema").output().unwrap();
    assert_eq!(stdout(&output), std::fs::read_to_string("config/rules.schema.json").unwrap());
}

#[test]
fn the_log_of_a_service_has_one_line_for_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), WRONG).unwrap();
    let output = tollgate::command()
        .arg("--rules")
        .arg(folder.path())
        .envs([("GRPC_PORT", "0"), ("PORT", "0")])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("a.yaml:5:13: descriptors[0].rate_limit.unit: ")
            && !said.contains('^'.to_string().repeat(3).as_str())
    );
}

#[test]
fn a_hint_is_said_once_with_the_number_of_the_others() {
    let entry = |user| format!("  - {{key: user, value: u{user}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n");
    let rules = "domain: shop\ndescriptors:\n".to_owned() + &(0..5_000).map(entry).collect::<String>();
    let output = check(&rules, &["rules"]);
    let said = text(&output.stderr);
    assert_eq!(said.matches("hint: ").count(), 1, "{said}");
    assert!(said.contains(":3:") && said.contains("(and 4999 more hints of this kind)"), "{said}");
    assert!(output.status.success());
}

/// A deployment as the chart renders it: the rules, candidates of the same domain, and a dashboard.
const DEPLOYED: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: gate-next}
data: {shop.yaml: "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 50}}]"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: gate-dashboards}
data: {service.json: '{"panels": [{"description": "calls"}], "uid": "x"}'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: gate-rules}
data: {shop.yaml: "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 99}}]"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: gate}
spec:
  template:
    spec:
      containers:
        - name: tollgate
          env: [{name: RULES, value: /etc/gate/rules}, {name: CANDIDATE_RULES, value: /etc/gate/next}]
          volumeMounts:
            - {name: rules, mountPath: /etc/gate/rules}
            - {name: next, mountPath: /etc/gate/next}
      volumes:
        - {name: rules, configMap: {name: gate-rules}}
        - {name: next, configMap: {name: gate-next}}
"#;

#[test]
fn of_a_deployment_only_what_it_mounts_as_rules_is_checked() {
    let output = check(DEPLOYED, &["--strict", "rules"]);
    assert_eq!(stdout(&output), "ok: 1 rule in 1 domain\n", "{output:?}");
    // Without the workload, candidates are known by their label, and dashboards by what they hold.
    let (resources, _) = DEPLOYED.split_once("---\napiVersion: apps/v1").unwrap();
    let labels = "{name: gate-next, labels: {app.kubernetes.io/component: candidates}}";
    let output = check(&resources.replace("{name: gate-next}", labels), &["--strict", "rules"]);
    assert_eq!(stdout(&output), "ok: 1 rule in 1 domain\n", "{output:?}");
    // A mistake in the rules is still found.
    let output = check(&DEPLOYED.replace("requests_per_unit: 99", "requests_per_unti: 99"), &["rules"]);
    assert!(text(&output.stderr).contains("requests_per_unti"), "{output:?}");
}
