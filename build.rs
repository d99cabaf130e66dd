//! Records the commit and the target of the build.

#[path = "build/commit.rs"]
mod commit;

use std::env;
use std::path::Path;

fn main() -> Result<(), env::VarError> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=TOLLGATE_COMMIT={}", commit()?);
    println!("cargo::rustc-env=TOLLGATE_TARGET={}", env::var("TARGET")?);
    Ok(())
}

/// Returns the commit: from TOLLGATE_COMMIT, for builds without git, or else from git.
fn commit() -> Result<String, env::VarError> {
    println!("cargo::rerun-if-env-changed=TOLLGATE_COMMIT");
    match env::var("TOLLGATE_COMMIT") {
        Ok(told) if !told.is_empty() => return Ok(told),
        _ => {}
    }
    // In development, a new commit would force everything to be compiled again.
    if env::var("PROFILE")? == "debug" {
        return Ok("unknown: a debug build".to_owned());
    }
    let folder = Path::new(".");
    for file in commit::SOURCES.map(str::to_owned).into_iter().chain(commit::heads(folder)) {
        println!("cargo::rerun-if-changed={file}");
    }
    Ok(commit::commit(folder))
}
