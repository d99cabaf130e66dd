//! The matching of requests with rules.

use super::*;

/// Asserts for each request which rule it reaches, by the rule's path.
fn reaches(descriptors: &str, expected: &[(&str, Option<&str>)]) {
    let limits = descriptors.replace("LIMIT", "rate_limit: {unit: minute, requests_per_unit: 5}");
    let rules = load_text(format!("domain: d\ndescriptors:\n{limits}")).unwrap_or_else(|error| panic!("{error}")).rules;
    for (entries, path) in expected {
        assert_eq!(find(&rules, "d", entries).map(|rule| &*rule.path), *path, "{entries}");
    }
}

#[test]
fn an_exact_value_wins_over_a_wildcard_and_a_wildcard_over_no_value() {
    reaches(
        "- {key: user, LIMIT}\n- {key: user, value: a*, LIMIT}\n- {key: user, value: ann, LIMIT}",
        &[
            ("user=ann", Some("user=ann")),
            ("user=amy", Some("user=a*")),
            ("user=bob", Some("user")),
            ("user=Ann", Some("user")),
            ("User=ann", None),
        ],
    );
}

#[test]
fn of_several_wildcards_the_first_in_the_file_wins() {
    reaches(
        "- {key: path, value: /a/*, LIMIT}\n- {key: 'p*', LIMIT}\n- {key: path, value: '*', LIMIT}",
        &[("path=/a/b", Some("path=/a/*")), ("path=/b", Some("p*")), ("port=1", Some("p*")), ("q=1", None)],
    );
}

#[test]
fn a_star_stands_for_any_characters_or_none() {
    reaches(
        "- {key: path, value: '/a/*/c*e', LIMIT}",
        &[
            ("path=/a//ce", Some("path=/a/*/c*e")),
            ("path=/a/b/b/cde", Some("path=/a/*/c*e")),
            ("path=/a/c", None),
            ("path=/a/ce", None),
            ("path=/a/b/cd", None),
        ],
    );
}

#[test]
fn a_key_without_value_matches_an_empty_value_and_so_does_a_star() {
    reaches(
        "- {key: a, LIMIT}\n- {key: b, value: '*', LIMIT}\n- {key: c, value: x, LIMIT}",
        &[("a=", Some("a")), ("b=", Some("b=*")), ("c=", None)],
    );
}

#[test]
fn there_is_no_going_back() {
    let descriptors = "\
- key: path
  value: /x
  descriptors: [{key: method, value: GET, LIMIT}]
- key: path
  descriptors: [{key: method, LIMIT}]";
    reaches(
        descriptors,
        &[
            ("path=/x|method=GET", Some("path=/x|method=GET")),
            ("path=/x|method=PUT", None),
            ("path=/y|method=PUT", Some("path|method")),
        ],
    );
}

#[test]
fn only_the_node_of_the_last_entry_counts() {
    reaches(
        "- {key: a, LIMIT, descriptors: [{key: b, LIMIT, descriptors: [{key: c}]}]}",
        &[
            ("a=1", Some("a")),
            ("a=1|b=2", Some("a|b")),
            ("a=1|b=2|c=3", None),
            ("a=1|b=2|c=3|d=4", None),
            ("b=2|a=1", None),
        ],
    );
}

#[test]
fn key_and_value_are_matched_each_for_itself() {
    reaches(
        "- {key: a_b, LIMIT}\n- {key: b, value: c_d, LIMIT}\n- {key: st*r, LIMIT}\n- {key: a, value: b, LIMIT}",
        &[
            ("a_b=", Some("a_b")),
            ("a=b", Some("a=b")),
            ("a=b_c", None),
            ("b_c=d", None),
            ("start=zr", None),
            ("star=x", Some("st*r")),
        ],
    );
}

#[test]
fn only_a_shared_wildcard_has_one_counter_for_all_values() {
    let text = "\
domain: d
descriptors:
  - key: tenant
    value: t*
    share_threshold: true
    descriptors:
      - {key: path, value: /a/*, rate_limit: {unit: minute, requests_per_unit: 5}}
      - {key: path, value: /b/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}";
    let rules = load_text(text).unwrap().rules;
    let shared = |entries| {
        let rule = find(&rules, "d", entries).unwrap();
        [0, 1, 2].map(|level| rule.shared_pattern(level))
    };
    assert_eq!(shared("tenant=t1|path=/a/b"), [Some("t*"), None, None]);
    assert_eq!(shared("tenant=t1|path=/b/c"), [Some("t*"), Some("/b/*"), None]);
}

#[test]
fn a_domain_of_100_000_rules_finds_each_of_them() {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for rule in 0..100_000 {
        text += &format!("- {{key: user, value: u{rule}, rate_limit: {{unit: minute, requests_per_unit: {rule}}}}}\n");
    }
    let rules = load_text(text).unwrap().rules;
    assert_eq!(rules.rules().len(), 100_000);
    assert_eq!(&*find(&rules, "d", "user=u0").unwrap().path, "user=u0");
    assert_eq!(&*find(&rules, "d", "user=u99999").unwrap().path, "user=u99999");
}
