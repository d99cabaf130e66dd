//! What the upstream is told: headers of the request and dynamic metadata, through a real Envoy.

use serde_json::{Value, json};

use crate::envoy::access_log;
use crate::support::envoy::{Answer, Envoy};
use crate::support::tollgate::Tollgate;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, unit: hour, requests_per_unit: 5}}
  - {key: user, value: own, rate_limit: {name: own, unit: hour, requests_per_unit: 4, soft: 50%}}
  - {key: user, value: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1, soft: 50%}}
";

/// The change that makes the service answer with the headers of its request.
const ECHO: (&str, &str) = (
    "- match: { prefix: / }\n                          direct_response:",
    "- match: { prefix: / }\n                          response_headers_to_add:\n\
     \x20                         - header: { key: seen-left, value: \"%REQ(x-tollgate-remaining)%\" }\n\
     \x20                         - header: { key: seen-soft, value: \"%REQ(x-tollgate-soft)%\" }\n\
     \x20                         direct_response:",
);

/// The change that sends soft requests on another route, to nowhere.
const ROUTED: (&str, &str) = (
    "- match: { prefix: / }\n                          route: { cluster: service }",
    "- match: { prefix: /, headers: [{ name: x-tollgate-soft, string_match: { exact: \"true\" } }] }\n\
     \x20                         direct_response: { status: 203 }\n\
     \x20                       - match: { prefix: / }\n\
     \x20                         route: { cluster: service }",
);

/// A filter after Tollgate's that makes Envoy pick the route again.
const PICKED_AGAIN: (&str, &str) = (
    "                  - name: envoy.filters.http.router
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: service",
    "                  - name: envoy.filters.http.lua
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
                      default_source_code:
                        inline_string: \"function envoy_on_request(handle) handle:clearRouteCache() end\"
                  - name: envoy.filters.http.router
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: service",
);

/// The change that keeps clients from sending these headers, as docs/clients.md has it.
const STRIPPED: (&str, &str) = (
    "stat_prefix: front
",
    "stat_prefix: front
                early_header_mutation_extensions:
                  - name: envoy.http.early_header_mutation.header_mutation
                    typed_config:
                      \"@type\": type.googleapis.com/\
                     envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
                      mutations: [{ remove: x-tollgate-remaining }, { remove: x-tollgate-soft }]
",
);

fn seen(answer: &Answer) -> (Option<&str>, Option<&str>) {
    (answer.header("seen-left"), answer.header("seen-soft"))
}

#[test]
fn the_upstream_is_told_what_is_left_and_whether_the_client_is_near_its_limit() {
    let tollgate = Tollgate::start(RULES, &["UPSTREAM_HEADERS_ENABLED=true"]);
    let metadata = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:tollgate:upstream)%\\n";
    let log = access_log(metadata);
    let envoy = Envoy::start_with(tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, ECHO, ("stat_prefix: front\n", &log)]);
    for (left, soft) in [("4", "false"), ("3", "false"), ("2", "false"), ("1", "false"), ("0", "true")] {
        assert_eq!(seen(&envoy.get_as("ann")), (Some(left), Some(soft)));
    }
    assert_eq!(envoy.get_as("ann").status, 429);
    assert_eq!(seen(&envoy.get("/")), (None, None), "no limit applies");
    assert_eq!(seen(&envoy.get_as("shadow")), (None, None));
    crate::support::wait_until("the access log", || envoy.written("access").lines().count() >= 8);
    let lines = envoy.written("access");
    let told: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(told.contains(&json!({"rule": "per-user", "remaining": 0, "soft": true})), "{lines}");
}

#[test]
fn without_the_setting_only_limits_with_the_option_are_told() {
    let tollgate = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start_with(tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, ECHO]);
    assert_eq!(seen(&envoy.get_as("ann")), (None, None));
    for (left, soft) in [("3", "false"), ("2", "false"), ("1", "true"), ("0", "true")] {
        assert_eq!(seen(&envoy.get_as("own")), (Some(left), Some(soft)));
    }
}

#[test]
fn envoy_keeps_its_route_unless_a_filter_clears_it() {
    let tollgate = Tollgate::start(RULES, &[]);
    let statuses = |changes: &[(&str, &str)], user: &str| {
        let envoy = Envoy::start_with(tollgate.grpc_port, &[&[Envoy::LONG_TIMEOUT], changes].concat());
        (0..4).map(|_| envoy.get_as(user).status).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&[ROUTED], "own"), [200, 200, 200, 200]);
    let other = Tollgate::start(RULES, &[]);
    let envoy = Envoy::start_with(other.grpc_port, &[Envoy::LONG_TIMEOUT, PICKED_AGAIN, ROUTED]);
    let again: Vec<u16> = (0..4).map(|_| envoy.get_as("own").status).collect();
    assert_eq!(again, [200, 200, 203, 203]);
}

#[test]
fn a_client_can_send_the_headers_unless_envoy_removes_them() {
    let tollgate = Tollgate::start(RULES, &[]);
    let ask = |envoy: &Envoy| {
        envoy.ask("/", &[("x-user", "own"), ("x-tollgate-remaining", "1000"), ("x-tollgate-soft", "no")])
    };
    let open = Envoy::start_with(tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, ECHO]);
    assert_eq!(seen(&ask(&open)), (Some("1000"), Some("no")), "Envoy adds ours after the client's");
    let safe = Envoy::start_with(tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, ECHO, STRIPPED]);
    assert_eq!(seen(&ask(&safe)), (Some("2"), Some("false")));
}
