//! The judge is judged by Tollgate itself: mistakes are planted into a copy of its sources, never into these, and each
//! has to be found in what callers of the built copy are told. Run by `make judge-long`: each build takes a minute or
//! two.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tollgate_judge::check::{Checks, Judge, Judgement, Kind};
use tollgate_judge::faults::{self, Fault, Outcome, Programs, System};
use tollgate_judge::record;

/// A mistake, and how it shows.
struct Plant {
    what: &'static str,
    file: &'static str,
    /// What the file says, once, and what it says instead.
    changes: &'static [(&'static str, &'static str)],
    run: Run,
}

/// A run in which a mistake shows.
#[derive(Clone, Copy)]
enum Run {
    /// One limit, and a fault.
    Faults(System, Fault, fn(&Outcome) -> bool),
    /// In memory, limits that are asked together, places that expire and budgets: broken promises of this kind.
    Limits(Kind),
}

fn over(outcome: &Outcome) -> bool {
    outcome.over_hits > 0
}

fn needless(outcome: &Outcome) -> bool {
    outcome.needless > 0
}

const PLANTS: [Plant; 16] = [
    Plant {
        what: "one too many passes, in memory",
        file: "src/engine/algorithm/sliding_window.rs",
        changes: &[("if sum <= number {", "if sum <= number + 1 {")],
        run: Run::Faults(System::TollgateMemory, Fault::None, over),
    },
    Plant {
        what: "one too many passes, in Redis",
        file: "lua/sliding_window.lua",
        changes: &[
            ("local allowed = sum + hits <= number", "local allowed = sum + hits <= number + 1"),
            ("sum + hits <= number and sum >= newest", "sum + hits <= number + 1 and sum >= newest"),
        ],
        run: Run::Faults(System::TollgateRedis, Fault::None, over),
    },
    Plant {
        what: "all segments but the newest are forgotten",
        file: "src/engine/algorithm/sliding_window.rs",
        changes: &[("self.counts[..left]", "self.counts[..left.min(1)]")],
        run: Run::Faults(System::TollgateMemory, Fault::None, over),
    },
    Plant {
        what: "a counter expires long before its window",
        file: "lua/prelude.lua",
        changes: &[("redis.call('SET', key, state, 'PX', ttl)", "redis.call('SET', key, state, 'PX', 1000)")],
        run: Run::Faults(System::TollgateRedis, Fault::None, over),
    },
    Plant {
        what: "each request is charged twice",
        file: "lua/sliding_window.lua",
        changes: &[
            ("      sum = sum + hits\n      state", "      sum = sum + 2 * hits\n      state"),
            ("index, sum, hits) .. older", "index, sum, 2 * hits) .. older"),
            ("      sum = sum + hits\n      local", "      sum = sum + 2 * hits\n      local"),
            ("sum, newest + hits)", "sum, newest + 2 * hits)"),
            ("index, sum, hits) .. string", "index, sum, 2 * hits) .. string"),
        ],
        run: Run::Faults(System::TollgateRedis, Fault::None, needless),
    },
    Plant {
        what: "keys that begin alike share a counter",
        file: "src/engine/check/key.rs",
        changes: &[("escape(name, &entry.value);", "escape(name, entry.value.get(..2).unwrap_or_default());")],
        run: Run::Faults(System::TollgateMemory, Fault::None, needless),
    },
    Plant {
        what: "a store that does not answer lets all pass",
        file: "src/engine/plan/mod.rs",
        changes: &[(
            "FailureMode::Error if check.role == Role::Shadow => FailureMode::Open",
            "FailureMode::Error => FailureMode::Open",
        )],
        run: Run::Faults(System::TollgateRedis, Fault::StoreStopped, over),
    },
    Plant {
        what: "beside shares, Redis decides by the whole number",
        file: "src/engine/share/split.rs",
        changes: &[("Some(split) if !self.is_changed => split.rest(limit)", "Some(_) if !self.is_changed => *limit")],
        run: Run::Faults(System::TollgateShares, Fault::None, over),
    },
    Plant {
        what: "an instance uses its share for a minute longer than its seat is its own",
        file: "src/engine/share/member.rs",
        changes: &[(
            "let until = query.sent + self.terms.timeout;",
            "let until = query.sent + self.terms.timeout + Duration::from_secs(60);",
        )],
        run: Run::Faults(System::TollgateShares, Fault::OneWithoutStoreLong, over),
    },
    Plant {
        what: "a denied group charges its first counter",
        file: "src/engine/check/group.rs",
        changes: &[("    group.effects.clear();", "    group.effects.truncate(1);")],
        run: Run::Limits(Kind::NeedlessDenial),
    },
    Plant {
        what: "of a group, the last counter decides",
        file: "src/engine/check/group.rs",
        changes: &[("self.denied |= over", "self.denied = over")],
        run: Run::Limits(Kind::OverLimit),
    },
    Plant {
        what: "places do not expire",
        file: "src/engine/algorithm/concurrency.rs",
        changes: &[("let held = limit.period_ms + 1;", "let held = limit.period_ms * 60;")],
        run: Run::Limits(Kind::LeakedPlace),
    },
    Plant {
        what: "what is denied is billed",
        file: "src/engine/check/group.rs",
        changes: &[("if is_denied && !check.costs_denied() { 0 } else { hits }", "hits")],
        run: Run::Limits(Kind::WrongTotal),
    },
    Plant {
        what: "a stream begins whatever others hold",
        file: "src/engine/algorithm/budget.rs",
        changes: &[(
            "budget.used() + budget.reserved() + hits <= budget.amount()",
            "budget.used() + hits <= budget.amount()",
        )],
        run: Run::Limits(Kind::OverLimit),
    },
    Plant {
        what: "a hold that is not settled does not end",
        file: "src/engine/algorithm/budget.rs",
        changes: &[("(began + self.within + 1)", "(began + self.within * 60)")],
        run: Run::Limits(Kind::NeedlessDenial),
    },
    Plant {
        what: "a stream that settles twice is charged twice",
        file: "src/engine/algorithm/budget.rs",
        changes: &[("self.charge(actual - paid);", "self.charge(actual);")],
        run: Run::Limits(Kind::WrongTotal),
    },
];

/// Limits of which two are asked together, with usage, one of places, and a budget.
const RULES: &str = "
domain: judge
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 60, usage: {by: day, keep: 32d}}}
  - {key: site, rate_limit: {period: 1s, requests_per_unit: 5, usage: {by: day, keep: 32d}}}
  - key: slots
    descriptors: [{key: stream, rate_limit: {requests_per_unit: 3, algorithm: concurrency, hold: 1s}}]
  - key: tokens
    descriptors:
      - key: hold
        rate_limit:
          {algorithm: budget, period: 1s, requests_per_unit: 30, settle_within: 800ms, usage: {by: day, keep: 32d}}
";

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
    let programs = Programs {
        tollgate,
        ratelimit: none.clone(),
        gubernator: none,
        redis: "redis-server".into(),
        libfaketime: Programs::LIBFAKETIME.into(),
    };
    faults::run(system, fault, &programs).await.unwrap().0
}

/// A running program, which ends with the run.
struct Running {
    process: Child,
    grpc: u16,
    http: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const TOKEN: &str = "a token of some length";

impl Running {
    fn start(tollgate: &Path, folder: &Path) -> Running {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (grpc, http) = (free(), free());
        fs::write(folder.join("rules.yaml"), RULES).unwrap();
        let mut command = Command::new(tollgate);
        command.current_dir(folder).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
        command.envs([("RULES", "rules.yaml"), ("ADMIN_API", "true"), ("ADMIN_TOKEN", TOKEN)]);
        command.envs([("GRPC_PORT", grpc.to_string()), ("PORT", http.to_string())]);
        let running = Running { process: command.spawn().unwrap(), grpc, http };
        let is_up = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
        while !is_up(grpc) || !is_up(http) {
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }

    async fn judged(&self, limits: serde_json::Value, load: serde_json::Value) -> Judgement {
        let rls = json!({"addresses": [format!("127.0.0.1:{}", self.grpc)], "domain": "judge"});
        let usage = json!({"address": format!("127.0.0.1:{}", self.http), "token": TOKEN});
        let target = json!({"tollgate": {"rls": rls, "usage": usage}});
        let mut scenario = json!({"about": "planted", "target": target, "clock_us": 1_000});
        (scenario["limits"], scenario["load"]) = (limits, load);
        let (header, operations) = record::history(&serde_json::from_value(scenario).unwrap()).await.unwrap();
        let mut judge = Judge::new(header, Checks::default());
        operations.iter().for_each(|operation| judge.add(operation).unwrap());
        judge.finish()
    }
}

/// Records and judges the limits of [`RULES`].
async fn limits(tollgate: &Path) -> [Judgement; 3] {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(tollgate, folder.path());
    let limit = |entry: &str, promise: serde_json::Value| json!({"entry": entry, "promise": promise});
    let window = |number: u64, period_us: u64| {
        let memory_us = period_us * 11 / 10;
        json!({"kind": "window", "number": number, "period_us": period_us, "memory_us": memory_us})
    };
    let (user, site) = (window(60, 60_000_000), window(5, 1_000_000));
    let groups = json!({"user": limit("user", user), "site": limit("site", site)});
    let places = json!({"slots": limit("slots", json!({"kind": "holders", "number": 3, "expiry_us": 1_000_000}))});
    let budget = json!({
        "kind": "budget", "number": 30, "period_us": 1_000_000, "memory_us": 1_100_000, "settle_within_us": 800_000,
        "hold_for_us": 852_000,
    });
    let budgets = json!({"tokens": limit("tokens", budget)});
    tokio::join!(
        running.judged(groups, json!({"seconds": 8, "keys": 6, "groups": 50, "zipf": 0, "most_hits": 2})),
        running.judged(places, json!({"seconds": 6, "keys": 4, "abandons": 30})),
        running.judged(budgets, json!({"seconds": 6, "keys": 4, "abandons": 20, "most_hits": 10})),
    )
    .into()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds Tollgate seventeen times: make judge-long"]
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
    for judgement in limits(&program).await {
        assert!(judgement.is_legal_but_for(&[]), "without a plant: {judgement}");
    }
    for Plant { what, file, changes, run } in PLANTS {
        let path = copy.join(file);
        let sound = fs::read_to_string(&path).unwrap();
        let mut planted = sound.clone();
        for (old, new) in changes {
            assert_eq!(planted.matches(old).count(), 1, "{file} no longer says {old:?} once");
            planted = planted.replace(old, new);
        }
        fs::write(&path, planted).unwrap();
        let program = built(&copy, &target);
        match run {
            Run::Faults(system, fault, shows) => {
                let outcome = outcome(program, system, fault).await;
                println!("{what}: {outcome:?}");
                assert!(shows(&outcome), "{what}: {outcome:?}");
            }
            Run::Limits(kind) => {
                let judgements = limits(&program).await;
                println!("{what}: {:?}", judgements.each_ref().map(|judgement| &judgement.broken));
                assert!(judgements.iter().any(|judgement| judgement.count(kind) > 0), "{what}: {judgements:?}");
            }
        }
        fs::write(&path, sound).unwrap();
    }
}
