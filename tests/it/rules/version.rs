//! The version of rules shows whether instances have the same rules.

use super::{folder, load_path, load_text};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    shadow_mode: true
    rate_limit: {name: per-user, unit: minute, requests_per_unit: 5}
  - key: route
    value: login
    descriptors:
      - {key: address, value: 10.*, rate_limit: {unit: hour, requests_per_unit: 10, failure_mode: closed}}
      - {key: address, value: '*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 20}}
      - {key: address, value: 192.0.2.1}
";

fn version(rules: &str) -> String {
    load_text(rules).unwrap().rules.version().to_owned()
}

#[test]
fn rules_that_say_the_same_have_one_version_wherever_they_are() {
    let text = version(RULES);
    assert_eq!(text.len(), 12);
    let moved = folder(&[("other.yaml", &format!("# a comment\n\n{RULES}"))]);
    assert_eq!(load_path(moved.path()).unwrap().rules.version(), text);
    // Written out, what would be so anyway.
    assert_eq!(
        version(&RULES.replace("requests_per_unit: 5", "requests_per_unit: 5, algorithm: sliding_window")),
        text
    );
}

#[test]
fn whatever_changes_decisions_changes_the_version() {
    for (from, to) in [
        ("domain: shop", "domain: mall"),
        ("domain: shop", "domain: shop\nexpect: [user]"),
        ("key: user", "key: client"),
        ("per-user", "each"),
        ("unit: minute", "unit: day"),
        ("requests_per_unit: 5", "requests_per_unit: 6"),
        ("shadow_mode: true", "shadow_mode: false"),
        ("failure_mode: closed", "failure_mode: open"),
        ("value: 10.*", "value: 11.*"),
        ("share_threshold: true", "detailed_metric: true"),
        // It has no limit, and exempts requests from one that has.
        ("value: 192.0.2.1}", "value: 192.0.2.2}"),
        ("      - {key: address, value: 192.0.2.1}\n", ""),
    ] {
        let changed = RULES.replacen(from, to, 1);
        assert_ne!(changed, RULES, "{from}");
        assert_ne!(version(&changed), version(RULES), "{from} -> {to}");
    }
}

#[test]
fn the_first_wildcard_that_matches_wins_so_their_order_counts() {
    let one = "  - {key: user, value: a*, rate_limit: {unit: day, requests_per_unit: 1}}\n";
    let other = "  - {key: user, value: '*b', rate_limit: {unit: day, requests_per_unit: 2}}\n";
    let of = |rules: [&str; 2]| version(&format!("domain: shop\ndescriptors:\n{}", rules.concat()));
    assert_ne!(of([one, other]), of([other, one]));
}
