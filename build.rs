//! Records the commit and the target of the build, and compresses the console.

#[path = "build/commit.rs"]
mod commit;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The files of the console.
const CONSOLE: &str = "src/http/console/assets";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=TOLLGATE_COMMIT={}", commit()?);
    println!("cargo::rustc-env=TOLLGATE_TARGET={}", env::var("TARGET")?);
    compress_console(&PathBuf::from(env::var("OUT_DIR")?).join("console"))
}

/// Compresses each file of the console into a folder. The binary contains only these.
fn compress_console(folder: &Path) -> Result<(), Box<dyn Error>> {
    use std::io::Write as _;
    println!("cargo::rerun-if-changed={CONSOLE}");
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(CONSOLE)? {
        let entry = entry?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&fs::read(entry.path())?)?;
        let mut name = entry.file_name();
        name.push(".gz");
        fs::write(folder.join(name), encoder.finish()?)?;
    }
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
