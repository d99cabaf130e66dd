//! The judge is judged by Tollgate itself: mistakes are planted into a copy of its sources, never into these, and each
//! has to be found in what callers of the built copy are told. Run by `make judge-long`: each build takes a minute or
//! two.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_judge::faults::{self, Fault, Outcome, Programs, System};

/// A mistake, and how it shows.
struct Plant {
    what: &'static str,
    file: &'static str,
    /// What the file says, once, and what it says instead.
    changes: &'static [(&'static str, &'static str)],
    system: System,
    fault: Fault,
    shows: fn(&Outcome) -> bool,
}

fn over(outcome: &Outcome) -> bool {
    outcome.over_hits > 0
}

fn needless(outcome: &Outcome) -> bool {
    outcome.needless > 0
}

const PLANTS: [Plant; 7] = [
    Plant {
        what: "one too many passes, in memory",
        file: "src/engine/algorithm/sliding_window.rs",
        changes: &[("if sum <= number {", "if sum <= number + 1 {")],
        system: System::TollgateMemory,
        fault: Fault::None,
        shows: over,
    },
    Plant {
        what: "one too many passes, in Redis",
        file: "lua/sliding_window.lua",
        changes: &[("local allowed = sum + hits <= number", "local allowed = sum + hits <= number + 1")],
        system: System::TollgateRedis,
        fault: Fault::None,
        shows: over,
    },
    Plant {
        what: "all segments but the newest are forgotten",
        file: "src/engine/algorithm/sliding_window.rs",
        changes: &[("self.counts[..left]", "self.counts[..left.min(1)]")],
        system: System::TollgateMemory,
        fault: Fault::None,
        shows: over,
    },
    Plant {
        what: "a counter expires long before its window",
        file: "lua/prelude.lua",
        changes: &[("redis.call('SET', key, state, 'PX', ttl)", "redis.call('SET', key, state, 'PX', 1000)")],
        system: System::TollgateRedis,
        fault: Fault::None,
        shows: over,
    },
    Plant {
        what: "each request is charged twice",
        file: "lua/sliding_window.lua",
        changes: &[
            ("      sum = sum + hits\n      state", "      sum = sum + 2 * hits\n      state"),
            ("index, sum, newest + hits) .. older", "index, sum, newest + 2 * hits) .. older"),
        ],
        system: System::TollgateRedis,
        fault: Fault::None,
        shows: needless,
    },
    Plant {
        what: "keys that begin alike share a counter",
        file: "src/engine/check/key.rs",
        changes: &[("escape(name, &entry.value);", "escape(name, entry.value.get(..2).unwrap_or_default());")],
        system: System::TollgateMemory,
        fault: Fault::None,
        shows: needless,
    },
    Plant {
        what: "a store that does not answer lets all pass",
        file: "src/engine/plan/mod.rs",
        changes: &[(
            "FailureMode::Error if check.role == Role::Shadow => FailureMode::Open",
            "FailureMode::Error => FailureMode::Open",
        )],
        system: System::TollgateRedis,
        fault: Fault::StoreStopped,
        shows: over,
    },
];

/// Copies the sources of the project, and returns their folder.
fn copied(root: &Path, folder: &Path) -> PathBuf {
    let listed = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let copy = folder.join("copy");
    for file in String::from_utf8(listed.stdout).unwrap().split_terminator('\0') {
        let to = copy.join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        // A file may be deleted and not yet committed.
        if root.join(file).exists() {
            fs::copy(root.join(file), to).unwrap();
        }
    }
    copy
}

/// Builds Tollgate from a copy, and returns the program.
fn built(copy: &Path, target: &Path) -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(copy).args(["build", "--locked", "--bin", "tollgate"]).env("CARGO_TARGET_DIR", target);
    let output = build.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.join("debug/tollgate")
}

async fn outcome(tollgate: PathBuf, system: System, fault: Fault) -> Outcome {
    let none = PathBuf::new();
    let programs = Programs { tollgate, ratelimit: none.clone(), gubernator: none, redis: "redis-server".into() };
    faults::run(system, fault, &programs).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds Tollgate eight times: make judge-long"]
async fn what_is_planted_into_a_copy_of_tollgate_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let copy = copied(&root, folder.path());
    let target = root.join("target/planted");
    let program = built(&copy, &target);
    for system in [System::TollgateMemory, System::TollgateRedis] {
        let outcome = outcome(program.clone(), system, Fault::None).await;
        assert!(!over(&outcome) && !needless(&outcome), "without a plant: {outcome:?}");
    }
    for Plant { what, file, changes, system, fault, shows } in PLANTS {
        let path = copy.join(file);
        let sound = fs::read_to_string(&path).unwrap();
        let mut planted = sound.clone();
        for (old, new) in changes {
            assert_eq!(planted.matches(old).count(), 1, "{file} no longer says {old:?} once");
            planted = planted.replace(old, new);
        }
        fs::write(&path, planted).unwrap();
        let outcome = outcome(built(&copy, &target), system, fault).await;
        println!("{what}: {outcome:?}");
        assert!(shows(&outcome), "{what}: {outcome:?}");
        fs::write(&path, sound).unwrap();
    }
}
