//! The structure of the project: which room may import which, and no paths of a single machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate::engine::algorithm::Algorithm;

use crate::support::imports::{Imports, circles};

/// For each room, the rooms it may import. A room is a folder of `src`, and in those of [`DIVIDED`] a folder or file
/// below. `engine` is a separate crate: Cargo keeps it from the others, and [`FROM_BELOW`] orders its rooms.
const MAY_USE: &[(&str, &[&str])] = &[
    ("store", &["engine", "files", "instant", "probe", "spans", "supervise", "telemetry", "tls"]),
    ("sources/files", &["engine", "files"]),
    ("sources/xds", &["connect", "engine", "files", "sources/files", "wire"]),
    ("shared/adjustment", &["engine", "limiter", "metrics", "shared/exchange", "store"]),
    ("shared/claims", &["engine", "shared/exchange", "store"]),
    ("shared/exchange", &["engine", "store"]),
    ("shared/fleet", &["engine", "limiter", "metrics", "observe/candidates", "shared/exchange", "store", "version"]),
    ("shared/seats", &["engine", "limiter", "metrics", "shared/exchange", "store"]),
    ("shared/usage", &["engine", "store"]),
    (
        "survey",
        &[
            "evaluate",
            "observe/candidates",
            "metrics",
            "observe/heavy_hitters",
            "observe/history",
            "observe/redaction",
            "observe/what_if",
            "shared/fleet",
            "store",
            "telemetry",
        ],
    ),
    ("delay", &["metrics", "telemetry"]),
    (
        "metrics",
        &[
            "engine",
            "evaluate",
            "notify",
            "observe/decision_log",
            "spans",
            "store",
            "supervise",
            "telemetry",
            "tls",
            "version",
        ],
    ),
    ("observe/candidates", &["engine", "evaluate", "metrics", "observe/redaction", "observe/sample", "observe/watch"]),
    ("observe/decision_log", &["engine", "files", "observe/redaction", "telemetry", "observe/watch"]),
    ("observe/history", &["metrics"]),
    ("observe/heavy_hitters", &["engine", "metrics", "observe", "observe/redaction", "observe/watch"]),
    (
        "observe",
        &[
            "engine",
            "observe/candidates",
            "observe/decision_log",
            "observe/heavy_hitters",
            "observe/watch",
            "observe/what_if",
        ],
    ),
    ("observe/watch", &["engine"]),
    (
        "notify",
        &[
            "connect",
            "engine",
            "instant",
            "observe/redaction",
            "observe/watch",
            "shared/claims",
            "telemetry",
            "version",
        ],
    ),
    ("observe/redaction", &["engine"]),
    ("observe/sample", &["engine"]),
    ("observe/what_if", &["engine", "evaluate", "observe/redaction", "observe/sample", "observe/watch"]),
    ("evaluate", &["engine", "observe/redaction", "store"]),
    ("proposal", &["engine", "sources/files"]),
    ("replay", &["engine", "evaluate", "observe/redaction"]),
    ("ledger", &["engine"]),
    ("inspect", &["engine", "limiter", "store"]),
    ("limiter", &["delay", "engine", "instant", "metrics", "observe", "observe/watch", "store", "telemetry"]),
    ("wire", &["engine"]),
    ("grpc", &["delay", "engine", "inspect", "instant", "limiter", "metrics", "spans", "store", "wire"]),
    (
        "http",
        &[
            "engine",
            "evaluate",
            "grpc",
            "inspect",
            "ledger",
            "limiter",
            "metrics",
            "observe",
            "observe/candidates",
            "observe/heavy_hitters",
            "observe/history",
            "observe/redaction",
            "observe/what_if",
            "proposal",
            "shared/adjustment",
            "shared/fleet",
            "shared/usage",
            "sources/files",
            "store",
            "survey",
            "telemetry",
            "version",
            "wire",
        ],
    ),
    // For the names of what can be chosen.
    (
        "settings",
        &[
            "engine",
            "files",
            "grpc",
            "http",
            "limiter",
            "metrics",
            "notify",
            "observe/decision_log",
            "observe/redaction",
            "sources/files",
            "sources/xds",
            "spans",
            "store",
            "telemetry",
            "tls",
        ],
    ),
    ("server", EVERYTHING),
    ("command", EVERYTHING),
    ("connect", &[]),
    ("files", &[]),
    ("instant", &[]),
    ("probe", &[]),
    ("spans", &["connect", "telemetry", "version"]),
    ("supervise", &[]),
    ("telemetry", &[]),
    ("tls", &["files"]),
    ("version", &[]),
];

/// Folders that contain rooms, each of which may import those before it. Files at the top of the folder may import
/// all of them.
const FROM_BELOW: &[(&str, &[&str])] = &[
    (
        "engine",
        &[
            "printable",
            "wildcard",
            "algorithm",
            "price",
            "share",
            "descriptor",
            "usage",
            "clock",
            "adjustment",
            "check",
            "denied_body",
            "rules",
            "asked",
            "decision",
            "denial",
            "plan",
            "explain",
        ],
    ),
    ("store/redis", &["deadlines", "doctor", "script", "topology", "link", "decide", "examination", "replicas"]),
];

/// Folders in which every folder and file is a room.
const DIVIDED: &[&str] = &["observe", "shared", "sources"];

/// For the rooms at the top: they put the others together.
const EVERYTHING: &[&str] = &["*"];

/// Only these know the wire's types, and only these do I/O by `tokio::net`.
const OUTSIDE: &[&str] = &["connect", "grpc", "wire", "server", "command", "spans", "sources/xds"];

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

/// The room of a file: `src/grpc/convert.rs` is in `grpc`, `src/sources/files/load.rs` in `sources/files`.
fn room(path: &Path) -> String {
    let words: Vec<_> = path.strip_prefix("src").unwrap().iter().map(|word| word.to_str().unwrap()).collect();
    room_of(&words.iter().map(|word| word.trim_end_matches(".rs")).filter(|word| *word != "mod").collect::<Vec<_>>())
}

fn room_of(module: &[&str]) -> String {
    let is_module = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    let below = module.get(1).filter(|word| DIVIDED.contains(&module[0]) && is_module(word));
    below.map_or_else(|| module[0].to_owned(), |below| format!("{}/{below}", module[0]))
}

fn imports() -> Imports {
    let is_root = |file: &PathBuf| file.ends_with("lib.rs") || file.ends_with("main.rs");
    Imports::of(&files("src", "rs").into_iter().filter(|file| !is_root(file)).collect::<Vec<_>>())
}

fn source(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn rooms_use_each_other_in_one_direction() {
    let imports = imports();
    let mut wrong = Vec::new();
    for (user, used) in imports.uses() {
        let (from, to) = (room(user), room(used));
        let allowed = MAY_USE.iter().find(|(name, _)| *name == from).map_or(&[][..], |(_, allowed)| allowed);
        if from != to && allowed != EVERYTHING && !allowed.contains(&&*to) {
            wrong.push(format!("{} must not use {}", user.display(), used.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let rooms = files("src", "rs").into_iter().map(|file| room(&file));
    let seen: BTreeSet<String> =
        rooms.filter(|room| !["engine", "lib", "main", "shared", "sources"].contains(&room.as_str())).collect();
    let listed: BTreeSet<String> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(listed, seen, "the list above names just the rooms that there are");
}

/// Files of one folder may need each other: they are read together, and a module's parts know its types. Beyond a
/// folder, an arrow back means that a type is in the wrong file. A re-export is no import: a path counts as one of the
/// file that defines what it names, so that no list of names in a `mod.rs` makes or hides a circle.
#[test]
fn no_circle_of_imports_leaves_a_folder() {
    let imports = imports();
    let arrows: BTreeSet<(&Path, &Path)> = imports.uses().collect();
    assert!(arrows.len() > 1_000, "{}", arrows.len());
    let wide = circles(&arrows)
        .into_iter()
        .filter(|files| files.iter().map(|file| file.parent()).collect::<BTreeSet<_>>().len() > 1);
    let named: Vec<String> = wide
        .map(|files| {
            let inside = |(from, to): &&(&Path, &Path)| files.contains(from) && files.contains(to);
            let arrows = arrows.iter().filter(inside);
            arrows.map(|(from, to)| format!("{} -> {}\n", from.display(), to.display())).collect()
        })
        .collect();
    assert!(named.is_empty(), "circles of files in several folders:\n{}", named.join("\n"));
}

#[test]
fn folders_are_built_from_below() {
    let imports = imports();
    let mut wrong = Vec::new();
    for (folder, rooms) in FROM_BELOW {
        let folder = Path::new("src").join(folder);
        let name = |file: &Path| -> Option<String> {
            let first = file.strip_prefix(&folder).ok()?.iter().next()?.to_str()?;
            Some(first.trim_end_matches(".rs").to_owned()).filter(|name| name != "mod")
        };
        let place = |name: &str| rooms.iter().position(|room| *room == name);
        let names: BTreeSet<String> = files("src", "rs").iter().filter_map(|file| name(file)).collect();
        assert_eq!(names, rooms.iter().map(|room| (*room).to_owned()).collect(), "{}", folder.display());
        for (user, used) in imports.uses() {
            let (Some(from), Some(to)) = (name(user), name(used)) else { continue };
            if place(&to) > place(&from) {
                wrong.push(format!("{} must not use {}", user.display(), used.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_core_knows_neither_the_wire_nor_the_clock() {
    for path in files("src", "rs") {
        let (module, text) = (room(&path), source(&path));
        let code = text.split("#[cfg(test)]").next().unwrap();
        if !OUTSIDE.contains(&module.as_str()) && module != "lib" {
            // Not each word that ends so: there is a monotonic clock.
            assert!(!["tonic::", "tonic_"].iter().any(|word| code.contains(word)), "{} speaks gRPC", path.display());
        }
        if module == "engine" {
            for word in ["Instant", "SystemTime", "tokio", "std::fs", "async"] {
                assert!(!code.contains(word), "{} uses {word}", path.display());
            }
        }
    }
}

#[test]
fn the_command_line_is_a_matter_of_settings_and_command() {
    for path in files("src", "rs") {
        let (module, text) = (room(&path), source(&path));
        for (name, homes) in [("clap", ["settings", "command"]), ("anyhow", ["server", "command"])] {
            let is_used = text.contains(&format!("{name}::"));
            assert!(!is_used || homes.contains(&&*module), "{} uses {name}", path.display());
        }
    }
}

/// Clippy checks our own code: `incompatible_msrv`.
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
    // Only for this platform, because crates for others may not have been downloaded.
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

/// Paths in the comments are relative to the project or to `src`.
#[test]
fn the_files_that_comments_on_dependencies_name_exist() {
    for manifest in ["Cargo.toml", "src/engine/Cargo.toml"] {
        let text = fs::read_to_string(manifest).unwrap();
        let comments = text.lines().filter_map(|line| Some(line.split_once('#')?.1));
        let words = comments.flat_map(|comment| comment.split(|c: char| c.is_whitespace() || ",;:()`".contains(c)));
        let paths: Vec<&str> =
            words.map(|word| word.trim_end_matches('.')).filter(|word| word.ends_with(".rs")).collect();
        assert!(paths.len() > 3, "{manifest} names {paths:?}");
        for path in paths {
            assert!(Path::new(path).is_file() || Path::new("src").join(path).is_file(), "{manifest} names {path}");
        }
    }
}

#[test]
fn of_redis_only_its_store_knows() {
    for path in files("src", "rs") {
        let is_shared = path.starts_with("src/shared") && (path.ends_with("redis.rs") || path.ends_with("exchange.rs"));
        if !path.starts_with("src/store/redis") && !is_shared {
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
    let rust: BTreeSet<String> = &stems("src/engine/algorithm", "rs")
        - &BTreeSet::from(
            [
                "mod",
                "ask",
                "bucket",
                "budget_stored",
                "budget_terms",
                "calendar",
                "lease_terms",
                "leased",
                "limit",
                "options",
                "penalty",
            ]
            .map(str::to_owned),
        );
    let lua = &stems("lua", "lua")
        - &BTreeSet::from(
            [
                "prelude",
                "bucket",
                "decide",
                "alone",
                "scattered",
                "penalty",
                "leased",
                "usage",
                "rights",
                "adjustments",
                "fleet",
                "questions",
                "claims",
                "seats",
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
