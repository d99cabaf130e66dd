//! The house keeps its order: who may import whom, and nothing of one machine in the project.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate::algorithm::Algorithm;

/// For each module, what it may use of the others. What is not named here may use nothing.
const MAY_USE: &[(&str, &[&str])] = &[
    ("descriptor", &["algorithm"]),
    ("algorithm", &[]),
    ("lease", &["algorithm"]),
    ("usage", &[]),
    ("adjustment", &["algorithm", "descriptor"]),
    ("files", &[]),
    ("rules", &["algorithm", "descriptor", "files", "lease", "usage"]),
    (XDS, &["connect", "files", "rules", "wire"]),
    ("store", &["adjustment", "algorithm", "descriptor", "files", "lease", "spans", "telemetry", "tls", "usage"]),
    ("plan", &["adjustment", "algorithm", "decision", "descriptor", "rules", "store"]),
    ("decision", &["algorithm", "descriptor", "plan", "rules", "store"]),
    (
        "metrics",
        &[
            "adjustment",
            "algorithm",
            "decision",
            "decision_log",
            "descriptor",
            "plan",
            "rules",
            "spans",
            "store",
            "tls",
            "version",
        ],
    ),
    ("values", &["descriptor", "plan", "rules"]),
    ("decision_log", &["algorithm", "decision", "descriptor", "plan", "rules", "store", "telemetry", "values"]),
    ("heavy_hitters", &["algorithm", "decision", "descriptor", "metrics", "plan", "rules", "store", "values"]),
    ("statsd", &["metrics", "telemetry"]),
    ("telemetry", &[]),
    ("connect", &[]),
    ("spans", &["connect", "telemetry", "version"]),
    ("room", &["algorithm", "decision", "plan", "store"]),
    ("counters", &["adjustment", "algorithm", "decision", "descriptor", "explain", "plan", "rules", "store"]),
    ("console", &["counters", "descriptor", "metrics", "rules", "store"]),
    ("changes", &["algorithm", "counters", "descriptor", "rules", "store"]),
    ("sample", &["descriptor", "rules", "store"]),
    ("candidates", &["changes", "decision", "descriptor", "metrics", "plan", "rules", "sample", "store", "values"]),
    ("what_if", &["algorithm", "descriptor", "plan", "replay", "rules", "sample", "store", "values"]),
    ("explain", &["adjustment", "algorithm", "decision", "descriptor", "plan", "rules", "store"]),
    ("replay", &["algorithm", "decision", "descriptor", "plan", "rules", "store", "values"]),
    ("delay", &["metrics", "telemetry"]),
    (
        "limiter",
        &[
            "adjustment",
            "algorithm",
            "candidates",
            "counters",
            "decision",
            "delay",
            "descriptor",
            "explain",
            "heavy_hitters",
            "metrics",
            "plan",
            "room",
            "rules",
            "store",
            "telemetry",
            "what_if",
        ],
    ),
    ("steering", &["adjustment", "descriptor", "limiter", "metrics", "rules", "store"]),
    ("fleet", &["limiter", "metrics", "store", "version"]),
    ("tls", &["files"]),
    ("wire", &["descriptor"]),
    ("version", &[]),
    ("probe", &[]),
    (
        "grpc",
        &[
            "algorithm",
            "decision",
            "decision_log",
            "delay",
            "descriptor",
            "explain",
            "limiter",
            "metrics",
            "plan",
            "rules",
            "spans",
            "store",
            "wire",
        ],
    ),
    (
        "http",
        &[
            "adjustment",
            "algorithm",
            "candidates",
            "console",
            "counters",
            "descriptor",
            "explain",
            "fleet",
            "grpc",
            "heavy_hitters",
            "limiter",
            "metrics",
            "rules",
            "steering",
            "store",
            "telemetry",
            "usage",
            "values",
            "version",
            "what_if",
            "wire",
        ],
    ),
    // For the names of what can be chosen.
    (
        "settings",
        &[
            "algorithm",
            "decision_log",
            "grpc",
            "http",
            "limiter",
            "metrics",
            "plan",
            "rules",
            "spans",
            "statsd",
            "store",
            "telemetry",
            "tls",
            "values",
        ],
    ),
    (
        "server",
        &[
            "candidates",
            "changes",
            "connect",
            "console",
            "decision_log",
            "files",
            "fleet",
            "http",
            "grpc",
            "heavy_hitters",
            "limiter",
            "metrics",
            "plan",
            "probe",
            "rules",
            "settings",
            "spans",
            "statsd",
            "steering",
            "store",
            "telemetry",
            "tls",
            "version",
            "what_if",
            "wire",
        ],
    ),
    (
        "command",
        &[
            "adjustment",
            "changes",
            "counters",
            "decision",
            "descriptor",
            "explain",
            "fleet",
            "heavy_hitters",
            "limiter",
            "metrics",
            "plan",
            "probe",
            "replay",
            "room",
            "rules",
            "server",
            "settings",
            "steering",
            "store",
            "telemetry",
            "tls",
            "usage",
            "version",
            "wire",
        ],
    ),
];

/// Only these know the wire's types, and only these do I/O by `tokio::net`.
const OUTSIDE: &[&str] = &["connect", "grpc", "wire", "server", "command", "spans", XDS];

/// A source of rules that speaks gRPC: a module of its own here, because no other part of `rules` does.
const XDS: &str = "rules/source/xds";

pub fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// `src/rules/report.rs` is of the module `rules`.
fn module(path: &Path) -> String {
    if path.starts_with(Path::new("src").join(XDS)) {
        return XDS.to_owned();
    }
    let first = path.strip_prefix("src").unwrap().components().next().unwrap();
    first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

fn source(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for path in files("src", "rs") {
        let user = module(&path);
        if matches!(user.as_str(), "lib" | "main") {
            continue;
        }
        seen.insert(user.clone());
        let allowed = MAY_USE.iter().find(|(name, _)| *name == user).map_or(&[][..], |(_, allowed)| allowed);
        let text = source(&path);
        for used in text.split("crate::").skip(1) {
            let end = used.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(used.len());
            let used = &used[..end];
            if used != user && !allowed.contains(&used) {
                wrong.push(format!("{}: {user} must not use {used}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let listed: BTreeSet<String> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(listed, seen, "the list above names just the modules that there are");
}

#[test]
fn the_core_knows_neither_the_wire_nor_the_clock() {
    for path in files("src", "rs") {
        let (module, text) = (module(&path), source(&path));
        let code = text.split("#[cfg(test)]").next().unwrap();
        if !OUTSIDE.contains(&module.as_str()) && module != "lib" {
            assert!(!code.contains("tonic"), "{} speaks gRPC", path.display());
        }
        if ["algorithm", "descriptor", "lease", "plan", "decision"].contains(&module.as_str()) {
            for word in ["Instant", "SystemTime", "tokio", "std::fs", "async"] {
                assert!(!code.contains(word), "{} uses {word}", path.display());
            }
        }
    }
}

#[test]
fn the_command_line_is_a_matter_of_settings_and_command() {
    for path in files("src", "rs") {
        let (module, text) = (module(&path), source(&path));
        for (name, homes) in [("clap", ["settings", "command"]), ("anyhow", ["server", "command"])] {
            let is_used = text.contains(&format!("{name}::"));
            assert!(!is_used || homes.contains(&&*module), "{} uses {name}", path.display());
        }
    }
}

/// That our own code needs no newer one is clippy's to see: `incompatible_msrv`.
#[test]
fn no_dependency_needs_a_newer_rust_than_we_declare() {
    let cargo = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let version = |text: &str| {
        let mut parts = text.split('.').map(|part| part.parse().unwrap()).collect::<Vec<u32>>();
        parts.resize(3, 0);
        parts
    };
    let declared = version(env!("CARGO_PKG_RUST_VERSION"));
    // Of this platform alone: there are crates for others that have never been fetched here.
    let rustc = cargo(&["version", "--verbose"]);
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let metadata = cargo(&["metadata", "--locked", "--format-version=1", "--filter-platform", host]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100);
    for package in packages {
        if let Some(needed) = package["rust_version"].as_str() {
            assert!(version(needed) <= declared, "{} {} needs {needed}", package["name"], package["version"]);
        }
    }
}

#[test]
fn of_redis_only_its_store_knows() {
    for path in files("src", "rs") {
        if !path.starts_with("src/store/redis") {
            assert!(!source(&path).contains("deadpool_redis"), "{} uses a Redis crate", path.display());
        }
    }
}

#[test]
fn every_algorithm_is_one_pair_of_files() {
    let stems = |folder: &str, extension: &str| -> BTreeSet<String> {
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        files(folder, extension).into_iter().map(stem).collect()
    };
    let names: BTreeSet<String> = Algorithm::ALL.iter().map(|algorithm| algorithm.name().to_owned()).collect();
    let rust: BTreeSet<String> = &stems("src/algorithm", "rs")
        - &BTreeSet::from(["mod", "ask", "bucket", "calendar", "limit", "penalty"].map(str::to_owned));
    let lua = &stems("lua", "lua")
        - &BTreeSet::from(
            [
                "prelude",
                "bucket",
                "decide",
                "alone",
                "scattered",
                "penalty",
                "usage",
                "rights",
                "adjustments",
                "replicas",
            ]
            .map(str::to_owned),
        );
    assert_eq!(rust, names);
    assert_eq!(lua, names);
}

#[test]
fn no_line_is_wider_than_rustfmt_makes_it() {
    let settings = fs::read_to_string("rustfmt.toml").unwrap();
    let width: usize = settings.lines().find_map(|line| line.strip_prefix("max_width = ")).unwrap().parse().unwrap();
    let rust = ["src", "tests", "benches", "examples"].map(|folder| files(folder, "rs"));
    let mut wrong = Vec::new();
    for path in rust.into_iter().flatten().chain(files("lua", "lua")).chain(files("tests/it/support", "lua")) {
        for (number, line) in source(&path).lines().enumerate() {
            let columns = line.chars().count();
            if columns > width {
                wrong.push(format!("{}:{}: {columns} columns", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn lua_declares_its_variables_and_never_prints_numbers_by_concatenation() {
    for path in files("lua", "lua") {
        for (number, line) in source(&path).lines().enumerate() {
            let place = format!("{}:{}: {line}", path.display(), number + 1);
            let code = line.split("--").next().unwrap();
            assert!(!code.contains("tostring") && !code.contains("cjson"), "{place}");
            assert!(!code.trim_start().starts_with("function "), "a global function at {place}");
        }
    }
}
