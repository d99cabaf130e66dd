//! Which commit a build is made from: what `tollgate --version` tells.

use std::path::Path;
use std::process::Command;

/// What the binary is made of; a page or a test that has changed makes no other binary.
pub const SOURCES: [&str; 7] = ["Cargo.lock", "Cargo.toml", "build", "build.rs", "lua", "proto", "src"];

/// What is told where nobody can know.
pub const WITHOUT_GIT: &str = "unknown: built without git";

/// The commit of the sources in a folder, in words where there is none, or where they have changed since.
pub fn commit(folder: &Path) -> String {
    // Sources unpacked somewhere in a repository of others are not of its commit.
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

/// The files that change whenever the folder is at another commit.
pub fn heads(folder: &Path) -> Vec<String> {
    let path = |file| git(folder, &["rev-parse", "--git-path", file]);
    ["HEAD", "logs/HEAD", "packed-refs"]
        .into_iter()
        .filter_map(path)
        .filter(|file| folder.join(file).exists())
        .collect()
}

/// What git prints, where there is a git and it agrees.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
