//! Finds the commit that a build is made from, for `tollgate --version`.

use std::path::Path;
use std::process::Command;

/// The sources of the binary. A changed page or test does not change the binary.
pub const SOURCES: [&str; 7] = ["Cargo.lock", "Cargo.toml", "build", "build.rs", "lua", "proto", "src"];

/// The text if git cannot tell the commit.
pub const WITHOUT_GIT: &str = "unknown: built without git";

/// Returns the commit of the sources in a folder, or a text if there is none or the sources have changed since.
pub fn commit(folder: &Path) -> String {
    // Sources unpacked inside an unrelated repository do not belong to its commit.
    if git(folder, &["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return WITHOUT_GIT.to_owned();
    }
    let Some(head) = git(folder, &["rev-parse", "--short=12", "HEAD"]) else { return WITHOUT_GIT.to_owned() };
    let status = [&["status", "--porcelain", "--"][..], &SOURCES].concat();
    match git(folder, &status) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head} with changes"),
    }
}

/// Returns the files that change whenever another commit is checked out.
pub fn heads(folder: &Path) -> Vec<String> {
    let path = |file| git(folder, &["rev-parse", "--git-path", file]);
    ["HEAD", "logs/HEAD", "packed-refs"]
        .into_iter()
        .filter_map(path)
        .filter(|file| folder.join(file).exists())
        .collect()
}

/// Returns the output of git, or `None` if git is missing or fails.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
