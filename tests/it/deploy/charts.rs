//! The Helm chart and the Kustomize base are valid for Kubernetes and use only existing settings. `make e2e` renders
//! them with the real programs and validates the result against Kubernetes' schemas.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use boon::{Compiler, Draft, SchemaIndex, Schemas};
use regex::Regex;
use serde_json::{Value, json};

use super::{documents, loaded_rules, object, values, yaml_files};
use crate::support::tollgate;

const CHART: &str = "deploy/helm/tollgate";
/// Helm does not ask a cluster for its version.
const KUBERNETES: &str = "1.33";
/// Values with which the chart renders.
const VALID: [&str; 2] = ["--set", "rules.existingConfigMap=limits,redis.url=r:6379,networkPolicy.enabled=false"];
const KUSTOMIZATIONS: [&str; 3] =
    ["deploy/kustomize/base", "deploy/kustomize/components/redis", "deploy/kustomize/overlays/production"];

/// Returns the value files to test.
fn sets() -> Vec<PathBuf> {
    let sets = yaml_files(format!("{CHART}/ci"));
    assert!(sets.len() >= 6, "{sets:?}");
    sets
}

/// Values with others in their place, as Helm merges them.
pub(super) fn merge(values: &mut Value, others: &Value) {
    match (values, others) {
        (Value::Object(values), Value::Object(others)) => {
            for (key, other) in others {
                merge(values.entry(key.clone()).or_insert(Value::Null), other);
            }
        }
        (values, others) => *values = others.clone(),
    }
}

pub(super) struct Validator {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Validator {
    /// Creates a validator of the part of a schema at this pointer.
    pub(super) fn new(schema: Value, pointer: &str) -> Validator {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.set_default_draft(Draft::V7);
        compiler.add_resource("file:///schema.json", schema).unwrap();
        let index = compiler.compile(&format!("file:///schema.json#{pointer}"), &mut schemas).unwrap();
        Validator { schemas, index }
    }

    pub(super) fn refusal(&self, value: &Value) -> Option<String> {
        self.schemas.validate(value, self.index).err().map(|error| format!("{error:#}"))
    }
}

#[test]
fn the_schema_takes_the_values_of_the_chart_and_no_slip() {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(format!("{CHART}/values.schema.json")).unwrap()).unwrap();
    let validator = Validator::new(schema, "");
    let defaults = &documents(format!("{CHART}/values.yaml"))[0];
    assert_eq!(validator.refusal(defaults), None);
    for set in sets() {
        let mut values = defaults.clone();
        merge(&mut values, &documents(&set)[0]);
        assert_eq!(validator.refusal(&values), None, "{}", set.display());
    }
    for slip in [
        json!({"replicas": 3}),
        json!({"redis": {"uri": "redis:6379"}}),
        json!({"settings": {"redis_url": "redis:6379"}}),
        json!({"image": {"digest": "latest"}}),
        json!({"networkPolicy": {"fromNamespaces": "istio-system"}}),
        json!({"decisionLog": {"to": "/var/log/decisions"}}),
        json!({"candidates": {"sample": "10%"}}),
        json!({"topKeys": {"values": "secret"}}),
        json!({"rules": {"tls": {"ca": "envoy-rate-limit"}}}),
        json!({"extraVolumes": {"name": "certs"}}),
        json!({"settings": {"WORKER_THREDS": 2}}),
        json!({"settings": {"REDIS_TIMEOUT": 100}}),
        json!({"settings": {"WORKER_THREADS": "many"}}),
    ] {
        let mut values = defaults.clone();
        merge(&mut values, &slip);
        assert!(validator.refusal(&values).is_some(), "{slip}");
    }
}

#[test]
fn the_chart_and_the_base_are_of_this_release_and_show_the_projects_own_alerts_and_dashboards() {
    let chart = &documents(format!("{CHART}/Chart.yaml"))[0];
    assert_eq!([&chart["version"], &chart["appVersion"]], [env!("CARGO_PKG_VERSION"); 2]);
    let base = documents("deploy/kustomize/base/tollgate.yaml");
    let image = values("image", object(&base, "Deployment", "tollgate"));
    assert_eq!(image, [concat!("tollgate:", env!("CARGO_PKG_VERSION"))]);
    for (file, of) in [("alerts.yaml", "prometheus"), ("service.json", "grafana"), ("limits.json", "grafana")] {
        let read = |path: String| fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        // Files, not links, because a link in a forge's web interface yields only its text.
        let (inside, outside) = (format!("{CHART}/files/{file}"), format!("deploy/{of}/{file}"));
        assert!(read(inside.clone()) == read(outside.clone()), "one is newer: cp {outside} {inside}, or back");
    }
}

#[test]
fn every_variable_that_is_set_is_a_setting() {
    let output = tollgate::command().arg("settings").output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let settings: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let template = fs::read_to_string(format!("{CHART}/templates/_helpers.tpl")).unwrap();
    let in_template = Regex::new(r#""([A-Z]+_?[A-Z_]+)""#).unwrap();
    let values_of_settings = ["GRPC_XDS_SOTW"];
    let mut named: BTreeSet<String> = in_template.captures_iter(&template).map(|name| name[1].to_owned()).collect();
    assert!(named.len() > 25, "{named:?}");
    for set in sets().into_iter().chain([PathBuf::from(CHART).join("values.yaml")]) {
        let set = &documents(set)[0];
        named.extend(set["settings"].as_object().into_iter().flat_map(|settings| settings.keys().cloned()));
        named.extend(variables(set));
    }
    for file in yaml_files("deploy/kustomize") {
        named.extend(documents(file).iter().flat_map(variables));
    }
    for name in named {
        assert!(settings.contains(&*name) || values_of_settings.contains(&&*name), "{name} is no setting");
    }
}

/// The names of all environment variables.
fn variables(document: &Value) -> Vec<String> {
    let lists = values("env", document).into_iter().filter_map(Value::as_array);
    lists.flatten().map(|variable| variable["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the output of a program that `make e2e` installs.
fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(format!("target/tools/bin/{program}")).args(arguments).output().expect("make e2e installs it")
}

/// The documents that one of them prints.
pub(super) fn rendered(program: &str, arguments: &[&str]) -> Vec<Value> {
    let output = run(program, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    documents.into_iter().filter(Value::is_object).collect()
}

/// The schemas of Kubernetes and of all that adds types to it, without unknown keys.
pub(super) struct Kubernetes {
    pub(super) types: Value,
}

impl Kubernetes {
    pub(super) fn new() -> Kubernetes {
        let folder = PathBuf::from("target/tools/kubernetes");
        let types = fs::read_to_string(folder.join("swagger.json")).expect("make e2e has it");
        let mut types: Value = serde_json::from_str(&types).unwrap();
        let types = types["definitions"].take();
        let mut definitions = json!({"definitions": types});
        for file in yaml_files(folder) {
            for added in documents(file).iter().filter(|document| document["kind"] == "CustomResourceDefinition") {
                let spec = &added["spec"];
                for version in spec["versions"].as_array().unwrap() {
                    let mut schema = version["schema"]["openAPIV3Schema"].clone();
                    let of = json!({"group": spec["group"], "version": version["name"], "kind": spec["names"]["kind"]});
                    schema["x-kubernetes-group-version-kind"] = json!([of]);
                    // Every object has them, and not every schema says so.
                    let properties = schema["properties"].as_object_mut().unwrap();
                    for name in ["apiVersion", "kind", "metadata"] {
                        properties.entry(name).or_insert(json!({}));
                    }
                    let name = ["kind", "version", "group"].map(|part| of[part].as_str().unwrap()).join(".");
                    definitions["definitions"][name] = schema;
                }
            }
        }
        close(&mut definitions);
        // Each is a number, too.
        for name in ["io.k8s.apimachinery.pkg.util.intstr.IntOrString", "io.k8s.apimachinery.pkg.api.resource.Quantity"]
        {
            definitions["definitions"][name] = json!({"type": ["string", "number"]});
        }
        Kubernetes { types: definitions }
    }

    /// Returns the pointer to the schema of an object.
    pub(super) fn pointer(&self, object: &Value) -> String {
        let version = object["apiVersion"].as_str().unwrap();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let of = json!({"group": group, "version": version, "kind": object["kind"]});
        let types = self.types["definitions"].as_object().unwrap();
        let is_of =
            |schema: &Value| schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|all| all.contains(&of));
        let (name, _) = types.iter().find(|(_, schema)| is_of(schema)).unwrap_or_else(|| panic!("no type {of}"));
        format!("/definitions/{name}")
    }

    /// # Panics
    /// Where it does not take one of these.
    pub(super) fn takes(&self, objects: &[Value], from: &str) {
        assert!(!objects.is_empty(), "{from}");
        for object in objects {
            let validator = Validator::new(self.types.clone(), &self.pointer(object));
            assert_eq!(validator.refusal(object), None, "{from}: {object}");
        }
    }
}

/// Objects with named properties allow no others.
fn close(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(close),
        Value::Object(map) => {
            map.values_mut().for_each(close);
            // Draft 4 and Go's regular expressions, which no later draft allows.
            map.retain(|key, of| !(key.starts_with("exclusive") && of.is_boolean()));
            map.retain(|key, of| key != "pattern" || of.as_str().is_none_or(|pattern| Regex::new(pattern).is_ok()));
            let is_open = map.contains_key("additionalProperties");
            if map.get("properties").is_some_and(Value::is_object) && !is_open {
                map.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        _ => {}
    }
}

/// A Deployment of ours: its labels are what all others select, its time to drain is enough, and the service takes its
/// variables.
fn assert_sound(objects: &[Value], from: &str) {
    let of = |kind: &str| {
        objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("{from}: no {kind}"))
    };
    let pod = &of("Deployment")["spec"]["template"];
    let labels = pod["metadata"]["labels"].as_object().unwrap();
    let selects =
        |selector: &Value| selector.as_object().unwrap().iter().all(|(key, value)| labels.get(key) == Some(value));
    for object in objects.iter().filter(|object| object["kind"] == "Service") {
        assert!(selects(&object["spec"]["selector"]), "{from}: {object}");
    }
    for kind in ["Deployment", "PodDisruptionBudget"] {
        assert!(selects(&of(kind)["spec"]["selector"]["matchLabels"]), "{from}: {kind}");
    }
    assert!(selects(&of("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]), "{from}");
    let container = &pod["spec"]["containers"][0];
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert!(container[probe].is_object(), "{from}: {probe}");
    }
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true, "{from}");
    let mounts = values("volumeMounts", container).into_iter().filter_map(Value::as_array).flatten();
    let mounts: BTreeSet<&str> = mounts.filter_map(|mount| mount["name"].as_str()).collect();
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    assert_eq!(mounts, volumes.filter_map(|volume| volume["name"].as_str()).collect(), "{from}");

    let variables = container["env"].as_array().unwrap();
    let given = variables.iter().filter_map(|one| Some((one["name"].as_str()?, one["value"].as_str()?)));
    let mut given: Vec<_> = given.collect();
    let number = |name: &str| given.iter().find(|(given, _)| *given == name).unwrap().1.trim_end_matches('s');
    let drains: u64 = ["DRAIN_DELAY", "SHUTDOWN_TIMEOUT"].map(|name| number(name).parse::<u64>().unwrap()).iter().sum();
    assert!(pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap() > drains, "{from}");
    // Its files exist only in the image; here, rules are those of the project.
    given.retain(|(_, value)| !value.starts_with("/etc/tollgate") && !value.starts_with("/etc/redis"));
    given.retain(|(name, _)| !name.starts_with("GRPC_") || *name == "GRPC_PORT");
    let mut check = tollgate::command();
    check
        .args(["check", "--env"])
        .env("ADMIN_TOKEN", "t".repeat(32))
        .env("VALUES_KEY", "k".repeat(32))
        .envs(given.iter().copied());
    if !given.iter().any(|(name, _)| *name == "CONFIG_TYPE") {
        check.env("RULES", "config/rules");
    }
    let said = String::from_utf8(check.output().unwrap().stdout).unwrap();
    assert!(said.contains("errors: 0"), "{from}: {said}");
}

/// `helm template ... | tollgate check --strict -` finds nothing wrong.
fn assert_checked(program: &str, arguments: &[&str]) {
    let manifest = tempfile::NamedTempFile::new().unwrap();
    fs::write(manifest.path(), run(program, arguments).stdout).unwrap();
    let mut check = tollgate::command();
    let checked = check.args(["check", "--strict", "-"]).stdin(manifest.reopen().unwrap()).output().unwrap();
    let said = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
#[ignore = "needs Helm, and the types of Kubernetes: make e2e"]
fn every_set_of_values_renders_to_what_kubernetes_takes() {
    let kubernetes = Kubernetes::new();
    for set in sets() {
        let set = set.to_str().unwrap();
        let linted = run("helm", &["lint", "--strict", CHART, "--kube-version", KUBERNETES, "--values", set]);
        assert!(linted.status.success(), "{}", String::from_utf8_lossy(&linted.stdout));
        let objects = rendered("helm", &["template", "edge", CHART, "--kube-version", KUBERNETES, "--values", set]);
        kubernetes.takes(&objects, set);
        assert_sound(&objects, set);
        for name in ["edge-tollgate-rules", "edge-tollgate-candidates"] {
            let config = objects.iter().find(|object| object["metadata"]["name"] == name);
            config.iter().for_each(|config| assert_eq!(loaded_rules(config).warnings, [], "{set}"));
        }
        let has_rules = objects.iter().any(|object| object["metadata"]["name"] == "edge-tollgate-rules");
        if has_rules {
            assert_checked("helm", &["template", "edge", CHART, "--kube-version", KUBERNETES, "--values", set]);
        }
    }
}

#[test]
#[ignore = "needs Helm: make e2e"]
fn values_that_cannot_be_right_are_refused_in_words() {
    for (given, said) in [
        (&["--set", "replicaCount=1"][..], "set exactly one source of rules"),
        (
            &["--set", "rules.existingConfigMap=limits,redis.url=r:6379"],
            "set networkPolicy.fromNamespaces to the namespaces of your proxies",
        ),
        (
            &[
                "--set",
                "rules.existingConfigMap=limits,redis.url=r:6379,networkPolicy.enabled=false,settings.GRPC_PORT=9000",
            ],
            "settings.GRPC_PORT would not change the ports of the pod, its probes and its Services",
        ),
        (&["--set", "rules.files.a\\=b=x"], "rules.files has \"a=b\": the name of a file has letters"),
        (&["--set", "rules.files.shop.yaml=x"], "rules.files.shop is no text: escape the dots of a file's name"),
        (&["--set", "rules.existingConfigMap=limits,candidates.files.next=x"], "candidates.files has \"next\""),
        (
            &["--set", "rules.existingConfigMap=limits,redis.url=r:6379,settings.WORKER_THREDS=2"],
            "additional properties 'WORKER_THREDS' not allowed",
        ),
        (
            &["--set", "rules.existingConfigMap=limits,redis.url=r:6379,settings.REDIS_TIMEOUT=100"],
            "at '/settings/REDIS_TIMEOUT': got number, want string",
        ),
        (&["--set", "rules.existingConfigMap=limits"], "without redis.url each instance counts on its own"),
        (&["--set", "rules.existingConfigMap=limits", "--set", "redis.url=r:6379", "--set", "redis.uri=r:6379"], "uri"),
        (
            &[
                "--set",
                "rules.existingConfigMap=limits,redis.url=r:6379,networkPolicy.enabled=false,topKeys.values=hashed",
            ],
            "hashed values need a key: set valuesKey.secret",
        ),
        (
            &[VALID[0], VALID[1], "--set", "settings.ADMIN_API=true"],
            "settings.ADMIN_API needs a token: set admin.secret",
        ),
        (&[VALID[0], VALID[1], "--set", "settings.CONSOLE=true"], "settings.CONSOLE needs the admin API and a token"),
        (&[VALID[0], VALID[1], "--set", "settings.TOP_KEYS_VALUES=hashed"], "set valuesKey.secret"),
        (&[VALID[0], VALID[1], "--set", "settings.OVERLOAD=refused"], "value must be one of 'failure-mode', 'refuse'"),
    ] {
        let output = run("helm", &[&["template", "edge", CHART, "--kube-version", KUBERNETES], given].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{given:?}: {error}");
    }
}

#[test]
#[ignore = "needs Helm: make e2e"]
fn a_setting_reaches_the_pod_as_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("values.yaml");
    let settings = "CONSOLE: false, MEMORY_STORE_SIZE_IN_BYTES: 104857600, WHAT_IF_REQUESTS: 0, NEAR_LIMIT_RATIO: 0.5";
    fs::write(&set, format!("admin: {{secret: s}}\nsettings: {{{settings}}}\n")).unwrap();
    let set = ["--values", set.to_str().unwrap()];
    let arguments = [&["template", "edge", CHART, "--kube-version", KUBERNETES][..], &VALID, &set].concat();
    let objects = rendered("helm", &arguments);
    let pod = &object(&objects, "Deployment", "edge-tollgate")["spec"]["template"]["spec"];
    let variables = pod["containers"][0]["env"].as_array().unwrap();
    for setting in settings.split(", ") {
        let (name, value) = setting.split_once(": ").unwrap();
        let variable = variables.iter().find(|variable| variable["name"] == name).unwrap();
        assert_eq!(variable["value"], value, "{name}");
    }
}

/// Returns the notes of the chart, which Helm prints only with a cluster at hand.
fn notes(given: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").args(["-r", CHART]).arg(folder.path()).status().unwrap();
    assert!(copied.success());
    let chart = folder.path().join("tollgate");
    let text = fs::read_to_string(chart.join("templates/NOTES.txt")).unwrap();
    let shown = "kind: Notes\nnotes: |\n{{- include \"notes\" . | nindent 2 }}\n";
    let template = ["{{- define \"notes\" }}", &text, "{{- end }}\n", shown].concat();
    fs::write(chart.join("templates/notes.yaml"), template).unwrap();
    let chart = chart.to_str().unwrap();
    let arguments = ["template", "edge", chart, "--kube-version", KUBERNETES, VALID[0], VALID[1], "--set", given];
    let objects = rendered("helm", &arguments);
    objects.iter().find(|object| object["kind"] == "Notes").unwrap()["notes"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "needs Helm: make e2e"]
fn the_notes_say_how_to_open_the_console_or_how_to_switch_it_on() {
    const OPEN: &str = "Open the console at http://localhost:8080/console:\n\n  kubectl -n default port-forward \
                        deployment/edge-tollgate 8080 &\n";
    let token =
        |secret: &str| format!("get secret {secret} -o go-template='{{{{index .data \"token\" | base64decode}}}}'\n");
    for (given, said) in [
        ("image.tag=", "To switch it on, create a Secret with a\ntoken, and set admin.secret to its name:\n"),
        ("admin.secret=adm", OPEN),
        ("admin.secret=adm", &token("adm")),
        ("admin.reader.secret=read", &token("read")),
        ("admin.tokens.secret=named", OPEN),
        ("admin.secret=adm,admin.console=false", "The console is off: set admin.console to true.\n"),
    ] {
        let notes = notes(given);
        assert!(notes.contains(said), "{given}: {notes}");
    }
}

#[test]
#[ignore = "needs Kustomize, and the types of Kubernetes: make e2e"]
fn every_kustomization_builds_to_what_kubernetes_takes() {
    let kubernetes = Kubernetes::new();
    for folder in KUSTOMIZATIONS {
        let objects = rendered("kustomize", &["build", folder]);
        kubernetes.takes(&objects, folder);
        if folder != KUSTOMIZATIONS[1] {
            assert_sound(&objects, folder);
            assert_eq!(loaded_rules(object(&objects, "ConfigMap", "tollgate-rules")).warnings, [], "{folder}");
            assert_checked("kustomize", &["build", folder]);
        }
    }
}

#[test]
#[ignore = "needs Helm, and the types of Kubernetes: make e2e"]
fn a_slip_in_what_is_rendered_is_found() {
    let kubernetes = Kubernetes::new();
    let set = format!("{CHART}/ci/autoscaled.yaml");
    let objects = rendered("helm", &["template", "edge", CHART, "--kube-version", KUBERNETES, "--values", &set]);
    for (kind, pointer, slip) in [
        ("Deployment", "/spec/template/spec", "terminationGracePeriod"),
        ("HorizontalPodAutoscaler", "/spec", "maxReplica"),
        ("ServiceMonitor", "/spec/endpoints/0", "intervall"),
    ] {
        let mut object = objects.iter().find(|object| object["kind"] == kind).unwrap().clone();
        object.pointer_mut(pointer).unwrap()[slip] = json!(1);
        let validator = Validator::new(kubernetes.types.clone(), &kubernetes.pointer(&object));
        assert!(validator.refusal(&object).is_some(), "{kind} takes {slip}");
    }
}
