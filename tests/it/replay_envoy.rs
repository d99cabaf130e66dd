//! `tollgate replay --envoy`: what it makes of a log equals what a real Envoy has sent.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::envoy::access_log_as;
use crate::support::envoy::Envoy;
use crate::support::tollgate::{Tollgate, command};
use crate::support::wait_until;

const CONFIG: &str = "deploy/envoy/envoy.yaml";

/// The routes of the test, in place of those of the example.
const ROUTES: &str = r#"route_config:
                  typed_per_filter_config: {}
                  virtual_hosts:
                    - name: api
                      domains: ["api.example", "*.api.example"]
                      rate_limits:
                        - actions: [{ generic_key: { descriptor_value: api } }]
                        - { stage: 1, actions: [{ generic_key: { descriptor_value: of-another-stage } }] }
                      routes:
                        - match: { prefix: /own }
                          route:
                            cluster: service
                            rate_limits: [{ actions: [{ destination_cluster: {} }, { source_cluster: {} }] }]
                        - match: { prefix: /both }
                          route:
                            cluster: service
                            include_vh_rate_limits: true
                            rate_limits: [{ actions: [{ remote_address: {} }] }]
                        - match: { path: /include }
                          route: { cluster: service, rate_limits: [{ actions: [{ remote_address: {} }] }] }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              vh_rate_limits: INCLUDE
                        - match: { path: /ignore }
                          route: { cluster: service }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              vh_rate_limits: IGNORE
                        - match: { path: /off }
                          route: { cluster: service }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig
                              disabled: true
                        - match: { path: /moved }
                          redirect: { path_redirect: /own }
                        - match: { path_separated_prefix: /budget }
                          route: { cluster: service }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              domain: budgets
                              rate_limits:
                                - actions: [{ generic_key: { descriptor_value: "of-%REQ(x-user)%" } }]
                                  hits_addend: { number: 3 }
                                - actions: [{ masked_remote_address: { v4_prefix_mask_len: 8 } }]
                                  hits_addend: { format: "%REQ(x-cost)%" }
                        - match: { prefix: / }
                          route: { cluster: service }
                    - name: rest
                      domains: ["*"]
                      rate_limits:
                        - actions:
                            - request_headers: { header_name: x-user, descriptor_key: user }
                            - request_headers: { header_name: x-team, descriptor_key: team, skip_if_absent: true }
                          hits_addend: { number: 5 }
                        - actions:
                            - header_value_match:
                                descriptor_key: kind
                                descriptor_value: robot
                                headers: [{ name: user-agent, string_match: { contains: BOT, ignore_case: true } }]
                        - actions:
                            - header_value_match:
                                descriptor_value: not-staff
                                expect_match: false
                                headers: [{ name: x-user, string_match: { prefix: staff- } }]
                        - actions:
                            - header_value_match:
                                descriptor_value: no-small-cost
                                headers: [{ name: x-cost, range_match: { start: 0, end: 10 }, invert_match: true }]
                        - actions: [{ query_parameters: { query_parameter_name: q, descriptor_key: search } }]
                        - actions:
                            - query_parameter_value_match:
                                descriptor_value: sorted
                                query_parameters: [{ name: sort, present_match: true }]
                        - actions:
                            - extension:
                                name: envoy.rate_limit_descriptors.expr
                                typed_config:
                                 "@type": type.googleapis.com/envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor
                                 descriptor_key: path
                                 text: request.url_path
                      routes:
                        - match:
                            safe_regex: { regex: "/v[0-9]+/.*" }
                            headers: [{ name: x-user, present_match: true }]
                          route:
                            cluster: service
                            rate_limits: [{ actions: [{ generic_key: { descriptor_value: v } }] }]
                        - match: { path: /CASE, case_sensitive: false }
                          route:
                            cluster: service
                            rate_limits: [{ actions: [{ generic_key: { descriptor_value: c } }] }]
                        - match: { prefix: /, query_parameters: [{ name: flag, string_match: { exact: "a b" } }] }
                          route:
                            cluster: service
                            rate_limits: [{ actions: [{ generic_key: { descriptor_value: f } }] }]
                        - match: { prefix: /, query_parameters: [{ name: flag, string_match: { exact: "a%20b" } }] }
                          route:
                            cluster: service
                            rate_limits: [{ actions: [{ generic_key: { descriptor_value: g } }] }]
                        - match: { prefix: / }
                          route: { cluster: service }

"#;

/// Rules for all that the routes send: the decision log has no other.
const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors: [{key: team, rate_limit: &many {unit: hour, requests_per_unit: 1000}}]
  - {key: remote_address, rate_limit: *many}
  - {key: generic_key, rate_limit: *many}
  - {key: kind, rate_limit: *many}
  - {key: header_match, rate_limit: *many}
  - {key: query_match, rate_limit: *many}
  - {key: search, rate_limit: *many}
  - {key: path, rate_limit: *many}
  - {key: destination_cluster, descriptors: [{key: source_cluster, rate_limit: *many}]}
";

const BUDGETS: &str = "
domain: budgets
descriptors:
  - {key: generic_key, rate_limit: &many {unit: hour, requests_per_unit: 1000}}
  - {key: masked_remote_address, rate_limit: *many}
";

/// The fields that a replay of these routes needs.
const FIELDS: [&str; 11] = [
    "START_TIME",
    "REQ(:METHOD)",
    "REQ(X-ENVOY-ORIGINAL-PATH?:PATH)",
    "REQ(:AUTHORITY)",
    "REQ(X-USER)",
    "REQ(X-TEAM)",
    "REQ(X-COST)",
    "REQ(USER-AGENT)",
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "DURATION",
    "RESPONSE_CODE",
];

/// Host, path, and other headers.
type Request = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const REQUESTS: [Request; 27] = [
    ("api.example", "/own", &[]),
    ("api.example", "/owner?x", &[]),
    ("eu.API.example", "/both", &[]),
    ("api.example", "/include", &[]),
    ("api.example", "/ignore", &[]),
    ("api.example", "/off", &[]),
    ("api.example", "/moved", &[]),
    ("api.example", "/budget", &[("x-user", "ann"), ("x-cost", "7")]),
    ("api.example", "/budget/a?b", &[("x-user", "ann")]),
    ("api.example", "/budgets", &[("x-user", "ann"), ("x-cost", "7")]),
    ("api.example:80", "/own", &[]),
    ("shop.example", "/", &[("x-user", "ann")]),
    ("shop.example", "/", &[("x-user", "ann"), ("x-team", "a")]),
    ("shop.example", "/", &[("x-user", "ann")]),
    ("shop.example", "/a?q=red%20shoes&sort", &[("x-user", "ann")]),
    ("shop.example", "/a?sort=1&q=", &[("user-agent", "robots/1")]),
    ("shop.example", "/?q=a+b", &[("user-agent", "a Bot"), ("x-user", "staff-1")]),
    ("shop.example", "/", &[("x-cost", "7")]),
    ("shop.example", "/", &[("x-cost", "10")]),
    ("shop.example", "/", &[("x-cost", "many")]),
    ("shop.example", "/v1/a", &[("x-user", "bob")]),
    ("shop.example", "/v1/a", &[]),
    ("shop.example", "/x/v1/a", &[("x-user", "bob")]),
    ("shop.example", "/case", &[]),
    ("shop.example", "/case/a", &[]),
    ("shop.example", "/?flag=a%20b", &[]),
    ("shop.example", "/?flag=a+b", &[]),
];

/// The text of the example from one mark to another.
fn part(text: &str, begin: &str, end: &str) -> String {
    let from = text.find(begin).unwrap();
    text[from..from + text[from..].find(end).unwrap()].to_owned()
}

fn text_format() -> String {
    let fields: Vec<String> = FIELDS.iter().map(|field| format!("%{field}%")).collect();
    format!("{{ text_format_source: {{ inline_string: \"{}\\n\" }} }}", fields.join("|"))
}

fn json_format() -> String {
    let of = |(index, field): (usize, &&str)| (format!("f{index}"), json!(format!("%{field}%")));
    let fields: serde_json::Map<String, Value> = FIELDS.iter().enumerate().map(of).collect();
    json!({"json_format": {"of": fields, "both": "%PROTOCOL% %REQ(X-USER)%"}}).to_string()
}

fn replay(folder: &Path, arguments: &[&str]) -> Output {
    command().current_dir(folder).args(["replay", "--rules", "rules"]).args(arguments).output().unwrap()
}

/// What each request asked, with the domain, in the order of time.
fn asked(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = replay(folder, &[arguments, &["--verdicts", "verdicts"]].concat());
    assert!(output.status.success(), "{output:?}");
    let lines = fs::read_to_string(folder.join("verdicts")).unwrap();
    let one = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let mut descriptors: Vec<String> =
            line["descriptors"].as_array().unwrap().iter().map(Value::to_string).collect();
        descriptors.sort();
        json!([line["domain"].take(), descriptors])
    };
    lines.lines().map(one).collect()
}

/// Runs Envoy with these changes of the routes and this format, and asks all; returns the folder with `envoy.yaml`,
/// `access`, `dump.json` and `decisions`.
fn envoy_has_run(format: &str, changes: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let place = |file: &str| folder.path().join(file);
    fs::create_dir(place("rules")).unwrap();
    fs::write(place("rules/shop.yaml"), RULES).unwrap();
    fs::write(place("rules/budgets.yaml"), BUDGETS).unwrap();
    let decisions = format!("DECISION_LOG={}", place("decisions").display());
    let rules = format!("RULES={}", place("rules").display());
    let tollgate = Tollgate::start_from(&[&rules, &decisions, "DECISION_LOG_SAMPLE=1"]);
    let example = fs::read_to_string(CONFIG).unwrap();
    let routes = part(&example, "route_config:\n", "    # A stand-in for a service");
    let log = access_log_as(format);
    let admin = part(&example, "admin:\n", "  address:");
    let node = format!("node: {{ cluster: edge, id: one }}\n{admin}");
    let own = changes.iter().fold(ROUTES.to_owned(), |routes, (old, new)| {
        assert!(routes.contains(old), "{old}");
        routes.replace(old, new)
    });
    let layers = "layered_runtime: { layers: [{ name: fixed, static_layer: { envoy.reloadable_features.\
                  enable_formatter_for_ratelimit_action_descriptor_value: true } }] }\n";
    let node = if changes.is_empty() { node } else { layers.to_owned() + &node };
    let all = [Envoy::LONG_TIMEOUT, ("stat_prefix: front\n", &log), (&routes, &own), (&admin, &node)];
    let envoy = Envoy::start_with(tollgate.grpc_port, &all);
    for (host, path, headers) in REQUESTS {
        envoy.ask(path, &[&[("host", host)], headers].concat());
    }
    wait_until("all requests are logged", || envoy.written("access").lines().count() == REQUESTS.len());
    fs::write(place("envoy.yaml"), envoy.written("envoy.yaml")).unwrap();
    fs::write(place("access"), envoy.written("access")).unwrap();
    fs::write(place("dump.json"), envoy.admin("/config_dump").unwrap()).unwrap();
    drop(envoy);
    drop(tollgate); // it writes the last decisions before it ends
    folder
}

#[test]
fn a_replay_makes_of_a_log_what_envoy_has_sent() {
    for (format, changes) in [(text_format(), &[][..]), (json_format(), &[("of-%REQ(x-user)%", "by-%REQ(x-user)%")])] {
        let folder = envoy_has_run(&format, changes);
        let sent = asked(folder.path(), &["decisions"]);
        assert!(sent.len() > 20, "{sent:#?}");
        for config in ["envoy.yaml", "dump.json"] {
            let made = asked(folder.path(), &["--envoy", config, "access"]);
            for (made, sent) in made.iter().zip(&sent) {
                assert_eq!(made, sent, "{config}");
            }
            assert_eq!(made.len(), sent.len());
        }
    }
}

/// A line of Envoy's default format.
const LINE: &str = "[2026-01-02T03:04:05.678Z] \"GET /login?a HTTP/1.1\" 200 - 0 5 3 2 \"192.0.2.1\" \"curl/8\" \
                    \"4c9\" \"shop.example\" \"127.0.0.1:80\"\n";

fn folder(config: &str, log: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("rules")).unwrap();
    for (file, text) in [("rules/shop.yaml", RULES), ("envoy.yaml", config), ("access", log)] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    folder
}

fn refused(config: &str, arguments: &[&str]) -> String {
    let folder = folder(config, LINE);
    let output = replay(folder.path(), &[&["--envoy", "envoy.yaml", "access"], arguments].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_a_log_does_not_tell_is_left_out_with_the_reason() {
    let example = fs::read_to_string(CONFIG).unwrap();
    let folder = folder(&example, LINE);
    let output = replay(folder.path(), &["--envoy", "envoy.yaml", "access"]);
    let report = String::from_utf8(output.stdout).unwrap();
    // The format does not have the user, and the address only from a header.
    insta::assert_snapshot!(report);
    let json = replay(folder.path(), &["--envoy", "envoy.yaml", "access", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["log"]["left_out"].as_array().unwrap().len(), 2, "{json}");
}

#[test]
fn a_configuration_that_does_not_say_what_envoy_asks_is_refused() {
    let example = fs::read_to_string(CONFIG).unwrap();
    let listeners = part(&example, "    - name: front\n", "    # A stand-in for a service");
    let other = listeners.replace("name: front", "name: side").replace("domain: shop", "domain: else");
    let two = example.replace(&listeners, &(listeners.clone() + &other));
    let several = refused(&two, &[]);
    assert!(several.contains("--listener NAME or --domain NAME says which"), "{several}");
    assert!(several.contains("listener front asks domain shop, listener side asks domain else"), "{several}");
    let none = refused(&two, &["--listener", "side", "--domain", "shop"]);
    assert!(none.contains("no rate limit filter is the one that --listener and --domain name"), "{none}");
    for chosen in [["--listener", "front"], ["--domain", "shop"]] {
        let folder = folder(&two, LINE);
        let output = replay(folder.path(), &[&chosen[..], &["--envoy", "envoy.yaml", "access"]].concat());
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(report.starts_with("1 line\n"), "{report}");
    }

    let routes = part(&example, "route_config:\n", "    # A stand-in for a service");
    let remote = "rds: { route_config_name: outside, config_source: { ads: {} } }\n";
    let cases = [
        (example.replace("ratelimit.v3.RateLimit\n", "router.v3.Router\n"), "envoy.filters.http.ratelimit"),
        (example.replace(&routes, remote), "its routes (\"outside\") are not in the file: give the config dump"),
        (
            example.replace("domain: shop", "realm: shop"),
            "the rate limit filter cannot be read: missing field `domain`",
        ),
        ("a: [".to_owned(), "it is neither YAML nor JSON"),
        ("{".to_owned(), "it is neither YAML nor JSON"),
        (example.replace("domains: [\"*\"]", "domains: []").replace("rate_limits:", "rate_limitz:"), "asks nothing"),
    ];
    for (config, why) in cases {
        let told = refused(&config, &[]);
        assert!(told.starts_with("error: ") && told.contains(why), "{why}: {told}");
    }
    let told = refused(&example, &["--log-format", "json"]);
    assert!(told.contains("--envoy needs a log of Envoy"), "{told}");
    let two_hosts = example.replace("domains: [\"*\"]", "domains: [a, b]");
    let no_host = refused(&two_hosts, &["--log-format", "%START_TIME% %REQ(:PATH)%"]);
    assert!(no_host.contains("the log has no %REQ(:AUTHORITY)%, which says whose routes"), "{no_host}");
}
