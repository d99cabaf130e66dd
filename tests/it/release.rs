//! The rest of a release: the binary's information about itself, completions, man pages, and the files that build it.
//! `make e2e` tests the result: see dist.rs.

#[path = "../../build/commit.rs"]
mod commit;
use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap_complete::Shell;
use serde_json::Value;
use support::tollgate::{self, Tollgate};

fn tollgate(arguments: &[&str]) -> String {
    let output = tollgate::command().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns every command, as typed: `counter get`, as the reference page lists them, and those that contain others.
fn commands() -> BTreeSet<String> {
    let page = tollgate(&["command-line"]);
    let name = |line: &str| Some(line.strip_prefix("| [`tollgate ")?.split('`').next()?.to_owned());
    let mut found: BTreeSet<String> = page.lines().filter_map(name).collect();
    let above: Vec<_> = found.iter().filter_map(|name| Some(name.split_once(' ')?.0.to_owned())).collect();
    found.extend(above);
    assert!(found.len() > 20, "{found:?}");
    found
}

#[test]
fn every_shell_completes_every_command() {
    for shell in <Shell as clap::ValueEnum>::value_variants() {
        let script = tollgate(&["completions", &shell.to_string()]);
        for word in commands().iter().flat_map(|command| command.split(' ')).chain(["domain", "redis-url"]) {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
}

#[test]
fn bash_completes_a_command_and_a_flag() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("tollgate.bash");
    fs::write(&script, tollgate(&["completions", "bash"])).unwrap();
    for (words, position, completed) in [("tollgate as", 1, "ask"), ("tollgate ask --dom", 2, "--domain")] {
        let typed = words.split(' ').next_back().unwrap();
        let complete = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={position}; _tollgate tollgate {typed} x
             echo ${{COMPREPLY[*]}}",
            script.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &complete]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), completed, "{output:?}");
    }
}

#[test]
fn every_command_has_a_page_in_the_manual() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    tollgate(&["man", pages.to_str().unwrap()]);
    let name = |command: &String| format!("tollgate-{}.1", command.replace(' ', "-"));
    let mut expected: BTreeSet<_> = commands().iter().map(name).collect();
    expected.insert("tollgate.1".to_owned());
    let entries = fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(entries.collect::<BTreeSet<_>>(), expected);
    for page in &expected {
        let text = fs::read_to_string(pages.join(page)).unwrap();
        let title = format!(".TH {} 1 ", page.trim_end_matches(".1"));
        assert!(text.lines().any(|line| line.starts_with(&title)), "{page} has no {title}: {text}");
    }
    let serve = fs::read_to_string(pages.join("tollgate-serve.1")).unwrap();
    assert!(serve.contains("REDIS_TIMEOUT"), "it names the variables");
    assert_eq!(tollgate(&["man"]), fs::read_to_string(pages.join("tollgate.1")).unwrap());
}

#[test]
fn a_manual_that_cannot_be_written_says_where() {
    let output = tollgate::command().args(["man", "/dev/null/pages"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("error: cannot write the man pages to /dev/null/pages: "), "{said}");
}

#[test]
fn the_version_tells_commit_and_target() {
    let line = tollgate(&["--version"]);
    assert_eq!(line, format!("tollgate {}\n", ::tollgate::version::IN_FULL));
    let (_, rest) = line.split_once(&format!("tollgate {} (commit ", env!("CARGO_PKG_VERSION"))).unwrap();
    let (commit, target) = rest.trim_end().strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
    assert_eq!(commit, ::tollgate::version::COMMIT);
    assert!(target.starts_with(std::env::consts::ARCH) && target.contains(std::env::consts::OS), "{target}");
    let service = Tollgate::start("domain: shop\n", &[]);
    assert_eq!(service.must_log("tollgate is up")["commit"], commit);
    let series = format!("tollgate_build_info{{commit=\"{commit}\",version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(service.metric(&series), 1.0);
}

/// A repository with one commit of what a build reads.
fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    for file in ["build.rs", "Cargo.toml", "src/main.rs", "README.md"] {
        fs::write(folder.path().join(file), file).unwrap();
    }
    git(folder.path(), &["init", "--quiet"]);
    commit_all(folder.path());
    folder
}

fn commit_all(folder: &Path) {
    git(folder, &["add", "."]);
    let who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"];
    git(folder, &[&who[..], &["commit", "--quiet", "--message", "x"]].concat());
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn a_build_names_its_commit_and_says_whether_its_sources_have_changed_since() {
    let repository = repository();
    let folder = repository.path();
    let head = git(folder, &["rev-parse", "HEAD"])[..12].to_owned();
    assert_eq!(commit::commit(folder), head);
    fs::write(folder.join("README.md"), "of no matter to the binary").unwrap();
    assert_eq!(commit::commit(folder), head);
    fs::write(folder.join("src/new.rs"), "").unwrap();
    assert_eq!(commit::commit(folder), format!("{head} with changes"));

    let heads = commit::heads(folder);
    let seen = |heads: &[String]| heads.iter().map(|file| fs::read(folder.join(file)).unwrap()).collect::<Vec<_>>();
    let before = seen(&heads);
    commit_all(folder);
    assert_ne!(commit::commit(folder), head);
    assert!(!commit::commit(folder).contains(' '));
    assert_ne!(seen(&heads), before, "nobody would build anew for the commit: {heads:?}");
}

#[test]
fn a_build_of_unpacked_sources_says_that_it_knows_no_commit() {
    let alone = tempfile::tempdir().unwrap();
    fs::write(alone.path().join("build.rs"), "").unwrap();
    assert_eq!(commit::commit(alone.path()), commit::WITHOUT_GIT);
    let others = repository();
    let unpacked = others.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    fs::write(unpacked.join("build.rs"), "").unwrap();
    assert_eq!(commit::commit(&unpacked), commit::WITHOUT_GIT, "it is no commit of ours");
}

#[test]
fn what_a_build_is_made_of_is_there() {
    for path in commit::SOURCES {
        assert!(Path::new(path).exists(), "{path}");
    }
}

fn workflows() -> Vec<(PathBuf, Value)> {
    let entries = fs::read_dir(".github/workflows").unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let workflow = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        (path, workflow)
    };
    let found: Vec<_> = entries.map(read).collect();
    assert!(found.len() >= 2, "{found:?}");
    found
}

#[test]
fn workflows_run_only_what_is_pinned_and_may_no_more_than_they_say() {
    for (path, workflow) in workflows() {
        let permissions = &workflow["permissions"];
        let writes = |permissions: &Value| permissions.as_object().unwrap().values().any(|value| value == "write");
        assert!(!writes(permissions), "{}: {permissions} for every job", path.display());
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            assert!(job["timeout-minutes"].is_u64(), "{name} may run for hours");
            let steps = job["steps"].as_array().unwrap();
            let runs_code_of_others = steps.iter().any(|step| {
                let run = step["run"].as_str().unwrap_or_default();
                run.contains("make ") || run.contains(".ci/run")
            });
            let may_write = job.get("permissions").is_some_and(writes);
            assert!(!(runs_code_of_others && may_write), "{name} compiles dependencies, and may write");
        }
    }
    for path in workflows().into_iter().map(|(path, _)| path) {
        let text = fs::read_to_string(path).unwrap();
        for line in text.lines().filter(|line| line.contains("uses: ")) {
            let (_, action) = line.split_once('@').unwrap();
            let (commit, version) = action.split_once(" # v").unwrap_or_else(|| panic!("which version is {line}?"));
            assert!(commit.len() == 40 && commit.chars().all(|digit| digit.is_ascii_hexdigit()), "{line}");
            assert_eq!(version.split('.').count(), 3, "{line}");
        }
    }
}

/// Returns the targets of `make NAME` commands: at the beginning of a line, of a step or of marked text.
fn made_by(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim_start_matches([' ', '#', '-', '$', '\t']).trim_start_matches("run: ");
        let marked = line.split('`').skip(1).step_by(2);
        for words in marked.chain([line]).filter_map(|words| words.strip_prefix("make ")) {
            let end = words.find(|char: char| !char.is_ascii_lowercase() && !"-2".contains(char));
            let name = &words[..end.unwrap_or(words.len())];
            // "make what …" is prose, unless it is alone or precedes a comment or a variable.
            let rest = words[name.len()..].trim_start();
            if rest.is_empty()
                || rest.starts_with(['#', '`', '|', '&', ';'])
                || rest.split(' ').next().unwrap().contains('=')
            {
                found.push(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_make_target_that_is_named_is_there() {
    let makefile = fs::read_to_string("Makefile").unwrap();
    let targets: BTreeSet<_> =
        makefile.lines().filter_map(|line| line.split_once(": ##")).map(|(name, _)| name).collect();
    let mut named = BTreeSet::new();
    let tracked = git(Path::new("."), &["ls-files", "*.md", "*.yml", "*.yaml", "*.sh", ".ci/run", "Dockerfile"]);
    for path in tracked.lines() {
        for name in made_by(&fs::read_to_string(path).unwrap()) {
            assert!(targets.contains(&*name), "{path}: there is no make {name}");
            named.insert(name);
        }
    }
    for name in ["test", "e2e", "dist", "image", "msrv", "check", "deny"] {
        assert!(named.contains(name), "nothing names make {name}: {named:?}");
    }
}

#[test]
fn every_script_that_is_named_is_there() {
    let tracked = git(Path::new("."), &["ls-files", "Makefile", "*.md", "*.yml", "*.sh", ".ci/run", "Dockerfile"]);
    let mut seen = 0;
    for path in tracked.lines() {
        let text = fs::read_to_string(path).unwrap();
        for rest in text.split("scripts/").skip(1) {
            let end =
                rest.find(|char: char| !char.is_ascii_alphanumeric() && !"-.".contains(char)).unwrap_or(rest.len());
            let script = rest[..end].trim_end_matches('.');
            if script.ends_with(".sh") || script.ends_with(".txt") {
                seen += 1;
                assert!(Path::new("scripts").join(script).exists(), "{path}: there is no scripts/{script}");
            }
        }
    }
    assert!(seen > 10);
}

#[test]
fn what_is_downloaded_to_be_run_is_pinned_by_its_bytes() {
    let lists = fs::read_dir("scripts").unwrap().map(|entry| entry.unwrap().path());
    let lists: Vec<_> = lists.filter(|path| path.extension().is_some_and(|extension| extension == "txt")).collect();
    assert!(lists.len() >= 4, "{lists:?}");
    for path in lists {
        let text = fs::read_to_string(&path).unwrap();
        let requirements: Vec<_> =
            text.lines().filter(|line| !line.starts_with(['#', ' ']) && !line.is_empty()).collect();
        assert_eq!(requirements.len(), 1, "{}", path.display());
        assert!(requirements[0].contains("=="), "{}", path.display());
        let least = if text.contains("# One wheel for every machine.") { 1 } else { 2 };
        assert!(text.matches("--hash=sha256:").count() >= least, "{}: one for each kind of machine", path.display());
    }
}

#[test]
fn the_image_has_no_base_or_one_that_cannot_change() {
    let text = fs::read_to_string("Dockerfile").unwrap();
    let instruction =
        |name: &str| text.lines().filter_map(|line| line.strip_prefix(name)).map(str::trim).collect::<Vec<_>>();
    for base in instruction("FROM ") {
        assert!(base == "scratch" || base.contains("@sha256:"), "{base}");
    }
    let [user] = instruction("USER ")[..] else { panic!("not one user") };
    let ids: Vec<u32> = user.split(':').map(|id| id.parse().unwrap()).collect();
    assert!(ids.len() == 2 && ids.iter().all(|id| *id != 0), "{user}: Kubernetes sees by numbers that it is not root");
    assert!(text.contains("CMD [\"/bin/tollgate\", \"health\"]"));
    for (label, value) in [("licenses", env!("CARGO_PKG_LICENSE")), ("description", env!("CARGO_PKG_DESCRIPTION"))] {
        assert!(text.contains(&format!("org.opencontainers.image.{label}=\"{value}\"")), "{label} is not {value}");
    }
}

/// Every file that starts the image names it as `make image` does, so that what was built is what runs.
#[test]
fn the_image_has_one_name_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    let script = fs::read_to_string("scripts/image.sh").unwrap();
    assert!(script.contains("image=${IMAGE:-tollgate:$version}"), "{script}");
    let tracked = git(Path::new("."), &["ls-files", "deploy/*.yaml", "docs/*.md", "deploy/*.md", "README.md"]);
    let mut named = BTreeSet::new();
    for path in tracked.lines().chain(["Dockerfile"]) {
        let text = fs::read_to_string(path).unwrap();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let value = |key: &str| words.windows(2).find(|pair| pair[0] == key).map(|pair| pair[1].trim_matches('"'));
            let Some(image) = value("image:").or_else(|| value("--tag")) else { continue };
            let name = image.rsplit('/').next().unwrap();
            if name == "tollgate" || name.starts_with("tollgate:") {
                assert_eq!(name, format!("tollgate:{version}"), "{path}: {line}");
                named.insert(path);
            }
        }
    }
    for path in ["deploy/compose.yaml", "deploy/kustomize/base/tollgate.yaml", "docs/install.md", "Dockerfile"] {
        assert!(named.contains(path), "{path} does not name the image: {named:?}");
    }
    let yaml = |path| serde_saphyr::from_str::<Value>(&fs::read_to_string(path).unwrap()).unwrap();
    let (values, chart) = (yaml("deploy/helm/tollgate/values.yaml"), yaml("deploy/helm/tollgate/Chart.yaml"));
    assert_eq!((&values["image"]["repository"], &values["image"]["tag"]), (&"tollgate".into(), &"".into()));
    assert_eq!((&chart["appVersion"], &chart["version"]), (&version.into(), &version.into()));
}

/// What is signed in a release is what `make e2e` has tried: the workflow calls the same scripts.
#[test]
fn the_release_runs_the_scripts_that_are_tried() {
    let workflow = fs::read_to_string(".github/workflows/release.yml").unwrap();
    let tried = fs::read_to_string("scripts/release/try.sh").unwrap();
    for script in fs::read_dir("scripts/release").unwrap().map(|entry| entry.unwrap().file_name()) {
        let script = script.to_str().unwrap().to_owned();
        if script != "try.sh" {
            assert!(workflow.contains(&format!("scripts/release/{script}")), "the workflow does not run {script}");
            assert!(tried.contains(&format!("/{script}")), "make e2e does not run {script}");
        }
    }
    for made in ["target/dist", "target/dist-image", "target/dist-chart", "target/publish/SHA256SUMS.sigstore.json"] {
        assert!(workflow.contains(made), "{made} is not published");
    }
    assert!(fs::read_to_string("Makefile").unwrap().contains("\tscripts/release/try.sh\n"));
}
