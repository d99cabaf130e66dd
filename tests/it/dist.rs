//! The archives of `make dist`, used as a user would. `make e2e` builds them, installs the requirements and runs this.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::tollgate::Tollgate;
use tempfile::TempDir;

const TARGETS: [&str; 2] = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"];

fn dist() -> PathBuf {
    std::env::current_dir().unwrap().join("target/dist")
}

/// `tollgate-0.1.0-x86_64-unknown-linux-musl`.
fn name(target: &str) -> String {
    format!("tollgate-{}-{target}", env!("CARGO_PKG_VERSION"))
}

/// Unpacks the archive of a target into an empty folder.
fn unpacked(target: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let archive = dist().join(format!("{}.tar.gz", name(target)));
    run(Command::new("tar").arg("-xzf").arg(archive).current_dir(&folder));
    let root = folder.path().join(name(target));
    (folder, root)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands below a heading of the page on installing, block by block.
fn shown(heading: &str) -> Vec<String> {
    let page = fs::read_to_string("docs/install.md").unwrap();
    let (_, section) = page.split_once(&format!("\n{heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section.split("```sh release\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// A shell as on a machine that has nothing: no toolchain on the path, no settings.
fn shell(folder: &Path, script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-euc", script]).current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", folder);
    command
}

/// The command that runs a binary, for another kind of machine, too, with no setting of the test's own environment.
fn command(target: &str, binary: &Path) -> Command {
    let mut command = if target.starts_with(std::env::consts::ARCH) {
        Command::new(binary)
    } else {
        let mut emulator = Command::new(format!("qemu-{}-static", target.split('-').next().unwrap()));
        emulator.arg(binary);
        emulator
    };
    command.env_clear().env("PATH", "/usr/bin:/bin");
    command
}

#[test]
#[ignore = "needs what make dist makes"]
fn from_unpacking_to_the_first_limited_as_the_page_says() {
    let target = TARGETS.into_iter().find(|target| target.starts_with(std::env::consts::ARCH)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for file in [format!("{}.tar.gz", name(target)), "SHA256SUMS".to_owned()] {
        fs::copy(dist().join(&file), folder.path().join(&file)).unwrap();
    }
    let [unpack, serve, ask, install] = &shown("## From a release")[..] else { panic!("not four blocks") };
    run(&mut shell(folder.path(), unpack));
    let root = folder.path().join(name(target));
    let mut server = shell(&root, &format!("exec {}", serve.split(" #").next().unwrap()));
    server.stdout(std::process::Stdio::null());
    let tollgate = Tollgate::start_by(server, &[]);
    let output = shell(&root, ask).env("GRPC_PORT", tollgate.grpc_port.to_string()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<_> = said.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(answers, ["passed", "passed", "passed", "passed", "passed", "LIMITED"], "{said}");

    run(shell(&root, install).env("HOME", folder.path()));
    let version = run(&mut shell(folder.path(), "~/.local/bin/tollgate --version"));
    assert!(version.contains(target), "{version}");
    assert!(folder.path().join(".local/share/man/man1/tollgate-ask.1").exists());
}

#[test]
#[ignore = "needs what make dist makes"]
fn the_checksums_are_those_of_every_file() {
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(dist()));
    let sums = fs::read_to_string(dist().join("SHA256SUMS")).unwrap();
    let summed: BTreeSet<_> = sums.lines().map(|line| line.split("  ").nth(1).unwrap().to_owned()).collect();
    let mut there: BTreeSet<_> =
        fs::read_dir(dist()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(there.remove("SHA256SUMS"));
    assert_eq!(summed, there);
    let expected =
        TARGETS.iter().flat_map(|target| ["tar.gz", "cdx.json"].map(|kind| format!("{}.{kind}", name(target))));
    assert_eq!(there, expected.collect());
}

#[test]
#[ignore = "needs what make dist makes"]
fn an_archive_has_all_that_it_promises() {
    for target in TARGETS {
        let (_folder, root) = unpacked(target);
        for file in [
            "LICENSE",
            "README.md",
            "CHANGELOG.md",
            "SECURITY.md",
            "Dockerfile",
            "config/rules/shop.yaml",
            "docs/install.md",
            "deploy/compose.yaml",
            "completions/tollgate.bash",
            "completions/_tollgate",
            "completions/tollgate.fish",
            "completions/_tollgate.ps1",
            "completions/tollgate.elv",
            "man/tollgate.1",
            "man/tollgate-ask.1",
            "sbom.cdx.json",
            "THIRD-PARTY-LICENSES-rust.html",
        ] {
            assert!(fs::metadata(root.join(file)).is_ok_and(|file| file.len() > 100), "{target} has no {file}");
        }
        let notices = fs::read_to_string(root.join("THIRD-PARTY-LICENSES")).unwrap();
        let headings: Vec<_> = notices.lines().filter_map(|line| line.strip_prefix("==== ")).collect();
        let below: BTreeSet<_> = headings.iter().flat_map(|heading| heading.split(", ")).collect();
        let listed = notices.lines().filter_map(|line| line.strip_prefix("- ")?.split_once(": "));
        let listed: BTreeSet<_> = listed.take_while(|(name, _)| *name != "the standard library of Rust").collect();
        assert!(listed.len() > 80 && below.contains("musl"), "{target}: {below:?}");
        for (name, _) in listed {
            assert!(below.contains(name), "{target}: no licence of {name}");
        }
        for of in notices.split("\n==== ").skip(1) {
            assert!(of.lines().count() > 4, "{target}: no licence below {of}");
        }
    }
}

#[test]
#[ignore = "needs what make dist makes"]
fn a_binary_needs_nothing_and_tells_nothing_of_where_it_was_built() {
    let home = std::env::var("HOME").unwrap();
    for target in TARGETS {
        let (_folder, root) = unpacked(target);
        let binary = fs::read(root.join("tollgate")).unwrap();
        assert!(!asks_for_a_loader(&binary), "{target} is not static");
        for path in [env!("CARGO_MANIFEST_DIR"), &format!("{home}/.cargo")] {
            assert!(binary.windows(path.len()).all(|window| window != path.as_bytes()), "{target} names {path}");
        }
    }
}

/// Returns whether a little-endian 64-bit ELF file has a program header of type PT_INTERP.
fn asks_for_a_loader(elf: &[u8]) -> bool {
    assert_eq!(elf[..6], *b"\x7fELF\x02\x01");
    let number =
        |at: usize, bytes: usize| elf[at..at + bytes].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    let (first, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    assert!(count > 0);
    (0..count).any(|header| number(first + header * size, 4) == 3)
}

#[test]
#[ignore = "needs what make dist makes, and qemu-user-static"]
fn each_binary_tells_its_target_and_limits() {
    for target in TARGETS {
        let (_folder, root) = unpacked(target);
        let binary = root.join("tollgate");
        let version = run(command(target, &binary).arg("--version"));
        assert!(version.contains(target) && !version.contains("unknown:"), "{version}");
        let rules = format!("RULES={}", root.join("config/rules").display());
        let tollgate = Tollgate::start_by(command(target, &binary), &[&rules]);
        let address = format!("localhost:{}", tollgate.grpc_port);
        let mut ask = command(target, &binary);
        ask.args(["ask", "--timeout", "20s", "--address", &address, "--domain", "shop", "user=ann"]);
        let codes: Vec<_> = (0..6).map(|_| ask.status().unwrap().code().unwrap()).collect();
        assert_eq!(codes, [0, 0, 0, 0, 0, 2], "{target}");
    }
}

#[test]
#[ignore = "needs what make dist makes"]
fn the_sbom_names_every_crate_that_is_linked() {
    for target in TARGETS {
        let text = fs::read_to_string(dist().join(format!("{}.cdx.json", name(target)))).unwrap();
        assert!(!text.contains(env!("CARGO_MANIFEST_DIR")), "it tells where it was made");
        let sbom: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(sbom["bomFormat"], "CycloneDX");
        assert_eq!(sbom["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
        let component = |component: &Value| {
            let text = |key: &str| component[key].as_str().unwrap_or_else(|| panic!("no {key}: {component}"));
            assert!(text("purl").starts_with("pkg:cargo/"), "{component}");
            format!("{} v{}", text("name"), text("version"))
        };
        let named: BTreeSet<_> = sbom["components"].as_array().unwrap().iter().map(component).collect();
        let tree = [
            "tree",
            "--locked",
            "--package",
            "tollgate",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--target",
            target,
        ];
        let tree = run(Command::new(env!("CARGO")).args(tree));
        let word = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let linked: BTreeSet<_> = tree.lines().map(word).filter(|name| !name.starts_with("tollgate ")).collect();
        assert!(linked.len() > 80);
        assert_eq!(linked.difference(&named).collect::<Vec<_>>(), Vec::<&String>::new(), "{target}");
    }
}

#[test]
#[ignore = "needs actionlint, which needs Go"]
fn actionlint_is_content() {
    run(&mut Command::new("target/tools/bin/actionlint"));
}

#[test]
#[ignore = "needs shellcheck"]
fn shellcheck_is_content() {
    let files = run(Command::new("git").args(["grep", "--files-with-matches", "^#!/.*sh$"]));
    let scripts: Vec<_> = files.lines().filter(|file| fs::read_to_string(file).unwrap().starts_with("#!")).collect();
    assert!(scripts.len() > 5, "{scripts:?}");
    run(Command::new("shellcheck").args(scripts));
}
