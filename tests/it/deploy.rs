//! The files in `deploy/` are consistent: each parses, its rules load, and names in one file match those in the others.

mod charts;
mod gateways;
mod monitoring;
mod runbook;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tollgate::engine::rules::Rule;
use tollgate::sources::files::load::{LoadOptions, Loaded, Sources, load};

/// The documents of a YAML file.
fn documents(path: impl AsRef<Path>) -> Vec<Value> {
    let path = path.as_ref();
    let text = fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The one object of this kind and name.
fn object<'d>(documents: &'d [Value], kind: &str, name: &str) -> &'d Value {
    let mut found = documents.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    let object = found.next().unwrap_or_else(|| panic!("no {kind} {name}"));
    assert!(found.next().is_none(), "two of {kind} {name}");
    object
}

/// The values of a key, wherever it is.
fn values<'v>(key: &str, within: &'v Value) -> Vec<&'v Value> {
    match within {
        Value::Array(items) => items.iter().flat_map(|item| values(key, item)).collect(),
        Value::Object(map) => {
            let deeper = map.values().flat_map(|value| values(key, value));
            map.get(key).into_iter().chain(deeper).collect()
        }
        _ => Vec::new(),
    }
}

/// The one value of a key.
fn value<'v>(key: &str, within: &'v Value) -> &'v str {
    let [value] = values(key, within)[..] else { panic!("not one {key}") };
    value.as_str().unwrap()
}

/// Returns the descriptors that an Envoy configuration sends, written like paths of rules:
/// `route=login|remote_address`.
fn descriptors(config: &Value) -> Vec<String> {
    let entry = |action: &Value| {
        let (kind, action) = action.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "remote_address" => kind.clone(),
            // A substitution is another value for each request.
            "remote_address_match" if value("descriptor_value", action).starts_with('%') => {
                value("descriptor_key", action).to_owned()
            }
            "generic_key" | "header_value_match" | "remote_address_match" => {
                format!("{}={}", value("descriptor_key", action), value("descriptor_value", action))
            }
            _ => value("descriptor_key", action).to_owned(),
        }
    };
    let actions = values("actions", config).into_iter().map(|actions| actions.as_array().unwrap());
    actions.map(|actions| actions.iter().map(entry).collect::<Vec<_>>().join("|")).collect()
}

/// Envoy's local limits send no descriptors.
fn without_local_limits(within: &Value) -> Value {
    match within {
        Value::Array(items) => {
            let asks = |item: &&Value| item["name"] != "envoy.filters.http.local_ratelimit";
            items.iter().filter(asks).map(without_local_limits).collect()
        }
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), without_local_limits(value))).collect(),
        other => other.clone(),
    }
}

/// Each descriptor that Envoy sends has a rule: one for all its values, or some for some.
fn assert_limited(descriptors: &[String], loaded: &Loaded, domain: &str) {
    assert!(!descriptors.is_empty());
    let rules: Vec<_> = loaded.rules.rules().iter().filter(|rule| &*rule.domain == domain).collect();
    for descriptor in descriptors {
        // What holds hits of a budget has a rule, and that settles them. Entries behind it choose a price.
        let mut entries: Vec<_> = descriptor.split('|').collect();
        let of_stream = entries.iter().position(|entry| ["hold", "settle"].contains(entry));
        let weights = of_stream.map_or(Vec::new(), |place| entries.split_off(place + 1));
        if let Some(place) = of_stream {
            entries[place] = "hold";
        }
        let is = |(rule, entry): (&str, &&str)| rule == *entry || rule.starts_with(&format!("{entry}="));
        let applies = |rule: &&Rule| {
            let levels: Vec<_> = rule.path.split('|').collect();
            let chooses = |entry: &&str| rule.weigh_by().iter().any(|key| entry.split('=').next() == Some(&**key));
            levels.len() == entries.len() && levels.into_iter().zip(&entries).all(is) && weights.iter().all(chooses)
        };
        let paths: Vec<_> = rules.iter().map(|rule| &*rule.path).collect();
        assert!(rules.iter().any(applies), "no rule for {descriptor} among {paths:?}");
    }
}

/// The rules in a ConfigMap.
fn loaded_rules(config_map: &Value) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in config_map["data"].as_object().unwrap() {
        fs::write(folder.path().join(file), text.as_str().unwrap()).unwrap();
    }
    load(&Sources { paths: vec![folder.path().to_owned()] }, &LoadOptions::default()).unwrap()
}

/// The rules of the base, with no warning.
fn mounted_rules() -> Loaded {
    let tollgate = documents("deploy/kustomize/base/tollgate.yaml");
    let loaded = loaded_rules(object(&tollgate, "ConfigMap", "tollgate-rules"));
    assert_eq!(loaded.warnings, []);
    loaded
}

/// Every YAML file in a folder and those in it, but for what Helm makes one of.
fn yaml_files(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.as_ref().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.extend((!path.ends_with("templates")).then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                found.push(path);
            }
        }
    }
    found
}

/// The most calls that a worker thread of Tollgate answers in time, with Redis: docs/performance.md.
const MAX_CALLS: u64 = 500;

/// The cluster that a configuration asks about limits.
fn rate_limit_cluster(config: &Value) -> &str {
    let [service] = values("rate_limit_service", config)[..] else { panic!("not one rate_limit_service") };
    value("cluster_name", service)
}

#[test]
fn every_yaml_file_parses() {
    let found = yaml_files("deploy");
    assert!(found.len() >= 5, "{found:?}");
    for path in found {
        assert!(documents(&path).iter().all(Value::is_object), "{}", path.display());
    }
}

#[test]
fn envoy_asks_about_what_the_example_rules_limit() {
    let recipes = tempfile::tempdir().unwrap();
    for domain in ["addresses", "mcp"] {
        fs::write(recipes.path().join(domain).with_extension("yaml"), crate::recipes::of_the_page(domain)).unwrap();
    }
    let paths = vec!["config/rules".into(), recipes.path().to_owned()];
    let loaded = load(&Sources { paths }, &LoadOptions::default()).unwrap();
    for file in yaml_files("deploy/envoy") {
        let envoy = &without_local_limits(&documents(file)[0]);
        assert_limited(&descriptors(envoy), &loaded, value("domain", envoy));
    }
}

#[test]
fn no_envoy_sends_more_calls_than_can_be_answered_in_time() {
    for file in yaml_files("deploy/envoy") {
        let envoy = &documents(&file)[0];
        let name = rate_limit_cluster(envoy);
        let clusters = envoy["static_resources"]["clusters"].as_array().unwrap();
        let cluster = clusters.iter().find(|cluster| cluster["name"] == name).unwrap();
        // Envoy's default counts where there is none.
        let max_requests = cluster["circuit_breakers"]["thresholds"][0]["max_requests"].as_u64().unwrap_or(1024);
        assert!(max_requests <= MAX_CALLS, "{}: {max_requests} calls", file.display());
    }

    let istio = documents("deploy/istio/ingress-gateway.yaml");
    let policy = &object(&istio, "DestinationRule", "tollgate")["spec"];
    let cluster = rate_limit_cluster(object(&istio, "EnvoyFilter", "tollgate-filter"));
    assert!(cluster.ends_with(&format!("||{}", policy["host"].as_str().unwrap())), "{policy} is not for {cluster}");
    let max_requests = policy["trafficPolicy"]["connectionPool"]["http"]["http2MaxRequests"].as_u64().unwrap();
    assert!(max_requests <= MAX_CALLS, "{max_requests} calls");
}

#[test]
fn istio_asks_about_what_the_mounted_rules_limit() {
    let istio = documents("deploy/istio/ingress-gateway.yaml");
    let domain = value("domain", object(&istio, "EnvoyFilter", "tollgate-filter"));
    let descriptors = descriptors(object(&istio, "EnvoyFilter", "tollgate-descriptors"));
    assert_limited(&descriptors, &mounted_rules(), domain);
}

#[test]
fn istio_asks_the_service_that_kubernetes_has() {
    let istio = documents("deploy/istio/ingress-gateway.yaml");
    let tollgate = documents("deploy/kustomize/base/tollgate.yaml");
    let service = object(&tollgate, "Service", "tollgate");
    let name = service["metadata"]["name"].as_str().unwrap();
    let namespace = service["metadata"]["namespace"].as_str().unwrap();
    let port = service["spec"]["ports"].as_array().unwrap().iter().find(|port| port["name"] == "grpc").unwrap();
    let cluster = format!("outbound|{}||{name}.{namespace}.svc.cluster.local", port["port"]);
    let filter = object(&istio, "EnvoyFilter", "tollgate-filter");
    assert_eq!(value("cluster_name", filter), cluster);
}

#[test]
fn the_namespace_of_istios_gateway_may_ask_and_others_may_not() {
    let tollgate = documents("deploy/kustomize/base/tollgate.yaml");
    let istio = documents("deploy/istio/ingress-gateway.yaml");
    let gateway = &object(&istio, "EnvoyFilter", "tollgate-filter")["metadata"];
    let policy = &object(&tollgate, "NetworkPolicy", "tollgate")["spec"];
    let pod = &object(&tollgate, "Deployment", "tollgate")["spec"]["template"];
    assert_eq!(policy["podSelector"]["matchLabels"], pod["metadata"]["labels"]);
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    let rules = policy["ingress"].as_array().unwrap();
    assert_eq!(rules.len(), ports.len());
    for port in ports {
        let rule = rules.iter().find(|rule| rule["ports"][0]["port"] == port["name"]).unwrap();
        match port["name"].as_str().unwrap() {
            "grpc" => assert_eq!(values("values", &rule["from"]), [&Value::from(vec![gateway["namespace"].clone()])]),
            _ => assert!(rule.get("from").is_none(), "{rule}"),
        }
    }
}

#[test]
fn a_pod_has_time_to_drain_before_it_is_killed() {
    let tollgate = documents("deploy/kustomize/base/tollgate.yaml");
    let pod = &object(&tollgate, "Deployment", "tollgate")["spec"]["template"]["spec"];
    let variables = pod["containers"][0]["env"].as_array().unwrap();
    let duration = |name: &str| {
        let variable = variables.iter().find(|variable| variable["name"] == name).unwrap();
        humantime::parse_duration(variable["value"].as_str().unwrap()).unwrap()
    };
    let grace_period = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());
    assert!(grace_period > duration("DRAIN_DELAY") + duration("SHUTDOWN_TIMEOUT"));
}

/// The variables of a container that say where Redis is, as the service reads them.
fn redis_variables(variables: &[(&str, &str)]) -> String {
    let output = super::support::tollgate::command()
        .args(["check", "--env"])
        .envs(variables.iter().copied())
        .env("RULES", "config/rules")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("errors: 0, warnings: 0"), "{said}");
    said
}

#[test]
fn the_nodes_of_the_compose_file_are_a_cluster_and_tollgate_asks_them() {
    let compose = &documents("deploy/cluster/compose.yaml")[0];
    let environment = compose["services"]["tollgate"]["environment"].as_object().unwrap();
    let redis: Vec<_> = environment.iter().filter(|(name, _)| name.starts_with("REDIS_")).collect();
    let redis: Vec<_> = redis.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
    redis_variables(&redis);
    let services = compose["services"].as_object().unwrap();
    for place in environment["REDIS_URL"].as_str().unwrap().split(',') {
        let command = services[place.strip_suffix(":6379").unwrap()]["command"].as_array().unwrap();
        let has = |name: &str, value: &str| command.windows(2).any(|pair| pair[0] == name && pair[1] == value);
        // A dead shard must affect only its own counters.
        assert!(has("--cluster-enabled", "yes") && has("--cluster-require-full-coverage", "no"), "{command:?}");
    }
    let layout = services["layout"]["command"][2].as_str().unwrap();
    let nodes: Vec<&str> =
        services["layout"]["depends_on"].as_array().unwrap().iter().filter_map(|it| it.as_str()).collect();
    assert_eq!(services.keys().filter(|name| name.starts_with("node-")).count(), nodes.len());
    assert!(nodes.iter().all(|node| layout.contains(node.strip_prefix("node-").unwrap())), "{layout}");
    // The shell's own dollars are doubled, lest compose reads them.
    let checked = std::process::Command::new("sh").args(["-nc", &layout.replace("$$", "$")]).status().unwrap();
    assert!(checked.success());
}

#[test]
fn the_sentinels_of_the_compose_file_are_those_that_tollgate_asks() {
    let compose = &documents("deploy/sentinel/compose.yaml")[0];
    let environment = compose["services"]["tollgate"]["environment"].as_object().unwrap();
    let redis: Vec<_> = environment.iter().filter(|(name, _)| name.starts_with("REDIS_")).collect();
    let redis: Vec<_> = redis.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
    redis_variables(&redis);
    let url = environment["REDIS_URL"].as_str().unwrap();
    let (master, sentinels) = url.split_once(',').unwrap();
    let services = compose["services"].as_object().unwrap();
    for place in sentinels.split(',') {
        let (name, port) = place.split_once(':').unwrap();
        let command = services[name]["command"].to_string();
        assert!(command.contains(&format!("port {port}")), "{command}");
        assert!(command.contains(&format!("sentinel monitor {master} master 6379 2")), "{command}");
    }
    assert_eq!(services.keys().filter(|name| name.starts_with("sentinel-")).count(), sentinels.split(',').count());
}

#[test]
fn a_managed_redis_is_a_matter_of_variables_and_mounted_secrets() {
    let patch = &documents("deploy/kustomize/overlays/production/managed-redis.yaml")[0];
    let pod = &patch["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let tollgate = documents("deploy/kustomize/base/tollgate.yaml");
    let whole = &object(&tollgate, "Deployment", "tollgate")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["name"], whole["name"]);
    let variables = container["env"].as_array().unwrap();
    let variables: Vec<_> = variables.iter().map(|one| (value("name", one), value("value", one))).collect();
    redis_variables(&variables);
    let mounts = container["volumeMounts"].as_array().unwrap();
    for (name, file) in variables.iter().filter(|(_, value)| value.starts_with("/etc/")) {
        let is_mounted = |mount: &&Value| file.starts_with(&format!("{}/", mount["mountPath"].as_str().unwrap()));
        let mount = mounts.iter().find(is_mounted).unwrap_or_else(|| panic!("{name}={file} is not mounted"));
        assert!(pod["volumes"].as_array().unwrap().iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
    }
}

#[test]
fn a_token_switches_the_console_of_the_compose_file_on() {
    let text = fs::read_to_string("deploy/compose.yaml").unwrap();
    assert!(text.contains("http://localhost:8080/console") && text.contains("#   ADMIN_TOKEN="), "{text}");
    let compose = &documents("deploy/compose.yaml")[0];
    let environment = &compose["services"]["tollgate"]["environment"];
    // Compose leaves both empty without a token, and an empty variable is unset.
    assert_eq!(
        (&environment["ADMIN_API"], &environment["ADMIN_TOKEN"]),
        (&Value::from("${ADMIN_TOKEN:+true}"), &Value::from("${ADMIN_TOKEN:-}"))
    );
    for (on, token) in [("", ""), ("true", "at-least-16-letters")] {
        let mut check = super::support::tollgate::command();
        let check =
            check.args(["check", "--env"]).envs([("RULES", "config/rules"), ("ADMIN_API", on), ("ADMIN_TOKEN", token)]);
        let said = String::from_utf8(check.output().unwrap().stdout).unwrap();
        assert!(said.contains("errors: 0, warnings: 0"), "{token}: {said}");
    }
}
