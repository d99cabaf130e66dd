//! Single files: `accepted/` loads without warnings, `warned/` with warnings, `refused/` not at all. `snapshots/` has
//! the messages.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate::engine::algorithm::TimeZone;
use tollgate::engine::descriptor::Role;
use tollgate::engine::rules::Allowance;
use tollgate::engine::rules::report::Severity;

use super::*;

#[test]
fn every_refusal_reads_well() {
    for file in files_in("tests/rules/refused") {
        let error = load_path(&file).expect_err(&file.display().to_string());
        snapshot(&file, &error.to_string());
    }
}

#[test]
fn every_warning_reads_well_and_refuses_nothing() {
    for file in files_in("tests/rules/warned") {
        let loaded = load_path(&file).unwrap_or_else(|error| panic!("{error}"));
        let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert!(loaded.warnings.iter().all(|problem| problem.severity == Severity::Warning));
        assert!(!warnings.is_empty(), "{}", file.display());
        snapshot(&file, &warnings.join("\n"));
    }
}

fn snapshot(file: &Path, text: &str) {
    let folder = file.parent().unwrap().file_name().unwrap();
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path(Path::new("snapshots").join(folder));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(file.file_stem().unwrap().to_str().unwrap(), text));
}

#[test]
fn every_accepted_file_loads_without_a_warning() {
    for file in files_in("tests/rules/accepted") {
        let loaded = load_path(&file).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(loaded.warnings, [], "{}", file.display());
        assert_eq!(loaded.rules.domains(), 1);
    }
}

#[test]
fn the_example_files_load_together_and_without_a_warning() {
    let loaded = load_path("config/rules").unwrap();
    assert_eq!((loaded.warnings, loaded.hints), (Vec::new(), Vec::new()));
    assert_eq!(loaded.rules.domains(), files_in("config/rules").len());
    assert_eq!(find(&loaded.rules, "shop", "user=ann").unwrap().limits[0].name(), "per-user");
}

#[test]
fn scalars_keep_their_text_and_numbers_are_read_as_yaml_1_1_has_them() {
    let rules = load_path("tests/rules/accepted/scalars.yaml").unwrap().rules;
    for (entry, number, period) in [
        ("42=007", 8, 1),
        ("hex=0x1F", 16, 1),
        ("under=1_000", 1000, 60),
        ("binary=0b1", 5, 60 * 60),
        ("octal=0o7", 15, 24 * 60 * 60),
        ("truth=true", u32::MAX.into(), 7 * 24 * 60 * 60),
        ("yes=yes", 0, 30 * 24 * 60 * 60),
        ("on=On", 5, 365 * 24 * 60 * 60),
    ] {
        let limit = limit(find(&rules, "5", entry).unwrap());
        assert_eq!((limit.number(), limit.period()), (number, Duration::from_secs(period)), "{entry}");
    }
}

/// Rules files of `envoyproxy/ratelimit`: accepted and rejected parts.
#[test]
fn scalars_are_accepted_and_refused_as_in_yaml_1_1() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    let load = |line: &str| load_text(format!("domain: d\ndescriptors:\n  - {{key: k, {line}}}\n"));
    for value in ["42", "007", "0x1F", "1_000", "true", "yes", "on", "2020-01-01", "50.0.0.5"] {
        let rules = load(&format!("value: {value}, {limit}")).unwrap().rules;
        assert!(find(&rules, "d", &format!("k={value}")).is_some(), "it is kept as it is written: {value}");
        assert!(find(&rules, "d", "k=other").is_none(), "{value}");
    }
    for none in ["null", "~", "NULL", "", "\"\""] {
        let rules = load(&format!("value: {none}, {limit}")).unwrap().rules;
        assert!(find(&rules, "d", "k=other").is_some(), "no value: {none:?}");
    }
    for (number, is) in [("010", 8), ("0x10", 16), ("1_000", 1000), ("0b101", 5), ("4294967295", u32::MAX.into())] {
        let rules = load(&format!("rate_limit: {{unit: minute, requests_per_unit: {number}}}")).unwrap().rules;
        assert_eq!(self::limit(find(&rules, "d", "k=x").unwrap()).number(), is, "{number}");
    }
    for (flag, role) in [
        ("true", Role::Shadow),
        ("yes", Role::Shadow),
        ("On", Role::Shadow),
        ("false", Role::Enforced),
        ("NO", Role::Enforced),
        ("off", Role::Enforced),
        ("", Role::Enforced),
    ] {
        let rules = load(&format!("{limit}, shadow_mode: {flag}")).unwrap().rules;
        assert_eq!(find(&rules, "d", "k=x").unwrap().role, role, "{flag:?}");
    }
    let number = |number: &str| format!("rate_limit: {{unit: minute, requests_per_unit: {number}}}");
    let numbers = ["4294967296", "-1", "\"5\"", "1.5", "1.0", "1e3"].map(number);
    let values = ["1.5", "99999999999999999999", "[x]", "*"].map(|value| format!("value: {value}, {limit}"));
    let flags = ["\"true\"", "1"].map(|flag| format!("{limit}, shadow_mode: {flag}"));
    for refused in numbers.into_iter().chain(values).chain(flags) {
        assert!(load(&refused).is_err(), "{refused}");
    }
}

#[test]
fn metadata_are_kept_with_the_rule_as_json() {
    let rules = load_path("tests/rules/accepted/reference.yaml").unwrap().rules;
    let metadata = find(&rules, "reference", "user=vip").unwrap().metadata.clone().map(|metadata| *metadata);
    let limits = json!({"daily": 1.5, "enabled": true, "5": [1, null, "2020-01-01"]});
    let expected = json!({"plan": "gold", "limits": limits, "unit": "anything"});
    assert_eq!(metadata.map(Value::Object), Some(expected));
    assert!(find(&rules, "reference", "user=ann").unwrap().metadata.is_none());
    // Descriptors in it are none of the rules.
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    let text = format!("domain: d\ndescriptors: [{{key: a, metadata: {{descriptors: [{{key: b}}]}}, {limit}}}]");
    let rules = load_text(text).unwrap().rules;
    let metadata = find(&rules, "d", "a=x").unwrap().metadata.clone().map(|metadata| *metadata);
    assert_eq!(metadata.map(Value::Object), Some(json!({"descriptors": [{"key": "b"}]})));
}

#[test]
fn a_limit_wins_over_its_file_and_its_file_over_the_settings() {
    let text = "domain: d\ndefaults: {algorithm: token_bucket}\ndescriptors:\n\
                - {key: a, rate_limit: {unit: minute, requests_per_unit: 5}}\n\
                - key: b\n\
                \x20 rate_limit: {unit: minute, requests_per_unit: 5, algorithm: fixed_window, failure_mode: closed}";
    let rules = load_text(text).unwrap().rules;
    let (a, b) = (find(&rules, "d", "a=").unwrap(), find(&rules, "d", "b=").unwrap());
    assert_eq!((limit(a).algorithm(), a.limits[0].config.failure_mode), (Algorithm::TokenBucket, FailureMode::Open));
    assert_eq!((limit(b).algorithm(), b.limits[0].config.failure_mode), (Algorithm::FixedWindow, FailureMode::Closed));
    let defaults =
        Defaults { algorithm: Algorithm::TokenBucket, failure_mode: FailureMode::Open, ..Defaults::default() };
    assert_eq!(rules.domain("d").unwrap().defaults, defaults);
}

/// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT and USE_CALENDAR_MONTH_RATE_LIMIT.
#[test]
fn what_settings_say_of_fixed_windows_holds_for_those_that_do_not_say_it_themselves() {
    let text = "domain: d\ndescriptors:\n\
                - {key: month, rate_limit: {unit: month, requests_per_unit: 5}}\n\
                - {key: day, rate_limit: {unit: day, requests_per_unit: 5}}\n\
                - {key: thirty, rate_limit: {period: 30d, requests_per_unit: 5}}\n\
                - key: own\n\
                \x20 rate_limit: {unit: month, requests_per_unit: 5, count_denied: true, time_zone: Asia/Tokyo}\n\
                - {key: sliding, rate_limit: {unit: month, requests_per_unit: 5, algorithm: sliding_window}}";
    let of = |defaults: Defaults| {
        let options = LoadOptions { defaults, ..OPTIONS };
        let folder = folder(&[("rules.yaml", text)]);
        let rules = load(&sources(folder.path()), &options).unwrap().rules;
        ["month", "day", "thirty", "own", "sliding"].map(|key| {
            let limit = limit(find(&rules, "d", &format!("{key}=")).unwrap());
            (limit.count_denied(), limit.options().time_zone.map(TimeZone::name))
        })
    };
    let fixed = Defaults { algorithm: Algorithm::FixedWindow, ..Defaults::default() };
    let own = (true, Some("Asia/Tokyo"));
    assert_eq!(of(fixed.clone()), [(true, None), (true, None), (true, None), own, (false, None)]);
    let stops = Defaults { fixed_windows: FixedWindows::CountPassed, ..fixed.clone() };
    assert_eq!(of(stops), [(false, None), (false, None), (false, None), own, (false, None)]);
    let months = Defaults { months: Months::Calendar, ..fixed };
    assert_eq!(of(months), [(true, Some("UTC")), (true, None), (true, None), own, (false, None)]);
}

#[test]
fn a_slot_stays_taken_for_a_minute_by_default() {
    let rules = load_path("tests/rules/accepted/ours.yaml").unwrap().rules;
    for (entries, seconds) in [("e=1|stream=1", 366 * 24 * 60 * 60), ("f=1|stream=1", 60)] {
        let limit = limit(find(&rules, "ours", entries).unwrap());
        assert_eq!((limit.period(), limit.window()), (Duration::from_secs(seconds), None), "{entries}");
    }
}

#[test]
fn shadow_wins_over_quota() {
    let rules = load_path("tests/rules/accepted/flags.yaml").unwrap().rules;
    for (entry, role) in [("a=1", Role::Shadow), ("b=1", Role::Quota), ("c=1", Role::Shadow), ("d=1", Role::Enforced)] {
        assert_eq!(find(&rules, "flags", entry).unwrap().role, role, "{entry}");
    }
}

#[test]
fn an_alias_means_what_it_stands_for_and_a_merge_key_adds_what_is_missing() {
    let rules = load_path("tests/rules/accepted/anchors.yaml").unwrap().rules;
    for (entry, number) in [("a=1", 5), ("a=1|x=1", 5), ("b=1", 6), ("b=1|x=1", 5), ("c=1", 5)] {
        assert_eq!(limit(find(&rules, "anchors", entry).unwrap()).number(), number, "{entry}");
    }
}

#[test]
fn an_unlimited_rule_has_no_limit() {
    let rules = load_path("tests/rules/accepted/reference.yaml").unwrap().rules;
    assert_eq!(find(&rules, "reference", "group=a|user=b").unwrap().limits[0].config.allowance, Allowance::Unlimited);
}

#[test]
fn of_a_key_that_stands_twice_the_last_counts() {
    let rules = load_path("tests/rules/warned/key_twice.yaml").unwrap().rules;
    assert_eq!(limit(find(&rules, "shop", "user=ann").unwrap()).period(), Duration::from_secs(60 * 60));
}

#[test]
fn comments_may_be_as_long_as_they_like() {
    let comments = "# Why this limit is what it is.\n".repeat(1000);
    assert!(
        load_text(format!("{comments}domain: d\ndescriptors:\n{comments}  - key: a\n    {comments}    value: b\n"))
            .is_ok()
    );
}

#[test]
fn text_that_is_not_utf_8_is_refused_where_it_is() {
    let error = load_text(b"domain: caf\xc3\xa9\nkey: \xff").unwrap_err();
    assert!(error.to_string().ends_with("rules.yaml:2:6: not UTF-8"), "{error}");
}

#[test]
fn a_file_over_16_mib_is_refused_and_one_of_just_16_mib_is_read() {
    let text = |bytes: usize| format!("domain: d\n#{}", "x".repeat(bytes - 11));
    assert!(load_text(text(16 << 20)).is_ok());
    let error = load_text(text((16 << 20) + 1)).unwrap_err();
    assert!(error.to_string().contains("rules.yaml: is longer than 16 MiB: split it"), "{error}");
}

#[test]
fn how_long_a_file_may_be_and_what_aliases_may_add_to_it_is_a_setting() {
    let aliases = "domain: d\nx: &x abcdefgh\ndescriptors: [{key: *x}]";
    let folder = folder(&[("a.yaml", "domain: d"), ("b.yaml", aliases)]);
    let load = |name: &str, max_file_bytes: u64| {
        let options = LoadOptions { max_file_bytes, ..OPTIONS };
        load(&sources(folder.path().join(name)), &options).map_err(|error| error.to_string())
    };
    assert!(load("a.yaml", 9).is_ok());
    let error = load("a.yaml", 8).unwrap_err();
    assert!(error.ends_with("a.yaml: is longer than 8 bytes: split it, or raise MAX_RULES_FILE_BYTES"), "{error}");
    let most = aliases.len() as u64;
    assert!(load("b.yaml", most).unwrap_err().contains("unknown key"));
    let many = format!("domain: d\nx: &x abcdefgh\ndescriptors: [{}]", "{key: *x},".repeat(9));
    fs::write(folder.path().join("b.yaml"), &many).unwrap();
    let error = load("b.yaml", many.len() as u64).unwrap_err();
    assert!(error.contains(&format!("expand to more than {} bytes", many.len())), "{error}");
}

#[test]
fn many_files_are_reported_in_their_order_whoever_reads_them_first() {
    let names: Vec<String> = (0..150).map(|number| format!("{number:03}.yaml")).collect();
    // The earlier a file is in the order, the longer it takes.
    let texts: Vec<String> = (0..150).map(|number| "# long\n".repeat(200 * (150 - number)) + "domain:").collect();
    let files: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(texts.iter().map(String::as_str)).collect();
    let folder = folder(&files);
    let error = load_path(folder.path()).unwrap_err();
    let told: Vec<_> =
        error.problems.iter().map(|problem| problem.file.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!((&told[..], error.more), (&files.iter().map(|(name, _)| *name).collect::<Vec<_>>()[..100], 50));
}

/// Returns the hints for a limit with these defaults.
fn hints(defaults: &str, limit: &str) -> Vec<String> {
    let text = format!("domain: d\ndefaults: {{{defaults}}}\ndescriptors: [{{key: k, rate_limit: {{{limit}}}}}]");
    let loaded = load_text(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(loaded.warnings, []);
    loaded.hints.iter().map(|hint| hint.to_string().split_once(": ").unwrap().1.to_owned()).collect()
}

#[test]
fn a_lease_that_saves_nothing_is_advised_against_at_its_key() {
    let advised = |leaf: &str| {
        let text = format!("domain: d\ndescriptors:\n  - {leaf}");
        let loaded = load_text(&text).unwrap();
        loaded.warnings.into_iter().chain(loaded.hints).map(|problem| problem.to_string()).collect::<Vec<_>>()
    };
    let limit = |keys: &str| format!("rate_limit: {{unit: minute, lease: {{unused: 5%}}, {keys}}}");
    let shared = |keys: &str| advised(&format!("{{key: route, value: a, {}}}", limit(keys)));
    let [told] = &shared("requests_per_unit: 20")[..] else { panic!("one hint") };
    assert!(told.contains("descriptors[0].rate_limit.lease.unused: saves nothing: 5% of 20 is 1"), "{told}");
    let [told] = &shared("requests_per_unit: 1000, cost: 30")[..] else { panic!("one warning") };
    assert!(told.starts_with("warning: ") && told.contains("lease.unused: does nothing"), "{told}");
    assert_eq!(shared("requests_per_unit: 1000"), [""; 0]);

    // A key without a value, or with a wildcard, has a counter for each value, unless they share it.
    let few = "requests_per_unit: 30, name: few";
    let leased = limit(few).replace("5%", "20%");
    for (keys, is_advised) in [
        ("key: user", true),
        ("key: path, value: /a/*", true),
        ("key: path, value: /a/*, share_threshold: true", false),
        ("key: route, value: a", false),
    ] {
        let told = advised(&format!("{{{keys}, {leased}}}"));
        assert_eq!(told.iter().any(|told| told.contains("has a separate counter")), is_advised, "{keys}: {told:?}");
        assert_eq!(told.len(), usize::from(is_advised), "{told:?}");
    }
}

#[test]
fn a_small_number_in_a_sliding_window_that_nobody_chose_is_hinted_at() {
    let hint = hints("", "unit: minute, requests_per_unit: 1");
    assert_eq!(hint.len(), 1);
    let text = "descriptors[0].rate_limit.requests_per_unit: a client that sends exactly 1 in every period, evenly \
                spaced, is denied every 2nd request; algorithm: sliding_log denies none of them, token_bucket refills \
                evenly; to keep this, write algorithm: sliding_window";
    assert!(hint[0].ends_with(text), "{hint:?}");
    for small in ["period: 10m, requests_per_unit: 4", "unit: hour, requests_per_unit: 100, cost: 40"] {
        assert_eq!(hints("failure_mode: closed", small).len(), 1, "{small}");
    }
    for (defaults, fits) in [
        ("", "unit: minute, requests_per_unit: 5"),
        ("", "unit: minute, requests_per_unit: 0"),
        ("", "unlimited: true"),
        ("", "unit: minute, requests_per_unit: 1, algorithm: sliding_window"),
        ("", "unit: minute, requests_per_unit: 1, algorithm: sliding_log"),
        ("", "unit: minute, requests_per_unit: 1, segments: 60"),
        ("", "unit: minute, requests_per_unit: 1, weighting: linear"),
        ("", "unit: minute, requests_per_unit: 1, count_denied: true"),
        ("algorithm: sliding_window", "unit: minute, requests_per_unit: 1"),
        ("algorithm: fixed_window", "unit: minute, requests_per_unit: 1"),
    ] {
        assert_eq!(hints(defaults, fits), [""; 0], "{defaults} {fits}");
    }
}

#[test]
fn descriptors_nest_as_deep_as_yaml_does_and_no_deeper() {
    let nested = |levels: usize| {
        let open = "descriptors: [{key: a, ".repeat(levels);
        format!("{{domain: d, {open}rate_limit: {{unit: minute, requests_per_unit: 5}}{}}}", "}]".repeat(levels))
    };
    let rules = load_text(nested(126)).unwrap().rules;
    assert!(find(&rules, "d", &["a=b"; 126].join("|")).is_some());
    let error = load_text(nested(127)).unwrap_err().to_string();
    assert!(error.contains("nest too deep"), "{error}");
    // Aliases go deeper.
    let below = |end: &str| format!("{}{end} {}", "[{key: a, descriptors: ".repeat(60), "}]".repeat(60));
    let last = below("[{key: z, rate_limit: {unit: minute, requests_per_unit: 5}}]");
    let both = format!("{{key: x, descriptors: &x {last}}}, {{key: y, descriptors: &y {}}}", below("*x"));
    assert!(load_text(format!("{{domain: d, descriptors: [{both}]}}")).is_ok());
    let more = format!("{both}, {{key: z, descriptors: {}}}", below("*y"));
    let error = load_text(format!("{{domain: d, descriptors: [{more}]}}")).unwrap_err().to_string();
    assert!(error.contains("up to 160 levels"), "{error}");
    assert!(load_text(nested(50_000)).is_err());
    assert!(load_text("- ".repeat(100_000)).is_err());
}

#[test]
fn aliases_that_multiply_fail_at_once_wherever_they_stand() {
    let mut lists = "domain: d\ndescriptors:\n- key: a\n  metadata:\n    l0: &l0 [lol, lol]\n".to_owned();
    let mut merges = "domain: d\ndescriptors:\n- key: a\n  metadata:\n    m0: &m0 {k0: lol}\n".to_owned();
    for level in 1..100 {
        let below = level - 1;
        lists += &format!("    l{level}: &l{level} [*l{below}, *l{below}]\n");
        merges += &format!("    m{level}: &m{level} {{<<: [*m{below}, *m{below}]}}\n");
    }
    let text = format!("domain: d\nt: &t \"{}\"\ndescriptors: [{}]", "\\n".repeat(1 << 20), "*t, ".repeat(1 << 20));
    for bomb in [lists, merges, text] {
        let error = load_text(bomb).unwrap_err().to_string();
        assert!(error.contains("expand to more than 16 MiB"), "{error}");
    }
}

#[test]
fn of_many_mistakes_the_first_hundred_are_reported_and_how_many_more_there_are() {
    // The mistake in the last key is found before all others, and reported after them.
    let text = format!("domain: d\ndescriptors: [{}]\nkye: 1", "{key: ''},".repeat(100_000));
    let error = load_text(text).unwrap_err();
    assert_eq!((error.problems.len(), error.more), (100, 99_901));
    assert_eq!(error.problems[99].path, "descriptors[99].key");
    let text = error.to_string();
    assert!(text.len() < 20_000 && text.ends_with("and 99901 more"), "{text}");
}

#[test]
fn no_mistake_takes_more_than_a_line() {
    let long = "9".repeat(1 << 17);
    for value in [
        format!("{long}.5"),
        format!("[{long}]"),
        format!("'{long}'"),
        format!("{long}m"),
        format!("5{}", "m".repeat(1 << 17)),
    ] {
        for key in ["key", "value", "rate_limit", "share_threshold", "descriptors"] {
            let text = format!("domain: d\ndescriptors: [{{key: k, {key}: {value}}}]");
            let told = load_text(&text).err().map_or(0, |error| error.to_string().len());
            assert!(told < 1_000, "{key}: {told} characters");
        }
        for key in
            ["unit", "requests_per_unit", "period", "algorithm", "hold", "max_delay", "name", "penalty", "unlimited"]
        {
            let text = format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{{key}: {value}}}}}]");
            let told = load_text(&text).err().map_or(0, |error| error.to_string().len());
            assert!(told < 1_500, "{key}: {told} characters");
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_text_however_broken_does_worse_than_be_refused(
        file in 0..2_usize,
        edits in proptest::collection::vec(
            (0..900_usize, 0..9_usize, "[-&*!|>'\"%@#?:,{}\\[\\] \n\t0-9a-z<~.]{0,4}"),
            1..6,
        ),
    ) {
        let path = ["tests/rules/accepted/reference.yaml", "tests/rules/accepted/anchors.yaml"][file];
        let mut text: Vec<char> = fs::read_to_string(path).unwrap().chars().collect();
        for (at, length, with) in edits {
            let at = at % text.len();
            let end = (at + length).min(text.len());
            text.splice(at..end, with.chars());
            text.push('\n');
        }
        let _ = load_text(text.into_iter().collect::<String>());
    }
}

fn limit(rule: &Rule) -> tollgate::engine::algorithm::Limit {
    match rule.limits[0].config.allowance {
        Allowance::Limited(limit) => limit,
        Allowance::Unlimited => panic!("{} is unlimited", rule.path),
    }
}

#[test]
fn defaults_count_wherever_they_stand_and_what_is_wrong_is_said_once() {
    let descriptors = "descriptors:\n- {key: idle}\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 9}}\n";
    let defaults = "defaults: {algorithm: token_bucket}\n";
    for text in [format!("domain: d\n{defaults}{descriptors}"), format!("{descriptors}{defaults}domain: d\n")] {
        let Loaded { rules, warnings, .. } = load_text(&text).unwrap();
        let limit = &find(&rules, "d", "user=ann").unwrap().limits[0];
        let Allowance::Limited(limit) = limit.config.allowance else { panic!("{limit:?}") };
        assert_eq!((limit.algorithm(), warnings.len()), (Algorithm::TokenBucket, 1), "{text}");
    }
}

#[test]
fn a_lease_and_a_share_of_the_defaults_are_of_the_limits_that_can_have_them_and_that_they_save_calls() {
    let defaults = "defaults: {lease: {unused: 10%, ttl: 2s}, own_share: 5%}";
    let has = |limit: &str| {
        let one = format!("rate_limit: {{unit: minute, requests_per_unit: {limit}}}");
        let Loaded { rules, warnings, hints } =
            load_text(format!("domain: d\n{defaults}\ndescriptors: [{{key: k, value: v, {one}}}]")).unwrap();
        assert_eq!((warnings.len(), hints.len()), (0, 0), "{limit}: {hints:?}");
        let written = rules.rules()[0].limits[0].config.options.written();
        let of = |key| written.iter().find(|(name, _)| *name == key).unwrap().1.clone();
        (of("lease"), of("own_share"))
    };
    let (lease, share, none) = ("{unused: 10%, ttl: 2s}", "5%", "none");
    for (limit, expected) in [
        ("1000", (lease, share)),
        ("1000, lease: {unused: 20%, ttl: 1s}", ("{unused: 20%, ttl: 1s}", share)),
        ("1000, lease: {unused: 0%}", (none, share)),
        ("1000, own_share: 20%", (lease, "20%")),
        ("1000, own_share: 0%", (lease, none)),
        ("1000, algorithm: token_bucket", (lease, share)),
        // Those that cannot have them, or for which they save nothing.
        ("10", (none, none)),
        ("1000, algorithm: fixed_window", (none, none)),
        ("1000, algorithm: fixed_window, count_denied: false", (lease, share)),
        ("1000, algorithm: leaky_bucket", (none, none)),
        ("1000, algorithm: leaky_bucket, burst: 1000", (lease, none)),
        ("1000, penalty: {after: 3, within: 1h, ban: 1h}", (none, none)),
        ("1000, durable: true", (none, none)),
        ("1000, usage: {by: hour, keep: 400d}", (lease, none)),
    ] {
        let (has_lease, has_share) = has(limit);
        assert_eq!((&*has_lease, &*has_share), expected, "{limit}");
    }
    // Of several limits none can have a lease.
    let several = "rate_limits: [{unit: minute, requests_per_unit: 1000}, {unit: hour, requests_per_unit: 9000}]";
    let rules =
        load_text(format!("domain: d\n{defaults}\ndescriptors: [{{key: k, value: v, {several}}}]")).unwrap().rules;
    for limit in &rules.rules()[0].limits {
        let options = &limit.config.options;
        assert!(options.lease.is_none() && options.own_share.is_some(), "{options:?}");
    }
    for (defaults, expected) in [
        ("lease: {unused: 5p}", "defaults.lease.unused: write a percentage"),
        ("lease: {unused: 60%}", "defaults.lease.unused: unused must be at most 50%"),
        ("lease: {unused: 5%, ttl: 40s}", "defaults.lease.ttl: ttl must be from 1ms to 30s"),
        ("own_share: 5p", "defaults.own_share: write a percentage"),
    ] {
        let wrong = load_text(format!("domain: d\ndefaults: {{{defaults}}}\ndescriptors: [{{key: k}}]")).unwrap_err();
        assert!(wrong.problems.iter().any(|problem| problem.to_string().contains(expected)), "{defaults}: {wrong}");
    }
    // Where none is possible, none may be written.
    for limit in ["unlimited: true", "unit: day, requests_per_unit: 9, penalty: {after: 3, within: 1h, ban: 1h}"] {
        let none = format!("{{key: k, rate_limit: {{{limit}, own_share: 0%, lease: {{unused: 0%}}}}}}");
        load_text(format!("domain: d\n{defaults}\ndescriptors: [{none}]")).unwrap();
    }
}

#[test]
fn of_two_lists_of_descriptors_in_one_place_the_last_counts() {
    let rule = |key: &str| format!("{{key: {key}, rate_limit: {{unit: hour, requests_per_unit: 9}}}}");
    let [a, b] = ["a", "b"].map(|key| format!("descriptors: [{}]", rule(key)));
    let text =
        format!("domain: d\ndescriptors: [{{key: wrong}}, {{key: wrong}}]\ndescriptors:\n- key: c\n  {a}\n  {b}\n");
    let Loaded { rules, warnings, .. } = load_text(text).unwrap();
    assert_eq!(rules.rules().iter().map(|rule| &*rule.path).collect::<Vec<_>>(), ["c|b"]);
    assert_eq!(warnings.len(), 2, "of each key that stands twice: {warnings:?}");
}

#[test]
fn anchors_aliases_and_merge_keys_stand_for_descriptors_at_every_level() {
    let paths = |text: &str| -> Vec<String> {
        load_text(text).unwrap().rules.rules().iter().map(|rule| rule.path.to_string()).collect()
    };
    let plain = "domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 9},
  descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 9}}]}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 9},
  descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 9}}]}
";
    let by_item = "domain: d
descriptors:
- &a {key: a, rate_limit: &hour {unit: hour, requests_per_unit: 9},
  descriptors: [&c {key: c, rate_limit: {<<: *hour, unit: day}}]}
- key: b
  rate_limit: *hour
  descriptors: [*c]
";
    let by_merge_key = "domain: d
descriptors:
- &a {key: a, rate_limit: {unit: hour, requests_per_unit: 9},
  descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 9}}]}
- {<<: *a, key: b}
";
    let by_list = "domain: d
descriptors: &all
- key: a
  rate_limit: {unit: hour, requests_per_unit: 9}
  descriptors: &below [{key: c, rate_limit: {unit: day, requests_per_unit: 9}}]
- {key: b, rate_limit: {unit: hour, requests_per_unit: 9}, descriptors: *below}
";
    assert_eq!(paths(plain), ["a", "a|c", "b", "b|c"]);
    for text in [by_item, by_merge_key, by_list] {
        assert_eq!(paths(text), paths(plain), "{text}");
    }
}

#[test]
fn files_of_one_domain_are_one_tree_in_their_order() {
    let rule = |name: &str, value: &str| {
        format!("- {{key: user, value: {value}, rate_limit: {{name: {name}, unit: hour, requests_per_unit: 9}}}}\n")
    };
    let file = |rules: &[String]| format!("domain: d\ndescriptors:\n{}", rules.concat());
    let first = file(&[rule("one", "x"), rule("two", "\"a*\"")]);
    let second = file(&[rule("three", "\"ab*\""), rule("four", "abc"), rule("five", "\"*z\"")]);
    let folder = folder(&[("1.yaml", &first), ("2.yaml", &second)]);
    let rules = load(&sources(folder.path()), &MERGED).unwrap().rules;
    for (value, name) in [("x", "one"), ("abd", "two"), ("abc", "four"), ("z", "five"), ("az", "two")] {
        let rule = find(&rules, "d", &format!("user={value}")).unwrap();
        assert_eq!(rule.limits[0].name(), name, "{value}");
        assert_eq!(rules.origin(rule.place).unwrap().name.ends_with("1.yaml"), ["one", "two"].contains(&name));
    }
    let ids: Vec<usize> = rules.limits().map(|(_, limit)| limit.id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
}
