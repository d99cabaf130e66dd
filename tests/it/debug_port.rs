//! The debug port: the rules in force as text.

use crate::support;

use support::tollgate::{Tollgate, get};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: team
    value: blue*
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 7}
    descriptors:
      - {key: path, shadow_mode: true, rate_limit: {unit: week, requests_per_unit: 0}}
  - key: many
    rate_limits:
      - {period: 5m, requests_per_unit: 3}
      - {period: 1500ms, requests_per_unit: 2}
  - {key: stream, rate_limit: {requests_per_unit: 4, algorithm: concurrency}}
  - {key: \"two\\nlines\", rate_limit: {unit: hour, requests_per_unit: 1}}
";

const LINES: &str = r"shop.user: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false
shop.user_root: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
shop.team_blue*: unit=DAY requests_per_unit=7, shadow_mode: false, quota_mode: true
shop.team_blue*.path: unit=WEEK requests_per_unit=0, shadow_mode: true, quota_mode: false
shop.many: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false, unit_multiplier: 5
shop.many: unit=UNKNOWN requests_per_unit=2, shadow_mode: false, quota_mode: false, period: 1500ms
shop.stream: unit=UNKNOWN requests_per_unit=4, shadow_mode: false, quota_mode: false, algorithm: concurrency
shop.two\nlines: unit=HOUR requests_per_unit=1, shadow_mode: false, quota_mode: false
";

/// Returns the debug port from the log.
fn port(tollgate: &Tollgate) -> u16 {
    let up = tollgate.must_log("tollgate is up");
    up["debug_port"].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn it_lists_the_limits_in_force_and_what_has_been_counted() {
    let tollgate = Tollgate::start(RULES, &["DEBUG_PORT=0"]);
    let port = port(&tollgate);
    assert_eq!(get(port, "/rlconfig"), (200, LINES.to_owned()));
    assert!(tollgate.passes("shop", &[("user", "ann")]).await);
    let (status, stats) = get(port, "/stats");
    assert_eq!(status, 200);
    assert!(stats.lines().any(|line| line == "tollgate_hits_total{domain=\"shop\",rule=\"user\"} 1"), "{stats}");
    assert!(!stats.contains('#'), "{stats}");
    for path in ["/", "/nothing"] {
        let (status, help) = get(port, path);
        assert_eq!((status, help.lines().count()), (200, 3), "{help}");
        assert!(help.contains("/rlconfig: "), "{help}");
    }

    tollgate.change_rules("domain: shop\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1}}]");
    let changed = "shop.a: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false\n";
    support::wait_until("the new rules are listed", || get(port, "/rlconfig").1 == changed);
}

#[test]
fn it_is_closed_unless_a_port_is_set_and_then_open_to_this_machine_alone() {
    let tollgate = Tollgate::start(RULES, &[]);
    assert!(tollgate.must_log("tollgate is up").get("debug_port").is_none());
    assert_eq!(tollgate.get("/rlconfig").0, 404, "no other port lists them");
    let tollgate = Tollgate::start(RULES, &["DEBUG_PORT=0"]);
    let up = tollgate.must_log("tollgate is up");
    assert!(up["debug_port"].as_str().unwrap().starts_with("127.0.0.1:"), "{up}");
}
