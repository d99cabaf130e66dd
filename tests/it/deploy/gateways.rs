//! What the manifests for gateways and meshes put into an Envoy makes it ask Tollgate. `make e2e` validates each object
//! against the schemas of its project, and has Envoy Gateway translate the policies.

use std::fs;
use std::process::Command;

use serde_json::{Map, Value, json};

use super::charts::{Kubernetes, Validator, merge, rendered};
use super::{
    assert_limited, descriptors, documents, loaded_rules, object, rate_limit_cluster, value, values, yaml_files,
};
use crate::support::envoy::Envoy;
use crate::support::tollgate::Tollgate;

const RULES: &str = "deploy/envoy-gateway/rules.yaml";
const POLICIES: &str = "deploy/envoy-gateway/policies.yaml";
const GATEWAY: &str = "tests/drivers/envoy-gateway.gateway.yaml";
const TRANSLATED: &str = "tests/drivers/envoy-gateway.routes.yaml";

/// What a control plane puts into an Envoy.
struct Configured {
    filters: Vec<Value>,
    hosts: Vec<Value>,
}

impl Configured {
    /// Returns what the EnvoyFilters of a file put into an Envoy of Istio.
    fn by_istio(documents: &[Value]) -> Configured {
        let mut filters = Vec::new();
        let mut host = host(&json!(["*"]), &json!({}));
        for patch in documents.iter().filter_map(|document| document["spec"]["configPatches"].as_array()).flatten() {
            let value = &patch["patch"]["value"];
            match patch["applyTo"].as_str().unwrap() {
                "HTTP_FILTER" => filters.push(value.clone()),
                "VIRTUAL_HOST" => merge(&mut host, value),
                other => panic!("{other}"),
            }
        }
        Configured { filters, hosts: vec![host] }
    }

    /// Returns what Envoy Gateway's translation of the policies puts into its Envoys. The last host takes all requests.
    fn by_envoy_gateway() -> Configured {
        let translated = &documents(TRANSLATED)[0];
        let hosts = translated["hosts"].as_array().unwrap();
        let mut hosts: Vec<Value> =
            hosts.iter().map(|of| host(&of["domains"], &of["typed_per_filter_config"])).collect();
        hosts.last_mut().unwrap()["domains"] = json!(["*"]);
        Configured { filters: vec![translated["filter"].clone()], hosts }
    }

    /// Starts an Envoy with it.
    fn start(mut self, tollgate: &Tollgate) -> Envoy {
        let cluster = rate_limit_cluster(&self.filters[0]).to_owned();
        for filter in &mut self.filters {
            // Busy machines.
            filter["typed_config"]["timeout"] = json!("10s");
        }
        let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
        self.filters.push(json!({"name": "envoy.filters.http.router", "typed_config": {"@type": router}}));
        let (filters, hosts) = (Value::from(self.filters).to_string(), Value::from(self.hosts).to_string());
        let changes = [("FILTERS", filters.as_str()), ("HOSTS", &hosts), ("RATE_LIMIT", &format!("\"{cluster}\""))];
        Envoy::start_from("tests/drivers/envoy.yaml", tollgate.grpc_port, &changes)
    }
}

/// A host with one route, and what a control plane adds to it.
fn host(domains: &Value, added: &Value) -> Value {
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": "service"}, "typed_per_filter_config": added});
    json!({"name": domains[0], "domains": domains, "routes": [route]})
}

#[test]
fn every_envoy_of_istio_limits() {
    let base = documents("deploy/kustomize/base/tollgate.yaml");
    let rules = value("shop.yaml", object(&base, "ConfigMap", "tollgate-rules"));
    let files = yaml_files("deploy/istio");
    assert_eq!(files.len(), 3);
    for file in files {
        let tollgate = Tollgate::start(rules, &[]);
        let envoy = Configured::by_istio(&documents(&file)).start(&tollgate);
        let answers: Vec<_> = (0..11).map(|_| envoy.get("/login?again").status).collect();
        assert_eq!(answers, [[200; 10].as_slice(), &[429]].concat(), "{}", file.display());
        let limit = envoy.get_as("ann");
        assert_eq!(limit.header("x-ratelimit-limit"), Some("100, 100;w=60;name=\"per-user\""), "{}", file.display());
    }
}

#[test]
fn each_file_for_istio_asks_the_same_of_the_same_service() {
    let base = documents("deploy/kustomize/base/tollgate.yaml");
    let loaded = loaded_rules(object(&base, "ConfigMap", "tollgate-rules"));
    let mut clusters = Vec::new();
    for file in yaml_files("deploy/istio") {
        let configured = Configured::by_istio(&documents(&file));
        let all = json!([configured.filters, configured.hosts]);
        assert_limited(&descriptors(&all), &loaded, value("domain", &all));
        clusters.push(rate_limit_cluster(&all).to_owned());
    }
    clusters.dedup();
    assert_eq!(clusters.len(), 1, "{clusters:?}");
}

#[test]
fn envoy_gateways_envoys_send_what_the_page_says() {
    let rules = fs::read_to_string(RULES).unwrap();
    let tollgate = Tollgate::start(&rules, &[]);
    let envoy = Configured::by_envoy_gateway().start(&tollgate);
    let answers: Vec<_> = (0..6).map(|_| envoy.get_as("ann").status).collect();
    assert_eq!(answers, [200, 200, 200, 200, 200, 429]);
    assert_eq!(envoy.get_as("bob").status, 200);
    assert_eq!(envoy.get("/").status, 200);
    let hits = |rule: &str| {
        let route = "httproute/default/shop/rule/0/match/0/shop_example_com";
        tollgate.metric(&format!("tollgate_hits_total{{domain=\"default/eg/http\",rule=\"{route}={route}|{rule}\"}}"))
    };
    assert_eq!(hits("rule-0-match-0"), 7.0, "those with the header");
    assert_eq!(hits("rule-3-match--1=rule-3-match--1"), 8.0);
    assert_eq!(hits("masked_remote_address=invert:203.0.113.0/24"), 8.0);
}

#[test]
fn the_file_of_rules_has_each_descriptor_that_envoy_gateway_sends() {
    let configured = Configured::by_envoy_gateway();
    let shop = configured.hosts.last().unwrap();
    let file = json!({"data": {"rules.yaml": fs::read_to_string(RULES).unwrap()}});
    assert_limited(&descriptors(shop), &loaded_rules(&file), "default/eg/http");
    // Tokens: a peek, and the charge when the answer is complete.
    let tokens = values("hits_addend", &configured.hosts[0]);
    assert_eq!(tokens[0]["number"], "0");
    assert_eq!(tokens[1]["format"], "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_total_token)%");
}

#[test]
fn contour_asks_the_service_of_the_base_about_its_rules() {
    let contour = documents("deploy/contour/tollgate.yaml");
    let base = documents("deploy/kustomize/base/tollgate.yaml");
    let service = object(&base, "Service", "tollgate");
    let extension = object(&contour, "ExtensionService", "tollgate");
    assert_eq!(extension["metadata"]["namespace"], service["metadata"]["namespace"]);
    assert_eq!(extension["spec"]["services"][0]["name"], service["metadata"]["name"]);
    let config = &object(&contour, "ContourConfiguration", "contour")["spec"]["rateLimitService"];
    assert_eq!(config["extensionService"]["name"], extension["metadata"]["name"]);
    let loaded = loaded_rules(object(&base, "ConfigMap", "tollgate-rules"));
    let sent: Vec<String> = values("entries", object(&contour, "HTTPProxy", "shop")).into_iter().map(path).collect();
    assert_limited(&sent, &loaded, config["domain"].as_str().unwrap());
}

/// Entries of Contour, written like a path of rules.
fn path(entries: &Value) -> String {
    let entry = |entry: &Value| match entry.as_object().unwrap().iter().next().unwrap() {
        (kind, of) if kind == "genericKey" => format!("{}={}", value("key", of), value("value", of)),
        (kind, of) if kind == "requestHeader" => value("descriptorKey", of).to_owned(),
        (kind, _) if kind == "remoteAddress" => "remote_address".to_owned(),
        (kind, _) => panic!("{kind}"),
    };
    entries.as_array().unwrap().iter().map(entry).collect::<Vec<_>>().join("|")
}

#[test]
#[ignore = "needs the schemas that `make e2e` downloads"]
fn every_object_for_a_gateway_is_one_that_its_project_takes() {
    let kubernetes = Kubernetes::new();
    let mut tried = 0;
    for folder in ["istio", "envoy-gateway", "ai-gateway", "contour"] {
        for file in yaml_files(format!("deploy/{folder}")) {
            let objects: Vec<Value> =
                documents(&file).into_iter().filter(|object| object["kind"].is_string()).collect();
            tried += objects.len();
            if !objects.is_empty() {
                kubernetes.takes(&objects, &file.display().to_string());
            }
        }
    }
    assert!(tried >= 12, "{tried}");
    let mut slip = documents(POLICIES).swap_remove(0);
    slip["spec"]["rateLimit"]["global"]["rules"][0]["limit"]["unit"] = json!("Fortnight");
    let refused = std::panic::catch_unwind(|| kubernetes.takes(&[slip], "a slip"));
    assert!(refused.is_err());
}

#[test]
#[ignore = "needs Kustomize and the schemas, which `make e2e` installs"]
fn rules_from_elsewhere_are_patches_of_the_base() {
    let kubernetes = Kubernetes::new();
    let files = yaml_files("deploy/rules");
    assert_eq!(files.len(), 3);
    for file in files {
        let folder = tempfile::tempdir_in("target").unwrap();
        fs::copy(&file, folder.path().join("patch.yaml")).unwrap();
        let kustomization = "resources: [../../deploy/kustomize/base]\npatches: [{path: patch.yaml}]\n";
        fs::write(folder.path().join("kustomization.yaml"), kustomization).unwrap();
        let objects = rendered("kustomize", &["build", folder.path().to_str().unwrap()]);
        kubernetes.takes(&objects, &file.display().to_string());
        let pod = &object(&objects, "Deployment", "tollgate")["spec"]["template"]["spec"];
        let volume = &pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "rules").unwrap();
        assert_eq!(volume.as_object().unwrap().len(), 2, "{}: {volume}", file.display());
    }
}

/// Envoy Gateway's own configuration has no schema; its parts are of the types of an EnvoyProxy's.
#[test]
#[ignore = "needs the schemas that `make e2e` downloads"]
fn envoy_gateways_configuration_has_parts_that_it_takes() {
    let kubernetes = Kubernetes::new();
    let mut tried = 0;
    for file in ["config.yaml", "autoscaler.yaml"] {
        let config = &documents(format!("deploy/envoy-gateway/{file}"))[0];
        for (part, of) in
            [("rateLimitDeployment", "envoyDeployment"), ("rateLimitHpa", "envoyHpa"), ("rateLimitPDB", "envoyPDB")]
        {
            let part = &config["provider"]["kubernetes"][part];
            if !part.is_null() {
                let proxy = kubernetes.pointer(&json!({
                    "apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyProxy",
                }));
                let keys = ["spec", "provider", "kubernetes", of];
                let pointer = keys.iter().fold(proxy, |pointer, key| format!("{pointer}/properties/{key}"));
                let refusal = Validator::new(kubernetes.types.clone(), &pointer).refusal(part);
                assert_eq!(refusal, None, "{file}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 4);
}

#[test]
#[ignore = "needs the translation of Envoy Gateway, which `make e2e` builds"]
fn envoy_gateway_translates_the_policies_as_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.yaml");
    let text = [GATEWAY, POLICIES].map(|file| fs::read_to_string(file).unwrap()).join("\n---\n");
    fs::write(&file, text).unwrap();
    let mut egctl = Command::new("target/tools/bin/egctl");
    egctl.args(["x", "translate", "--from", "gateway-api", "--to", "xds", "--type", "all", "--output", "json"]);
    let output = egctl.arg("--add-missing-resources").arg("--file").arg(&file).output().expect("make e2e installs it");
    assert!(output.status.success(), "{output:?}");
    let translated = snake(serde_json::from_slice(&output.stdout).unwrap());
    let recorded = &documents(TRANSLATED)[0];

    let filters = values("http_filters", &translated).into_iter().filter_map(Value::as_array).flatten();
    let filters: Vec<_> = filters.filter(|filter| filter["name"] == recorded["filter"]["name"]).collect();
    assert_eq!(filters, [&recorded["filter"]]);
    let mut hosts = Vec::new();
    for host in values("virtual_hosts", &translated).into_iter().filter_map(Value::as_array).flatten() {
        for added in values("typed_per_filter_config", host) {
            hosts.push(json!({"domains": host["domains"], "typed_per_filter_config": added}));
        }
    }
    assert_eq!(Value::from(hosts), recorded["hosts"]);
}

/// Returns it with the keys as Envoy's documentation writes them.
fn snake(value: Value) -> Value {
    let key = |key: &str| {
        let lower = |char: char| match char.is_ascii_uppercase() {
            true => format!("_{}", char.to_ascii_lowercase()),
            false => char.to_string(),
        };
        if key.contains(['@', '.']) { key.to_owned() } else { key.chars().map(lower).collect() }
    };
    match value {
        Value::Array(all) => all.into_iter().map(snake).collect(),
        Value::Object(map) => map.into_iter().map(|(name, of)| (key(&name), snake(of))).collect::<Map<_, _>>().into(),
        other => other,
    }
}
