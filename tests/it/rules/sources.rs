//! The selection of files to read.

use super::*;

#[test]
fn a_folder_is_read_with_all_below_it_and_only_what_is_called_a_rules_file() {
    let folder = folder(&[
        ("b.yaml", "domain: b"),
        ("a.yml", "domain: a"),
        ("sub/deeper/c.json", "{\"domain\": \"c\"}"),
        ("README.md", "not: [YAML"),
        (".hidden.yaml", "domain: hidden"),
        (".folder/d.yaml", "domain: d"),
    ]);
    let rules = load_path(folder.path()).unwrap().rules;
    assert_eq!(rules.domains(), 3);
    assert!(["a", "b", "c"].into_iter().all(|domain| rules.domain(domain).is_some()));
}

#[test]
fn a_named_file_is_read_whatever_it_is_called() {
    let folder = folder(&[(".limits.conf", "domain: d")]);
    assert!(load_path(folder.path().join(".limits.conf")).unwrap().rules.domain("d").is_some());
}

#[test]
fn a_file_that_is_reached_on_several_ways_counts_once() {
    let folder = folder(&[("a.yaml", "domain: a")]);
    let paths = vec![folder.path().to_owned(), folder.path().join("a.yaml"), folder.path().to_owned()];
    assert_eq!(load(&Sources { paths }, &OPTIONS).unwrap().rules.domains(), 1);
}

#[cfg(unix)]
#[test]
fn a_mounted_config_map_counts_each_file_once() {
    use std::os::unix::fs::symlink;
    let folder = folder(&[("..2024_01/a.yaml", "domain: a"), ("..2024_01/b.yaml", "domain: b")]);
    symlink("..2024_01", folder.path().join("..data")).unwrap();
    for name in ["a.yaml", "b.yaml"] {
        symlink(Path::new("..data").join(name), folder.path().join(name)).unwrap();
    }
    assert_eq!(load_path(folder.path()).unwrap().rules.domains(), 2);
}

#[cfg(unix)]
#[test]
fn a_folder_that_links_to_itself_ends() {
    let folder = folder(&[("a.yaml", "domain: a")]);
    std::os::unix::fs::symlink(".", folder.path().join("again")).unwrap();
    assert_eq!(load_path(folder.path()).unwrap().rules.domains(), 1);
}

#[test]
fn what_is_not_there_and_a_folder_without_rules_are_reported() {
    let folder = folder(&[("README.md", "")]);
    let missing = folder.path().join("rules");
    let paths = vec![missing.clone(), folder.path().to_owned()];
    let error = load(&Sources { paths }, &OPTIONS).unwrap_err();
    let told: Vec<_> =
        error.problems.iter().map(|problem| (problem.file.to_path_buf(), problem.message.as_str())).collect();
    assert_eq!(
        told,
        [
            (folder.path().to_owned(), "this folder has no rules: no *.yaml, *.yml or *.json"),
            (missing, "cannot be read: No such file or directory (os error 2)"),
        ]
    );
}

#[test]
fn the_layout_of_the_reference_is_one_folder() {
    let folder = folder(&[("ratelimit/config/a.yaml", "domain: a"), ("other/config/b.yaml", "domain: b")]);
    let sources = Sources::runtime(folder.path(), "ratelimit", "config");
    assert!(load(&sources, &OPTIONS).unwrap().rules.domain("a").is_some());
    assert_eq!(Sources::runtime("/srv", "", "config").paths, [Path::new("/srv/config")]);
}

#[test]
fn a_domain_has_one_file_unless_files_are_merged() {
    let folder = folder(&[("a.yaml", "domain: d"), ("b.yaml", "domain: d")]);
    let error = load_path(folder.path()).unwrap_err().to_string();
    assert!(error.contains("b.yaml:1:9: domain: \"d\" is already the domain of"), "{error}");
    assert_eq!(load(&sources(folder.path()), &MERGED).unwrap().rules.domains(), 1);
}

#[test]
fn merged_files_add_up_in_the_order_of_their_paths_and_keep_their_own_defaults() {
    let folder = folder(&[
        (
            "a.yaml",
            "{domain: d, defaults: {algorithm: fixed_window}, descriptors: \
             [{key: k, value: a*, rate_limit: {unit: hour, requests_per_unit: 1}}]}",
        ),
        (
            "b.yaml",
            "{domain: d, defaults: {failure_mode: closed}, descriptors: \
             [{key: k, value: '*', rate_limit: {unit: hour, requests_per_unit: 2, replaces: [{name: c}]}}]}",
        ),
        ("c.yaml", "{domain: d, descriptors: [{key: c, rate_limit: {name: c, unit: hour, requests_per_unit: 1}}]}"),
    ]);
    let Loaded { rules, warnings, .. } = load(&sources(folder.path()), &MERGED).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(&*find(&rules, "d", "k=abc").unwrap().path, "k=a*");
    assert_eq!(&*find(&rules, "d", "k=xyz").unwrap().path, "k=*");
    let failure_modes: Vec<_> = rules.rules().iter().map(|rule| rule.limits[0].config.failure_mode).collect();
    assert_eq!(failure_modes, [FailureMode::Open, FailureMode::Closed, FailureMode::Open]);
    let defaults =
        Defaults { algorithm: Algorithm::FixedWindow, failure_mode: FailureMode::Closed, ..Defaults::default() };
    assert_eq!(rules.domain("d").unwrap().defaults, defaults);
}

#[test]
fn merged_files_may_not_say_the_same_twice() {
    let of = |key: &str| {
        let descriptor = |key: &str| format!("{{key: {key}, rate_limit: {{unlimited: true}}}}");
        format!("domain: d\ndescriptors:\n- {}\n- {}", descriptor(key), descriptor("b"))
    };
    let folder = folder(&[("a.yaml", &of("a")), ("b.yaml", &of("c"))]);
    let error = load(&sources(folder.path()), &MERGED).unwrap_err().to_string();
    assert!(error.contains("b.yaml:4:3: descriptors[1]: has the same key and value as descriptors[1] at "), "{error}");
    assert!(error.ends_with("a.yaml:4:3"), "{error}");
}

#[test]
fn the_mistakes_of_all_files_are_reported_together_and_in_order() {
    let folder = folder(&[("a.yaml", "domian: a"), ("b.yaml", "domain: b"), ("c.yaml", "domain: c\nkye: 1\nvaleu: 2")]);
    let error = load_path(folder.path()).unwrap_err();
    let told: Vec<_> = error
        .problems
        .iter()
        .map(|problem| (problem.file.file_name().unwrap().to_str().unwrap(), problem.path.as_str()))
        .collect();
    let expected = [("a.yaml", "domian"), ("b.yaml", "descriptors"), ("c.yaml", "kye"), ("c.yaml", "valeu")];
    assert_eq!(told, expected);
}
