//! The summary of changed rules matches what happens to the counters.

use std::collections::HashMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::engine::algorithm::Ask;
use tollgate::engine::asked::Source;
use tollgate::engine::descriptor::{Descriptor, Entry, Request};
use tollgate::engine::plan::{Names, Plan, PlanOptions};
use tollgate::engine::rules::diff::{self, Change, Counters, Kind, Summary, Totals};
use tollgate::engine::rules::{Rule, RuleLimit, Rules};
use tollgate::sources::files::load::{LoadOptions, Sources, load};

fn rules(files: &[&str]) -> Rules {
    let folder = tempfile::tempdir().unwrap();
    for (number, text) in files.iter().enumerate() {
        std::fs::write(folder.path().join(format!("{number}.yaml")), text).unwrap();
    }
    let sources = Sources { paths: vec![folder.path().to_owned()] };
    load(&sources, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}\n{files:?}")).rules
}

/// Returns the changes, one per line.
fn told(old: &Rules, new: &Rules) -> String {
    let mut lines = String::new();
    diff::compare(old, new, &mut |change| writeln!(lines, "{change}").unwrap());
    lines
}

/// The limits that a request of these entries meets, by the rules' own plan, with the names of their counters.
fn met<'r>(rules: &'r Rules, entries: &[Entry]) -> Vec<(&'r RuleLimit, String)> {
    let descriptor = Descriptor { entries: entries.to_vec(), ask: Ask::Take(1), limit: None };
    let request = Request { domain: "d".into(), descriptors: vec![descriptor] };
    let options = PlanOptions::default();
    let Some(rule) = rules.domain("d").and_then(|domain| rules.find(domain, entries)) else { return Vec::new() };
    let plan = Plan::new(&options, rules, &request, Names::default());
    let asked = plan.asked().iter().map(|asked| {
        let Source::Rule(_, limit) = asked.source else { panic!("nobody brings a limit along") };
        let limit = rule.limits.iter().find(|own| own.id == limit.id).unwrap();
        (limit, asked.check.key.to_string())
    });
    asked.collect()
}

#[test]
fn each_change_is_said_with_what_becomes_of_its_counters() {
    let old = rules(&[
        "domain: d
descriptors:
  - {key: number, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: unit, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: algorithm, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: segments, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: weighting, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: mode, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: shadow, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: shared, value: a*, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: penalty, rate_limit: {unit: minute, requests_per_unit: 5, penalty: {after: 5, within: 1m, ban: 1h}}}
  - {key: free, rate_limit: {unit: minute, requests_per_unit: 5}}
  - key: several
    rate_limits:
      - {name: minute, unit: minute, requests_per_unit: 5}
      - {name: day, unit: day, requests_per_unit: 50}
  - {key: gone, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: user, value: bob, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: order, value: a*, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: order, value: '*b', rate_limit: {unit: minute, requests_per_unit: 6}}
  - {key: same, rate_limit: {unit: minute, requests_per_unit: 5}}
",
        "domain: gone\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 5}}]",
        "domain: e\ndefaults: {failure_mode: closed}",
    ]);
    let new = rules(&[
        "domain: d
descriptors:
  - {key: number, rate_limit: {unit: minute, requests_per_unit: 6}}
  - {key: unit, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: algorithm, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket}}
  - {key: segments, rate_limit: {unit: minute, requests_per_unit: 5, segments: 60}}
  - {key: weighting, rate_limit: {unit: minute, requests_per_unit: 5, weighting: linear}}
  - {key: mode, rate_limit: {unit: minute, requests_per_unit: 5, failure_mode: closed}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: shared, value: a*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: penalty, rate_limit: {unit: minute, requests_per_unit: 5, penalty: {after: 5, within: 2m, ban: 1h}}}
  - {key: free, rate_limit: {unlimited: true}}
  - key: several
    rate_limits:
      - {name: hour, unit: hour, requests_per_unit: 20}
      - {name: minute, unit: minute, requests_per_unit: 5}
      - {name: day, unit: day, requests_per_unit: 60}
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: user, value: ann, rate_limit: {unit: minute, requests_per_unit: 50}}
  - {key: user, value: eve, rate_limit: {unit: hour, requests_per_unit: 50}}
  - {key: fresh, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: order, value: '*b', rate_limit: {unit: minute, requests_per_unit: 6}}
  - {key: order, value: a*, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: same, rate_limit: {unit: minute, requests_per_unit: 5}}
",
        "domain: e\ndefaults: {algorithm: token_bucket}",
        "domain: f\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 5}}]",
    ]);
    let mut settings = insta::Settings::new();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("changes", told(&old, &new)));
    assert_eq!(told(&new, &new), "");
    let Totals { added, removed, changed, afresh } = Summary::of(&old, &new).totals;
    assert_eq!((added, removed, changed, afresh), (5, 3, 13, 7));
}

#[test]
fn other_metadata_of_a_rule_are_a_change_that_keeps_its_counters() {
    let with = |metadata: &str| {
        let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
        rules(&[&format!("domain: d\ndescriptors: [{{key: a, metadata: {metadata}, {limit}}}]")])
    };
    let (none, gold, long) = (with("{}"), with("{plan: gold}"), "x".repeat(100));
    assert_eq!(told(&none, &gold), "changed: d: a: metadata none -> {\"plan\":\"gold\"}: counters are kept\n");
    assert_eq!(told(&gold, &gold), "");
    let long = |end: &str| with(&format!("{{plan: {long}{end}}}"));
    assert!(told(&long("a"), &long("b")).contains("... -> another: counters are kept"));
}

#[test]
fn an_option_is_said_with_the_value_in_force_and_what_limits_the_same_is_no_change() {
    let limit = |options: &str| {
        let limit = format!("{{unit: minute, requests_per_unit: 5, {options}}}");
        rules(&[&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {limit}}}]")])
    };
    for (before, after, said) in [
        ("algorithm: token_bucket", "algorithm: token_bucket, burst: 9", "burst 5 -> 9"),
        ("algorithm: token_bucket", "algorithm: token_bucket, initial: empty", "initial full -> empty"),
        ("algorithm: leaky_bucket, burst: 3", "algorithm: leaky_bucket", "burst 3 -> 1"),
        ("algorithm: leaky_bucket", "algorithm: leaky_bucket, max_delay: 2s", "max_delay none -> 2s"),
        ("weighting: linear", "weighting: strict", "weighting linear -> strict"),
    ] {
        let lines = told(&limit(before), &limit(after));
        assert!(lines.starts_with(&format!("changed: d: a: {said}: counters ")), "{lines}");
    }
    for (before, after) in [
        ("algorithm: token_bucket", "algorithm: token_bucket, burst: 5, initial: full"),
        ("algorithm: leaky_bucket", "algorithm: leaky_bucket, burst: 1"),
        ("algorithm: sliding_window", "segments: 10, weighting: strict, count_denied: false"),
    ] {
        assert_eq!(told(&limit(before), &limit(after)), "", "{after}");
    }
}

#[test]
fn windows_that_start_otherwise_are_other_counters() {
    let minute = |starts: &str| {
        let limit = format!("{{unit: minute, requests_per_unit: 5, algorithm: fixed_window{starts}}}");
        rules(&[&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {limit}}}]")])
    };
    let [unsaid, clock, request] = ["", ", starts: clock", ", starts: first_request"].map(minute);
    let reset = "changed: d: a: starts clock -> first_request: counters are reset\n";
    assert_eq!([told(&unsaid, &request), told(&clock, &request), told(&unsaid, &clock)], [reset, reset, ""]);
}

#[test]
fn another_time_zone_is_another_counter() {
    let month = |time_zone: &str| {
        let limit = format!("{{unit: month, requests_per_unit: 5, algorithm: fixed_window{time_zone}}}");
        rules(&[&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {limit}}}]")])
    };
    let [none, utc, there, the_same] =
        ["", ", time_zone: UTC", ", time_zone: Asia/Shanghai", ", time_zone: asia/shanghai"].map(month);
    for (before, after, said) in [(&none, &utc, "none -> UTC"), (&utc, &there, "UTC -> Asia/Shanghai")] {
        assert_eq!(told(before, after), format!("changed: d: a: time_zone {said}: counters are reset\n"));
        assert_ne!(before.version(), after.version());
    }
    assert_eq!(told(&there, &the_same), "");
    assert_eq!(there.version(), the_same.version());
}

#[test]
fn a_limit_that_is_renamed_says_so_also_where_another_one_takes_its_name() {
    let named = |name: &str, other: &str| {
        let limit = |key: &str, name: &str| {
            format!("{{key: {key}, rate_limit: {{name: {name}, unit: minute, requests_per_unit: 5}}}}")
        };
        rules(&[&format!("domain: d\ndescriptors: [{}, {}]", limit("user", name), limit("path", other))])
    };
    let lines = told(&named("buyers", "paths"), &named("customers", "paths"));
    assert_eq!(lines, "changed: d: customers: name buyers -> customers: counters are kept\n");
    let lines = told(&named("buyers", "paths"), &named("buyers", "buyers"));
    let user = "changed: d: user#buyers: called buyers -> user#buyers: counters are kept\n";
    assert_eq!(lines, format!("{user}changed: d: path#buyers: name paths -> buyers: counters are kept\n"));
}

#[test]
fn a_summary_is_short_and_shows_first_what_starts_afresh() {
    let many = |unit: &str, number: u32| {
        let limits = (0..2_000).map(|user| {
            let unit = if user == 1_999 { unit } else { "minute" };
            format!("  - {{key: user, value: u{user}, rate_limit: {{unit: {unit}, requests_per_unit: {number}}}}}\n")
        });
        rules(&[&format!("domain: d\ndescriptors:\n{}", limits.collect::<String>())])
    };
    let summary = Summary::of(&many("minute", 5), &many("day", 6));
    assert_eq!((summary.totals.changed, summary.totals.afresh), (2_000, 1));
    let text = summary.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let first = "changed: d: user=u1999: requests_per_unit 5 -> 6, period minute -> day: counters are reset";
    assert_eq!((lines.len(), lines[0]), (26, first));
    assert!(text.len() < 16 * 1024 && lines[25].starts_with("more changes"), "{text}");
}

#[test]
fn no_name_from_a_file_makes_a_line_of_its_own_or_a_long_one() {
    let new = rules(&[&json!({"domain": "d", "descriptors": [
        {"key": "a\nERROR forged", "value": "v".repeat(10_000), "rate_limit": {"unit": "hour", "requests_per_unit": 1}},
    ]})
    .to_string()]);
    let text = told(&rules(&["domain: d"]), &new);
    assert!(text.lines().count() == 1 && text.len() < 300, "{text}");
}

/// A few descriptors of which many meet in two sets of rules.
fn drawn_rules() -> impl Strategy<Value = Rules> {
    let limit = (1..3_u32, 0..2_usize, 0..3_usize).prop_map(|(number, unit, algorithm)| {
        let unit = ["minute", "hour"][unit];
        let algorithm = ["sliding_window", "fixed_window", "token_bucket"][algorithm];
        (format!("{unit} {algorithm}"), json!({"requests_per_unit": number, "unit": unit, "algorithm": algorithm}))
    });
    let limits = prop::collection::btree_map("[a-c]", limit, 1..3).prop_map(|limits| {
        // No two limits of one rule may share a counter.
        let limits: HashMap<String, Value> = limits.into_values().collect();
        Value::Array(limits.into_values().collect())
    });
    let node = (prop::option::weighted(0.8, limits), any::<bool>());
    let level = || {
        let name = (prop::sample::select(vec!["a", "b"]), prop::sample::select(vec!["", "x", "y", "x*", "*"]));
        prop::collection::btree_map(name, node.clone(), 0..5)
    };
    (level(), level()).prop_map(|(top, below)| {
        let descriptor = |((key, value), (limits, shared)): (&(&str, &str), &(Option<Value>, bool))| {
            let mut descriptor = json!({"key": key});
            if !value.is_empty() {
                descriptor["value"] = json!(value);
            }
            if value.contains('*') {
                descriptor["share_threshold"] = json!(shared);
            }
            if let Some(limits) = limits {
                descriptor["rate_limits"] = limits.clone();
            }
            descriptor
        };
        let below: Vec<Value> = below.iter().map(descriptor).collect();
        let nested = |mut descriptor: Value| {
            descriptor["descriptors"] = json!(below);
            descriptor
        };
        let top: Vec<Value> = top.iter().map(descriptor).map(nested).collect();
        rules(&[&json!({"domain": "d", "descriptors": top}).to_string()])
    })
}

/// All descriptors of one or two entries that these rules can distinguish.
fn descriptors() -> Vec<Vec<Entry>> {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let entries: Vec<Entry> =
        ["a", "b"].iter().flat_map(|key| ["x", "y", "xz", "q"].map(|value| entry(key, value))).collect();
    let one = entries.iter().map(|entry| vec![entry.clone()]);
    let two = entries.iter().flat_map(|first| entries.iter().map(|second| vec![first.clone(), second.clone()]));
    one.chain(two).collect()
}

proptest! {
    /// By the names that the plan of a request gives its counters.
    #[test]
    fn a_counter_is_kept_just_where_that_is_said(old in drawn_rules(), new in drawn_rules()) {
        let mut said: HashMap<usize, Change<'_>> = HashMap::new();
        let mut added = Vec::new();
        diff::compare(&old, &new, &mut |change| {
            match change.kind {
                Kind::Changed(_, now) => drop(said.insert(now.limit.id, change)),
                Kind::Added(side, _) => {
                    said.insert(side.limit.id, change);
                    added.push(side.limit.id);
                }
                _ => {}
            }
        });
        let path = |rules: &Rules, entries: &[Entry]| {
            rules.domain("d").and_then(|domain| rules.find(domain, entries)).map(|rule| rule.path.clone())
        };
        for entries in descriptors().into_iter().filter(|entries| path(&old, entries) == path(&new, entries)) {
            let before: Vec<String> = met(&old, &entries).into_iter().map(|(_, key)| key).collect();
            for (limit, key) in met(&new, &entries) {
                let told_kept = said.get(&limit.id).is_none_or(|change| change.counters == Counters::Kept);
                prop_assert_eq!(before.contains(&key), told_kept, "{:?}: {:?}", entries, said.get(&limit.id));
            }
        }
        // A change reported for a new rule concerns requests that no other rule takes. A new limit of an existing rule
        // has no counters, even if another rule took the requests before; in that case the other rule is reported as
        // changed.
        let was_there = |rule: &&Rule| old.rules().iter().any(|before| before.path == rule.path);
        for rule in new.rules().iter().filter(|rule| !was_there(rule)) {
            let entries = diff::example(rule);
            let before: Vec<String> = met(&old, &entries).into_iter().map(|(_, key)| key).collect();
            let is_its_own = |limit: &RuleLimit| rule.limits.iter().any(|own| own.id == limit.id);
            for (limit, key) in met(&new, &entries) {
                if !is_its_own(limit) || !added.contains(&limit.id) {
                    continue;
                }
                let expected = match before.contains(&key) {
                    true => Counters::Kept,
                    false if before.is_empty() || path(&old, &entries) == path(&new, &entries) => Counters::None,
                    false => Counters::Afresh,
                };
                prop_assert_eq!(said[&limit.id].counters, expected, "{:?}", entries);
            }
        }
    }
}

#[test]
fn keys_and_values_with_the_signs_of_paths_are_followed_to_their_rule() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    let (key, value) = ("'a|b=c'", "'x|y=z'");
    let old = rules(&[&format!("{{domain: d, descriptors: [{{key: {key}, value: {value}, {limit}}}]}}")]);
    // The requests of the removed rule reach the other one from now on.
    let new = rules(&[&format!("{{domain: d, descriptors: [{{key: {key}, {limit}}}]}}")]);
    let told = told(&old, &new);
    assert!(told.contains("removed"), "{told}");
    let mut afresh = 0;
    diff::compare(&old, &new, &mut |change| {
        let Kind::Removed(_, elsewhere) = change.kind else { return };
        assert_eq!(elsewhere.map(|rule| &*rule.path), Some("a|b=c"), "{told}");
        assert_eq!(change.counters, Counters::Kept, "{told}");
        afresh += 1;
    });
    assert_eq!(afresh, 1, "{told}");
}
